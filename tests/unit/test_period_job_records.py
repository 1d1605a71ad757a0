"""The encoding of a job's work on a period, and its parts in a rerun with shorter periods."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.job_records import (
    IN_PERIOD,
    LATE,
    SET_ASIDE,
    Attempt,
    PublishedOutput,
    RangeScan,
    Work,
    decode_work,
    encode_work,
)
from offsetmgr.period.node_codec import OffsetRange
from offsetmgr.period.schedule import Period

A0, DOTTED = TopicPartition("a", 0), TopicPartition("b.c", 7)
WORK = Work(
    "job",
    Period(3, 100, 200),
    {A0: OffsetRange(5, 9)},
    1,
    (Attempt("m", 4, 2),),
    PublishedOutput(0, "out", 3, {"records": 4}),
    {A0: RangeScan(5, 7, 12, 10)},
    {IN_PERIOD: 4, LATE: 2, SET_ASIDE: 1},
    topic_ids={"a": "x"},
)

offsets = st.integers(0, 2**63 - 1)


def test_golden_bytes() -> None:
    assert encode_work(WORK) == (
        b'{"version":1,"job":"job","period":3,"start_ms":100,"end_ms":200,"ranges":{"a":{"0":[5,9]}},"fixed_ms":1,'
        b'"scans":{"a":{"0":[5,7,12,10]}},"counts":{"records":4,"late":2,"set_aside":1},"topic_ids":{"a":"x"},'
        b'"same_as":"","forgotten":0,"attempts":[{"member":"m","epoch":4,"started_ms":2}],'
        b'"published":[{"attempt":0,"output":"out","published_ms":3,"counts":{"records":4}}]}'
    )


@given(st.lists(offsets, min_size=4, max_size=4), st.text(max_size=9), st.booleans())
def test_encoded_work_is_decoded_unchanged(four: list[int], same_as: str, published: bool) -> None:
    scan = RangeScan(*sorted(four))
    work = replace(
        WORK, scans={A0: scan, DOTTED: scan}, same_as=same_as, published=WORK.published if published else None
    )
    assert decode_work("/w", encode_work(work)) == work


def test_work_without_scans_is_read() -> None:
    fields = json.loads(encode_work(WORK))
    for name in ("scans", "counts", "topic_ids", "forgotten", "same_as"):
        del fields[name]
    found = decode_work("/w", json.dumps(fields).encode())
    assert found == replace(WORK, scans={}, counts={}, topic_ids={})


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("version", 2, UnknownVersion),
        ("scans", {"a": {"0": [1, 2, 3]}}, CorruptData),
        ("scans", {"a": {"0": [1, 2, 3, -1]}}, CorruptData),
        ("ranges", {"a": {"0": [3, 2]}}, CorruptData),
        ("counts", {"late": "2"}, CorruptData),
        ("topic_ids", {"a": 1}, CorruptData),
        ("published", [{}, {}], CorruptData),
    ],
)
def test_broken_work_is_an_error_that_names_the_node(name: str, value: object, error: type[Exception]) -> None:
    fields = {**json.loads(encode_work(WORK)), name: value}
    with pytest.raises(error, match="/w"):
        decode_work("/w", json.dumps(fields).encode())


def test_a_job_that_fails_repeatedly_keeps_its_newest_attempts_and_counts_all() -> None:
    work = replace(WORK, attempts=(), published=None)
    for number in range(250):
        work = work.with_attempt(Attempt("m", number, 0))
        assert work.attempt_count == number + 1
    assert [attempt.epoch for attempt in work.attempts] == list(range(150, 250))
    assert decode_work("/w", encode_work(work)) == work


def test_work_restricted_to_the_whole_period_keeps_everything() -> None:
    again = WORK.restricted_to(Period(0, 100, 200), "period 3")
    assert again == replace(WORK, period=Period(0, 100, 200), attempts=(), published=None, same_as="period 3")
    assert again.late_ranges() == {A0: OffsetRange(7, 12)}
    assert again.set_aside_ranges() == {A0: OffsetRange(5, 10)}


def test_the_first_part_has_the_late_records_and_the_last_part_those_set_aside() -> None:
    first, middle, last = (
        WORK.restricted_to(Period(n, *times), "") for n, times in enumerate([(100, 120), (120, 160), (160, 200)])
    )
    for part in (first, middle, last):
        assert part.ranges == WORK.ranges
    assert [part.counts for part in (first, middle, last)] == [
        {LATE: 2, SET_ASIDE: 0},
        {LATE: 0, SET_ASIDE: 0},
        {LATE: 0, SET_ASIDE: 1},
    ]
    assert [part.late_ranges() for part in (first, middle, last)] == [{A0: OffsetRange(7, 12)}, {}, {}]
    assert [part.set_aside_ranges() for part in (first, middle, last)] == [{}, {}, {A0: OffsetRange(5, 10)}]
