"""The manager's log on three brokers that die and freeze: every append ends in time and reports its true outcome.

``min.insync.replicas`` is 2, so one broker may be missing and two may not.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from processes import wait_for
from stopwatch import Stopwatch

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.manager.log.base import (
    AppendRejected,
    LogRecord,
    OutcomeUnknown,
    partitions_of,
    shard_group_count,
)
from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.manager.log.kafka.topic_admin import check_topic, ensure_topic
from offsetmgr.manager.log.topic import OffsetsTopicState
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.testing.blocking_writer import BlockingWriter

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

BROKERS = 3
PARTITIONS = 16
SHARD_GROUPS = shard_group_count(PARTITIONS)
TIMEOUT_S = 2.0
OVERHEAD_S = 15.0
"""Time that an append may take above its timeout on a busy machine."""
SETTINGS = {
    "transaction.state.log.replication.factor": BROKERS,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 6,
    "offsets.topic.num.partitions": 3,
    "leader.imbalance.check.interval.seconds": 1,
    "zookeeper.session.timeout.ms": 3000,
    "replica.lag.time.max.ms": 3000,
}


@dataclass
class Trio:
    zookeeper: str
    brokers: list[KafkaBroker]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Starts the brokers that are down, and waits until every broker knows all of them."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(KafkaBroker.start, self.brokers))
        admins = [AdminClient({"bootstrap.servers": broker.bootstrap}) for broker in self.brokers]
        wait_for(
            lambda: all(len(a.list_topics(timeout=60).brokers) == BROKERS for a in admins), "all brokers are known"
        )


@pytest.fixture(scope="module")
def cluster_of_three(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    directory = tmp_path_factory.mktemp("logtrio")
    chroot = f"{zookeeper.connect}/{directory.name}-{time.time_ns()}"
    brokers = [KafkaBroker(directory / str(n), zookeeper=chroot, broker_id=n, config=SETTINGS) for n in range(BROKERS)]
    with contextlib.ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.kill)
        trio = Trio(chroot, brokers)
        trio.start()
        yield trio


@pytest.fixture
def trio(cluster_of_three: Trio) -> Trio:
    """Starts the brokers that an earlier test stopped."""
    cluster_of_three.start()
    return cluster_of_three


@pytest.fixture
def topic(trio: Trio, unique: str) -> OffsetsTopicState:
    return ensure_topic(trio.bootstrap, {}, unique, partitions=PARTITIONS, replication_factor=BROKERS)


@pytest.fixture
def log(trio: Trio, topic: OffsetsTopicState) -> Iterator[KafkaLog]:
    log = KafkaLog(trio.bootstrap, topic.name, topic.partitions)
    yield log
    log.close()


@dataclass
class Appender:
    """Appends one key after the other to all partitions of a shard group, and records the outcome of each append."""

    log: KafkaLog
    shard_group: int
    acknowledged: list[bytes] = field(default_factory=list)
    """The keys that were acknowledged in all partitions."""
    written: set[tuple[int, bytes]] = field(default_factory=set)
    not_written: set[tuple[int, bytes]] = field(default_factory=set)
    longest: float = 0.0
    last: Mapping[int, int] = field(default_factory=dict)
    writer: BlockingWriter | None = None
    _next: int = 0

    def append(self) -> bool:
        """Appends once, after a new claim if the writer is closed. Returns whether the append was acknowledged."""
        if self.writer is None:
            self.writer = BlockingWriter(self.log.writer(self.shard_group))
            try:
                self.writer.claim(TIMEOUT_S)
            except OffsetMgrError:
                self._drop_writer()
                return False
        key = b"%06d" % self._next
        self._next += 1
        with Stopwatch() as watch:
            acknowledged = self._append(self.writer, key)
        self.longest = max(self.longest, watch.seconds)
        return acknowledged

    def _append(self, writer: BlockingWriter, key: bytes) -> bool:
        batches = {p: [(key, b"v")] for p in partitions_of(self.shard_group, PARTITIONS)}
        outcomes = writer.outcomes(batches, TIMEOUT_S)
        for partition, outcome in outcomes.items():
            if isinstance(outcome, int):
                self.written.add((partition, key))
                self.last = {**self.last, partition: outcome}
            elif isinstance(outcome, AppendRejected):
                self.not_written.add((partition, key))
        if any(isinstance(outcome, OutcomeUnknown) for outcome in outcomes.values()):
            self._drop_writer()
        acknowledged = all(isinstance(outcome, int) for outcome in outcomes.values())
        if acknowledged:
            self.acknowledged.append(key)
        return acknowledged

    def append_until(self, ended: threading.Event) -> None:
        while not ended.wait(0.02):  # leaves processor time to the brokers
            self.append()

    def _drop_writer(self) -> None:
        assert self.writer is not None
        self.writer.close()
        self.writer = None


def keys_in_log(log: KafkaLog) -> dict[int, list[bytes]]:
    """The keys of all partitions in order, after every unfinished append has ended."""
    for shard_group in range(SHARD_GROUPS):
        claim_with_retries(log, shard_group).close()
    ends: dict[int, int] = {}

    def ends_known() -> bool:
        with contextlib.suppress(OffsetMgrError):
            ends.update(log.end_offsets(range(PARTITIONS), 5))
        return bool(ends)

    wait_for(ends_known, "end offsets")
    reader, records = log.reader(), list[LogRecord]()
    reader.follow(dict.fromkeys(ends, 0))

    def read() -> bool:
        records.extend(reader.poll(10_000, 0.5))
        return all(reader.position(partition) >= end for partition, end in ends.items())

    wait_for(read, "read to the end")
    reader.close()
    return {p: [record.key for record in records if record.partition == p] for p in range(PARTITIONS)}


def claim_with_retries(log: KafkaLog, shard_group: int) -> BlockingWriter:
    """Claims the shard group, although the cluster may still be starting. Returns the writer."""
    claimed: list[BlockingWriter] = []

    def claim() -> bool:
        writer = BlockingWriter(log.writer(shard_group))
        with contextlib.suppress(OffsetMgrError):
            writer.claim(5)
            claimed.append(writer)
        return bool(claimed)

    wait_for(claim, f"shard group {shard_group} is claimed")
    return claimed[0]


def assert_outcomes_match_the_log(appender: Appender, found: dict[int, list[bytes]]) -> None:
    for partition in partitions_of(appender.shard_group, PARTITIONS):
        keys = found[partition]
        assert keys == sorted(set(keys)), "the keys are in order and unique"
        assert {key for p, key in appender.written if p == partition} <= set(keys), "acknowledged keys are in the log"
        assert not {key for p, key in appender.not_written if p == partition} & set(keys), "rejected keys are not"


def in_threads(calls: list[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()


def test_with_two_of_three_brokers_down_appends_fail_in_time_and_succeed_afterwards(trio: Trio, log: KafkaLog) -> None:
    """All shard groups append at once, because the brokers lead different partitions in each."""
    appenders = [Appender(log, shard_group) for shard_group in range(SHARD_GROUPS)]
    wait_for(lambda: all(appender.acknowledged or appender.append() for appender in appenders), "the first appends")
    before = keys_in_log(log)
    for appender in appenders:
        appender.writer = claim_with_retries(log, appender.shard_group)

    trio.brokers[1].kill()
    trio.brokers[2].kill()
    in_threads([appender.append for appender in appenders])
    in_threads([appender.append for appender in appenders])

    assert {len(appender.acknowledged) for appender in appenders} == {1}
    assert max(appender.longest for appender in appenders) < TIMEOUT_S + OVERHEAD_S
    reader = log.reader()
    reader.follow(dict.fromkeys(range(PARTITIONS), 0))
    seen = [record.key for _ in range(3) for record in reader.poll(1000, 0.3)]
    reader.close()
    assert set(seen) <= {key for keys in before.values() for key in keys}, "no new record is readable"

    trio.start()
    wait_for(lambda: all(appender.append() for appender in appenders), "appends succeed again")
    found = keys_in_log(log)
    assert {p: found[p][: len(before[p])] for p in found} == before
    for appender in appenders:
        assert_outcomes_match_the_log(appender, found)


def stale_end_offsets(log: KafkaLog, appenders: list[Appender], ended: threading.Event) -> list[object]:
    """Requests end offsets until ``ended`` is set. Returns those below an offset acknowledged before the request."""
    wrong: list[object] = []
    while not ended.is_set():
        acknowledged = [dict(appender.last) for appender in appenders]
        with contextlib.suppress(OffsetMgrError):
            ends = log.end_offsets(range(PARTITIONS), 1)
            wrong += [(ends, last) for last in acknowledged if any(ends[p] <= offset for p, offset in last.items())]
        time.sleep(0.02)
    return wrong


def test_a_frozen_broker_delays_no_append_beyond_its_timeout_and_no_end_is_stale(trio: Trio, log: KafkaLog) -> None:
    appenders = [Appender(log, shard_group) for shard_group in range(SHARD_GROUPS)]
    ended = threading.Event()
    with ThreadPoolExecutor(SHARD_GROUPS + 1) as pool:
        polling = pool.submit(stale_end_offsets, log, appenders, ended)
        running = [pool.submit(appender.append_until, ended) for appender in appenders]
        try:
            wait_for(lambda: all(len(a.acknowledged) > 3 for a in appenders), "appends before")
            trio.brokers[0].freeze()
            counts = [len(appender.acknowledged) for appender in appenders]
            wait_for(
                lambda: all(len(a.acknowledged) > n + 3 for a, n in zip(appenders, counts, strict=True)),
                "every shard group continues without the frozen broker",
            )
            trio.brokers[0].thaw()
            counts = [len(appender.acknowledged) for appender in appenders]
            wait_for(
                lambda: all(len(a.acknowledged) > n + 3 for a, n in zip(appenders, counts, strict=True)),
                "every shard group continues with the thawed broker",
            )
        finally:
            trio.brokers[0].thaw()
            ended.set()
        for future in running:
            future.result()
        assert polling.result() == []

    assert max(appender.longest for appender in appenders) < TIMEOUT_S + OVERHEAD_S
    found = keys_in_log(log)
    for appender in appenders:
        assert_outcomes_match_the_log(appender, found)


@contextlib.contextmanager
def ended_within(seconds: float) -> Iterator[None]:
    with Stopwatch() as watch:
        yield
    assert watch.seconds < seconds


def test_a_frozen_writer_that_wakes_after_another_claim_is_fenced(trio: Trio, log: KafkaLog, tmp_path: Path) -> None:
    """Freezes a writer three times, at some moment of its appends. Its acknowledged records are in the log, and it
    writes nothing after the other claim."""
    code = f"""
        from offsetmgr.manager.log.base import Fenced
        from offsetmgr.manager.log.kafka import KafkaLog
        from offsetmgr.testing.blocking_writer import BlockingWriter
        writer = BlockingWriter(KafkaLog({trio.bootstrap!r}, {log.topic!r}, {PARTITIONS}).writer(1))
        writer.claim(20)
        try:
            for number in range(10**9):
                writer.append({{1: [(b"zombie %06d" % number, b"v")], 9: [(b"zombie %06d" % number, b"v")]}}, 20)
                print(number, flush=True)
        except Fenced:
            print("fenced", flush=True)
    """
    claimed_at: list[bytes] = []
    for round_ in range(3):
        zombie = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
        assert zombie.stdout is not None
        try:
            first = [zombie.stdout.readline() for _ in range(5)]
            zombie.send_signal(signal.SIGSTOP)
            successor = claim_with_retries(log, 1)
            successor.append({1: [(b"successor %d" % round_, b"v")], 9: [(b"successor %d" % round_, b"v")]}, 20)
            claimed_at.append(b"successor %d" % round_)
            zombie.send_signal(signal.SIGCONT)
            out, _ = zombie.communicate(timeout=120)
        finally:
            zombie.kill()
            zombie.wait()

        *numbers, last = [*"".join(first).split(), *out.split()]
        assert last == "fenced"
        successor.append({1: [(b"successor goes on", b"v")]}, 20)
        successor.close()
        found = keys_in_log(log)
        keys = found[9]
        after = keys[keys.index(b"successor %d" % round_) + 1 :]
        acknowledged = {b"zombie %06d" % int(number) for number in numbers}
        assert after == [], "no record of the zombie follows the claim"
        assert acknowledged <= set(keys)
        # The last append of the zombie may have ended in one of the partitions only.
        goes_on = [key for key in found[1] if not key.startswith(b"successor goes")]
        assert set(goes_on) ^ set(keys) <= {b"zombie %06d" % (max(map(int, numbers)) + 1)}


def test_with_all_brokers_frozen_every_call_returns_in_time(
    trio: Trio, topic: OffsetsTopicState, log: KafkaLog
) -> None:
    writer, idle, reader = BlockingWriter(log.writer(0)), BlockingWriter(log.writer(1)), log.reader()
    writer.claim(20)
    writer.append({0: [(b"k", b"1")]}, 20)
    reader.follow({0: 0})
    log.end_offsets([0], 20)
    for broker in trio.brokers:
        broker.freeze()
    try:
        with ended_within(1 + OVERHEAD_S), pytest.raises(OutcomeUnknown):
            writer.append({0: [(b"k", b"2")]}, 1)
        with ended_within(1 + OVERHEAD_S), pytest.raises(OffsetMgrError):
            idle.claim(1)
        with ended_within(1 + OVERHEAD_S), pytest.raises(OffsetMgrError):
            log.end_offsets([0], 1)
        with ended_within(2 + OVERHEAD_S), pytest.raises(OffsetMgrError):
            check_topic(trio.bootstrap, {}, topic, timeout_s=1)
        with ended_within(0.3 + OVERHEAD_S):
            reader.poll(10, 0.3)
        for one in (writer, idle, reader):
            with ended_within(OVERHEAD_S):
                one.close()
    finally:
        for broker in trio.brokers:
            broker.thaw()
