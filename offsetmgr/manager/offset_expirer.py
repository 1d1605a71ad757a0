"""`OffsetExpirer`: finds the expired offsets of a shard and returns the records that delete them. It changes nothing
itself.

The rules are in `expiration`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.manager.expiration import ExpiryReport, expires_at
from offsetmgr.manager.offset_reader import OffsetReader
from offsetmgr.manager.offset_table import OffsetTable
from offsetmgr.manager.results import CoordinatorResult, InFlight
from offsetmgr.records.base import EncodedRecord, GroupValue, RecordFormat


class OffsetExpirer:
    """Computes which offsets of one table expire."""

    def __init__(
        self,
        table: OffsetTable,
        reader: OffsetReader,
        in_flight: InFlight,
        format: RecordFormat,
        settings: ManagerSettings,
    ) -> None:
        self._table = table
        self._reader = reader
        self._in_flight = in_flight
        self._format = format
        self._settings = settings

    def groups(self) -> Iterator[str]:
        """See `Shard.expiry_groups`."""
        yield from self._table.groups()
        yield from (group for group in self._table.group_records() if not self._table.has_offsets(group))

    def expirable(self, group: str, now_ms: int) -> bool:
        """See `Shard.expirable`."""
        if self._in_flight.has_group(group):
            return False
        if self._table.has_group_record(group) and self.activity_is_old(group, now_ms):
            return True
        return bool(self._expired_offsets(group, now_ms))

    def activity_is_old(self, group: str, now_ms: int) -> bool:
        """Returns whether the group, if it has members, needs a new activity record."""
        last_active = self._table.last_active(group)
        return last_active is None or now_ms - last_active >= self._settings.max_activity_age_ms

    def expire(
        self, now_ms: int, active: Callable[[str], bool | None], groups: Iterable[str]
    ) -> CoordinatorResult[ExpiryReport]:
        """See `Shard.expire`."""
        records: list[EncodedRecord] = []
        groups_changed: list[str] = []
        report = ExpiryReport()
        for group in groups:
            found, part = self._expire_group(group, now_ms, active, self._settings.max_tombstones - report.offsets)
            report = report.plus(part)
            if found:
                records += found
                groups_changed.append(group)
            if part.limit_reached:
                break
        return CoordinatorResult(report, records, groups_changed)

    def _expire_group(
        self, group: str, now_ms: int, active: Callable[[str], bool | None], limit: int
    ) -> tuple[Sequence[EncodedRecord], ExpiryReport]:
        if self._in_flight.has_group(group):
            return (), ExpiryReport(groups=1, busy=1)
        if not self.expirable(group, now_ms):
            return (), ExpiryReport(groups=1)
        has_members, last_active = active(group), self._table.last_active(group)
        if has_members:
            if not self.activity_is_old(group, now_ms):
                return (), ExpiryReport(groups=1)
            return [self._format.encode_group(group, GroupValue(now_ms))], ExpiryReport(groups=1, refreshed=1)
        recorded = self._table.has_group_record(group)
        if has_members is None or (recorded and last_active is None):
            return (), ExpiryReport(groups=1, unknown=1)
        size = self._table.size(group)
        if size == 0:
            kept_ms = self._settings.max_activity_age_ms + self._settings.retention_ms
            record_expired = last_active is not None and last_active + kept_ms <= now_ms
            return self._table.tombstones(group, (), with_record=record_expired), ExpiryReport(groups=1)
        expired = self._expired_offsets(group, now_ms)
        to_delete = expired[:limit]
        emptied = len(to_delete) == size
        report = ExpiryReport(1, len(to_delete), int(emptied), limit_reached=len(to_delete) < len(expired))
        return self._table.tombstones(group, to_delete, with_record=emptied and recorded), report

    def _expired_offsets(self, group: str, now_ms: int) -> list[tuple[str, int]]:
        """Returns the offsets that may expire if the group has no members. Unreadable offsets never expire, because
        their age is unknown."""
        last_active = self._table.last_active(group)
        retention_ms, max_activity_age_ms = self._settings.retention_ms, self._settings.max_activity_age_ms
        expired = []
        for topic, values in self._table.topics(group).items():
            for partition, raw in values.items():
                value = self._reader.value(group, topic, partition, raw)
                if value is None:
                    continue
                if expires_at(value, last_active, retention_ms, max_activity_age_ms) <= now_ms:
                    expired.append((topic, partition))
        return expired
