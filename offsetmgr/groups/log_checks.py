"""`LogChecks`: checks offsets that a command writes unchanged, such as those of a snapshot, against the logs.

`offsetmgr.groups.reset` decides in the same way: an offset outside its log is clamped to the log, with a note, and an
offset of a missing topic or partition is an error. `RestoredOffsetChecks` adds notes to the offsets of an undo, and
clamps none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.log_range_cache import FetchLogRanges, LogRangeCache
from offsetmgr.core.model import BrokerPartition, Committed, LogRange, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.edit_plan import GroupEditPlan, PlannedChange
from offsetmgr.groups.reset import GROUPS_AT_ONCE, clamp, outside_log
from offsetmgr.groups.selection import TopicSelection

UNCHECKED_HINT: Final = "correct the topic, or leave it out with --topic; --unchecked writes the offset without a check"


class LogChecks:
    """The checks of one command. Pass the groups to `clamped` before they are planned, and the plans to `noted`."""

    def __init__(self, fetch: FetchLogRanges, topics: TopicSelection) -> None:
        self._ranges = LogRangeCache(fetch)
        self._topics = topics
        self._notes: dict[str, dict[TopicPartition, str]] = {}

    def clamped(self, sources: Iterable[GroupOffsets]) -> Iterator[GroupOffsets]:
        """Yields the groups with their offsets clamped to the logs. Offsets that no log of the cluster can have become
        errors. Raises any error that concerns the whole cluster."""
        for batch in batched(sources, GROUPS_AT_ONCE):
            self._ranges.load(
                offsets=(
                    (tp, one.offset) for found in batch for tp, one in found.offsets.items() if self._is_checked(tp)
                )
            )
            yield from map(self._checked, batch)

    def _is_checked(self, tp: TopicPartition) -> bool:
        return self._topics.matches(tp) and not isinstance(tp.partition, BrokerPartition)

    def _checked(self, found: GroupOffsets) -> GroupOffsets:
        offsets: dict[TopicPartition, Committed] = {}
        errors: dict[TopicPartition, OffsetMgrError] = dict(found.errors)
        for tp, committed in found.offsets.items():
            log = self._ranges.known[tp] if self._is_checked(tp) else None
            if isinstance(log, OffsetMgrError):
                errors[tp] = type(log)(log.what, log.why, UNCHECKED_HINT)
                continue
            offsets[tp] = committed
            if log is None:
                continue
            offset, note = clamp(committed.offset, log)
            if note:
                offsets[tp] = committed._replace(offset=offset, leader_epoch=None)
                self._notes.setdefault(found.group, {})[tp] = note
        return replace(found, offsets=offsets, errors=errors)

    def noted(self, plans: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
        """Yields the plans. The note of each clamped offset begins with the reason."""
        for plan in plans:
            notes = self._notes.pop(plan.group, None)
            if notes is None:
                yield plan
                continue
            changes = (
                change._replace(note="; ".join(filter(None, (notes[change.partition], change.note))))
                if change.partition in notes
                else change
                for change in plan.changes
            )
            yield replace(plan, changes=tuple(changes))


class RestoredOffsetChecks:
    """Compares the offsets that one undo restores with the logs. An undo restores offsets exactly, and it does not need
    the brokers, so neither an offset outside its log nor an error of the brokers prevents it."""

    def __init__(self, fetch: FetchLogRanges) -> None:
        self._ranges = LogRangeCache(fetch)
        self._error: OffsetMgrError | None = None
        self.outside = 0
        """The number of offsets outside their logs that were found so far."""

    def noted(self, plans: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
        """Yields the plans. The note of each restored offset that is outside its log begins with the reason."""
        for batch in batched(plans, GROUPS_AT_ONCE):
            self.load(
                (change.partition, change.after.offset)
                for plan in batch
                for change in plan.changes
                if change.writes and change.problem is None and change.after is not None
            )
            for plan in batch:
                yield replace(plan, changes=tuple(map(self._noted, plan.changes)))

    def load(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Fetches the log ranges of these offsets. After an error that concerns the whole cluster, the object fetches
        nothing more, and `warnings` contains the error."""
        if self._error is None:
            try:
                self._ranges.load(offsets=(one for one in offsets if not isinstance(one[0].partition, BrokerPartition)))
            except OffsetMgrError as error:
                self._error = error

    def note(self, tp: TopicPartition, offset: int) -> str:
        """Returns a note if the offset is outside its log, and counts it; else an empty string. Call `load` before."""
        log = self._ranges.known.get(tp)
        found = outside_log(offset, log) if isinstance(log, LogRange) else ""
        self.outside += bool(found)
        return found

    def count(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Fetches the log ranges, and counts the offsets outside their logs."""
        counted = list(offsets)
        self.load(counted)
        for tp, offset in counted:
            self.note(tp, offset)

    def warnings(self) -> Iterator[str]:
        """Yields the warnings of the undo, for the lines before its prompt."""
        if self.outside:
            yield (
                f"{count_of(self.outside, 'offset')} would be restored outside the log: a consumer that starts there "
                "follows auto.offset.reset, and with latest it skips every record up to the log's end"
            )
        if self._error is not None:
            yield f"the restored offsets were not compared with the logs: {self._error}"

    def _noted(self, change: PlannedChange) -> PlannedChange:
        if not change.writes or change.problem is not None or change.after is None:
            return change
        found = self.note(change.partition, change.after.offset)
        return change._replace(note="; ".join(filter(None, (found, change.note)))) if found else change
