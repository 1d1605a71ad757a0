"""The life of a member that exists only as long as its ZooKeeper session."""

import logging
import threading
from collections.abc import Callable
from typing import cast

import pytest

from offsetmgr.core.errors import OffsetMgrError, TimedOut, Unreachable
from offsetmgr.zookeeper.client import session_member
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLease
from offsetmgr.zookeeper.client.session_member import SessionMember

WAIT_S = 90


class Member(SessionMember):
    """Writes what happens to a list. Each session is one of ``runs``; after the last one, the member waits."""

    _log = logging.getLogger("tests.session_member")

    def __init__(self, events: list[str], *runs: Callable[[], None]) -> None:
        super().__init__("member m", "zk:2181", None, 6000)
        self.events = events
        self.runs = list(runs)
        self.permanent: OffsetMgrError | None = None
        self.running = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = WAIT_S) -> bool:
        return self._stop(timeout_s)

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run_session(self, session: ZookeeperSession, lease: SessionLease) -> None:
        self.events.append("run")
        if self.runs:
            self.runs.pop(0)()
        self.running.set()
        while not self._stopping.is_set():
            self._require_session(lease)
            self._wake.wait()
            self._wake.clear()

    def _on_error(self, error: OffsetMgrError) -> float:
        self.events.append(type(error).__name__)
        if error is self.permanent:
            self._stopping.set()
        return 0.0

    def _on_session_end(self) -> None:
        self.events.append("revoke")

    def _on_crash(self, error: BaseException) -> None:
        self.events.append(f"crash {error}")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    class Session:
        def __init__(self, *_: object, session_timeout_ms: int = 0) -> None: ...

        def close(self) -> None:
            found.append("close")

    monkeypatch.setattr(session_member, "ZookeeperSession", Session)
    monkeypatch.setattr(session_member, "SessionLease", Lease)
    Lease.current = None
    Lease.events = found
    return found


class Lease:
    current: "Lease | None" = None
    events: list[str]

    def __init__(self, _: object, on_change: Callable[[], None]) -> None:
        self.expired = False
        self.on_change = on_change
        Lease.current = self

    def begin(self) -> None:
        self.events.append("begin")

    def end(self) -> None:
        self.events.append("end")

    def expire(self) -> None:
        self.expired = True
        self.on_change()


def fail(error: BaseException) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


SESSION = ["begin", "run"]
END = ["end", "revoke", "close"]


def test_a_member_revokes_its_rights_before_it_closes_the_session(events: list[str]) -> None:
    member = Member(events)
    member.start()
    assert member.running.wait(WAIT_S)
    assert events == SESSION
    assert member.stop()
    assert events == [*SESSION, *END]


def test_an_expired_lease_ends_the_session_and_a_new_one_follows(events: list[str]) -> None:
    member = Member(events)
    member.start()
    assert member.running.wait(WAIT_S)
    member.running.clear()
    cast(Lease, Lease.current).expire()
    assert member.running.wait(WAIT_S)
    member.stop()
    assert events == [*SESSION, "SessionExpired", *END, *SESSION, *END]


def test_an_error_ends_the_session_but_the_member_only_if_it_decides_so(events: list[str]) -> None:
    permanent = Unreachable("ZooKeeper", "no")
    member = Member(events, fail(TimedOut("ZooKeeper", "late")), fail(permanent))
    member.permanent = permanent
    member.start()
    member.join()
    assert events == [*SESSION, "TimedOut", *END, *SESSION, "Unreachable", *END]


def test_an_unexpected_error_ends_the_member_and_is_reported(events: list[str]) -> None:
    member = Member(events, fail(KeyError("k")))
    member.start()
    member.join()
    assert events == [*SESSION, *END, "crash 'k'"]


def test_stop_reports_a_thread_that_still_runs(events: list[str]) -> None:
    blocked = threading.Event()
    member = Member(events, lambda: cast(None, blocked.wait(WAIT_S)))
    member.start()
    assert not member.stop(0.01)
    blocked.set()
    assert member.stop()


def test_a_member_that_never_started_stops_at_once_and_one_can_stop_itself(events: list[str]) -> None:
    assert Member(events).stop()
    member = Member(events)
    member.runs.append(lambda: cast(None, member.stop()))
    member.start()
    member.join()
    assert events == [*SESSION, *END]
