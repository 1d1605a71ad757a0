"""Members of one run on real ZooKeeper: lockstep, departures, growing topics, and nodes of legacy members."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from period_runs import Runs
from processes import until

from offsetmgr.config.connection import ConnectionConfig
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
from offsetmgr.period import OffsetRange, PeriodCoordinator, PeriodSchedule
from offsetmgr.period.barrier import ReportStatus

pytestmark = pytest.mark.servers

HOURLY = PeriodSchedule(1_000, 100)
A = [TopicPartition("a", n) for n in range(8)]


@pytest.fixture
def run(runs: Runs) -> Runs:
    runs.schedule, runs.partitions = HOURLY, list(A)
    return runs


def test_no_member_starts_a_period_before_all_members_have_finished_the_previous_one(run: Runs) -> None:
    members = [run.member(f"m{n}", A[n::4]) for n in range(4)]
    log: list[tuple[str, int]] = []

    def consume(member: PeriodCoordinator) -> None:
        for number in range(5):
            log.append(("start", number))
            mine = sorted(member.owned)
            assert all(member.check_limit(1_000 + number * 100, tp) for tp in mine)
            assert not any(member.check_limit(1_100 + number * 100, tp) for tp in mine)
            log.append(("end", number))
            assert member.current_period_complete(mine, timeout_s=90).number == number + 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(consume, members))
    assert [event for event in log if event[0] == "end"] == [("end", n) for n in range(5) for _ in range(4)]
    for number in range(1, 5):
        assert log.index(("start", number)) > max(at for at, e in enumerate(log) if e == ("end", number - 1))


def test_a_finished_partition_is_paused_while_the_members_other_partitions_continue(run: Runs) -> None:
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


def test_a_member_name_is_registered_once_and_each_later_process_has_a_larger_epoch(run: Runs) -> None:
    first = run.member("m", A)
    epoch = first.wait_registered()
    with pytest.raises(Conflict, match="registered by another session"):
        PeriodCoordinator(run.connect, run.root, "m", HOURLY, lambda: A).start(timeout_s=3)
    first.stop()
    with pytest.raises(Conflict, match="has left"):
        first.wait_registered()
    assert run.member("m", A).wait_registered() > epoch


def test_early_duplicate_and_late_reports_are_not_accepted(run: Runs) -> None:
    member = run.member("m", A)
    assert set(member.finished(A, 1).values()) == {ReportStatus.TOO_EARLY}
    assert set(member.finished(A, 0).values()) == {ReportStatus.ACCEPTED}
    member.wait(0, 90)
    assert set(member.finished(A, 0).values()) == {ReportStatus.DUPLICATE}
    assert member.finished([TopicPartition("new", 0)], 0) == {TopicPartition("new", 0): ReportStatus.LATE}


def test_a_partition_added_during_a_period_joins_in_the_next_period(run: Runs) -> None:
    member = run.member("m", A)
    new = TopicPartition("a", 8)
    run.partitions = [*A, new]
    member.own(run.partitions)
    time.sleep(1.1)  # the list of partitions is cached for a second
    assert not member.check_limit(1_050, new)
    assert member.current_period_complete(A, timeout_s=90).number == 1
    until(lambda: member.check_limit(1_150, new))
    with pytest.raises(TimedOut):
        member.finished(A)
        member.wait(1, 0.5)
    member.finished([new])
    assert member.wait(1, 90).number == 2


def test_reports_of_a_departed_member_count_and_another_member_continues(run: Runs) -> None:
    first, second = run.member("m1", A[:4]), run.member("m2", A[4:])
    first.finished(A[:3])
    first.stop()
    second.own(A)
    until(lambda: second.paused() == A[:3])
    assert second.current_period_complete(A[3:], timeout_s=90).number == 1, "the leader (the oldest member) has left"
    second.stop()
    third = run.member("m3", A)
    open_ = third.open_period()
    assert open_ is not None and open_.period.number == 1, "the run does not start again with the first period"


def test_a_wait_can_be_cancelled_and_times_out(run: Runs) -> None:
    member = run.member("m", A)
    cancel = threading.Event()
    threading.Timer(0.1, cancel.set).start()
    with pytest.raises(TimedOut, match="cancelled"):
        member.wait(0, 90, cancel)
    with pytest.raises(TimedOut, match="still open"):
        member.wait(0, 0.05)


def test_start_reports_a_server_that_does_not_answer_at_its_own_timeout_and_leaves(dead_server: str) -> None:
    # Given calls that may take an hour: only the timeout of the start can end them before the timeout of the test
    patient = ConnectionConfig(timeout_ms=3_600_000)
    member = PeriodCoordinator(dead_server, "/root", "m", HOURLY, lambda: A, config=patient)
    with pytest.raises(TimedOut, match=f"ZooKeeper at {dead_server} does not respond, after 0.2 s"):
        member.start(timeout_s=0.2)
    with pytest.raises(Conflict, match="has left"):
        member.wait(0)


def test_completing_a_period_has_one_timeout_for_the_report_and_the_wait_and_can_be_cancelled(run: Runs) -> None:
    # Given a leader that is busy, so that its reports do not reach ZooKeeper
    busy, go_on, cancel = threading.Event(), threading.Event(), threading.Event()

    def idle(_period: object, _waiting: object) -> list[TopicPartition]:
        busy.set()
        assert go_on.wait(90)
        return []

    member = run.member("m", A[:4], idle=idle)
    assert busy.wait(90)
    cancel.set()
    with pytest.raises(TimedOut, match="report of member m: the wait for it was cancelled"):
        member.current_period_complete(A[:4], None, cancel)
    with pytest.raises(TimedOut, match="report of member m: is not in ZooKeeper after 0 s"):
        member.current_period_complete(A[:4], 0.0)
    # When its reports are written, then it waits for the partitions of other members
    go_on.set()
    member.finished(A[:4], timeout_s=90)
    with pytest.raises(TimedOut, match="member m: period 0 is still open after 0 s"):
        member.current_period_complete(A[:4], 0.0)


def test_a_member_does_not_start_if_legacy_members_are_present(run: Runs) -> None:
    run.nodes.create(f"{run.root}/coordinator", b"1525741823119", makepath=True)
    with pytest.raises(LegacyMembersPresent, match="original"):
        run.member("m", A)


def test_stopping_a_run_ends_the_waits_of_its_members(run: Runs) -> None:
    member = run.member("m", A)
    run.period("abort", "--execute", "--yes")
    with pytest.raises(RunEnded, match="aborted by hand"):
        member.wait(0, 90)


def test_history_records_which_member_finished_which_partitions(run: Runs) -> None:
    members = [run.member("m1", A[:4]), run.member("m2", A[4:])]
    for member in members:
        member.finished(member.owned)
    members[0].wait(0, 90)
    rows = run.rows("history")
    expected = [(0, "m1", n, "m1" if n < 4 else "m2") for n in range(8)]
    assert [(row["period"], row["leader"], row["partition"], row["member"]) for row in rows] == expected


def test_a_member_that_joins_before_the_first_period_is_notified_when_it_opens(run: Runs) -> None:
    # Given a leader whose list of partitions takes long
    requested, responding = threading.Event(), threading.Event()

    def topics() -> list[TopicPartition]:
        requested.set()
        assert responding.wait(90)
        return A

    slow = PeriodCoordinator(run.connect, run.root, "m1", HOURLY, topics)
    run.members.append(slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(slow.start)
        assert requested.wait(90)
        # When another member joins meanwhile, and the first period opens afterwards
        second = pool.submit(run.member, "m2", A)
        time.sleep(0.5)
        responding.set()
        # Then both members see the period at once
        first.result(90)
        assert second.result(90).check_limit(1_050, A[0])


def test_members_start_on_empty_nodes_that_another_client_created(run: Runs) -> None:
    for name in ("coordinator", "topic-partitions"):
        run.nodes.create(f"{run.root}/{name}", b"", makepath=True)
    assert run.member("m", A).current_period_complete(A, timeout_s=90).number == 1


def test_a_legacy_member_that_starts_during_the_run_is_reported(run: Runs) -> None:
    member = run.member("m", A)
    run.nodes.set(f"{run.root}/coordinator", b"1525741823119")
    with pytest.raises(LegacyMembersPresent, match=r"original coordinator.*; their open period ends at 1525741823119"):
        member.wait(0, 90)


def test_a_failing_callback_ends_the_membership_and_all_waits(run: Runs) -> None:
    no_partitions: dict[str, Any] = {}
    with pytest.raises(CallbackFailed, match="KeyError"):  # the callback may run before the start has returned
        run.member("m", A[:4], idle=lambda _period, _open: no_partitions["nothing"]).current_period_complete(
            A[:4], timeout_s=90
        )


def delete(run: Runs, *paths: str) -> None:
    transaction = run.nodes.transaction()
    for path in paths:
        transaction.delete(path)
    assert not any(isinstance(result, Exception) for result in transaction.commit())


def test_a_deleted_root_ends_the_membership(run: Runs) -> None:
    member = run.member("m", A)
    paths = [run.root]
    for path in paths:
        paths += [f"{path}/{name}" for name in run.nodes.get_children(path)]
    delete(run, *reversed(paths))
    with pytest.raises(OffsetMgrError, match="was deleted"):
        member.wait(0, 90)


def test_members_continue_after_the_history_was_deleted(run: Runs) -> None:
    member = run.member("m", A)
    assert member.current_period_complete(A, timeout_s=90).number == 1
    delete(run, f"{run.root}/history/0", f"{run.root}/history")
    assert member.current_period_complete(A, timeout_s=90).number == 2
    assert run.periods() == [1]


def test_a_run_whose_coordinator_node_was_deleted_does_not_restart_by_itself(run: Runs) -> None:
    member = run.member("m", A)
    assert member.current_period_complete(A, timeout_s=90).number == 1
    delete(run, f"{run.root}/coordinator", f"{run.root}/topic-partitions")
    with pytest.raises(OffsetMgrError, match="was deleted or reset, although the history contains period 0 as closed"):
        member.wait(1, 90)
    with pytest.raises(OffsetMgrError, match="was deleted or reset"):
        run.member("m2", A)
    assert run.nodes.exists(f"{run.root}/coordinator") is None


def test_history_records_offsets_and_keeps_only_the_newest_periods(run: Runs) -> None:
    member = run.member("m", A, history_kept=3)
    for number in range(5):
        ranges = {tp: OffsetRange(10 * number, 10 * number + 10) for tp in A}
        member.current_period_complete(ranges, timeout_s=90)
    until(lambda: run.periods() == [2, 3, 4])
    rows = run.rows("history", "--period", "4")
    assert [(row["partition"], row["first_offset"], row["end_offset"]) for row in rows] == [
        (n, 40, 50) for n in range(8)
    ]
