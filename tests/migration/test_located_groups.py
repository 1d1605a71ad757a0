"""``groups where``: the phase and the lag of a group make no claim without an observation, and the next step of a plan
is named for every phase and every state of the plan."""

import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from in_process import command as command_line
from in_process import parse, rows
from memory_stores import in_memory
from one_migration import Migration, commit
from recorded_observations import NEW

from offsetmgr import PlanOptions
from offsetmgr.app.connections import Connections
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange, Confidence, Phase, PhaseEvidence
from offsetmgr.core.errors import MalformedData, UnknownTopicOrPartition, Unreachable
from offsetmgr.core.model import Committed, GroupMember, LogRange, TopicPartition
from offsetmgr.groups.operation_log import OperationLog
from offsetmgr.migration.location import GroupLocation, GroupSample, MigratedGroup, StoreSample, locate
from offsetmgr.migration.progress import Stage
from offsetmgr.testing.memory import MemoryStore

ZOOKEEPER, DUAL, KAFKA, MANAGER = Phase.ZOOKEEPER, Phase.DUAL, Phase.KAFKA, Phase.MANAGER
OPTIONS = " --zookeeper zk:2181 --bootstrap-server k:9092"


def command(
    phase: Phase, stage: Stage, source: Phase, target: Phase, *members: str, group: str = "shop"
) -> tuple[str | None, str]:
    """The next command of a group in the phase, without the connection options, and the reason."""
    live = tuple(GroupMember(member, "", "", None) for member in members)
    offsets = {TopicPartition("orders", 0): Committed(1)}
    stores = (
        StoreSample("zookeeper", "zookeeper://zk:2181", offsets, live),
        StoreSample("kafka", "kafka://k:9092", offsets),
        StoreSample("manager", "manager://m:9092", offsets),
    )
    uris = {store.name: store.uri for store in stores}
    plan = MigratedGroup(
        "my plan.json", group, group, stage, source, target, uris[source], uris[target],
        finalized_at=1 if stage is Stage.FINALIZED else None,
    )  # fmt: skip
    found = GroupLocation(GroupSample(group, stores, plan=plan), PhaseEvidence(phase, Confidence.SEEN, ""), ())
    text, why = found.next.command_line(OPTIONS), found.next.why
    if not text:
        return None, why
    assert text.endswith(OPTIONS)
    parse(shlex.split(text)[1:])
    return text.removesuffix(OPTIONS), why


FINALIZE = "offsetmgr migrate finalize 'my plan.json' shop"
APPLY = "offsetmgr migrate apply 'my plan.json' --group shop"


def runbook(to: str) -> str:
    files = "-o runbook-shop.json -o runbook-shop.html"
    return f"offsetmgr runbook write --group shop --to {to} --plan 'my plan.json' {files}"


@pytest.mark.parametrize(
    ("phase", "stage", "source", "target", "members", "expected"),
    [
        (ZOOKEEPER, Stage.PLANNED, ZOOKEEPER, KAFKA, ("m",), APPLY),
        (ZOOKEEPER, Stage.APPLIED_IN_PART, ZOOKEEPER, KAFKA, ("m",), APPLY),
        (MANAGER, Stage.PLANNED, MANAGER, KAFKA, (), APPLY),
        (ZOOKEEPER, Stage.APPLIED, ZOOKEEPER, KAFKA, ("m",), runbook("dual")),
        (DUAL, Stage.APPLIED, ZOOKEEPER, KAFKA, ("m",), runbook("kafka")),
        (DUAL, Stage.APPLIED, KAFKA, ZOOKEEPER, ("m",), runbook("zookeeper")),
        (KAFKA, Stage.APPLIED, KAFKA, ZOOKEEPER, ("m",), runbook("dual")),
        (KAFKA, Stage.APPLIED, ZOOKEEPER, KAFKA, (), FINALIZE),
        (ZOOKEEPER, Stage.APPLIED, KAFKA, ZOOKEEPER, ("m",), FINALIZE),
        (MANAGER, Stage.APPLIED, KAFKA, MANAGER, (), FINALIZE),
        (KAFKA, Stage.APPLIED, KAFKA, MANAGER, (), None),
        (
            ZOOKEEPER,
            Stage.ROLLED_BACK_IN_PART,
            ZOOKEEPER,
            KAFKA,
            (),
            "offsetmgr migrate rollback 'my plan.json' --group shop",
        ),
    ],
)
def test_the_plan_decides_the_next_step(phase, stage, source, target, members, expected):
    found, why = command(phase, stage, source, target, *members)
    assert found == expected
    if expected is None:
        assert why == "the offsets are copied to manager://m:9092, and the group still commits to Kafka"


@pytest.mark.parametrize("phase", [ZOOKEEPER, DUAL, KAFKA])
def test_a_name_that_begins_with_a_dash_is_no_option_of_the_next_command(phase: Phase) -> None:
    text, _ = command(phase, Stage.APPLIED, ZOOKEEPER, KAFKA, "m", group="-dash")  # parses the command
    assert text is not None and "-o -" not in text


def test_the_old_offsets_are_not_deleted_while_the_members_may_be_dual() -> None:
    def moved(*members: str, in_zookeeper: int) -> str | None:
        sides = sample(held("zookeeper", in_zookeeper, *members), held("kafka", 7), plan=MOVED)
        evidence = PhaseEvidence(Phase.MOVED, Confidence.SEEN, "")
        return GroupLocation(sides, evidence, ()).next.command_line()

    write = "offsetmgr runbook write --group shop --to kafka -o runbook-shop.json -o runbook-shop.html"
    assert moved("m", in_zookeeper=7) == write
    delete = "offsetmgr migrate finalize p.json shop --delete-source"
    assert moved("m", in_zookeeper=5) == moved(in_zookeeper=7) == delete


@pytest.mark.parametrize("phase", [Phase.UNKNOWN, DUAL])
def test_a_bounce_that_is_not_finished_is_resumed_first(phase: Phase) -> None:
    change = CommitModeChange(CommitMode.ZOOKEEPER, CommitMode.DUAL)
    bounce: Any = SimpleNamespace(path="s.json", state=SimpleNamespace(change=change, steps=[]))
    plan = replace(MOVED, stage=Stage.APPLIED, finalized_at=None, bounce=bounce)
    sides = sample(held("zookeeper", 5, "m"), held("kafka", 7), plan=plan)
    step = GroupLocation(sides, PhaseEvidence(phase, Confidence.SEEN, ""), ()).next
    more = '--to-phase dual --state s.json --command "$RESTART" --execute'
    assert step.command_line() == f"offsetmgr runbook bounce --plan p.json --group shop {more}"
    assert step.note.startswith("$RESTART is the command that restarts one member")
    bounce.state.steps = [SimpleNamespace(member="deployment/shop", workload_members=["m"])]
    step = GroupLocation(sides, evidence := PhaseEvidence(phase, Confidence.SEEN, ""), ()).next
    assert " --kubernetes deployment/shop --execute" in step.command_line()
    assert step.note == "add the namespace=, kube_context= and configure= of the first bounce of deployment/shop"
    unread = replace(sides, stores=(replace(sides.stores[0], error=Unreachable("ZooKeeper", "no answer")),))
    text = "correct the address, the access or the server of ZooKeeper first: it cannot be read"
    assert phase is DUAL or GroupLocation(unread, evidence, ()).next.text() == text
    assert evidence.known_phase == ("unknown" if phase is Phase.UNKNOWN else "dual (seen)")


@pytest.mark.parametrize(
    ("source", "target", "title"),
    [(ZOOKEEPER, KAFKA, "ZooKeeper"), (KAFKA, ZOOKEEPER, "Kafka"), (MANAGER, KAFKA, "the offset manager")],
)
def test_a_group_that_commits_to_the_source_of_a_finalized_plan_is_not_planned_again(source, target, title):
    assert command(source, Stage.FINALIZED, source, target, "m") == (
        "offsetmgr groups describe --members --group shop",
        f"the group commits to {title} again after the plan was finalized; find the consumer that still commits there",
    )


@pytest.mark.parametrize(
    ("phase", "files"), [(DUAL, ["runbook-a_b.json", "runbook-a_b.html"]), (ZOOKEEPER, ["a_b.json"])]
)
def test_the_files_of_a_group_have_valid_names(phase: Phase, files: list[str]) -> None:
    text, _ = command(phase, Stage.ROLLED_BACK, ZOOKEEPER, KAFKA, group="a/b")
    words = shlex.split(text or "")
    assert [word for before, word in pairwise(words) if before == "-o"] == files


# --- phase and lag -------------------------------------------------------------------------------------

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def sample(*stores: StoreSample, plan: MigratedGroup | None = None) -> GroupSample:
    return GroupSample("shop", stores, {T0: LogRange(0, 100)}, plan=plan)


def test_a_partition_without_a_topic_has_the_reason_of_its_unknown_lag() -> None:
    gone = UnknownTopicOrPartition("topic t", "does not exist in this Kafka cluster")
    (partition,) = locate(GroupSample("shop", (held("zookeeper", 10),), {T0: gone})).partitions
    assert (partition.lag, partition.note) == (None, "log unknown: does not exist in this Kafka cluster")


def held(name: str, offset: int, *members: str) -> StoreSample:
    live = tuple(GroupMember(member, "", "", None) for member in members)
    return StoreSample(name, f"{name}://h", {T0: Committed(offset)}, live)


def test_live_members_in_both_stores_make_no_claim_about_their_commits() -> None:
    found = locate(sample(held("zookeeper", 10, NEW.id), held("kafka", 20, "m-1")))
    assert found.phase is Phase.UNKNOWN
    assert found.why == ("1 old consumer in ZooKeeper and 1 member in Kafka are live; their commits were not watched")


def test_a_zookeeper_without_registrations_shows_no_missing_consumer() -> None:
    storm = replace(held("zookeeper", 10), unregistered="spouts do not register")
    found = locate(sample(storm, held("kafka", 20, "m-1")))
    assert (found.phase, found.confidence) == (KAFKA, Confidence.INFERRED)
    assert found.why.endswith("ZooKeeper was not checked, because spouts do not register")


MOVED = MigratedGroup(
    "p.json", "shop", "shop", Stage.FINALIZED, "zookeeper", "kafka", "zookeeper://h", "kafka://h", finalized_at=1
)


@pytest.mark.parametrize("others", [(), (held("manager", 70),)])
def test_the_lag_of_a_moved_group_is_unknown_if_the_target_was_not_read(others: tuple[StoreSample, ...]) -> None:
    read = locate(sample(held("zookeeper", 10), held("kafka", 20), *others, plan=MOVED))
    assert (read.phase, read.lag) == (Phase.MOVED, 80)
    for plan in (MOVED, replace(MOVED, target=None)):
        found = locate(sample(held("zookeeper", 10), *others, plan=plan))
        assert (found.phase, found.lag) == (Phase.MOVED, None)
        assert found.partitions[0].note == "lag unknown, because the target kafka://h was not read"


@pytest.mark.parametrize("unread", ["zookeeper", "kafka"])
def test_a_partition_that_cannot_be_read_makes_no_claim_that_the_group_has_moved(unread: str) -> None:
    broken = MalformedData("znode /offsets/1", "is not a number")
    stores = [held("zookeeper", 10), held("kafka", 20)]
    stores = [replace(s, offsets={**s.offsets, T1: broken}) if s.name == unread else s for s in stores]
    found = locate(sample(*stores, plan=MOVED))
    assert found.phase is Phase.UNKNOWN
    assert found.why.endswith(f"cannot be read: {broken}")


@pytest.mark.parametrize(("left", "phase"), [(20, "moved"), (21, "unknown")])
@pytest.mark.parametrize("name", ["a/b", "a-b"])
def test_each_side_of_a_renamed_group_is_read_under_its_own_name(tmp_path, name, left, phase):
    migration = Migration(tmp_path, options=PlanOptions(rename={"a/b": "a-b"}))
    commit(migration.source, "a/b", 20)
    migration.plan()
    migration.apply()
    migration.append({"kind": "group-finalized", "group": "a/b", "verified": 1, "left_out": 0, "gate": ["seen", ""]})
    commit(migration.source, "a/b", left)
    where = ("groups", "where", name, "--plan", migration.path, "--store", "memory:source")
    with migration.configured(zookeeper="target", kafka="source"):
        (found,) = rows(*where)
    assert found["phase"] == phase, found
    assert (found["confidence"] == "seen") is (phase == "moved")


@pytest.mark.parametrize("named", [(), ("-g", "shop"), ("-g", "sho?"), ("-g", "absent")])
def test_doctor_names_the_next_step_of_a_group_whose_migration_is_not_finished(tmp_path, named):
    migration = Migration(tmp_path)
    commit(migration.source, "shop", 20)
    migration.plan()
    migration.apply()
    servers = "--bootstrap-server 127.0.0.1:1 --store memory:source"
    with migration.configured():
        found = rows("doctor", *named, *servers.split(), "--timeout", "100", code=1)
        OperationLog().path.unlink()
        OperationLog().path.mkdir()
        (lost,) = (one for one in rows("doctor", *servers.split(), code=1) if one["check"] == "phases")
    assert lost["result"] == "not known" and "(not used as evidence: " in lost["detail"]
    (phase,) = (row for row in found if row["check"] == "phase")
    all_groups = [row["detail"] for row in found if row["check"] == "phases"]
    if named[1:] == ("absent",):
        assert (phase["result"], phase["detail"]) == ("not known", "no configured store has an offset of the group")
        return
    assert (phase["result"], phase["endpoint"]) == ("warning", "group shop")
    assert phase["detail"].startswith("unknown: ZooKeeper and Kafka hold equal offsets on 1 partition: ")
    assert phase["fix"] == f"offsetmgr migrate finalize {migration.path} shop {servers}"
    count = "1 group in unfinished migrations of this account, 1 warning; offsetmgr groups where --all-groups"
    assert all_groups == ([] if named else [f"{count} {servers} locates all groups"])


@pytest.mark.parametrize("name", ["target", "other"])
def test_a_lost_plan_is_named_only_for_the_stores_of_its_migration(tmp_path: Path, name: str) -> None:
    migration = Migration(tmp_path)
    commit(migration.source, "shop", 20)
    migration.plan()
    migration.apply()
    migration.path.unlink()
    sides = {"kafka": f"memory:{name}"}
    commit(other := MemoryStore("other"), "shop", 20)
    with migration.stores(), patch.object(Connections, "configured_stores", lambda _self: sides):
        in_memory(target=migration.target, other=other)
        shown = command_line("groups", "where", "shop", "--store", f"memory:{name}", code=None).stderr
        (applied,) = OperationLog().operations()
    lost = f"not used as evidence: plan {migration.path}: No such file or directory; migrate apply wrote memory:target"
    assert (lost in shown) == (name == "target")
    assert (f"move them back; offsetmgr edits show {applied.id} shows" in shown) == (name == "target")
