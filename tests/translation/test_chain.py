"""A chain of exactly-once workers between two clusters: a source writes numbers to a topic of one cluster, copiers keep
copies of both topics in the other cluster, and a job moves the numbers from the first topic to the second one.

The job and then the source change their clusters by ``migrate cutover`` under load, and go back in the same way, while
connections fail. Each topic has a *home*, the cluster in which it is written. A copier runs from there to the other
cluster. A topic changes its home while it has no writer. Once the copy is complete, the copier stops, and the position
of the reverse copier becomes the end of the copy. Only then does the writer start there. So no record is copied back.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Position
from conftest import MakeTopic
from exactly_once import PARTITIONS, Copier, Job, Kept, Source, read_all, reader
from moving_groups import MovingGroup, Operator, Place
from offsets_topic import assert_own_epochs
from partition_leaders import raise_epochs
from processes import until, wait_for
from repeated import repeated
from stalling_proxy import StallingProxy

from offsetmgr import KafkaCluster, TopicPartition
from offsetmgr.core.errors import value_of
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer
from offsetmgr.sandbox.ports import free_port

pytestmark = pytest.mark.servers

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
SEED = int(os.environ.get("OFFSETMGR_SEED") or 0) if SOAK else 0


class Side:
    """A cluster: ``bootstrap`` is an address of it whose connections fail, and ``direct`` is one for the oracle."""

    def __init__(self, broker: KafkaBroker | KraftBroker, proxy: StallingProxy, zookeeper: str = "") -> None:
        self.proxy, self.zookeeper = proxy, zookeeper
        self.bootstrap, self.direct = proxy.address, broker.bootstrap


def settings(plain: int, cut: int, proxy: StallingProxy, *more: str) -> dict[str, object]:
    own = f"PLAINTEXT://127.0.0.1:{plain}"
    return {
        "listeners": ",".join([own, f"CUT://127.0.0.1:{cut}", *more]),
        "advertised.listeners": f"{own},CUT://{proxy.address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CUT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "group.min.session.timeout.ms": 1000,
    }


@pytest.fixture(scope="module")
def sides(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    directory = tmp_path_factory.mktemp("chain")
    plain, cut, plain_b, cut_b, controller = (free_port() for _ in range(5))
    with (
        closing(StallingProxy(f"127.0.0.1:{cut}")) as proxy,
        closing(StallingProxy(f"127.0.0.1:{cut_b}")) as proxy_b,
    ):
        where = f"{zookeeper.connect}/{directory.name}-{os.getpid()}"
        a = KafkaBroker(directory / "a", zookeeper=where, port=plain, config=settings(plain, cut, proxy))
        config = settings(plain_b, cut_b, proxy_b, f"CONTROLLER://127.0.0.1:{controller}")
        b = KraftBroker(directory / "b", port=plain_b, controller_port=controller, config=config)
        with a, b:
            yield Side(a, proxy, where), Side(b, proxy_b)


class Chain:
    """The workers. The topics are the one that the job reads and the one that it writes."""

    def __init__(self, sides: tuple[Side, Side], group: str, per_s: float) -> None:
        self.sides, self.group = sides, group
        self.topics = self.first, self.second = f"in-{group}", f"out-{group}"
        self.homes = dict.fromkeys(self.topics, sides[0])
        self.counts = Counter[str]()
        self.source = Source(self.first, per_s)
        self.source.target = sides[0].bootstrap
        self.copiers = {topic: self._copier(topic) for topic in self.topics}
        self.job = self._job()

    def other(self, side: Side) -> Side:
        return self.sides[1] if side is self.sides[0] else self.sides[0]

    def _copier(self, topic: str) -> Kept:
        return Kept(Copier, topic, self.homes[topic].bootstrap, self.other(self.homes[topic]).bootstrap)

    def _job(self) -> Kept:
        return Kept(Job, self.homes[self.second].bootstrap, self.group, self.first, self.second)

    def end(self, worker: Kept) -> None:
        worker.stop()
        self.counts += worker.counts

    def close(self) -> None:
        with ExitStack() as all_workers:
            for worker in (self.source, *self.copiers.values(), self.job):
                all_workers.callback(worker.stop)

    def await_copy(self, topic: str) -> list[int]:
        """Waits until a topic without a writer is copied to its end. Returns the ends of the copy."""
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        with KafkaCluster(self.homes[topic].direct) as home, KafkaCluster(self.other(self.homes[topic]).direct) as copy:
            found = [value_of(one) for one in home.open_transactions(partitions).values()]
            assert not any(one.is_open for one in found), found
            until(lambda: self.copiers[topic].reached == [one.end for one in found])
            return [value_of(one).end for one in copy.log_ranges(partitions).values()]

    def turn(self, topic: str) -> None:
        """Changes the home of a topic without a writer."""
        ends = self.await_copy(topic)
        self.end(self.copiers[topic])
        back_to, self.homes[topic] = self.homes[topic], self.other(self.homes[topic])
        with closing(reader(back_to.direct, f"copier-{topic}")) as positions:
            after = [Position(topic, number, end) for number, end in enumerate(ends)]
            positions.commit(offsets=after, asynchronous=False)
        self.copiers[topic] = self._copier(topic)
        self.copiers[topic].start()

    def start_source(self) -> None:
        self.source.target = self.homes[self.first].bootstrap
        self.source.start()

    def start_job(self) -> None:
        """Starts the job in the other cluster."""
        self.turn(self.second)
        self.job = self._job()
        self.job.start()

    def cut_over(self, directory: Path, back_of: Path | None) -> Path:
        """Moves the job and the source to the other cluster. Returns the state file."""
        source, target = (
            Place("A" if side is self.sides[0] else "B", side.bootstrap, self.first)
            for side in (self.homes[self.first], self.other(self.homes[self.first]))
        )
        options = ["--output-topic", f"{self.group}={self.second}", "--way-back", "running"]
        options += ["--interval", "0.1", "--wait", "1"]
        excuse = f"--excuse=copier-{self.first}"  # the positions of the copier from the other side
        if back_of:
            options += ["--back-of", str(back_of), excuse, f"--excuse=copier-{self.second}"]
        directory.mkdir()
        with Operator(directory, [MovingGroup(self.group, "")], source, target, *options, kills=SOAK) as operator:
            operator.move_all(
                partial(self.end, self.job),
                self.start_job,
                self.source.stop,
                lambda: (self.turn(self.first), operator.say(excuse)),
                self.start_source,
            )
        self.counts["kills"] += operator.kills
        return operator.state


def check_log(side: Side, topic: str, total: int) -> None:
    """Each number is in the log once, and those of each key are in order."""
    last, found = dict[bytes, int](), Counter[int]()
    for key, number in read_all(side.direct, topic):
        found[number] += 1
        assert last.get(key, -1) < number, f"{topic}: {number} after {last[key]}"
        last[key] = number
    assert (len(found), found.total()) == (total, total)


@pytest.fixture
def chain(sides: tuple[Side, Side], make_topic: MakeTopic, unique: str, per_s: float) -> Iterator[Chain]:
    """A chain between two clusters whose leader epochs differ."""
    with closing(Chain(sides, unique, per_s)) as chain:
        for side in sides:
            for topic in chain.topics:
                make_topic(topic, PARTITIONS, bootstrap=side.direct)
        raise_epochs(sides[0].zookeeper, sides[0].direct, *chain.topics)
        yield chain


@pytest.mark.parametrize(("total", "per_s"), [(0, 500), pytest.param(500_000, 1_800, marks=pytest.mark.soak)])
def test_each_log_has_each_record_once(chain: Chain, tmp_path: Path, total: int) -> None:
    # Given connections that fail
    faults = random.Random(SEED)
    cuts = 0

    def fault() -> None:
        nonlocal cuts
        time.sleep(faults.uniform(0.3, 2.5 if SOAK else 8))
        proxy = faults.choice(chain.sides).proxy
        cuts += 1
        if faults.random() < 0.3:
            proxy.stall()
            time.sleep(faults.uniform(0, 0.7))
        proxy.resume()  # closes the connections

    # When the job and the source go to the other cluster and back, under load
    began = time.monotonic()
    for worker in (chain.source, *chain.copiers.values(), chain.job):
        worker.start()
    states = list[Path]()
    with repeated(fault):
        while len(states) < 2 or chain.source.written < total:
            wait_for(lambda: chain.job.counts["moved"] >= 500, "the job moves records", 60)
            states.append(chain.cut_over(tmp_path / f"{len(states)}", states[-1] if states else None))
    chain.source.stop()
    total = chain.source.written
    until(lambda: sum(1 for _ in read_all(chain.homes[chain.second].direct, chain.second)) >= total)
    chain.end(chain.job)
    for topic, copier in chain.copiers.items():
        chain.await_copy(topic)
        chain.end(copier)
    sys.stdout.write(f"{total} records, {time.monotonic() - began:.0f} s, {cuts} cuts, {dict(chain.counts)}\n")
    # Then each topic holds each number once in both clusters
    for side in chain.sides:
        for topic in chain.topics:
            check_log(side, topic, total)
    assert_own_epochs(chain.sides[0].direct, chain.sides[1].direct, chain.group)
