"""Groups of Java 3.9, Java 4.4 (with the classic and with the consumer protocol) and librdkafka move by ``migrate
cutover`` from Kafka 3.9.1 to 4.4.0 under load, and back, while the command, the brokers and MirrorMaker 2 are killed.

A reverse replicator must begin at the end of the target's logs. With MirrorMaker of Kafka 4.1 that takes

- the property ``B->A.consumer.auto.offset.reset=latest``, and
- patience: MirrorMaker looks for the end when it first polls, a moment after it has started, and copies no record that
  was written before. It logs "Resetting offset for partition" for each partition then, and only then may the producers
  start at the target. MirrorMaker that is killed before it has copied and stored an offset of a partition begins at the
  end again.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from conftest import MakeTopic
from moving_groups import PARTITIONS, MovingGroups, NumberedLoad, Operator, Place, Step, Verdicts
from offsets_topic import assert_own_epochs
from partition_leaders import raise_epochs
from processes import until
from release_fixtures import QUICK_HEARTBEATS

from offsetmgr.sandbox import KafkaBroker, KraftBroker, MirrorMaker, ZooKeeperServer

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

RECORDS_PER_S = 100


class Pair:
    """Both clusters, and the MirrorMakers between them."""

    def __init__(self, a: KafkaBroker, b: KraftBroker, directory: Path) -> None:
        self.a, self.b, self.directory = a, b, directory
        self.prefix = f"moved-{uuid.uuid4().hex[:8]}-"

    def topic(self, policy: str, make_topic: MakeTopic) -> str:
        """A topic of A whose leader epochs are higher than those in B."""
        name = make_topic(f"{self.prefix}{policy}", PARTITIONS, bootstrap=self.a.bootstrap)
        raise_epochs(self.a.zookeeper, self.a.bootstrap, name)
        return name

    def maker(
        self,
        policy: Literal["default", "identity"],
        source: Place,
        target: Place,
        aliases: tuple[str, str],
        **config: object,
    ) -> MirrorMaker:
        """A MirrorMaker that stores its positions only each minute, as it does by default. Other aliases keep it apart
        from another MirrorMaker in the same direction."""
        settings = {"sync.group.offsets.enabled": "false", f"{aliases[1]}.offset.flush.interval.ms": 60_000}
        return MirrorMaker(
            self.directory / "-".join(aliases),
            source=source.bootstrap,
            target=target.bootstrap,
            topics=f"{self.prefix}{policy}.*",
            groups="none",
            policy=policy,
            aliases=aliases,
            interval_s=1,
            config={**settings, **config},
        )


@pytest.fixture(scope="module")
def pair(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    config = {"zookeeper.session.timeout.ms": 2000}
    with (
        KafkaBroker(directory / "a", zookeeper=f"{zookeeper.connect}/moved", config=config) as a,
        KraftBroker(directory / "b", config=QUICK_HEARTBEATS) as b,
    ):
        yield Pair(a, b, directory)


def check(groups: MovingGroups, load: NumberedLoad, a: Place, b: Place) -> int:
    """Prints what each move has lost and repeated, and fails with the records. Returns how many records the groups
    received again because the target holds them twice."""
    verdicts = Verdicts([a, b])
    counts = [count for group in groups.all for count in verdicts.counts(group)]
    table = [f"{'clients':18} {'move':5} {'lost':>5} {'repeated':>9} {'held twice':>11}"]
    for one in counts:
        numbers = f"{len(one.lost):5} {len(one.repeated):9} {len(one.held_twice):11}"
        table.append(f"{one.kind:18} {one.direction:5} {numbers}")
    sys.stdout.write("\n".join(["", *table, ""]))
    lost = [(group.kind, "at both", verdicts.missing(group, load.sent)) for group in groups.all]
    faults = [("lost", *one) for one in [*lost, *((one.kind, one.direction, one.lost) for one in counts)]]
    faults += [("repeated", one.kind, one.direction, one.repeated) for one in counts]
    texts = [
        f"{what} {len(found)} by {who}, {where}: {', '.join(found[:5])}" for what, who, where, found in faults if found
    ]
    assert not texts, "\n".join(texts)
    assert_own_epochs(a.bootstrap, b.bootstrap, *(one.name for one in groups.all))
    return sum(len(one.held_twice) for one in counts)


def test_until_the_producers_move_a_group_goes_back_without_a_replicator(
    pair: Pair, make_topic: MakeTopic, tmp_path: Path
) -> None:
    # Given groups under load, and a MirrorMaker that was killed, so that B holds a stretch twice
    topic = pair.topic("default", make_topic)
    a, b = Place("A", pair.a.bootstrap, topic), Place("B", pair.b.bootstrap, f"A.{topic}")
    groups, load = MovingGroups(f"{topic}-"), NumberedLoad(RECORDS_PER_S)
    load.start(a)
    groups.start(a)
    maker = pair.maker("default", a, b, ("A", "B"))
    maker.start()
    until(lambda: min(b.ends().values()) > 200)
    maker.kill()
    maker.start()
    groups.await_records()
    rename = ("--rename-topic", r"(.*)=A.\1")
    # When the groups move to B, are taken back, and move again, while the command and B's broker are killed
    with Operator(tmp_path, groups.all, a, b, *rename) as there:
        there.await_obstacle(groups.all[0].name, "1 member: java-3.9-A-0")
        groups.stop()
        there.await_groups(Step.WRITTEN)
        there.undo()
    with Operator(tmp_path, groups.all, a, b) as there:
        there.await_groups(Step.WRITTEN)
        groups.start(b)
        pair.b.kill()
        pair.b.start()
        there.await_groups(Step.MOVING)
        load.end()
        there.await_topic(Step.COPIED)
        maker.stop()
        there.say("--replicator-stopped")
        there.await_topic(Step.REPLICATOR_STOPPED)
    groups.await_ends()
    # And when they go back, while A's broker is killed
    with Operator(tmp_path, groups.all, b, a, "--back-of", str(there.state)) as back:
        groups.stop()
        pair.a.kill()
        pair.a.start()
        back.await_groups(Step.WRITTEN)
        groups.start(a)
        load.start(a)
        back.await_groups(Step.MOVING)
    load.end()
    groups.await_ends()
    groups.stop()
    # Then no record is lost, and those are repeated that B holds twice
    sys.stdout.write(f"kills of the command: {there.kills + back.kills}\n")
    assert there.kills + back.kills > 10
    assert check(groups, load, a, b) > 0


def test_all_the_way_back_through_a_reverse_replicator(pair: Pair, make_topic: MakeTopic, tmp_path: Path) -> None:
    # Given groups under load, and a MirrorMaker that keeps the names of topics
    topic = pair.topic("identity", make_topic)
    a, b = Place("A", pair.a.bootstrap, topic), Place("B", pair.b.bootstrap, topic)
    groups, load = MovingGroups(f"{topic}-"), NumberedLoad(RECORDS_PER_S)
    load.start(a)
    groups.start(a)
    maker = pair.maker("identity", a, b, ("west", "east"))
    maker.start()
    groups.await_records()
    until(lambda: min(b.ends().values()) > 200)
    reverse = pair.maker("identity", b, a, ("east", "west"), **{"east->west.consumer.auto.offset.reset": "latest"})

    def reverse_maker() -> None:
        maker.stop()
        reverse.start()
        found = f"Resetting offset for partition {topic}-".encode()
        until(lambda: reverse.log_of_this_run().count(found) == PARTITIONS)

    # When all groups and the producers move to B, and a reverse replicator begins at B's end
    with Operator(tmp_path, groups.all, a, b, "--way-back", "running") as there:
        pair.a.kill()
        pair.a.start()
        sent = load.sent
        until(lambda: min(a.newest_numbers()) > sent, 60)
        there.move_all(groups.stop, partial(groups.start, b), load.end, reverse_maker, partial(load.start, b))
    # And when everything moves back to A
    with Operator(tmp_path, groups.all, b, a, "--back-of", str(there.state)) as back:
        back.move_all(groups.stop, partial(groups.start, a), load.end, reverse.stop, partial(load.start, a))
    load.end()
    groups.await_ends()
    groups.stop()
    # Then each group has processed each record once
    assert check(groups, load, a, b) == 0
