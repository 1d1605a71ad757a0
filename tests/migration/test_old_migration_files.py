"""Files of migrations that release 0.1 wrote are read and continued. The files in tests/data/formats never change."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from old_formats import OLD
from one_migration import ORDERS, Migration, commit
from scripted_group import START_MS, ScriptedGroup, member
from test_partition_map import Plan, decisions

from offsetmgr import BrokerPartition, OffsetAndMetadata, OffsetTranslation, TopicPartition
from offsetmgr import Migration as Library
from offsetmgr.cli.app import run
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import GateRefused, JournalError, PlanError, UnknownVersion
from offsetmgr.core.offset_store import Guard
from offsetmgr.migration.observation import RegisteredMember
from offsetmgr.migration.plan import Action, GroupPlan, PlanSource, PlanStep, StoreEndpoint
from offsetmgr.migration.progress import Journal


def restored(tmp_path: Path, name: str, *, applied: tuple[str, ...] = ()) -> Migration:
    """The migration whose files are copied from ``name``. The stores hold what they held when the files were written;
    ``applied`` are the groups whose offsets were copied."""
    tmp_path.mkdir(exist_ok=True)
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
        shutil.copy(journal, migration.journal)
    return migration


ALL = {"audit": {ORDERS[0]: 5, ORDERS[2]: 9}, "shop": {ORDERS[0]: 42, ORDERS[1]: 7}}
BEFORE = {"audit": {ORDERS[0]: 5}, "shop": {ORDERS[0]: 40}}


@pytest.mark.parametrize(
    ("name", "applied", "audit", "shop", "changed"),
    [
        ("planned", (), "planned", "planned", 2),
        ("partly", ("audit",), "applied", "planned", 1),
        ("killed", ("shop",), "applied in part", "applied in part", None),
    ],
)
def test_an_old_plan_and_its_journal_are_continued_and_rolled_back(tmp_path, name, applied, audit, shop, changed):
    migration = restored(tmp_path, name, applied=applied)
    assert migration.states() == {"audit": audit, "shop": shop}
    with migration.opened() as library:
        assert library.header.options.if_ahead is None  # release 0.1 stored "keep" without a word
    report = migration.apply()
    assert (report.ok, report.changed if changed else None) == (True, changed)
    assert migration.target_offsets() == ALL
    assert migration.rollback().ok
    assert migration.target_offsets() == BEFORE


def test_an_old_journal_of_an_applied_plan_is_rolled_back(tmp_path: Path) -> None:
    migration = restored(tmp_path, "applied", applied=("shop", "audit"))
    assert migration.states() == {"audit": "applied", "shop": "applied"}
    assert migration.state().apply.complete
    assert migration.rollback().ok
    assert migration.target_offsets() == BEFORE


def test_an_old_rollback_and_an_old_end_stay_closed(tmp_path: Path) -> None:
    migration = restored(tmp_path / "a", "rolled-back")
    assert migration.states() == {"audit": "rolled back", "shop": "rolled back"}
    with pytest.raises(JournalError, match="rolled back"):
        migration.apply()
    migration = restored(tmp_path / "b", "finalized", applied=("shop", "audit"))
    assert migration.states() == {"audit": "finalized", "shop": "finalized"}
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
    with Library(OLD / "renewed.json") as library:
        header, state, groups = library.header, library.state(), list(library.groups())
    cluster = "b2Zmc2V0bWdyLWdvbGRlbg"
    assert (header.plan_id, header.created_at) == ("ad9fbcb5-33f2-4599-bd55-623bb28e4c39", 1795876048910)
    uri, how = "zookeeper://h1:28513/kafka?layout=0.8", "cluster id in /kafka/cluster/id"
    assert header.source == StoreEndpoint(uri, "zookeeper", cluster, how)
    assert header.target.id == "97b6f932-a085-4b4a-b6f2-1681a8701a33"
    assert header.options.rename == {"ledger": "ledger-2"}
    assert header.compared is not None
    assert (header.compared.relation.value, header.compared.how) == ("same", f"cluster id {cluster}")
    copied = [OffsetAndMetadata(40 + n, commit_timestamp=1795876046888) for n in range(2)]
    before = OffsetAndMetadata(3, "batch 1", 3)
    steps = tuple(
        PlanStep(tp, Action.COPY, value, target, value)
        for tp, value, target in zip(ORDERS, copied, (before, None), strict=False)
    )
    assert next(group for group in groups if group.name == "search") == GroupPlan(
        "search", "search", steps, Guard.LOCK, wave=2
    )
    assert state.intended(state.apply, "search") == [step._replace(source=None) for step in steps]
    assert state.intended(state.undo, "search") == [
        PlanStep(ORDERS[0], Action.REWIND, None, copied[0], before),
        PlanStep(ORDERS[1], Action.REWIND, None, copied[1], None),
    ]
    assert state.partitions(state.delete, "ledger").written == {ORDERS[0], TopicPartition("payments", 0)}
    stock = state.partitions(state.apply, "stock")
    assert (set(stock.written), len(stock.unchanged), len(stock.in_doubt)) == ({ORDERS[0]}, 0, 0)
    assert (run := state.run(SEARCH_RUN)) is not None
    assert run.done == {"search"}
    assert (state.undone_runs, state.refreshed_at) == ({"search": {SEARCH_RUN}}, 1795876049928)


def test_an_old_plan_from_kafka_0_7_and_its_partition_map_are_read(tmp_path: Path) -> None:
    events = [TopicPartition("events", n) for n in range(2)]
    old = {(b, n): TopicPartition("events", BrokerPartition(b, n)) for b in range(2) for n in range(2)}
    again = Plan(tmp_path)
    steps = again.make({old[1, 1]: 2001, old[1, 0]: 2000, old[0, 0]: 1, old[0, 1]: 1}, (OLD / "map.json").read_bytes())
    assert decisions(steps) == [
        (old[0, 0], "refuse-byte-position", None),  # by time and by the log's end, which need a cluster
        (old[0, 1], "refuse-byte-position", None),
        (events[0], "copy", 80),
        (events[1], "copy", 70),
    ]
    with Library(OLD / "from-07.json") as library:
        header, (group,) = library.header, library.groups()
    assert (header.version, header.partition_map) == (4, again.header.partition_map)
    assert header.translate is OffsetTranslation.NONE
    assert header.partition_map is not None and header.partition_map.confirmed_by == "anna"
    hows = ("byte 2001 is offset 80 in the table", "floor: byte 2000 is after byte 1990, offset 70 in the table")
    first, second = (PlanSource(BrokerPartition(1, 1 - n), how) for n, how in enumerate(hows))
    source, before = OffsetAndMetadata(2001), OffsetAndMetadata(60, commit_timestamp=1795876050094)
    notes = [f"from 1-{1 - n}: {how}" for n, how in enumerate(hows)]
    assert group.steps == (
        PlanStep(events[0], Action.COPY, source, None, OffsetAndMetadata(80), notes[0], first),
        PlanStep(events[1], Action.COPY, OffsetAndMetadata(2000), before, OffsetAndMetadata(70), notes[1], second),
    )


# --- runbooks and state files of bounces ----------------------------------------------------------------


def failing_bounce(
    state: Path, group: str, *members: RegisteredMember, stores: tuple[str, str] = ("c1", "c1"), options: Any = ()
) -> str:
    """Begins a bounce of a group whose restart command fails, which rewrites the state file."""
    scripted = ScriptedGroup(lambda _: list(members), lambda _: {}, lambda _: 11, lambda _: 11, name=group)
    scripted.cluster_name, scripted.kafka_name = stores
    hosts = [f"--host={one.id}=h" for one in members]
    restart = ("exit 3; {host}", state, "--from-phase", "zookeeper", *options, *hosts)
    return scripted.bounce("dual", *restart, code=None).stderr


def saved(state: Path) -> dict[str, Any]:
    return {one["group"]: one for one in json.loads(state.read_text())["bounces"]}


def plain(content: Any) -> Any:
    """The content with the errors of offsets as they were. Each save names the partition again."""
    return json.loads(re.sub(r"(offset of \S+: )+", "", json.dumps(content)))


@pytest.mark.parametrize(
    ("name", "group", "stores"),
    [
        ("runbook.json", "shop", ("zk", "k")),
        ("runbook-3.json", "shop", ("c1", "c1")),
        ("runbook-3.json", "audit", ("c1", "c1")),
    ],
)
def test_an_old_runbook_is_read_as_a_baseline(tmp_path: Path, name: str, group: str, stores: tuple[str, str]) -> None:
    """The state file of a bounce holds the baseline that the bounce has read."""
    content = json.loads((OLD / name).read_text())
    (book,) = [one for one in content.get("runbooks", [content]) if one["group"] == group]
    members = [
        RegisteredMember(one["id"], one["host"], one["registered_at_ms"], one["czxid"], one["session"], ("orders",))
        for one in book["baseline"]["members"]
    ]
    failing_bounce(tmp_path / "state.json", group, *members, stores=stores, options=("--baseline", OLD / name))
    found = saved(tmp_path / "state.json")[group]
    assert [step["member"] for step in found["steps"]] == [one.id for one in members]
    of_stores = {"zookeeper": stores[0], "kafka": stores[1]}
    assert plain(found["baseline"]) == plain({**book["baseline"], "stores": of_stores})


def test_an_old_bounce_is_resumed(tmp_path: Path) -> None:
    """The bounce of another group rewrites the file in the present version."""
    for name in ("bounce.json", "bounce-finished.json"):
        state, before = tmp_path / name, json.loads((OLD / name).read_text())
        shutil.copy(OLD / name, state)
        failing_bounce(state, "g", member("h1", 1))
        after = saved(state)["shop"]
        for step in after["steps"]:
            assert step.pop("workload_members") == []
        assert after.pop("finished_members") == {}
        assert after["baseline"].pop("stores", {}) == {}
        assert plain(after) == plain({key: value for key, value in before.items() if key not in ("format", "version")})


def test_old_bounces_of_several_groups_are_read(tmp_path: Path) -> None:
    """Group shop is finished, a command failed for audit, billing was killed, a rollout of web brought no members, and
    mail went back from Kafka with a copy."""
    state = tmp_path / "bounces-4.json"
    shutil.copy(OLD / "bounces-4.json", state)
    before = saved(state)
    assert set(before) == {"shop", "audit", "billing", "web", "mail"}
    failing_bounce(state, "g", member("h1", 1))
    assert saved(state).pop("g")["opened_ms"] == START_MS
    assert {group: one for group, one in saved(state).items() if group != "g"} == before
    refused = failing_bounce(state, "shop", member("h1", 1))
    assert "is finished" in refused


@pytest.mark.parametrize(
    ("name", "old", "option"),
    [("runbook.json", '"version": 1', "--baseline"), ("bounce.json", '"version": 2', "--state")],
)
def test_a_later_version_is_named(tmp_path: Path, name: str, old: str, option: str) -> None:
    text = (OLD / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, '"version": 99'))
    group = ScriptedGroup(lambda _: [member("h1", 1)], lambda _: {}, lambda _: 11, lambda _: 11, name="shop")
    bounce = ("--to-phase", "dual", "--command", "restart {member}", option, tmp_path / name)
    shown = group.runbook("bounce", *bounce, code=1).stderr
    assert name in shown and "version 99" in shown
    (tmp_path / name).write_text(text)
    other = replace(group, name="audit").runbook("bounce", *bounce, code=None).stderr
    assert option == "--state" or "belongs to group shop" in other


def test_a_later_plan_or_journal_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migration = restored(tmp_path, "planned")
    text = migration.path.read_text()
    with monkeypatch.context() as later:
        later.setattr("offsetmgr.migration.progress.VERSION", 99)
        with Journal(migration.journal, plan_sha256=json.loads(text)["sha256"], clock=SystemClock()):
            pass
    with pytest.raises(UnknownVersion, match="version 99"):
        migration.state()
    migration.path.write_text(text.replace('"offsetmgr_plan": 3', '"offsetmgr_plan": 99'))
    with pytest.raises((UnknownVersion, PlanError), match="99"):
        migration.state()
