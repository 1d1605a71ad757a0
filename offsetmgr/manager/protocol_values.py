"""What the offset manager is asked and what it answers: plain tuples, so that a commit of 50 partitions does not become
50 objects of a class.

Error codes are Kafka's (`CODE_*`; 0 is none), because they go on the wire as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.records.base import PartitionCommit

UNKNOWN_SERVER_ERROR: Final = -1
NONE: Final = 0
OFFSET_METADATA_TOO_LARGE: Final = 12
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
ILLEGAL_GENERATION: Final = 22
INVALID_GROUP_ID: Final = 24
UNKNOWN_MEMBER_ID: Final = 25
REBALANCE_IN_PROGRESS: Final = 27
INVALID_COMMIT_OFFSET_SIZE: Final = 28
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
OPERATION_NOT_ATTEMPTED: Final = 55
NON_EMPTY_GROUP: Final = 68
GROUP_ID_NOT_FOUND: Final = 69
FENCED_INSTANCE_ID: Final = 82


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

    error: int = NONE
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

    error: int = NONE
    topics: FetchedTopics = ()


class DeleteResponse(NamedTuple):
    """OffsetDelete: an error of the whole, or one for each partition that was not deleted."""

    error: int = NONE
    errors: Mapping[tuple[str, int], int] = {}
