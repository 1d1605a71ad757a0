"""Partition maps: valid and invalid files, and the translation of byte positions of Kafka 0.7 to offsets."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import command
from memory_stores import LOGS, in_memory, logs_in_memory

from offsetmgr import BrokerPartition, Migration, MigrationConfig, OffsetAndMetadata, TopicPartition
from offsetmgr.core.errors import FileFailure, MalformedData, OffsetMgrError, PlanError, TimedOut, UnknownVersion
from offsetmgr.core.model import Committed, GroupDescription, LogRange
from offsetmgr.core.offset_store import Capabilities, PartitionKinds
from offsetmgr.testing.memory import MemoryStore


def old(broker: int, partition: int) -> TopicPartition:
    return TopicPartition("t", BrokerPartition(broker, partition))


def new(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


def encoded(entries: Mapping[str, Any], **others: Any) -> bytes:
    document = {"offsetmgr_partition_map": 1, "confirmed_by": "anna", "topics": {"t": entries}, **others}
    return json.dumps(document).encode()


class Logs:
    """A cluster with topic ``t``: partition 0 has offsets 5 to 90, and the others do not respond.

    ``at`` maps times to offsets.
    """

    def __init__(self, at: Mapping[int, int | None] | None = None, partitions: int = 2) -> None:
        self.at, self.partitions = at or {}, partitions

    def cluster_id(self) -> str | None:
        return None

    def brokers(self) -> frozenset[str]:
        return frozenset({LOGS})

    def topics(self, names: Iterable[str] | None = None) -> Mapping[str, int]:
        return {name: self.partitions for name in names or () if name == "t"}

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        return {tp: LogRange(5, 90) if tp == new(0) else TimedOut(str(tp), "no answer") for tp in partitions}

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | OffsetMgrError | None]:
        return dict.fromkeys(partitions, self.at[timestamp_ms])

    def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        return {group: GroupDescription(group, "EMPTY") for group in groups}


class Old(MemoryStore):
    """A store of Kafka 0.7."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, partitions=PartitionKinds.OF_BROKERS)


class Plan:
    """A plan of group ``g`` from a store of Kafka 0.7 to one without byte positions."""

    def __init__(self, directory: Path, target: Mapping[TopicPartition, int] | None = None, logs: Any = None) -> None:
        self.path, self.logs = directory / "plan.json", logs
        self.source = Old("source")
        self.target = MemoryStore("target", data={"g": {tp: Committed(n) for tp, n in (target or {}).items()}})
        self.config = MigrationConfig(None if logs is None else LOGS)

    def make(self, source: Mapping[TopicPartition, int], map_: bytes | None) -> tuple[Any, ...]:
        """Plans the group, and returns its steps."""
        self.source.data["g"] = {tp: Committed(n) for tp, n in source.items()}
        path = None if map_ is None else self.path.with_name("m.json")
        if path is not None and map_ is not None:
            path.write_bytes(map_)
        in_memory(source=self.source, target=self.target)
        sides = "memory:source", "memory:target", self.path
        with logs_in_memory(self.logs), Migration.plan(*sides, partition_map=path, config=self.config) as migration:
            self.header = migration.header
            (group,) = migration.groups()
            return tuple(group.steps)

    def verify(self) -> Any:
        """The result of verify for the only partition."""
        with logs_in_memory(self.logs), Migration(self.path, self.config) as migration:
            return next(migration.verify())


def decisions(steps: tuple[Any, ...]) -> list[tuple[TopicPartition, str, int | None]]:
    return [(step.tp, step.action.value, step.after and step.after.offset) for step in steps]


# --- the file -----------------------------------------------------------------------------------------

LATEST = {"partition": 0, "start": "latest"}


def entry(name: str, partition: int, *table: list[int], **others: Any) -> bytes:
    return encoded({name: {"partition": partition, **({"table": list(table)} if table else {}), **others}})


@pytest.mark.parametrize("confirmed_by", ["", "  ", None, True])
def test_a_draft_without_confirmation_is_refused(tmp_path: Path, confirmed_by: object) -> None:
    with pytest.raises(PlanError, match=r"partition map .*m\.json: is a draft: it has not been confirmed"):
        Plan(tmp_path).make({}, encoded({"0-0": LATEST}, confirmed_by=confirmed_by))


@pytest.mark.parametrize("version", [2, "1", True, 1.0])
def test_an_unknown_version_is_named(tmp_path: Path, version: object) -> None:
    with pytest.raises(UnknownVersion, match=r"m\.json: version"):
        Plan(tmp_path).make({}, encoded({}, offsetmgr_partition_map=version))


def table(*rows: object, **others: str) -> dict[str, object]:
    return {"0-0": {"partition": 0, "table": list(rows), **others}}


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"0": LATEST}, "its 'topics.t.0' is not BROKER-PARTITION"),
        ({"0-0": {"start": "earliest"}}, "has no 'topics.t.0-0.partition'"),
        ({"0-0": {"partition": -1, "start": "earliest"}}, "is not a number between 0 and 2147483647"),
        ({"0-0": {"partition": True, "start": "earliest"}}, "'topics.t.0-0.partition' is not a number"),
        ({"0-0": {"partition": 0}}, 'needs either "start" or "table"'),
        ({"0-0": {**LATEST, "table": [[0, 0]]}}, 'needs either "start" or "table"'),
        ({"0-0": {"partition": 0, "start": "newest"}}, "'topics.t.0-0.start' is not earliest, latest"),
        ({"0-0": {"partition": 0, "start": 7}}, "'topics.t.0-0.start' is not earliest, latest"),
        ({"0-0": {"partition": 0, "start": {"time": "noon"}}}, "start.time' is 'noon', not a time"),
        ({"0-0": {"partition": 0, "start": {"time": "1969-01-01T00:00:00Z"}}}, "before 1970"),
        ({"0-0": {**LATEST, "between": "floor"}}, 'belongs to a "table"'),
        ({"0-0": {"partition": 0, "begin": "latest"}}, "its 'topics.t.0-0.begin' is an unknown field"),
        (table(), "table' is not a list"),
        (table([0, 0], [5]), "row 2 that is not [byte position, offset]"),
        (table([0, -1]), "row 1 that is not [byte position, offset]"),
        (table([9, 0], [9, 1]), "row 2 that is out of order"),
        (table([1, 5], [9, 5]), "row 2 that is out of order"),
        (table([0, 0], between="guess"), "between' is not refuse or floor"),
        ({"0-0": LATEST, "1-0": LATEST}, "its 'topics.t.1-0' becomes partition 0, and so does '0-0'"),
    ],
)
def test_an_invalid_entry_is_named(tmp_path: Path, entries: Mapping[str, Any], why: str) -> None:
    with pytest.raises(MalformedData) as caught:
        Plan(tmp_path).make({}, encoded(entries))
    assert caught.value.what == f"partition map {tmp_path}/m.json"
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
def test_a_file_that_is_no_map_is_reported(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(MalformedData) as caught:
        Plan(tmp_path).make({}, data)
    assert why in caught.value.why
    sides = f"file:{tmp_path}/from.zk", "memory:target", tmp_path / "plan.json"
    with pytest.raises(FileFailure, match="No such file"):
        Migration.plan(*sides, partition_map=tmp_path / "none.json")


KEYS = st.sampled_from(["partition", "start", "table", "time", "between", "0-0", "t"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda c: st.lists(c) | st.dictionaries(KEYS, c)
)


@given(entries=ANYTHING)
def test_arbitrary_entries_raise_only_typed_errors(tmp_path_factory: pytest.TempPathFactory, entries: Any) -> None:
    with pytest.raises(OffsetMgrError) as caught:  # of the map, or of the source, which has no groups
        Plan(tmp_path_factory.mktemp("map")).make({}, encoded(entries))
    assert caught.value.what.startswith(("partition map ", "nothing to plan in "))


# --- the table of positions -----------------------------------------------------------------------------

NOT_FOUND = 'byte 249 is not in the table (the entry before it: byte 100), and "between" does not say floor'


@pytest.mark.parametrize(
    ("floor", "position", "offset", "how"),
    [
        (False, 100, 7, "byte 100 is offset 7 in the table"),
        (True, 250, 9, "byte 250 is offset 9 in the table"),
        (False, 249, None, NOT_FOUND),
        (True, 249, 7, "floor: byte 249 is after byte 100, offset 7 in the table"),
        (True, 10**12, 9, f"floor: byte {10**12} is after byte 250, offset 9 in the table"),
        (True, 99, None, "byte 99 is before the table's first entry, byte 100"),
    ],
)
def test_a_position_is_translated_if_the_table_has_it_or_the_map_declares_floor(tmp_path, floor, position, offset, how):
    map_ = entry("1-0", 3, [100, 7], [250, 9], **({"between": "floor"} if floor else {}))
    (step,) = Plan(tmp_path).make({old(1, 0): position}, map_)
    if offset is None:
        assert decisions((step,)) == [(old(1, 0), "refuse-byte-position", None)]
        assert how in step.note
    else:
        assert decisions((step,)) == [(new(3), "copy", offset)]
        assert step.note == f"from 1-0: {how}"


@given(positions=st.sets(st.integers(0, 1000), min_size=1, max_size=30), requested=st.integers(0, 1100))
def test_the_floor_is_the_result_of_a_linear_search(tmp_path_factory, positions, requested):
    rows = [[position, 3 * n] for n, position in enumerate(sorted(positions))]
    before = [offset for position, offset in rows if position <= requested]
    map_ = entry("1-0", 0, *rows, between="floor")
    ((_, _, found),) = decisions(Plan(tmp_path_factory.mktemp("floor")).make({old(1, 0): requested}, map_))
    assert found == (before[-1] if before else None)


# --- plans with a map -----------------------------------------------------------------------------------

TABLE = entry("1-0", 3, [1024, 17])


@pytest.mark.parametrize(
    ("position", "map_", "why"),
    [
        (1024, None, "a byte position of Kafka 0.7 is not an offset: --partition-map defines its replacement"),
        (1025, TABLE, "byte 1025 is not in the table"),
        (1, encoded({"1-1": LATEST}), "the partition map does not name this partition"),
        (1024, entry("1-0", 0, start="earliest"), "no Kafka cluster is given"),
    ],
)
def test_a_position_without_a_translation_is_refused_with_the_reason(tmp_path, position, map_, why):
    (step,) = Plan(tmp_path).make({old(1, 0): position}, map_)
    assert decisions((step,)) == [(old(1, 0), "refuse-byte-position", None)]
    assert (step.source, step.target) == (OffsetAndMetadata(position), None)
    assert why in step.note


@pytest.mark.parametrize(
    ("start", "offset", "how"),
    [
        ("earliest", 5, "earliest: offset 5 when the plan was made, chosen for byte 1024"),
        ("latest", 90, "latest: offset 90 when the plan was made, chosen for byte 1024"),
        (
            *({"time": "2013-05-01T12:00:00Z"}, 40),
            "time 2013-05-01T12:00:00.000Z: offset 40 is the first message from then on, chosen for byte 1024",
        ),
        (
            *({"time": "2030-01-01T00:00:00Z"}, 90),
            "time 2030-01-01T00:00:00.000Z: no message from then on, so the log end, offset 90, chosen for byte 1024",
        ),
    ],
)
def test_a_starting_point_becomes_an_offset_when_the_plan_is_made(tmp_path, start, offset, how):
    logs = Logs({1_367_409_600_000: 40, 1_893_456_000_000: None})
    map_ = entry("1-0", 0, start=start, seen={"groups": 3})
    (step,) = Plan(tmp_path, logs=logs).make({old(1, 0): 1024}, map_)
    assert decisions((step,)) == [(new(0), "copy", offset)]
    assert step.note == f"from 1-0: {how}"


@pytest.mark.parametrize(
    ("map_", "action", "why"),
    [
        (entry("1-0", 1, start="earliest"), "refuse-byte-position", "its starting point is unknown: t-1: no answer"),
        (entry("1-0", 9, start="earliest"), "refuse-byte-position", "does not exist"),
        (entry("1-0", 0, [1024, 91]), "refuse-out-of-range", ""),
    ],
)
def test_an_unknown_starting_point_and_an_offset_outside_the_log_are_refused(tmp_path, map_, action, why):
    (step,) = Plan(tmp_path, logs=Logs()).make({old(1, 0): 1024}, map_)
    assert (step.action.value, step.after) == (action, None)
    assert why in step.note


def test_offsets_in_the_target_are_compared_with_translated_offsets(tmp_path: Path) -> None:
    map_ = encoded({"1-0": {"partition": 0, "table": [[1024, 17]]}, "1-1": {"partition": 1, "table": [[5, 5]]}})
    plan = Plan(tmp_path, {new(0): 20, new(1): 5, new(2): 8})
    steps = plan.make({old(1, 0): 1024, old(1, 1): 5}, map_)
    assert decisions(steps) == [(new(0), "refuse-rewind", None), (new(1), "skip-equal", 5), (new(2), "target-only", 8)]
    assert "--if-ahead keep accepts it" in steps[0].note


def test_a_partition_for_which_the_source_has_an_offset_too_is_refused(tmp_path: Path) -> None:
    map_ = entry("1-0", 0, [1024, 17])
    first, second = Plan(tmp_path).make({old(1, 0): 1024, new(0): 3}, map_)
    assert decisions((first, second)) == [(old(1, 0), "refuse-byte-position", None), (new(0), "copy", 3)]
    assert "for which the source holds an offset too" in first.note


def test_the_plan_file_keeps_the_maps_hash_and_the_origin_of_each_offset(tmp_path: Path) -> None:
    plan = Plan(tmp_path)
    refused, copied = plan.make({old(1, 0): 1024, old(1, 1): 9}, TABLE)
    assert (plan.header.version, plan.header.partition_map.confirmed_by) == (4, "anna")  # type: ignore[union-attr]
    how = "byte 1024 is offset 17 in the table"
    origin = copied.origin
    assert (copied.source_tp, origin.partition, origin.how, origin.evidence) == (
        *(old(1, 0), BrokerPartition(1, 0), how, "inferred"),
    )
    document = json.loads(plan.path.read_text())
    assert document["offsetmgr_plan"] == 4
    sha256 = hashlib.sha256(TABLE).hexdigest()
    assert document["header"]["partition_map"] == {"sha256": sha256, "confirmed_by": "anna"}
    assert document["groups"][0]["topics"]["t"] == [
        {"p": "1-1", "action": "refuse-byte-position", "source": 9, "note": refused.note},
        {"p": 3, "action": "copy", "source": 1024, "after": 17, "note": f"from 1-0: {how}"}
        | {"origin": {"partition": "1-0", "how": how, "evidence": "inferred"}},
    ]


@pytest.mark.parametrize(
    ("there", "here", "status", "evidence"),
    [
        (1024, 17, "equal", "inferred"),
        (1024, 20, "progress", "inferred"),
        (1024, 16, "behind", "seen"),
        (1024, None, "missing", "seen"),
        (1024, 91, "beyond-log-end", "seen"),
        (1025, 17, "source-ahead", "seen"),
        (1025, 20, "source-ahead", "seen"),
        (18, 17, "source-rewound", "seen"),
        (None, 17, "source-gone", "inferred"),
    ],
)
def test_verify_compares_a_byte_position_with_the_one_in_the_plan_and_never_with_an_offset(
    tmp_path: Path, there: int | None, here: int | None, status: str, evidence: str
) -> None:
    plan = Plan(tmp_path, logs=Logs())
    plan.make({old(1, 0): 1024}, entry("1-0", 0, [1024, 17]))
    plan.source.data["g"] = {} if there is None else {old(1, 0): Committed(there)}
    if here is not None:
        plan.target.data["g"] = {new(0): Committed(here)}
    found = plan.verify()
    assert (found.status.value, found.evidence.value) == (status, evidence)
    refused = Plan(tmp_path / "refused", logs=Logs())
    refused.path.parent.mkdir()
    refused.make({old(1, 0): 91}, entry("1-0", 0, [91, 91]))
    refused.target.data["g"] = {new(0): Committed(91)}
    assert refused.verify().status.value == "refused"  # it is not equal to an offset of the same number


# --- the draft ----------------------------------------------------------------------------------------


def test_a_draft_lists_the_found_partitions_and_must_be_confirmed(tmp_path: Path) -> None:
    path, source = tmp_path / "map.json", Old("source")
    for group, low in (("a", 100), ("b", 70)):
        source.data[group] = {old(1, 0): Committed(low), old(0, 1): Committed(7), new(5): Committed(1)}
    in_memory(source=source, target=MemoryStore("target"))
    draft = ("migrate", "plan", "--from", "memory:source", "--to", "memory:target", "--all-groups")
    with logs_in_memory(Logs(partitions=3)):
        command(*draft, "--draft-partition-map", path, "--bootstrap-server", LOGS)
    (tmp_path / "waves").write_text("group,wave\na,1\n")
    in_waves = ("--waves", tmp_path / "waves", "--draft-partition-map", tmp_path / "wave.json")
    command(*draft[:-1], *in_waves)
    in_wave = json.loads((tmp_path / "wave.json").read_text())["topics"]["t"]
    assert {one["seen"]["groups"] for one in in_wave.values()} == {1}
    source.broken = {one: TimedOut(f"group {one[0]}", "no answer") for one in ("a", ("b", old(0, 1)))}
    shown = command(*draft, "--draft-partition-map", tmp_path / "rest.json", code=1).stderr
    assert ("group a: no answer" in shown, "group b: no answer" in shown) == (True, True)
    rest = json.loads((tmp_path / "rest.json").read_text())["topics"]["t"]
    assert {name: one["seen"]["groups"] for name, one in rest.items()} == {"1-0": 1}
    document = json.loads(path.read_text())
    seen = [{"groups": 2, "lowest_byte": low, "highest_byte": high} for low, high in ((7, 7), (70, 100))]
    assert document["topics"]["t"] == {
        "0-1": {"partition": 0, "start": "earliest", "seen": seen[0]},
        "1-0": {"partition": 1, "start": "earliest", "seen": seen[1]},
    }
    assert document["read_this"][1:] == ["t: 2 partitions in 0.7, 3 in the Kafka cluster"]
    plan = Plan(tmp_path, logs=Logs())
    with pytest.raises(PlanError, match="it has not been confirmed"):
        plan.make({old(0, 1): 7}, path.read_bytes())
    steps = plan.make({old(0, 1): 7}, json.dumps({**document, "confirmed_by": "anna"}).encode())
    assert decisions(steps) == [(new(0), "copy", 5)]
    before = path.read_bytes()
    assert "exists already" in command(*draft, "--draft-partition-map", path, code=1).stderr
    assert path.read_bytes() == before


def test_a_source_without_byte_positions_needs_no_map(tmp_path: Path) -> None:
    in_memory(source=MemoryStore("source", data={"g": {new(0): Committed(1)}}), target=MemoryStore("target"))
    draft = ("migrate", "plan", "--from", "memory:source", "--to", "memory:target", "--all-groups")
    shown = command(*draft, "--draft-partition-map", tmp_path / "map.json", code=1).stderr
    assert "no group in memory:source holds a byte position" in shown


# --- between stores of Kafka 0.7 ------------------------------------------------------------------------


def test_byte_positions_are_copied_unchanged_without_a_request_for_log_ranges(tmp_path: Path) -> None:
    plan = Plan(tmp_path, logs=Logs())
    plan.target = Old("target", data={"g": {}})
    assert decisions(plan.make({old(1, 0): 1024}, None)) == [(old(1, 0), "copy", 1024)]


def test_an_offset_cannot_be_copied_to_a_store_of_byte_positions(tmp_path: Path) -> None:
    in_memory(source=MemoryStore("source", data={"g": {new(0): Committed(5)}}), target=Old("target"))
    with Migration.plan("memory:source", "memory:target", tmp_path / "plan.json") as migration:
        (group,) = migration.groups()
    assert decisions(group.steps) == [(new(0), "refuse-unsupported-target", None)]
    assert group.steps[0].note == "memory:target keeps byte positions of Kafka 0.7, and this is an offset"
