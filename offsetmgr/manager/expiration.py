"""The rules of offset expiration, and the schedule of expiration passes. Pure.

The rules are Kafka's (KIP-211, GroupMetadata.removeExpiredOffsets). If a commit specified a retention, its offset
expires after this retention. Any other offset expires one retention time after its commit or one retention time after
the last member left the group, whichever is later. No offset expires while the group has members.

The manager does not know exactly when the last member left: while a group has members, its activity record is renewed
only every ``max_activity_age_ms``. The manager therefore adds ``max_activity_age_ms`` to the time in the record. As a
result, after the last member of a group has left, the manager keeps the group's offsets for at least as long as Kafka,
and for up to ``max_activity_age_ms`` longer. If an offset was committed after the group became empty, its retention
starts at the commit. (In Kafka, the retention starts when the group became empty, so Kafka may expire such an offset at
once.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.manager.offset_table import OffsetTable
from offsetmgr.manager.results import CoordinatorResult, InFlight
from offsetmgr.records.base import EncodedRecord, GroupValue, OffsetValue, RecordFormat


def expires_at(value: OffsetValue, last_active: int | None, retention_ms: int, max_activity_age_ms: int) -> int:
    """Returns the time (ms since 1970) from which an offset may expire if its group has no members. ``last_active`` is
    None if the group never had members. For the other arguments see `ManagerSettings`."""
    if value.expire_timestamp is not None:
        return value.expire_timestamp
    if last_active is None:
        return value.commit_timestamp + retention_ms
    return max(value.commit_timestamp, last_active + max_activity_age_ms) + retention_ms


class ExpirationSchedule:
    """The time of each shard's next expiration pass. Each shard has one pass in each interval; the passes are spread
    over the interval so that they do not coincide.

    Times are in seconds of a monotonic clock that the caller reads.
    """

    def __init__(self, partitions: int, interval_s: float = 600.0) -> None:
        self._interval_s = interval_s
        self._partitions = partitions
        self._due: dict[int, float] = {}

    def start(self, partition: int, now: float) -> None:
        """Adds a shard. The first passes of all shards are spread over one interval. No pass runs immediately after a
        load, because the manager does not know yet which groups have members."""
        self._due[partition] = now + self._interval_s * (partition + 1) / self._partitions

    def stop(self, partition: int) -> None:
        """Removes a shard."""
        self._due.pop(partition, None)

    def take_due(self, now: float) -> Sequence[int]:
        """Returns the shards whose pass is due, the longest overdue first, and schedules their next pass one interval
        later."""
        due = sorted((at, partition) for partition, at in self._due.items() if at <= now)
        for _, partition in due:
            self._due[partition] = now + self._interval_s
        return [partition for _, partition in due]


R = TypeVar("R")


class ExpiringTable(OffsetTable):
    """A table that finds its expired offsets and returns the records that delete them, which it does not apply. The
    rules are those of `expires_at`."""

    def __init__(self, record_format: RecordFormat, settings: ManagerSettings) -> None:
        super().__init__(record_format)
        self._settings = settings
        self._in_flight = InFlight()

    def expiry_groups(self) -> Iterator[str]:
        """Yields the groups of a whole expiration pass: those with offsets, and those with only an activity record."""
        yield from self.groups()
        yield from (group for group in tuple(self._last_active) if not self.has_group(group))

    def expirable(self, group: str, now_ms: int) -> bool:
        """Returns whether `expire` could change something for the group now. Whether `expire` does so depends on
        whether the group has members."""
        if self._in_flight.has_group(group):
            return False
        if self.has_group_record(group) and self.activity_is_old(group, now_ms):
            return True
        return bool(self._expired_offsets(group, now_ms))

    def activity_is_old(self, group: str, now_ms: int) -> bool:
        """Returns whether the group, if it has members, needs a new activity record."""
        last_active = self.last_active(group)
        return last_active is None or now_ms - last_active >= self._settings.max_activity_age_ms

    def expire(
        self, now_ms: int, active: Callable[[str], bool | None], groups: Iterable[str] | None = None
    ) -> CoordinatorResult[int]:
        """Returns tombstones for the offsets that have expired at ``now_ms``, and new activity records. ``groups``
        limits the pass; None means all groups. The response is the number of offsets that the tombstones delete. It is
        at most ``max_tombstones``; the next pass deletes further offsets.

        ``active`` returns whether a group has members, or None if this is unknown. If ``active`` returns None, no
        offset of the group expires. ``active`` is called only for groups that are `expirable`.
        """
        records: list[EncodedRecord] = []
        groups_changed: list[str] = []
        deleted = 0
        for group in self.expiry_groups() if groups is None else groups:
            if not self.expirable(group, now_ms):
                continue
            limit = self._settings.max_tombstones - deleted
            found, offsets, limit_reached = self._expire_group(group, now_ms, active(group), limit)
            deleted += offsets
            if found:
                records += found
                groups_changed.append(group)
            if limit_reached:
                break
        return self._put_in_flight(CoordinatorResult(deleted, records, groups_changed))

    def _put_in_flight(self, result: CoordinatorResult[R]) -> CoordinatorResult[R]:
        """Puts a result in flight if it has records."""
        if result.records:
            self._in_flight.begin(result)
        return result

    def _expire_group(
        self, group: str, now_ms: int, has_members: bool | None, limit: int
    ) -> tuple[Sequence[EncodedRecord], int, bool]:
        """Returns the records of an expirable group, the number of offsets that they delete, and whether ``limit``
        keeps further expired offsets."""
        last_active = self.last_active(group)
        if has_members:
            old = self.activity_is_old(group, now_ms)
            return [self.record_format.encode_group(group, GroupValue(now_ms))] if old else (), 0, False
        recorded = self.has_group_record(group)
        if has_members is None or (recorded and last_active is None):
            return (), 0, False
        size = self.size(group)
        if size == 0:
            kept_ms = self._settings.max_activity_age_ms + self._settings.retention_ms
            record_expired = last_active is not None and last_active + kept_ms <= now_ms
            return self.tombstones(group, (), with_record=record_expired), 0, False
        expired = self._expired_offsets(group, now_ms)
        to_delete = expired[:limit]
        tombstones = self.tombstones(group, to_delete, with_record=recorded and len(to_delete) == size)
        return tombstones, len(to_delete), len(to_delete) < len(expired)

    def _expired_offsets(self, group: str, now_ms: int) -> list[tuple[str, int]]:
        """Returns the offsets that may expire if the group has no members. Unreadable offsets never expire, because
        their age is unknown."""
        last_active = self.last_active(group)
        retention_ms, max_activity_age_ms = self._settings.retention_ms, self._settings.max_activity_age_ms
        expired = []
        for topic, values in self.topics(group).items():
            for partition, raw in values.items():
                value = self.value(group, topic, partition, raw)
                if value is not None and expires_at(value, last_active, retention_ms, max_activity_age_ms) <= now_ms:
                    expired.append((topic, partition))
        return expired
