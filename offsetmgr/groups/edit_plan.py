"""The plan of an edit: a command prints it, saves its before-images, and executes it.

An `EditPlan` holds any number of changes in bounded memory, because it moves large plans to a temporary file.
"""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import IO, Final, NamedTuple, Self

from offsetmgr.core.advice import Advice
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.core.evaluation import same_value, stops_group
from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition, dropped_form, with_drop
from offsetmgr.core.offset_store import Capabilities, Change, GroupEdit, GroupTreeStore, SavedNode, UnrecognisedData
from offsetmgr.core.plurals import count_of, list_of

MAX_CHANGES_IN_MEMORY: Final = 60_000
"""The number of changes that a plan keeps in memory before it moves them to a temporary file. These changes need about
40 MB."""


_IN_ITS_STORE: Final = Advice("repair it in its ZooKeeper alone: add {store=zookeeper://HOST:PORT/CHROOT}")


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

    If ``problem`` is set, the group will not be changed. ``removes`` are all znodes of a group that is deleted after
    the changes, and ``restores`` the znodes that are created before the changes. ``unrecognised`` is the data of the
    group that offsetmgr does not understand. See `GroupEdit` for ``raw``.
    """

    name: str
    changes: tuple[PlannedChange, ...]
    problem: OffsetMgrError | None = None
    removes: tuple[SavedNode, ...] = ()
    restores: tuple[SavedNode, ...] = ()
    unrecognised: tuple[UnrecognisedData, ...] = ()
    raw: Mapping[TopicPartition, tuple[bytes | None, bytes | None]] = field(default_factory=dict, hash=False)
    by_partition: bool = False
    """Whether each change is made although another one fails during the write."""

    def edit(self) -> GroupEdit | None:
        """Returns the edit, with each change conditional on its before-image; None if there is nothing to write.

        Every change in the edit allows a rewind, because the planner has already accepted or rejected rewinds on the
        basis of the same before-images.
        """
        new = tuple.__new__  # skips the argument handling of named tuples
        changes = {
            tp: new(Change, (after, before, True, False))
            for tp, before, after, _, problem, writes in self.changes
            if writes and problem is None
        }
        if not changes or self.problem is not None:
            return None
        return GroupEdit(self.name, changes, whole=not self.by_partition, raw=self.raw)

    def whole(self) -> GroupEditPlan:
        """Returns the plan, with a problem if only some of its changes can be made. Otherwise consumers would continue
        at offsets of which only a part was edited. See `stops_group`."""
        stops = [(change.partition, change.problem) for change in self.changes if stops_group(change.problem)]
        if not stops or self.problem is not None or all(change.problem is not None for change in self.changes):
            return self
        number = f"{len(stops):,} of its {count_of(len(self.changes), 'partition')}"
        why = f"stays unchanged, because {number} cannot be changed ({list_of((tp for tp, _ in stops), 3)})"
        return replace(self, problem=type(stops[0][1])(f"group {self.name}", why))


@dataclass(slots=True)
class Counts:
    """Counts the partitions of a plan: partitions to write, partitions that stay unchanged, and partitions with a
    problem. ``groups`` counts the groups that change, ``trees`` those whose znodes are deleted or restored, and
    ``dropped`` the writes that drop metadata, by its form."""

    groups: int = 0
    writes: int = 0
    unchanged: int = 0
    problems: int = 0
    trees: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return f"{count_of(self.writes, 'offset')} in {count_of(self.groups, 'group')}"


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
        """Adds the plan of one group. One group is edited as a whole or not at all; see `GroupEditPlan.whole`."""
        group = group.whole()
        counts = self.counts
        writes = 0
        for change in group.changes:
            if change.problem is not None or group.problem is not None:
                counts.problems += 1
            elif not change.writes:
                counts.unchanged += 1
            else:
                writes += 1
                if change.note and (form := dropped_form(change.note)):
                    counts.dropped[form] += 1
        if group.problem is not None and not group.changes:
            counts.problems += 1
        counts.writes += writes
        tree = group.problem is None and bool(group.removes or group.restores)
        counts.groups += writes > 0 or tree
        counts.trees += tree
        self._in_memory.append(group)
        self._changes_in_memory += len(group.changes) + len(group.removes) + len(group.restores)
        if self._changes_in_memory > MAX_CHANGES_IN_MEMORY:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="offsetmgr-")  # noqa: SIM115 - closed by close()
            self._file.seek(0, 2)
            for one in self._in_memory:
                pickle.dump(one, self._file, protocol=pickle.HIGHEST_PROTOCOL)
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
    keeps_metadata: bool = False,
) -> PlannedChange:
    """Returns the change of one partition, with a note if the change is a rewind, drops metadata or has no effect. With
    ``keeps_metadata``, a change that leaves the offset leaves its metadata too, unless ``after`` has metadata."""
    if after is not None and after.metadata and not capabilities.metadata:
        note = with_drop(note, after.metadata)
    if not isinstance(before, Committed):  # fast path, because imports into empty stores are the largest edits
        return PlannedChange(partition, before, after, note, None, after is not None)
    if capabilities.acknowledges and before.version != 0:  # even the same offset discards them
        if after is not None and (repeated := before.offset + (before.version or 0) - after.offset) > 0:
            least = "at least " if after.offset > before.offset or before.version is None else ""
            note = "; ".join(filter(None, (note, f"repeats {least}{count_of(repeated, 'acknowledged record')}")))
        return PlannedChange(partition, before, after, note)
    if after is not None and after.offset > before.offset and not before.metadata:  # fast path: imports raise offsets
        return tuple.__new__(PlannedChange, (partition, before, after, note, None, True))
    if keeps_metadata and after is not None and after.offset == before.offset and not after.metadata:
        after = before.value()
    if same_value(before, after, capabilities):
        return PlannedChange(partition, before, after, note or "unchanged", None, False)
    if after is not None and after.offset < before.offset:
        note = f"{note}; rewinds" if note else "rewinds"
    if after is not None and not after.metadata:
        note = with_drop(note, before.metadata)
    return PlannedChange(partition, before, after, note)


def plan_replacement(
    store: object,
    partition: TopicPartition,
    error: OffsetMgrError,
    after: OffsetAndMetadata | None,
    named: Container[TopicPartition],
) -> PlannedChange:
    """Returns the change of a partition that cannot be read. The change replaces or deletes data that is no offset if
    the user has ``named`` the partition; otherwise its problem is the error. Of two stores, only one has the data, and
    the offset in the other one is unknown, so the partition must be repaired in its own store."""
    if partition in named and isinstance(error, CorruptData) and error.data is not None:
        if isinstance(store, GroupTreeStore):
            verb = "deletes" if after is None else "replaces"
            return PlannedChange(partition, ABSENT, after, f"{verb} {error.data[:40]!r}")
        error = CorruptData(error.what, error.why, _IN_ITS_STORE)
    return PlannedChange(partition, ABSENT, after, problem=error, writes=False)


def replaced_data(
    changes: Iterable[PlannedChange], errors: Mapping[TopicPartition, OffsetMgrError]
) -> dict[TopicPartition, tuple[bytes | None, bytes | None]]:
    """Returns the data that the changes of unreadable partitions replace; see `GroupEdit.raw`."""
    broken = ((change.partition, errors.get(change.partition)) for change in changes if change.writes)
    return {tp: (error.data, None) for tp, error in broken if isinstance(error, CorruptData) and error.data is not None}


def holds_offset(found: Offset, offset: int | None) -> bool:
    """Returns whether ``found`` is the offset ``offset``. If ``offset`` is None, returns whether the partition has no
    commit."""
    return found.offset == offset if isinstance(found, Committed) else offset is None
