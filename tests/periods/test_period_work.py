"""Work on periods, reruns and ``offsetmgr period`` on real ZooKeeper, and idle partitions on real Kafka."""

from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import Producer
from period_runs import Runs
from processes import until

from offsetmgr import KafkaCluster
from offsetmgr.core.errors import Conflict, LateRecord, RunEnded, Superseded, TimedOut
from offsetmgr.core.model import TopicPartition
from offsetmgr.period import OffsetRange, Period, PeriodSchedule, idle_partitions
from offsetmgr.period.barrier import ReportStatus
from offsetmgr.period.history import History
from offsetmgr.period.job_records import Work
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import OperationState, TransactionOperation, TransactionResult

pytestmark = pytest.mark.servers

DAY_MS = 86_400_000
FIRST = 1_700_006_400_000
"""2023-11-15T00:00:00Z"""
DAILY = PeriodSchedule(FIRST, DAY_MS)
A = [TopicPartition("a", n) for n in range(4)]
RANGES = {tp: OffsetRange(0, 10 + tp.partition) for tp in A}


@pytest.fixture(autouse=True)
def daily(runs: Runs) -> None:
    runs.schedule, runs.partitions = DAILY, A


@pytest.fixture
def history(runs: Runs) -> Iterator[History]:
    runs.nodes.ensure_path(runs.root)
    with ZookeeperSession(runs.connect) as session:
        yield History(session, runs.root)


# --- work ---------------------------------------------------------------------------------------


def test_ranges_are_fixed_once_before_the_work_begins(history: History) -> None:
    work, fresh = history.fix(Work("job", DAILY.period(0), RANGES, 5))
    assert (fresh, work.ranges, work.attempts, work.published) == (True, RANGES, (), None)
    assert history.fix(Work("job", DAILY.period(0), {A[0]: OffsetRange(0, 99)}, 9)) == (work, False)
    assert history.read("job", 1) is None
    with pytest.raises(Conflict, match="stored ranges for"):
        history.fix(Work("job", PeriodSchedule(FIRST, 7).period(0), RANGES, 9))
    with pytest.raises(Conflict, match="no stored ranges"):
        history.attempt("job", 1, "m", 1, 5)


def test_a_frozen_process_that_resumes_after_its_successor_began_publishes_nothing(history: History) -> None:
    # Given one process at work, and another that began after it
    history.fix(Work("job", DAILY.period(0), RANGES, 1))
    frozen = history.attempt("job", 0, "driver", 7, 2)
    successor = history.attempt("job", 0, "driver", 9, 3)
    # When the first resumes, then it can neither publish nor begin again
    with pytest.raises(Superseded, match="a later attempt than 0 has begun"):
        history.publish(frozen, "out/0", {}, 4)
    with pytest.raises(Superseded, match="later process"):
        history.attempt("job", 0, "driver", 7, 4)
    # And the second publishes once, however often it repeats the request
    done = history.publish(successor, "out/1", {"taken": 10}, 5)
    assert history.publish(successor, "out/1", {"taken": 10}, 6) == done
    assert done.published is not None
    assert (done.published.attempt, done.published.output, done.published.counts) == (1, "out/1", {"taken": 10})
    with pytest.raises(Superseded):
        history.publish(frozen, "out/0", {}, 7)
    with pytest.raises(Conflict, match="was already published"):
        history.attempt("job", 0, "driver", 11, 8)
    assert history.all_work() == {(0, "job"): done}


class LossySession(ZookeeperSession):
    """A session that loses the response to each write. With ``cut`` it loses the request, too."""

    cut = False

    def transaction(self, operations: Sequence[TransactionOperation]) -> TransactionResult:
        if not self.cut:
            assert super().transaction(operations).state is OperationState.COMMITTED
        return TransactionResult(OperationState.UNKNOWN, error=TimedOut("ZooKeeper", "no answer"))


def test_work_continues_if_only_responses_are_lost(history: History, runs: Runs) -> None:
    history.fix(Work("other", DAILY.period(0), RANGES, 1))
    with LossySession(runs.connect) as session:
        lossy = History(session, runs.root)
        work, _ = lossy.fix(Work("job", DAILY.period(0), RANGES, 5))
        assert (work.ranges, work.fixed_ms) == (RANGES, 5)
        claim = lossy.attempt("job", 0, "driver", 7, 6)
        assert claim.attempt == 0
        assert lossy.publish(claim, "out/0", {}, 8).published is not None
        session.cut = True
        with pytest.raises(TimedOut, match="not stored"):
            lossy.fix(Work("job", DAILY.period(1), RANGES, 5))
        with pytest.raises(TimedOut, match="was not published"):
            lossy.publish(history.attempt("other", 0, "driver", 7, 6), "out/0", {}, 8)
    found = history.read("job", 0)
    assert found is not None and found.published is not None
    assert [attempt.member for attempt in found.attempts] == ["driver"]
    assert history.read("job", 1) is None


def test_each_job_has_its_own_work_and_old_work_can_be_deleted(history: History) -> None:
    for job in ("a", "b-c"):
        history.fix(Work(job, DAILY.period(3), RANGES, 1))
    assert sorted(history.all_work([3])) == [(3, "a"), (3, "b-c")]
    assert history.all_work([2]) == {}
    history.delete("a", 3)
    assert sorted(history.all_work()) == [(3, "b-c")]


def test_history_finds_the_newest_work_of_a_job_and_the_work_that_covers_a_period(history: History) -> None:
    # Given days 0, 1 and 3 of a job, a rerun of day 1 in halves with the numbers 4 and 5, and another job's day 2
    days = {number: history.fix(Work("job", DAILY.period(number), RANGES, 1))[0] for number in (0, 1, 3)}
    start = DAILY.period(1).start_ms
    halves = [Period(4 + n, start + n * DAY_MS // 2, start + (n + 1) * DAY_MS // 2) for n in range(2)]
    again = [history.fix(Work("job", half, RANGES, 2))[0] for half in halves]
    history.fix(Work("job-2", DAILY.period(2), RANGES, 3))
    # Then the newest below a number is found
    assert history.latest("job", 9) == again[1]
    assert history.latest("job", 3) == days[1]
    assert history.latest("job", 0) is None
    # And the newest whose period covers the given period
    assert history.covering("job", halves[1]) == again[1]
    assert history.covering("job", halves[1], 4) == days[1]
    assert history.covering("job", DAILY.period(1)) == days[1]
    assert history.covering("job", DAILY.period(2)) is None
    with pytest.raises(Conflict, match="overlaps the processed period"):
        history.covering("job", Period(9, start + DAY_MS // 2, start + DAY_MS + DAY_MS // 2))


# --- the command line ---------------------------------------------------------------------------


def test_status_lists_the_partitions_that_hold_the_barrier_with_owner_and_waiting_time(runs: Runs) -> None:
    first, _ = runs.member("m1", A[:2]), runs.member("m2", A[2:3])
    first.finished(A[:2])
    rows = runs.rows("status")
    assert [(r["partition"], r["state"], r["owner"], r["last_finished"]) for r in rows] == [
        (2, "holds", "m2", None),
        (3, "holds", None, None),
        (0, "finished", "m1", 0),
        (1, "finished", "m1", 0),
    ]
    assert all(r["waiting_ms"] >= 0 for r in rows[:2]) and rows[2]["waiting_ms"] is None
    out, err = runs.period("status", "--holding", code=1)
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [["0", "a", "2", "holds"], ["0", "a", "3", "holds"]]
    assert "period 0, 2023-11-15T00:00:00.000Z to 2023-11-16T00:00:00.000Z; leader: m1; 2 live members" in err
    assert "held by 2 of 4 partitions; open for" in err


def test_history_shows_offsets_members_and_jobs(runs: Runs, history: History) -> None:
    member = runs.member("m1", A)
    history.fix(Work("job", DAILY.period(0), {A[0]: OffsetRange(5, 9)}, 1))
    history.publish(history.attempt("job", 0, "m1", 1, 2), "out", {}, 3)
    member.current_period_complete({tp: RANGES[tp] for tp in A}, timeout_s=90)
    rows = runs.rows("history")
    shown = [(r["partition"], r["state"], r["member"], r["job"], r["first_offset"], r["end_offset"]) for r in rows]
    assert shown == [
        (1, "finished", "m1", None, 0, 11),
        (2, "finished", "m1", None, 0, 12),
        (3, "finished", "m1", None, 0, 13),
        (0, "published", "m1", "job", 5, 9),
    ]
    assert (rows[3]["attempts"], rows[3]["output"], rows[0]["leader"]) == (1, "out", "m1")
    assert rows[0]["took_ms"] >= 0
    assert runs.rows("history", "--period", "7") == []


def test_abort_acts_only_with_execute_and_status_reports_the_ended_run(runs: Runs) -> None:
    member = runs.member("m1", A)
    assert "dry run" in runs.period("abort")[1]
    assert member.current_period_complete(A, timeout_s=90).number == 1
    assert "ended" in runs.period("abort", "--why", "wrong topic", "--execute", "--yes")[1]
    logged = runs.last_edit()
    assert (logged["operation"], logged["reason"], logged["outcome"]) == ("period abort", "wrong topic", "done")
    with pytest.raises(RunEnded, match="wrong topic"):
        member.wait(1, 90)
    assert "the run has ended: wrong topic" in runs.period("status")[1]
    assert "has ended already" in runs.period("abort", code=1)[1]
    assert "has opened no period" in runs.period("status", root="/nowhere", code=1)[1]


# --- reruns -------------------------------------------------------------------------------------

HALF_DAYS = ("--from", "2023-11-15T00:00:00", "--length", "PT12H")


def test_abort_works_if_the_run_advances_during_the_confirmation(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    member = runs.member("m", A)

    def advance_instead(_terminal: object, _question: str) -> None:
        assert member.current_period_complete(A, timeout_s=90).number == 1

    monkeypatch.setattr("offsetmgr.cli.connect_flags.Terminal.confirm", advance_instead)
    assert "ended" in runs.period("abort", "--execute")[1]
    with pytest.raises(RunEnded, match="aborted by hand"):
        member.wait(1, 90)


def test_a_rerun_alongside_the_live_run_processes_past_periods_and_closes(runs: Runs) -> None:
    live = runs.member("live", A)
    for number in range(2):
        assert live.current_period_complete(A, timeout_s=90).number == number + 1
    output = runs.period("rerun", *HALF_DAYS, "--until", "2023-11-16T00:00:00", "--name", "again", "--execute")[1]
    assert f"in {runs.root}/reruns/again; then it closes" in output
    for more in ((), ("--execute",)):
        assert "has begun already" in runs.period("rerun", *HALF_DAYS, "--name", "again", *more, code=1)[1]
    member = runs.member("m", A, f"{runs.root}/reruns/again")
    assert member.check_limit(FIRST + DAY_MS // 2 - 1, A[0]) and not member.check_limit(FIRST + DAY_MS // 2, A[0])
    assert member.current_period_complete(A, timeout_s=90).start_ms == FIRST + DAY_MS // 2
    with pytest.raises(RunEnded, match="the rerun is done"):
        member.current_period_complete(A, timeout_s=90)
    assert runs.periods(f"{runs.root}/reruns/again") == [0, 1]
    open_ = live.open_period()
    assert open_ is not None and open_.period == DAILY.period(2), "the live run is not affected"


def test_a_rerun_that_replaces_the_live_run_continues_with_the_live_schedule(runs: Runs, caplog) -> None:
    live = runs.member("live", A)
    for _ in range(2):
        live.current_period_complete(A, timeout_s=90)
    rerun_options = (*HALF_DAYS, "--until", "2023-11-16T00:00:00", "--instead", "--then", "live")
    assert "dry run" in runs.period("rerun", *rerun_options)[1]
    runs.period("rerun", *rerun_options, "--execute", "--yes")
    assert runs.last_edit()["operation"] == "period rerun"
    assert "is in a rerun already" in runs.period("rerun", *rerun_options, code=1)[1]
    until(lambda: (open_ := live.open_period()) is not None and open_.period.number == 3)
    back = live.current_period_complete(A, timeout_s=90)
    assert (back.number, back.start_ms, back.end_ms) == (3, FIRST, FIRST + DAY_MS // 2)
    late = ", ".join(f"a-{n} of period 2" for n in range(3))
    assert f"member live: late report ignored, the period is already closed: {late} and more" in caplog.text
    assert live.finished(A, 2) == dict.fromkeys(A, ReportStatus.LATE), "the open period is abandoned"
    assert not live.check_limit(FIRST + DAY_MS // 2, A[0])
    with pytest.raises(LateRecord):
        live.check_limit(FIRST - 1, A[0])
    assert live.current_period_complete(A, timeout_s=90).start_ms == FIRST + DAY_MS // 2
    daily = live.current_period_complete(A, timeout_s=90)
    assert (daily.number, daily.start_ms, daily.end_ms) == (5, FIRST + DAY_MS, FIRST + 2 * DAY_MS)
    abandoned = [r for r in runs.rows("history") if r["state"] == "abandoned"]
    assert [(r["period"], r["start_ms"]) for r in abandoned] == [(2, FIRST + 2 * DAY_MS)]
    assert abandoned[0]["abandoned"].startswith("abandoned for a rerun from 2023-11-15")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((*HALF_DAYS,), "neither --name nor --instead"),
        ((*HALF_DAYS, "--name", "x", "--instead"), "both --name and --instead"),
        ((*HALF_DAYS, "--name", "x", "--then", "stop"), "neither close nor live"),
        (("--from", "2023-11-15T00:00:00", "--length", "P2D", "--name", "x"), "longer than the live run's"),
        (("--from", "2023-11-17T00:00:00", "--length", "PT12H", "--name", "x"), "does not begin in the past"),
        ((*HALF_DAYS, "--until", "2023-11-15T13:00:00", "--name", "x"), "not a whole number of periods"),
        ((*HALF_DAYS, "--until", "2023-11-15T05:00:00", "--name", "x"), "ends before the end of its first period"),
        (("--from", "2023-11-15T01:00:00", "--length", "PT12H", "--name", "x", "--then", "live"), "never end where"),
    ],
)
def test_a_rerun_with_invalid_options_is_rejected(runs: Runs, options: tuple[str, ...], why: str) -> None:
    runs.member("live", A).current_period_complete(A, timeout_s=90)
    assert why in runs.period("rerun", *options, "--execute", code=2)[1]


# --- partitions without records -----------------------------------------------------------------------


def test_a_barrier_closes_without_the_partitions_that_have_no_records(kafka, runs, make_topic, unique, caplog) -> None:
    hourly = PeriodSchedule(FIRST, 3_600_000)
    # Given partitions with a record within the period, one before it, one after it, one dated ahead of it, and none
    topic = make_topic(unique, 5, config={"retention.ms": "-1"})
    within, before, after, ahead, none = everything = [TopicPartition(topic, n) for n in range(5)]
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    times = {
        within: [hourly.first_ms],
        before: [hourly.first_ms - 1],
        after: [hourly.first_ms + 3_600_000],
        ahead: [hourly.first_ms + 10**9, hourly.first_ms + 5],
    }
    for partition, stamps in times.items():
        for stamp in stamps:
            producer.produce(topic, b"x", partition=partition.partition, timestamp=stamp)
    assert producer.flush(30) == 0
    runs.schedule, runs.partitions = hourly, everything
    with KafkaCluster(kafka.bootstrap) as cluster:
        # When the cluster is queried, then only partitions without any record since the start are idle
        idle = idle_partitions(cluster)
        missing = TopicPartition(topic, 9)
        assert set(idle(hourly.period(0), [*everything, missing])) == {before, none}
        assert f"period 0: cannot check whether {missing} is idle: " in caplog.text
        # And a run advances once the partitions with records are finished
        mine = [within, after, ahead]
        member = runs.member("m", mine, idle=idle)
        assert member.current_period_complete(mine, timeout_s=90).number == 1
    found = [row["partition"] for row in runs.rows("history") if row["state"] == "idle"]
    assert found == [before.partition, none.partition]
