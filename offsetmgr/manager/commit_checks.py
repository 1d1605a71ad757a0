"""Checks a commit request before it is executed: its numbers, and its conditions (`CommitRequest.expected`) by the
data rule "conditional writes".

Pure. Shards use both checks, and pass functions that return their committed offsets to the check of the conditions.
Listeners in front of a store use only the check of the numbers, because the store checks the conditions in its own
edits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from offsetmgr.core.errors import CorruptData, ErrorCode, UnknownVersion
from offsetmgr.core.model import NO_OFFSET, is_valid_offset
from offsetmgr.manager.results import CommitRequest
from offsetmgr.records.base import PartitionCommit

PartitionErrors: TypeAlias = Mapping[tuple[str, int], int]
"""Error codes by topic and partition."""


def without_invalid(request: CommitRequest) -> tuple[CommitRequest, PartitionErrors]:
    """Returns the request without the partitions that no store can commit, and the error code of each such partition.

    A negative partition does not exist. `core.model.is_valid_offset` has the rule for offsets. In a commit with a
    condition, the offset `NO_OFFSET` is a deletion and valid.
    """
    errors: dict[tuple[str, int], int] = {}
    for topic, parts in request.topics:
        for partition, offset, _, _ in parts:
            if partition < 0:
                errors[topic, partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not is_valid_offset(offset) and not (offset == NO_OFFSET and (topic, partition) in request.expected):
                errors[topic, partition] = ErrorCode.INVALID_REQUEST
    return without_partitions(request, errors) if errors else request, errors


def without_partitions(request: CommitRequest, rejected: PartitionErrors) -> CommitRequest:
    """Returns the request without the rejected partitions, and without topics that have no other partition."""
    topics = [(topic, [p for p in parts if (topic, p[0]) not in rejected]) for topic, parts in request.topics]
    expected = {key: offset for key, offset in request.expected.items() if key not in rejected}
    return request._replace(topics=[(topic, parts) for topic, parts in topics if parts], expected=expected)


def check_conditions(
    request: CommitRequest, committed: Callable[[str, int], int], in_flight: Callable[[str, int], bool]
) -> tuple[list[tuple[str, list[PartitionCommit]]], set[tuple[str, int]], dict[tuple[str, int], int]]:
    """Checks every condition of a request. ``committed`` returns the committed offset of a topic's partition or
    `NO_OFFSET`; it raises `CorruptData` or `UnknownVersion` if the value is unreadable. ``in_flight`` returns whether a
    change of the partition's offset is in flight. A condition on a partition with a change in flight does not hold.

    Returns the offsets to commit, which are those without a condition and those whose condition holds; the topics and
    partitions whose offsets the commit deletes; and the error codes of the partitions whose condition does not hold or
    cannot be checked."""
    topics: list[tuple[str, list[PartitionCommit]]] = []
    to_delete: set[tuple[str, int]] = set()
    errors: dict[tuple[str, int], int] = {}
    for topic, partitions in request.topics:
        accepted = []
        for commit in partitions:
            partition, offset, _, _ = commit
            expected = request.expected.get((topic, partition))
            if expected is not None:
                try:
                    holds = not in_flight(topic, partition) and committed(topic, partition) == expected
                except (CorruptData, UnknownVersion):
                    errors[topic, partition] = ErrorCode.UNKNOWN_SERVER_ERROR
                    continue
                if not holds:
                    errors[topic, partition] = ErrorCode.OPERATION_NOT_ATTEMPTED
                    continue
                if offset == NO_OFFSET:
                    to_delete.add((topic, partition))
                    continue
            accepted.append(commit)
        topics.append((topic, accepted))
    return topics, to_delete, errors
