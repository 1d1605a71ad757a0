"""Files of migrations that release 0.1 wrote are read and continued. The files in tests/data/formats never change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from one_migration import ORDERS, Migration, commit

from offsetmgr.cli.app import run
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange
from offsetmgr.core.errors import GateRefused, JournalError, MalformedData, UnknownVersion
from offsetmgr.core.log_origin import OffsetTranslation, OriginComparison, Relation
from offsetmgr.core.model import (
    ABSENT,
    BrokerPartition,
    Committed,
    LogRange,
    OffsetAndMetadata,
    TopicPartition,
)
from offsetmgr.core.offset_store import Guard
from offsetmgr.migration.baseline_file import BaselineFile
from offsetmgr.migration.bounce_checkpoint import OffsetCopy, RestartStep, StepStatus, load, load_all
from offsetmgr.migration.fleet import GroupState, group_statuses
from offsetmgr.migration.journal import Journal, journal_path
from offsetmgr.migration.observation import Observation, PartitionOwner, RegisteredMember
from offsetmgr.migration.partition_map import MapEntry, MappedStart, PositionTable, read_map
from offsetmgr.migration.plan import Action, GroupPlan, PlanSource, PlanStep, StoreEndpoint
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.plan_run import open_plan
from offsetmgr.migration.progress import PartitionSet

OLD = Path(__file__).parent.parent / "data" / "formats" / "0.1"
MEMBER = "shop_h1-1700000000000-0a1b2c3d"


def restored(tmp_path: Path, name: str, *, applied: tuple[str, ...] = ()) -> Migration:
    """The migration whose files are copied from ``name``. The stores hold what they held when the files were written;
    ``applied`` are the groups whose offsets were copied."""
    migration = Migration(tmp_path)
    commit(migration.source, "shop", 42, 7)
    commit(migration.source, "audit", 5, None, 9)
    commit(migration.target, "audit", 5)
    commit(migration.target, "shop", 40)
    if "shop" in applied:
        commit(migration.target, "shop", 42, 7)
    if "audit" in applied:
        commit(migration.target, "audit", 5, None, 9)
    shutil.copy(OLD / f"{name}.json", migration.path)
    if (journal := OLD / f"{name}.journal").exists():
        shutil.copy(journal, journal_path(migration.path))
    return migration


def states(migration: Migration) -> dict[str, str]:
    return {one.group: one.state.value for one in group_statuses(PlanFile(migration.path), migration.state())}


ALL = {"audit": {ORDERS[0]: 5, ORDERS[2]: 9}, "shop": {ORDERS[0]: 42, ORDERS[1]: 7}}


def test_an_old_plan_is_applied(tmp_path: Path) -> None:
    migration = restored(tmp_path, "planned")
    assert states(migration) == {"audit": "planned", "shop": "planned"}
    assert PlanFile(migration.path).header.options.if_ahead is None  # release 0.1 stored "keep" without a word
    assert migration.apply().ok
    assert migration.target_offsets() == ALL


def test_an_old_journal_is_continued_after_a_partial_failure(tmp_path: Path) -> None:
    migration = restored(tmp_path, "partly", applied=("audit",))
    assert states(migration) == {"audit": "applied", "shop": "planned"}
    report = migration.apply()
    assert (report.ok, report.changed, report.skipped) == (True, 1, 1)
    assert migration.target_offsets() == ALL


def test_an_old_journal_of_a_killed_run_is_continued(tmp_path: Path) -> None:
    migration = restored(tmp_path, "killed", applied=("shop",))
    assert states(migration) == {"audit": "applied in part", "shop": "applied in part"}
    assert migration.apply().ok
    assert migration.target_offsets() == ALL
    assert migration.rollback().ok
    assert migration.target_offsets() == {"audit": {ORDERS[0]: 5}, "shop": {ORDERS[0]: 40}}


def test_an_old_journal_of_an_applied_plan_is_rolled_back(tmp_path: Path) -> None:
    migration = restored(tmp_path, "applied", applied=("shop", "audit"))
    assert states(migration) == {"audit": "applied", "shop": "applied"}
    assert migration.state().apply.complete
    assert migration.rollback().ok
    assert migration.target_offsets() == {"audit": {ORDERS[0]: 5}, "shop": {ORDERS[0]: 40}}


def test_an_old_rollback_and_an_old_end_stay_closed(tmp_path: Path) -> None:
    rolled_back, finalized = tmp_path / "a", tmp_path / "b"
    rolled_back.mkdir()
    finalized.mkdir()
    migration = restored(rolled_back, "rolled-back")
    assert states(migration) == {"audit": "rolled back", "shop": "rolled back"}
    with pytest.raises(JournalError, match="rolled back"):
        migration.apply()
    migration = restored(finalized, "finalized", applied=("shop", "audit"))
    assert states(migration) == {"audit": GroupState.FINALIZED, "shop": GroupState.FINALIZED}
    assert migration.state().delete.done == {"audit", "shop"}
    with pytest.raises(GateRefused, match="finalized"):
        migration.rollback()


SEARCH_RUN = "20261128-142729-17ab"
"""The id of the run that applied group search, in the operation log."""


def test_an_old_fleet_has_the_state_of_each_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["migrate", "status", str(OLD / "renewed.json"), "--format", "json"]) == 0
    names = ("group", "target_group", "wave", "owner", "state", "since", "evidence")
    rows = json.loads(capsys.readouterr().out)
    assert [tuple(row[name] for name in names) for row in rows] == [
        (
            "billing", "billing", 1, "team-b", "dual", 1795876049928,
            "3 members committed as phase dual does (inferred, seen)",
        ),
        ("ledger", "ledger-2", 1, "team-a", "finalized", 1795876049819, "the source's offsets were deleted"),
        ("mail", "mail", 2, "team-b", "applied", 1795876049160, None),
        ("search", "search", 2, None, "rolled back", 1795876049549, None),
        ("stock", "stock", 3, "team-c", "applied in part", 1795876049718, None),
        ("web", "web", 3, "team-c", "planned", 1795876048910, None),
    ]  # fmt: skip
    blocked = {row["group"]: row["blocked_by"] for row in rows if row["blocked_by"]}
    assert blocked["mail"].startswith("bounce zookeeper -> dual: the command for audit_h1")
    assert blocked["stock"].startswith("not applied: orders-1: orders-1: holds 2, which is neither no offset")
    assert blocked["web"].startswith("the plan refused 1 partition (1 unreadable): orders-1: source: ZooKeeper node")
    assert blocked["web"].endswith("; finalize: it was not applied completely")
    assert run(["migrate", "status", str(OLD / "fleet.json")]) == 1
    assert "it was renewed as /var/lib/offsetmgr/renewed.json" in capsys.readouterr().err


def test_each_field_of_an_old_plan_and_of_its_journal_is_read() -> None:
    plan, state = open_plan(OLD / "renewed.json")
    header, cluster = plan.header, "b2Zmc2V0bWdyLWdvbGRlbg"
    assert (header.plan_id, header.created_at) == ("ad9fbcb5-33f2-4599-bd55-623bb28e4c39", 1795876048910)
    uri, how = "zookeeper://h1:28513/kafka?layout=0.8", "cluster id in /kafka/cluster/id"
    assert header.source == StoreEndpoint(uri, "zookeeper", cluster, how)
    assert header.target.id == "97b6f932-a085-4b4a-b6f2-1681a8701a33"
    assert header.options.rename == {"ledger": "ledger-2"}
    assert header.compared == OriginComparison(Relation.SAME, f"cluster id {cluster}")
    copied = [OffsetAndMetadata(40 + n, commit_timestamp=1795876046888) for n in range(2)]
    before = OffsetAndMetadata(3, "batch 1", 3)
    steps = tuple(
        PlanStep(tp, Action.COPY, value, target, value)
        for tp, value, target in zip(ORDERS, copied, (before, None), strict=False)
    )
    assert next(group for group in plan.groups() if group.group == "search") == GroupPlan(
        "search", "search", steps, Guard.LOCK, wave=2
    )
    assert state.intended(state.apply, "search") == [step._replace(source=None) for step in steps]
    assert state.intended(state.undo, "search") == [
        PlanStep(ORDERS[0], Action.REWIND, None, copied[0], before),
        PlanStep(ORDERS[1], Action.REWIND, None, copied[1], None),
    ]
    assert state.partitions(state.delete, "ledger").written == {ORDERS[0], TopicPartition("payments", 0)}
    assert state.partitions(state.apply, "stock") == PartitionSet(frozenset([ORDERS[0]]), frozenset(), frozenset())
    assert state.run(SEARCH_RUN).progress.done == {"search"}
    assert (state.undone_runs, state.refreshed_at) == ({"search": {SEARCH_RUN}}, 1795876049928)


def test_an_old_plan_from_kafka_0_7_and_its_partition_map_are_read() -> None:
    plan, map_ = PlanFile(OLD / "from-07.json"), read_map(OLD / "map.json")
    events = [TopicPartition("events", n) for n in range(2)]
    old = {(b, n): TopicPartition("events", BrokerPartition(b, n)) for b in range(2) for n in range(2)}
    assert map_.entries == {
        old[1, 0]: MapEntry(1, PositionTable(((0, 0), (1990, 70), (5000, 90)), floor=True)),
        old[1, 1]: MapEntry(0, PositionTable(((0, 0), (2001, 80)))),
        old[0, 0]: MapEntry(2, 1_367_409_600_000),
        old[0, 1]: MapEntry(3, MappedStart.LATEST),
    }
    assert (plan.header.version, plan.header.partition_map) == (4, map_.origin)
    assert (plan.header.translate, map_.origin.confirmed_by) == (OffsetTranslation.NONE, "anna")
    (group,) = plan.groups()
    hows = ("byte 2001 is offset 80 in the table", "floor: byte 2000 is after byte 1990, offset 70 in the table")
    first, second = (PlanSource(BrokerPartition(1, 1 - n), how, "inferred") for n, how in enumerate(hows))
    source, before = OffsetAndMetadata(2001), OffsetAndMetadata(60, commit_timestamp=1795876050094)
    assert group.steps == (
        PlanStep(events[0], Action.COPY, source, None, OffsetAndMetadata(80), f"from 1-1: {hows[0]}", first),
        PlanStep(
            events[1],
            Action.COPY,
            OffsetAndMetadata(2000),
            before,
            OffsetAndMetadata(70),
            f"from 1-0: {hows[1]}",
            second,
        ),
    )


def test_an_old_runbook_is_read_as_a_baseline() -> None:
    found = BaselineFile(OLD / "runbook.json").of("shop")
    assert set(found.members) == {MEMBER, "fixed"}
    assert found.owned_by("fixed") == (TopicPartition("orders", 1),)
    assert found.zookeeper[TopicPartition("orders", 0)] == Committed(42, version=7)
    assert found.logs == {TopicPartition("orders", 0): LogRange(0, 50)}


def test_an_old_bounce_is_resumed() -> None:
    found = load(OLD / "bounce.json", "shop")
    assert found is not None
    assert found.change == CommitModeChange(CommitMode.ZOOKEEPER, CommitMode.DUAL)
    assert [(step.member, step.status) for step in found.steps] == [
        (MEMBER, StepStatus.PASSED),
        ("fixed", StepStatus.RUNNING),
    ]
    assert (found.steps[1].pid, found.copies[0].after, found.finished_ms) == (4711, 12, None)
    finished = load(OLD / "bounce-finished.json", "shop")
    assert finished is not None
    assert finished.finished_ms == 1_700_000_300_000
    assert BaselineFile(OLD / "bounce.json").of("shop").members == found.baseline.members


def test_an_old_runbook_of_several_groups_is_read_as_a_baseline() -> None:
    books = BaselineFile(OLD / "runbook-3.json")
    shop, audit = books.of("shop"), books.of("audit")
    orders = [TopicPartition("orders", n) for n in range(3)]
    members = ["fixed", *(f"shop_h{n}-1700000000000-0000004{6 + n}" for n in (1, 2))]
    assert shop == Observation(
        "shop",
        1_700_000_001_000,
        {
            id_: RegisteredMember(id_, host, None if host is None else 1_700_000_000_000, czxid, session, ("orders",))
            for id_, host, czxid, session in zip(members, (None, "h1", "h2"), (73, 71, 72), (-73, -71, 72), strict=True)
        },
        {tp: PartitionOwner(id_, 74 + tp.partition) for tp, id_ in zip(orders, members, strict=True)},
        tuple(orders),
        dict.fromkeys(orders, Committed(11, version=1)),
        dict.fromkeys(orders, ABSENT),
        dict.fromkeys(orders, LogRange(0, 1000)),
        stores={"zookeeper": "c1", "kafka": "c1"},
    )
    assert audit.unreadable == ("/consumers/audit/ids/x (it is not JSON)",)
    assert audit.logs[orders[2]] == LogRange(0, 10)


def test_old_bounces_of_several_groups_are_read() -> None:
    """Group shop is finished, a command failed for audit, billing was killed, a rollout of web brought no members, and
    mail went back from Kafka with a copy."""
    path = OLD / "bounces-4.json"
    found = load_all(path)
    to_dual = {group: CommitModeChange(CommitMode.ZOOKEEPER, CommitMode.DUAL) for group in found}
    assert {group: state.change for group, state in found.items()} == {
        **to_dual,
        "mail": CommitModeChange(CommitMode.KAFKA, CommitMode.DUAL),
    }
    started, settings = 1_700_000_000_000, "'offsets.storage=kafka dual.commit.enabled=true'"
    shop, mail, running = found["shop"], found["mail"], found["billing"].steps[2]
    assert (shop.opened_ms, shop.finished_ms) == (started + 1_000, started + 11_000)
    assert shop.finished_members == {
        "fixed": 77, "shop_h1-1700000005000-00000051": 81, "shop_h2-1700000008000-00000055": 85
    }  # fmt: skip
    assert shop.baseline == BaselineFile(OLD / "runbook-3.json").of("shop") == BaselineFile(path).of("shop")
    assert shop.steps[1] == RestartStep(
        "shop_h1-1700000000000-00000047",
        "h1",
        71,
        StepStatus.PASSED,
        {"shop_h1-1700000000000-00000047": 71, "shop_h2-1700000000000-00000048": 72, "fixed": 77},
        ["shop_h1-1700000005000-00000051"],
        f"ssh h1 restart shop_h1-1700000000000-00000047 {settings}",
        0,
        started_ms=started + 4_000,
        passed_ms=started + 7_000,
    )
    assert {group: [step.status.value for step in state.steps] for group, state in found.items()} == {
        "shop": ["passed", "passed", "passed"],
        "audit": ["command-failed", "pending"],
        "billing": ["passed", "member-left", "running"],
        "web": ["returned"],
        "mail": ["passed"],
    }
    assert (found["audit"].steps[0].exit_code, found["audit"].finished_ms) == (255, None)
    assert (running.member, running.pid, running.exit_code) == ("billing_h3-1700000000000-00000049", 4713, None)
    assert found["web"].steps[0].workload_members == [f"web_h{n}-1700000000000-0000004{3 + n}" for n in (4, 5)]
    assert mail.copies == [OffsetCopy("orders", 1, 3, 10, "written")]


@pytest.mark.parametrize(
    ("name", "old", "new", "read"),
    [
        ("planned.json", '"offsetmgr_plan": 3', '"offsetmgr_plan": 99', PlanFile),
        ("runbook.json", '"version": 1', '"version": 99', lambda path: BaselineFile(path).of("shop")),
        ("bounce.json", '"version": 2', '"version": 99', lambda path: load(path, "shop")),
    ],
)
def test_a_later_version_is_named(tmp_path: Path, name: str, old: str, new: str, read: Any) -> None:
    path = tmp_path / name
    text = (OLD / name).read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UnknownVersion, match="99"):
        read(path)


def test_a_later_journal_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migration = restored(tmp_path, "planned")
    monkeypatch.setattr("offsetmgr.migration.journal.VERSION", 99)
    with Journal(journal_path(migration.path), plan_sha256=PlanFile(migration.path).sha256, clock=SystemClock()):
        pass
    monkeypatch.undo()
    with pytest.raises(UnknownVersion, match="version 99"):
        migration.state()


def test_an_old_file_of_another_group_is_rejected() -> None:
    with pytest.raises(MalformedData, match="belongs to group shop"):
        BaselineFile(OLD / "runbook.json").of("audit")
