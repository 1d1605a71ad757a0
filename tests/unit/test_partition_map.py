"""Partition maps: valid and invalid files, and the translation of byte positions of Kafka 0.7 to offsets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import (
    FileFailure,
    GroupNotFound,
    MalformedData,
    OffsetMgrError,
    PlanError,
    TimedOut,
    UnknownVersion,
)
from offsetmgr.core.model import BrokerPartition, Committed, LogRange, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Capabilities, GroupOffsets, PartitionKinds
from offsetmgr.migration.partition_map import (
    MapEntry,
    MappedStart,
    PartitionMap,
    PositionTable,
    ResolvedStart,
    parse_map,
    read_map,
)
from offsetmgr.migration.partition_map_draft import MapDraft, write_draft
from offsetmgr.migration.plan import Action, GroupPlan, PlanOptions, PlanSource, PlanStep
from offsetmgr.migration.plan_file import PlanFile, write_plan
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.verify_rules import Status, VerifyEvidence, check_planned
from offsetmgr.stores.snapshot import SnapshotStore
from offsetmgr.testing.memory import MemoryStore


def old(broker: int, partition: int) -> TopicPartition:
    return TopicPartition("t", BrokerPartition(broker, partition))


def new(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


def encoded(entries: Mapping[str, Any], **others: Any) -> bytes:
    document = {"offsetmgr_partition_map": 1, "confirmed_by": "anna", "topics": {"t": entries}, **others}
    return json.dumps(document).encode()


class Logs:
    """A cluster whose topic ``t`` has two partitions: 0 has offsets 5 to 90, and 1 does not respond.

    ``at`` maps times to offsets.
    """

    def __init__(self, at: Mapping[int, int | None] | None = None) -> None:
        self.at = at or {}

    def cluster_id(self) -> str | None:
        return "cluster"

    def brokers(self) -> frozenset[str]:
        return frozenset({"broker:9092"})

    def topics(self, names: Iterable[str] | None = None) -> Mapping[str, int]:
        return {name: 2 for name in names or () if name == "t"}

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        return {tp: LogRange(5, 90) if tp == new(0) else TimedOut(str(tp), "no answer") for tp in partitions}

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | OffsetMgrError | None]:
        return dict.fromkeys(partitions, self.at[timestamp_ms])

    def offsets_retention_ms(self) -> int | None:
        return None


KEYS = st.sampled_from(["partition", "start", "table", "time", "between", "0-0", "t"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda c: st.lists(c) | st.dictionaries(KEYS, c)
)


class TestMapFile:
    def test_each_kind_of_entry(self) -> None:
        data = encoded(
            {
                "0-0": {"partition": 0, "start": "earliest", "seen": {"groups": 3}},
                "0-1": {"partition": 1, "start": "latest"},
                "1-0": {"partition": 2, "start": {"time": "2013-05-01T12:00:00Z"}},
                "1-1": {"partition": 3, "table": [[0, 0], [1024, 17]]},
                "2-0": {"partition": 4, "table": [[0, 0]], "between": "floor"},
            }
        )

        found = parse_map("m.json", data)

        assert found.origin.confirmed_by == "anna"
        assert found.origin.sha256 == hashlib.sha256(data).hexdigest()
        assert found.entries == {
            old(0, 0): MapEntry(0, MappedStart.EARLIEST),
            old(0, 1): MapEntry(1, MappedStart.LATEST),
            old(1, 0): MapEntry(2, 1_367_409_600_000),
            old(1, 1): MapEntry(3, PositionTable(((0, 0), (1024, 17)))),
            old(2, 0): MapEntry(4, PositionTable(((0, 0),), floor=True)),
        }

    @pytest.mark.parametrize("confirmed_by", ["", "  ", None, True])
    def test_a_draft_without_confirmation_is_refused(self, confirmed_by: object) -> None:
        data = encoded({"0-0": {"partition": 0, "start": "earliest"}}, confirmed_by=confirmed_by)

        with pytest.raises(PlanError, match=r"partition map m\.json: is a draft: it has not been confirmed"):
            parse_map("m.json", data)

    @pytest.mark.parametrize("version", [2, "1", True, 1.0])
    def test_an_unknown_version_is_named(self, version: object) -> None:
        with pytest.raises(UnknownVersion, match=r"m\.json: version"):
            parse_map("m.json", encoded({}, offsetmgr_partition_map=version))

    @pytest.mark.parametrize(
        ("entries", "why"),
        [
            ({"0": {"partition": 0, "start": "earliest"}}, "its 'topics.t.0' is not BROKER-PARTITION"),
            ({"0-0": {"start": "earliest"}}, "has no 'topics.t.0-0.partition'"),
            ({"0-0": {"partition": -1, "start": "earliest"}}, "is not a number between 0 and 2147483647"),
            ({"0-0": {"partition": True, "start": "earliest"}}, "'topics.t.0-0.partition' is not a number"),
            ({"0-0": {"partition": 0}}, 'needs either "start" or "table"'),
            ({"0-0": {"partition": 0, "start": "latest", "table": [[0, 0]]}}, 'needs either "start" or "table"'),
            ({"0-0": {"partition": 0, "start": "newest"}}, "'topics.t.0-0.start' is not earliest, latest"),
            ({"0-0": {"partition": 0, "start": 7}}, "'topics.t.0-0.start' is not earliest, latest"),
            ({"0-0": {"partition": 0, "start": {"time": "noon"}}}, "start.time' is 'noon', not a time"),
            ({"0-0": {"partition": 0, "start": {"time": "1969-01-01T00:00:00Z"}}}, "before 1970"),
            ({"0-0": {"partition": 0, "start": "latest", "between": "floor"}}, 'belongs to a "table"'),
            ({"0-0": {"partition": 0, "begin": "latest"}}, "its 'topics.t.0-0.begin' is an unknown field"),
            ({"0-0": {"partition": 0, "table": []}}, "table' is not a list"),
            ({"0-0": {"partition": 0, "table": [[0, 0], [5]]}}, "row 2 that is not [byte position, offset]"),
            ({"0-0": {"partition": 0, "table": [[0, -1]]}}, "row 1 that is not [byte position, offset]"),
            ({"0-0": {"partition": 0, "table": [[9, 0], [9, 1]]}}, "row 2 that is out of order"),
            ({"0-0": {"partition": 0, "table": [[1, 5], [9, 5]]}}, "row 2 that is out of order"),
            ({"0-0": {"partition": 0, "table": [[0, 0]], "between": "guess"}}, "between' is not refuse or floor"),
            (
                {"0-0": {"partition": 0, "start": "latest"}, "1-0": {"partition": 0, "start": "latest"}},
                "its 'topics.t.1-0' becomes partition 0, and so does '0-0'",
            ),
        ],
    )
    def test_an_invalid_entry_is_named(self, entries: Mapping[str, Any], why: str) -> None:
        with pytest.raises(MalformedData) as caught:
            parse_map("m.json", encoded(entries))

        assert caught.value.what == "partition map m.json"
        assert why in caught.value.why

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"", "is empty"),
            (b"[]", "is not a partition map"),
            (b"{}", "is not a partition map"),
            (b"\xff", "is not UTF-8"),
            (b"[" * 100_000, "is JSON nested too deeply"),
            (b'{"a":1,"a":2}', "'a' occurs twice"),
            (b'{"offsetmgr_partition_map":1,"topics":[]}', "its 'topics' is not an object"),
            (b'{"offsetmgr_partition_map":1,"topics":{},"x":1}', "its 'x' is an unknown field"),
        ],
    )
    def test_a_file_that_is_no_map_is_reported(self, data: bytes, why: str) -> None:
        with pytest.raises(MalformedData) as caught:
            parse_map("m.json", data)

        assert why in caught.value.why

    @given(ANYTHING)
    def test_arbitrary_entries_raise_only_typed_errors(self, entries: Any) -> None:
        try:
            parse_map("m.json", encoded(entries))
        except OffsetMgrError as error:
            assert error.what == "partition map m.json"

    def test_a_missing_file_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(FileFailure, match="No such file"):
            read_map(tmp_path / "none.json")


class TestPositionTable:
    TABLE = PositionTable(((100, 7), (250, 9)))
    FLOOR = PositionTable(((100, 7), (250, 9)), floor=True)

    def test_an_exact_position(self) -> None:
        assert self.TABLE.find(100) == ResolvedStart(7, "byte 100 is offset 7 in the table")
        assert self.FLOOR.find(250) == ResolvedStart(9, "byte 250 is offset 9 in the table")

    def test_a_position_between_two_entries_is_refused_unless_the_map_declares_floor(self) -> None:
        assert self.TABLE.find(249) == (
            'byte 249 is not in the table (the entry before it: byte 100), and "between" does not say floor'
        )
        assert self.FLOOR.find(249) == ResolvedStart(7, "floor: byte 249 is after byte 100, offset 7 in the table")
        assert self.FLOOR.find(10**12) == ResolvedStart(
            9, f"floor: byte {10**12} is after byte 250, offset 9 in the table"
        )

    def test_a_position_before_the_first_is_refused_in_any_case(self) -> None:
        assert self.FLOOR.find(99) == "byte 99 is before the table's first entry, byte 100"

    @given(st.sets(st.integers(0, 1000), min_size=1), st.integers(0, 1100))
    def test_the_floor_is_the_result_of_a_linear_search(self, positions: set[int], requested: int) -> None:
        rows = tuple((position, 3 * n) for n, position in enumerate(sorted(positions)))
        before = [offset for position, offset in rows if position <= requested]

        found = PositionTable(rows, floor=True).find(requested)

        assert (found.offset if isinstance(found, ResolvedStart) else None) == (before[-1] if before else None)


def plan(
    tmp_path: Path,
    source: Mapping[TopicPartition, int],
    map_: PartitionMap | None,
    target: Mapping[TopicPartition, int] | None = None,
    logs: Logs | None = None,
) -> tuple[PlanStep, ...]:
    """Returns the steps of one group's plan, from a snapshot of Kafka 0.7 to a store without byte positions."""
    to = MemoryStore(data={"g": {tp: Committed(n) for tp, n in (target or {}).items()}})
    (tmp_path / "from.zk").write_text(
        "".join(f"/consumers/g/offsets/t/{tp.partition}:{n}\n" for tp, n in source.items())
    )
    planner = Planner(
        SnapshotStore(str(tmp_path / "from.zk")),
        to,
        PlanOptions(),
        SystemClock(),
        logs,  # type: ignore[arg-type]
        partition_map=map_,
    )
    (group,) = planner.plan(["g"])
    return group.steps


def map_of(entries: Mapping[str, Any]) -> PartitionMap:
    return parse_map("m.json", encoded(entries))


class TestPlanWithMap:
    def test_without_a_map_byte_positions_are_refused_with_the_reason(self, tmp_path: Path) -> None:
        (step,) = plan(tmp_path, {old(1, 0): 1024}, None)

        assert step == PlanStep(
            old(1, 0),
            Action.REFUSE_BYTE_POSITION,
            OffsetAndMetadata(1024),
            None,
            None,
            "a byte position of Kafka 0.7 is not an offset: --partition-map defines its replacement",
        )

    def test_a_table_translates_a_byte_position_to_an_offset_in_another_partition(self, tmp_path: Path) -> None:
        map_ = map_of({"1-0": {"partition": 3, "table": [[1024, 17]]}})

        (step,) = plan(tmp_path, {old(1, 0): 1024}, map_)

        how = "byte 1024 is offset 17 in the table"
        note = f"from 1-0: {how}"
        assert step == PlanStep(
            new(3),
            Action.COPY,
            OffsetAndMetadata(1024),
            None,
            OffsetAndMetadata(17),
            note,
            PlanSource(BrokerPartition(1, 0), how, "inferred"),
        )
        assert step.source_tp == old(1, 0)

    def test_a_position_that_is_not_in_the_table_is_refused(self, tmp_path: Path) -> None:
        (step,) = plan(tmp_path, {old(1, 0): 1025}, map_of({"1-0": {"partition": 3, "table": [[1024, 17]]}}))

        assert (step.tp, step.action, step.after) == (old(1, 0), Action.REFUSE_BYTE_POSITION, None)
        assert "byte 1025 is not in the table" in step.note

    def test_a_partition_that_the_map_does_not_name_is_refused(self, tmp_path: Path) -> None:
        (step,) = plan(tmp_path, {old(1, 0): 1}, map_of({"1-1": {"partition": 0, "start": "latest"}}))

        assert (step.action, step.note) == (
            Action.REFUSE_BYTE_POSITION,
            "the partition map does not name this partition",
        )

    @pytest.mark.parametrize(
        ("start", "offset", "how"),
        [
            ("earliest", 5, "earliest: offset 5 when the plan was made, chosen for byte 1024"),
            ("latest", 90, "latest: offset 90 when the plan was made, chosen for byte 1024"),
            (
                {"time": "2013-05-01T12:00:00Z"},
                40,
                "time 2013-05-01T12:00:00.000Z: offset 40 is the first message from then on, chosen for byte 1024",
            ),
            (
                {"time": "2030-01-01T00:00:00Z"},
                90,
                "time 2030-01-01T00:00:00.000Z: no message from then on, so the log end, offset 90,"
                " chosen for byte 1024",
            ),
        ],
    )
    def test_a_starting_point_becomes_an_offset_when_the_plan_is_made(
        self, tmp_path: Path, start: object, offset: int, how: str
    ) -> None:
        logs = Logs({1_367_409_600_000: 40, 1_893_456_000_000: None})

        (step,) = plan(tmp_path, {old(1, 0): 1024}, map_of({"1-0": {"partition": 0, "start": start}}), logs=logs)

        assert (step.tp, step.action, step.after, step.note) == (
            new(0),
            Action.COPY,
            OffsetAndMetadata(offset),
            f"from 1-0: {how}",
        )

    @pytest.mark.parametrize(
        ("partition", "why"), [(1, "its starting point is unknown: t-1: no answer"), (9, "does not exist")]
    )
    def test_an_unknown_starting_point_is_refused(self, tmp_path: Path, partition: int, why: str) -> None:
        map_ = map_of({"1-0": {"partition": partition, "start": "earliest"}})

        (step,) = plan(tmp_path, {old(1, 0): 1024}, map_, logs=Logs())

        assert step.action is Action.REFUSE_BYTE_POSITION
        assert why in step.note

    def test_a_starting_point_without_a_cluster_is_refused(self, tmp_path: Path) -> None:
        (step,) = plan(tmp_path, {old(1, 0): 1024}, map_of({"1-0": {"partition": 0, "start": "earliest"}}))

        assert step.action is Action.REFUSE_BYTE_POSITION
        assert "no Kafka cluster is given" in step.note

    def test_an_offset_of_the_table_outside_the_log_is_refused(self, tmp_path: Path) -> None:
        map_ = map_of({"1-0": {"partition": 0, "table": [[1024, 91]]}})

        (step,) = plan(tmp_path, {old(1, 0): 1024}, map_, logs=Logs())

        assert (step.tp, step.action, step.after) == (new(0), Action.REFUSE_OUT_OF_RANGE, None)

    def test_offsets_in_the_target_are_compared_with_translated_offsets(self, tmp_path: Path) -> None:
        map_ = map_of({"1-0": {"partition": 0, "table": [[1024, 17]]}, "1-1": {"partition": 1, "table": [[5, 5]]}})

        steps = plan(tmp_path, {old(1, 0): 1024, old(1, 1): 5}, map_, target={new(0): 20, new(1): 5, new(2): 8})

        assert [(step.tp, step.action, step.after and step.after.offset) for step in steps] == [
            (new(0), Action.REFUSE_REWIND, None),
            (new(1), Action.SKIP_EQUAL, 5),
            (new(2), Action.TARGET_ONLY, 8),
        ]

    def test_a_partition_for_which_the_source_has_an_offset_too_is_refused(self, tmp_path: Path) -> None:
        map_ = map_of({"1-0": {"partition": 0, "table": [[1024, 17]]}})

        first, second = plan(tmp_path, {old(1, 0): 1024, new(0): 3}, map_)

        assert (first.tp, first.action) == (old(1, 0), Action.REFUSE_BYTE_POSITION)
        assert "for which the source holds an offset too" in first.note
        assert (second.tp, second.action) == (new(0), Action.COPY)

    def test_the_plan_file_keeps_the_maps_hash_and_the_origin_of_each_offset(self, tmp_path: Path) -> None:
        map_ = map_of({"1-0": {"partition": 3, "table": [[1024, 17]]}})
        (tmp_path / "from.zk").write_text("/consumers/g/offsets/t/1-0:1024\n/consumers/g/offsets/t/1-1:9\n")
        planner = Planner(
            SnapshotStore(str(tmp_path / "from.zk")),
            MemoryStore(),
            PlanOptions(),
            SystemClock(),
            partition_map=map_,
        )
        header = planner.header()
        steps = (
            PlanStep(old(1, 1), Action.REFUSE_BYTE_POSITION, OffsetAndMetadata(9), None, None, "why"),
            PlanStep(
                new(3),
                Action.COPY,
                OffsetAndMetadata(1024),
                None,
                OffsetAndMetadata(17),
                "",
                PlanSource(BrokerPartition(1, 0), "how"),
            ),
        )

        write_plan(tmp_path / "plan.json", header, [GroupPlan("g", "g", steps)])
        read = PlanFile(tmp_path / "plan.json")

        assert read.header.partition_map == map_.origin
        assert read.header.version == 4
        (found,) = read.groups()
        assert found.steps == steps
        document = json.loads((tmp_path / "plan.json").read_text())
        assert document["offsetmgr_plan"] == 4
        assert document["header"]["partition_map"] == {"sha256": map_.origin.sha256, "confirmed_by": "anna"}
        assert document["groups"][0]["topics"]["t"] == [
            {"p": "1-1", "action": "refuse-byte-position", "source": 9, "note": "why"},
            {
                "p": 3,
                "action": "copy",
                "source": 1024,
                "after": 17,
                "origin": {"partition": "1-0", "how": "how", "evidence": "inferred"},
            },
        ]


class TestVerifyWithMap:
    """`verify` compares a byte position with the one in the plan, and never with an offset."""

    STEP = PlanStep(
        new(0),
        Action.COPY,
        OffsetAndMetadata(1024),
        None,
        OffsetAndMetadata(17),
        "",
        PlanSource(BrokerPartition(1, 0), "how"),
    )

    @pytest.mark.parametrize(
        ("there", "here", "status", "evidence"),
        [
            (1024, 17, Status.EQUAL, VerifyEvidence.INFERRED),
            (1024, 20, Status.PROGRESS, VerifyEvidence.INFERRED),
            (1024, 16, Status.BEHIND, VerifyEvidence.SEEN),
            (1024, None, Status.MISSING, VerifyEvidence.SEEN),
            (1024, 91, Status.BEYOND_LOG_END, VerifyEvidence.SEEN),
            (1025, 17, Status.SOURCE_AHEAD, VerifyEvidence.SEEN),
            (1025, 20, Status.SOURCE_AHEAD, VerifyEvidence.SEEN),
            (18, 17, Status.SOURCE_REWOUND, VerifyEvidence.SEEN),
            (None, 17, Status.SOURCE_GONE, VerifyEvidence.INFERRED),
        ],
    )
    def test_a_byte_position_is_compared_with_the_one_in_the_plan(
        self, there: int | None, here: int | None, status: Status, evidence: VerifyEvidence
    ) -> None:
        source, target = (None if n is None else Committed(n) for n in (there, here))

        found = check_planned(self.STEP, source, target, 90)

        assert found[:2] == (status, evidence)

    def test_a_refused_byte_position_is_not_equal_to_an_offset_of_the_same_number(self) -> None:
        step = PlanStep(new(0), Action.REFUSE_OUT_OF_RANGE, OffsetAndMetadata(17), None, None, "why", self.STEP.origin)

        assert check_planned(step, Committed(17), Committed(17), 90)[0] is Status.REFUSED


class TestMapDraft:
    def test_a_draft_lists_the_found_partitions_and_must_be_confirmed(self, tmp_path: Path) -> None:
        draft = MapDraft()
        for group, low in (("a", 100), ("b", 70)):
            offsets = {old(1, 0): Committed(low), old(0, 1): Committed(7), new(5): Committed(1)}
            draft.add(GroupOffsets(group, offsets), offsets)

        data = draft.encode("zookeeper://h:1?layout=0.7", {"t": 3})

        document = json.loads(data)
        assert document["topics"] == {
            "t": {
                "0-1": {
                    "partition": 0,
                    "start": "earliest",
                    "seen": {"groups": 2, "lowest_byte": 7, "highest_byte": 7},
                },
                "1-0": {
                    "partition": 1,
                    "start": "earliest",
                    "seen": {"groups": 2, "lowest_byte": 70, "highest_byte": 100},
                },
            }
        }
        assert document["read_this"][1:] == ["t: 2 partitions in 0.7, 3 in the Kafka cluster"]
        with pytest.raises(PlanError, match="it has not been confirmed"):
            parse_map("m.json", data)
        confirmed = parse_map("m.json", json.dumps({**document, "confirmed_by": "anna"}).encode())
        assert confirmed.entries == {
            old(0, 1): MapEntry(0, MappedStart.EARLIEST),
            old(1, 0): MapEntry(1, MappedStart.EARLIEST),
        }

    def test_a_source_without_byte_positions_needs_no_map(self) -> None:
        with pytest.raises(GroupNotFound, match=r"no group in kafka://h:1 holds a byte position"):
            MapDraft().encode("kafka://h:1", None)

    def test_a_draft_never_overwrites_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "map.json"
        write_draft(path, b"one")

        with pytest.raises(FileFailure, match="never overwritten"):
            write_draft(path, b"two")
        assert path.read_bytes() == b"one"


class TestBetweenStoresOfKafka07:
    def test_byte_positions_are_copied_unchanged_without_a_request_for_log_ranges(self, tmp_path: Path) -> None:
        (tmp_path / "from.zk").write_text("/consumers/g/offsets/t/1-0:1024\n")
        (tmp_path / "to.zk").touch()
        source, target = (SnapshotStore(str(tmp_path / name)) for name in ("from.zk", "to.zk"))
        planner = Planner(source, target, PlanOptions(), SystemClock(), Logs())  # type: ignore[arg-type]

        (group,) = planner.plan(["g"])

        assert group.steps == (
            PlanStep(old(1, 0), Action.COPY, OffsetAndMetadata(1024), None, OffsetAndMetadata(1024)),
        )

    def test_an_offset_cannot_be_copied_to_a_store_of_byte_positions(self) -> None:
        class Old(MemoryStore):
            @property
            def capabilities(self) -> Capabilities:
                return replace(super().capabilities, partitions=PartitionKinds.OF_BROKERS)

        source = MemoryStore("here", data={"g": {new(0): Committed(5)}})

        (group,) = Planner(source, Old("there"), PlanOptions(), SystemClock()).plan(["g"])

        why = "memory:there keeps byte positions of Kafka 0.7, and this is an offset"
        assert group.steps == (
            PlanStep(new(0), Action.REFUSE_UNSUPPORTED_TARGET, OffsetAndMetadata(5), None, None, why),
        )
