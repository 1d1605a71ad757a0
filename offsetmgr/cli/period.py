"""``offsetmgr period``: shows and controls runs of the period coordinator through ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import fail_if
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import Execute, FormatOption, Reason, Yes, flag, opt
from offsetmgr.cli.render import PARTITION, Column, OutputFormat, note, write_rows
from offsetmgr.cli.terminal import confirm
from offsetmgr.core.errors import Conflict, UsageError
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.period.job_records import Work
    from offsetmgr.period.records import ClosedPeriod
    from offsetmgr.period.state_nodes import BarrierStateStore, BarrierView
    from offsetmgr.zookeeper.client.session import ZookeeperSession


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Runs of the period coordinator: all partitions finish a period before any begins the next.",
)

Root = Annotated[str, opt("--root", "PATH", "The run's root in ZooKeeper, as in /offsetmgr/periods/daily.")]

_STATUS: Final = (
    Column("period", right=True),
    *PARTITION,
    Column("state"),
    Column("waiting_ms", right=True),
    Column("owner"),
    Column("host", optional=True),
    Column("process", right=True, optional=True),
    Column("last_finished", right=True),
)
_HISTORY: Final = (
    Column("period", right=True),
    Column("start_ms", right=True, title="START", time=True),
    Column("end_ms", right=True, title="END", time=True),
    Column("closed_ms", right=True, title="CLOSED", time=True),
    Column("took_ms", right=True),
    Column("leader"),
    *PARTITION,
    Column("state"),
    Column("member"),
    Column("job", optional=True),
    Column("first_offset", right=True),
    Column("end_offset", right=True),
    Column("attempts", right=True, optional=True),
    Column("output", optional=True),
    Column("abandoned", optional=True),
)


_MAX_READS: Final = 20
"""Maximum number of attempts to read the nodes of a run. An attempt is repeated if the run advanced while its nodes
were read."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _duration(ms: int) -> str:
    return f"{ms / 1000:,.1f} s"


def _state_store(connect: ConnectFlags, command: str, root: str) -> BarrierStateStore:
    from offsetmgr.period.state_nodes import BarrierStateStore

    return BarrierStateStore(connect.zookeeper(command), root)


def _read_started(nodes: BarrierStateStore) -> BarrierView:
    """Reads the nodes of a run. Raises `Conflict` if the run has not opened a period yet."""
    view = nodes.read()
    if view.seen.open_ is None:
        raise Conflict(
            f"run {nodes.root}", "has opened no period", "check --root, and the path after --zookeeper's hosts"
        )
    return view


def _read_consistent(nodes: BarrierStateStore) -> BarrierView:
    """Reads the nodes of a run. If the run advanced while its nodes were read, reads all of them again. Raises
    `Conflict` if the run has not opened a period yet."""
    view = _read_started(nodes)
    for _ in range(_MAX_READS):
        if view.seen.barrier() is not None:
            break
        view = _read_started(nodes)
    return view


@app.command("status")
@connected
@many_clusters
def status(
    connect: ConnectFlags,
    root: Root,
    holding: Annotated[
        bool,
        flag("--holding", "Show only partitions that still hold the period open; exit code 1 if there are any."),
    ] = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the open period: which partitions hold it open, for how long, and which members consume them.

    A partition holds the period open until the period is finished for that partition. Partitions that hold the period
    open come first. A partition without an owner is consumed by no live member.
    """
    from offsetmgr.period.status import status_of

    found = status_of(_read_consistent(_state_store(connect, "period status", root)), _now_ms())
    assert found is not None  # the run has begun
    held = found.lagging
    kind = "rerun, period" if found.rerun else "period"
    what = f"{kind} {found.period.number}, {_time(found.period.start_ms)} to {_time(found.period.end_ms)}"
    note(f"{what}; leader: {found.leader or 'none alive'}; {count_of(found.members, 'live member')}")
    if found.stopped:
        note(f"the run has ended: {found.stopped}")
    elif held:
        waiting = _duration(_now_ms() - found.opened_ms)
        note(f"held by {len(held)} of {count_of(len(found.partitions), 'partition')}; open for {waiting}")
    rows = (
        (
            found.period.number,
            row.partition.topic,
            row.partition.partition,
            "holds" if not row.finished else "idle" if row.idle else "finished",
            row.waiting_ms,
            row.owner,
            row.host,
            row.process,
            row.last,
        )
        for row in (held if holding else found.partitions)
    )
    write_rows(_STATUS, rows, output)
    fail_if(holding and held)


@app.command("history")
@connected
@many_clusters
def history(
    connect: ConnectFlags,
    root: Root,
    period: Annotated[
        list[int] | None,
        opt("--period", "NUMBER", "Show only this period; repeatable.", min=0),
    ] = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List closed periods: times, the partitions and offsets that each member finished, and how long each was open.

    For jobs with fixed offset ranges, the list also shows their attempts and published outputs.
    """
    from offsetmgr.period.history import History

    session = connect.zookeeper("period history")
    from offsetmgr.period.state_nodes import BarrierStateStore

    nodes = BarrierStateStore(session, root)
    _read_started(nodes)
    works = History(session, root).all_work(period)
    if not write_rows(_HISTORY, history_rows(nodes.history(period), works), output):
        note(f"no closed period in the history of {root}")


@app.command("rerun")
@connected
def rerun(
    connect: ConnectFlags,
    root: Root,
    begin: Annotated[str, opt("--from", "TIME", "The start of the first period (UTC).")],
    length: Annotated[str, opt("--length", "PnDTnHnMnS", "The length of the periods.")],
    until: Annotated[
        str | None,
        opt("--until", "TIME", "End of the range (default: the present)."),
    ] = None,
    name: Annotated[
        str | None,
        opt("--name", None, "Start a separate run under PATH/reruns/NAME."),
    ] = None,
    instead: Annotated[
        bool, flag("--instead", "Replace the live run: it stops, rewinds and abandons its open period.")
    ] = False,
    then: Annotated[
        str,
        opt(
            "--then",
            "close|live",
            "At the end of the range: close the run, or continue with the live run's periods.",
        ),
    ] = "close",
    execute: Execute = False,
    yes: Yes = False,
    reason: Reason = None,
) -> None:
    """Process a range of past periods again, in smaller periods, in a separate run (--name) or replacing the live run
    (--instead).

    A separate run has its own root and members, independent of the live run. With --instead, the next period that the
    live run opens is in the past, and the members of the live run must rewind their own offsets.
    """
    from offsetmgr.core.durations import parse_datetime, parse_duration
    from offsetmgr.period import rerun as reruns
    from offsetmgr.period.records import Rerun
    from offsetmgr.period.state_nodes import BarrierStateStore

    if (name is None) != instead:
        why = "both --name and --instead are given" if instead else "neither --name nor --instead is given"
        raise UsageError("period rerun", why, "as in --name june (separate), or --instead")
    if then not in ("close", "live"):
        raise UsageError("--then", f"{then!r} is neither close nor live")
    session = connect.zookeeper("period rerun")
    live_nodes = BarrierStateStore(session, root)
    live = _read_consistent(live_nodes)
    assert live.seen.open_ is not None
    plan = Rerun(
        None if until is None else parse_datetime(until, "--until"),
        reruns.live_schedule(live.seen.open_) if then == "live" else None,
    )
    target = root if name is None else reruns.rerun_root(root, name)
    if name is None:
        reruns.require_no_rerun(root, live.seen.open_)
    else:
        reruns.require_new(BarrierStateStore(session, target))
    schedule = reruns.rerun_schedule(
        parse_datetime(begin, "--from"), parse_duration(length, "--length"), plan, live.seen.open_
    )
    end = "the present" if plan.until_ms is None else _time(plan.until_ms)
    what = f"rerun from {_time(schedule.first_ms)} to {end} in periods of {_duration(schedule.length_ms)}"
    note(f"{what}, in {target}; then it {'continues with the live periods' if plan.then else 'closes'}")
    if name is None:
        note(f"the open period {live.seen.open_.number} is abandoned")
    if not execute:
        note("dry run: nothing was changed; add --execute to do it")
        return
    confirm(
        f"{what}, {'instead of the live run' if name is None else 'separate from the live run'}?",
        yes=yes or name is not None,
    )
    with _recorded(session, "period rerun", reason):
        if name is None:
            reruns.begin_in_live_run(live_nodes, live, schedule, plan, f"abandoned for a {what}", _now_ms())
        else:
            reruns.begin_separate(BarrierStateStore(session, target), live, schedule, plan, _now_ms())
    note(f"started: {target}")


def _recorded(session: ZookeeperSession, name: str, reason: str | None) -> AbstractContextManager[object]:
    """Returns a context that records the change of a run in the operation log."""
    from offsetmgr.groups.operation_log import OperationLog, OperationStart

    return OperationLog().recorded(
        OperationStart(name, (f"zookeeper://{session.connect}",), (), 0, 1, reason=reason or "")
    )


def _end(nodes: BarrierStateStore, why: str) -> None:
    """Ends the run, even if the run advanced while the command waited for the user's answer. Raises `Conflict` if the
    run has ended already, or if the run advances during every attempt to end it."""
    for _ in range(_MAX_READS):
        view = _read_started(nodes)
        assert view.seen.open_ is not None
        if view.seen.open_.stopped:
            raise Conflict(f"run {nodes.root}", f"has ended already: {view.seen.open_.stopped}")
        if nodes.stop_run(view, why):
            return
    raise Conflict(f"run {nodes.root}", "opened another period during each attempt", "run the command again")


@app.command("abort")
@connected
def abort(
    connect: ConnectFlags,
    root: Root,
    why: Annotated[str, opt("--why", "TEXT", "The reason, which the members receive.")] = "aborted by hand",
    execute: Execute = False,
    yes: Yes = False,
    reason: Reason = None,
) -> None:
    """End a run permanently: no further period opens, and waiting members get the reason.

    Finished work and the history remain. To start again, use another root.
    """
    nodes = _state_store(connect, "period abort", root)
    view = _read_started(nodes)
    assert view.seen.open_ is not None
    if view.seen.open_.stopped:
        raise Conflict(f"run {root}", f"has ended already: {view.seen.open_.stopped}")
    what = f"period {view.seen.open_.number} is open, with {count_of(len(view.members), 'live member')}"
    note(f"{root}: {what}")
    if not execute:
        note("dry run: nothing was changed; add --execute to end it")
        return
    confirm(f"end the run {root} for good?", yes=yes)
    with _recorded(connect.zookeeper("period abort"), "period abort", reason or why):
        _end(nodes, why or "aborted by hand")
    note(f"ended: {root}")


def history_rows(
    closed: Mapping[int, ClosedPeriod], works: Mapping[tuple[int, str], Work]
) -> Iterator[tuple[Any, ...]]:
    """Yields rows with the columns that `offsetmgr.cli.period` defines. A period that is not closed yet has only the
    rows of its jobs."""
    for number in sorted({*closed, *(number for number, _ in works)}):
        period = closed.get(number)
        jobs = [work for (of, _), work in sorted(works.items()) if of == number]
        begin = _period_cells(number, period, jobs)
        by = {tp: member for member, tps in period.by.items() for tp in tps} if period else {}
        ranges = dict(period.ranges) if period else {}
        of_jobs = {tp for work in jobs for tp in work.ranges}
        for partition in sorted({*by, *ranges} - of_jobs):
            offsets = ranges.get(partition)
            idle = period is not None and partition in period.idle
            yield (
                *begin,
                partition.topic,
                partition.partition,
                "idle" if idle else "finished",
                by.get(partition),
                None,
                offsets.first if offsets else None,
                offsets.end if offsets else None,
                None,
                None,
                None,
            )
        for work in jobs:
            done = work.published
            state = "published" if done else "under way" if work.attempts else "fixed"
            for partition, offsets in sorted(work.ranges.items()):
                who = work.attempts[-1].member if work.attempts else None
                yield (
                    *begin,
                    partition.topic,
                    partition.partition,
                    state,
                    by.get(partition, who),
                    work.job,
                    offsets.first,
                    offsets.end,
                    work.attempt_count,
                    done.output if done else None,
                    None,
                )
        if period is not None and period.abandoned:
            yield (*begin, None, None, "abandoned", None, None, None, None, None, None, period.abandoned)


def _period_cells(number: int, period: ClosedPeriod | None, jobs: list[Work]) -> tuple[Any, ...]:
    if period is None:
        return number, jobs[0].period.start_ms, jobs[0].period.end_ms, None, None, None
    duration_ms = period.closed_ms - period.opened_ms
    return number, period.period.start_ms, period.period.end_ms, period.closed_ms, max(0, duration_ms), period.leader
