"""`ManagerConfig`: the settings of the runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from offsetmgr.manager.shard import ShardLimits

Members: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, bool]]]
"""Returns for each group whether it has members. If a group is missing from the result, it is unknown whether the group
has members."""


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """The settings of `ManagerRuntime`. Times are in seconds."""

    limits: ShardLimits = field(default_factory=ShardLimits)
    commit_timeout_s: float = 5.0
    """The time limit of a commit (Kafka's ``offsets.commit.timeout.ms``)."""
    claim_timeout_s: float = 10.0
    """The timeout of a claim, and of each request for the log's ends."""
    retry_pause_s: float = 0.5
    """The pause after a failed claim or load. The pause doubles with each failure, up to `max_retry_pause_s`."""
    max_retry_pause_s: float = 2.0
    max_append_records: int = 10_000
    """When an append has at least this number of records, no further commit joins it, because replaying the records of
    one append must not block the loop for long."""
    max_append_bytes: int = 4 << 20
    claim_refresh_s: float = 3600.0
    """The interval at which an owner claims its shard groups again, so that the brokers do not forget its producers.
    The value must be far below ``producer.id.expiration.ms`` and ``transactional.id.expiration.ms`` of the brokers."""
    max_pending_records: int = 200_000
    """The number of unacknowledged records at which `ManagerRuntime.backpressure` begins. Backpressure ends at half of
    this number."""
    load_threads: int = 2
    """The number of shard groups that are loaded at the same time. A larger number does not help, because the
    interpreter runs one thread at a time."""
    standby: bool = True
    """Whether to follow the shard groups of other managers, so that a takeover reads only the end of the log."""
    standby_poll_s: float = 0.2
    """How long a poll of the standby waits for records."""
    standby_records: int = 2_000
    """The maximum number of records that the standby passes to the loop at a time. The loop applies this number of
    records in a few milliseconds."""
    lag_interval_s: float = 5.0
    """The interval at which the standby requests the end offsets of the log."""
    max_standby_age_s: float = 3600.0
    """The longest time for which a standby may be behind the log's end, for example because it was suspended or
    disconnected. After a longer time the log cleaner may have removed tombstones that the standby has not read, so the
    standby reads the log from the start. The value must be far below the topic's ``delete.retention.ms`` (24 h)."""
    expiry_interval_s: float = 600.0
    """The interval between two expiration passes over a shard (``offsets.retention.check.interval.ms``)."""
    members: Members | None = None
    """Called before offsets expire, to determine which groups have members. If the function is None, every group counts
    as a group without members."""
    own_process: bool = False
    """Whether the process runs only the manager, so that its allocator and garbage collector may be tuned (see
    `process_settings`)."""

    def __post_init__(self) -> None:
        for name in ("load_threads", "max_append_records", "max_append_bytes", "max_pending_records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        durations = ("commit_timeout_s", "claim_timeout_s", "expiry_interval_s", "lag_interval_s", "retry_pause_s")
        for name in (*durations, "claim_refresh_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")
