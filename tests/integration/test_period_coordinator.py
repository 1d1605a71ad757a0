"""Members of one run on real ZooKeeper: in step, through crashes, growth, and the original's nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from offsetmgr.core.errors import (
    CallbackFailed,
    Conflict,
    LateRecord,
    LegacyMembersPresent,
    OffsetMgrError,
    RunEnded,
    TimedOut,
)
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.barrier import ReportStatus
from offsetmgr.period.coordinator import CoordinatorOptions, PeriodCoordinator
from offsetmgr.period.node_codec import OffsetRange
from offsetmgr.period.schedule import PeriodSchedule
from offsetmgr.period.state_nodes import BarrierStateStore
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, Delete, SetData
from offsetmgr.zookeeper.groups.registration import ensure_nodes

pytestmark = pytest.mark.servers

HOURLY = PeriodSchedule(1_000, 100)
A = [TopicPartition("a", n) for n in range(8)]


def until(condition: Callable[[], object], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.005)


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    return f"/periods-{request.node.name.replace('[', '-').replace(']', '')}-{time.time_ns()}"


@pytest.fixture
def session(zookeeper: ZooKeeperServer) -> Iterator[ZookeeperSession]:
    with ZookeeperSession(zookeeper.connect) as session:
        yield session


class Run:
    """Members of one root, in threads; ``partitions`` is what there is."""

    def __init__(self, zookeeper: ZooKeeperServer, root: str) -> None:
        self._zookeeper = zookeeper
        self.connect = zookeeper.connect
        self.root = root
        self.partitions = list(A)
        self.members: list[PeriodCoordinator] = []

    def member(self, name: str, owned: list[TopicPartition], **options: object) -> PeriodCoordinator:
        found = PeriodCoordinator(
            self._zookeeper.connect,
            self.root,
            name,
            HOURLY,
            lambda: self.partitions,
            owned=owned,
            options=CoordinatorOptions(session_timeout_ms=20_000, **options),  # type: ignore[arg-type]
        )
        self.members.append(found)
        return found.start()


@pytest.fixture
def run(zookeeper: ZooKeeperServer, root: str) -> Iterator[Run]:
    run = Run(zookeeper, root)
    yield run
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(PeriodCoordinator.stop, run.members))


def test_no_client_starts_a_period_before_everybody_has_finished_the_one_before(run: Run) -> None:
    members = [run.member(f"m{n}", A[n::4]) for n in range(4)]
    log: list[tuple[str, int]] = []

    def consume(member: PeriodCoordinator) -> None:
        for number in range(5):
            log.append(("start", number))
            mine = sorted(member.owned)
            assert all(member.check_limit(1_000 + number * 100, tp) for tp in mine)
            assert not any(member.check_limit(1_100 + number * 100, tp) for tp in mine)
            log.append(("end", number))
            assert member.current_period_complete(mine, timeout_s=20).number == number + 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(consume, members))
    assert [event for event in log if event[0] == "end"] == [("end", n) for n in range(5) for _ in range(4)]
    for number in range(1, 5):
        assert log.index(("start", number)) > max(at for at, e in enumerate(log) if e == ("end", number - 1))


def test_a_partition_that_has_finished_waits_while_the_others_of_its_member_go_on(run: Run) -> None:
    member = run.member("m", A)
    assert member.paused() == []
    assert member.finished(A[:2]) == {A[0]: ReportStatus.ACCEPTED, A[1]: ReportStatus.ACCEPTED}
    assert member.paused() == A[:2]
    assert member.check_limit(1_050, A[2])
    with pytest.raises(LateRecord):
        member.check_limit(1_050, A[0])
    with pytest.raises(Conflict, match="a-2"):
        member.current_period_complete(A[:2])
    assert member.current_period_complete(A[2:]).number == 1
    assert member.paused() == []
    with pytest.raises(LateRecord):
        member.check_limit(1_099, A[0])


def test_a_later_process_of_a_name_has_a_larger_epoch_and_two_at_once_there_are_not(run: Run) -> None:
    first = run.member("m", A)
    epoch = first.wait_registered()
    with pytest.raises(Conflict, match="registered by another session"):
        PeriodCoordinator(run.connect, run.root, "m", HOURLY, lambda: A).start(timeout_s=3)
    first.stop()
    with pytest.raises(Conflict, match="has left"):
        first.wait_registered()
    assert run.member("m", A).wait_registered() > epoch


def test_a_client_that_jumps_over_a_period_or_reports_late_is_reported(run: Run) -> None:
    member = run.member("m", A)
    assert set(member.finished(A, 1).values()) == {ReportStatus.TOO_EARLY}
    assert set(member.finished(A, 0).values()) == {ReportStatus.ACCEPTED}
    member.wait(0, 20)
    assert set(member.finished(A, 0).values()) == {ReportStatus.DUPLICATE}
    assert member.finished([TopicPartition("new", 0)], 0) == {TopicPartition("new", 0): ReportStatus.LATE}


def test_a_topic_that_grows_in_the_middle_of_a_period_joins_at_the_next(run: Run) -> None:
    member = run.member("m", A)
    new = TopicPartition("a", 8)
    run.partitions = [*A, new]
    member.own(run.partitions)
    time.sleep(1.1)  # what there is counts as known for a second
    assert not member.check_limit(1_050, new)
    assert member.current_period_complete(A, timeout_s=20).number == 1
    until(lambda: member.check_limit(1_150, new))
    with pytest.raises(TimedOut):
        member.finished(A)
        member.wait(1, 0.5)
    member.finished([new])
    assert member.wait(1, 20).number == 2


def test_the_work_of_a_member_that_left_counts_and_another_goes_on_where_it_was(run: Run) -> None:
    first, second = run.member("m1", A[:4]), run.member("m2", A[4:])
    first.finished(A[:3])
    first.stop()
    second.own(A)
    until(lambda: second.paused() == A[:3])
    assert second.current_period_complete(A[3:], timeout_s=20).number == 1, "the oldest was the leader and is gone"
    second.stop()
    third = run.member("m3", A)
    open_ = third.open_period()
    assert open_ is not None and open_.period.number == 1, "never again the first"


def test_a_wait_can_be_cancelled_and_ends_with_its_time(run: Run) -> None:
    member = run.member("m", A)
    cancel = threading.Event()
    threading.Timer(0.1, cancel.set).start()
    with pytest.raises(TimedOut, match="cancelled"):
        member.wait(0, 20, cancel)
    with pytest.raises(TimedOut, match="still open"):
        member.wait(0, 0.05)


def test_partitions_without_records_do_not_hold_the_barrier(run: Run) -> None:
    member = run.member("m", A[:6], idle=lambda period, held: [tp for tp in held if tp in A[6:]])
    assert member.current_period_complete(A[:6], timeout_s=20).number == 1


def test_no_client_runs_with_members_that_write_the_originals_form(
    run: Run, root: str, session: ZookeeperSession
) -> None:
    ensure_nodes(session, [root])
    session.transaction([Create(f"{root}/coordinator", b"1525741823119")])
    with pytest.raises(LegacyMembersPresent, match="original"):
        run.member("m", A)


def test_a_run_that_is_stopped_lets_no_client_wait(run: Run, session: ZookeeperSession) -> None:
    member = run.member("m", A)
    nodes = BarrierStateStore(session, run.root)
    assert nodes.stop_run(nodes.read(), "aborted by hand")
    with pytest.raises(RunEnded, match="aborted by hand"):
        member.wait(0, 20)


def test_history_says_who_finished_what(run: Run, session: ZookeeperSession) -> None:
    members = [run.member("m1", A[:4]), run.member("m2", A[4:])]
    for member in members:
        member.finished(member.owned)
    members[0].wait(0, 20)
    (closed,) = BarrierStateStore(session, run.root).history().values()
    assert closed.by == {"m1": frozenset(A[:4]), "m2": frozenset(A[4:])}
    assert (closed.period.number, closed.leader) == (0, "m1")


def test_a_member_that_came_before_the_first_period_opened_is_woken_by_it(run: Run, zookeeper: ZooKeeperServer) -> None:
    # Given a leader whose list of partitions takes long
    asked, answer = threading.Event(), threading.Event()

    def topics() -> list[TopicPartition]:
        asked.set()
        assert answer.wait(20)
        return A

    slow = PeriodCoordinator(zookeeper.connect, run.root, "m1", HOURLY, topics)
    run.members.append(slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(slow.start)
        assert asked.wait(20)
        # When another one joins meanwhile, and the first period opens then
        second = pool.submit(run.member, "m2", A)
        time.sleep(0.5)
        answer.set()
        # Then both know of it at once
        first.result(20)
        assert second.result(20).check_limit(1_050, A[0])


def test_empty_nodes_that_a_client_made_hinder_no_client(run: Run, root: str, session: ZookeeperSession) -> None:
    ensure_nodes(session, [root])
    session.transaction([Create(f"{root}/coordinator", b""), Create(f"{root}/topic-partitions", b"")])
    assert run.member("m", A).current_period_complete(A, timeout_s=20).number == 1


def test_an_old_member_that_begins_with_us_is_reported_by_its_name(
    run: Run, root: str, session: ZookeeperSession
) -> None:
    member = run.member("m", A)
    node = session.get(f"{root}/coordinator")
    assert node is not None
    session.transaction([SetData(f"{root}/coordinator", b"1525741823119", node.version)])
    with pytest.raises(LegacyMembersPresent, match=r"original coordinator.*; their open period ends at 1525741823119"):
        member.wait(0, 20)


def test_a_function_of_the_callers_that_fails_ends_the_membership_and_leaves_no_client_waiting(run: Run) -> None:
    with pytest.raises(CallbackFailed, match="KeyError"):  # it may be asked before the start has returned
        nothing: dict[str, Any] = {}
        run.member("m", A[:4], idle=lambda _period, _held: nothing["key"]).current_period_complete(A[:4], timeout_s=20)


def test_a_deleted_root_ends_the_membership(run: Run, root: str, session: ZookeeperSession) -> None:
    member = run.member("m", A)
    found = session.tree(root)
    deletions = [Delete(path, found[path].version) for path in sorted(found, key=len, reverse=True)]
    session.transaction(deletions)
    with pytest.raises(OffsetMgrError, match="was deleted"):
        member.wait(0, 20)


def test_a_deleted_history_hinders_no_client(run: Run, root: str, session: ZookeeperSession) -> None:
    member = run.member("m", A)
    assert member.current_period_complete(A, timeout_s=20).number == 1
    session.transaction([Delete(f"{root}/history/0", 0), Delete(f"{root}/history", 0)])
    assert member.current_period_complete(A, timeout_s=20).number == 2
    assert sorted(BarrierStateStore(session, run.root).history()) == [1]


def test_a_run_whose_coordinator_was_deleted_never_begins_again_by_itself(
    run: Run, root: str, session: ZookeeperSession
) -> None:
    member = run.member("m", A)
    assert member.current_period_complete(A, timeout_s=20).number == 1
    view = BarrierStateStore(session, root).read()
    session.transaction(
        [
            Delete(f"{root}/coordinator", view.open_version or 0),
            Delete(f"{root}/topic-partitions", view.partitions_version or 0),
        ]
    )
    with pytest.raises(OffsetMgrError, match="was deleted or reset, although the history contains period 0 as closed"):
        member.wait(1, 20)
    with pytest.raises(OffsetMgrError, match="was deleted or reset"):
        run.member("m2", A)
    assert BarrierStateStore(session, root).read().seen.open_ is None


def test_history_says_which_offsets_a_period_had_and_keeps_only_the_newest(run: Run, session: ZookeeperSession) -> None:
    member = run.member("m", A, history_kept=3)
    for number in range(5):
        ranges = {tp: OffsetRange(10 * number, 10 * number + 10) for tp in A}
        member.current_period_complete(ranges, timeout_s=20)
    until(lambda: len(BarrierStateStore(session, run.root).history()) == 3)
    found = BarrierStateStore(session, run.root).history()
    assert sorted(found) == [2, 3, 4]
    assert found[4].ranges == {tp: OffsetRange(40, 50) for tp in A}
