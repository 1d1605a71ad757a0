"""`ConsumerSettings`: the settings of a `ZookeeperConsumer`. They have the names of the old consumer's settings where
it has the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import UsageError

_RESETS: Final = {"smallest": "smallest", "earliest": "smallest", "largest": "largest", "latest": "largest"}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings of a consumer; times are in milliseconds. Raises `UsageError` for invalid values.

    Source: kafka.consumer.ConsumerConfig of 0.10.2. The defaults are those of the old consumer, except for two shorter
    ones: ``rebalance_backoff_ms`` (2000 in the old consumer) and ``auto_commit_interval_ms`` (60,000). The last three
    settings are offsetmgr's own.
    """

    auto_commit: bool = True
    """``auto.commit.enable``: commits at intervals, before partitions are released, and at `shutdown`."""
    auto_commit_interval_ms: int = 5000
    auto_offset_reset: str = "largest"
    """Where to start if there is no committed offset or it is outside the log: ``smallest`` (or ``earliest``), or
    ``largest`` (or ``latest``)."""
    consumer_timeout_ms: int | None = None
    """How long iterators wait for a message; None for no limit."""
    zookeeper_session_timeout_ms: int = 6000
    rebalance_backoff_ms: int = 500
    rebalance_max_retries: int = 4
    offsets_commit_max_retries: int = 5
    offsets_backoff_ms: int = 500
    """``offsets.channel.backoff.ms``: the pause before a retry of a commit or a fetch of offsets."""
    exclude_internal_topics: bool = True
    queued_max_messages: int = 5000
    """The number of messages waiting in one stream from which on its partitions are paused."""
    hand_over_ms: int = 3000
    """How long the current message of a reader may delay the release of its partition. If the reader takes longer, the
    next owner receives this message again."""
    release_delay_ms: int = 1000
    """How long a member keeps a partition after its last commit, because old consumers read its offset before they
    claim it."""
    refresh_ms: int = 600_000
    """How often unchanged offsets are committed again to a store whose offsets expire (Kafka)."""

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in _RESETS:
            known = ", ".join(_RESETS)
            raise UsageError(f"auto_offset_reset {self.auto_offset_reset!r}", "is unknown", f"known: {known}")
        for name in ("auto_commit_interval_ms", "zookeeper_session_timeout_ms", "rebalance_backoff_ms"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} {getattr(self, name)}", "must be above 0")

    @property
    def from_smallest(self) -> bool:
        return _RESETS[self.auto_offset_reset] == "smallest"
