"""`CoordinatorResult`: a response and its records before the append; `InFlight`: those whose append has not ended, by
group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from offsetmgr.manager.offset_table import RecordRun
from offsetmgr.records.base import Record

R = TypeVar("R")


class CoordinatorResult(NamedTuple, Generic[R]):
    """A response, and the records that must be acknowledged before it is sent (none: it is sent at once)."""

    response: R
    records: Sequence[Record]
    groups: Sequence[str]
    """The groups of the records."""
    runs: Sequence[RecordRun] = ()
    """The first records as runs, so that their keys need not be decoded; the other records follow."""


class InFlight:
    """Results whose append has not ended."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[CoordinatorResult[Any]]] = {}

    def begin(self, prepared: CoordinatorResult[Any]) -> None:
        for group in prepared.groups:
            self._waiting.setdefault(group, []).append(prepared)

    def end(self, prepared: CoordinatorResult[Any]) -> None:
        """Removes a result; a second call changes nothing."""
        for group in prepared.groups:
            waiting = self._waiting.get(group, [])
            for index, held in enumerate(waiting):  # mostly the first, because appends end in order
                if held is prepared:
                    del waiting[index]
                    break
            if not waiting:
                self._waiting.pop(group, None)

    def touches(self, group: str) -> bool:
        return group in self._waiting

    def commits(self, group: str) -> set[tuple[str, int]]:
        """Returns topics and partitions of the group's commits in flight."""
        waiting = self._waiting.get(group, ())
        return {(run.topic, p) for prepared in waiting for run in prepared.runs for p in run.partitions}

    def keys(self, group: str) -> set[bytes]:
        """Returns the keys of all records in flight that may belong to the group."""
        return {key for prepared in self._waiting.get(group, ()) for key, _ in prepared.records}
