"""Three replicated brokers, managers in front of them, and clients that record their operations: for tests that kill
brokers and managers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from committing_client import commit, consumer, fetch
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient
from history import COMMIT, Operation, read_history
from processes import process_state, start_command, wait_for

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import OffsetMgrError, SandboxError
from offsetmgr.kafka.client.managers import ManagerReport, Managers
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.sandbox import KafkaBroker, ports

SESSION_MS = 6_000
"""The shortest session timeout that brokers allow."""
SHARDS = 16
SETTINGS = {
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 3,
    "min.insync.replicas": 2,
    "leader.imbalance.check.interval.seconds": 1,
    "zookeeper.session.timeout.ms": 3000,
}
CLIENT = Path(__file__).with_name("committing_client.py")


class Manager:
    """One `manager serve` process, which keeps its port across restarts."""

    def __init__(self, directory: Path, name: str, bootstrap: str, *options: str, program: Sequence[str] = ()) -> None:
        self.port = ports.free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.log = directory / f"{name}.log"
        self._program = program
        self._arguments = [
            "manager", "serve", "--bootstrap-server", bootstrap, "--listen", self.address,
            "--partitions", str(SHARDS), "--session-timeout", str(SESSION_MS), *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = start_command(
                *self._arguments, environ=os.environ, program=self._program, cwd=self.log.parent, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start_if_ended(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Sends SIGKILL, which also ends a frozen process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def is_frozen(self) -> bool:
        assert self._process is not None
        return process_state(self._process.pid) == "T"

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(90)

    def start_if_exited(self) -> None:
        """Starts the process again if it has exited, as it does if it finds no broker while it starts."""
        if self._process is None or self._process.poll() is not None:
            self.start()


def addresses_of(managers: list[Manager]) -> str:
    return ",".join(manager.address for manager in managers)


def reports(addresses: str) -> list[ManagerReport]:
    with Managers(addresses, ConnectionConfig(timeout_ms=3000)) as managers, contextlib.suppress(OffsetMgrError):
        return managers.reports()
    return []


def fetch_until_answered(client: Consumer) -> dict[int, int | None]:
    """Fetches until a fetch succeeds, because shards move between managers, and returns the offsets."""
    fetched: list[dict[int, int | None] | None] = []
    wait_for(lambda: fetched.append(fetch(client, "t")) or fetched[-1], "the client fetches")
    assert fetched[-1] is not None
    return fetched[-1]


def commit_until_acknowledged(client: Consumer, value: int) -> None:
    wait_for(lambda: all(commit(client, "t", value).values()), "the client commits")


def served(addresses: str, managers: int) -> bool:
    """Whether this number of managers answers, and every shard has exactly one owner that serves it."""
    found = reports(addresses)
    owners = [
        shard["partition"]
        for report in found
        if report.status
        for shard in report.status["shards"]
        if shard["role"] == "owner" and shard["state"] == "ACTIVE"
    ]
    answering = sum(report.status is not None for report in found)
    return answering == managers and sorted(owners) == list(range(SHARDS))


def owned_by(manager: Manager, addresses: str) -> str:
    """Returns a group whose shard this manager owns. Waits until the manager owns a shard."""
    found: list[str] = []

    def find() -> bool:
        owned = {
            shard["partition"]
            for report in reports(addresses)
            if str(report.address) == manager.address and report.status
            for shard in report.status["shards"]
            if shard["role"] == "owner"
        }
        found[:] = [name for name in (f"group{n}" for n in range(1000)) if shard_for(name, SHARDS) in owned][:1]
        return bool(found)

    wait_for(find, f"{manager.address} owns a shard")
    return found[0]


def in_sync(bootstrap: str, brokers: int) -> bool:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        found = admin.list_topics(timeout=60)
    except KafkaException:
        return False
    partitions = [p for topic in found.topics.values() for p in topic.partitions.values()]
    return len(found.brokers) == brokers and all(len(p.isrs) == len(p.replicas) for p in partitions)


@contextlib.contextmanager
def three_brokers(
    directory: Path, zookeeper: str, settings: Mapping[str, object] = SETTINGS
) -> Iterator[list[KafkaBroker]]:
    """Three running brokers. ``zookeeper`` is a connect string with a chroot for this cluster."""
    brokers = [
        KafkaBroker(directory / f"broker{n}", zookeeper=zookeeper, broker_id=n, config=settings) for n in range(3)
    ]
    with contextlib.ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.kill)
        with ThreadPoolExecutor() as pool:
            list(pool.map(KafkaBroker.start, brokers))
        yield brokers


def restart(broker: KafkaBroker, tries: int = 5) -> None:
    """Starts a broker, again if it exits, as a supervisor does: on a busy machine its ZooKeeper session may expire
    while it starts, and then the broker exits."""
    for left in reversed(range(tries)):
        try:
            broker.start()
            return
        except SandboxError:
            if not left:
                raise


@contextlib.contextmanager
def managers_of(directory: Path, brokers: list[KafkaBroker], count: int, *options: str) -> Iterator[list[Manager]]:
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    managers = [Manager(directory, f"manager{n}", bootstrap, *options) for n in range(count)]
    try:
        for manager in managers:
            manager.start()
        wait_for(lambda: served(addresses_of(managers), count), "all shards are served")
        yield managers
    finally:
        for manager in managers:
            manager.kill()


@contextlib.contextmanager
def clients_of(directory: Path, addresses: str, count: int, groups_each: int) -> Iterator[list[Path]]:
    groups = [[f"group-{client}-{n}" for n in range(groups_each)] for client in range(count)]
    all_groups = ",".join(group for own in groups for group in own)
    files = [directory / f"history{n}" for n in range(count)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(CLIENT), f"client{n}", addresses, str(file), "t", ",".join(groups[n]), all_groups],
            stdin=subprocess.PIPE,
        )
        for n, file in enumerate(files)
    ]
    try:
        yield files
        for process in processes:
            assert process.poll() is None, "a client has exited"
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            assert process.wait(60) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


def acknowledged(file: Path) -> int:
    return sum(one.kind == COMMIT and one.done for one in (read_history([file]) if file.exists() else ()))


def history_of(files: list[Path]) -> list[Operation]:
    return list(read_history(files))


def commit_at(address: str, group: str, value: int) -> None:
    """Commits a value at one manager."""
    client = consumer(address, group)
    commit_until_acknowledged(client, value)
    client.close()
