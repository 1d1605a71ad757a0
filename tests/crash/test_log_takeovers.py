"""Processes take a shard group of the manager's log over from one another, while the owner before them is frozen,
killed, cut off, or appending.

No acknowledged record is lost, no offset is acknowledged to two owners, no batch of an old owner follows the claim of a
new one, and every owner has read, when it has claimed, everything that was acknowledged before. `takeover_checker`
checks the events of all owners against the raw log, which a reader follows from the first record on.
"""

import asyncio
import contextlib
import heapq
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from processes import wait_for
from raw_log import LARGEST_EPOCH, PartitionHistory, RawBatch, RawLogReader
from release_environment import CURRENT_RELEASES
from stalling_proxy import StallingProxy
from takeover_checker import Report, StoredRecord, check, read_events
from three_kraft_brokers import IDS, three_kraft_brokers

from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.client.producers import INIT_PRODUCER_ID_VERSION, init_producer_ids
from offsetmgr.kafka.protocol.frames import Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.manager.log.base import partitions_of
from offsetmgr.manager.log.kafka import transactional_id_prefix
from offsetmgr.sandbox import KafkaBroker, KraftBroker
from offsetmgr.sandbox.broker import DEFAULT_VERSION

OWNER: Final = Path(__file__).with_name("log_owner.py")
PROCESSES: Final = 4
"""The number of owner processes that exist at a time."""
DISTURBANCES: Final = {"frozen": 35, "killed": 12, "cut": 15, "delayed": 15, "unaware": 23}
"""The weights of the ways in which an owner loses the shard group: it is frozen; it is killed; its network is cut, and
later its connections are closed; its network stops, and later delivers everything; nothing happens to it."""
UNAWAITED_SHARE: Final = 0.15
"""The share of the claims that the driver does not wait for, so that the next disturbance hits a claim."""
CLAIM_FIRST_SHARE: Final = 0.2
"""The share of the rounds in which the old owner is disturbed after the new one has started to claim."""
CLAIM_TIMEOUT_S: Final = 90.0
MAX_TERM_S: Final = 0.2
"""The longest time for which the driver leaves an owner alone."""
MAX_GAP_S: Final = 0.03
"""The longest time between the disturbance of the old owner and the command to the new one."""
DURATIONS_S: Final = ((0.0, 0.05), (0.05, 0.5), (0.5, 4.0))
"""The ranges of the durations of disturbances. The longest last for several takeovers."""
SHARD_GROUP: Final = 1
FOREIGN_BATCH: Final = "another program wrote to the offsets topic"
"""The beginning of the log message about a batch that no claim covers."""


class OwnerProcess:
    """One owner process, whose connections go through its own proxies. A killed process is replaced by `start`."""

    def __init__(self, number: int, directory: Path, settings: dict[str, object], brokers: Sequence[str]) -> None:
        self.number = number
        self.files: list[Path] = []
        """The events of all processes."""
        self.logs: list[Path] = []
        self.frozen = False
        self.cut = False
        self._directory = directory
        self._settings = settings
        self._proxies = {address: StallingProxy(address) for address in brokers}
        self._process: subprocess.Popen[str]
        self._lines: set[str] = set()

    def start(self) -> None:
        name = f"{self.number}.{len(self.files)}"
        self.files.append(self._directory / f"events-{name}")
        self.files[-1].touch()
        arguments = {
            **self._settings,
            "name": name,
            "events": str(self.files[-1]),
            "via": {address: proxy.address for address, proxy in self._proxies.items()},
        }
        self._lines = set()
        self.logs.append(self._directory / f"log-{name}")
        with self.logs[-1].open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(OWNER), json.dumps(arguments)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1,
            )  # fmt: skip
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    def claim(self, command: int) -> None:
        """Commands the process to claim the shard group."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")

    def has_written(self, line: str) -> bool:
        """Whether the process has written a line to its standard output."""
        assert self._process.poll() is None, self.logs[-1].read_text()
        return line in self._lines

    @property
    def available(self) -> bool:
        """Whether the process can claim now."""
        return not self.frozen and not self.cut and self.has_written("ready")

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.frozen = False

    def stall(self) -> None:
        for proxy in self._proxies.values():
            proxy.stall()
        self.cut = True

    def reconnect(self) -> None:
        """Ends the stall and closes the connections of that time."""
        for proxy in self._proxies.values():
            proxy.resume()
        self.cut = False

    def deliver(self) -> None:
        """Ends the stall and delivers everything that was sent during it."""
        for proxy in self._proxies.values():
            proxy.release()
        self.cut = False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.frozen = False

    def end(self) -> None:
        """Closes the standard input and waits for the end of the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0

    def close(self) -> None:
        self.kill()
        for proxy in self._proxies.values():
            proxy.close()

    def _read(self, process: subprocess.Popen[str]) -> None:
        lines = self._lines
        assert process.stdout is not None
        for line in process.stdout:
            lines.add(line.strip())


class Takeovers:
    """Runs takeovers of one shard group and checks them."""

    def __init__(
        self, directory: Path, bootstrap: str, topic: str, partitions: int, seed: int,
    ) -> None:  # fmt: skip
        self._dice = random.Random(seed)
        self._bootstrap, self._topic = bootstrap, topic
        self._partitions = partitions_of(SHARD_GROUP, partitions)
        settings = {"bootstrap": bootstrap, "topic": topic, "partitions": partitions, "shard_group": SHARD_GROUP}
        self._owners = [OwnerProcess(n, directory, settings, bootstrap.split(",")) for n in range(PROCESSES)]
        self._histories = {partition: PartitionHistory(partition) for partition in self._partitions}
        self._reader = RawLogReader(bootstrap, topic, self._partitions, self._on_batch)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        """The ends of disturbances: time, a number that makes the entries comparable, and the call."""
        self._numbers = itertools.count()
        self._owner: OwnerProcess | None = None
        self.disturbances: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._reader.__enter__()
        for owner in self._owners:
            owner.start()
        wait_for(lambda: all(owner.available for owner in self._owners), "the owners have started")
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        for owner in self._owners:
            owner.close()
        self._reader.__exit__(exc_type, exc, tb)

    def run(self, rounds: int, before_round: Callable[[int, random.Random], None]) -> None:
        """Runs rounds. ``before_round`` is called with the number of each round; it may disturb the brokers or call
        `pause`."""
        for number in range(rounds):
            before_round(number, self._dice)
            self._round(number)

    def pause(self, seconds: float) -> None:
        """Waits, and ends the disturbances whose time has come."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            if now >= end:
                return
            time.sleep(max(min(end, self._due[0][0] if self._due else end) - now, 0.0005))

    def finish(self) -> Report:
        """Ends the disturbances, claims for the last time and checks everything that happened."""
        while self._due:
            heapq.heappop(self._due)[2]()
        self._claim(10**6, awaited=True)
        for owner in self._owners:
            wait_for(lambda owner=owner: owner.available, "the owner has started")  # type: ignore[misc]
            owner.end()
        self._reader.read_to_end()
        events = read_events(file for owner in self._owners for file in owner.files)
        return check(self._histories, events, self.stored_records())

    def stored_records(self) -> dict[int, list[StoredRecord]]:
        """The records that the log cleaner has left."""
        found: dict[int, list[StoredRecord]] = {partition: [] for partition in self._partitions}

        def on_batch(batch: RawBatch) -> None:
            found[batch.partition] += [StoredRecord(one.offset, one.key, one.value) for one in batch.records]

        with RawLogReader(self._bootstrap, self._topic, self._partitions, on_batch):
            pass
        return found

    @property
    def false_alarms(self) -> int:
        """The number of batches that owners have attributed to another program. The test runs no other program."""
        return sum(file.read_text().count(FOREIGN_BATCH) for owner in self._owners for file in owner.logs)

    @property
    def records(self) -> int:
        """The number of records that were ever in the log."""
        return sum(history.end for history in self._histories.values())

    @property
    def producer_ids(self) -> int:
        """The number of producer ids that the partition with most of them had."""
        return max(len({claim.producer_id for claim in history.claims}) for history in self._histories.values())

    def _on_batch(self, batch: RawBatch) -> None:
        self._histories[batch.partition].add(batch)

    def _round(self, number: int) -> None:
        dice = self._dice
        self.pause(dice.uniform(0, MAX_TERM_S))
        claim_first = dice.random() < CLAIM_FIRST_SHARE
        old = self._owner
        steps: list[Callable[[], None]] = [lambda: self._disturb(old), lambda: self._claim(number, awaited=False)]
        if claim_first:
            steps.reverse()
        steps[0]()
        self.pause(dice.uniform(0, MAX_GAP_S))
        steps[1]()
        if dice.random() < UNAWAITED_SHARE:
            self.pause(dice.uniform(0, MAX_GAP_S))
        else:
            self._await_claim(number)

    def _disturb(self, owner: OwnerProcess | None) -> None:
        if owner is None or not owner.available:
            return
        (kind,) = self._dice.choices(list(DISTURBANCES), list(DISTURBANCES.values()))
        self.disturbances[kind] += 1
        duration_s = self._dice.uniform(*self._dice.choice(DURATIONS_S))
        if kind == "frozen":
            owner.freeze()
            self._later(duration_s, owner.thaw)
        elif kind == "killed":
            owner.kill()
            owner.start()
        elif kind in ("cut", "delayed"):
            owner.stall()
            self._later(duration_s, owner.reconnect if kind == "cut" else owner.deliver)

    def _claim(self, number: int, *, awaited: bool) -> None:
        """Commands another process to claim the shard group."""
        while not (found := [owner for owner in self._owners if owner is not self._owner and owner.available]):
            if self._due:
                heapq.heappop(self._due)[2]()
            else:
                time.sleep(0.01)
        self._owner = self._dice.choice(found)
        self._owner.claim(number)
        if awaited:
            self._await_claim(number)

    def _await_claim(self, number: int) -> None:
        """Waits until the commanded process has claimed the shard group, or has lost it again."""
        owner = self._owner
        assert owner is not None
        deadline = time.monotonic() + CLAIM_TIMEOUT_S
        while owner.available and not (owner.has_written(f"claimed {number}") or owner.has_written(f"lost {number}")):
            assert time.monotonic() < deadline, f"owner {owner.number} has not claimed"
            self.pause(0.005)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), call))


SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
ROUNDS = int(os.environ.get("OFFSETMGR_TAKEOVERS") or (1000 if SOAK else 8))
SEED = int(os.environ.get("OFFSETMGR_SEED") or time.time_ns() % 1_000_000)
PARTITIONS = 24
"""A shard group has three partitions."""
FORGETFUL_S = 6.0
"""A time without claims after which the transaction coordinator has forgotten the transactional ids, so that the next
claim gets another producer id."""
EPOCHS_LEFT = 30
"""The number of epochs that are left for the first producer ids when a soak begins."""
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.bytes": 1 << 20,
    "segment.ms": 500,
    "min.cleanable.dirty.ratio": 0.001,
    # The log cleaner leaves a record alone for this time, in which the raw reader reads it.
    "min.compaction.lag.ms": 4000,
    "max.compaction.lag.ms": 4000,
    "delete.retention.ms": 1000,
}
BROKER_SETTINGS = {
    "log.cleaner.backoff.ms": 50,
    "log.retention.check.interval.ms": 1000,
    "transactional.id.expiration.ms": 4_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    "connections.max.idle.ms": 30_000,
}

pytestmark = [pytest.mark.servers, pytest.mark.matrix, pytest.mark.timeout(3600 if SOAK else 900)]


def create_topic(bootstrap: str, name: str, replicas: int) -> None:
    settings = {key: str(value) for key, value in TOPIC_SETTINGS.items()}
    settings["min.insync.replicas"] = str(min(replicas, 2))
    topic = NewTopic(name, PARTITIONS, replicas, config=settings)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([topic], operation_timeout=30)[name].result(60)


@contextlib.contextmanager
def own_broker(release: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[str]:
    """A broker whose log cleaner and transaction coordinator are quick."""
    broker: KafkaBroker | KraftBroker
    if release == DEFAULT_VERSION:
        zookeeper = request.getfixturevalue("zookeeper")
        chroot = f"{zookeeper.connect}/{directory.name}-{time.time_ns()}"
        broker = KafkaBroker(directory / "broker", zookeeper=chroot, config=BROKER_SETTINGS)
    else:
        broker = KraftBroker(directory / "broker", config=BROKER_SETTINGS, version=release)
    with broker:
        yield broker.bootstrap


@pytest.fixture(params=CURRENT_RELEASES)
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if SOAK:
        with own_broker(request.param, request, tmp_path) as own:
            yield own
    else:
        yield request.getfixturevalue("kafka" if request.param == DEFAULT_VERSION else "kraft").bootstrap


def exhaust_epochs(bootstrap: str, topic: str) -> None:
    """Requests epochs for the transactional ids of the shard group until few are left. After the last epoch the
    coordinator returns another producer id."""

    async def exhaust() -> None:
        client = Client(bootstrap, Security.of({}))
        try:
            deadline = asyncio.get_running_loop().time() + 120
            names = [f"{transactional_id_prefix(topic)}{p}" for p in partitions_of(SHARD_GROUP, PARTITIONS)]
            await init_producer_ids(client, dict.fromkeys(names), deadline)  # until the coordinator has started
            connection = await client.any_connection(deadline)
            await asyncio.gather(*(request_epochs(connection, name) for name in names))
        finally:
            await client.close()

    asyncio.run(exhaust())


async def request_epochs(connection: BrokerConnection, name: str) -> None:
    message = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    epoch = -1
    while epoch < LARGEST_EPOCH - EPOCHS_LEFT:
        answer = await connection.call(Request(ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, message), 60)
        assert not answer["error_code"], answer
        epoch = answer["producer_epoch"]


def test_no_take_over_loses_or_doubles_an_acknowledged_record(bootstrap: str, tmp_path: Path, unique: str) -> None:
    create_topic(bootstrap, unique, 1)
    if SOAK:
        exhaust_epochs(bootstrap, unique)

    with Takeovers(tmp_path, bootstrap, unique, PARTITIONS, SEED) as takeovers:

        def before_round(number: int, dice: random.Random) -> None:
            if SOAK and number % 50 == 49:
                takeovers.pause(FORGETFUL_S)

        takeovers.run(ROUNDS, before_round)
        report = takeovers.finish()
        stored = report_run(takeovers, report)
    assert not report.violations, "\n".join(report.violations[:9])
    assert not takeovers.false_alarms
    assert report.takeovers >= 0.5 * ROUNDS
    if SOAK:
        assert stored < 0.5 * takeovers.records
        assert takeovers.producer_ids > 1 + ROUNDS // 100, "epochs ran out, and transactional ids were forgotten"


@pytest.mark.soak
def test_no_take_over_loses_a_record_while_leaders_change_and_brokers_die(tmp_path: Path, unique: str) -> None:
    with three_kraft_brokers(tmp_path, BROKER_SETTINGS) as brokers:
        create_topic(brokers.bootstrap, unique, 3)
        moved, killed = 0, 0

        def before_round(number: int, dice: random.Random) -> None:
            nonlocal moved, killed
            if number % 5 == 4 and not brokers.restarting:
                leaders = {p: dice.choice(IDS) for p in partitions_of(SHARD_GROUP, PARTITIONS)}
                moved += brokers.move_leaders(unique, leaders)
            if number % 20 == 19:
                killed += brokers.restart_one(dice.choice(IDS))

        with Takeovers(tmp_path, brokers.bootstrap, unique, PARTITIONS, SEED) as takeovers:
            takeovers.run(ROUNDS, before_round)
            brokers.await_restart()
            report = takeovers.finish()
            stored = report_run(takeovers, report)
            sys.stdout.write(f"leaders moved {moved} times, {killed} brokers killed\n")
    assert not report.violations, "\n".join(report.violations[:9])
    assert not takeovers.false_alarms
    assert report.takeovers >= 0.5 * ROUNDS
    assert stored < 0.5 * takeovers.records
    assert moved and killed


def report_run(takeovers: Takeovers, report: Report) -> int:
    """Prints what happened. Returns the number of records that the log cleaner has left."""
    stored = sum(len(records) for records in takeovers.stored_records().values())
    sys.stdout.write(f"\nseed {SEED}: {report}\ndisturbances of owners: {dict(takeovers.disturbances)}\n")
    sys.stdout.write(f"{stored} of {takeovers.records} records left after compaction, ")
    sys.stdout.write(f"{takeovers.producer_ids} producer ids of a partition\n")
    return stored
