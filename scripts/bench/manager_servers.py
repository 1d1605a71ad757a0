"""The servers that the manager's benchmarks compare: real brokers, managers, and a server that only answers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.managers import Managers
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer
from offsetmgr.sandbox.ports import HOST, free_port

TOPIC = "bench"
PARTITIONS = 50
"""The number of partitions of `TOPIC`, to which the clients commit."""
_JVM = ("-Xmx2g", "-XX:+UseG1GC")
"""A heap and a compiler as in production."""
_REPLICA_JVM = ("-Xmx1g", "-XX:+UseG1GC")
_START_S = 90.0
_STOP_S = 20.0
_REPLICATED: Mapping[str, object] = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}


class Server(NamedTuple):
    """A running server. ``pid`` is its process; None for a cluster of several processes."""

    address: str
    pid: int | None = None

    @property
    def cpu_seconds(self) -> float:
        """The CPU time that all threads of the process have used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def broker(directory: Path) -> Iterator[Server]:
    """Runs a broker 3.9.1."""
    with (
        ZooKeeperServer(directory / "zookeeper") as zookeeper,
        KafkaBroker(directory / "kafka", zookeeper=f"{zookeeper.connect}/kafka", jvm=_JVM) as kafka,
    ):
        _create_topic(kafka.bootstrap, replicas=1)
        yield Server(kafka.bootstrap, kafka.pid)


@contextmanager
def replicated_brokers(directory: Path) -> Iterator[Server]:
    """Runs three brokers 4.4.0. Every topic has three replicas, and two of them must be in sync."""
    with ExitStack() as stack:
        controller = stack.enter_context(KraftBroker(directory / "kafka-1", config=_REPLICATED, jvm=_REPLICA_JVM))
        addresses = [controller.bootstrap]
        for node_id in (2, 3):
            addresses.append(stack.enter_context(_follower(directory / f"kafka-{node_id}", node_id, controller)))
        bootstrap = ",".join(addresses)
        _await_brokers(bootstrap, len(addresses))
        _create_topic(bootstrap, replicas=3)
        yield Server(bootstrap)


@contextmanager
def _follower(directory: Path, node_id: int, controller: KraftBroker) -> Iterator[str]:
    """Runs a broker of the same cluster that is no controller, and yields its address."""
    settings = _properties(controller.directory / "server.properties")
    port = free_port()
    own = {
        "process.roles": "broker",
        "node.id": node_id,
        "controller.quorum.voters": settings["controller.quorum.voters"],
        "listeners": f"PLAINTEXT://{HOST}:{port}",
    }
    (directory / "data").mkdir(parents=True)
    # A broker with this file is formatted. A new format would give it a cluster id of its own.
    cluster_id = _properties(controller.directory / "data" / "meta.properties")["cluster.id"]
    (directory / "data" / "meta.properties").write_text(f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\n")
    with KraftBroker(directory, port=port, config={**_REPLICATED, **own}, jvm=_REPLICA_JVM) as kafka:
        yield kafka.bootstrap


def _properties(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _await_brokers(bootstrap: str, number: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + _START_S
    while len(admin.list_topics(timeout=10).brokers) < number:
        if time.monotonic() > deadline:
            sys.exit("not all brokers have registered")
        time.sleep(0.2)


def _create_topic(bootstrap: str, *, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, replicas)])[TOPIC].result(60)


@contextmanager
def manager(
    bootstrap: str,
    directory: Path,
    *options: str,
    wait: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Runs a manager; with ``wait``, yields after the manager serves all shards."""
    address = f"{HOST}:{free_port()}"
    command = ["-m", "offsetmgr", "manager", "serve", "--bootstrap-server", bootstrap, "--listen", address, *options]
    with _process(command, directory / "manager.log", environment) as child:
        deadline = time.monotonic() + _START_S
        while wait and not _serves(address):
            if time.monotonic() > deadline or child.poll() is not None:
                sys.exit((directory / "manager.log").read_text())
            time.sleep(0.2)
        yield Server(address, child.pid)


def _serves(address: str) -> bool:
    with Managers(address, ConnectionConfig(timeout_ms=2000)) as managers:
        try:
            (report,) = managers.reports()
        except (OffsetMgrError, ValueError):
            return False
    return report.status is not None and all(s["state"] == "ACTIVE" for s in report.status["shards"])


@contextmanager
def null_server(directory: Path) -> Iterator[Server]:
    """Runs a `null_server`."""
    port = free_port()
    address = f"{HOST}:{port}"
    command = [str(Path(__file__).with_name("null_server.py")), address]
    with _process(command, directory / "null-server.log", None) as child:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection((HOST, port)).close()
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline or child.poll() is not None:
                    sys.exit((directory / "null-server.log").read_text())
                time.sleep(0.05)
        yield Server(address, child.pid)


@contextmanager
def _process(
    command: Sequence[str], log_file: Path, environment: Mapping[str, str] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a Python process, and stops it with SIGTERM."""
    with log_file.open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        try:
            yield child
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
