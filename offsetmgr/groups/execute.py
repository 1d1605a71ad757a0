"""The executor of planned edits, for everyday edits and for migrations.

    sink.intend(batch) -> store.edit(...) -> sink.record(outcome)

Ordering contract: the store receives an edit only after the sink has made the before-images of the edit durable. Each
change in the edit is conditional on its before-image. The sink records the outcome after the write. The sink is a file
of before-images (`offsetmgr.groups.before_images`) or the journal of a migration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from typing import Final, Protocol, TypeVar

from offsetmgr.core.errors import (
    AuthenticationFailed,
    Conflict,
    CorruptData,
    GroupActive,
    GroupNotFound,
    NotAuthorized,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    RecreatedTopic,
    RewindRefused,
    UnknownTopicOrPartition,
    UnsupportedOperation,
    UsageError,
)
from offsetmgr.core.offset_store import GroupEdit, GroupEditResult

_REFUSALS: Final = (
    GroupActive,
    Conflict,
    RewindRefused,
    UnknownTopicOrPartition,
    OffsetOutOfRange,
    OffsetMetadataTooLarge,
    RecreatedTopic,
    CorruptData,
    UsageError,
    NotAuthorized,
    AuthenticationFailed,
    GroupNotFound,
    UnsupportedOperation,
)
"""The errors after which nothing was written."""
_REFUSAL_NAMES: Final = frozenset(kind.__name__ for error in _REFUSALS for kind in (error, *error.__subclasses__()))


def may_have_written(error: str) -> bool:
    """Returns whether the store may have changed an offset although the change failed with an error of this class.
    ``error`` is the name of the class, because journals contain names."""
    return error not in _REFUSAL_NAMES


class PlannedGroup(Protocol):
    def edit(self) -> GroupEdit | None:
        """Returns the edit, with each change conditional on its before-image; None if there is nothing to write."""
        ...


Planned = TypeVar("Planned", bound=PlannedGroup)
_Planned_contra = TypeVar("_Planned_contra", bound=PlannedGroup, contravariant=True)
Outcome = TypeVar("Outcome")
_Outcome_co = TypeVar("_Outcome_co", covariant=True)


class EditSink(Protocol[_Planned_contra, _Outcome_co]):
    """Keeps the before-images and the outcomes of edits. Several threads may call the methods, because a store may
    consume the edits in its own thread."""

    def intend(self, batch: Iterable[_Planned_contra]) -> None:
        """Makes the before-images of a batch durable. Raises `OffsetMgrError` if this fails. In this case the store
        receives no edit of the batch."""
        ...

    def record(self, planned: _Planned_contra, result: GroupEditResult | None) -> _Outcome_co | None:
        """Records the outcome of one group. ``result`` is None if there was nothing to write. Returns the value that
        `execute` yields for the group; None if `execute` yields nothing for the group. A later `intend` or `close`
        makes the record durable."""
        ...

    def close(self) -> None:
        """Makes the recorded outcomes durable. Called once, after the last edit or an error."""
        ...


class EditingStore(Protocol):
    """The part of an `OffsetStore` that executes edits."""

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        """See `OffsetStore.edit`."""
        ...


def execute(
    store: EditingStore, batches: Iterable[Iterable[Planned]], sink: EditSink[Planned, Outcome]
) -> Generator[Outcome, None, None]:
    """Executes planned edits of different groups. Yields the outcomes that the sink returns, in the order in which the
    store returns the results.

    All before-images of a batch are made durable together. The first batch is made durable before the store is called.
    Each later batch is made durable before the store receives the first edit of the batch. Edits of earlier batches may
    be in flight at that time. The function iterates over each batch twice, and memory grows only with the number of
    groups in flight. The error of a failed change is part of the outcome of the group. Raises the errors of ``sink``,
    and the error of the store if the whole store is unreachable.
    """
    in_flight: dict[str, Planned] = {}
    without_edit: deque[Outcome] = deque()

    def edits() -> Iterator[GroupEdit]:
        for batch in batches:
            sink.intend(batch)
            for planned in batch:
                if (edit := planned.edit()) is not None:
                    in_flight[edit.group] = planned
                    yield edit
                elif (outcome := sink.record(planned, None)) is not None:
                    without_edit.append(outcome)

    waiting = edits()
    try:
        first = next(waiting, None)
        for result in store.edit(chain((first,), waiting)) if first is not None else ():
            outcome = sink.record(in_flight.pop(result.group), result)
            if outcome is not None:
                yield outcome
            while without_edit:
                yield without_edit.popleft()
        yield from without_edit
    finally:
        sink.close()
