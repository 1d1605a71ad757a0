"""The settings of a `ZookeeperConsumer`, with the old consumer's names and defaults where it has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import UsageError

_RESETS: Final = {"smallest": "smallest", "earliest": "smallest", "largest": "largest", "latest": "largest"}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Times in milliseconds. Raises `UsageError` where made with something impossible.

    Source: kafka.consumer.ConsumerConfig of 0.10.2. Other than there: ``rebalance_backoff_ms`` (2000 there) and
    ``auto_commit_interval_ms`` (60,000) are shorter, and the last three settings are ours.
    """

    auto_commit: bool = True
    """``auto.commit.enable``: commit at intervals, before partitions are given up, and at `shutdown`."""
    auto_commit_interval_ms: int = 5000
    auto_offset_reset: str = "largest"
    """Where to begin without a committed offset, or with one that the log does not hold: ``smallest`` (or
    ``earliest``), ``largest`` (or ``latest``)."""
    consumer_timeout_ms: int | None = None
    """How long iterators wait for a message; None: for ever."""
    zookeeper_session_timeout_ms: int = 6000
    rebalance_backoff_ms: int = 500
    rebalance_max_retries: int = 4
    offsets_commit_max_retries: int = 5
    offsets_backoff_ms: int = 500
    """``offsets.channel.backoff.ms``: the pause before a commit or a fetch of offsets is tried again."""
    exclude_internal_topics: bool = True
    queued_max_messages: int = 5000
    """Messages that wait in one stream before its partitions are fetched no further."""
    hand_over_ms: int = 3000
    """How long the message in a reader's hand may delay the giving up of its partition. If the reader takes longer,
    the next owner gets this message again."""
    release_delay_ms: int = 1000
    """How long a partition is kept after its last commit, for old consumers that read its offset before claiming it."""
    refresh_ms: int = 600_000
    """How often unchanged offsets are committed again to a store that forgets old ones (Kafka)."""

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
