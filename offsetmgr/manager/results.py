"""`CoordinatorResult` is a response together with the records that must be appended before the response is sent.
`InFlight` holds the results whose append has not ended, by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from offsetmgr.manager.offset_table import RecordRun
from offsetmgr.records.base import EncodedRecord

R = TypeVar("R")


class CoordinatorResult(NamedTuple, Generic[R]):
    """A response, and the records that the log must acknowledge before the response is sent. A result without records
    is sent at once."""

    response: R
    records: Sequence[EncodedRecord]
    groups: Sequence[str]
    """The groups to which the records belong."""
    runs: Sequence[RecordRun] = ()
    """Describes the first records as runs, so that replay need not decode their keys. The records after the runs are
    applied one by one."""


class InFlight:
    """Results whose append has not ended."""

    def __init__(self) -> None:
        self._by_group: dict[str, list[CoordinatorResult[Any]]] = {}

    def begin(self, result: CoordinatorResult[Any]) -> None:
        for group in result.groups:
            self._by_group.setdefault(group, []).append(result)

    def end(self, result: CoordinatorResult[Any]) -> None:
        """Removes a result; a second call changes nothing."""
        for group in result.groups:
            results = self._by_group.get(group, [])
            for index, entry in enumerate(results):  # mostly the first, because appends end in order
                if entry is result:
                    del results[index]
                    break
            if not results:
                self._by_group.pop(group, None)

    def has_group(self, group: str) -> bool:
        return group in self._by_group

    def commits(self, group: str) -> set[tuple[str, int]]:
        """Returns the topics and partitions of the group's commits in flight."""
        results = self._by_group.get(group, ())
        return {(run.topic, p) for result in results for run in result.runs for p in run.partitions}

    def keys(self, group: str) -> set[bytes]:
        """Returns the keys of the records of all results in flight that concern the group."""
        return {key for result in self._by_group.get(group, ()) for key, _ in result.records}
