"""Commit metadata: an edit that leaves the offset keeps it, and an edit that drops it names its form and number."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from pathlib import Path
from typing import ClassVar

import pytest
from one_migration import ORDERS, Migration, commit
from processes import run_command

from offsetmgr.cli.scenario import ScenarioOptions, scenario_of
from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.commit_metadata import form_of
from offsetmgr.core.model import Committed, LogRange, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Capabilities, GroupOffsets
from offsetmgr.groups.edit_plan import EditPlan
from offsetmgr.groups.log_checks import LogChecks
from offsetmgr.groups.reset import plan_set
from offsetmgr.groups.saved_edit import EditOrigin, execute_saved
from offsetmgr.groups.selection import ALL_TOPICS
from offsetmgr.migration.journal import journal_path
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.snapshots.base import GroupEntry, SnapshotHeader
from offsetmgr.spark.store_rows import write_rows
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.stores.dual import DualStore
from offsetmgr.stores.snapshot import SnapshotStore, write_snapshot
from offsetmgr.testing.memory import MemoryStore

PARALLEL = b64encode(b"l\0\0\0\x12 bits of records").decode()
STREAMS = b64encode(struct.pack(">bq", 2, 1_762_000_000_000) + b"\0\0\0\0").decode()
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
HELD = {T0: (42, PARALLEL), T1: (42, STREAMS), T2: (7, "by hand")}


def save(path: Path, offsets: dict[TopicPartition, tuple[int, str]]) -> str:
    found = {tp: Committed(*value) for tp, value in offsets.items()}
    write_snapshot(path, SnapshotHeader.new(), [GroupEntry("g", found)])
    return f"file:{path}"


def held(store: str) -> dict[TopicPartition, tuple[int, str]]:
    found = SnapshotStore(Path(store.removeprefix("file:"))).fetch("g")
    return {tp: (one.offset, one.metadata) for tp, one in found.items() if isinstance(one, Committed)}


@pytest.mark.parametrize(
    ("metadata", "form"),
    [
        (PARALLEL, "parallel-consumer's encoding"),
        (b64encode(b"\xee" + bytes(20)).decode(), "parallel-consumer's encoding"),
        (STREAMS, "Kafka Streams' timestamp"),
        (b64encode(struct.pack(">bq", 1, -1)).decode(), "Kafka Streams' timestamp"),
        (b64encode(struct.pack(">bqb", 1, 5, 5)).decode(), "a client's own text"),
        ("checked by hand", "a client's own text"),
        ('{"topologyId":"t-1"}', "a client's own text"),
    ],
)
def test_the_form_of_metadata_is_recognised(metadata: str, form: str) -> None:
    assert form_of(metadata) == form


@pytest.mark.parametrize(
    ("edit", "after", "warning"),
    [
        (["set", "--topic", "t:0", "--to-offset", "42"], HELD, None),
        (
            ["set", "--topic", "t:0", "--to-offset", "42", "--metadata", ""],
            HELD | {T0: (42, "")},
            "1 offset (parallel-consumer's encoding)",
        ),
        (["set", "--topic", "t:0", "--to-offset", "42", "--metadata", "new"], HELD | {T0: (42, "new")}, None),
        (
            ["set", "--topic", "t", "--to-offset", "43"],
            {T0: (43, ""), T1: (43, ""), T2: (43, "")},
            "3 offsets (1 parallel-consumer's encoding, 1 Kafka Streams' timestamp, 1 a client's own text)",
        ),
        (["import", "equal.csv"], HELD, None),
        (["import", "other.csv"], HELD | {T1: (50, "")}, "1 offset (Kafka Streams' timestamp)"),
        (
            ["import", "exact.avro"],
            HELD | {T0: (42, ""), T1: (50, "own")},
            "1 offset (parallel-consumer's encoding)",
        ),
    ],
)
def test_an_edit_keeps_the_metadata_of_an_offset_that_stays_and_counts_what_it_drops(
    edit: list[str], after: dict[TopicPartition, tuple[int, str]], warning: str | None, tmp_path: Path
) -> None:
    store = save(tmp_path / "store.avro", HELD)
    save(tmp_path / "equal.csv", {T0: (42, ""), T2: (7, "")})
    save(tmp_path / "other.csv", {T0: (42, ""), T1: (50, "")})
    save(tmp_path / "exact.avro", {T0: (42, ""), T1: (50, "own")})
    group = ["--group", "g"] if edit[0] == "set" else []

    done = run_command("offsets", *edit, *group, "--store", store, "--execute", "--yes", cwd=tmp_path)

    assert held(store) == after
    drops = [line for line in done.stderr.splitlines() if "drops" in line]
    assert drops == ([] if warning is None else [f"warning: the edit drops the metadata of {warning}"])
    if (undo := [line.split()[4] for line in done.stderr.splitlines() if line.startswith("undo: ")]) != []:
        run_command("offsets", "import", *undo, "--store", store, "--execute", "--yes", cwd=tmp_path)
    assert held(store) == HELD


def test_a_store_or_a_file_that_cannot_hold_metadata_is_reported(tmp_path: Path) -> None:
    store = save(tmp_path / "store.avro", HELD)
    save(tmp_path / "old.csv", {T0: (1, "")})
    copied = run_command("offsets", "import", "store.avro", "--store", "file:old.csv", "--format", "json", cwd=tmp_path)

    forms = "1 parallel-consumer's encoding, 1 Kafka Streams' timestamp, 1 a client's own text"
    assert f"warning: the edit drops the metadata of 3 offsets ({forms})" in copied.stderr
    assert json.loads(copied.stdout)[0]["note"] == "drops parallel-consumer's encoding"
    saved = run_command("offsets", "export", "saved.csv", "--all-groups", "--store", store, cwd=tmp_path)
    assert f"metadata of 3 offsets ({forms})" in saved.stderr


def test_a_reset_to_the_offsets_of_a_file_names_the_metadata_that_it_does_not_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(tmp_path / "saved.avro", HELD | {T2: (7, "")}).removeprefix("file:")
    for group, warning in (("g", "the metadata of 2 offsets (1 parallel-consumer's encoding, 1 Kafka"), ("other", "")):
        scenario_of(ScenarioOptions(from_file=file), [group], lambda saved: CrossClusterCheck(saved, MemoryStore()))
        said = capsys.readouterr().err
        assert ("a reset does not write" in said, warning in said) == (warning != "", True)


def test_a_clamped_offset_has_no_metadata_of_another_number() -> None:
    checks = LogChecks(lambda partitions: dict.fromkeys(partitions, LogRange(50, 90)))
    store = MemoryStore()
    assert list(checks.loaded([GroupOffsets("g", {T0: Committed(42)})], ALL_TOPICS))

    clamped, note, error = checks.clamped(T0, Committed(42, PARALLEL, 3), None, store.capabilities)

    assert (clamped, error) == (Committed(50), None)
    assert note == "clamped from 42 to the log's start; drops parallel-consumer's encoding"


def test_a_store_of_a_pair_that_has_the_new_offset_already_keeps_its_metadata(tmp_path: Path) -> None:
    first, second = MemoryStore("first"), MemoryStore("second")
    first.commit("g", {T0: OffsetAndMetadata(40, PARALLEL)})
    second.commit("g", {T0: OffsetAndMetadata(42)})
    pair = DualStore(first, second)
    with EditPlan.of([plan_set(pair, "g", lambda _committed: {T0: OffsetAndMetadata(40)})]) as plan:
        (result,) = execute_saved(pair, plan, tmp_path / "images.avro", EditOrigin("offsets set")).results

    assert result.outcomes[T0].error is None
    assert (first.data["g"][T0], second.data["g"][T0].offset) == (Committed(40, PARALLEL, version=0), 40)


class WithoutMetadata(MemoryStore):
    capabilities: ClassVar[Capabilities] = Capabilities(
        metadata=False, leader_epoch=False, commit_timestamp=False, conditional="version"
    )


def test_a_plan_counts_the_metadata_that_the_target_cannot_hold_or_that_it_overwrites(tmp_path: Path) -> None:
    migration = Migration(tmp_path, target=WithoutMetadata("target"))
    migration.source.commit("g", {ORDERS[0]: OffsetAndMetadata(9, PARALLEL), ORDERS[1]: OffsetAndMetadata(9)})
    plan = migration.plan()
    (group,) = plan.groups()
    assert [step.note for step in group.steps] == ["drops parallel-consumer's encoding", ""]
    assert PlanFile(plan.path).summary.dropped == {"parallel-consumer's encoding": 1}
    assert migration.apply().ok
    plan.path.unlink()
    journal_path(plan.path).unlink()
    assert migration.plan().summary.dropped == {"parallel-consumer's encoding": 1}  # equal now, still without it

    migration = Migration(tmp_path / "equal")
    migration.directory.mkdir()
    migration.source.commit("g", {ORDERS[n]: OffsetAndMetadata(9, PARALLEL) for n in (0, 1)})
    migration.target.commit("g", {ORDERS[0]: OffsetAndMetadata(9, PARALLEL), ORDERS[1]: OffsetAndMetadata(9, STREAMS)})
    assert migration.plan().summary.dropped == {"parallel-consumer's encoding": 1}

    migration = Migration(tmp_path / "back")
    migration.directory.mkdir()
    commit(migration.source, "g", 9, 9)
    migration.target.commit("g", {ORDERS[0]: OffsetAndMetadata(9, STREAMS), ORDERS[1]: OffsetAndMetadata(8, STREAMS)})
    assert migration.plan().summary.dropped == {"Kafka Streams' timestamp": 1}
    assert migration.apply().ok
    assert [found.metadata for found in migration.target.data["g"].values()] == [STREAMS, ""]


def test_rows_of_a_table_without_metadata_keep_the_metadata_of_the_same_offset(tmp_path: Path) -> None:
    store = save(tmp_path / "store.avro", HELD)
    rows = [{"group": "g", "topic": "t", "partition": 0, "offset": 42}]
    rows += [{"group": "g", "topic": "t", "partition": 1, "offset": 43, "metadata": None}]

    outcomes = [(row.partition, row.status) for row in write_rows(rows, store, ConnectionConfig())]

    assert outcomes == [(0, "unchanged"), (1, "written")]
    assert held(store) == HELD | {T1: (43, "")}
