"""`Sandbox`: a cluster of servers that outlives the program that started it (``offsetmgr sandbox up`` and ``down``).

Ordering contract: each server is recorded in the state file before the program waits for it to become ready. Therefore
a later `Sandbox.up` or `Sandbox.down` finds the server, even if this program dies before the server is ready.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import SandboxError, UsageError, os_error_as
from offsetmgr.core.plurals import count_of
from offsetmgr.sandbox import jars, ports
from offsetmgr.sandbox import state as states
from offsetmgr.sandbox.broker import BROKER_JARS, DEFAULT_VERSION, KRAFT_JARS, NEWEST_VERSION, KafkaBroker, KraftBroker
from offsetmgr.sandbox.jars import Progress, silent
from offsetmgr.sandbox.legacy_consumer import DEFAULT_VERSION as OLD_CONSUMER
from offsetmgr.sandbox.legacy_consumer import JARS as OLD_CONSUMERS
from offsetmgr.sandbox.legacy_consumer import OldConsumer
from offsetmgr.sandbox.mirror_maker import JARS as MIRROR_JARS
from offsetmgr.sandbox.mirror_maker import VERSION as MIRROR_VERSION
from offsetmgr.sandbox.mirror_maker import MirrorMaker
from offsetmgr.sandbox.paths import state_directory
from offsetmgr.sandbox.port_server import ListeningServer
from offsetmgr.sandbox.process import ServerProcess
from offsetmgr.sandbox.state import SandboxState, ServerRecord
from offsetmgr.sandbox.topics import create_topic
from offsetmgr.sandbox.zookeeper import ZooKeeperServer
from offsetmgr.spark.ivy import cache_lock

MAX_BROKERS: Final = 9
_DATA: Final = "data"
_MIRROR: Final = "mirror-maker"
_MARKER_FILE: Final = ".offsetmgr-sandbox"
"""A marker file in the data directory. A data directory without it is never removed."""


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Old consumers to run in the sandbox: ``members`` processes of one group on one topic."""

    members: int
    group: str
    topic: str
    offsets_storage: Literal["zookeeper", "kafka"] = "zookeeper"
    dual_commit: bool = False
    partitions: int = 8
    """Number of partitions with which the topic is created if it does not exist."""


RESTART_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "offsets.storage": ("zookeeper", "kafka"),
    "dual.commit.enabled": ("true", "false"),
}
"""The settings with which `Sandbox.restart_old_consumer` can start a consumer, and their values."""


class Sandbox:
    """The sandbox whose state and data are in ``directory`` (default: `state_directory`). The constructor performs no
    I/O."""

    def __init__(self, directory: Path | str | None = None) -> None:
        self.directory = state_directory() if directory is None else Path(directory).absolute()
        self._is_named = directory is not None

    def command(self, name: str) -> Advice:
        """Returns a command line about this sandbox."""
        if self._is_named:
            return Advice(f"offsetmgr sandbox {name} {{state}} {{}}", shlex.quote(str(self.directory)))
        return Advice(f"offsetmgr sandbox {name}")

    def status(self) -> SandboxState | None:
        """Returns the servers that were started and have not been stopped with `down`; `None` if there are none.
        `ServerRecord.running` returns whether a server still runs."""
        return states.load(self.directory)

    def env(self) -> dict[str, str | None]:
        """Returns the environment variables through which every offsetmgr command finds this sandbox. If a value is
        None, the variable must be unset. A second cluster has the variable ``OFFSETMGR_BOOTSTRAP_SERVER_B``, which only
        serves the user's own command lines.

        Raises `SandboxError` if no sandbox is running.
        """
        state = self.status()
        if state is None or not state.complete:
            hint = Advice("start one: {}", self.command("up"))
            raise SandboxError(f"no sandbox is up in {self.directory}", "", hint)
        exported = {"OFFSETMGR_BOOTSTRAP_SERVER": state.bootstrap, "OFFSETMGR_ZOOKEEPER": state.zookeeper}
        return {**exported, "OFFSETMGR_BOOTSTRAP_SERVER_B": state.bootstrap_b} if state.clusters > 1 else exported

    def up(
        self,
        *,
        brokers: int = 1,
        kraft: bool = False,
        version: str = DEFAULT_VERSION,
        clusters: int = 1,
        progress: Progress = silent,
    ) -> bool:
        """Starts ZooKeeper and Kafka brokers of release ``version`` (with ``kraft``: one Kafka 4.4 broker without
        ZooKeeper), and waits until they are ready. With two ``clusters`` it also starts cluster B, one Kafka 4.4 broker
        without ZooKeeper.

        Returns True if this call started the servers, False if they were already running. If an earlier sandbox in this
        directory did not end properly, first stops the remaining servers of the earlier sandbox and removes its data.
        After any failure, including Ctrl-C, stops all servers that this call started. Raises `SandboxError`,
        `UsageError`.
        """
        if not 1 <= brokers <= (1 if kraft else MAX_BROKERS):
            raise UsageError(
                f"cannot start {brokers} brokers",
                Advice("{brokers} is 1 with KRaft" if kraft else f"{{brokers}} is 1 to {MAX_BROKERS}"),
            )
        if version not in BROKER_JARS:
            raise UsageError(f"cannot start brokers {version!r}", f"known releases are {', '.join(BROKER_JARS)}")
        if clusters not in (1, 2):
            raise UsageError(f"cannot start {clusters} clusters", Advice("{clusters} is 1 or 2"))
        wanted = SandboxState(brokers, kraft, broker_version=version, clusters=clusters)
        with self._locked(progress):
            old = self.status()
            if old is not None and old.intact():
                if replace(old, complete=False, servers=()) != wanted:
                    raise SandboxError(
                        f"another sandbox is up in {self.directory}",
                        f"it has {_shape(old)}, not {_shape(wanted)}",
                        Advice("stop it first: {}; or name another directory with {state}", self.command("down")),
                    )
                return False
            if old is not None:
                progress("removing the servers and data of a sandbox that did not end properly")
                self._clear(old, progress)
            try:
                self._start(wanted, _ports_of(old), progress)
            except BaseException:
                self._clear(self.status(), progress)
                raise
            return True

    def start_mirror(self, progress: Progress = silent, config: Mapping[str, object] = MappingProxyType({})) -> bool:
        """Starts a MirrorMaker from cluster A to cluster B of a running sandbox. It copies all topics without a change
        of their names, and the offsets of all groups, unless ``config`` has other properties. A MirrorMaker that has
        ended starts again in its old directory.

        Returns True if this call started it, False if it was already running. Raises `SandboxError`.
        """
        with self._locked(progress):
            state = self.status()
            if state is None or not state.intact() or state.bootstrap_b is None:
                hint = Advice("start both with {}", self.command("up"))
                raise SandboxError("cannot start MirrorMaker", "no sandbox with two clusters is up", hint)
            if state.mirror is not None and state.mirror.running():
                return False
            jars.resolve(MIRROR_JARS, progress)
            progress("starting MirrorMaker from cluster A to cluster B")
            mirror = MirrorMaker(
                self.directory / _DATA / _MIRROR,
                source=state.bootstrap,
                target=state.bootstrap_b,
                # MirrorMaker stores this topic in cluster A, which rejects writes to topics with too few replicas.
                config={"offset-syncs.topic.replication.factor": min(3, state.brokers), **config},
                detached=True,
            )
            mirror.on_launch = lambda it: self._record(it, partial(ServerRecord, _MIRROR, _MIRROR, MIRROR_VERSION))
            mirror.start()
            return True

    def start_old_consumers(self, sample: SampleGroup, progress: Progress = silent) -> list[str]:
        """Starts members of an old consumer group in a running sandbox, and creates the topic if it does not exist.

        Returns the names of the members. Raises `SandboxError`.
        """
        with self._locked(progress):
            state = self.status()
            if state is None or not state.intact():
                hint = Advice("start one: {}", self.command("up"))
                raise SandboxError("cannot start old consumers", "no sandbox is up", hint)
            if state.zookeeper is None:
                raise SandboxError("cannot start old consumers", "they need ZooKeeper, and brokers before 4.0")
            progress(f"creating topic {sample.topic} if it does not exist")
            create_topic(
                sample.topic,
                sample.partitions,
                zookeeper=state.zookeeper,
                bootstrap=state.bootstrap,
                version=state.broker_version,
                replicas=min(3, state.brokers),
            )
            taken = {server.name for server in state.servers}
            new = (name for name in (f"{sample.group}-{n}" for n in range(1_000_000)) if name not in taken)
            release = state.broker_version if state.broker_version in OLD_CONSUMERS else OLD_CONSUMER
            return [
                self._start_old_consumer(next(new), sample, state.zookeeper, release, progress).name
                for _ in range(sample.members)
            ]

    def restart_old_consumer(
        self, member: str, settings: Mapping[str, str], progress: Progress = silent
    ) -> ServerRecord:
        """Stops one old consumer and starts it with other settings. ``member`` is its id in ZooKeeper, or its name in
        the sandbox.

        ``settings`` are consumer properties (`RESTART_SETTINGS`); the consumer keeps the properties that it does not
        contain. Returns the record of the restarted consumer. Raises `SandboxError`, `UsageError`.
        """
        if unknown := sorted(settings.keys() - RESTART_SETTINGS.keys()):
            raise UsageError(unknown[0], "is not a setting of a restart", f"known are {', '.join(RESTART_SETTINGS)}")
        for name, value in settings.items():
            if value not in RESTART_SETTINGS[name]:
                raise UsageError(f"{name}={value}", f"the value is one of {', '.join(RESTART_SETTINGS[name])}")
        with self._locked(progress):
            state = self.status()
            consumers = [s for s in (state.servers if state else ()) if s.kind == "old-consumer"]
            found = [s for s in consumers if member in (s.name, s.details.get("member_id"))]
            if state is None or state.zookeeper is None or not found:
                running = ", ".join(s.details.get("member_id", s.name) for s in consumers if s.running())
                raise SandboxError(f"no old consumer {member} is in the sandbox", f"running are: {running or 'none'}")
            old = found[0]
            progress(f"stopping old consumer {old.name}")
            old.ref.stop(OldConsumer.stop_timeout_s)
            sample = SampleGroup(
                1,
                old.details["group"],
                old.details["topic"],
                "kafka" if settings.get("offsets.storage", old.details["offsets_storage"]) == "kafka" else "zookeeper",
                settings.get("dual.commit.enabled", str(old.details["dual_commit"]).lower()) == "true",
            )
            return self._start_old_consumer(old.name, sample, state.zookeeper, old.version, progress)

    def down(self, progress: Progress = silent) -> list[str]:
        """Stops all servers, waits until they have ended, and removes their data. Returns the names of the stopped
        servers."""
        if not self.directory.exists():
            return []
        with self._locked(progress):
            return self._clear(self.status(), progress)

    # --- single steps --------------------------------------------------------------------------------

    @contextmanager
    def _locked(self, report: Progress) -> Iterator[None]:
        hint = Advice("name another directory with {state}, or with OFFSETMGR_SANDBOX")
        with os_error_as(SandboxError, f"cannot write into {self.directory}", hint):
            self.directory.mkdir(parents=True, exist_ok=True)
            (self.directory / "lock").touch()
        waits = f"waiting for another command that works on {self.directory}"
        with cache_lock(self.directory / "lock", lambda: report(waits)):
            yield

    def _start(self, wanted: SandboxState, old_ports: Mapping[str, int], report: Progress) -> None:
        data = self._remove_data()
        if data.exists():
            raise SandboxError(
                f"{data} exists", "it was not created by a sandbox", Advice("name another directory with {state}")
            )
        data.mkdir()
        (data / _MARKER_FILE).touch()
        states.save(self.directory, wanted)
        newest = KRAFT_JARS[NEWEST_VERSION] if wanted.kraft or wanted.clusters > 1 else ()
        for name in (*(() if wanted.kraft else BROKER_JARS[wanted.broker_version]), *newest):
            jars.resolve(name, report)

        def launch(server: ListeningServer, kind: str, name: str, version: str) -> None:
            cluster = f" of cluster {'B' if name == states.BROKER_B else 'A'}" if wanted.clusters > 1 else ""
            report(f"starting {server.name}{cluster}")
            server.on_launch = lambda it: self._record(
                it, partial(ServerRecord, kind, name, version, address=f"{ports.HOST}:{server.port}")
            )
            server.start()

        def launch_kraft(name: str) -> None:
            broker = KraftBroker(data / name, port=old_ports.get(name), detached=True)
            launch(broker, "broker", name, NEWEST_VERSION)

        if wanted.kraft:
            launch_kraft("broker-1")
        else:
            zookeeper = ZooKeeperServer(data / "zookeeper", port=old_ports.get("zookeeper"), detached=True)
            launch(zookeeper, "zookeeper", "zookeeper", "3.8.4")
            for number in range(wanted.brokers):
                name = f"broker-{number}"
                broker = KafkaBroker(
                    data / name,
                    zookeeper=zookeeper.connect + states.CHROOT,
                    broker_id=number,
                    port=old_ports.get(name),
                    config=_replication(wanted.brokers),
                    detached=True,
                    version=wanted.broker_version,
                )
                launch(broker, "broker", name, wanted.broker_version)
        if wanted.clusters > 1:
            launch_kraft(states.BROKER_B)
        state = self.status()
        assert state is not None
        states.save(self.directory, replace(state, complete=True))

    def _start_old_consumer(
        self, name: str, sample: SampleGroup, zookeeper: str, version: str, report: Progress
    ) -> ServerRecord:
        jars.resolve(OLD_CONSUMERS[version], report)
        report(f"starting old consumer {name}")
        details: dict[str, Any] = {
            "group": sample.group,
            "topic": sample.topic,
            "offsets_storage": sample.offsets_storage,
            "dual_commit": sample.dual_commit,
        }
        directory = self.directory / _DATA / name
        consumer = OldConsumer(directory, zookeeper=zookeeper, detached=True, version=version, **details)
        details["messages"] = str(consumer.output_file)
        record = partial(ServerRecord, "old-consumer", name, version, details=details)
        consumer.on_launch = lambda it: self._record(it, record)
        try:
            consumer.start()
        except BaseException:
            self._replace_record(name)
            raise
        details["member_id"] = consumer.member_id
        return self._record(consumer, record)

    def _record(self, server: ServerProcess, record: Callable[[str, int, str], ServerRecord]) -> ServerRecord:
        entry = record(str(server.directory), server.ref.pid, server.ref.started)
        self._replace_record(entry.name, entry)
        return entry

    def _replace_record(self, name: str, *entry: ServerRecord) -> None:
        """Replaces the record of a server, or removes it if there is no new one."""
        state = self.status()
        assert state is not None
        others = (other for other in state.servers if other.name != name)
        states.save(self.directory, replace(state, servers=(*others, *entry)))

    def _clear(self, state: SandboxState | None, report: Progress) -> list[str]:
        stopped: list[str] = []
        # If a server has died, the other servers may wait for it forever while they shut down, so they are killed after
        # a short time.
        wait_s = 20.0 if state is not None and state.intact() else 2.0
        # Reverse order of start: consumers leave their groups, brokers shut down in order, ZooKeeper ends last.
        for server in reversed(state.servers if state else ()):
            if server.running():
                report(f"stopping {server.name}")
                server.ref.stop(wait_s)
                stopped.append(server.name)
        self._remove_data()
        (self.directory / states.FILE).unlink(missing_ok=True)
        return stopped

    def _remove_data(self) -> Path:
        """Removes the data directory, unless it has no marker file. Returns its path."""
        data = self.directory / _DATA
        if (data / _MARKER_FILE).exists():
            shutil.rmtree(data)
        return data


def _shape(state: SandboxState) -> str:
    of_a = count_of(state.brokers, f"Kafka {state.broker_version} broker")
    cluster_a = "a Kafka 4.4 broker without ZooKeeper" if state.kraft else of_a
    return f"{cluster_a} and cluster B" if state.clusters > 1 else cluster_a


def _ports_of(old: SandboxState | None) -> dict[str, int]:
    """Returns the ports of the previous sandbox that are still free, so that variables exported in a shell stay
    valid."""
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
