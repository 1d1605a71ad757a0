"""Requests and responses of the offset manager. Partitions are plain tuples, so that a commit of 50 partitions does not
create 50 objects.

Error codes are Kafka's (`ErrorCode`), because clients receive them unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from offsetmgr.core.errors import ErrorCode
from offsetmgr.records.base import PartitionCommit


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
    """The conditions of the commit by topic and partition (see `offsetmgr.kafka.protocol.conditional_commit`). A
    condition is the expected value of the committed offset before this commit; -1 means that no offset is committed.
    With a condition, a new offset of -1 deletes the committed offset. Kafka's clients send no conditions."""


class CommitResponse(NamedTuple):
    """The response to a commit: one error for all partitions, or one error for each failed partition."""

    error: int = ErrorCode.NONE
    errors: Mapping[tuple[str, int], int] = {}
    """Errors by topic and partition; the partitions that are not listed succeeded."""


PartitionOffset: TypeAlias = tuple[int, int, int, str, int]
"""Partition, offset (-1 if none is committed), leader epoch (-1 if unknown), metadata, error code."""

FetchedTopics: TypeAlias = Sequence[tuple[str, Sequence[PartitionOffset]]]


class FetchRequest(NamedTuple):
    """An OffsetFetch request for one group. If ``topics`` is None, the request is for all committed offsets of the
    group."""

    group: str
    topics: Sequence[tuple[str, Sequence[int]]] | None = None
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


class FetchResponse(NamedTuple):
    """The response to an OffsetFetch. A response with an error has no topics."""

    error: int = ErrorCode.NONE
    topics: FetchedTopics = ()


class DeleteResponse(NamedTuple):
    """The response to an OffsetDelete: one error for the whole request, or one error for each partition whose offset
    was not deleted."""

    error: int = ErrorCode.NONE
    errors: Mapping[tuple[str, int], int] = {}
