"""Checks the conditions of a commit (`CommitRequest.expected`) against the committed offsets, by the data rule
"conditional writes".

Pure and independent of a shard: the caller passes functions that return the committed offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.manager.protocol_values import CommitRequest
from offsetmgr.records.base import PartitionCommit

NO_OFFSET = -1
"""An expected offset of -1 means that no offset is committed. A new offset of -1 with a condition deletes the committed
offset."""


class ConditionCheck(NamedTuple):
    """The result of `check_conditions`."""

    topics: list[tuple[str, list[PartitionCommit]]]
    """The offsets to commit: those without a condition, and those whose condition holds."""
    to_delete: set[tuple[str, int]]
    """The topics and partitions whose offsets the commit deletes."""
    errors: dict[tuple[str, int], int]
    """The error codes of the partitions whose condition does not hold or cannot be checked."""


def check_conditions(
    request: CommitRequest, committed: Callable[[str, int], int], in_flight: Callable[[str, int], bool]
) -> ConditionCheck:
    """Checks every condition of a request. ``committed`` returns the committed offset of a topic's partition or
    `NO_OFFSET`; it raises `CorruptData` or `UnknownVersion` if the value is unreadable. ``in_flight`` returns whether a
    change of the partition's offset is in flight. A condition on a partition with a change in flight does not hold."""
    result = ConditionCheck([], set(), {})
    for topic, partitions in request.topics:
        accepted = []
        for commit in partitions:
            partition, offset, _, _ = commit
            expected = request.expected.get((topic, partition))
            if expected is not None:
                error = _error(topic, partition, expected, committed, in_flight)
                if error:
                    result.errors[topic, partition] = error
                    continue
                if offset == NO_OFFSET:
                    result.to_delete.add((topic, partition))
                    continue
            accepted.append(commit)
        result.topics.append((topic, accepted))
    return result


def _error(
    topic: str,
    partition: int,
    expected: int,
    committed: Callable[[str, int], int],
    in_flight: Callable[[str, int], bool],
) -> int:
    """Returns the error code of a condition, 0 if the condition holds."""
    if in_flight(topic, partition):
        return ErrorCode.OPERATION_NOT_ATTEMPTED
    try:
        return 0 if committed(topic, partition) == expected else ErrorCode.OPERATION_NOT_ATTEMPTED
    except (CorruptData, UnknownVersion):
        return ErrorCode.UNKNOWN_SERVER_ERROR
