"""A whole sandbox that outlives the program that started it: ``offsetmgr sandbox up`` and ``down``.

Ordering: a server is recorded in the state file before anything waits for it, so that a later `Sandbox.up` or
`Sandbox.down` finds it even if this program dies meanwhile.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from offsetmgr.core.errors import SandboxError, UsageError
from offsetmgr.sandbox import jars, ports
from offsetmgr.sandbox import state as states
from offsetmgr.sandbox.broker import BROKER_JARS, DEFAULT_VERSION, KafkaBroker, KraftBroker
from offsetmgr.sandbox.legacy_consumer import DEFAULT_VERSION as OLD_CONSUMER
from offsetmgr.sandbox.legacy_consumer import JARS as OLD_CONSUMERS
from offsetmgr.sandbox.legacy_consumer import OldConsumer
from offsetmgr.sandbox.paths import state_directory
from offsetmgr.sandbox.port_server import ListeningServer
from offsetmgr.sandbox.process import ServerProcess
from offsetmgr.sandbox.state import SandboxState, ServerRecord
from offsetmgr.sandbox.topics import create_topic
from offsetmgr.sandbox.zookeeper import ZooKeeperServer

Progress = Callable[[str], None]
MOST_BROKERS: Final = 9
_DATA: Final = "data"
_OURS: Final = ".offsetmgr-sandbox"
"""A marker file in the data directory: only directories that contain it are ever removed."""


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Old consumers to run in the sandbox: ``members`` processes of one group on one topic."""

    members: int
    group: str
    topic: str
    offsets_storage: Literal["zookeeper", "kafka"] = "zookeeper"
    dual_commit: bool = False
    partitions: int = 8
    """Number of the topic's partitions, if it has to be created."""


class Sandbox:
    """The sandbox whose state and data are in ``directory`` (default: the user's state directory). No I/O before a
    call."""

    def __init__(self, directory: Path | str | None = None) -> None:
        self.directory = state_directory() if directory is None else Path(directory).absolute()

    def status(self) -> SandboxState | None:
        """The servers that were started and not stopped since; None if there are none. Each `ServerRecord` reports
        whether it runs."""
        return states.load(self.directory)

    def env(self) -> dict[str, str | None]:
        """The environment variables that make every command find this sandbox; None means that the variable must be
        unset.

        Raises `SandboxError` if no sandbox is running.
        """
        state = self.status()
        if state is None or not state.complete:
            raise SandboxError(f"no sandbox is up in {self.directory}", "", "start one: offsetmgr sandbox up")
        return {"OFFSETMGR_BOOTSTRAP_SERVER": state.bootstrap, "OFFSETMGR_ZOOKEEPER": state.zookeeper}

    def up(
        self,
        *,
        brokers: int = 1,
        kraft: bool = False,
        version: str = DEFAULT_VERSION,
        progress: Progress | None = None,
    ) -> bool:
        """Starts ZooKeeper and Kafka brokers of a release (``kraft``: one Kafka 4.1 broker without ZooKeeper) and waits
        until they respond.

        True if it started them, False if they were already running. Remains of a sandbox that did not end properly are
        stopped and removed first. After any failure, including Ctrl-C, every server that it started is stopped. Raises
        `SandboxError`, `UsageError`.
        """
        if not 1 <= brokers <= (1 if kraft else MOST_BROKERS):
            raise UsageError(
                f"cannot start {brokers} brokers", "with KRaft it is 1" if kraft else f"it is 1 to {MOST_BROKERS}"
            )
        if version not in BROKER_JARS:
            raise UsageError(f"cannot start brokers {version!r}", f"known releases are {', '.join(BROKER_JARS)}")
        say = progress or (lambda _line: None)
        with self._locked(say):
            old = self.status()
            if old is not None and old.intact():
                if (old.brokers, old.kraft, old.broker_version) != (brokers, kraft, version):
                    raise SandboxError(
                        f"another sandbox is up in {self.directory}",
                        f"it has {_shape(old.brokers, old.kraft, old.broker_version)}, "
                        f"not {_shape(brokers, kraft, version)}",
                        "stop it first: offsetmgr sandbox down; or name another directory with --state",
                    )
                return False
            if old is not None:
                say("cleaning up after a sandbox that did not end properly")
                self._clear(old, say)
            try:
                self._start(brokers, kraft, version, _ports_of(old), say)
            except BaseException:
                self._clear(self.status(), say)
                raise
            return True

    def start_old_consumers(self, wanted: SampleGroup, progress: Progress | None = None) -> list[str]:
        """Adds members of an old group to a running sandbox; creates the topic if it is missing.

        Returns their names. Raises `SandboxError`.
        """
        say = progress or (lambda _line: None)
        with self._locked(say):
            state = self.status()
            if state is None or not state.intact():
                raise SandboxError("cannot start old consumers", "no sandbox is up", "start one: offsetmgr sandbox up")
            if state.zookeeper is None:
                raise SandboxError("cannot start old consumers", "they need ZooKeeper, and brokers before 4.0")
            _ensure_topic(state, wanted, say)
            taken = {server.name for server in state.servers}
            fresh = (name for name in (f"{wanted.group}-{n}" for n in range(1_000_000)) if name not in taken)
            release = state.broker_version if state.broker_version in OLD_CONSUMERS else OLD_CONSUMER
            return [
                self._start_old_consumer(next(fresh), wanted, state.zookeeper, release, say)
                for _ in range(wanted.members)
            ]

    def down(self, progress: Progress | None = None) -> list[str]:
        """Stops everything, checks that it is gone, and removes its data. Returns the names of the stopped servers."""
        say = progress or (lambda _line: None)
        if not self.directory.exists():
            return []
        with self._locked(say):
            return self._clear(self.status(), say)

    # --- single steps --------------------------------------------------------------------------------

    @contextmanager
    def _locked(self, say: Progress) -> Iterator[None]:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            file = (self.directory / "lock").open("w")
        except OSError as error:
            hint = "name another directory with --state, or with OFFSETMGR_SANDBOX"
            raise SandboxError(f"cannot write into {self.directory}", error.strerror or str(error), hint) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another command that works on {self.directory}")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _start(self, brokers: int, kraft: bool, version: str, old_ports: Mapping[str, int], say: Progress) -> None:
        data = self._fresh_data_directory()
        states.save(self.directory, SandboxState(brokers, kraft, broker_version=version))
        for name in ("kafka-4.1",) if kraft else BROKER_JARS[version]:
            jars.resolve(name, say)

        def launch(server: ListeningServer, kind: str, name: str, version: str) -> None:
            say(f"starting {server.name}")
            server.on_launch = lambda it: self._record(it, kind, name, version, address=f"{ports.HOST}:{server.port}")
            server.start()

        if kraft:
            port = old_ports.get("broker-1")
            launch(KraftBroker(data / "broker-1", port=port, detached=True), "broker", "broker-1", "4.1.1")
        else:
            zookeeper = ZooKeeperServer(data / "zookeeper", port=old_ports.get("zookeeper"), detached=True)
            launch(zookeeper, "zookeeper", "zookeeper", "3.8.4")
            for number in range(brokers):
                name = f"broker-{number}"
                broker = KafkaBroker(
                    data / name,
                    zookeeper=zookeeper.connect + states.CHROOT,
                    broker_id=number,
                    port=old_ports.get(name),
                    config=_replication(brokers),
                    detached=True,
                    version=version,
                )
                launch(broker, "broker", name, version)
        state = self.status()
        assert state is not None
        states.save(self.directory, replace(state, complete=True))

    def _start_old_consumer(self, name: str, wanted: SampleGroup, zookeeper: str, version: str, say: Progress) -> str:
        jars.resolve(OLD_CONSUMERS[version], say)
        say(f"starting old consumer {name}")
        consumer = OldConsumer(
            self.directory / _DATA / name,
            zookeeper=zookeeper,
            group=wanted.group,
            topic=wanted.topic,
            offsets_storage=wanted.offsets_storage,
            dual_commit=wanted.dual_commit,
            detached=True,
            version=version,
        )
        details = {
            "group": wanted.group,
            "topic": wanted.topic,
            "offsets_storage": wanted.offsets_storage,
            "dual_commit": wanted.dual_commit,
            "messages": str(consumer.output_file),
        }
        consumer.on_launch = lambda it: self._record(it, "old-consumer", name, version, details=details)
        try:
            consumer.start()
        except BaseException:
            self._strike(name)
            raise
        return name

    def _record(
        self,
        server: ServerProcess,
        kind: str,
        name: str,
        version: str,
        *,
        address: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        state = self.status()
        assert state is not None
        entry = ServerRecord(
            kind, name, version, str(server.directory), server.ref.pid, server.ref.started, address, dict(details or {})
        )
        others = tuple(other for other in state.servers if other.name != name)
        states.save(self.directory, replace(state, servers=(*others, entry)))

    def _strike(self, name: str) -> None:
        state = self.status()
        assert state is not None
        states.save(self.directory, replace(state, servers=tuple(s for s in state.servers if s.name != name)))

    def _clear(self, state: SandboxState | None, say: Progress) -> list[str]:
        stopped: list[str] = []
        # If a server is gone, the others may wait for it forever before they end, so they are given little time.
        wait_s = 20.0 if state is not None and state.intact() else 2.0
        # In reverse order of start: consumers leave their group, brokers hand over, ZooKeeper ends last.
        for server in reversed(state.servers if state else ()):
            if server.running():
                say(f"stopping {server.name}")
                server.ref.stop(wait_s)
                stopped.append(server.name)
        data = self.directory / _DATA
        if (data / _OURS).exists():
            shutil.rmtree(data)
        states.forget(self.directory)
        return stopped

    def _fresh_data_directory(self) -> Path:
        data = self.directory / _DATA
        if (data / _OURS).exists():
            shutil.rmtree(data)
        if data.exists():
            raise SandboxError(f"{data} exists", "it was not made by a sandbox", "name another directory with --state")
        data.mkdir()
        (data / _OURS).touch()
        return data


def _shape(brokers: int, kraft: bool, version: str) -> str:
    if kraft:
        return "a Kafka 4.1 broker without ZooKeeper"
    return f"{brokers} Kafka {version} broker{'' if brokers == 1 else 's'}"


def _ports_of(old: SandboxState | None) -> dict[str, int]:
    """The ports of the previous sandbox, if still free, so that variables exported in a shell stay valid."""
    known = {s.name: int(s.address.rpartition(":")[2]) for s in (old.servers if old else ()) if s.address}
    return {name: port for name, port in known.items() if ports.is_free(port)}


def _replication(brokers: int) -> dict[str, object]:
    replicas = min(3, brokers)
    return {
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": max(1, replicas - 1),
        "default.replication.factor": replicas,
        "min.insync.replicas": max(1, replicas - 1),
    }


def _ensure_topic(state: SandboxState, wanted: SampleGroup, say: Progress) -> None:
    say(f"creating topic {wanted.topic} where it is missing")
    create_topic(
        wanted.topic,
        wanted.partitions,
        zookeeper=state.zookeeper or "",
        bootstrap=state.bootstrap,
        version=state.broker_version,
        replicas=min(3, state.brokers),
    )
