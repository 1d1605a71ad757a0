"""``offsetmgr runbook``: writes, checks and executes runbooks for rolling bounces of groups of old consumers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from offsetmgr.cli import runbook_bounce
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED, fail_if
from offsetmgr.cli.many_clusters import many_clusters, one_cluster
from offsetmgr.cli.options import FormatOption, OneGroup, opt, seconds_option
from offsetmgr.cli.output_collector import COLLECTOR
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows, write_text
from offsetmgr.cli.runbook_options import (
    Baseline,
    EvidenceFlags,
    Hosts,
    Plan,
    PlanOfGroups,
    Poll,
    Restart,
    RestartFlags,
    RunbookGroups,
    baselines_of,
    view_of,
)
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.document import to_html, to_markdown
from offsetmgr.core.errors import FileFailure, GateRefused, UsageError
from offsetmgr.core.os_errors import os_error_as
from offsetmgr.core.plurals import count_of, printable
from offsetmgr.migration import runbook as runbooks
from offsetmgr.migration import runbook_render as text
from offsetmgr.migration.fleet_bounce import phase_record
from offsetmgr.migration.group_observer import GroupView, ObservationWindow
from offsetmgr.migration.phase_inference import PhaseReport
from offsetmgr.migration.rollout import InvalidWorkload

if TYPE_CHECKING:
    from offsetmgr.migration.runbook_commands import RunbookArguments

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Rolling bounces of old consumer groups between ZooKeeper and Kafka: write, check, bounce.",
)


@app.command()
@connected
@one_cluster("a runbook belongs to the groups of one cluster")
def write(
    connect: ConnectFlags,
    to: Annotated[CommitMode, opt("--to", None, "Target phase of the groups.")],
    groups: RunbookGroups,
    start: Annotated[
        CommitMode | None,
        opt("--from", None, "Present phase; without it, inferred from the group's commits."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        opt(
            "--output -o",
            "FILE",
            "FILE.json (with the baseline), FILE.html or FILE.md; repeatable. Never overwritten. A page without a "
            "baseline gets one of the same name.",
        ),
    ] = None,
    window_s: Annotated[float, seconds_option("--window", "Maximum time to watch for the phase.")] = 60,
    poll_s: Poll = 0.5,
    *,
    flags: RestartFlags,
    host: Hosts = None,
) -> None:
    """Write the steps for these groups as they are now: checks, plan, bounces, end, with commands and ways back.

    Without -o it prints Markdown. A group whose phase is unknown is named, and does not hold up the others. The steps
    contain the restart command (--command or --kubernetes) and its test; without them, the first step defines both.
    """
    files = _new_files(output or [])
    name = next((str(f) for f in files if f.suffix == ".json"), "runbook.json")
    planned, view, names = groups.select(connect, to)
    restart = flags.restart(host)
    wait = connect.waits

    def make(each: str) -> runbooks.Runbook:
        arguments = replace(
            runbook_arguments(connect, planned, view, name, restart, each),
            retention_ms=view.cluster.offsets_retention_ms(),
        )
        if len(names) > 1:
            note(f"group {each}: watching it for its phase")
        return runbooks.write_runbook(
            view,
            each,
            to,
            start=start,
            window=ObservationWindow(window_s, poll_s, wait.for_commits),
            arguments=arguments,
        )

    books, failed = books_of(names, make)
    if books:
        _write_books(books, files, name)
    elif not failed:
        note("no selected group has a live member in ZooKeeper, so there is nothing to restart")
    if failed:
        note(f"no runbook for {count_of(len(failed), 'group')}: {', '.join(failed)}")
        raise typer.Exit(FAILED)


def books_of(names: Sequence[str], make: Callable[[str], runbooks.Runbook]) -> tuple[list[runbooks.Runbook], list[str]]:
    """Returns the runbooks of the groups, and the groups that have none. Prints the reason of each of these groups;
    raises it if there is only one group."""
    books, failed = [], []
    for each in names:
        try:
            books.append(make(each))
        except (GateRefused, InvalidWorkload) as error:
            if len(names) == 1:
                raise
            why = f"{error.what}: {error.why}" if isinstance(error, InvalidWorkload) else error.why
            note(f"  ! group {each}: {why}" + (f" ({for_command_line(error.hint)})" if error.hint else ""))
            failed.append(each)
    return books, failed


def runbook_arguments(
    connect: ConnectFlags,
    planned: PlanOfGroups | None,
    view: GroupView,
    baseline: str,
    restart: Restart,
    group: str,
) -> RunbookArguments:
    """Returns the arguments of the commands that the runbook of a group contains."""
    from offsetmgr.migration.runbook_commands import RunbookArguments
    from offsetmgr.stores.uri import bootstrap_of, zookeeper_of

    address = zookeeper_of(view.zookeeper.uri, connect.resolved.connection) or ""
    bootstrap = bootstrap_of(view.kafka.uri, connect.resolved.connection) or ""
    followups = connect.followup_options
    restart_options, test_options = restart.options(group)
    servers = f"--zookeeper {quote(address)} --bootstrap-server {quote(bootstrap)}{followups}"
    by_plan = planned is not None and not (connect.flags.zookeeper or connect.flags.store)
    plan = str(planned.plan.path) if planned is not None else None
    return RunbookArguments(
        options=f"--plan {quote(plan)}{followups}" if by_plan and plan else servers,
        servers=servers,
        followups=followups,
        zookeeper=view.zookeeper.uri,
        kafka=view.kafka.uri,
        restart=restart_options,
        test=test_options,
        rollout=restart.rollout.of_group(group) if restart.rollout else None,
        baseline=baseline,
        plan=plan,
    )


_SUFFIXES = (".json", ".html", ".md")


def _new_files(files: list[Path]) -> list[Path]:
    """Returns the files, with a baseline if they have none. Raises `UsageError` or `FileFailure` if one of them cannot
    be created."""
    if files and not any(file.suffix == ".json" for file in files):
        files = [files[0].with_suffix(".json"), *files]
    for file in files:
        if file.suffix not in _SUFFIXES:
            raise UsageError(f"-o {file}", "the name ends neither in .json nor in .html nor in .md")
        if file.exists():
            raise UsageError(
                f"-o {file}", "exists already, and a baseline must not be overwritten", "name another file"
            )
        if not file.parent.is_dir():
            raise FileFailure(f"-o {file}", f"{file.parent} is no directory")
    return files


def _write_books(books: list[runbooks.Runbook], files: list[Path], baseline: str) -> None:
    title, parts = text.runbook_title(books), text.runbook_parts(books)
    for file in files:
        match file.suffix:
            case ".json":
                written = json.dumps(runbooks.to_json(books), indent=2) + "\n"
            case ".html":
                written = to_html(title, parts)
            case _:
                written = to_markdown(title, parts)
        hint = "name another file, in a directory that can be written"
        with os_error_as(FileFailure, f"-o {file}", hint), file.open("x", encoding="utf-8") as out:
            out.write(written)
        note(f"wrote {file}")
    if not files:
        write_text(to_markdown(title, parts))
        note(f"warning: the steps need the baseline {baseline}, which was not written; to write it, add -o {baseline}")
    for book in books if files else ():
        for warning in book.warnings:
            note(f"warning: {f'group {book.group}: ' if len(books) > 1 else ''}{warning.shortened}")


@app.command()
@connected
@many_clusters
def check(
    connect: ConnectFlags,
    group: OneGroup,
    phase: Annotated[CommitMode, opt("--phase", None, "The phase that every member should be in.")],
    baseline: Baseline = None,
    window_s: Annotated[float, seconds_option("--window", "Maximum time to watch.")] = 180,
    poll_s: Poll = 0.5,
    *,
    evidence: EvidenceFlags,
    plan: Plan = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Check by evidence that every member is in a phase; exit code 0 only then.

    The command watches commits, and stops as soon as the result is certain. With --plan, the plan's journal records a
    phase that passed, for members that another tool restarts.
    """
    connect.reject_for_many({"--plan": plan, "--baseline": baseline}, "the file belongs to one cluster")
    planned = PlanOfGroups.open(plan)
    if planned is not None:
        group = planned.select_one(group)
    view = view_of(connect, planned)
    report = runbooks.check_phase(
        view,
        group,
        phase,
        baseline=baselines_of(view, baseline)(group),
        rules=evidence.thresholds(),
        window=ObservationWindow(window_s, poll_s, connect.waits.for_commits),
    )
    _show_report(report, output)
    if planned is not None and report.passed:
        planned.record([phase_record(planned.names[group], report)])
    fail_if(not report.passed)


def _show_report(report: PhaseReport, output: OutputFormat) -> None:
    several = COLLECTOR.get() is not None
    if output is OutputFormat.TABLE and not several:
        write_text("\n".join(map(printable, text.report_lines(report))))
    elif output is OutputFormat.JSON and not several:
        print(json.dumps(text.report_json(report), indent=2))
    else:
        members = (("member", m.member, m.ok, m.confidence.value, m.why, m.remedy) for m in report.members)
        rows = [
            *members,
            *(("partition", str(p.partition), p.ok, p.confidence.value, p.why, p.remedy) for p in report.partitions),
        ]
        names = ("kind", "name", "ok", "known", "evidence", "remedy")
        write_rows([Column(name) for name in names], rows, output)


app.add_typer(runbook_bounce.app)
