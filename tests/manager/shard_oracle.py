"""The expected responses and records of a shard, computed with plain dicts, independently of the shard's code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from offsetmgr.config.manager_settings import HOUR_MS, ManagerSettings
from offsetmgr.manager.results import CommitRequest, CommitResponse
from offsetmgr.records.base import GroupKey, GroupValue, OffsetKey, OffsetValue

LIMITS = ManagerSettings(max_metadata_length=4, retention_ms=24 * HOUR_MS, max_activity_age_ms=6 * HOUR_MS)

State: TypeAlias = dict[OffsetKey | GroupKey, OffsetValue | GroupValue]
Change: TypeAlias = dict[OffsetKey | GroupKey, OffsetValue | GroupValue | None]


def changed(state: State, change: Change) -> State:
    merged = {**state, **change}
    return {key: value for key, value in merged.items() if value is not None}


def offsets_of(state: State, group: str) -> dict[OffsetKey, OffsetValue]:
    return {
        key: value
        for key, value in state.items()
        if isinstance(key, OffsetKey) and isinstance(value, OffsetValue) and key.group == group
    }


def activity(state: State, group: str) -> int | None:
    value = state.get(GroupKey(group))
    return value.last_active if isinstance(value, GroupValue) else None


class Oracle:
    """``epochs``: whether an offset with an expiration time keeps its leader epoch, which Kafka's format cannot
    store."""

    def __init__(self, *, epochs: bool) -> None:
        self._epochs = epochs

    def commit(
        self, state: State, pending: Sequence[Change], request: CommitRequest, now: int
    ) -> tuple[CommitResponse, Change]:
        group = request.group
        if not group and request.generation >= 0:
            return CommitResponse(25 if offsets_of(state, group) else 22), {}
        expire = None if request.retention_ms is None else now + request.retention_ms
        errors: dict[tuple[str, int], int] = {}
        change: Change = {}
        deleted: Change = {}
        for topic, partitions in request.topics:
            for partition, offset, epoch, metadata in partitions:
                key = OffsetKey(group, topic, partition)
                expected = request.expected.get((topic, partition))
                if offset < (0 if expected is None else -1):
                    errors[topic, partition] = 42
                    continue
                if expected is not None:
                    stored = offsets_of(state, group).get(key)
                    if any(key in other for other in pending) or (stored.offset if stored else -1) != expected:
                        errors[topic, partition] = 55
                        continue
                    if offset == -1:
                        if stored:
                            deleted[key] = None
                        continue
                if len(metadata) > LIMITS.max_metadata_length:
                    errors[topic, partition] = 12
                    continue
                stored_epoch = None if epoch == -1 or (expire is not None and not self._epochs) else epoch
                change[key] = OffsetValue(offset, stored_epoch, metadata, now, expire)
        last = activity(state, group)
        if change and request.generation >= 0 and (last is None or now - last >= LIMITS.max_activity_age_ms):
            change[GroupKey(group)] = GroupValue(now)
        if deleted and not change and set(deleted) == known(state, pending, group) and last is not None:
            deleted[GroupKey(group)] = None
        return CommitResponse(0, errors), {**change, **deleted}

    def delete(
        self, state: State, pending: Sequence[Change], group: str, partitions: set[tuple[str, int]] | None
    ) -> tuple[int, Change]:
        """Deletes these partitions, or the whole group if ``partitions`` is None."""
        if not group and partitions is not None:
            return 24, {}
        existing = known(state, pending, group)
        if not existing:
            return 69, {}
        to_delete = (
            existing if partitions is None else {key for key in existing if (key.topic, key.partition) in partitions}
        )
        change: Change = dict.fromkeys(to_delete)
        pending_for_group = any(concerns(other, group) for other in pending)
        if to_delete == existing and (pending_for_group or activity(state, group) is not None):
            change[GroupKey(group)] = None
        return 0, change

    def expire(self, state: State, pending: Sequence[Change], now: int, members: Mapping[str, bool | None]) -> Change:
        change: Change = {}
        for group in {key.group for key in state}:
            if not any(concerns(other, group) for other in pending):
                change.update(self._expire_group(state, group, now, members.get(group, False)))
        return change

    def _expire_group(self, state: State, group: str, now: int, has_members: bool | None) -> Change:
        last = activity(state, group)
        stored = offsets_of(state, group)
        due = {key for key, value in stored.items() if self._expires(value, last) <= now}
        stale = now - (last or 0) >= LIMITS.max_activity_age_ms
        if has_members:
            return {GroupKey(group): GroupValue(now)} if stale and (due or last is not None) else {}
        if has_members is None:
            return {}
        change: Change = dict.fromkeys(due)
        if stored and len(due) == len(stored) and last is not None:
            change[GroupKey(group)] = None
        if not stored and last is not None and last + LIMITS.max_activity_age_ms + LIMITS.retention_ms <= now:
            change[GroupKey(group)] = None
        return change

    def _expires(self, value: OffsetValue, last: int | None) -> int:
        if value.expire_timestamp is not None:
            return value.expire_timestamp
        since = (
            value.commit_timestamp if last is None else max(value.commit_timestamp, last + LIMITS.max_activity_age_ms)
        )
        return since + LIMITS.retention_ms


def concerns(change: Change, group: str) -> bool:
    return any(key.group == group for key in change)


def known(state: State, pending: Sequence[Change], group: str) -> set[OffsetKey]:
    """The offsets that exist now or after all pending appends."""
    coming = {
        key
        for change in pending
        for key, value in change.items()
        if isinstance(key, OffsetKey) and key.group == group and value is not None
    }
    return set(offsets_of(state, group)) | coming
