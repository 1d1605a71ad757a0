"""``offsetmgr runbook``: writes, checks and executes runbooks for rolling bounces of groups of old consumers."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED, Interrupted
from offsetmgr.cli.options import Execute, FormatOption, OneGroup, file_to_write
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.cli.stop_signals import stop_on_signal
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import FileFailure, UsageError
from offsetmgr.migration import bounce as bounces
from offsetmgr.migration import bounce_plan
from offsetmgr.migration import runbook as runbooks
from offsetmgr.migration import runbook_render as text
from offsetmgr.migration.evidence import EvidenceThresholds
from offsetmgr.migration.group_observer import ObservationWindow
from offsetmgr.migration.observation import Observation
from offsetmgr.migration.phase_inference import PhaseReport
from offsetmgr.migration.precheck import GateClosed

Baseline = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="The runbook JSON that was written before the bounce; it lists the members at that time.",
        show_default=False,
    ),
]
Poll = Annotated[float, typer.Option("--poll", metavar="SECONDS", min=0.05, help="Polling interval.")]
Quiet = Annotated[
    float,
    typer.Option(
        "--quiet", metavar="SECONDS", min=0, help="Time without a change after which a partition counts as idle."
    ),
]
AcceptIdle = Annotated[
    bool,
    typer.Option("--accept-idle", help="Accept partitions without traffic if the offsets show that nothing is lost."),
]
AcceptSpare = Annotated[
    bool,
    typer.Option(
        "--accept-spare",
        help="Accept new members that own no partition, although there is no evidence of where they commit.",
    ),
]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Rolling bounces of old consumer groups between ZooKeeper and Kafka: write, check, bounce.",
)


class PhaseName(StrEnum):
    """The values of options that name a phase of a rolling bounce."""

    ZOOKEEPER = "zookeeper"
    DUAL = "dual"
    KAFKA = "kafka"


def _options(connect: ConnectFlags) -> str:
    """Returns the connection options for the commands that are printed for the user."""
    from offsetmgr.stores.uri import zookeeper_of

    address = zookeeper_of(connect.uri, connect.resolved.connection)
    return f"--zookeeper {shlex.quote(address or '')} --bootstrap-server {shlex.quote(connect.bootstrap() or '')}"


def _baseline(path: Path | None, group: str) -> Observation | None:
    return None if path is None else runbooks.read_baseline(path, group)


@app.command()
@connected
def write(
    connect: ConnectFlags,
    group: OneGroup,
    to: Annotated[PhaseName, typer.Option("--to", help="Target phase of the group.")],
    start: Annotated[
        PhaseName | None,
        typer.Option(
            "--from", help="Present phase; without it, inferred from the group's commits.", show_default=False
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="FILE.json (with the baseline) or FILE.md; repeatable. Never overwritten.",
        ),
    ] = None,
    window: Annotated[
        float, typer.Option("--window", metavar="SECONDS", min=0, help="Maximum time to watch for the phase.")
    ] = 60,
    poll: Poll = 0.5,
) -> None:
    """Write the steps for this group as it is now, with settings, gates and ways back.

    Without -o it prints Markdown.
    """
    files = output or []
    for file in files:
        if file.suffix not in (".json", ".md"):
            raise UsageError(f"-o {file}", "the name ends neither in .json nor in .md")
        if file.exists():
            raise UsageError(
                f"-o {file}", "exists already, and a baseline must not be overwritten", "name another file"
            )
        if not file.parent.is_dir():
            raise FileFailure(f"-o {file}", f"{file.parent} is no directory")
    name = next((str(f) for f in files if f.suffix == ".json"), "runbook.json")
    book = runbooks.write_runbook(
        connect.group_view(),
        group,
        CommitMode(to.value),
        start=CommitMode(start.value) if start else None,
        window=ObservationWindow(window, poll),
        options=_options(connect),
        baseline_file=name,
    )
    for file in files:
        as_json = file.suffix == ".json"
        written = json.dumps(runbooks.to_json(book), indent=2) + "\n" if as_json else text.runbook_markdown(book)
        try:
            with file.open("x", encoding="utf-8") as out:
                out.write(written)
        except OSError as error:
            hint = "name another file, in a directory that can be written"
            raise FileFailure(f"-o {file}", error.strerror or str(error), hint) from error
        note(f"wrote {file}")
    if not files:
        print(text.runbook_markdown(book))
        note(f"warning: the steps need the baseline {name}, which was not written; to write it, add -o {name}")
    for warning in book.warnings if files else ():
        note(f"warning: {warning}")


@app.command()
@connected
def check(
    connect: ConnectFlags,
    group: OneGroup,
    phase: Annotated[PhaseName, typer.Option("--phase", help="The phase that every member should be in.")],
    baseline: Baseline = None,
    window: Annotated[float, typer.Option("--window", metavar="SECONDS", min=0, help="Maximum time to watch.")] = 180,
    poll: Poll = 0.5,
    quiet: Quiet = 10,
    accept_idle: AcceptIdle = False,
    accept_spare: AcceptSpare = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Check by evidence that every member is in a phase; exit code 0 only then.

    The command watches commits, and stops as soon as the result is certain.
    """
    report = runbooks.check_phase(
        connect.group_view(),
        group,
        CommitMode(phase.value),
        baseline=_baseline(baseline, group),
        rules=EvidenceThresholds(accept_idle, accept_spare, quiet_ms=int(quiet * 1000)),
        window=ObservationWindow(window, poll),
    )
    _show_report(report, output)
    if not report.passed:
        raise typer.Exit(FAILED)


def _show_report(report: PhaseReport, output: OutputFormat) -> None:
    if output is OutputFormat.TABLE:
        print(text.report_text(report))
    elif output is OutputFormat.JSON:
        print(json.dumps(text.report_json(report), indent=2))
    else:
        members = (("member", m.member, m.ok, m.confidence.value, m.why, m.remedy) for m in report.members)
        rows = [
            *members,
            *(("partition", str(p.partition), p.ok, p.confidence.value, p.why, p.remedy) for p in report.partitions),
        ]
        names = ("kind", "name", "ok", "known", "evidence", "remedy")
        write_rows([Column(name) for name in names], rows, output)


@app.command()
@connected
def bounce(
    connect: ConnectFlags,
    group: OneGroup,
    to: Annotated[PhaseName, typer.Option("--to-phase", help="The phase that every member is restarted into.")],
    command: Annotated[
        str,
        typer.Option(
            "--command",
            metavar="TEMPLATE",
            help="Shell command that restarts one member; {host} {member} {group} {phase} {settings} are replaced.",
        ),
    ],
    start: Annotated[
        PhaseName | None,
        typer.Option("--from-phase", help="Present phase of the group (default: inferred).", show_default=False),
    ] = None,
    baseline: Baseline = None,
    start_baseline: Annotated[
        Path | None,
        typer.Option(
            "--start-baseline",
            metavar="FILE",
            help="Runbook or state file of the previous bounce, for the gate before the first step.",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="FILE",
            callback=file_to_write,
            help="Save progress in FILE, so that the command can be resumed (default: bounce-GROUP-PHASE.json). "
            "The output of the commands goes to a file of the same name with the suffix .log.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="MEMBER=HOST", help="The host of a member with a configured id; repeatable."),
    ] = None,
    window: Annotated[
        float, typer.Option("--window", metavar="SECONDS", min=0, help="Maximum time to watch for each gate.")
    ] = 180,
    poll: Poll = 0.5,
    quiet: Quiet = 10,
    accept_idle: AcceptIdle = False,
    accept_spare: AcceptSpare = False,
    restart_timeout: Annotated[
        float,
        typer.Option(
            "--restart-timeout", metavar="SECONDS", min=0, help="Maximum time until a restarted member is back."
        ),
    ] = 120,
    command_timeout: Annotated[
        float, typer.Option("--command-timeout", metavar="SECONDS", min=0, help="Maximum run time of the command.")
    ] = 600,
    execute: Execute = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Restart the members one at a time into a phase, with a gate after each.

    The command stops at the first failed restart or gate; the same command line resumes there.
    """
    spec = bounce_plan.BounceSpec(
        group,
        CommitMode(to.value),
        command,
        start=CommitMode(start.value) if start else None,
        baseline=_baseline(baseline, group),
        start_baseline=_baseline(start_baseline, group),
        hosts=_hosts(host),
        rules=EvidenceThresholds(accept_idle, accept_spare, quiet_ms=int(quiet * 1000)),
        window=ObservationWindow(window, poll),
        restart_seconds=restart_timeout,
        command_seconds=command_timeout,
    )
    state = state or Path(f"bounce-{re.sub(r'[^A-Za-z0-9._-]', '_', group)}-{to.value}.json")
    try:
        if execute:
            with stop_on_signal("after this observation or restart; the same command line resumes") as stop:
                result = bounces.bounce(connect.group_view(), spec, state, progress=note, stop=stop)
        else:
            result = bounce_plan.plan_bounce(connect.group_view(), spec, state)
    except GateClosed as closed:
        note(text.report_text(closed.report))
        raise
    _show_result(result, output)
    if result.outcome is bounce_plan.BounceOutcome.STOPPED:
        raise Interrupted(f"{result.why}; the same command line resumes")
    if result.outcome is bounce_plan.BounceOutcome.FAILED:
        raise typer.Exit(FAILED)


def _hosts(pairs: list[str] | None) -> dict[str, str]:
    hosts: dict[str, str] = {}
    for pair in pairs or []:
        member, equals, name = pair.partition("=")
        if not (equals and member and name):
            raise UsageError(f"--host {pair}", "is not MEMBER=HOST")
        hosts[member] = name
    return hosts


def _show_result(result: bounce_plan.BounceResult, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print(json.dumps(_result_json(result), indent=2))
    else:
        columns = [Column("member"), Column("host"), Column("status"), Column("command"), Column("successors")]
        rows = [(s.member, s.host, s.status.value, s.command, " ".join(s.successors)) for s in result.steps]
        write_rows(columns, rows, output)
    if result.report is not None:
        note(text.report_text(result.report))
    for copy in result.copies:
        before = "no offset" if copy.before is None else copy.before
        note(f"copy to ZooKeeper: {copy.topic}-{copy.partition} {before} -> {copy.after}: {copy.outcome}")
    note(
        f"bounce {result.change} of group {result.group}: {result.outcome.value}"
        + (f": {result.why}" if result.why else "")
    )
    if result.hint:
        note(f"hint: {result.hint}")
    if result.outcome is bounce_plan.BounceOutcome.PLANNED:
        note("nothing was executed; --execute runs these commands, one at a time, with a gate after each")


def _result_json(result: bounce_plan.BounceResult) -> dict[str, Any]:
    return {
        "outcome": result.outcome.value,
        "group": result.group,
        "from_phase": result.change.start.value,
        "to_phase": result.change.to.value,
        "steps": [{**asdict(s), "status": s.status.value} for s in result.steps],
        "copies": [asdict(c) for c in result.copies],
        "report": None if result.report is None else text.report_json(result.report),
        "why": result.why,
        "hint": result.hint,
    }
