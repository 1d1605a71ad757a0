"""What a shard has prepared and does not know the end of: `CoordinatorResult`, and `InFlight`, the list of it by
group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from offsetmgr.manager.offset_table import RecordRun
from offsetmgr.records.base import Record

R = TypeVar("R")


class CoordinatorResult(NamedTuple, Generic[R]):
    """An answer, and the records that must be acknowledged before it may be given (none: it may be given at once)."""

    response: R
    records: Sequence[Record]
    groups: Sequence[str]
    """The groups that the records belong to."""
    runs: Sequence[RecordRun] = ()
    """What the first of the records are, so that nobody has to find out from their keys; the others follow."""


class InFlight:
    """What is on its way into the log."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[CoordinatorResult[Any]]] = {}

    def begin(self, prepared: CoordinatorResult[Any]) -> None:
        for group in prepared.groups:
            self._waiting.setdefault(group, []).append(prepared)

    def end(self, prepared: CoordinatorResult[Any]) -> None:
        """Once more than once changes nothing."""
        for group in prepared.groups:
            waiting = self._waiting.get(group, [])
            for index, held in enumerate(waiting):  # mostly the first, as what is appended ends in order
                if held is prepared:
                    del waiting[index]
                    break
            if not waiting:
                self._waiting.pop(group, None)

    def touches(self, group: str) -> bool:
        return group in self._waiting

    def commits(self, group: str) -> set[tuple[str, int]]:
        """Topics and partitions that commits of the group in flight are about."""
        waiting = self._waiting.get(group, ())
        return {(run.topic, p) for prepared in waiting for run in prepared.runs for p in run.partitions}

    def keys(self, group: str) -> set[bytes]:
        """The keys of all records in flight that may be about the group."""
        return {key for prepared in self._waiting.get(group, ()) for key, _ in prepared.records}
