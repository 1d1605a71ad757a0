"""``groups where`` names the next step of a plan, for every phase and every state of the plan."""

from __future__ import annotations

import shlex
from itertools import pairwise

import pytest
from test_doc_blocks import parse

from offsetmgr.cli.group_next import next_command
from offsetmgr.core.model import Committed, GroupMember, TopicPartition
from offsetmgr.migration.evidence import Confidence
from offsetmgr.migration.group_location import (
    GroupLocation,
    GroupPhase,
    GroupSample,
    MigratedGroup,
    PhaseEvidence,
    StoreSample,
)

ZOOKEEPER, DUAL, KAFKA, MANAGER = GroupPhase.ZOOKEEPER, GroupPhase.DUAL, GroupPhase.KAFKA, GroupPhase.MANAGER
OPTIONS = " --zookeeper zk:2181 --bootstrap-server k:9092"


def command(
    phase: GroupPhase, state: str, source: GroupPhase, target: GroupPhase, *members: str, group: str = "shop"
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
        "my plan.json", group, group, state, source, target, uris[source], uris[target],
        finalized_at=1 if state == "finalized" else None,
    )  # fmt: skip
    found = GroupLocation(GroupSample(group, stores, plan=plan), PhaseEvidence(phase, Confidence.SEEN, ""), ())
    text, why = next_command(found, OPTIONS)
    if text is None:
        return None, why
    assert text.endswith(OPTIONS)
    parse(shlex.split(text)[1:])
    return text.removesuffix(OPTIONS), why


FINALIZE = "offsetmgr migrate finalize 'my plan.json' shop"
APPLY = "offsetmgr migrate apply 'my plan.json' --group shop"


def runbook(to: str) -> str:
    return f"offsetmgr runbook write --group shop --to {to} --plan 'my plan.json' -o shop.json -o shop.html"


@pytest.mark.parametrize(
    ("phase", "state", "source", "target", "members", "expected"),
    [
        (ZOOKEEPER, "planned", ZOOKEEPER, KAFKA, ("m",), APPLY),
        (ZOOKEEPER, "applying", ZOOKEEPER, KAFKA, ("m",), APPLY),
        (MANAGER, "planned", MANAGER, KAFKA, (), APPLY),
        (ZOOKEEPER, "applied", ZOOKEEPER, KAFKA, ("m",), runbook("dual")),
        (DUAL, "applied", ZOOKEEPER, KAFKA, ("m",), runbook("kafka")),
        (DUAL, "applied", KAFKA, ZOOKEEPER, ("m",), runbook("zookeeper")),
        (KAFKA, "applied", KAFKA, ZOOKEEPER, ("m",), runbook("dual")),
        (KAFKA, "applied", ZOOKEEPER, KAFKA, (), FINALIZE),
        (ZOOKEEPER, "applied", KAFKA, ZOOKEEPER, ("m",), FINALIZE),
        (MANAGER, "applied", KAFKA, MANAGER, (), FINALIZE),
        (KAFKA, "applied", KAFKA, MANAGER, (), None),
        (ZOOKEEPER, "rolling back", ZOOKEEPER, KAFKA, (), "offsetmgr migrate rollback 'my plan.json' --group shop"),
    ],
)
def test_the_plan_decides_the_next_step(
    phase: GroupPhase,
    state: str,
    source: GroupPhase,
    target: GroupPhase,
    members: tuple[str, ...],
    expected: str | None,
) -> None:
    assert command(phase, state, source, target, *members)[0] == expected


@pytest.mark.parametrize("phase", [ZOOKEEPER, DUAL, KAFKA])
def test_a_name_that_begins_with_a_dash_is_no_option_of_the_next_command(phase: GroupPhase) -> None:
    text, _ = command(phase, "applied", ZOOKEEPER, KAFKA, "m", group="-dash")  # parses the command
    assert text is not None and "-o -" not in text


def moved(*members: str, in_zookeeper: int) -> str | None:
    live = tuple(GroupMember(member, "", "", None) for member in members)
    tp = TopicPartition("orders", 0)
    stores = (
        StoreSample("zookeeper", "zookeeper://zk:2181", {tp: Committed(in_zookeeper)}, live),
        StoreSample("kafka", "kafka://k:9092", {tp: Committed(7)}),
    )
    zookeeper, kafka = (store.uri for store in stores)
    plan = MigratedGroup("p.json", "shop", "shop", "finalized", ZOOKEEPER, KAFKA, zookeeper, kafka, finalized_at=1)
    evidence = PhaseEvidence(GroupPhase.MOVED, Confidence.SEEN, "")
    return next_command(GroupLocation(GroupSample("shop", stores, plan=plan), evidence, ()), "")[0]


def test_the_old_offsets_are_not_deleted_while_the_members_may_be_dual() -> None:
    write = "offsetmgr runbook write --group shop --to kafka -o shop.json -o shop.html"
    assert moved("m", in_zookeeper=7) == write
    delete = "offsetmgr migrate finalize p.json shop --delete-source"
    assert moved("m", in_zookeeper=5) == moved(in_zookeeper=7) == delete


def test_a_group_that_still_commits_to_the_source_is_not_finalized() -> None:
    _, why = command(KAFKA, "applied", KAFKA, MANAGER)
    assert why == "the offsets are copied to manager://m:9092, and the group still commits to Kafka"


@pytest.mark.parametrize(
    ("source", "target", "title"),
    [(ZOOKEEPER, KAFKA, "ZooKeeper"), (KAFKA, ZOOKEEPER, "Kafka"), (MANAGER, KAFKA, "the offset manager")],
)
def test_a_group_that_commits_to_the_source_of_a_finalized_plan_is_not_planned_again(
    source: GroupPhase, target: GroupPhase, title: str
) -> None:
    assert command(source, "finalized", source, target, "m") == (
        "offsetmgr groups describe --members --group shop",
        f"the group commits to {title} again after the plan was finalized; find the consumer that still commits there",
    )


@pytest.mark.parametrize(("phase", "files"), [(DUAL, ["a_b.json", "a_b.html"]), (ZOOKEEPER, ["a_b.plan"])])
def test_the_files_of_a_group_have_valid_names(phase: GroupPhase, files: list[str]) -> None:
    text, _ = command(phase, "rolled back", ZOOKEEPER, KAFKA, group="a/b")
    words = shlex.split(text or "")
    assert [word for before, word in pairwise(words) if before == "-o"] == files
