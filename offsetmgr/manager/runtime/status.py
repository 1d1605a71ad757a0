"""What the runtime tells about itself: `ShardStatus` for people, `Counters` for the metrics endpoint."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import NamedTuple


class Role(Enum):
    """What this process is to a shard."""

    OWNER = "owner"
    STANDBY = "standby"
    NONE = "none"


class ShardStatus(NamedTuple):
    """One shard, as `manager status` shows it."""

    partition: int
    slot: int
    role: Role
    state: str
    """Of an owner, a `lifecycle.State`'s value; of a standby ``loading``, ``following`` or ``waiting``."""
    since: float
    """When it came into this state, seconds since 1970."""
    position: int
    """The next offset of the log that it has not replayed."""
    end_offset: int | None
    """Where the log ended when last looked; None where nobody looked."""
    lag: int | None
    """Offsets between the two (markers and compacted records among them); 0 for an owner that serves."""
    offsets: int
    groups: int
    load_read: int
    load_total: int
    """Offsets that the present or last load of its shard group has read, and those it has to read."""
    recovering: bool
    """Whether what became of an append is being found out."""
    unreadable: int
    """Keys whose record was found to break its format, or whose value has a version that is not known."""
    unknown_keys: int
    """Keys of versions that are not known: a newer manager's, or somebody else's."""
    last_error: str


class Counters:
    """Counted since the process began. Plain numbers: counting must cost nothing."""

    def __init__(self) -> None:
        self.commits = 0
        self.commit_records = 0
        self.fetches = 0
        self.deletes = 0
        self.refusals: Counter[int] = Counter()
        """Commits and deletes that failed, by error code."""
        self.timeouts = 0
        self.transactions = 0
        self.transaction_seconds = 0.0
        self.fenced = 0
        self.unknown_outcomes = 0
        self.loads = 0
        self.load_seconds = 0.0
        self.failures = 0
        """Claims and loads that failed."""
        self.expired = 0
        self.standby_records = 0
        self.standby_failures = 0

    def metrics(self) -> dict[str, float]:
        """By name, as `server.metrics` takes them."""
        figures: dict[str, float] = {
            "commits_total": self.commits,
            "commit_records_total": self.commit_records,
            "fetches_total": self.fetches,
            "deletes_total": self.deletes,
            "commit_timeouts_total": self.timeouts,
            "transactions_total": self.transactions,
            "transaction_seconds_total": self.transaction_seconds,
            "fenced_total": self.fenced,
            "unknown_outcomes_total": self.unknown_outcomes,
            "loads_total": self.loads,
            "load_seconds_total": self.load_seconds,
            "slot_failures_total": self.failures,
            "expired_offsets_total": self.expired,
            "standby_records_total": self.standby_records,
            "standby_failures_total": self.standby_failures,
        }
        for code, count in sorted(self.refusals.items()):
            figures[f'commit_errors_total{{code="{code}"}}'] = count
        return figures
