"""The status of the runtime: `ShardStatus` for the command `manager status`, `Counters` for the metrics endpoint."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import NamedTuple


class Role(Enum):
    """The role of this process for a shard."""

    OWNER = "owner"
    STANDBY = "standby"
    NONE = "none"


class ShardStatus(NamedTuple):
    """The status of one shard, as `manager status` prints it."""

    partition: int
    shard_group: int
    role: Role
    state: str
    """If this process is the owner, the value of the `lifecycle.ShardState`; if it is a standby, ``loading``,
    ``following`` or ``waiting``."""
    since: float
    """The time at which the shard entered this state, in seconds since 1970."""
    position: int
    """The next offset of the log to replay."""
    end_offset: int | None
    """The last known end of the log; None if unknown."""
    lag: int | None
    """The number of offsets from ``position`` to ``end_offset``, including markers and compacted records; 0 for an
    owner that serves; None if unknown, as for a standby that does not follow the log."""
    offsets: int
    groups: int
    load_read: int
    load_total: int
    """``load_read`` is the number of offsets that the current or last load of the shard group has read; ``load_total``
    is the number of offsets that this load has to read."""
    recovering: bool
    """Whether the owner is determining the outcome of an append."""
    unreadable: int
    """The number of keys with an invalid record or with a value of an unknown version."""
    unknown_keys: int
    """The number of keys with an unknown version, written by a newer manager or by another program."""
    last_error: str


class Counters:
    """Counters since the start of the process. They are plain numbers, so that counting is cheap. The metrics have the
    names of the attributes, with ``_total``."""

    def __init__(self) -> None:
        self.commits = 0
        self.commit_records = 0
        self.fetches = 0
        self.deletes = 0
        self.errors: Counter[int] = Counter()
        """The number of failed commits and deletes, by error code."""
        self.commit_timeouts = 0
        self.appends = 0
        self.append_seconds = 0.0
        self.fenced = 0
        self.unknown_outcomes = 0
        self.loads = 0
        self.load_seconds = 0.0
        self.shard_group_failures = 0
        """The number of failed claims and loads."""
        self.expired_offsets = 0
        self.restored_records = 0
        """The number of records that were appended again, because records of the log were deleted."""
        self.standby_records = 0
        self.standby_failures = 0

    def metrics(self) -> dict[str, float]:
        """Returns the counters by name, for `server.metrics`."""
        values = {f"{name}_total": value for name, value in vars(self).items() if name != "errors"}
        return values | {f'commit_errors_total{{code="{code}"}}': n for code, n in sorted(self.errors.items())}
