"""Lag of a committed offset, and the rows of lag that need attention."""

from __future__ import annotations

import pytest

from offsetmgr.core.model import Committed, LogRange, TopicPartition
from offsetmgr.groups.lag import LagRow, lag_of, needs_log_range


@pytest.mark.parametrize(
    ("lag", "note", "needed"),
    [(0, "", False), (1, "", True), (None, "", True), (None, "beyond", True), (0, "below", True)],
)
def test_a_row_with_a_lag_an_unknown_lag_or_a_note_needs_attention(lag: int | None, note: str, needed: bool) -> None:
    assert needs_log_range(LagRow("g", TopicPartition("t", 0), Committed(1), 0, 1, lag, note)) is needed


@pytest.mark.parametrize(
    ("committed", "log", "expected"),
    [(5, LogRange(0, 9), 4), (9, LogRange(0, 9), 0), (2, LogRange(5, 9), 4), (10, LogRange(0, 9), None)],
)
def test_lag_counts_from_the_logs_start_and_is_unknown_beyond_its_end(
    committed: int, log: LogRange, expected: int | None
) -> None:
    assert lag_of(committed, log) == expected
