"""Files and znodes that release 0.1 wrote are read: before-images, the operation log, the nodes of periods and of
storage modes, and smaller files. The files in tests/data/formats never change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_old_migration_files import OLD

from offsetmgr.cli.app import run
from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.model import BrokerPartition, Committed, TopicPartition
from offsetmgr.groups.before_images import load_images
from offsetmgr.groups.operation_log import OperationLog
from offsetmgr.manager.assignment import Assignment, ManagerMetadata, NodeAddress, PendingRevocation, SharedConfig
from offsetmgr.manager.assignment_format import decode_assignment, decode_metadata
from offsetmgr.period.history import History
from offsetmgr.period.job_records import Attempt, PublishedOutput, RangeScan, Work
from offsetmgr.period.node_codec import OffsetRange
from offsetmgr.period.records import ClosedPeriod, MemberNode, OpenNode, PartitionsNode, ProgressNode, Rerun
from offsetmgr.period.schedule import Period, PeriodSchedule
from offsetmgr.period.state_nodes import BarrierStateStore
from offsetmgr.records.claim import CLAIM_KEY, FENCE_KEY, Claim, decode_claim
from offsetmgr.snapshots.base import SnapshotHeader
from offsetmgr.stores.snapshot import SnapshotStore
from offsetmgr.stores.switched.nodes import SwitchStateStore
from offsetmgr.stores.switched.records import FollowerNode, StorageModeNode, SwitcherNode
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_reads import Children, Node

IMAGES = OLD / "offsetmgr" / "before-images"
"""The state directory of the account anna on the host h1. It was /var/lib/offsetmgr."""
ORDERS = [TopicPartition("orders", n) for n in range(4)]
PAYMENTS = TopicPartition("payments", 0)


def rows(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """The rows that a command prints as JSON."""
    capsys.readouterr()
    assert run([*arguments, "--format", "json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, list)
    return found


# --- the state directory ------------------------------------------------------------------------------


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


def test_old_operations_are_listed(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "edits", "list")
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
    (shown,) = rows(capsys, "edits", "show", "20261128-142130-40b9")
    image = "before-images/20261128T142130.643Z-offsets-import-8767.avro"
    assert shown == {
        "id": "20261128-142130-40b9",
        "operation": "offsets import",
        "outcome": "failed",
        "at_ms": 1795875690643,
        "ended_ms": 1795875690690,
        "user": "anna",
        "host": "h1",
        "reason": None,
        "command": "offsetmgr offsets import later.csv --store file:offsets.avro --unchecked --execute --yes",
        "stores": "file:offsets.avro",
        "groups": "shop",
        "changes": 1,
        "written": 1,
        "failed": 1,
        "files": image,
        "undo": f"offsetmgr offsets import {image} --store file:offsets.avro",
        "undoes": None,
        "undone_by": None,
    }
    (undo,) = rows(capsys, "edits", "show", "20261128-142130-c45a")
    assert undo["undoes"] == "20261128-142130-4421"
    killed = OperationLog().find("20261128-142132-931a")
    assert (killed.pid, killed.process_start) == (9138, "bd1591f0-2738-4670-bbe9-fbc26d09b506/491181")


def test_old_edits_are_undone(state: Path) -> None:
    for operation in ("40b9", "250c", "999b"):
        assert run(["edits", "undo", f"20261128-142130-{operation}", "--execute", "--yes"]) == 0
    with SnapshotStore(state / "offsets.avro") as store:
        assert store.fetch("shop") == {
            ORDERS[0]: Committed(11, "batch 7", 3),
            ORDERS[1]: Committed(20, commit_timestamp=1795875689631),
            PAYMENTS: Committed(31, leader_epoch=2),
        }
        assert store.fetch("audit") == {
            ORDERS[0]: Committed(5, commit_timestamp=1795875689639),
            ORDERS[2]: Committed(10, "batch 1", 4),
        }


LEGACY = TopicPartition("events", BrokerPartition(1, 0))
IN_KAFKA = {ORDERS[0]: (40, "batch 9", None), ORDERS[1]: (41, "", None)}


@pytest.mark.parametrize(
    ("name", "group", "before", "after"),
    [
        (
            "142130.802Z-offsets-set-8767",
            "billing",
            {ORDERS[0]: (40, "", 1795875689645)},
            {ORDERS[0]: 50, ORDERS[2]: 50},
        ),
        ("142130.869Z-offsets-delete-8767", "billing", {ORDERS[1]: (41, "", 1795875689645)}, {ORDERS[1]: None}),
        ("142130.945Z-offsets-set-8767", "legacy", {LEGACY: (1000, "", 1795875690926)}, {LEGACY: 2000}),
        ("142132.675Z-migrate-mirror-9138", "web", {ORDERS[0]: (1, "", None)}, {ORDERS[0]: 40, ORDERS[1]: 41}),
        ("183014.828Z-offsets-set-1073", "stock", IN_KAFKA, dict.fromkeys(ORDERS[:3], 60)),
        ("183015.079Z-offsets-set-1073.primary", "both", IN_KAFKA, dict.fromkeys(ORDERS[:3], 60)),
        (
            "183015.079Z-offsets-set-1073.secondary",
            "both",
            {ORDERS[0]: (40, "", 1795890615002), ORDERS[1]: (41, "", 1795890615002)},
            dict.fromkeys(ORDERS[:3], 60),
        ),
    ],
)
def test_old_before_images_of_servers_are_read(
    name: str,
    group: str,
    before: dict[TopicPartition, tuple[int, str, int | None]],
    after: dict[TopicPartition, int | None],
) -> None:
    """The last three are of an edit of Kafka, and of one edit of a ``dual:`` store."""
    (found,) = load_images(IMAGES / f"20261128T{name}.avro")
    offsets = {tp: Committed(at, text, commit_timestamp=time) for tp, (at, text, time) in before.items()}
    assert (found.group, found.before, found.after) == (group, offsets, after)


def test_the_header_of_old_before_images_names_the_cluster_and_its_topics() -> None:
    with SnapshotStore(IMAGES / "20261128T142130.802Z-offsets-set-8767.avro") as store:
        assert store.header == SnapshotHeader(
            "589fe801-07bf-43fd-9fac-149c9f10ab45",
            1795875690804,
            "zookeeper://h1:28577/kafka?layout=0.8",
            "zookeeper",
            "b2Zmc2V0bWdyLWdvbGRlbg",
            "offsetmgr 0.1.0",
            log_cluster_id="b2Zmc2V0bWdyLWdvbGRlbg",
            log_brokers=("h1:9092",),
            topic_ids={"orders": "b2Zmc2V0bWdyLXRvcGlj0Q"},
        )


# --- znodes -------------------------------------------------------------------------------------------


class SavedNodes(ZookeeperSession):
    """A session that reads the nodes in a file of paths and texts. The id of the transaction that created a node is the
    position of the node in the file."""

    def __init__(self, name: str) -> None:
        super().__init__("h1:2181")
        texts: Mapping[str, str] = json.loads((OLD / name).read_text())
        self._nodes = {path: NodeData(text.encode(), n, 0, 0, 0, 0) for n, (path, text) in enumerate(texts.items())}

    def get_many(self, paths: Sequence[str]) -> list[Node]:
        return [self._nodes.get(path) for path in paths]

    def children_many(self, paths: Sequence[str]) -> list[Children]:
        return [[at.rpartition("/")[2] for at in self._nodes if at.rpartition("/")[0] == path] for path in paths]


FIRST, DAY_MS = 1_700_006_400_000, 86_400_000
DAILY, HALF_DAYS = PeriodSchedule(FIRST, DAY_MS), PeriodSchedule(FIRST, DAY_MS // 2, 2)
PERIODS = "/shop/periods/daily"


def test_an_old_run_of_periods_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ConnectFlags, "zookeeper", lambda _connect, _what: SavedNodes("period-nodes.json"))
    servers = ("--zookeeper", "h1:2181", "--root")
    names = ("partition", "state", "owner", "host", "process", "last_finished")
    assert [tuple(row[name] for name in names) for row in rows(capsys, "period", "status", *servers, PERIODS)] == [
        (0, "holds", "m2", "h1", 8767, 0),
        (0, "finished", "m1", "h1", 8767, 2),
        (1, "finished", "m1", "h1", 8767, 2),
        (2, "finished", "m2", "h1", 8767, 2),
        (3, "idle", None, None, None, 2),
    ]
    assert run(["period", "status", *servers, PERIODS]) == 0
    shown = capsys.readouterr().err
    assert "rerun, period 2, 2023-11-15T00:00:00.000Z to 2023-11-15T12:00:00.000Z; leader: m1; 2 live members" in shown
    assert run(["period", "status", *servers, f"{PERIODS}/reruns/june"]) == 0
    assert "the run has ended: its last period is closed: the rerun is done" in capsys.readouterr().err
    columns = ("period", "state", "member", "job", "first_offset", "end_offset", "attempts", "output")
    assert [tuple(row[name] for name in columns) for row in rows(capsys, "period", "history", *servers, PERIODS)] == [
        (0, "finished", "m2", None, 0, 30, None, None),
        (0, "idle", "m1", None, None, None, None, None),
        (0, "published", "m1", "daily-totals", 0, 50, 2, "s3://shop/totals/0/1"),
        (0, "published", "m1", "daily-totals", 0, 40, 2, "s3://shop/totals/0/1"),
        (0, "fixed", "m2", "late-orders", 3, 8, 0, None),
        (1, "abandoned", None, None, None, None, None, None),
        (2, "under way", "m1", "daily-totals", 0, 50, 1, None),
        (2, "under way", "m1", "daily-totals", 0, 40, 1, None),
    ]


def test_each_field_of_the_nodes_of_old_periods_is_read() -> None:
    session = SavedNodes("period-nodes.json")
    nodes = BarrierStateStore(session, PERIODS)
    view, history = nodes.read(), nodes.history()
    rerun = Rerun(FIRST + DAY_MS, DAILY)
    opened = OpenNode(HALF_DAYS, 2, "period rerun", 71, 1795875697557, rerun=rerun)
    assert view.seen.open_ == opened
    assert view.seen.partitions == PartitionsNode(2, frozenset([*ORDERS, PAYMENTS]))
    assert view.seen.progress == {
        "m1": ProgressNode(
            "m1",
            71,
            {ORDERS[0]: 2, ORDERS[1]: 2, ORDERS[3]: 2},
            frozenset([ORDERS[3]]),
            {ORDERS[0]: OffsetRange(0, 25), ORDERS[1]: OffsetRange(0, 40)},
        ),
        "m2": ProgressNode("m2", 76, {ORDERS[2]: 2, PAYMENTS: 0}, ranges={PAYMENTS: OffsetRange(0, 3)}),
    }
    assert {name: live.node for name, live in view.members.items()} == {
        "m1": MemberNode("h1", 8767, frozenset(ORDERS[:2])),
        "m2": MemberNode("h1", 8767, frozenset([ORDERS[2], PAYMENTS])),
    }
    assert history[0] == ClosedPeriod(
        Period(0, FIRST, FIRST + DAY_MS),
        1795875697354,
        1795875697469,
        "m1",
        71,
        {"m1": frozenset([ORDERS[0], ORDERS[1], ORDERS[3]]), "m2": frozenset([ORDERS[2], PAYMENTS])},
        frozenset([ORDERS[3]]),
        {tp: OffsetRange(0, end) for tp, end in zip([*ORDERS[:3], PAYMENTS], (50, 40, 30, 3), strict=True)},
    )
    assert history[1].abandoned.startswith("abandoned for a rerun from 2023-11-15T00:00:00.000Z")
    (aborted, _), (ended, _) = (
        BarrierStateStore(session, root).read_open() for root in ("/shop/periods/aborted", f"{PERIODS}/reruns/june")
    )
    assert aborted == replace(opened, stopped="wrong topic")
    assert ended is not None
    assert (ended.done, ended.rerun) == (True, Rerun(FIRST + DAY_MS, None))
    works = History(session, PERIODS).all_work()
    work = Work(
        "daily-totals",
        Period(0, FIRST, FIRST + DAY_MS),
        {ORDERS[0]: OffsetRange(0, 50), ORDERS[1]: OffsetRange(0, 40)},
        FIRST + DAY_MS,
        (Attempt("m1", 7, FIRST + DAY_MS + 1000), Attempt("m2", 9, FIRST + DAY_MS + 2000)),
        PublishedOutput(1, "s3://shop/totals/0/1", FIRST + DAY_MS + 3000, {"records": 80, "late": 2}),
        {ORDERS[0]: RangeScan(0, 5, 60, 50), ORDERS[1]: RangeScan(0, 7, 40, 40)},
        {"records": 80, "late": 2, "set_aside": 1},
        {"orders": "c29tZSB0b3BpYyBpZCAxMg"},
    )
    assert works[0, "daily-totals"] == work
    assert works[2, "daily-totals"] == replace(
        work.restricted_to(Period(2, FIRST, FIRST + DAY_MS // 2), "daily-totals of period 0"),
        attempts=(Attempt("m1", 11, FIRST + 3 * DAY_MS),),
    )


def test_an_old_switch_of_the_storage_mode_is_read() -> None:
    session, who = SavedNodes("switched-nodes.json"), "anna on h1 (process 4711)"
    nodes, declared = SwitchStateStore(session, "payroll"), SwitchStateStore(session, "invoices").read()
    found = nodes.read()
    assert found is not None
    assert declared is not None
    assert found.storage == StorageModeNode(CommitMode.ZOOKEEPER, 2, who, 1_700_000_001_000, CommitMode.DUAL)
    assert declared.storage == StorageModeNode(CommitMode.DUAL, 1, "anna on h1 (process 4710)", 1_700_000_000_000)
    assert nodes.switcher() == SwitcherNode(who)
    assert [(one.name, one.node) for one in nodes.followers()] == [("worker-1", FollowerNode(1, "h1", 4712))]


# --- managers and a sandbox -----------------------------------------------------------------------------


def test_old_managers_are_understood_in_a_rolling_upgrade() -> None:
    saved = json.loads((OLD / "managers.json").read_text())
    a, b, c, d = (f"offsetmgr-h{n}-0f1e2d3c" for n in (1, 2, 3, 4))
    shared = SharedConfig("__offsetmgr_offsets", 8, 4, "kafka", 1, 604_800_000, True)
    relay = {"advertised": {"0": ["h1", 9192]}}
    seen = {0: a, 1: a, 2: a, 3: b}
    metadata = {member: decode_metadata(text.encode()) for member, text in saved["metadata"].items()}
    assert metadata == {
        a: ManagerMetadata("h1", 9192, shared, {0: 3, 1: 3, 2: 3}, 4, seen, relay, frozenset([2])),
        b: ManagerMetadata("h2", 9192, shared, {}, 4, seen, relay),
        c: ManagerMetadata("h3", 9192, shared._replace(retention_ms=1)),
        d: ManagerMetadata("h4", 9192, shared, {}, 4, {**seen, 3: d}, relay, leaving=True),
    }
    assert decode_assignment(saved["assignment"].encode()) == Assignment(
        5,
        {a: NodeAddress(1795173488, "h1", 9192, relay), b: NodeAddress(1170971539, "h2", 9192, relay)},
        {0: a, 1: a, 3: b},
        {2: PendingRevocation(a, b)},
        {
            "other-h5": "metadata of a manager: has no 'version'",
            c: "retention is 1 ms here and 10080 minutes at the other managers",
        },
    )


def test_an_old_claim_is_read() -> None:
    claim = json.loads((OLD / "managers.json").read_text())["claim"]
    assert (CLAIM_KEY.hex(), FENCE_KEY.hex()) == (claim["key"], claim["fence_key"])
    assert decode_claim(claim["value"].encode()) == Claim(
        "9f8e7d6c5b4a3928", "h1:9192", 1_700_000_000_000, (1000, 2001)
    )


def test_the_servers_of_an_old_sandbox_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "sandbox", "status", "--state", str(OLD / "sandbox"), code=1)
    names = ("name", "kind", "version", "running", "pid", "address", "group", "member_id", "directory")
    root, member = "/var/lib/offsetmgr/sandbox/data", "shop_h1-1700000000000-0a1b2c3d"
    assert [tuple(row[name] for name in names) for row in found] == [
        ("zookeeper", "zookeeper", "3.8.4", False, 4711, "127.0.0.1:2181", None, None, f"{root}/zookeeper"),
        ("broker-0", "broker", "3.9.1", False, 4712, "127.0.0.1:9092", None, None, f"{root}/broker-0"),
        ("shop-0", "old-consumer", "0.10.2.2", False, 4713, None, "shop", member, f"{root}/shop-0"),
    ]
    assert run(["sandbox", "env", "--state", str(OLD / "sandbox")]) == 0
    assert "OFFSETMGR_ZOOKEEPER=127.0.0.1:2181/kafka" in capsys.readouterr().out
