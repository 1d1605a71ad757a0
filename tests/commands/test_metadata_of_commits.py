"""Commit metadata: an edit that leaves the offset keeps it, and an edit that drops it names its form and number."""

import struct
from base64 import b64encode
from pathlib import Path
from typing import ClassVar

import pytest
from in_process import command, rows
from memory_stores import LOGS, OneLog, in_memory, logs_in_memory
from one_migration import ORDERS, Migration, commit

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.core.model import Committed, LogRange
from offsetmgr.core.offset_store import Capabilities
from offsetmgr.testing.memory import MemoryStore

PARALLEL = b64encode(b"l\0\0\0\x12 bits of records").decode()
STREAMS = b64encode(struct.pack(">bq", 2, 1_762_000_000_000) + b"\0\0\0\0").decode()
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
HELD = {T0: (42, PARALLEL), T1: (42, STREAMS), T2: (7, "by hand")}
DO = ("--execute", "--yes")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def save(name: str, offsets: dict[TopicPartition, tuple[int, str]]) -> str:
    if not name.endswith(".avro"):
        Path(name).write_text("".join(f"g,{tp.topic},{tp.partition},{value[0]}\n" for tp, value in offsets.items()))
    else:
        with open_store(f"file:{name}") as store:
            store.commit("g", {tp: OffsetAndMetadata(*value) for tp, value in offsets.items()})
    return f"file:{name}"


def held(store: str) -> dict[TopicPartition, tuple[int, str]]:
    with open_store(store) as opened:
        return {tp: (one.offset, one.metadata) for tp, one in opened.fetch("g").items() if isinstance(one, Committed)}


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
    in_memory(store=MemoryStore("store", data={"g": {T0: Committed(42, metadata)}}))
    edit = ("offsets", "set", "-g", "g", "--topic", "t:0", "--to-offset", "43", "--store", "memory:store")
    (row,) = rows(*edit)
    assert row["note"] == f"drops {form}"


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
        (["import", "exact.avro"], HELD | {T0: (42, ""), T1: (50, "own")}, "1 offset (parallel-consumer's encoding)"),
    ],
)
def test_an_edit_keeps_the_metadata_of_an_offset_that_stays_and_counts_what_it_drops(edit, after, warning) -> None:
    store = save("store.avro", HELD)
    save("equal.csv", {T0: (42, ""), T2: (7, "")})
    save("other.csv", {T0: (42, ""), T1: (50, "")})
    save("exact.avro", {T0: (42, ""), T1: (50, "own")})
    group = ["--group", "g"] if edit[0] == "set" else []
    done = command("offsets", *edit, *group, "--store", store, *DO)
    assert held(store) == after
    drops = [line for line in done.stderr.splitlines() if "drops" in line]
    assert drops == ([] if warning is None else [f"warning: the edit drops the metadata of {warning}"])
    if (undo := [line.split()[4] for line in done.stderr.splitlines() if line.startswith("undo: ")]) != []:
        command("offsets", "import", *undo, "--store", store, *DO)
    assert held(store) == HELD


def test_a_store_or_a_file_that_cannot_hold_metadata_is_reported() -> None:
    store, old = save("store.avro", HELD), save("old.csv", {T0: (1, "")})
    forms = "1 parallel-consumer's encoding, 1 Kafka Streams' timestamp, 1 a client's own text"
    copied = ("offsets", "import", "store.avro", "--store", old)
    assert f"warning: the edit drops the metadata of 3 offsets ({forms})" in command(*copied).stderr
    assert rows(*copied)[0]["note"] == "drops parallel-consumer's encoding"
    saved = command("offsets", "export", "saved.csv", "--all-groups", "--store", store)
    assert f"metadata of 3 offsets ({forms})" in saved.stderr


@pytest.mark.parametrize(
    ("group", "warning"),
    [("g", "does not write the metadata of 2 offsets (1 parallel-consumer's encoding, 1 Kafka"), ("other", None)],
)
def test_a_reset_to_the_offsets_of_a_file_names_the_metadata_that_it_does_not_write(group: str, warning) -> None:
    save("saved.avro", HELD | {T2: (7, "")})
    in_memory(store=MemoryStore("store", data={name: {T0: Committed(42)} for name in ("g", "other")}))
    reset = ("offsets", "reset", "-g", group, "--all-topics", "--from-file", "saved.avro", "--store", "memory:store")
    with logs_in_memory(OneLog(LogRange(0, 90))):
        said = command(*reset, "--bootstrap-server", LOGS, code=None).stderr
    assert warning in said if warning else "does not write" not in said


def test_a_store_of_a_pair_that_has_the_new_offset_already_keeps_its_metadata() -> None:
    first = MemoryStore("first", data={"g": {T0: Committed(40, PARALLEL)}})
    second = MemoryStore("second", data={"g": {T0: Committed(42)}})
    in_memory(first=first, second=second)
    pair = "dual:?primary=memory%3Afirst&secondary=memory%3Asecond"
    command("offsets", "set", "-g", "g", "--topic", "t:0", "--to-offset", "40", "--store", pair, *DO)
    assert (first.data["g"][T0].metadata, second.data["g"][T0].offset) == (PARALLEL, 40)


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
    assert plan.summary.dropped == {"parallel-consumer's encoding": 1}
    assert migration.apply().ok
    migration.name = "again.json"
    assert migration.plan().summary.dropped == {"parallel-consumer's encoding": 1}  # equal now, still without it
    migration = Migration(tmp_path / "equal")
    migration.source.commit("g", {ORDERS[n]: OffsetAndMetadata(9, PARALLEL) for n in (0, 1)})
    migration.target.commit("g", {ORDERS[0]: OffsetAndMetadata(9, PARALLEL), ORDERS[1]: OffsetAndMetadata(9, STREAMS)})
    assert migration.plan().summary.dropped == {"parallel-consumer's encoding": 1}
    migration = Migration(tmp_path / "back")
    commit(migration.source, "g", 9, 9)
    migration.target.commit("g", {ORDERS[0]: OffsetAndMetadata(9, STREAMS), ORDERS[1]: OffsetAndMetadata(8, STREAMS)})
    assert migration.plan().summary.dropped == {"Kafka Streams' timestamp": 1}
    assert migration.apply().ok
    assert [found.metadata for found in migration.target.data["g"].values()] == [STREAMS, ""]
