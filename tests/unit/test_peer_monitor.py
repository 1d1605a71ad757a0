"""The monitor of other managers, with real sockets: it removes a peer whose process has died, and no other one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from offsetmgr.core.errors import CoordinatorNotAvailable
from offsetmgr.manager.assignment import NodeAddress
from offsetmgr.manager.node import peer_monitor
from offsetmgr.manager.node.peer_monitor import PeerMonitor, connect
from offsetmgr.manager.peer_liveness import ConnectionAttempt
from offsetmgr.server.network.limits import ServerLimits
from offsetmgr.server.network.socket_server import ServerListener, SocketServer
from offsetmgr.server.network.tls import server_tls

LISTENER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
accepted = []
while True:
    accepted.append(listener.accept())
"""


class Removals:
    """Records the removed members. The first ``failures`` removals fail."""

    def __init__(self, failures: int = 0) -> None:
        self.removed: list[str] = []
        self.attempts = 0
        self._failures = failures

    async def remove(self, member: str) -> None:
        self.attempts += 1
        if self.attempts <= self._failures:
            raise CoordinatorNotAvailable("group managers", "it is loading")
        self.removed.append(member)


@asynccontextmanager
async def monitor_of(removals: Removals, *ports: int) -> AsyncIterator[PeerMonitor]:
    monitor = PeerMonitor(removals.remove)
    monitor.update(peers(*ports))
    try:
        yield monitor
    finally:
        await monitor.close()


def peers(*ports: int) -> dict[str, NodeAddress]:
    return {f"m{n}": NodeAddress(n, "127.0.0.1", port) for n, port in enumerate(ports)}


async def until(condition: Callable[[], bool], seconds: float = 90) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)  # the pause between two polls


@contextlib.contextmanager
def listening_process():
    with subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@asynccontextmanager
async def accepting_server(serve: Callable[[socket.socket], None]) -> AsyncIterator[tuple[int, list[socket.socket]]]:
    """A listener in this process. ``serve`` handles each accepted connection."""
    accepted: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    loop = asyncio.get_running_loop()

    async def accept() -> None:
        while True:
            connection, _ = await loop.sock_accept(listener)
            accepted.append(connection)
            serve(connection)

    task = asyncio.create_task(accept())
    try:
        yield listener.getsockname()[1], accepted
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        listener.close()
        for connection in accepted:
            connection.close()


def test_a_killed_peer_is_removed_without_a_wait_for_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_monitor, "_RENEWAL_S", 600.0)
    monkeypatch.setattr(peer_monitor, "_RETRY_S", 600.0)

    async def main() -> None:
        removals = Removals()
        with listening_process() as (process, port):
            async with monitor_of(removals, port) as monitor:
                await until(lambda: monitor.connected == {"m0"})
                process.kill()
                await until(lambda: removals.removed == ["m0"])

    asyncio.run(main())


def test_a_removal_that_fails_is_repeated_while_the_peer_refuses_connections() -> None:
    async def main() -> Removals:
        removals = Removals(failures=2)
        with listening_process() as (process, port):
            async with monitor_of(removals, port) as monitor:
                await until(lambda: monitor.connected == {"m0"})
                process.kill()
                await until(lambda: bool(removals.removed))
        return removals

    removals = asyncio.run(main())
    assert (removals.removed, removals.attempts) == (["m0"], 3)


def test_a_frozen_peer_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system accepts connections to a frozen process until its backlog is full. Then they time out."""
    monkeypatch.setattr(peer_monitor, "_RENEWAL_S", 0.05)

    async def main() -> list[str]:
        removals = Removals()
        with listening_process() as (process, port):
            async with monitor_of(removals, port) as monitor:
                await until(lambda: monitor.connected == {"m0"})
                os.kill(process.pid, signal.SIGSTOP)
                await asyncio.sleep(1)  # a window in which a removal would happen
        return removals.removed

    assert asyncio.run(main()) == []


@pytest.mark.parametrize("pause_s", [0, 0.15])
def test_a_peer_that_closes_its_connections_but_accepts_new_ones_is_not_removed(pause_s: float) -> None:
    async def main() -> tuple[list[str], int]:
        removals = Removals()
        loop = asyncio.get_running_loop()

        def close(connection: socket.socket) -> None:
            loop.call_later(pause_s, connection.close)

        async with accepting_server(close) as (port, accepted), monitor_of(removals, port):
            await until(lambda: len(accepted) >= 2)
            await asyncio.sleep(1)  # a window in which a removal would happen
            return removals.removed, len(accepted)

    removed, accepted = asyncio.run(main())
    assert removed == []
    assert accepted <= 12


def test_a_port_that_has_always_refused_connections_is_no_proof() -> None:
    async def main() -> list[str]:
        removals = Removals()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            unused = listener.getsockname()[1]
        async with monitor_of(removals, unused):
            await asyncio.sleep(0.7)  # a window in which a removal would happen
        return removals.removed

    assert asyncio.run(main()) == []


def test_the_monitor_renews_its_connections_and_closes_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that requires a login closes connections without a login after a while, and counts them."""
    monkeypatch.setattr(peer_monitor, "_RENEWAL_S", 0.05)

    async def main() -> int:
        async with accepting_server(lambda connection: None) as (port, accepted), monitor_of(Removals(), port):
            await until(lambda: len(accepted) > 3)
            first = accepted[0]
            first.settimeout(60)
            return len(await asyncio.to_thread(first.recv, 1))

    assert asyncio.run(main()) == 0


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
def test_a_manager_that_requires_a_login_counts_and_logs_no_closed_connection(
    encrypted: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The monitor sends nothing on its connections, neither a TLS handshake nor a login."""
    monkeypatch.setattr(peer_monitor, "_RENEWAL_S", 0.2)

    async def main() -> tuple[list[str], Mapping[str, float]]:
        removals = Removals()
        server = SocketServer([], limits=ServerLimits(authentication_seconds=1.0), requires_login=True)
        listener = ServerListener(server, "127.0.0.1", 0, tls=server_tls(certificate(tmp_path)) if encrypted else None)
        await listener.start()
        async with monitor_of(removals, listener.port):
            await asyncio.sleep(2)  # longer than a connection may stay open without a login
            metrics = server.metrics()
        await server.close()
        return removals.removed, metrics

    removed, metrics = asyncio.run(main())
    assert removed == []
    assert [name for name in metrics if "cut" in name or "failed" in name] == []
    assert [record.getMessage() for record in caplog.records] == []


def certificate(directory: Path) -> Path:
    """A file with a self-signed certificate and its key."""
    key, cert, both = (directory / name for name in ("key.pem", "cert.pem", "both.pem"))
    options = ["-keyout", str(key), "-out", str(cert), "-days", "1", "-subj", "/CN=localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *options]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    both.write_text(cert.read_text() + key.read_text())
    return both


def test_only_the_peers_of_the_newest_assignment_are_watched() -> None:
    async def main() -> tuple[list[str], set[str]]:
        removals = Removals()
        with listening_process() as (first, first_port), listening_process() as (second, second_port):
            async with monitor_of(removals, first_port, second_port) as monitor:
                await until(lambda: monitor.connected == {"m0", "m1"})
                monitor.update({"m1": NodeAddress(1, "127.0.0.1", second_port), "m2": NodeAddress(2, "embedded", 0)})
                first.kill()
                second.kill()
                await until(lambda: bool(removals.removed))
                await asyncio.sleep(0.3)  # a window in which the removal of the other one would happen
                return removals.removed, set(monitor.connected)

    assert asyncio.run(main()) == (["m1"], set())


def test_a_name_with_several_addresses_is_refused_only_if_all_addresses_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[ConnectionAttempt]:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", port))] * 2

            async def getaddrinfo(*_: object, **__: object) -> list[object]:
                return list(found)

            monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
            refused, _ = await connect("name", port)
            found[1] = (*found[1][:4], ("127.0.0.1", port))
            accepted, connection = await connect("name", port)
            assert connection is not None
            connection.close()
            found.clear()
            unknown, _ = await connect("name", port)
            return [refused, accepted, unknown]

    assert asyncio.run(main()) == [ConnectionAttempt.REFUSED, ConnectionAttempt.ACCEPTED, ConnectionAttempt.UNDECIDED]
