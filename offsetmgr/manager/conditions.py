"""Conditional commits (`CommitRequest.expected`, data rule "conditional writes"): compares a request with the committed
offsets.

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
"""As an expected offset: none is committed. As a new offset with a condition: delete the commit."""


class ConditionCheck(NamedTuple):
    """The request without its conditions."""

    topics: list[tuple[str, list[PartitionCommit]]]
    """The offsets to commit, including the parts without a condition."""
    to_delete: set[tuple[str, int]]
    """The offsets to delete."""
    errors: dict[tuple[str, int], int]
    """The partitions whose condition does not hold or cannot be checked."""


def check_conditions(
    request: CommitRequest, committed: Callable[[str, int], int], in_flight: Callable[[str, int], bool]
) -> ConditionCheck:
    """``committed`` returns the offset of a topic's partition or `NOTHING`, and raises `CorruptData` or
    `UnknownVersion`. ``in_flight`` returns whether a change of the partition is in flight; then no condition holds."""
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
    """Returns 0 if the condition holds."""
    if in_flight(topic, partition):
        return ErrorCode.OPERATION_NOT_ATTEMPTED
    try:
        return 0 if committed(topic, partition) == expected else ErrorCode.OPERATION_NOT_ATTEMPTED
    except (CorruptData, UnknownVersion):
        return ErrorCode.UNKNOWN_SERVER_ERROR
