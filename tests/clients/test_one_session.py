"""`ZookeeperSession` with exactly one server session, its ephemeral nodes, and its lease."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import wait_for
from stalling_proxy import StallingProxy

from offsetmgr.core.errors import SessionExpired
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_member import LEASE_FRACTION, SessionLease
from offsetmgr.zookeeper.client.transactions import Create, OperationState, SetData

pytestmark = pytest.mark.servers

SESSION_MS = 1500


@pytest.fixture
def proxy(zookeeper: ZooKeeperServer) -> Iterator[StallingProxy]:
    proxy = StallingProxy(zookeeper.connect)
    yield proxy
    proxy.close()


@pytest.fixture
def direct(zookeeper: ZooKeeperServer) -> Iterator[ZookeeperSession]:
    with ZookeeperSession(zookeeper.connect) as session:
        yield session


def test_a_session_reports_the_timeout_that_the_server_granted(zookeeper: ZooKeeperServer) -> None:
    with ZookeeperSession(zookeeper.connect, session_timeout_ms=600_000) as session:
        assert session.granted_timeout_s is None
        session.sync()
        assert session.granted_timeout_s == pytest.approx(60, abs=0.01)  # the sandbox's maxSessionTimeout


def test_an_expired_session_rejects_every_call_and_writes_nothing(proxy, direct, unique) -> None:
    with ZookeeperSession(proxy.address, session_timeout_ms=SESSION_MS) as session:
        ephemeral, persistent = f"/{unique}-ephemeral", f"/{unique}-persistent"
        assert (
            session.transaction([Create(ephemeral, ephemeral=True), Create(persistent)]).state
            is OperationState.COMMITTED
        )
        node = direct.get(ephemeral)
        assert node is not None
        assert node.ephemeral_owner == session.session_id

        proxy.stall()
        wait_for(lambda: direct.get(ephemeral) is None, "the server expires the session")
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(session.transaction, [SetData(persistent, b"late", 0)])
            proxy.resume()
            error = writing.exception(90)  # the session may know the expiration before it sends anything

        assert type(error or writing.result().error) is SessionExpired
        with pytest.raises(SessionExpired):
            session.get(persistent)
        with pytest.raises(SessionExpired):
            session.sync()
        found = direct.get(persistent)
        assert found is not None
        assert found.data == b""


def test_a_lease_runs_out_before_the_server_expires_the_session(proxy, direct, unique) -> None:
    notified = threading.Event()
    seconds = 6  # long enough to read the node between the end of the lease and the end of the session
    with ZookeeperSession(proxy.address, session_timeout_ms=seconds * 1000) as session:
        lease = SessionLease(session, notified.set)
        assert not lease.valid()
        lease.begin()
        assert lease.valid()
        assert session.transaction([Create(f"/{unique}", ephemeral=True)]).state is OperationState.COMMITTED

        proxy.stall()
        wait_for(lambda: not lease.valid(), "the lease's end")
        assert direct.get(f"/{unique}") is not None
        wait_for(lambda: direct.get(f"/{unique}") is None, "the server expires the session")
        assert not notified.is_set()
        proxy.resume()

        assert notified.wait(90)
        assert lease.expired
        assert not lease.valid()


def test_a_lease_is_valid_again_if_the_session_survived(proxy: StallingProxy) -> None:
    notified = threading.Event()
    with ZookeeperSession(proxy.address, session_timeout_ms=20_000) as session:
        clock = [100.0]
        lease = SessionLease(session, notified.set, clock=lambda: clock[0])
        lease.begin()
        assert lease.valid()
        clock[0] += 20 * LEASE_FRACTION
        assert not lease.valid()

        assert notified.wait(90)
        assert lease.valid()
        lease.end()
        assert not lease.valid()


class Defective(ZookeeperSession):
    """A session whose `sync` raises an unexpected error once `defect` is set."""

    defect = False

    def sync(self) -> None:
        if self.defect:
            raise LookupError("planted")
        super().sync()


def test_a_lease_whose_heartbeat_crashes_expires_and_logs_the_error(zookeeper: ZooKeeperServer, caplog) -> None:
    notified = threading.Event()
    with Defective(zookeeper.connect, session_timeout_ms=SESSION_MS) as session:
        lease = SessionLease(session, notified.set)
        lease.begin()
        session.defect = True

        assert notified.wait(90)
        assert lease.expired
        assert not lease.valid()
        assert "LookupError: planted" in caplog.text
