"""What the offset manager is asked and what it answers: plain tuples, so that a commit of 50 partitions does not become
50 objects of a class.

Error codes are Kafka's (`CODE_*`; 0 is none), because they go on the wire as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.records.base import PartitionCommit


class CommitRequest(NamedTuple):
    """OffsetCommit. A commit by no member has generation -1 and an empty member id."""

    group: str
    topics: Sequence[tuple[str, Sequence[PartitionCommit]]]
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
    retention_ms: int | None = None
    """How long the client wants this commit kept (versions 2 to 4); None: as long as the manager is told to."""
    expected: Mapping[tuple[str, int], int] = {}
    """Conditional commits (see `offsetmgr.kafka.protocol.conditional_commit`), by topic and partition: the offset that
    must be committed now, -1 for none. Such a partition with a new offset of -1 is a deletion. Empty for what Kafka's
    clients send."""


class CommitResponse(NamedTuple):
    """One error for all partitions, or one for each of those that failed."""

    error: int = ErrorCode.NONE
    errors: Mapping[tuple[str, int], int] = {}
    """By topic and partition; the others succeeded."""


PartitionOffset: TypeAlias = tuple[int, int, int, str, int]
"""Partition, offset (-1: none committed), leader epoch (-1: unknown), metadata, error code."""

FetchedTopics: TypeAlias = Sequence[tuple[str, Sequence[PartitionOffset]]]


class FetchRequest(NamedTuple):
    """OffsetFetch of one group; ``topics`` None asks for all that is committed."""

    group: str
    topics: Sequence[tuple[str, Sequence[int]]] | None = None
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


class FetchResponse(NamedTuple):
    """With an error, there are no topics."""

    error: int = ErrorCode.NONE
    topics: FetchedTopics = ()


class DeleteResponse(NamedTuple):
    """OffsetDelete: an error of the whole, or one for each partition that was not deleted."""

    error: int = ErrorCode.NONE
    errors: Mapping[tuple[str, int], int] = {}
