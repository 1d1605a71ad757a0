"""The plan of an edit: a command prints it, saves its before-images, and executes it.

An `EditPlan` holds any number of changes in bounded memory, because it moves large plans to a temporary file.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import IO, Final, NamedTuple, Self

from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.evaluation import same_value
from offsetmgr.core.model import Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Capabilities, Change, GroupEdit

MAX_CHANGES_IN_MEMORY: Final = 60_000
"""The number of changes that a plan keeps in memory before it moves them to a temporary file. These changes need about
40 MB."""


class PlannedChange(NamedTuple):
    """The change of one partition from ``before``, the value that was read, to ``after``. If ``after`` is None, the
    offset is deleted.

    ``note`` is information for the user (clamped, rewinds, ...). If ``problem`` is set, the change will not be made.
    ``writes`` is False if the store already holds the value ``after``, or if ``problem`` is set.
    """

    partition: TopicPartition
    before: Offset
    after: OffsetAndMetadata | None
    note: str = ""
    problem: OffsetMgrError | None = None
    writes: bool = True


BY_PARTITION: Final = itemgetter(0)
"""The sort key of changes."""


@dataclass(frozen=True, slots=True)
class GroupEditPlan:
    """The changes of one group, sorted by partition.

    If ``problem`` is set, the group will not be changed. ``as_of`` is the `GroupOffsets.as_of` of the scan that read
    the value ``before`` of every change, or None.
    """

    group: str
    changes: tuple[PlannedChange, ...]
    problem: OffsetMgrError | None = None
    as_of: int | None = None

    def edit(self) -> GroupEdit | None:
        """Returns the edit, with each change conditional on its before-image; None if there is nothing to write.

        Every change in the edit allows a rewind, because the planner has already accepted or rejected rewinds on the
        basis of the same before-images.
        """
        new = tuple.__new__  # skips the argument handling of named tuples
        changes = {
            tp: new(Change, (after, before, True))
            for tp, before, after, _, problem, writes in self.changes
            if writes and problem is None
        }
        if not changes or self.problem is not None:
            return None
        return GroupEdit(self.group, changes, as_of=self.as_of)


@dataclass(slots=True)
class Counts:
    """Counts the partitions of a plan: partitions to write, partitions that stay unchanged, and partitions with a
    problem. ``groups`` counts the groups with at least one write."""

    groups: int = 0
    writes: int = 0
    unchanged: int = 0
    problems: int = 0


@dataclass(slots=True)
class EditPlan(Closeable):
    """The changes of one edit, group by group. The plan can be iterated several times. Close it after use."""

    counts: Counts = field(default_factory=Counts)
    _in_memory: list[GroupEditPlan] = field(default_factory=list)
    _changes_in_memory: int = 0
    _file: IO[bytes] | None = None

    @classmethod
    def of(cls, groups: Iterable[GroupEditPlan]) -> Self:
        """Returns a plan that contains all of ``groups``."""
        plan = cls()
        for group in groups:
            plan.add(group)
        return plan

    def add(self, group: GroupEditPlan) -> None:
        counts = self.counts
        writes = 0
        for change in group.changes:
            if change.problem is not None or group.problem is not None:
                counts.problems += 1
            elif not change.writes:
                counts.unchanged += 1
            else:
                writes += 1
        if group.problem is not None and not group.changes:
            counts.problems += 1
        counts.writes += writes
        counts.groups += writes > 0
        self._in_memory.append(group)
        self._changes_in_memory += len(group.changes)
        if self._changes_in_memory > MAX_CHANGES_IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="offsetmgr-")  # noqa: SIM115 - closed by close()
        self._file.seek(0, 2)
        for group in self._in_memory:
            pickle.dump(group, self._file, protocol=pickle.HIGHEST_PROTOCOL)
        self._in_memory.clear()
        self._changes_in_memory = 0

    def __iter__(self) -> Iterator[GroupEditPlan]:
        if self._file is not None:
            position = 0
            with suppress(EOFError):
                while True:
                    self._file.seek(position)
                    group = pickle.load(self._file)
                    position = self._file.tell()
                    yield group
        yield from self._in_memory

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def plan_change(
    partition: TopicPartition,
    before: Offset,
    after: OffsetAndMetadata | None,
    capabilities: Capabilities,
    *,
    note: str = "",
) -> PlannedChange:
    """Returns the change of one partition, with a note if the change is a rewind or has no effect."""
    if not isinstance(before, Committed):  # fast path, because imports into empty stores are the largest edits
        return PlannedChange(partition, before, after, note, None, after is not None)
    if after is not None and after.offset > before.offset:  # fast path: nearly every import raises offsets
        return tuple.__new__(PlannedChange, (partition, before, after, note, None, True))
    if same_value(before, after, capabilities):
        return PlannedChange(partition, before, after, note or "unchanged", None, False)
    if after is not None and after.offset < before.offset:
        note = f"{note}; rewinds" if note else "rewinds"
    return PlannedChange(partition, before, after, note)


def holds_offset(found: Offset, offset: int | None) -> bool:
    """Returns whether ``found`` is the offset ``offset``. If ``offset`` is None, returns whether the partition has no
    commit."""
    return found.offset == offset if isinstance(found, Committed) else offset is None
