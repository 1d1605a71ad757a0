"""`OldConsumer`: the real old high-level consumer of Kafka 0.8.2.2 to 1.1.1
(kafka.consumer.ZookeeperConsumerConnector).

Kafka's own console consumer is not sufficient: it forces ``auto.offset.reset`` to ``largest``, and prints neither the
partition nor the offset, which are needed to count lost and repeated messages. Therefore `OldConsumer` runs a small
program, ``OldConsumerMain.java`` in this directory, that uses the library of Kafka's old consumer. The compiler
Janino compiles and runs the source, so that neither a JDK nor a compiled class is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from offsetmgr.core.errors import SandboxError
from offsetmgr.sandbox.broker import BROKER_JARS
from offsetmgr.sandbox.java import QUICK_START
from offsetmgr.sandbox.process import ServerProcess

JARS: Final = {release: sets[0] for release, sets in BROKER_JARS.items() if release < "2"}
"""The releases of Kafka that contain the old consumer, each with its set of jars. Kafka 2.0 removed it."""
DEFAULT_VERSION: Final = "0.10.2.2"
_PROGRAM: Final = Path(__file__).with_name("OldConsumerMain.java")
_ESCAPE: Final = re.compile(rb"\\x([0-9a-f]{2})")
_REGISTERED: Final = re.compile(rb"\[(\S+?)\], end registering consumer \S+ in ZK")
_REBALANCED: Final = re.compile(rb"end rebalancing consumer \S+ try #")


class ConsumedMessage(NamedTuple):
    """One message that an old consumer consumed; ``time_ms`` is the time, in milliseconds since 1970."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    topic: str = ""
    time_ms: int = 0


@dataclass(eq=False, repr=False)
class OldConsumer(ServerProcess):
    """One member of an old consumer group, as a child process.

    ``zookeeper`` is the connect string of the brokers' ZooKeeper, with its chroot. ``topic`` is one topic, several
    topics separated by commas, ``white_list:REGEX`` or ``black_list:REGEX``. ``offsets_storage`` and ``dual_commit``
    set the consumer's properties ``offsets.storage`` and ``dual.commit.enabled``. ``extra`` contains further properties
    of the consumer, which override the properties from the other settings, for example
    ``{"zookeeper.session.timeout.ms": 4000}``. ``streams`` is the number of threads for each topic. Without
    ``consumer_id`` the library generates an id at each start. ``version`` is the release of Kafka, and ``jvm`` are the
    flags of the JVM. A ``detached`` consumer keeps running after this program has ended.

    `start` returns after the registration and the first rebalance. On `stop` the consumer commits, releases its
    partitions and leaves the group.
    """

    directory: Path
    _: KW_ONLY
    zookeeper: str
    group: str
    topic: str
    offsets_storage: Literal["zookeeper", "kafka"] = "zookeeper"
    dual_commit: bool = False
    auto_commit_interval_ms: int = 1000
    consumer_id: str | None = None
    streams: int = 1
    extra: Mapping[str, object] | None = None
    detached: bool = False
    jvm: Sequence[str] = ("-Xmx128m", *QUICK_START)
    version: str = DEFAULT_VERSION

    stop_timeout_s = 60.0  # a consumer that is killed repeats messages

    def __post_init__(self) -> None:
        """Raises `SandboxError` for a version without the old consumer."""
        super().__init__(self.directory, detached=self.detached)
        if self.version not in JARS:
            raise SandboxError(f"Kafka {self.version} has no old consumer", f"these have it: {', '.join(JARS)}")
        self.name = f"old consumer of {self.group}"

    @property
    def output_file(self) -> Path:
        """The file with the messages of all runs: partition, offset, key, value, topic and time, separated by tabs."""
        return self.directory / "messages.tsv"

    @property
    def member_id(self) -> str:
        """The consumer's id under ``/consumers/GROUP/ids`` in this run. Raises `SandboxError` if the consumer has not
        registered yet."""
        found = _REGISTERED.search(self.log_of_this_run())
        if not found:
            raise SandboxError(f"{self.name} has not registered")
        return found[1].decode()

    def messages(self) -> list[ConsumedMessage]:
        """Returns the messages that all runs have printed so far, in order."""
        return read_messages(self.output_file)

    def rebalances(self) -> int:
        """Returns the number of completed rebalances in this run."""
        return len(_REBALANCED.findall(self.log_of_this_run()))

    def settings(self) -> dict[str, object]:
        """Returns the properties of the consumer."""
        own: dict[str, object] = {
            "zookeeper.connect": self.zookeeper,
            "group.id": self.group,
            "offsets.storage": self.offsets_storage,
            "dual.commit.enabled": str(self.dual_commit).lower(),
            "auto.commit.interval.ms": self.auto_commit_interval_ms,
            "auto.offset.reset": "smallest",
            "zookeeper.session.timeout.ms": 6000,
            "rebalance.backoff.ms": 500,
            "rebalance.max.retries": 20,
            "refresh.leader.backoff.ms": 100,
            # A fetch that finds no message waits for so long. By default an idle consumer sends ten fetches a second.
            "fetch.wait.max.ms": 1000,
        }
        if self.consumer_id is not None:
            own["consumer.id"] = self.consumer_id
        return {**own, **(self.extra or {})}

    def _command(self) -> list[str]:
        file = self._settings_file("consumer.properties", self.settings())
        arguments = (str(_PROGRAM), "OldConsumerMain", file, self.topic, str(self.streams))
        return self._java((JARS[self.version], "janino"), "org.codehaus.janino.SimpleCompiler", *arguments)

    def _stdout(self) -> Path:
        return self.output_file

    def _is_ready(self) -> bool:
        return bool(_REBALANCED.search(self.log_of_this_run()))


def read_messages(file: Path) -> list[ConsumedMessage]:
    """Returns the messages that an old consumer has written so far, without an incomplete last line."""
    if not file.exists():
        return []
    whole, _, _torn = file.read_bytes().rpartition(b"\n")
    return [_message(line) for line in whole.split(b"\n") if line]


def _message(line: bytes) -> ConsumedMessage:
    partition, offset, key, value, topic, time_ms = line.split(b"\t")
    return ConsumedMessage(
        int(partition), int(offset), _unescaped(key), _unescaped(value), topic.decode(), int(time_ms)
    )


def _unescaped(text: bytes) -> bytes | None:
    return None if text == rb"\N" else _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), text)
