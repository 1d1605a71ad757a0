"""Files of migrations that release 0.1 wrote are read and continued. The files in tests/data/formats never change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from one_migration import ORDERS, Migration, commit

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange
from offsetmgr.core.errors import GateRefused, JournalError, MalformedData, UnknownVersion
from offsetmgr.core.model import ABSENT, Committed, LogRange, TopicPartition
from offsetmgr.migration.baseline_file import BaselineFile
from offsetmgr.migration.bounce_checkpoint import OffsetCopy, RestartStep, StepStatus, load, load_all
from offsetmgr.migration.fleet import GroupState, group_statuses
from offsetmgr.migration.journal import Journal, journal_path
from offsetmgr.migration.observation import Observation, PartitionOwner, RegisteredMember
from offsetmgr.migration.plan_file import PlanFile

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
            id_: RegisteredMember(id_, host, host and 1_700_000_000_000, czxid, session, ("orders",))
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
