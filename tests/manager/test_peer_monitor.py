"""Whether another manager is dead: the decision, from the results of connections to it, and the monitor with real
sockets."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from async_tests import async_test
from certificates import self_signed
from hypothesis import example, given
from hypothesis import strategies as st
from memory_listener import MemoryListener, limits
from runtimes import until

from offsetmgr.core.errors import CoordinatorNotAvailable
from offsetmgr.manager.assignment import NodeAddress
from offsetmgr.manager.node import peer_monitor
from offsetmgr.manager.node.peer_monitor import (
    REFUSAL_INTERVAL_S,
    ConnectionAttempt,
    PeerLiveness,
    PeerMonitor,
    connect,
)

# --- the decision ----------------------------------------------------------------------------------------------


ACCEPTED, REFUSED, UNDECIDED = ConnectionAttempt.ACCEPTED, ConnectionAttempt.REFUSED, ConnectionAttempt.UNDECIDED
CLOSED, BROKEN = "closed by the peer", "ended for another reason"


def dead_after(events: list[ConnectionAttempt | str], interval_s: float = REFUSAL_INTERVAL_S) -> bool:
    liveness = PeerLiveness()
    now = 1_000.0
    for event in events:
        if isinstance(event, ConnectionAttempt):
            liveness.on_attempt(event, now)
            now += interval_s
        else:
            liveness.on_closed(by_peer=event == CLOSED)
    return liveness.dead(now - interval_s)


def test_refusals_in_one_instant_prove_nothing() -> None:
    assert not dead_after([ACCEPTED, CLOSED, *[REFUSED] * 10], interval_s=0.001)


@given(st.lists(st.sampled_from([ACCEPTED, REFUSED, UNDECIDED, CLOSED, BROKEN])))
@example([ACCEPTED, CLOSED, REFUSED, REFUSED])
@example([ACCEPTED, CLOSED, REFUSED, REFUSED, REFUSED])
@example([REFUSED] * 5)  # from the start, perhaps by a firewall
@example([ACCEPTED, REFUSED, REFUSED, REFUSED])  # the connection is open
@example([ACCEPTED, BROKEN, REFUSED, REFUSED, REFUSED])  # the host is unreachable
@example([ACCEPTED, CLOSED, REFUSED, REFUSED, UNDECIDED, REFUSED, REFUSED])  # the process is frozen
@example([ACCEPTED, CLOSED, UNDECIDED, REFUSED, REFUSED, REFUSED])
@example([ACCEPTED, CLOSED, REFUSED, ACCEPTED, REFUSED, REFUSED, REFUSED])  # the peer was restarted
@example([ACCEPTED, CLOSED, ACCEPTED, CLOSED, REFUSED, REFUSED, REFUSED])
def test_a_peer_is_dead_only_if_the_newest_events_prove_it(events: list[ConnectionAttempt | str]) -> None:
    """The oracle reads the events backwards: refusals, before them undecided attempts, before those the closure."""
    backwards = events[::-1]
    refusals = next((n for n, event in enumerate(backwards) if event is not REFUSED), len(backwards))
    before = [event for event in backwards[refusals:] if event not in (REFUSED, UNDECIDED)]
    assert dead_after(events) == (refusals >= 3 and before[:1] == [CLOSED])


# --- the monitor -----------------------------------------------------------------------------------------------


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
    monitor.update({f"m{n}": NodeAddress(n, "127.0.0.1", port) for n, port in enumerate(ports)})
    try:
        yield monitor
    finally:
        await monitor.close()


@contextlib.contextmanager
def listening_process():
    with subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize("pause_s", [0, 0.15])
@async_test
async def test_a_peer_that_closes_its_connections_but_accepts_new_ones_is_not_removed(pause_s: float) -> None:
    removals = Removals()
    accepted: list[asyncio.StreamWriter] = []

    async def close_later(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        await asyncio.sleep(pause_s)
        writer.close()

    server = await asyncio.start_server(close_later, "127.0.0.1", 0)
    async with server, monitor_of(removals, server.sockets[0].getsockname()[1]):
        await until(lambda: len(accepted) >= 2)
        await asyncio.sleep(1)  # a window in which a removal would happen
        assert len(accepted) <= 12
    assert removals.removed == []


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
@async_test
async def test_a_manager_that_requires_a_login_counts_and_logs_no_closed_connection(
    encrypted: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The monitor sends nothing on its connections, neither a TLS handshake nor a login."""
    monkeypatch.setattr(peer_monitor, "_RENEWAL_S", 0.2)
    (tmp_path / "users.toml").write_text('[users.a]\npassword = "a secret"\n')
    files: dict[str, Any] = {"credentials": tmp_path / "users.toml"}
    if encrypted:
        files["tls_certificate"] = self_signed(tmp_path)
    removals = Removals()
    with MemoryListener(limits=limits(login_timeout_s=1.0), **files) as listening:
        caplog.clear()  # the warnings of the start
        async with monitor_of(removals, listening.port):
            await asyncio.sleep(2)  # longer than a connection may stay open without a login
            metrics = listening.service.metrics()
    assert removals.removed == []
    assert [name for name in metrics if "cut" in name or "failed" in name] == []
    assert [record.getMessage() for record in caplog.records] == []


@async_test
async def test_only_the_peers_of_the_newest_assignment_are_removed_also_if_some_attempts_fail() -> None:
    removals = Removals(failures=2)
    with listening_process() as (first, first_port), listening_process() as (second, second_port):
        async with monitor_of(removals, first_port, second_port) as monitor:
            await until(lambda: monitor.connected == {"m0", "m1"})
            monitor.update({"m1": NodeAddress(1, "127.0.0.1", second_port), "m2": NodeAddress(2, "embedded", 0)})
            first.kill()
            second.kill()
            await until(lambda: bool(removals.removed))
            await asyncio.sleep(0.3)  # a window in which the removal of the other one would happen
            assert (removals.removed, removals.attempts, set(monitor.connected)) == (["m1"], 3, set())


@async_test
async def test_a_name_with_several_addresses_is_refused_only_if_all_addresses_refuse(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", port))] * 2

        async def getaddrinfo(*_: object, **__: object) -> list[object]:
            return list(found)

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        refused, _ = await connect("name", port)
        found[1] = (*found[1][:4], ("127.0.0.1", port))
        accepted, connection = await connect("name", port)
        assert connection is not None
        connection.close()
        found.clear()
        unknown, _ = await connect("name", port)
    assert [refused, accepted, unknown] == [
        ConnectionAttempt.REFUSED, ConnectionAttempt.ACCEPTED, ConnectionAttempt.UNDECIDED,
    ]  # fmt: skip
