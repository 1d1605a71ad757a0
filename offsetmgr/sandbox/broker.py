"""Real Kafka brokers: `KafkaBroker` (releases 0.8.2 to 3.9, with ZooKeeper) and `KraftBroker` (releases 4.1 to 4.4,
without ZooKeeper)."""

from __future__ import annotations

import base64
import re
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self, TypedDict, Unpack

from offsetmgr.core.errors import SandboxError
from offsetmgr.sandbox import ports
from offsetmgr.sandbox.java import QUICK_START
from offsetmgr.sandbox.port_server import ListeningServer
from offsetmgr.sandbox.process import log_tail
from offsetmgr.sandbox.process_ref import wait_until

BROKER_JVM: Final = ("-Xmx512m", *QUICK_START)
SESSION_TIMEOUT_MS: Final = 6000
_COMMON: Final[Mapping[str, object]] = {
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "false",
    # A broker creates all partitions of an internal topic at its first use, by default 50.
    "offsets.topic.num.partitions": 8,
    "transaction.state.log.num.partitions": 8,
    "share.coordinator.state.topic.num.partitions": 8,
    # By default the log cleaner would use 128 MB of the 512 MB heap.
    "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    # At a controlled shutdown the last broker of a cluster cannot move its partition leaders to another broker, so it
    # should not retry for long.
    "controlled.shutdown.retry.backoff.ms": 200,
}
_PARTITION_DIRECTORY: Final = re.compile(r"(.+)-\d+")
"""The name of the directory of one partition's log. If the topic was deleted, the name has a suffix and does not
match."""
# If another broker already listens on the port, the other broker may respond before this broker reports that the port
# is taken. So check that this broker logs its own start.
_UP: Final = re.compile(rb"started \(kafka\.server\.Kafka(Raft)?Server\)")


BROKER_JARS: Final[Mapping[str, tuple[str, ...]]] = {
    "0.8.2.2": ("kafka-0.8.2",),
    "0.9.0.1": ("kafka-0.9",),
    "0.10.2.2": ("kafka-0.10.2", "jaxb"),
    "1.1.1": ("kafka-1.1",),
    "2.8.2": ("kafka-2.8",),
    "3.9.1": ("kafka-3.9",),
}
"""The broker releases that store their metadata in ZooKeeper, and the sets of jars (`jars.SETS`) that each needs."""
DEFAULT_VERSION: Final = "3.9.1"
KRAFT_JARS: Final[Mapping[str, tuple[str, ...]]] = {
    "4.1.1": ("kafka-4.1",),
    "4.2.2": ("kafka-4.2",),
    "4.3.1": ("kafka-4.3",),
    "4.4.0": ("kafka-4.4",),
}
"""The broker releases without ZooKeeper, and the sets of jars (`jars.SETS`) of each."""
NEWEST_VERSION: Final = "4.4.0"
_WITHOUT_LISTENERS: Final = frozenset({"0.8.2.2", "0.9.0.1"})
_WITHOUT_METADATA_4: Final = frozenset({"0.8.2.2", "0.9.0.1", "0.10.2.2"})


class BrokerOptions(TypedDict, total=False):
    """The optional settings of a broker.

    Without ``port``, the first start selects a free port. ``config`` contains further properties of the broker, which
    override the others. A ``detached`` broker keeps running after this program has ended. ``jvm`` are the flags of the
    JVM (default: `BROKER_JVM`), and ``version`` is the release of Kafka.
    """

    port: int | None
    config: Mapping[str, object] | None
    detached: bool
    jvm: Sequence[str]
    version: str


class _Broker(ListeningServer):
    """The parts that all brokers have in common. The broker's data are in ``directory`` and stay there after `stop`."""

    RELEASES: ClassVar[Mapping[str, Sequence[str]]]
    """The releases, and the sets of jars (`jars.SETS`) that each needs."""
    DEFAULT: ClassVar[str]

    def __init__(self, directory: Path | str, **options: Unpack[BrokerOptions]) -> None:
        """Raises `SandboxError` for an unknown release."""
        super().__init__(directory, port=options.get("port"), detached=options.get("detached", False))
        self.version = options.get("version", self.DEFAULT)
        if self.version not in self.RELEASES:
            raise SandboxError(f"unknown Kafka release {self.version!r}", f"known are {', '.join(self.RELEASES)}")
        self.config = dict(options.get("config") or {})
        self.jvm = options.get("jvm", BROKER_JVM)
        self.name = f"Kafka {self.version.rpartition('.')[0]} broker"

    @property
    def bootstrap(self) -> str:
        """``127.0.0.1:PORT``."""
        return f"{ports.HOST}:{self.port}"

    def _server_properties(self, settings: Mapping[str, object]) -> str:
        """Writes the properties of the broker. Returns the path of the file."""
        all_settings = {**_COMMON, "log.dirs": self.directory / "data", **settings, **self.config}
        return self._settings_file("server.properties", all_settings)

    def _is_ready(self) -> bool:
        """Returns whether the broker has logged its start, responds to a Metadata request, and can serve all topics
        that have a log in its directory."""
        if not _UP.search(self.log_of_this_run()):
            return False
        logs = [directory.name for directory in (self.directory / "data").glob("*-*") if directory.is_dir()]
        topics = {found[1] for name in logs if (found := _PARTITION_DIRECTORY.fullmatch(name))}
        metadata = 0 if self.version in _WITHOUT_METADATA_4 else 4
        return ports.broker_responds(self.port, topics - {"__cluster_metadata"}, metadata)


class KafkaBroker(_Broker):
    """A Kafka broker that stores its metadata in ZooKeeper; ``version`` is one of `BROKER_JARS`.

    ``zookeeper`` is a connect string and may end with a chroot. The broker's data are in ``directory`` and stay there
    after `stop`.
    """

    RELEASES = BROKER_JARS
    DEFAULT = DEFAULT_VERSION

    def __init__(
        self, directory: Path | str, *, zookeeper: str, broker_id: int = 0, **options: Unpack[BrokerOptions]
    ) -> None:
        super().__init__(directory, **options)
        self.zookeeper = zookeeper
        self.broker_id = broker_id
        self.name += f" {broker_id}"

    def start(self) -> Self:
        if not self.running():
            self._await_expired_registration()
        return super().start()

    def _await_expired_registration(self) -> None:
        """Waits until the registration of a killed broker has expired, because a broker exits if its id is still
        registered when the broker starts."""
        servers, slash, chroot = self.zookeeper.partition("/")
        registration = f"{slash}{chroot}".rstrip("/") + f"/brokers/ids/{self.broker_id}"
        address = servers.split(",")[0]

        def registered() -> bool:
            # If ZooKeeper does not allow the `dump` command, `registered` returns False at once. The broker then starts
            # without a wait, and exits if the old registration still exists.
            nodes = ports.four_letter_word(address, "dump").splitlines()
            return registration in {line.strip() for line in nodes if line.startswith("\t/")}

        if not wait_until(lambda: not registered(), SESSION_TIMEOUT_MS / 1000 + 15):
            raise SandboxError(
                f"cannot start {self.name}",
                f"another broker is registered at {registration} of {servers}",
                "stop it, or choose another broker id or chroot",
            )

    def _command(self) -> list[str]:
        address: dict[str, object] = {"listeners": f"PLAINTEXT://{self.bootstrap}"}
        if self.version in _WITHOUT_LISTENERS:
            address = {"host.name": ports.HOST, "port": self.port}
        settings = {
            "broker.id": self.broker_id,
            **address,
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
        }
        return self._java(BROKER_JARS[self.version], "kafka.Kafka", self._server_properties(settings))


class KraftBroker(_Broker):
    """A Kafka broker that is also the controller: a cluster of one node without ZooKeeper. ``version`` is one of
    `KRAFT_JARS`."""

    RELEASES = KRAFT_JARS
    DEFAULT = NEWEST_VERSION

    def __init__(
        self, directory: Path | str, *, controller_port: int | None = None, **options: Unpack[BrokerOptions]
    ) -> None:
        super().__init__(directory, **options)
        self._controller_port = controller_port

    def _release_ports(self) -> None:
        super()._release_ports()
        self._controller_port = None

    def _command(self) -> list[str]:
        self._controller_port = self._controller_port or ports.free_port()
        controller = f"{ports.HOST}:{self._controller_port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "metadata.max.idle.interval.ms": 10_000,  # an idle controller writes twice a second by default
        }
        jar_sets, file = KRAFT_JARS[self.version], self._server_properties(settings)
        if not (self.directory / "data" / "meta.properties").exists():
            arguments = ("format", "--cluster-id", _cluster_id(), "--config", file)
            tool = self._java(jar_sets, "kafka.tools.StorageTool", *arguments)
            with self.log_file.open("ab") as log:
                done = subprocess.run(tool, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=60, check=False)
            if done.returncode != 0:
                what = f"cannot format {self.directory / 'data'}"
                raise SandboxError(what, log_tail(self.log_file), f"see {self.log_file}")
        return self._java(jar_sets, "kafka.Kafka", file)


def _cluster_id() -> str:
    """Returns a random cluster id: 22 characters of URL-safe base64, the first not a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
