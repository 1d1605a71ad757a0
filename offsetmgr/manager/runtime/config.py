"""`ManagerConfig`: what the runtime is told, once and for all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from offsetmgr.manager.shard import ShardLimits

Members: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, bool]]]
"""Tells of groups whether they have members; a group that is missing in the answer is one of which nobody knows."""


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """Times are seconds where the name does not say otherwise."""

    limits: ShardLimits = field(default_factory=ShardLimits)
    commit_timeout: float = 5.0
    """A commit is answered within this time from its call (Kafka's ``offsets.commit.timeout.ms``)."""
    claim_timeout: float = 10.0
    """For claiming a shard group, and for each question about the log's ends."""
    retry_pause: float = 0.5
    """After a claim or load that failed; doubles up to `most_retry_pause`."""
    most_retry_pause: float = 2.0
    transaction_records: int = 10_000
    """No commit joins a transaction that has so many: what one transaction changes must not hold up the loop."""
    transaction_bytes: int = 4 << 20
    most_pending_records: int = 200_000
    """With so many not yet acknowledged there is no `ManagerRuntime.room`; with half of it there is again."""
    load_threads: int = 2
    """How many shard groups are read at once; more do not help, the interpreter runs one thread at a time."""
    standby: bool = True
    """Whether to follow the shard groups of others, so that taking one over means reading the tail only."""
    standby_poll: float = 0.2
    """How long a poll without records waits."""
    standby_records: int = 2_000
    """How many records go to the loop at once: a few milliseconds of its time."""
    lag_interval: float = 5.0
    """How often a standby looks where the log ends."""
    most_standby_age: float = 3600.0
    """Who has not been at the log's end for so long (suspended, cut off) reads it from its start: by then the cleaner
    may have removed tombstones that were never seen here. Far below the topic's ``delete.retention.ms`` (24 h)."""
    expiry_interval: float = 600.0
    """From one expiry pass over a shard to the next (``offsets.retention.check.interval.ms``)."""
    members: Members | None = None
    """Asked before offsets expire. None: no group has members, as where all commits are simple ones."""
    own_process: bool = False
    """Whether the process does nothing else, so that it may be tuned for this (see `process_tuning`)."""

    def __post_init__(self) -> None:
        for name in ("load_threads", "transaction_records", "transaction_bytes", "most_pending_records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("commit_timeout", "claim_timeout", "expiry_interval", "lag_interval", "retry_pause"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")
