"""The report of a job's starting offsets."""

from __future__ import annotations

from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.spark.start_offsets import StartingOffsets

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_group_without_any_committed_offset_may_be_misspelt() -> None:
    start = StartingOffsets("odrers", {T0: -2, T1: -2}, new=(T0, T1))
    known = StartingOffsets("orders", {T0: -2, T1: -1}, new=(T0,), outside_log={T1: (4, LogRange(5, 9))})

    assert (start.unknown, known.unknown) == (True, False)
    assert start.explain() == [
        "group odrers: 0 of 2 partitions begin at their committed offset",
        "group odrers has no committed offsets in these topics; check its name",
        "t-0: no committed offset, begins at the earliest offset",
        "t-1: no committed offset, begins at the earliest offset",
    ]
    assert known.explain()[1:] == [
        "t-0: no committed offset, begins at the earliest offset",
        "t-1: 4 is not in the log (5 to 9), begins at the earliest offset",
    ]
