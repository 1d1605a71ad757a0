"""`LogChecks`: checks offsets that a command writes unchanged, such as those of a snapshot, against the logs.

`offsetmgr.groups.reset` decides in the same way: an offset outside its log is clamped to the log, with a note, and an
offset of a missing topic or partition is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.log_range_cache import FetchLogRanges, LogRangeCache
from offsetmgr.core.model import BrokerPartition, Committed, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.groups.edit_plan import GroupEditPlan
from offsetmgr.groups.reset import GROUPS_AT_ONCE, clamp
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
        remaining = iter(sources)
        while batch := list(islice(remaining, GROUPS_AT_ONCE)):
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
