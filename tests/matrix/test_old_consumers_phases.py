"""The consumers of each release in every phase of a migration, on the way to Kafka and back.

Two old high-level consumers go from ZooKeeper through dual commit to Kafka alone, and the same way back. They are
restarted one after the other, and records arrive before, between and after the restarts. Every record is consumed
exactly once, because every consumer stops cleanly.

The new consumer of 0.9.0.1 and of 1.1.1 is a member of a Kafka group alongside them. The migration never touches it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from matrix_worlds import NewConsumer, Records, World, seen
from oldfleet import restart
from processes import Commands, wait_for

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.sandbox import OldConsumer
from offsetmgr.sandbox.legacy_consumer import JARS as OLD_CONSUMERS

if TYPE_CHECKING:
    from matrix.conftest import Era

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
WITH_NEW_CONSUMERS = ("0.9.0.1", "1.1.1")
PARTITIONS = range(4)
QUIET = 3
"""A partition that gets no records on the way back in phase dual, so members never commit it to ZooKeeper there."""


class NewGroup:
    """The group of a new consumer, and what the commands say of it."""

    def __init__(self, world: World, records: Records, consumer: NewConsumer) -> None:
        self.world, self.records, self.consumer = world, records, consumer
        self.group = consumer.group

    def check(self, send: Callable[[], None]) -> None:
        """``send`` produces records, which the consumer consumes only after its lag was looked at."""
        before = dict(self.records.ends)
        wait_for(lambda: self._held() == before, "the new consumer commits all")
        self.consumer.freeze()
        send()
        assert self._lag() == {p: (before[p], self.records.ends[p] - before[p]) for p in PARTITIONS}
        self.consumer.thaw()
        wait_for(lambda: self.consumer.seen().total() == self.records.total, "the new consumer consumes all")
        wait_for(lambda: self._held() == self.records.ends, "the new consumer commits all")
        assert self._lag() == {p: (self.records.ends[p], 0) for p in PARTITIONS}
        assert self.group in [row["group"] for row in self.world.rows("groups", "list", *self.world.servers)]
        at = ("--group", self.group, *self.world.servers)
        (described,) = self.world.rows("groups", "describe", *at, "--state")
        assert (described["state"], described["members"]) == ("STABLE", 1)
        edit = ("offsets", "set", *at, "--topic", f"{self.world.topic}:0", "--to-offset", "0", "--execute", "--yes")
        assert "STABLE with 1 member: consumer-1 at" in self.world.run(*edit, code=1)

    def _held(self) -> dict[int, int]:
        return self.world.held(self.world.kafka, self.group)

    def _lag(self) -> dict[int, tuple[int, int]]:
        """The committed offset and the lag of each partition."""
        rows = self.world.rows("offsets", "lag", "--group", self.group, *self.world.servers)
        return {row["partition"]: (row["offset"], row["lag"]) for row in rows}


class Job:
    """Two old consumers of one group, what they consume, and where they commit."""

    def __init__(self, world: World, records: Records, group: str, members: list[OldConsumer]) -> None:
        self.world, self.records, self.group, self.members = world, records, group, members
        self.new: NewGroup | None = None
        self.phase = CommitMode.ZOOKEEPER

    def consume(self, partitions: range | list[int] = PARTITIONS) -> None:
        """Records are produced and consumed, and the members commit them where the phase says."""
        if self.new is None:
            self.records.send(partitions, 5)
        else:
            self.new.check(lambda: self.records.send(partitions, 5))
        self._await_consumed()
        ends = {p: self.records.ends[p] for p in partitions}
        stores = [self.world.zookeeper] if self.phase is not CommitMode.KAFKA else []
        stores += [self.world.kafka] if self.phase.commits_to_kafka else []
        for store in stores:
            wait_for(lambda store=store: ends.items() <= self.held(store).items(), f"commits in {store}")
        self._check_commands(stores)

    def _check_commands(self, stores: list[str]) -> None:
        """The commands show no lag and refuse an edit wherever the group commits; ZooKeeper holds its members."""
        ids = {member.member_id for member in self.members}
        registry = self.world.zookeeper.removeprefix("zookeeper://")

        def at(store: str) -> tuple[str, ...]:
            return ("--group", self.group, "--store", store, "--zookeeper", registry, *self.world.servers)

        def rows(store: str) -> list[dict[str, Any]]:
            return self.world.rows("groups", "describe", *at(store))

        def owners() -> set[str | None]:
            return {row["member_id"] for row in rows(self.world.zookeeper)}

        # A member that was restarted may rebalance once more after the first records were consumed.
        wait_for(lambda: owners() == ids, "each member owns a partition")
        for store in stores:
            assert {row["lag"] for row in rows(store)} == {0}
            to_zero = ("--topic", f"{self.world.topic}:0", "--to-offset", "0", "--execute", "--yes")
            said = self.world.run("offsets", "set", *at(store), *to_zero, code=1)
            assert "STABLE with 2 members: " in said
            assert all(member in said for member in ids)

    def go_to(self, phase: CommitMode) -> None:
        """Restarts the members one after the other; records arrive when only one of them is in the new phase."""
        for number, member in enumerate(self.members):
            restart(member, phase)
            if number == 0:
                self.records.send([p for p in PARTITIONS if p != QUIET], 2)
                self._await_consumed()
        self.phase = phase

    def held(self, uri: str) -> dict[int, int]:
        return self.world.held(uri, self.group)

    def _await_consumed(self) -> None:
        wait_for(lambda: len(seen(self.members)) >= self.records.total, "the old consumers consume all")


@pytest.mark.parametrize("release", [*OLD_CONSUMERS])
def test_every_record_is_consumed_once_on_the_way_to_kafka_and_back(
    start_era: Callable[[str], Era], release: str, unique: str, tmp_path: Path
) -> None:
    era = start_era(release)
    topic = era.make_topic(unique, len(PARTITIONS))
    zk, kafka = f"zookeeper://{era.zookeeper}", f"kafka://{era.bootstrap}"
    world = World(zk, kafka, era.bootstrap, topic, Commands(tmp_path))
    records = Records(era.bootstrap, topic, release)
    group, new_group = f"x-{unique}-old", f"x-{unique}-new"
    members = [
        OldConsumer(
            tmp_path / f"old-{number}",
            zookeeper=era.zookeeper,
            group=group,
            topic=topic,
            auto_commit_interval_ms=200,
            version=release,
        )
        for number in range(2)
    ]
    job = Job(world, records, group, members)
    with ExitStack() as stack:
        if release in WITH_NEW_CONSUMERS:
            new = NewConsumer(tmp_path / "new", release=release, bootstrap=era.bootstrap, group=new_group, topic=topic)
            job.new = NewGroup(world, records, stack.enter_context(new))
        for member in members:
            stack.enter_context(member)
        if job.new:
            records.send(PARTITIONS)
            wait_for(lambda: new.seen().total() == records.total, "the new consumer consumes")
            wait_for(lambda: world.is_stable(new_group), "the new consumer is a member")
        job.consume()

        plan = ("migrate", "plan", "--from", zk, "--to", kafka, "--group", f"x-{unique}-*", "-o", "there.json")
        assert {row["group"] for row in world.rows(*plan)} == {group}
        world.run("migrate", "apply", "there.json", "--yes")
        assert job.held(kafka) == records.ends
        job.go_to(CommitMode.DUAL)
        job.consume()
        assert job.held(zk) == job.held(kafka) == records.ends
        world.run("migrate", "verify", "there.json")
        job.go_to(CommitMode.KAFKA)
        left = job.held(zk)
        job.consume()
        with records.steadily(PARTITIONS):
            assert "finalized" in world.run("migrate", "finalize", "there.json", "--yes")
        job.consume()
        assert job.held(zk) == left

        job.go_to(CommitMode.DUAL)
        job.consume([p for p in PARTITIONS if p != QUIET])
        assert job.held(zk)[QUIET] == left[QUIET] < records.ends[QUIET]
        world.run("migrate", "rollback", "there.json", "--reverse-plan", "back.json")
        world.run("migrate", "apply", "back.json", "--yes")
        assert job.held(zk) == job.held(kafka) == records.ends
        world.run("migrate", "verify", "back.json")
        job.go_to(CommitMode.ZOOKEEPER)
        left = job.held(kafka)
        job.consume()
        assert job.held(kafka) == left
    assert Counter(seen(members).values()) == {1: records.total}
    if job.new:
        assert Counter(job.new.consumer.seen().values()) == {1: records.total}
