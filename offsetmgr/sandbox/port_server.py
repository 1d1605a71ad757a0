"""`ListeningServer`: a server process that listens on a port. If another program takes the selected port before the
server listens on it, the server tries another port."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from offsetmgr.core.errors import SandboxError
from offsetmgr.core.retry import Backoff, BlockingRetries
from offsetmgr.sandbox import ports
from offsetmgr.sandbox.process import ServerProcess

_PORT_TAKEN = ("Address already in use", "BindException")
_BACKOFF = Backoff.fixed(0, max_retries=4)


class ListeningServer(ServerProcess):
    """A server that listens on a port. If ``port`` is `None`, the first start selects a free port, and later starts use
    the same port."""

    def __init__(self, directory: Path | str, *, port: int | None = None, detached: bool = False) -> None:
        super().__init__(directory, detached=detached)
        self._port = port

    @property
    def port(self) -> int:
        """The port. Raises `SandboxError` before the first start, unless a port was passed to the constructor."""
        if self._port is None:
            raise SandboxError(f"{self.name} has not been started", "its port is not known yet")
        return self._port

    def start(self) -> Self:
        if self._port is not None:
            if not self.running() and not ports.is_free(self._port):
                raise SandboxError(f"cannot start {self.name}", f"port {self._port} is taken", "choose another port")
            return super().start()
        retries = BlockingRetries(backoff=_BACKOFF)
        while True:
            self._port = ports.free_port()
            try:
                return super().start()
            except SandboxError as error:
                # Another program may have taken the port between our check and the server's start.
                self._release_ports()
                if not any(sign in error.why for sign in _PORT_TAKEN) or not retries.pause():
                    raise

    def _release_ports(self) -> None:
        self._port = None
