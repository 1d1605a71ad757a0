"""The bytes of the coordinator's nodes: offsetmgr's format, and the original format, which is only read."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import CorruptData, OffsetMgrError, UnknownVersion
from offsetmgr.core.model import TopicPartition
from offsetmgr.period import legacy_nodes, records
from offsetmgr.period.node_codec import OffsetRange
from offsetmgr.period.records import ClosedPeriod, OpenNode, PartitionsNode, ProgressNode, Rerun
from offsetmgr.period.schedule import Period, PeriodSchedule

A0, A1, A2, DOTTED = (
    TopicPartition("a", 0),
    TopicPartition("a", 1),
    TopicPartition("a", 2),
    TopicPartition("b.c.d", 7),
)
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


@pytest.mark.parametrize("runs", ["", "5-3", "0-9999999999", "a", "1,,2", "-1", "01", 7, None])
def test_partitions_that_are_not_runs_of_numbers_are_rejected(runs: object) -> None:
    data = json.dumps({"version": 1, "period": 0, "topics": {"t": runs}}).encode()
    with pytest.raises(CorruptData, match="/p"):
        records.decode_partitions("/p", data)


@pytest.mark.parametrize("offsets", [[1], [2, 1], [-1, 3], ["0", 1], None, [True, 3], {"0": 1}])
def test_offsets_that_are_not_a_range_are_rejected(offsets: object) -> None:
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


# --- the original format ------------------------------------------------------------------------------


def test_nodes_of_the_original_format_split_dotted_names_at_the_last_dot() -> None:
    assert legacy_nodes.parse_limit("/c", b"1525741823119\n") == 1_525_741_823_119
    assert legacy_nodes.parse_partitions("/t", b"a:0,1; b.c.d:7;") == {A0, A1, DOTTED}
    assert legacy_nodes.parse_partitions("/t", b"a:partition0,partition1;") == {A0, A1}
    assert legacy_nodes.parse_progress("/p", b"a.0:10;a.1:20; b.c.d.7:30;") == {A0: 10, A1: 20, DOTTED: 30}
    assert legacy_nodes.parse_progress("/p", b"a.partition0:10;") == {A0: 10}


def test_a_limit_that_was_never_set_is_unknown_and_not_0() -> None:
    assert legacy_nodes.parse_limit("/c", b"") is None
    assert legacy_nodes.parse_limit("/c", b"0") is None


@pytest.mark.parametrize("data", [b"a", b":0", b"a:", b"a:x", b"a:0,,1", b"\xff"])
def test_malformed_partitions_of_the_original_format_are_rejected(data: bytes) -> None:
    with pytest.raises(CorruptData, match="/t"):
        legacy_nodes.parse_partitions("/t", data)


@pytest.mark.parametrize("data", [b"a:10", b"a.0", b".0:10", b"a.0:-1", b"a.x:10", b"a.0:1;a.0:2"])
def test_malformed_progress_of_the_original_format_is_rejected(data: bytes) -> None:
    with pytest.raises(CorruptData, match="/p"):
        legacy_nodes.parse_progress("/p", data)


def test_the_two_formats_are_distinguished() -> None:
    assert legacy_nodes.is_legacy(b"1525741823119") and legacy_nodes.is_legacy(b"a:0;")
    assert not legacy_nodes.is_legacy(b"") and not legacy_nodes.is_legacy(
        records.encode_open(OpenNode(DAILY, 0, "m", 0, 0))
    )
