"""Timeouts and cancellation of a member's calls while ZooKeeper does not answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import TimedOut
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.coordinator import PeriodCoordinator
from offsetmgr.period.records import OpenNode, PartitionsNode
from offsetmgr.period.schedule import PeriodSchedule

A = [TopicPartition("a", 0), TopicPartition("a", 1)]
HOURLY = PeriodSchedule(1_000, 100)
PATIENT = ConnectionConfig(timeout_ms=3_600_000)


@pytest.fixture
def silent() -> Iterator[str]:
    """An address without a listener, reserved so that no other process can use it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def cut_off(silent: str) -> PeriodCoordinator:
    """A member that has seen period 0 open, and whose reports no longer reach ZooKeeper."""
    member = PeriodCoordinator(silent, "/root", "m", HOURLY, lambda: A, owned=A)
    state = member._state
    state.set_finished({}, state.owned)
    state.set_open(OpenNode(HOURLY, 0, "m", 1, 0), PartitionsNode(0, frozenset(A)))
    state.deliver(0)
    return member


def test_start_reports_a_server_that_does_not_answer_at_its_own_timeout(silent: str) -> None:
    # Given calls that may take an hour: only the timeout of the start can end them before the timeout of the test
    member = PeriodCoordinator(silent, "/root", "m", HOURLY, lambda: A, config=PATIENT)
    with pytest.raises(TimedOut, match=f"ZooKeeper at {silent} does not respond, after 0.2 s"):
        member.start(timeout_s=0.2)


def test_stop_returns_although_no_server_answers(silent: str) -> None:
    member = PeriodCoordinator(silent, "/root", "m", HOURLY, lambda: A, config=PATIENT)
    member._thread.start()
    member.stop()
    with pytest.raises(Exception, match="has left"):
        member.wait(0)


def test_completing_a_period_can_be_cancelled_while_its_report_is_not_written(cut_off: PeriodCoordinator) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(TimedOut, match="report of member m: the wait for it was cancelled"):
        cut_off.current_period_complete(A, None, cancel)


def test_completing_a_period_has_one_timeout_for_the_report_and_the_wait(cut_off: PeriodCoordinator) -> None:
    with pytest.raises(TimedOut, match="report of member m: is not in ZooKeeper after 0 s"):
        cut_off.current_period_complete(A, 0.0)
    # The second call sends the same report. It is written by now, and the call waits for the other members.
    cut_off._state.set_finished(dict.fromkeys(A, 0), frozenset(A))
    with pytest.raises(TimedOut, match="member m: period 0 is still open after 0 s"):
        cut_off.current_period_complete(A, 0.0)


def test_a_late_report_is_logged(cut_off: PeriodCoordinator, caplog: pytest.LogCaptureFixture) -> None:
    cut_off._state.set_open(OpenNode(HOURLY, 3, "m", 1, 0), PartitionsNode(3, frozenset(A)))
    assert cut_off.current_period_complete(A, 0.0).number == 3
    assert [record.message for record in caplog.records] == [
        "member m: late report ignored, the period is already closed: a-0 of period 0, a-1 of period 0"
    ]
