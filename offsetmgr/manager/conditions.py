"""Conditional commits (`CommitRequest.expected`, the data rule "conditional writes"): which parts of a request hold
against what is committed.

Pure, and without a shard: it asks for what it compares with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.manager.protocol_values import CommitRequest
from offsetmgr.records.base import PartitionCommit

NOTHING = -1
"""As an expected offset: none is committed; as a new one, with a condition: none shall be."""


class ConditionCheck(NamedTuple):
    """The request without its conditions."""

    topics: list[tuple[str, list[PartitionCommit]]]
    """What is to be committed, the parts without a condition among it."""
    doomed: set[tuple[str, int]]
    """What is to be deleted."""
    errors: dict[tuple[str, int], int]
    """The partitions whose condition does not hold, or cannot be told."""


def check_conditions(
    request: CommitRequest, committed: Callable[[str, int], int], uncertain: Callable[[str, int], bool]
) -> ConditionCheck:
    """``committed`` gives the offset of a topic's partition or `NOTHING`, and raises `CorruptData` or `UnknownVersion`;
    ``uncertain`` says whether a change of it is under way, whose end nobody knows: then no condition holds."""
    result = ConditionCheck([], set(), {})
    for topic, partitions in request.topics:
        accepted = []
        for commit in partitions:
            partition, offset, _, _ = commit
            expected = request.expected.get((topic, partition))
            if expected is not None:
                error = _error(topic, partition, expected, committed, uncertain)
                if error:
                    result.errors[topic, partition] = error
                    continue
                if offset == NOTHING:
                    result.doomed.add((topic, partition))
                    continue
            accepted.append(commit)
        result.topics.append((topic, accepted))
    return result


def _error(
    topic: str,
    partition: int,
    expected: int,
    committed: Callable[[str, int], int],
    uncertain: Callable[[str, int], bool],
) -> int:
    """0 if the condition holds."""
    if uncertain(topic, partition):
        return ErrorCode.OPERATION_NOT_ATTEMPTED
    try:
        return 0 if committed(topic, partition) == expected else ErrorCode.OPERATION_NOT_ATTEMPTED
    except (CorruptData, UnknownVersion):
        return ErrorCode.UNKNOWN_SERVER_ERROR
