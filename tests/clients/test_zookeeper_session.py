"""`ZookeeperSession` on real servers: single and multi-reads, transactions, watches, and lost servers."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kazoo.security import make_digest_acl
from kazoo_client import connected
from stopwatch import Stopwatch

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import AuthenticationFailed, NotAuthorized, ServerError, TimedOut, Unreachable
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.sandbox.process_ref import wait_until
from offsetmgr.zookeeper.client.jute import NodeData, ZookeeperError
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import (
    CheckVersion,
    Create,
    Delete,
    OperationState,
    SetData,
    TransactionOperation,
)

pytestmark = pytest.mark.servers


def connect(server: ZooKeeperServer, timeout_ms: int = 20_000, chroot: str = "") -> ZookeeperSession:
    return ZookeeperSession(server.connect + chroot, ConnectionConfig(timeout_ms=timeout_ms))


@pytest.fixture(params=["zookeeper", "zookeeper34"])
def server(request: pytest.FixtureRequest) -> ZooKeeperServer:
    """A server that supports multi-reads, and one that does not."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, ZooKeeperServer)
    return found


@pytest.fixture
def session(server: ZooKeeperServer) -> Iterator[ZookeeperSession]:
    with connect(server) as session:
        yield session


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server that the test may kill and freeze."""
    with ZooKeeperServer(tmp_path / "own") as server:
        yield server


def create_all(session: ZookeeperSession, paths: list[str], data: bytes = b"") -> None:
    for begin in range(0, len(paths), 400):
        outcome = session.transaction([Create(path, data) for path in paths[begin : begin + 400]])
        assert outcome.state is OperationState.COMMITTED, outcome


# --- reading --------------------------------------------------------------------------------------


def test_many_nodes_are_read_in_the_requested_order_including_missing_ones(session, unique) -> None:
    names = [f"/{unique}/n{n}" for n in range(1300)]
    operations: list[TransactionOperation] = [
        Create(f"/{unique}"),
        *(Create(n, n.encode()) for n in names if not n.endswith("7")),
    ]
    for begin in range(0, len(operations), 400):
        assert session.transaction(operations[begin : begin + 400]).state is OperationState.COMMITTED

    found = session.get_many(names)

    assert [node.data if isinstance(node, NodeData) else node for node in found] == [
        None if name.endswith("7") else name.encode() for name in names
    ]
    # Paths that are together longer than a server's largest request.
    assert session.get_many([f"/{unique}/{'x' * 3900}{n}" for n in range(1000)]) == [None] * 1000


def test_children_of_many_nodes_distinguish_a_leaf_from_a_missing_node(session: ZookeeperSession, unique: str) -> None:
    create_all(session, [f"/{unique}", f"/{unique}/a", f"/{unique}/a/x", f"/{unique}/a/ü", f"/{unique}/b"])

    found = session.children_many([f"/{unique}/{name}" for name in ("a", "missing", "b")])

    assert isinstance(found[0], list)
    assert (sorted(found[0]), found[1], found[2]) == (["x", "ü"], None, [])


def test_an_unreadable_node_is_its_own_error(session: ZookeeperSession, server: ZooKeeperServer, unique: str) -> None:
    create_all(session, [f"/{unique}", f"/{unique}/open"])
    with connected(server.connect, auth_data=[("digest", "boss:sesame")]) as other:
        other.create(f"/{unique}/shut", b"", acl=[make_digest_acl("boss", "sesame", all=True)])

    opened, shut, missing = session.get_many([f"/{unique}/{name}" for name in ("open", "shut", "missing")])

    assert isinstance(opened, NodeData)
    assert isinstance(shut, NotAuthorized)
    assert f"/{unique}/shut" in str(shut)
    assert missing is None


def test_support_of_multi_reads_is_probed_once_and_old_servers_are_read_without_them(zookeeper, zookeeper34) -> None:
    seen = []
    for server in (zookeeper, zookeeper34):
        with connect(server) as session:
            children = session.children("/")
            assert children is not None and "zookeeper" in children
            first = session.session_id
            for _ in range(3):  # a second probe would make the old server drop the connection again
                assert session.get("/zookeeper") is not None
            assert session.session_id == first
            seen.append(session.supports_bulk_reads())

    assert seen == [True, False]


# --- chroot ---------------------------------------------------------------------------------------


def test_a_missing_chroot_is_an_error_and_never_an_empty_result(server: ZooKeeperServer, unique: str) -> None:
    with connect(server, chroot=f"/{unique}") as session:
        for read in (session.get, session.children):
            with pytest.raises(ServerError, match=f"chroot /{unique} does not exist"):
                read("/consumers")


def test_paths_are_relative_to_the_chroot(server: ZooKeeperServer, session: ZookeeperSession, unique: str) -> None:
    create_all(session, [f"/{unique}", f"/{unique}/deep"])

    with connect(server, chroot=f"/{unique}/deep") as inner:
        assert inner.transaction([Create("/x", b"1")]).state is OperationState.COMMITTED
        assert inner.children("/") == ["x"]
        node = inner.get("/x")

    assert node is not None and node.data == b"1"
    assert session.children(f"/{unique}/deep") == ["x"]


def test_a_chroot_deleted_under_a_live_session_is_detected(server, session, unique) -> None:
    create_all(session, [f"/{unique}"])
    with connect(server, chroot=f"/{unique}") as inner:
        assert inner.children("/consumers") is None
        assert session.transaction([Delete(f"/{unique}", 0)]).state is OperationState.COMMITTED

        with pytest.raises(ServerError, match="does not exist"):
            inner.children("/consumers")


# --- transactions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        (lambda path: SetData(f"{path}/there", b"", 3), ZookeeperError.BAD_VERSION),
        (lambda path: CheckVersion(f"{path}/there", 3), ZookeeperError.BAD_VERSION),
        (lambda path: SetData(f"{path}/missing", b"", 0), ZookeeperError.NO_NODE),
        (lambda path: Create(f"{path}/missing/below"), ZookeeperError.NO_NODE),
        (lambda path: Delete(path, 0), ZookeeperError.NOT_EMPTY),
        (lambda path: Create(f"{path}/there"), ZookeeperError.NODE_EXISTS),
    ],
)
def test_a_rejected_transaction_changes_nothing_and_reports_the_operation_and_the_reason(
    session: ZookeeperSession, unique: str, operation: Callable[[str], TransactionOperation], code: ZookeeperError
) -> None:
    create_all(session, [f"/{unique}", f"/{unique}/there"])

    outcome = session.transaction([Create(f"/{unique}/one"), operation(f"/{unique}"), Create(f"/{unique}/two")])

    assert (outcome.state, outcome.failed_index, outcome.code) == (OperationState.REJECTED, 1, code)
    assert session.children(f"/{unique}") == ["there"]


def test_several_transactions_each_have_their_own_outcome_in_order(session: ZookeeperSession, unique: str) -> None:
    outcomes = session.transactions(
        [[Create(f"/{unique}")], *([Create(f"/{unique}/{n % 10}")] for n in range(20)), [Create(f"/{unique}/last")]]
    )

    assert [o.state for o in outcomes] == [OperationState.COMMITTED] * 11 + [OperationState.REJECTED] * 10 + [
        OperationState.COMMITTED
    ]


def test_the_first_read_does_not_fail_the_write_after_it(zookeeper34: ZooKeeperServer) -> None:
    # A server before 3.6 closes the connection after the first read, and may answer other reads before it does so.
    def read_and_write(_: int) -> OperationState:
        with connect(zookeeper34) as session:
            assert session.children("/") is not None
            return session.transaction([]).state

    with ThreadPoolExecutor(16) as sessions:
        assert set(sessions.map(read_and_write, range(480))) == {OperationState.COMMITTED}


# --- losing the server ----------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", ["{port}", "no-such-host.invalid:2181", "{port},no-such-host.invalid:2181"])
def test_addresses_that_can_never_answer_end_the_first_call_before_the_timeout(hosts: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: it refuses connections, and no other process gets it
        hosts = hosts.format(port=f"127.0.0.1:{taken.getsockname()[1]}")
        with Stopwatch() as watch, ZookeeperSession(hosts, ConnectionConfig(timeout_ms=300_000)) as session:
            with pytest.raises(Unreachable, match=rf"{hosts}: no server could be reached \({hosts.split(',')[0]}: "):
                session.children("/")
            assert session.session_id is None

    assert watch.seconds < 100


def test_a_port_of_another_service_is_unreachable_within_the_timeout() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,  # accepts, and never sends a byte
        Stopwatch() as watch,
        ZookeeperSession(f"127.0.0.1:{silent.getsockname()[1]}", ConnectionConfig(timeout_ms=1000)) as session,
        pytest.raises(Unreachable),
    ):
        session.children("/")

    assert watch.seconds < 25


def test_credentials_of_an_unknown_scheme_are_rejected_at_once_and_never_shown(zookeeper: ZooKeeperServer) -> None:
    config = ConnectionConfig(timeout_ms=300_000, zookeeper_auth=(("nosuchscheme", "user:sesame"),))
    started = time.monotonic()
    with ZookeeperSession(zookeeper.connect, config) as session, pytest.raises(AuthenticationFailed) as caught:
        session.children("/")

    assert time.monotonic() - started < 150
    assert "sesame" not in str(caught.value) + repr(caught.value)


def test_a_frozen_server_causes_a_timeout_and_is_usable_afterwards(own_server: ZooKeeperServer) -> None:
    with connect(own_server, timeout_ms=1500) as session:
        assert session.children("/") == ["zookeeper"]
        own_server.freeze()

        longest, failure = 0.0, None
        while failure is None:  # a read that was under way while the process stopped may still be answered
            with Stopwatch() as watch:
                try:
                    assert session.children("/") == ["zookeeper"]
                except (TimedOut, Unreachable) as error:
                    failure = error
            longest = max(longest, watch.seconds)

        assert longest < 25
        own_server.thaw()
        assert session.children("/") == ["zookeeper"]


def test_reads_wait_for_a_server_that_restarts(own_server: ZooKeeperServer) -> None:
    with connect(own_server, timeout_ms=30_000) as session:
        create_all(session, ["/a", *(f"/a/{n}" for n in range(1000))], b"x")
        own_server.kill()
        restart = threading.Thread(target=own_server.start)
        restart.start()

        found = session.get_many([f"/a/{n}" for n in range(1000)])
        restart.join()

    assert [node.data for node in found if isinstance(node, NodeData)] == [b"x"] * 1000


def test_a_write_to_a_dead_server_never_happens_later(own_server: ZooKeeperServer) -> None:
    with connect(own_server, timeout_ms=1500) as session:
        assert session.children("/") == ["zookeeper"]
        own_server.kill()
        try:
            state = session.transaction([Create("/late")]).state
        except Unreachable:
            state = OperationState.NOT_SENT
        assert state in (OperationState.NOT_SENT, OperationState.UNKNOWN)

        own_server.start()
        with connect(own_server) as other:
            # kazoo reconnects, and would send what it still had queued
            assert wait_until(lambda: session.session_id is not None, 120)
            assert session.children("/") == ["zookeeper"]
            assert other.children("/") == ["zookeeper"]
