"""The checks of a commit request before a shard or a store carries it out."""

from __future__ import annotations

import pytest

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.manager.commit_checks import without_invalid
from offsetmgr.manager.protocol_values import CommitRequest


@pytest.mark.parametrize(
    ("partition", "offset", "conditional", "error"),
    [
        (0, 0, False, None),
        (0, 5, True, None),
        (0, -1, True, None),  # a deletion
        (0, -1, False, ErrorCode.INVALID_REQUEST),
        (0, -2, True, ErrorCode.INVALID_REQUEST),
        (-1, 5, False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, -1, True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_negative_numbers_are_invalid_except_for_a_deletion_with_a_condition(
    partition: int, offset: int, conditional: bool, error: ErrorCode | None
) -> None:
    expected = {("t", partition): 3} if conditional else {}
    request = CommitRequest("g", [("t", [(partition, offset, -1, "")])], expected=expected)

    valid, errors = without_invalid(request)

    assert errors == ({} if error is None else {("t", partition): error})
    assert valid == (request if error is None else CommitRequest("g", [], expected={}))


def test_the_valid_partitions_keep_their_conditions() -> None:
    request = CommitRequest(
        "g",
        [("t", [(0, -2, -1, ""), (1, 6, -1, "m")]), ("u", [(-1, 7, -1, "")])],
        expected={("t", 0): 3, ("t", 1): 4, ("u", -1): 5},
    )

    valid, errors = without_invalid(request)

    assert valid == CommitRequest("g", [("t", [(1, 6, -1, "m")])], expected={("t", 1): 4})
    assert errors == {("t", 0): ErrorCode.INVALID_REQUEST, ("u", -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
