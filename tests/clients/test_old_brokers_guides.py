"""The commands of the guides "Migrating", "Rolling bounce" and "Everyday", on brokers of each release."""

import json
import shlex
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from old_consumers import Fleet, old_member
from processes import Commands, pass_margin, wait_for
from release_environment import Environment, Records, old_consumer_for, seen
from release_fixtures import ReleaseCluster

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
IN_MATRIX = ("0.10.2.2",)
PARTITIONS = range(4)
QUIET = 3
"""A partition without records while the group is in phase dual on the way back."""
EXECUTE = ("--execute", "--yes", "--yes")
LATER = "a deleted offset stays until the broker's next check for expired offsets"


@dataclass
class Guide:
    """A cluster with a topic of numbered records, and the options that the guides use."""

    env: Environment
    records: Records
    registry: str
    release: str

    @property
    def both(self) -> tuple[str, ...]:
        return ("--zookeeper", self.registry, *self.env.servers)

    def lag(self, *options: str) -> dict[int, int]:
        return {row["partition"]: row["lag"] for row in self.env.rows("offsets", "lag", *options)}


@pytest.fixture
def guide(release_cluster: ReleaseCluster, unique: str, tmp_path: Path) -> Guide:
    topic = release_cluster.make_topic(unique, len(PARTITIONS))
    kafka = f"kafka://{release_cluster.bootstrap}"
    env = Environment(
        f"zookeeper://{release_cluster.zookeeper}", kafka, release_cluster.bootstrap, topic, Commands(tmp_path)
    )
    return Guide(
        env,
        Records(release_cluster.bootstrap, topic, release_cluster.release),
        release_cluster.zookeeper,
        release_cluster.release,
    )


def test_lag_and_differences_are_computed_from_both_stores(guide: Guide, unique: str) -> None:
    env, group = guide.env, ("--group", unique)
    guide.records.send(PARTITIONS, 20)
    env.commit(env.zookeeper, unique, {0: 5, 1: 6})
    output = env.run("offsets", "lag", *group, "--zookeeper", guide.registry, code=2)
    assert "hint: add --bootstrap-server" in output
    assert guide.lag(*group, *guide.both) == {0: 15, 1: 14}
    pass_margin()
    env.commit(env.kafka, unique, {0: 5, 1: 8, 2: 9})
    assert guide.lag(*group, *env.servers) == {0: 15, 1: 12, 2: 11}
    assert guide.lag(*group, *guide.both) == {0: 15, 1: 12, 2: 11}
    output = env.run("offsets", "lag", *group, *guide.both)
    assert "1 offset in ZooKeeper is older than the group's in Kafka; the lag is computed from" in output
    assert "1 offset is only in Kafka, not in ZooKeeper; the lag is computed from it" in output
    rows = env.rows("offsets", "diff", "--from", env.zookeeper, "--to", env.kafka, *group, code=1)
    assert [(row["partition"], row["from_offset"], row["to_offset"]) for row in rows] == [(1, 6, 8), (2, None, 9)]
    env.commit(env.zookeeper, unique, {1: 8, 2: 9})
    output = env.run("offsets", "diff", "--from", env.zookeeper, "--to", env.kafka, *group)
    assert "no difference in 1 group" in output


def test_a_group_is_copied_between_stores_and_renamed_in_each(guide: Guide, unique: str) -> None:
    env, offsets = guide.env, {0: 5, 1: 6}
    first, second, third = f"{unique}-1", f"{unique}-2", f"{unique}-3"
    guide.records.send(PARTITIONS, 20)
    env.commit(env.zookeeper, first, offsets)
    at_zookeeper = ("--zookeeper", guide.registry)
    env.run("groups", "copy", first, second, *at_zookeeper, "--to", env.kafka, *EXECUTE)
    assert env.committed(env.kafka, second) == offsets
    env.run("groups", "copy", second, second, *env.servers, "--to", env.zookeeper, *EXECUTE)
    assert env.committed(env.zookeeper, second) == offsets

    env.run("groups", "rename", second, third, *at_zookeeper, *EXECUTE)
    assert (env.committed(env.zookeeper, second), env.committed(env.zookeeper, third)) == ({}, offsets)
    output = env.run("groups", "rename", second, third, *env.servers, *EXECUTE)
    assert f"verified: group '{third}' has the 2 offsets that were read from '{second}'" in output
    assert env.committed(env.kafka, third) == offsets
    assert (LATER in output) == (guide.release != "2.8.2")
    if guide.release != "0.8.2.2":  # 0.8.2 removes expired offsets only every 10 minutes
        wait_for(lambda: env.committed(env.kafka, second) == {}, "the old group is gone")
    undo = next(line for line in output.splitlines() if line.startswith("undo 1: offsetmgr "))
    env.run(*shlex.split(undo.partition("offsetmgr ")[2]), "--yes")
    assert env.committed(env.kafka, second) == offsets


def test_a_migration_is_refreshed_and_finalized_in_both_directions(guide: Guide, unique: str) -> None:
    env, offsets = guide.env, {0: 5, 1: 6}
    guide.records.send(PARTITIONS, 20)
    env.commit(env.zookeeper, unique, offsets)

    def phase(plan: str) -> str:
        (row,) = json.loads(env.commands.run("migrate", "status", plan, "--format", "json").stdout)
        return str(row["state"])

    there = ("migrate", "plan", "--from", env.zookeeper, "--to", env.kafka, "--group", unique)
    output = env.run(*there, "-o", "there.json")
    assert "expiry  offsets copied now" in output
    assert phase("there.json") == "planned"
    env.run("migrate", "apply", "there.json", "--yes")
    assert phase("there.json") == "applied"
    env.run("migrate", "verify", "there.json")
    assert "1 group renewed" in env.run("migrate", "apply", "there.json", "--refresh", "--yes")
    assert env.committed(env.kafka, unique) == offsets
    env.run("migrate", "finalize", "there.json", "--window", "1", "--delete-source", "--yes")
    assert phase("there.json") == "finalized"
    assert env.committed(env.zookeeper, unique) == {}
    assert "1 group renewed" in env.run("migrate", "apply", "there.json", "--refresh", "--yes")

    env.commit(env.kafka, unique, {0: 7})
    env.run("migrate", "rollback", "there.json", "--reverse-plan", "back.json")
    env.run("migrate", "apply", "back.json", "--yes")
    assert env.committed(env.zookeeper, unique) == {0: 7, 1: 6}
    env.run("migrate", "verify", "back.json")
    output = env.run("migrate", "finalize", "back.json", "--window", "1", "--delete-source", "--yes")
    assert phase("back.json") == "finalized"
    assert (LATER in output) == (guide.release != "2.8.2")
    if guide.release != "0.8.2.2":
        wait_for(lambda: env.committed(env.kafka, unique) == {}, "Kafka's offsets are gone")


def test_a_runbook_is_written_executed_and_checked_in_both_directions(guide: Guide, unique: str, tmp_path) -> None:
    env, records = guide.env, guide.records
    version = old_consumer_for(guide.release)
    member = old_member(tmp_path / "member", guide.registry, unique, env.topic, version=version)
    busy = [p for p in PARTITIONS if p != QUIET]
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(tmp_path, [member]))

        def command(name: str, *options: str, code: int = 0) -> str:
            return env.run("runbook", name, "--group", unique, *guide.both, *options, code=code)

        def bounce(phase: str, *options: str) -> str:
            at = ("--to-phase", phase, "--command", fleet.command, "--quiet", "1", "--poll", "0.1")
            return command("bounce", *at, *options)

        with records.steadily(PARTITIONS):
            command("write", "--to", "kafka", "-o", "there.json", "-o", "there.md", "--poll", "0.1")
            plan = ("migrate", "plan", "--from", env.zookeeper, "--to", env.kafka, "--group", unique)
            env.run(*plan, "-o", "plan.json")
            env.run("migrate", "apply", "plan.json", "--yes")
            since = ("--from-phase", "zookeeper", "--baseline", "there.json")
            assert "nothing was executed" in bounce("dual", *since)
            assert fleet.restarted == []
            bounce("dual", *since, "--execute", "--yes")
            assert len(fleet.restarted) == 1
            command("check", "--phase", "dual", "--baseline", "there.json", "--poll", "0.1")
            env.run("migrate", "verify", "plan.json")
            bounce("kafka", "--execute", "--yes")
            output = command(
                "bounce", "--to-phase", "zookeeper", "--command", fleet.command, "--execute", "--yes", code=1
            )
            assert "kafka -> zookeeper directly" in output
            env.run("migrate", "finalize", "plan.json", "--yes")
        wait_for(lambda: seen([member]).total() >= records.total, "every record is consumed")
        assert env.committed(env.zookeeper, unique)[QUIET] < records.ends[QUIET]

        with records.steadily(busy):
            command("write", "--to", "zookeeper", "-o", "back.json", "--poll", "0.1")
            output = bounce(
                "dual", "--accept-idle", "--baseline", "back.json", "--state", "back-state.json", "--execute", "--yes"
            )
            assert f"copy to ZooKeeper: {env.topic}-{QUIET} " in output
            bounce("zookeeper", "--accept-idle", "--execute", "--yes")
            command("check", "--phase", "zookeeper", "--accept-idle", "--quiet", "1", "--poll", "0.1")
        assert len(fleet.restarted) == 4
        wait_for(lambda: seen([member]).total() >= records.total, "every record is consumed")
        wait_for(lambda: env.committed(env.zookeeper, unique) == records.ends, "every record is committed")
    assert Counter(seen([member]).values()) == {1: records.total}
