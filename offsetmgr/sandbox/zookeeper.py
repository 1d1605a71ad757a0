"""`ZooKeeperServer`: a real ZooKeeper server, standalone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from offsetmgr.core.errors import SandboxError
from offsetmgr.sandbox import ports
from offsetmgr.sandbox.java import QUICK_START
from offsetmgr.sandbox.port_server import ListeningServer

Version = Literal["3.8", "3.4"]
JARS: Final[dict[str, str]] = {"3.8": "kafka-3.9", "3.4": "kafka-0.10.2"}


class ZooKeeperServer(ListeningServer):
    """A ZooKeeper server as a child process. Its data are in ``directory`` and stay there after `stop`.

    Version 3.4 is available for tests against a server that does not support the MultiRead request. The tick time is
    short (500 ms), so that session timeouts from 1 s on are possible and the ephemeral nodes of a killed client expire
    soon. ``config`` contains further settings of the server.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        version: Version = "3.8",
        port: int | None = None,
        detached: bool = False,
        config: Mapping[str, object] | None = None,
        jvm: Sequence[str] = ("-Xmx512m", *QUICK_START),
    ) -> None:
        super().__init__(directory, port=port, detached=detached)
        if version not in JARS:
            raise SandboxError(f"unknown ZooKeeper version {version!r}", f"known are {', '.join(JARS)}")
        self.version = version
        self.config = dict(config or {})
        # Without this property ZooKeeper 3.4 would register log4j with JMX, which requires classes that Java 17 no
        # longer has.
        self.jvm = (*jvm, "-Dzookeeper.jmx.log4j.disable=true")
        self.name = f"ZooKeeper {version}"

    @property
    def connect(self) -> str:
        """``127.0.0.1:PORT``, without a chroot."""
        return f"{ports.HOST}:{self.port}"

    @property
    def _data(self) -> Path:
        return self.directory.absolute() / "data"

    def _command(self) -> list[str]:
        settings: dict[str, object] = {
            "dataDir": self._data,
            "clientPort": self.port,
            "clientPortAddress": ports.HOST,
            "tickTime": 500,
            "minSessionTimeout": 1000,
            "maxSessionTimeout": 60_000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            **self.config,
        }
        file = self._settings_file("zoo.cfg", settings)
        return self._java([JARS[self.version]], "org.apache.zookeeper.server.quorum.QuorumPeerMain", file)

    def _is_ready(self) -> bool:
        # If another server already listens on the port, the other server may respond before this server reports that
        # the port is taken. So check that the server that responds uses this server's data directory.
        return ports.zookeeper_responds(self.port) and str(self._data) in ports.four_letter_word(self.connect, "conf")
