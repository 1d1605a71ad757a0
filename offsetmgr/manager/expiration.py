"""When offsets expire, and how a pass over a shard is cut into pieces. Pure: no I/O, no clock, no state of a shard.

Kafka's rules (KIP-211, GroupMetadata.removeExpiredOffsets): an offset whose commit named a retention of its own expires
when that is over; any other one a retention after its commit, or, if its group had members, after the last of them
left; and none while the group has members.

When the last member left is known only from the group's record of its last activity, which is at most ``activity_ms``
behind.  So offsets of groups that had members are kept that much longer: never shorter than Kafka would.  An offset
committed after the group became empty counts from its own commit (Kafka counts from when the group became empty, and
may expire such a commit at once).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from offsetmgr.records.base import OffsetValue

HOUR_MS: Final = 60 * 60 * 1000
DEFAULT_RETENTION_MS: Final = 7 * 24 * HOUR_MS
"""Of every way to run a manager: managers of one topic have to agree on it."""


class RetentionPolicy(NamedTuple):
    """How long things are kept, in milliseconds."""

    retention_ms: int = DEFAULT_RETENTION_MS
    """After an offset's commit, or after its group's last member left (``offsets.retention.minutes``)."""
    activity_ms: int = 6 * HOUR_MS
    """How old the record of a group's activity may get while the group has members."""


class ExpiryReport(NamedTuple):
    """What a pass, or a part of one, found and decided."""

    groups: int = 0
    """Looked at."""
    offsets: int = 0
    """Expired."""
    emptied: int = 0
    """Groups that have no offsets any more."""
    refreshed: int = 0
    """Groups with members, whose activity is recorded again."""
    busy: int = 0
    """Groups left alone because something about them is in flight."""
    unknown: int = 0
    """Groups left alone because nobody could say whether they have members."""
    cut: bool = False
    """Whether it stopped at the limit of tombstones: what it did not come to is for the next one."""

    def plus(self, other: ExpiryReport) -> ExpiryReport:
        """Both together."""
        return ExpiryReport(
            self.groups + other.groups,
            self.offsets + other.offsets,
            self.emptied + other.emptied,
            self.refreshed + other.refreshed,
            self.busy + other.busy,
            self.unknown + other.unknown,
            self.cut or other.cut,
        )


def expires_at(value: OffsetValue, last_active: int | None, terms: RetentionPolicy) -> int:
    """When an offset may go if its group has no members (ms since 1970). ``last_active`` None: it never had any."""
    if value.expire_timestamp is not None:
        return value.expire_timestamp
    if last_active is None:
        return value.commit_timestamp + terms.retention_ms
    return max(value.commit_timestamp, last_active + terms.activity_ms) + terms.retention_ms


def record_expires_at(last_active: int, terms: RetentionPolicy) -> int:
    """When the record of a group that has no offsets and no members may go (ms since 1970)."""
    return last_active + terms.activity_ms + terms.retention_ms


def activity_is_old(last_active: int | None, now_ms: int, terms: RetentionPolicy) -> bool:
    """Whether a group that has members now needs a new record of that."""
    return last_active is None or now_ms - last_active >= terms.activity_ms


def batches(groups: Iterable[str], size: Callable[[str], int], most: int) -> Iterator[Sequence[str]]:
    """Groups in pieces of at most ``most`` offsets together (a larger group is a piece of its own), so that a pass can
    let others run in between. ``size`` tells how many offsets a group has, and is asked when its turn comes."""
    batch: list[str] = []
    held = 0
    for group in groups:
        weight = 1 + size(group)
        if batch and held + weight > most:
            yield batch
            batch, held = [], 0
        batch.append(group)
        held += weight
    if batch:
        yield batch


class ExpirationSchedule:
    """When each shard's next pass is due: one pass an interval, spread over it, so that they do not come together.

    Times are seconds of one monotonic clock, which the caller reads.
    """

    def __init__(self, partitions: int, interval: float = 600.0) -> None:
        self._interval = interval
        self._partitions = partitions
        self._due: dict[int, float] = {}

    def start(self, partition: int, now: float) -> None:
        """The shard is served from now on; its first pass comes after its part of an interval, never at once: what
        was just loaded has had nobody to say which groups have members."""
        self._due[partition] = now + self._interval * (partition + 1) / self._partitions

    def stop(self, partition: int) -> None:
        """The shard is not served any more."""
        self._due.pop(partition, None)

    def take_due(self, now: float) -> Sequence[int]:
        """The shards whose pass is to begin now, longest overdue first; their next one is an interval from now."""
        due = sorted((at, partition) for partition, at in self._due.items() if at <= now)
        for _, partition in due:
            self._due[partition] = now + self._interval
        return [partition for _, partition in due]
