"""The state file of a sandbox: its processes and their addresses, for later commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.atomic_file import replace_file
from offsetmgr.core.errors import MalformedData, SandboxError, UnknownVersion
from offsetmgr.sandbox.process_ref import ProcessRef

VERSION: Final = 1
FILE: Final = "state.json"


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """One process of the sandbox. ``address`` is ``HOST:PORT``, or empty if the process does not listen on a port."""

    kind: str
    """``zookeeper``, ``broker``, ``old-consumer`` or ``mirror-maker``."""
    name: str
    version: str
    directory: str
    pid: int
    started: str
    address: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ref(self) -> ProcessRef:
        return ProcessRef(self.pid, self.started)

    def running(self) -> bool:
        """Returns whether this process still runs. A later process with the same pid does not count."""
        return self.ref.alive()


@dataclass(frozen=True, slots=True)
class SandboxState:
    """The content of a state file. ``complete`` becomes True when all servers are ready.

    The sandbox has cluster A with ``brokers`` brokers of release ``broker_version``, or with one broker of Kafka 4.4 if
    ``kraft`` is True. If ``clusters`` is 2, it also has cluster B with one broker of Kafka 4.4.
    """

    brokers: int
    kraft: bool
    complete: bool = False
    servers: tuple[ServerRecord, ...] = ()
    broker_version: str = "3.9.1"
    clusters: int = 1

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers of cluster A: ``HOST:PORT,...``."""
        brokers = (server for server in self.servers if server.kind == "broker")
        return ",".join(broker.address for broker in brokers if broker.name != BROKER_B)

    @property
    def bootstrap_b(self) -> str | None:
        """The address of the broker of cluster B; None without cluster B."""
        return next((server.address for server in self.servers if server.name == BROKER_B), None)

    @property
    def mirror(self) -> ServerRecord | None:
        """The MirrorMaker from A to B, also if it has ended; None if none was started."""
        return next((server for server in self.servers if server.kind == "mirror-maker"), None)

    @property
    def zookeeper(self) -> str | None:
        """The brokers' ZooKeeper connect string with its chroot; None without ZooKeeper."""
        return next((server.address + CHROOT for server in self.servers if server.kind == "zookeeper"), None)

    def intact(self) -> bool:
        """Returns whether the sandbox has started completely and its ZooKeeper server and all its brokers still run."""
        return self.complete and all(s.running() for s in self.servers if s.kind in ("zookeeper", "broker"))


BROKER_B: Final = "broker-b"
"""The name of the broker of cluster B."""
CHROOT: Final = "/kafka"
"""The chroot of the sandbox's brokers in their ZooKeeper, as in most real clusters."""


def load(directory: Path) -> SandboxState | None:
    """Returns the state in this directory; None if there is none. Raises `MalformedData`, `UnknownVersion`,
    `SandboxError`."""
    file = directory / FILE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        version = data.pop("version")
        if version != VERSION:
            raise UnknownVersion(str(file), f"unknown version {version!r} of the sandbox's state")
        servers = tuple(ServerRecord(**server) for server in data.pop("servers"))
        return SandboxState(**data, servers=servers)
    except FileNotFoundError:
        return None
    except OSError as error:
        hint = Advice("name another directory with {state}, or with OFFSETMGR_SANDBOX")
        raise SandboxError(f"cannot read {file}", error.strerror or str(error), hint) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MalformedData(
            str(file), f"not a sandbox's state: {error}", Advice("choose another {state} directory")
        ) from error


def save(directory: Path, state: SandboxState) -> None:
    """Writes the state file atomically: a reader reads either the old state or the new one."""
    text = json.dumps({"version": VERSION, **asdict(state)}, indent=2) + "\n"
    replace_file(directory / FILE, lambda out: out.write(text.encode()), overwrite=True)
