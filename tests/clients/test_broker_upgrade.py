"""Brokers are upgraded in the middle of a migration or a bounce, which then continues."""

import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from old_consumers import Fleet, old_member
from processes import Commands, wait_for
from release_environment import Environment, Records, has_leaders, produce, seen

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, create_topic

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
PARTITIONS = 2


@dataclass
class Upgraded:
    """A cluster of one broker, which can be restarted with another release."""

    broker: KafkaBroker
    zookeeper: str
    env: Environment

    def upgrade(self, release: str) -> None:
        self.broker.stop()
        self.broker = KafkaBroker(
            self.broker.directory, zookeeper=self.zookeeper, version=release, port=self.broker.port
        ).start()
        wait_for(lambda: has_leaders(self.env.bootstrap, self.env.topic, PARTITIONS), "the topic has leaders")


@contextmanager
def cluster(release: str, zookeeper: ZooKeeperServer, topic: str, directory: Path) -> Iterator[Upgraded]:
    where = f"{zookeeper.connect}/{topic}"
    broker = KafkaBroker(directory / "broker", zookeeper=where, version=release).start()
    bootstrap = broker.bootstrap
    env = Environment(f"zookeeper://{where}", f"kafka://{bootstrap}", bootstrap, topic, Commands(directory))
    found = Upgraded(broker, where, env)
    try:
        create_topic(topic, PARTITIONS, zookeeper=where, bootstrap=bootstrap, version=release)
        wait_for(lambda: has_leaders(bootstrap, topic, PARTITIONS), "the topic has leaders")
        yield found
    finally:
        found.broker.stop()


@pytest.mark.parametrize(("before", "after"), [("0.10.2.2", "2.8.2"), ("0.9.0.1", "1.1.1")])
def test_a_plan_is_applied_verified_and_rolled_back_after_the_upgrade(before, after, zookeeper, unique, tmp_path):
    """Kafka 0.9 has no cluster id, and 1.1 has one. The plan's cluster check passes nevertheless."""
    groups = [f"{unique}-{number}" for number in range(6)]
    with cluster(before, zookeeper, unique, tmp_path) as upgraded:
        env = upgraded.env
        produce(env.bootstrap, unique, before)
        env.commit(env.kafka, groups[0], {0: 1})  # first: a target that was written last is not overwritten
        for group in groups:
            env.commit(env.zookeeper, group, {0: 5, 1: 6})
        sides = ("--from", env.zookeeper, "--to", env.kafka)
        env.run("migrate", "plan", *sides, "--group", f"{unique}-[0-2]", "-o", "first.json")
        env.run("migrate", "plan", *sides, "--group", f"{unique}-[3-5]", "-o", "second.json")
        env.run("migrate", "apply", "first.json", "--yes")
        upgraded.upgrade(after)
        assert "verified: 6 partitions" in env.run("migrate", "verify", "first.json")
        env.run("migrate", "apply", "second.json", "--yes")
        assert "verified: 6 partitions" in env.run("migrate", "verify", "second.json")
        env.run("migrate", "rollback", "first.json", "--yes")
        assert env.committed(env.kafka, groups[0]) == {0: 1}
        assert env.committed(env.kafka, groups[1]) == {}
        assert env.committed(env.kafka, groups[4]) == {0: 5, 1: 6}


def test_a_bounce_that_stopped_before_the_upgrade_goes_on_after_it(zookeeper, unique, tmp_path) -> None:
    """The second member's restart fails, the broker is upgraded, and the same command line restarts that member."""
    with cluster("0.10.2.2", zookeeper, unique, tmp_path) as upgraded:
        env = upgraded.env
        records = Records(env.bootstrap, unique, "0.10.2.2")
        members = [
            old_member(tmp_path / f"member-{number}", upgraded.zookeeper, unique, unique, version="0.10.2.2")
            for number in range(PARTITIONS)
        ]
        with Fleet(tmp_path, members) as fleet:
            both = ("--zookeeper", upgraded.zookeeper, *env.servers)
            allowed = tmp_path / "allowed"
            once = f"test -e {shlex.quote(str(allowed))} || mkdir {shlex.quote(str(tmp_path / 'first'))}"
            bounce = ("runbook", "bounce", "--group", unique, *both, "--to-phase", "dual", "--baseline", "there.json")
            command = f"({once}) && {fleet.command}"
            bounce += ("--command", command, "--quiet", "1", "--poll", "0.1", "--execute", "--yes")
            with records.steadily(range(PARTITIONS)):
                env.run(
                    "runbook", "write", "--group", unique, *both, "--to", "kafka", "-o", "there.json", "--poll", "0.1"
                )
                plan = ("migrate", "plan", "--from", env.zookeeper, "--to", env.kafka, "--group", unique)
                env.run(*plan, "-o", "plan.json")
                env.run("migrate", "apply", "plan.json", "--yes")
                env.run(*bounce, code=1)
                assert len(fleet.restarted) == 1
            upgraded.upgrade("2.8.2")
            allowed.touch()
            with records.steadily(range(PARTITIONS)):
                env.run(*bounce)
                check = ("runbook", "check", "--group", unique, *both, "--phase", "dual", "--baseline", "there.json")
                env.run(*check, "--poll", "0.1")
                env.run("migrate", "verify", "plan.json")
            assert len(fleet.restarted) == len(set(fleet.restarted)) == PARTITIONS
            wait_for(lambda: seen(members).total() >= records.total, "every record is consumed")
        assert Counter(seen(members).values()) == {1: records.total}
