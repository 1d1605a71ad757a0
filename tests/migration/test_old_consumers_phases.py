"""The consumers of each release in every phase of a migration, on the way to Kafka and back.

Two old high-level consumers go from ZooKeeper through dual commit to Kafka alone, and the same way back. They are
restarted one after the other, and records arrive before, between and after the restarts. Every record is consumed
exactly once, because every consumer stops cleanly.

The new consumer of 0.9.0.1 and of 1.1.1 is a member of a Kafka group alongside them. The migration never touches it.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from old_consumers import old_member, restart
from processes import Commands, wait_for
from release_environment import Environment, NewConsumer, Records, releases, seen

from offsetmgr.sandbox import OldConsumer
from offsetmgr.sandbox.legacy_consumer import JARS as OLD_CONSUMERS

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
WITH_NEW_CONSUMERS = ("0.9.0.1", "1.1.1")
PARTITIONS = range(4)
QUIET = 3
"""A partition that gets no records on the way back in phase dual, so members never commit it to ZooKeeper there."""


class NewGroup:
    """The group of a new consumer, and checks of the commands' output for it."""

    def __init__(self, env: Environment, records: Records, consumer: NewConsumer) -> None:
        self.env, self.records, self.consumer = env, records, consumer
        self.group = consumer.group

    def check(self, send: Callable[[], None]) -> None:
        """Checks offsets, lag and state before and after the consumer consumes the records that ``send`` produces."""
        before = dict(self.records.ends)
        wait_for(lambda: self._committed() == before, "the new consumer commits all")
        self.consumer.freeze()
        send()
        assert self._lag() == {p: (before[p], self.records.ends[p] - before[p]) for p in PARTITIONS}
        self.consumer.thaw()
        wait_for(lambda: self.consumer.seen().total() == self.records.total, "the new consumer consumes all")
        wait_for(lambda: self._committed() == self.records.ends, "the new consumer commits all")
        assert self._lag() == {p: (self.records.ends[p], 0) for p in PARTITIONS}
        assert self.group in [row["group"] for row in self.env.rows("groups", "list", *self.env.servers)]
        at = ("--group", self.group, *self.env.servers)
        (described,) = self.env.rows("groups", "describe", *at, "--state")
        assert (described["state"], described["members"]) == ("STABLE", 1)
        edit = ("offsets", "set", *at, "--topic", f"{self.env.topic}:0", "--to-offset", "0", "--execute", "--yes")
        assert "STABLE with 1 member: consumer-1 at" in self.env.run(*edit, code=1)

    def _committed(self) -> dict[int, int]:
        return self.env.committed(self.env.kafka, self.group)

    def _lag(self) -> dict[int, tuple[int, int]]:
        """The committed offset and the lag of each partition."""
        rows = self.env.rows("offsets", "lag", "--group", self.group, *self.env.servers)
        return {row["partition"]: (row["offset"], row["lag"]) for row in rows}


class Job:
    """Two old consumers of one group, the records that they consume, and the phase that defines their stores."""

    def __init__(self, env: Environment, records: Records, group: str, members: list[OldConsumer]) -> None:
        self.env, self.records, self.group, self.members = env, records, group, members
        self.new: NewGroup | None = None
        self.phase = "zookeeper"

    def consume(self, partitions: range | list[int] = PARTITIONS) -> None:
        """Produces records, and waits until the members have consumed and committed them in the stores of the phase."""
        if self.new is None:
            self.records.send(partitions, 5)
        else:
            self.new.check(lambda: self.records.send(partitions, 5))
        self._await_consumed()
        ends = {p: self.records.ends[p] for p in partitions}
        stores = [self.env.zookeeper] if self.phase != "kafka" else []
        stores += [self.env.kafka] if self.phase != "zookeeper" else []
        for store in stores:
            self._await_committed(store, ends)
        self._check_commands(stores)

    def _await_committed(self, store: str, ends: dict[int, int]) -> None:
        wait_for(lambda: ends.items() <= self.committed(store).items(), f"commits in {store}")

    def _check_commands(self, stores: list[str]) -> None:
        """Checks that the commands show no lag and reject an edit in each store of the group, and name its members."""
        ids = {member.member_id for member in self.members}
        registry = self.env.zookeeper.removeprefix("zookeeper://")

        def at(store: str) -> tuple[str, ...]:
            return ("--group", self.group, "--store", store, "--zookeeper", registry, *self.env.servers)

        def rows(store: str) -> list[dict[str, Any]]:
            return self.env.rows("groups", "describe", *at(store))

        def owners() -> set[str | None]:
            return {row["member_id"] for row in rows(self.env.zookeeper)}

        # A member that was restarted may rebalance once more after the first records were consumed.
        wait_for(lambda: owners() == ids, "each member owns a partition")
        for store in stores:
            assert {row["lag"] for row in rows(store)} == {0}
            to_zero = ("--topic", f"{self.env.topic}:0", "--to-offset", "0", "--execute", "--yes")
            output = self.env.run("offsets", "set", *at(store), *to_zero, code=1)
            assert "STABLE with 2 members: " in output
            assert all(member in output for member in ids)

    def go_to(self, phase: str) -> None:
        """Restarts the members one after the other, and sends records while only one of them is in the new phase."""
        for number, member in enumerate(self.members):
            restart(member, phase)
            if number == 0:
                self.records.send([p for p in PARTITIONS if p != QUIET], 2)
                self._await_consumed()
        self.phase = phase

    def committed(self, uri: str) -> dict[int, int]:
        return self.env.committed(uri, self.group)

    def _await_consumed(self) -> None:
        wait_for(lambda: len(seen(self.members)) >= self.records.total, "the old consumers consume all")


@pytest.mark.parametrize("release", [one for one in releases("1.1.1") if one.values[0] in OLD_CONSUMERS])
def test_every_record_is_consumed_once_on_the_way_to_kafka_and_back(start_release, release, unique, tmp_path):
    release_cluster = start_release(release)
    topic = release_cluster.make_topic(unique, len(PARTITIONS))
    zk, kafka = f"zookeeper://{release_cluster.zookeeper}", f"kafka://{release_cluster.bootstrap}"
    env = Environment(zk, kafka, release_cluster.bootstrap, topic, Commands(tmp_path))
    records = Records(release_cluster.bootstrap, topic, release)
    group, new_group = f"x-{unique}-old", f"x-{unique}-new"
    members = [
        old_member(tmp_path / f"old-{number}", release_cluster.zookeeper, group, topic, version=release)
        for number in range(2)
    ]
    job = Job(env, records, group, members)
    with ExitStack() as stack:
        if release in WITH_NEW_CONSUMERS:
            new = NewConsumer(
                tmp_path / "new", release=release, bootstrap=release_cluster.bootstrap, group=new_group, topic=topic
            )
            job.new = NewGroup(env, records, stack.enter_context(new))
        for member in members:
            stack.enter_context(member)
        if job.new:
            records.send(PARTITIONS)
            wait_for(lambda: new.seen().total() == records.total, "the new consumer consumes")
            wait_for(lambda: env.is_stable(new_group), "the new consumer is a member")
        job.consume()

        plan = ("migrate", "plan", "--from", zk, "--to", kafka, "--group", f"x-{unique}-*", "-o", "there.json")
        assert {row["group"] for row in env.rows(*plan)} == {group}
        env.run("migrate", "apply", "there.json", "--yes")
        assert job.committed(kafka) == records.ends
        job.go_to("dual")
        job.consume()
        assert job.committed(zk) == job.committed(kafka) == records.ends
        env.run("migrate", "verify", "there.json")
        job.go_to("kafka")
        left = job.committed(zk)
        job.consume()
        with records.steadily(PARTITIONS):
            assert "finalized" in env.run("migrate", "finalize", "there.json", "--yes")
        job.consume()
        assert job.committed(zk) == left

        job.go_to("dual")
        job.consume([p for p in PARTITIONS if p != QUIET])
        assert job.committed(zk)[QUIET] == left[QUIET] < records.ends[QUIET]
        env.run("migrate", "rollback", "there.json", "--reverse-plan", "back.json")
        env.run("migrate", "apply", "back.json", "--yes")
        assert job.committed(zk) == job.committed(kafka) == records.ends
        env.run("migrate", "verify", "back.json")
        job.go_to("zookeeper")
        left = job.committed(kafka)
        job.consume()
        assert job.committed(kafka) == left
    assert Counter(seen(members).values()) == {1: records.total}
    if job.new:
        assert Counter(job.new.consumer.seen().values()) == {1: records.total}
