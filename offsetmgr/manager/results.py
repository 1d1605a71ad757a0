"""`CoordinatorResult` is a response together with the records that must be appended before the response is sent.
`InFlight` holds the results whose append has not ended, by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from offsetmgr.core.errors import ErrorCode
from offsetmgr.records.base import EncodedRecord, PartitionCommit

R = TypeVar("R")


class RecordRun(NamedTuple):
    """Describes consecutive records of an append that belong to one commit and one topic. The run has one record for
    each partition."""

    group: str
    topic: str
    partitions: Sequence[int]


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


# Requests and responses of the offset manager. Partitions are plain tuples, so that a commit of 50 partitions does
# not create 50 objects. Error codes are Kafka's (`ErrorCode`), because clients receive them unchanged.


class CommitRequest(NamedTuple):
    """An OffsetCommit request. A commit outside of a group membership has generation -1 and an empty member id."""

    group: str
    topics: Sequence[tuple[str, Sequence[PartitionCommit]]]
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
    retention_ms: int | None = None
    """The retention that the client requests for this commit (OffsetCommit versions 2 to 4). If it is None, the
    manager's retention applies."""
    expected: Mapping[tuple[str, int], int] = {}
    """The conditions of the commit by topic and partition (see `offsetmgr.kafka.protocol.requests`). A
    condition is the expected value of the committed offset before this commit; -1 means that no offset is committed.
    With a condition, a new offset of -1 deletes the committed offset. Kafka's clients send no conditions."""


class CommitResponse(NamedTuple):
    """The response to a commit or a deletion of offsets: one error for all partitions, or one error for each failed
    partition."""

    error: int = ErrorCode.NONE
    errors: Mapping[tuple[str, int], int] = {}
    """Errors by topic and partition; the partitions that are not listed succeeded."""


PartitionOffset: TypeAlias = tuple[int, int, int, str, int]
"""Partition, offset (-1 if none is committed), leader epoch (-1 if unknown), metadata, error code."""


class FetchRequest(NamedTuple):
    """An OffsetFetch request for one group. If ``topics`` is None, the request is for all committed offsets of the
    group. All offsets are stable, because the manager accepts no commits in transactions, and a fetch needs no
    membership."""

    group: str
    topics: Sequence[tuple[str, Sequence[int]]] | None = None
    topics_only: bool = False
    """Whether the caller needs the names of the group's topics only, so the response may omit their partitions."""


class FetchResponse(NamedTuple):
    """The response to an OffsetFetch. A response with an error has no topics."""

    error: int = ErrorCode.NONE
    topics: Sequence[tuple[str, Sequence[PartitionOffset]]] = ()
