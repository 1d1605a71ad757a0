"""The commands of the guides "Migrating", "Rolling bounce" and "Everyday", on brokers of each release."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from matrix_worlds import Records, World, old_consumer_for, seen
from oldfleet import Fleet
from processes import Commands, wait_for

from offsetmgr.sandbox import OldConsumer

if TYPE_CHECKING:
    from matrix.conftest import Era

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
PARTITIONS = range(4)
QUIET = 3
"""A partition without records while the group is in phase dual on the way back."""
EXECUTE = ("--execute", "--yes")
LATER = "a deleted offset stays until the broker's next check for expired offsets"


@dataclass
class Guide:
    """A cluster with a topic of numbered records, and the options that the guides use."""

    world: World
    records: Records
    registry: str
    release: str

    @property
    def both(self) -> tuple[str, ...]:
        return ("--zookeeper", self.registry, *self.world.servers)

    def lag(self, *options: str) -> dict[int, int]:
        return {row["partition"]: row["lag"] for row in self.world.rows("offsets", "lag", *options)}


@pytest.fixture
def guide(era: Era, unique: str, tmp_path: Path) -> Guide:
    topic = era.make_topic(unique, len(PARTITIONS))
    kafka = f"kafka://{era.bootstrap}"
    world = World(f"zookeeper://{era.zookeeper}", kafka, era.bootstrap, topic, Commands(tmp_path))
    return Guide(world, Records(era.bootstrap, topic, era.release), era.zookeeper, era.release)


def test_lag_and_differences_of_both_stores_are_right(guide: Guide, unique: str) -> None:
    world, group = guide.world, ("--group", unique)
    guide.records.send(PARTITIONS, 20)
    world.commit(world.zookeeper, unique, {0: 5, 1: 6})
    said = world.run("offsets", "lag", *group, "--zookeeper", guide.registry, code=2)
    assert "hint: add --bootstrap-server" in said
    assert guide.lag(*group, *guide.both) == {0: 15, 1: 14}
    world.commit(world.kafka, unique, {0: 5, 1: 8, 2: 9})
    assert guide.lag(*group, *world.servers) == {0: 15, 1: 12, 2: 11}
    assert guide.lag(*group, *guide.both) == {0: 15, 1: 12, 2: 11}
    said = world.run("offsets", "lag", *group, *guide.both)
    assert (
        "2 offsets in ZooKeeper are older than the group's in Kafka; the lag is computed from the offsets in Kafka"
        in said
    )
    rows = world.rows("offsets", "diff", "--from", world.zookeeper, "--to", world.kafka, *group, code=1)
    assert [(row["partition"], row["from_offset"], row["to_offset"]) for row in rows] == [(1, 6, 8), (2, None, 9)]
    world.commit(world.zookeeper, unique, {1: 8, 2: 9})
    said = world.run("offsets", "diff", "--from", world.zookeeper, "--to", world.kafka, *group)
    assert "no difference in 1 group" in said


def test_a_group_is_copied_between_stores_and_renamed_in_each(guide: Guide, unique: str) -> None:
    world, offsets = guide.world, {0: 5, 1: 6}
    first, second, third = f"{unique}-1", f"{unique}-2", f"{unique}-3"
    guide.records.send(PARTITIONS, 20)
    world.commit(world.zookeeper, first, offsets)
    at_zookeeper = ("--zookeeper", guide.registry)
    world.run("groups", "copy", first, second, *at_zookeeper, "--to", world.kafka, *EXECUTE)
    assert world.held(world.kafka, second) == offsets
    world.run("groups", "copy", second, second, *world.servers, "--to", world.zookeeper, *EXECUTE)
    assert world.held(world.zookeeper, second) == offsets

    world.run("groups", "rename", second, third, *at_zookeeper, *EXECUTE)
    assert (world.held(world.zookeeper, second), world.held(world.zookeeper, third)) == ({}, offsets)
    said = world.run("groups", "rename", second, third, *world.servers, *EXECUTE)
    assert f"verified: group '{third}' has all offsets of '{second}'" in said
    assert world.held(world.kafka, third) == offsets
    assert (LATER in said) == (guide.release != "2.8.2")
    if guide.release != "0.8.2.2":  # it looks for expired offsets every 10 minutes alone
        wait_for(lambda: world.held(world.kafka, second) == {}, "the old group is gone")
    undo = next(line for line in said.splitlines() if line.startswith("undo 1: offsetmgr "))
    world.run(*shlex.split(undo.partition("offsetmgr ")[2]), "--yes")
    assert world.held(world.kafka, second) == offsets


def test_a_migration_tells_its_state_and_is_refreshed_and_finalized_in_both_directions(
    guide: Guide, unique: str
) -> None:
    world, offsets = guide.world, {0: 5, 1: 6}
    guide.records.send(PARTITIONS, 20)
    world.commit(world.zookeeper, unique, offsets)

    def phase(plan: str) -> str:
        (row,) = json.loads(world.commands.run("migrate", "status", plan, "--format", "json").stdout)
        return str(row["phase"])

    there = ("migrate", "plan", "--from", world.zookeeper, "--to", world.kafka, "--group", unique)
    said = world.run(*there, "-o", "there.json")
    assert "expiry  offsets copied now" in said
    assert phase("there.json") == "planned"
    world.run("migrate", "apply", "there.json", "--yes")
    assert phase("there.json") == "applied"
    world.run("migrate", "verify", "there.json")
    assert "1 group renewed" in world.run("migrate", "apply", "there.json", "--refresh", "--yes")
    assert world.held(world.kafka, unique) == offsets
    world.run("migrate", "finalize", "there.json", "--window", "1", "--delete-source", "--yes")
    assert phase("there.json") == "finalized"
    assert world.held(world.zookeeper, unique) == {}
    assert "1 group renewed" in world.run("migrate", "apply", "there.json", "--refresh", "--yes")

    world.commit(world.kafka, unique, {0: 7})
    world.run("migrate", "rollback", "there.json", "--reverse-plan", "back.json")
    world.run("migrate", "apply", "back.json", "--yes")
    assert world.held(world.zookeeper, unique) == {0: 7, 1: 6}
    world.run("migrate", "verify", "back.json")
    said = world.run("migrate", "finalize", "back.json", "--window", "1", "--delete-source", "--yes")
    assert phase("back.json") == "finalized"
    assert (LATER in said) == (guide.release != "2.8.2")
    if guide.release != "0.8.2.2":
        wait_for(lambda: world.held(world.kafka, unique) == {}, "Kafka's offsets are gone")


def test_a_runbook_is_written_carried_out_and_checked_on_the_way_there_and_back(
    guide: Guide, unique: str, tmp_path: Path
) -> None:
    world, records = guide.world, guide.records
    member = OldConsumer(
        tmp_path / "member",
        zookeeper=guide.registry,
        group=unique,
        topic=world.topic,
        auto_commit_interval_ms=200,
        version=old_consumer_for(guide.release),
    )
    busy = [p for p in PARTITIONS if p != QUIET]
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(tmp_path, [member]))

        def command(name: str, *options: str, code: int = 0) -> str:
            return world.run("runbook", name, "--group", unique, *guide.both, *options, code=code)

        def bounce(phase: str, *options: str) -> str:
            at = ("--to-phase", phase, "--command", fleet.command, "--quiet", "1", "--poll", "0.1")
            return command("bounce", *at, *options)

        with records.steadily(PARTITIONS):
            command("write", "--to", "kafka", "-o", "there.json", "-o", "there.md", "--poll", "0.1")
            plan = ("migrate", "plan", "--from", world.zookeeper, "--to", world.kafka, "--group", unique)
            world.run(*plan, "-o", "plan.json")
            world.run("migrate", "apply", "plan.json", "--yes")
            since = ("--from-phase", "zookeeper", "--baseline", "there.json")
            assert "nothing was executed" in bounce("dual", *since)
            assert fleet.restarted == []
            bounce("dual", *since, "--execute")
            assert len(fleet.restarted) == 1
            command("check", "--phase", "dual", "--baseline", "there.json", "--poll", "0.1")
            world.run("migrate", "verify", "plan.json")
            bounce("kafka", "--execute")
            said = command("bounce", "--to-phase", "zookeeper", "--command", fleet.command, "--execute", code=1)
            assert "kafka -> zookeeper directly" in said
            world.run("migrate", "finalize", "plan.json", "--yes")
        wait_for(lambda: seen([member]).total() >= records.total, "every record is consumed")
        assert world.held(world.zookeeper, unique)[QUIET] < records.ends[QUIET]

        with records.steadily(busy):
            command("write", "--to", "zookeeper", "-o", "back.json", "--poll", "0.1")
            said = bounce("dual", "--accept-idle", "--baseline", "back.json", "--state", "back-state.json", "--execute")
            assert f"copy to ZooKeeper: {world.topic}-{QUIET} " in said
            bounce("zookeeper", "--accept-idle", "--execute")
            command("check", "--phase", "zookeeper", "--accept-idle", "--quiet", "1", "--poll", "0.1")
        assert len(fleet.restarted) == 4
        wait_for(lambda: seen([member]).total() >= records.total, "every record is consumed")
        wait_for(lambda: world.held(world.zookeeper, unique) == records.ends, "every record is committed")
    assert Counter(seen([member]).values()) == {1: records.total}
