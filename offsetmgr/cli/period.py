"""``offsetmgr period``: shows and controls runs of the period coordinator through ZooKeeper."""

from __future__ import annotations

from typing import Annotated, Final

from offsetmgr.app import period as runs
from offsetmgr.cli.connect_flags import ChangeFlags, ConnectFlags, command
from offsetmgr.cli.options import FormatOption, command_group, flag, opt
from offsetmgr.cli.render import Column, OutputFormat, fail_if, note, rows_of, time_cell, write_rows
from offsetmgr.core.durations import parse_datetime, parse_duration
from offsetmgr.core.plurals import count_of

app = command_group("Runs of the period coordinator: all partitions finish a period before any begins the next.")

Root = Annotated[str, opt("--root", "PATH", "The run's root in ZooKeeper, as in /offsetmgr/periods/daily.")]

_PARTITION: Final = (
    Column("topic", get="partition.topic"),
    Column("partition", right=True, title="PART", get="partition.partition"),
)
_STATUS: Final = (
    Column("period", right=True),
    *_PARTITION,
    Column("state"),
    Column("waiting_ms", right=True),
    Column("owner"),
    Column("host", optional=True),
    Column("process", right=True, optional=True),
    Column("last_finished", right=True, get="last"),
)
_HISTORY: Final = (
    Column("period", right=True, get="period.number"),
    Column("start_ms", right=True, title="START", time=True, get="period.start_ms"),
    Column("end_ms", right=True, title="END", time=True, get="period.end_ms"),
    Column("closed_ms", right=True, title="CLOSED", time=True, get="closed.closed_ms"),
    Column("took_ms", right=True),
    Column("leader", get="closed.leader"),
    *_PARTITION,
    Column("state"),
    Column("member"),
    Column("job", optional=True, get="work.job"),
    Column("first_offset", right=True, get="offsets.first"),
    Column("end_offset", right=True, get="offsets.end"),
    Column("attempts", right=True, optional=True, get="work.attempt_count"),
    Column("output", optional=True, get="work.published.output"),
    Column("abandoned", optional=True),
)


@command(app, "status", many=True)
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
    found = runs.status(connect, root)
    held, period = found.lagging, found.period
    what = f"{'rerun, ' if found.rerun else ''}period {period.number}"
    times = f"{time_cell(period.start_ms)} to {time_cell(period.end_ms)}"
    note(f"{what}, {times}; leader: {found.leader or 'none alive'}; {count_of(found.members, 'live member')}")
    if found.stopped:
        note(f"the run has ended: {found.stopped}")
    elif held:
        of = count_of(len(found.partitions), "partition")
        note(f"held by {len(held)} of {of}; open for {found.open_for_ms / 1000:,.1f} s")
    write_rows(_STATUS, rows_of(_STATUS, held if holding else found.partitions), output)
    fail_if(holding and held)


@command(app, "history", many=True)
def history(
    connect: ConnectFlags,
    root: Root,
    period: Annotated[list[int] | None, opt("--period", "NUMBER", "Show only this period; repeatable.", min=0)] = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List closed periods: times, the partitions and offsets that each member finished, and how long each was open.

    For jobs with fixed offset ranges, the list also shows their attempts and published outputs.
    """
    if not write_rows(_HISTORY, rows_of(_HISTORY, runs.history(connect, root, period)), output):
        note(f"no closed period in the history of {root}")


@command(app, "rerun")
def rerun(
    connect: ConnectFlags,
    root: Root,
    begin: Annotated[str, opt("--from", "TIME", "The start of the first period (UTC).")],
    length: Annotated[str, opt("--length", "PnDTnHnMnS", "The length of the periods.")],
    until: Annotated[str | None, opt("--until", "TIME", "End of the range (default: the present).")] = None,
    name: Annotated[str | None, opt("--name", None, "Start a separate run under PATH/reruns/NAME.")] = None,
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
    *,
    flags: ChangeFlags,
) -> None:
    """Process a range of past periods again, in smaller periods, in a separate run (--name) or replacing the live run
    (--instead).

    A separate run has its own root and members, independent of the live run. With --instead, the next period that the
    live run opens is in the past, and the members of the live run must rewind their own offsets.
    """
    options = runs.RerunOptions(
        parse_datetime(begin, "--from"),
        parse_duration(length, "--length"),
        None if until is None else parse_datetime(until, "--until"),
        name,
        instead,
        then,
    )
    plan = runs.rerun(connect, root, options, execute=flags.execute, reason=flags.reason or "")
    note(f"started: {plan.root}" if flags.execute else "dry run: nothing was changed; add --execute to do it")


@command(app, "abort")
def abort(
    connect: ConnectFlags,
    root: Root,
    why: Annotated[str, opt("--why", "TEXT", "The reason, which the members receive.")] = "aborted by hand",
    *,
    flags: ChangeFlags,
) -> None:
    """End a run permanently: no further period opens, and waiting members get the reason.

    Finished work and the history remain. To start again, use another root.
    """
    runs.abort(connect, root, why=why, execute=flags.execute, reason=flags.reason or "")
    note(f"ended: {root}" if flags.execute else "dry run: nothing was changed; add --execute to end it")
