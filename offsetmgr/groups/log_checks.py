"""`LogChecks`: compares the offsets that an import writes with the logs.

`offsetmgr.groups.reset` decides in the same way: an offset outside its log is clamped to the log, with a note, and an
offset of a missing topic or partition is an error. `OutsideLogChecks` adds notes to the offsets of an undo or of
``offsets set``, and clamps or rejects none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.batches import batched
from offsetmgr.core.commit_metadata import with_drop
from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition
from offsetmgr.core.evaluation import same_value
from offsetmgr.core.log_range_cache import FetchLogRanges, LogRangeCache
from offsetmgr.core.model import BrokerPartition, Committed, LogRange, Offset, TopicPartition
from offsetmgr.core.offset_store import Capabilities, GroupOffsets
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import TopicSelection
from offsetmgr.groups.edit_plan import GroupEditPlan, PlannedChange
from offsetmgr.groups.reset import GROUPS_AT_ONCE, clamp, outside_log

UNCHECKED_HINT: Final = Advice(
    "correct the topic, or leave it out with {topic}; {unchecked} writes the offset without a check"
)


class LogChecks:
    """The checks of one import. Call in this order: 1. `loaded` with the groups of the source; 2. `clamped` for each
    offset of the groups that it yields."""

    def __init__(self, fetch: FetchLogRanges) -> None:
        self._ranges = LogRangeCache(fetch)

    def loaded(self, sources: Iterable[GroupOffsets], topics: TopicSelection) -> Iterator[GroupOffsets]:
        """Yields the groups after it has fetched the log ranges of their offsets in the selected topics, for many
        groups in one request. Raises any error that concerns the whole cluster."""
        for batch in batched(sources, GROUPS_AT_ONCE):
            self._ranges.load(
                offsets=(
                    (tp, one.offset)
                    for found in batch
                    for tp, one in found.offsets.items()
                    if topics.matches(tp) and not isinstance(tp.partition, BrokerPartition)
                )
            )
            yield from batch

    def clamped(
        self, tp: TopicPartition, committed: Committed, held: Offset | None, capabilities: Capabilities
    ) -> tuple[Committed, str, OffsetMgrError | None]:
        """Returns the offset clamped to its log, with a note if the offset was outside the log. The last item is an
        error if the cluster has no such log. An offset that the store already holds (``held``) is not clamped, because
        the import does not write it."""
        log = self._ranges.known.get(tp)
        if isinstance(log, OffsetMgrError):
            return committed, "", type(log)(log.what, log.why, UNCHECKED_HINT)
        offset, note = clamp(committed.offset, log) if log is not None else (committed.offset, "")
        if not note or (held is not None and same_value(held, committed.value(), capabilities)):
            return committed, "", None
        note = with_drop(note, committed.metadata)
        return committed._replace(offset=offset, metadata="", leader_epoch=None), note, None


class OutsideLogChecks:
    """Compares the offsets of one undo, or of one ``offsets set``, with the logs. Both write offsets exactly, and do
    not need the brokers, so neither an offset outside its log, a missing topic, nor an error of the brokers prevents
    them.

    The warnings contain ``verb``, a past participle.
    """

    def __init__(self, fetch: FetchLogRanges, verb: str = "restored") -> None:
        self._verb = verb
        self._ranges = LogRangeCache(fetch)
        self._error: OffsetMgrError | None = None
        self.outside = 0
        """The number of offsets outside their logs that were found so far."""
        self._missing = 0
        self._unknown = 0

    def noted(self, plans: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
        """Yields the plans. The note of each written offset that is outside its log, or has no log, begins with the
        reason."""
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
        """Returns a note if the offset is outside its log or could not be compared with it, and counts it; else an
        empty string. Call `load` before."""
        log = self._ranges.known.get(tp)
        if isinstance(log, UnknownTopicOrPartition):
            self._missing += 1
            return log.why
        if isinstance(log, OffsetMgrError):
            self._unknown += 1
            return f"not compared with its log: {log.why}"
        found = outside_log(offset, log) if isinstance(log, LogRange) else ""
        self.outside += bool(found)
        return found

    def count(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Fetches the log ranges, and counts the offsets that `warnings` reports."""
        counted = list(offsets)
        self.load(counted)
        for tp, offset in counted:
            self.note(tp, offset)

    def warnings(self) -> Iterator[str]:
        """Yields the warnings of the edit, for the lines before its prompt."""
        if self.outside:
            yield (
                f"{count_of(self.outside, 'offset')} would be {self._verb} outside the log: a consumer that starts "
                "there follows auto.offset.reset, and with latest it skips every record up to the log's end"
            )
        if self._missing:
            place = "a partition" if self._missing == 1 else "partitions"
            yield f"{count_of(self._missing, 'offset')} would be {self._verb} in {place} that the brokers do not have"
        if self._unknown:
            its = "its log" if self._unknown == 1 else "their logs"
            yield f"{count_of(self._unknown, 'offset')} would be {self._verb} without a comparison with {its}"
        if self._error is not None:
            yield f"the {self._verb} offsets were not compared with the logs: {self._error}"

    def _noted(self, change: PlannedChange) -> PlannedChange:
        if not change.writes or change.problem is not None or change.after is None:
            return change
        found = self.note(change.partition, change.after.offset)
        return change._replace(note="; ".join(filter(None, (found, change.note)))) if found else change
