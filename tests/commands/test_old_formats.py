"""Files and znodes that release 0.1 wrote are read: before-images, the operation log, the nodes of periods, and smaller
files. `zk check` names the nodes of switches. The files in tests/data/formats never change."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from in_process import command, rows

from offsetmgr.app.offset_admin import OffsetAdmin
from offsetmgr.core.errors import NotAuthorized
from offsetmgr.manager.assignment import decode_assignment, decode_metadata
from offsetmgr.records.claim import CLAIM_KEY, FENCE_KEY, decode_claim
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession

OLD = Path(__file__).parents[1] / "data" / "formats" / "0.1"
IMAGES = OLD / "offsetmgr" / "before-images"
"""The state directory of the account anna on the host h1. It was /var/lib/offsetmgr."""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the state directory, which is also the working directory. The log has relative paths."""
    state = tmp_path / "offsetmgr"
    shutil.copytree(OLD / "offsetmgr", state)
    log = state / "operations.jsonl"
    log.write_text(log.read_text().replace("/var/lib/offsetmgr/", ""))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(state)
    return state


def test_old_operations_are_listed(state: Path) -> None:
    found = rows("edits", "list")
    names = ("operation", "outcome", "written", "group", "undone_by", "reason")
    assert [tuple(row[name] for name in names) for row in found] == [
        ("offsets set", "done", 1, "shop", "20261128-142130-c45a", "replay of Monday"),
        ("offsets import undo", "done", 1, "shop", None, "undo of 20261128-142130-4421"),
        ("offsets set", "done", 3, "shop", None, "skip the broken batch"),
        ("offsets delete", "done", 2, "audit", None, None),
        ("offsets import", "failed", 1, "shop", None, None),
        ("offsets set", "done", 2, "billing", None, None),
        ("offsets delete", "done", 1, "billing", None, None),
        ("offsets set", "done", 1, "legacy", None, None),
        ("migrate mirror", "unknown", None, "web", None, None),
        ("migrate mirror", "interrupted", 0, "web", None, None),
        ("period rerun", "done", 0, None, None, None),
        ("period rerun", "done", 0, None, None, "wrong tax rate"),
        ("period abort", "done", 0, None, None, "wrong topic"),
    ]
    (shown,) = rows("edits", "show", "20261128-142130-40b9")
    image = "before-images/20261128T142130.643Z-offsets-import-8767.avro"
    assert shown == {
        **{"id": "20261128-142130-40b9", "operation": "offsets import", "outcome": "failed", "user": "anna"},
        **{"at_ms": 1795875690643, "ended_ms": 1795875690690, "host": "h1", "reason": None},
        "command": "offsetmgr offsets import later.csv --store file:offsets.avro --unchecked --execute --yes",
        **{"stores": "file:offsets.avro", "groups": "shop", "changes": 1, "written": 1, "failed": 1, "files": image},
        "undo": f"offsetmgr offsets import {image} --store file:offsets.avro",
        **{"undoes": None, "undone_by": None},
    }
    (undo,) = rows("edits", "show", "20261128-142130-c45a")
    assert undo["undoes"] == "20261128-142130-4421"


def committed(file: Path, group: str) -> list[tuple[Any, ...]]:
    found = rows("offsets", "get", "--store", f"file:{file}", "--group", group)
    names = ("topic", "partition", "offset", "metadata", "leader_epoch", "commit_timestamp")
    return [tuple(row[name] for name in names) for row in found]


def test_old_edits_are_undone(state: Path) -> None:
    for operation in ("40b9", "250c", "999b"):
        command("edits", "undo", f"20261128-142130-{operation}", "--execute", "--yes")
    assert committed(state / "offsets.avro", "shop") == [
        ("orders", 0, 11, "batch 7", 3, None),
        ("orders", 1, 20, "", None, 1795875689631),
        ("payments", 0, 31, "", 2, None),
    ]
    assert committed(state / "offsets.avro", "audit") == [
        ("orders", 0, 5, "", None, 1795875689639),
        ("orders", 2, 10, "batch 1", 4, None),
    ]


IN_KAFKA = [("orders", 0, 40, "batch 9", None, None), ("orders", 1, 41, "", None, None)]


@pytest.mark.parametrize(
    ("name", "group", "before", "after"),
    [
        ("142130.802Z-offsets-set-8767", "billing", [("orders", 0, 40, "", None, 1795875689645)], [50]),
        ("142130.869Z-offsets-delete-8767", "billing", [("orders", 1, 41, "", None, 1795875689645)], []),
        ("142130.945Z-offsets-set-8767", "legacy", [("events", "1-0", 1000, "", None, 1795875690926)], [2000]),
        ("142132.675Z-migrate-mirror-9138", "web", [("orders", 0, 1, "", None, None)], [40]),
        ("183014.828Z-offsets-set-1073", "stock", IN_KAFKA, [60, 60]),
        ("183015.079Z-offsets-set-1073.primary", "both", IN_KAFKA, [60, 60]),
        (
            "183015.079Z-offsets-set-1073.secondary",
            "both",
            [("orders", 0, 40, "", None, 1795890615002), ("orders", 1, 41, "", None, 1795890615002)],
            [60, 60],
        ),
    ],
)
def test_old_before_images_of_servers_hold_the_values_before_and_after_the_edit(name, group, before, after, state):
    """The last three are of an edit of Kafka, and of one edit of a ``dual:`` store. The undo compares the values after
    the edit with those of a store without the group."""
    image = IMAGES / f"20261128T{name}.avro"
    assert committed(image, group) == before
    undo = ("offsets", "import", str(image), "--store", "file:offsets.avro", "--translate", "none")
    notes = [row["note"] for row in rows(*undo, code=1 if after else 0)]
    changed = [note for note in notes if note is not None and "has changed since" in note]
    assert changed == [f"refused: has changed since: absent now, the edit wrote {offset}" for offset in after]


def test_the_header_of_old_before_images_names_the_cluster_and_its_topics() -> None:
    with OffsetAdmin(f"file:{IMAGES}/20261128T142130.802Z-offsets-set-8767.avro") as admin:
        store = admin.store
        assert store.identity().id == "589fe801-07bf-43fd-9fac-149c9f10ab45"
        assert store.log_origin().cluster_id == "b2Zmc2V0bWdyLWdvbGRlbg"
        assert store.topic_ids() == {"orders": "b2Zmc2V0bWdyLXRvcGlj0Q"}


def plant(monkeypatch: pytest.MonkeyPatch, name: str, *more: str, hidden: str = "") -> None:
    """Lets sessions read the nodes in a file of paths and texts, and ``more`` empty nodes. ``hidden`` is a node that
    they cannot list. The id of the transaction that created a node is the position of the node in the file."""
    texts: dict[str, str] = json.loads((OLD / name).read_text()) | dict.fromkeys(more, "")
    nodes = {path: NodeData(text.encode(), n, 0, 0, 0, 0) for n, (path, text) in enumerate(texts.items())}

    def listed(path: str) -> list[str] | NotAuthorized:
        if path == hidden:
            return NotAuthorized(f"ZooKeeper node {path}", "the ACL forbids it")
        return [at.rpartition("/")[2] for at in nodes if at.rpartition("/")[0] == path]

    def get_many(_: ZookeeperSession, paths: Sequence[str]) -> list[Any]:
        return [nodes.get(path) for path in paths]

    def children_many(_: ZookeeperSession, paths: Sequence[str]) -> list[Any]:
        return [listed(path) for path in paths]

    monkeypatch.setattr(ZookeeperSession, "get_many", get_many)
    monkeypatch.setattr(ZookeeperSession, "children_many", children_many)


PERIODS = "/shop/periods/daily"


def test_an_old_run_of_periods_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "period-nodes.json")
    servers = ("--zookeeper", "h1:2181", "--root")
    names = ("partition", "state", "owner", "host", "process", "last_finished")
    assert [tuple(row[name] for name in names) for row in rows("period", "status", *servers, PERIODS)] == [
        (0, "holds", "m2", "h1", 8767, 0),
        (0, "finished", "m1", "h1", 8767, 2),
        (1, "finished", "m1", "h1", 8767, 2),
        (2, "finished", "m2", "h1", 8767, 2),
        (3, "idle", None, None, None, 2),
    ]
    shown = command("period", "status", *servers, PERIODS).stderr
    assert "rerun, period 2, 2023-11-15T00:00:00.000Z to 2023-11-15T12:00:00.000Z; leader: m1; 2 live members" in shown
    shown = command("period", "status", *servers, f"{PERIODS}/reruns/june").stderr
    assert "the run has ended: its last period is closed: the rerun is done" in shown
    columns = ("period", "state", "member", "job", "first_offset", "end_offset", "attempts", "output")
    assert [tuple(row[name] for name in columns) for row in rows("period", "history", *servers, PERIODS)] == [
        (0, "finished", "m2", None, 0, 30, None, None),
        (0, "idle", "m1", None, None, None, None, None),
        (0, "published", "m1", "daily-totals", 0, 50, 2, "s3://shop/totals/0/1"),
        (0, "published", "m1", "daily-totals", 0, 40, 2, "s3://shop/totals/0/1"),
        (0, "fixed", "m2", "late-orders", 3, 8, 0, None),
        (1, "abandoned", None, None, None, None, None, None),
        (2, "under way", "m1", "daily-totals", 0, 50, 1, None),
        (2, "under way", "m1", "daily-totals", 0, 40, 1, None),
    ]


def test_zk_check_names_the_nodes_of_old_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "switched-nodes.json", "/offsetmgr/groups/other", "/offsetmgr/groups/other/lock")
    (found,) = rows("zk", "check", "--all-groups", "--settle", "0", "--zookeeper", "h1:2181", code=1)
    assert (found["severity"], found["code"], found["path"]) == ("unknown", "unrecognised", "/offsetmgr/groups")
    assert "holds the storage mode of 2 groups (invoices, payroll), which migrate switch of" in found["finding"]
    commands = "; ".join(f"zookeeper-shell.sh h1:2181 deleteall {found['path']}/{n}" for n in ("invoices", "payroll"))
    assert found["todo"].endswith(f"delete the nodes (rmr in ZooKeeper 3.4): {commands}")
    plant(monkeypatch, "switched-nodes.json", hidden="/offsetmgr/groups")
    (found,) = rows("zk", "check", "--all-groups", "--settle", "0", "--zookeeper", "h1:2181", code=1)
    assert (found["code"], found["finding"]) == ("unreadable", "/offsetmgr/groups cannot be read: the ACL forbids it")


def test_old_managers_are_understood_in_a_rolling_upgrade() -> None:
    saved = json.loads((OLD / "managers.json").read_text())
    a, b, c, d = (f"offsetmgr-h{n}-0f1e2d3c" for n in (1, 2, 3, 4))
    shared = ("__offsetmgr_offsets", 8, 4, "kafka", 1, 604_800_000, True)
    seen = {0: a, 1: a, 2: a, 3: b}
    metadata = {member: astuple(decode_metadata(text.encode())) for member, text in saved["metadata"].items()}
    assert metadata == {
        a: ("h1", 9192, shared, {0: 3, 1: 3, 2: 3}, 4, seen, {2}, False),
        b: ("h2", 9192, shared, {}, 4, seen, set(), False),
        c: ("h3", 9192, (*shared[:5], 1, True), {}, -1, {}, set(), False),
        d: ("h4", 9192, shared, {}, 4, {**seen, 3: d}, set(), True),
    }
    assert astuple(decode_assignment(saved["assignment"].encode())) == (
        5,
        {a: (1795173488, "h1", 9192), b: (1170971539, "h2", 9192)},
        {0: a, 1: a, 3: b},
        {2: a},
        {
            "other-h5": "metadata of a manager: has no 'version'",
            c: "retention is 1 ms here and 10080 minutes at the other managers",
        },
        set(),
    )


def test_an_old_claim_is_read() -> None:
    claim = json.loads((OLD / "managers.json").read_text())["claim"]
    assert (CLAIM_KEY.hex(), FENCE_KEY.hex()) == (claim["key"], claim["fence_key"])
    expected = ("9f8e7d6c5b4a3928", "h1:9192", 1_700_000_000_000, (1000, 2001), 0)
    assert decode_claim(claim["value"].encode()) == expected


def test_the_servers_of_an_old_sandbox_are_listed() -> None:
    found = rows("sandbox", "status", "--state", str(OLD / "sandbox"), code=1)
    names = ("name", "kind", "version", "running", "pid", "address", "group", "member_id", "directory")
    root, member = "/var/lib/offsetmgr/sandbox/data", "shop_h1-1700000000000-0a1b2c3d"
    assert [tuple(row[name] for name in names) for row in found] == [
        ("zookeeper", "zookeeper", "3.8.4", False, 4711, "127.0.0.1:2181", None, None, f"{root}/zookeeper"),
        ("broker-0", "broker", "3.9.1", False, 4712, "127.0.0.1:9092", None, None, f"{root}/broker-0"),
        ("shop-0", "old-consumer", "0.10.2.2", False, 4713, None, "shop", member, f"{root}/shop-0"),
    ]
    exported = command("sandbox", "env", "--state", OLD / "sandbox").stdout
    assert "OFFSETMGR_ZOOKEEPER=127.0.0.1:2181/kafka" in exported
