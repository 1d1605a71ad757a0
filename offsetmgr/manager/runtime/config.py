"""`ManagerConfig`: the settings of the runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from offsetmgr.manager.shard import ShardLimits

Members: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, bool]]]
"""Returns for each group whether it has members; a missing group is unknown."""


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """Times are seconds unless the name says otherwise."""

    limits: ShardLimits = field(default_factory=ShardLimits)
    commit_timeout: float = 5.0
    """The time limit of a commit (Kafka's ``offsets.commit.timeout.ms``)."""
    claim_timeout: float = 10.0
    """The timeout of a claim, and of each request for the log's ends."""
    retry_pause: float = 0.5
    """The pause after a failed claim or load; it doubles up to `max_retry_pause`."""
    max_retry_pause: float = 2.0
    max_transaction_records: int = 10_000
    """The maximum number of records in a transaction before no further commit joins it: its changes must not block the
    loop."""
    max_transaction_bytes: int = 4 << 20
    max_pending_records: int = 200_000
    """The number of unacknowledged records at which `ManagerRuntime.backpressure` begins; it ends at half of it."""
    load_threads: int = 2
    """The number of shard groups that are read at once; more do not help, because the interpreter runs one thread at a
    time."""
    standby: bool = True
    """Whether to follow the shard groups of other managers, so that a takeover reads only the tail."""
    standby_poll: float = 0.2
    """The time that a poll without records waits."""
    standby_records: int = 2_000
    """The number of records for the loop at once: a few milliseconds of its time."""
    lag_interval: float = 5.0
    """The interval at which a standby asks for the log's ends."""
    max_standby_age: float = 3600.0
    """A standby that has not been at the log's end for this time (suspended, disconnected) reads from the start,
    because the cleaner may have removed tombstones that it never saw. Far below the topic's ``delete.retention.ms`` (24
    h)."""
    expiry_interval: float = 600.0
    """The interval between two expiration passes over a shard (``offsets.retention.check.interval.ms``)."""
    members: Members | None = None
    """Called before offsets expire. If it is None, no group has members, as if all commits were simple ones."""
    own_process: bool = False
    """Whether the process only runs the manager, so that it may be tuned for it (see `process_settings`)."""

    def __post_init__(self) -> None:
        for name in ("load_threads", "max_transaction_records", "max_transaction_bytes", "max_pending_records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("commit_timeout", "claim_timeout", "expiry_interval", "lag_interval", "retry_pause"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")
