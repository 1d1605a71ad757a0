"""The state of a sandbox that outlives its command: its processes and their addresses."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from offsetmgr.core.errors import MalformedData, SandboxError, UnknownVersion
from offsetmgr.sandbox.identity import ProcessRef

VERSION: Final = 1
FILE: Final = "state.json"


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """One process of the sandbox. ``address`` is ``HOST:PORT``, empty if it does not listen."""

    kind: str
    """``zookeeper``, ``broker`` or ``old-consumer``."""
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
        """Whether this very process (not another one with its pid) runs."""
        return self.ref.alive()


@dataclass(frozen=True, slots=True)
class SandboxState:
    """A sandbox according to its state file. ``complete`` is False until all its servers have responded."""

    brokers: int
    kraft: bool
    complete: bool = False
    servers: tuple[ServerRecord, ...] = ()
    broker_version: str = "3.9.1"

    @property
    def bootstrap(self) -> str:
        """``HOST:PORT,...`` of all brokers."""
        return ",".join(server.address for server in self.servers if server.kind == "broker")

    @property
    def zookeeper(self) -> str | None:
        """The brokers' ZooKeeper connect string with its chroot; None without ZooKeeper."""
        for server in self.servers:
            if server.kind == "zookeeper":
                return server.address + CHROOT
        return None

    def intact(self) -> bool:
        """Whether it started completely and every server that others depend on still runs."""
        return self.complete and all(s.running() for s in self.servers if s.kind != "old-consumer")


CHROOT: Final = "/kafka"
"""The chroot of the sandbox's brokers in their ZooKeeper, as in most real clusters."""


def load(directory: Path) -> SandboxState | None:
    """The state in this directory; None if there is none. Raises `MalformedData`, `UnknownVersion`, `SandboxError`."""
    file = directory / FILE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        version = data.pop("version")
        if version != VERSION:
            raise UnknownVersion(str(file), f"version {version!r} of the sandbox's state is not known here")
        servers = tuple(ServerRecord(**server) for server in data.pop("servers"))
        return SandboxState(**data, servers=servers)
    except FileNotFoundError:
        return None
    except OSError as error:
        hint = "name another directory with --state, or with OFFSETMGR_SANDBOX"
        raise SandboxError(f"cannot read {file}", error.strerror or str(error), hint) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MalformedData(str(file), f"not a sandbox's state: {error}", "choose another --state directory") from error


def save(directory: Path, state: SandboxState) -> None:
    """Writes the state atomically: a reader sees the old one or the new one."""
    fresh = directory / f".{FILE}.{os.getpid()}"
    text = json.dumps({"version": VERSION, **asdict(state)}, indent=2)
    fresh.write_text(text + "\n", encoding="utf-8")
    fresh.replace(directory / FILE)


def forget(directory: Path) -> None:
    """Removes the state file."""
    (directory / FILE).unlink(missing_ok=True)
