"""`ConsumerSettings`: the settings of a `ZookeeperConsumer`. Most settings that also exist in the old consumer have the
same name as in the old consumer. If the old consumer has another name for a setting, the description of the setting
begins with that name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import UsageError

_RESETS: Final = {"smallest": "smallest", "earliest": "smallest", "largest": "largest", "latest": "largest"}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings of a consumer; times are in milliseconds. Raises `UsageError` for invalid values.

    Source: kafka.consumer.ConsumerConfig of Kafka 0.10.2. The defaults are those of the old consumer, except for
    ``auto_commit_interval_ms`` (60,000 in the old consumer), ``rebalance_backoff_ms`` (2000) and ``offsets_backoff_ms``
    (1000). ``queued_max_messages``, ``hand_over_ms``, ``release_delay_ms`` and ``refresh_ms`` exist only in offsetmgr.
    The old consumer limits its queue by the number of chunks (``queued.max.message.chunks``), and not by the number of
    messages.

    >>> ConsumerSettings(auto_commit=False, auto_offset_reset="smallest").consumer_timeout_ms is None
    True
    """

    auto_commit: bool = True
    """``auto.commit.enable``: commits at intervals, before partitions are released, and at `shutdown`."""
    auto_commit_interval_ms: int = 5000
    auto_offset_reset: str = "largest"
    """Where to start if a partition has no committed offset, or if its committed offset is outside the log:
    ``smallest`` (or ``earliest``), or ``largest`` (or ``latest``)."""
    consumer_timeout_ms: int | None = None
    """How long a stream's iterator waits for a message before it ends; None for no limit."""
    zookeeper_session_timeout_ms: int = 6000
    rebalance_backoff_ms: int = 500
    rebalance_max_retries: int = 4
    offsets_commit_max_retries: int = 5
    offsets_backoff_ms: int = 500
    """``offsets.channel.backoff.ms``: the pause before a commit or a fetch of offsets is retried."""
    exclude_internal_topics: bool = True
    queued_max_messages: int = 5000
    """If this many messages wait in a stream, the consumer pauses fetching the stream's partitions."""
    hand_over_ms: int = 3000
    """How long the release of a partition waits until a reader has finished its current message. If the reader takes
    longer, the partition's next owner receives this message again."""
    release_delay_ms: int = 1000
    """How long a member keeps a partition after the partition's last commit. The delay is necessary because old
    consumers read a partition's offset before they claim the partition."""
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
        """Whether a partition without a usable committed offset starts at the smallest offset of its log."""
        return _RESETS[self.auto_offset_reset] == "smallest"
