"""The bytes of the nodes of runs: offsetmgr's format, and the original format, which is only read. The parts of a job's
work in a rerun with shorter periods."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import CorruptData, OffsetMgrError, UnknownVersion
from offsetmgr.core.model import TopicPartition
from offsetmgr.period import OffsetRange, Period, PeriodSchedule, job_records, records
from offsetmgr.period import records as legacy_nodes
from offsetmgr.period.records import ClosedPeriod, OpenNode, PartitionsNode, ProgressNode, Rerun

A0, A1, A2 = (TopicPartition("a", n) for n in range(3))
DOTTED = TopicPartition("b.c.d", 7)
DAILY = PeriodSchedule(1_700_000_000_000, 86_400_000)
partitions = st.sets(
    st.builds(TopicPartition, st.sampled_from(["a", "b.c", "d-e_f"]), st.integers(0, 2_000)), max_size=60
)


def test_golden_bytes() -> None:
    assert records.encode_open(OpenNode(DAILY, 2, "m", 5, 9)) == (
        b'{"version":1,"first_ms":1700000000000,"length_ms":86400000,"period":2,"limit_ms":1700259200000,'
        b'"leader":"m","epoch":5,"opened_ms":9,"stopped":"","base":0,"done":0}'
    )
    assert records.encode_partitions(PartitionsNode(2, frozenset({A0, A1, A2, DOTTED}))) == (
        b'{"version":1,"period":2,"topics":{"a":"0-2","b.c.d":"7"}}'
    )
    assert records.encode_progress(ProgressNode("m", 5, {A0: 2, A2: 2, A1: 1}, frozenset({A1}))) == (
        b'{"version":1,"member":"m","epoch":5,"finished":{"1":{"a":"1"},"2":{"a":"0,2"}},"idle":{"a":"1"},"ranges":{}}'
    )
    with_ranges = ProgressNode("m", 5, {A0: 2}, ranges={A0: OffsetRange(10, 25)})
    assert b'"ranges":{"a":{"0":[10,25]}}' in records.encode_progress(with_ranges)
    rerun = OpenNode(DAILY, 2, "m", 5, 9, rerun=Rerun(None, DAILY))
    assert b'"rerun":1,"until_ms":null,"then_first_ms":1700000000000' in records.encode_open(rerun)


@given(st.integers(0, 10_000), partitions)
def test_written_nodes_are_read_back(number: int, some: set[TopicPartition]) -> None:
    for rerun in (None, Rerun(None, None), Rerun(7, DAILY), Rerun(0, None)):
        schedule = PeriodSchedule(DAILY.first_ms, DAILY.length_ms, number // 2)
        opened = OpenNode(schedule, number, "m", 3, 10, "aborted", rerun, done=rerun is None)
        assert records.decode_open("/c", records.encode_open(opened)) == opened
    named = PartitionsNode(number, frozenset(some))
    assert records.decode_partitions("/p", records.encode_partitions(named)) == named
    progress = ProgressNode(
        "m",
        4,
        {tp: tp.partition % 3 for tp in some},
        frozenset(tp for tp in some if tp.topic == "a"),
        {tp: OffsetRange(tp.partition, number + tp.partition) for tp in some},
    )
    assert records.decode_progress("/m", records.encode_progress(progress)) == progress
    by = {"m": frozenset(some)}
    closed = ClosedPeriod(DAILY.period(number), 1, 2, "m", 3, by, frozenset(some), progress.ranges, "x")
    assert records.decode_closed("/h", records.encode_closed(closed)) == closed


def node(**changed: Any) -> bytes:
    fields = json.loads(records.encode_open(OpenNode(DAILY, 2, "m", 5, 9)))
    return json.dumps({**fields, **changed}).encode()


def test_an_unknown_version_is_named_and_unknown_fields_are_ignored() -> None:
    with pytest.raises(UnknownVersion, match=r"/periods/coordinator.*version 2"):
        records.decode_open("/periods/coordinator", node(version=2))
    assert records.decode_open("/c", node(more="than we know")).number == 2


@pytest.mark.parametrize(
    "data",
    [
        b"", b"1525741823119", b"[]", b"\xff", b"[" * 5_000, node(period=-1), node(period=True), node(period="2"),
        node(length_ms=0), node(limit_ms=5), node(epoch=2**63), node(leader=None), node(period=2**62),
    ],
)  # fmt: skip
def test_a_broken_node_is_named_by_its_path(data: bytes) -> None:
    with pytest.raises(CorruptData, match="/periods/coordinator"):
        records.decode_open("/periods/coordinator", data)


def test_partitions_that_are_no_runs_of_numbers_and_offsets_that_are_no_range_are_rejected() -> None:
    for runs in ("", "5-3", "0-9999999999", "a", "1,,2", "-1", "01", 7, None):
        with pytest.raises(CorruptData, match="/p"):
            records.decode_partitions("/p", json.dumps({"version": 1, "period": 0, "topics": {"t": runs}}).encode())
    for offsets in ([1], [2, 1], [-1, 3], ["0", 1], None, [True, 3], {"0": 1}):
        fields = {"version": 1, "member": "m", "epoch": 1, "finished": {}, "idle": {}, "ranges": {"t": {"0": offsets}}}
        with pytest.raises(CorruptData, match="/p"):
            records.decode_progress("/p", json.dumps(fields).encode())


def test_mutated_nodes_are_either_read_or_rejected() -> None:
    dice = random.Random(6)
    good = [
        records.encode_open(OpenNode(DAILY, 2, "m", 5, 9)),
        records.encode_progress(ProgressNode("m", 5, {A0: 2, A2: 2, DOTTED: 1})),
        records.encode_closed(ClosedPeriod(Period(1, 5, 9), 1, 2, "m", 3, {"m": frozenset({A0})})),
    ]
    readers = [records.decode_open, records.decode_progress, records.decode_partitions, records.decode_closed]
    rejected = 0
    for _ in range(20_000):
        data = bytearray(dice.choice(good))
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.choice(b'0123456789"{}[],:-x\xff')
        try:
            dice.choice(readers)("/n", bytes(data))
        except OffsetMgrError as error:
            rejected += 1
            assert "/n" in str(error)
    assert rejected > 5_000


OF_0_1 = Path(__file__).parents[1] / "data" / "formats" / "0.1" / "period-nodes.json"
CODECS: dict[str, tuple[Any, Any]] = {
    "coordinator": (records.decode_open, records.encode_open),
    "topic-partitions": (records.decode_partitions, records.encode_partitions),
    "members": (records.decode_member, records.encode_member),
    "progress": (records.decode_progress, records.encode_progress),
    "history": (records.decode_closed, records.encode_closed),
    "work": (job_records.decode_work, job_records.encode_work),
}


def test_each_field_of_the_nodes_of_version_0_1_is_read() -> None:
    read = set()
    for path, text in json.loads(OF_0_1.read_text()).items():
        *_, parent, name = path.split("/")
        kind = name if name in CODECS else parent
        if kind not in CODECS or text in ("", '{"version":1,"by":"offsetmgr"}'):
            continue
        decode, encode = CODECS[kind]
        assert encode(decode(path, text.encode())) == text.encode()
        read.add(kind)
    assert read == CODECS.keys()


# --- the original format ------------------------------------------------------------------------------


def test_the_original_format_is_recognized_and_a_limit_that_was_never_set_is_unknown() -> None:
    limits = [legacy_nodes.parse_limit(data) for data in (b"1525741823119\n", b"", b"0", b"\xff")]
    assert limits == [1_525_741_823_119, None, None, None]
    nodes = [b"1525741823119", b"a:0;", b"", records.encode_open(OpenNode(DAILY, 0, "m", 0, 0))]
    assert [legacy_nodes.is_legacy(data) for data in nodes] == [True, True, False, False]


# --- the work of a job -------------------------------------------------------------------------------

WORK = job_records.Work(
    "job",
    Period(3, 100, 200),
    {A0: OffsetRange(5, 9)},
    1,
    (job_records.Attempt("m", 4, 2),),
    job_records.PublishedOutput(0, "out", 3, {"records": 4}),
    {A0: job_records.RangeScan(5, 7, 12, 10)},
    {job_records.IN_PERIOD: 4, job_records.LATE: 2, job_records.SET_ASIDE: 1},
    topic_ids={"a": "x"},
)

offsets = st.integers(0, 2**63 - 1)


def test_golden_bytes_of_work() -> None:
    assert job_records.encode_work(WORK) == (
        b'{"version":1,"job":"job","period":3,"start_ms":100,"end_ms":200,"ranges":{"a":{"0":[5,9]}},"fixed_ms":1,'
        b'"scans":{"a":{"0":[5,7,12,10]}},"counts":{"records":4,"late":2,"set_aside":1},"topic_ids":{"a":"x"},'
        b'"same_as":"","forgotten":0,"attempts":[{"member":"m","epoch":4,"started_ms":2}],'
        b'"published":[{"attempt":0,"output":"out","published_ms":3,"counts":{"records":4}}]}'
    )


@given(st.lists(offsets, min_size=4, max_size=4), st.text(max_size=9), st.booleans())
def test_encoded_work_is_decoded_unchanged(four: list[int], same_as: str, published: bool) -> None:
    scan = job_records.RangeScan(*sorted(four))
    work = replace(
        WORK, scans={A0: scan, DOTTED: scan}, same_as=same_as, published=WORK.published if published else None
    )
    assert job_records.decode_work("/w", job_records.encode_work(work)) == work


def test_work_without_scans_is_read() -> None:
    fields = json.loads(job_records.encode_work(WORK))
    for name in ("scans", "counts", "topic_ids", "forgotten", "same_as"):
        del fields[name]
    found = job_records.decode_work("/w", json.dumps(fields).encode())
    assert found == replace(WORK, scans={}, counts={}, topic_ids={})


def test_topic_ids_that_librdkafka_has_written_are_read_in_kafkas_text_form() -> None:
    stored = job_records.encode_work(replace(WORK, topic_ids={"a": "OZ+CI6YCQhOZSKi5/svxAQ"}))
    assert job_records.decode_work("/w", stored).topic_ids == {"a": "OZ-CI6YCQhOZSKi5_svxAQ"}


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
    fields = {**json.loads(job_records.encode_work(WORK)), name: value}
    with pytest.raises(error, match="/w"):
        job_records.decode_work("/w", json.dumps(fields).encode())


def test_a_job_that_fails_repeatedly_keeps_its_newest_attempts_and_counts_all() -> None:
    work = replace(WORK, attempts=(), published=None)
    for number in range(250):
        work = work.with_attempt(job_records.Attempt("m", number, 0))
        assert work.attempt_count == number + 1
    assert [attempt.epoch for attempt in work.attempts] == list(range(150, 250))
    assert job_records.decode_work("/w", job_records.encode_work(work)) == work


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
        {job_records.LATE: 2, job_records.SET_ASIDE: 0},
        {job_records.LATE: 0, job_records.SET_ASIDE: 0},
        {job_records.LATE: 0, job_records.SET_ASIDE: 1},
    ]
    assert [part.late_ranges() for part in (first, middle, last)] == [{A0: OffsetRange(7, 12)}, {}, {}]
    assert [part.set_aside_ranges() for part in (first, middle, last)] == [{}, {}, {A0: OffsetRange(5, 10)}]
