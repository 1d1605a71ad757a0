"""``offsetmgr runbook bounce``: restarts the members of one or more groups into a phase."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from offsetmgr.app.plan_text import SHOWN
from offsetmgr.app.ui import Interrupted
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import fail_if
from offsetmgr.cli.options import Execute, FormatOption, Reason, Yes, file_to_write, opt, seconds_option
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.cli.runbook_options import (
    Baseline,
    EvidenceFlags,
    Hosts,
    PlanOfGroups,
    Poll,
    Restart,
    RestartFlags,
    RunbookGroups,
    baselines_of,
    hosts_of,
    show_command_tests,
)
from offsetmgr.cli.stop_signals import stop_on_signal
from offsetmgr.cli.terminal import confirm
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.groups.operation_log import own_command_line
from offsetmgr.groups.saved_edit import EditOrigin
from offsetmgr.migration import bounce_plan
from offsetmgr.migration import runbook_render as text
from offsetmgr.migration.baseline_file import NoBaseline
from offsetmgr.migration.bounce_checkpoint import BounceState, belongs_to_earlier, is_unchanged, load_all
from offsetmgr.migration.fleet_bounce import GroupBounce, bounce_groups, journal_record
from offsetmgr.migration.group_observer import GroupView, ObservationWindow
from offsetmgr.migration.observation import RegisteredMember
from offsetmgr.migration.precheck import GateClosed
from offsetmgr.migration.rollout import KILL_AFTER_S, InvalidWorkload

app = typer.Typer()


@app.command()
@connected
def bounce(
    connect: ConnectFlags,
    to: Annotated[CommitMode, opt("--to-phase", None, "The phase that every member is restarted into.")],
    flags: RestartFlags,
    groups: RunbookGroups,
    start: Annotated[
        CommitMode | None,
        opt("--from-phase", None, "Present phase of the group (default: inferred)."),
    ] = None,
    baseline: Baseline = None,
    start_baseline: Annotated[
        Path | None,
        opt(
            "--start-baseline",
            "FILE",
            "Runbook or state file of the previous bounce, for the gate before the first step.",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        opt(
            "--state",
            "FILE",
            "Save progress in FILE, so that the command can be resumed (default: bounce-GROUP-PHASE.json, with "
            "--plan bounce-PLAN-PHASE.json). The output of the commands goes to a file of the same name with the "
            "suffix .log.",
            callback=file_to_write,
        ),
    ] = None,
    host: Hosts = None,
    window_s: Annotated[float, seconds_option("--window", "Maximum time to watch for each gate.")] = 180,
    poll_s: Poll = 0.5,
    *,
    evidence: EvidenceFlags,
    restart_timeout_s: Annotated[
        float,
        opt("--restart-timeout", "SECONDS", "Maximum time until a restarted member is back.", min=0),
    ] = 120,
    command_timeout_s: Annotated[
        float, opt("--command-timeout", "SECONDS", "Maximum run time of the command.", min=0)
    ] = 600,
    execute: Execute = False,
    yes: Yes = False,
    reason: Reason = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Restart the members one at a time into a phase, with a gate after each.

    With --kubernetes, one rollout restarts all members, and the gate follows it. With --test-command and without
    --execute, the command only tests the access to each member.

    A group's bounce stops at the first failed restart or gate; the same command line resumes there. Several groups
    follow one another and share one state file, and a group that stops does not hold up the others.
    """
    with _progress_on_failure(state or Path(f"{_stem(groups.plan, groups.group or [], to)}.json") if execute else None):
        planned, view, names = groups.select(connect, to)
    warn_of_unapplied(planned, names, to)
    if not names:
        note("no selected group has a live member in ZooKeeper, so there is nothing to restart")
        return
    restart = flags.restart(host, command_timeout_s)
    _check_workload(restart, names)
    waits = connect.waits
    baseline_of, start_baseline_of = baselines_of(view, baseline), baselines_of(view, start_baseline)

    def spec(name: str) -> bounce_plan.BounceSpec:
        return bounce_plan.BounceSpec(
            name,
            to,
            restart.command or "",
            start=start,
            baseline=baseline_of(name),
            start_baseline=start_baseline_of(name),
            hosts=hosts_of(host),
            rules=evidence.thresholds(),
            window=ObservationWindow(window_s, poll_s, waits.for_commits),
            restart_timeout_s=restart_timeout_s,
            command_timeout_s=command_timeout_s + (KILL_AFTER_S if restart.rollout else 0),
            rollout=restart.rollout.of_group(name) if restart.rollout else None,
            recorded=planned.recorded_phase(name) if planned else None,
            source=planned.source_phase() if planned else None,
            way_back=planned.way_back(connect, restart, name) if planned else "",
        )

    several = len(names) > 1 or bool(groups.wave)
    specs = [_prepared(spec, name) for name in names] if several else [spec(names[0])]
    state = state or _default_state(view, specs, groups.plan, to, several)
    if restart.test_command and not execute:
        show_command_tests(view, map(spec, names), restart.test_command, state.with_suffix(".log"), output)
        return
    if not (restart.command or restart.rollout):
        raise UsageError("bounce", "no restart command is given", "add --command TEMPLATE, or --kubernetes WORKLOAD")
    if execute:
        which = f"group {names[0]}" if len(names) == 1 else f"{len(names)} groups"
        confirm(f"restart each member of {which} into phase {to.value}, {restart.how}?", yes=yes)
    found: list[GroupBounce] = []
    interrupt = stop_on_signal("after this observation or restart; the same command line resumes")
    with _progress_on_failure(state if execute else None, names), interrupt as stop:
        origin = EditOrigin("runbook bounce", reason or "", connect.repeated())
        done = bounce_groups(
            view, specs, state, execute=execute, several=several, progress=note, stop=stop, origin=origin
        )
        for one in done:
            found.append(one)
            _report(one, planned if execute else None, several)
        _end(found, len(names), output)


@contextmanager
def _progress_on_failure(path: Path | None, names: Sequence[str] | None = None) -> Iterator[None]:
    """If the block fails, prints how far the bounces in the state file are, and the command line that resumes them.
    Without ``names``, the groups are not known yet, so the function prints nothing unless the failure is an outage."""
    try:
        yield
    except (OffsetMgrError, Interrupted, typer.Exit) as error:
        outage = isinstance(error, OffsetMgrError) and error.retriable
        if path is not None and (outage or names is not None):
            saved = [state for name, state in load_all(path).items() if names is None or name in names]
            for state in (one for one in saved if one.is_open):
                note(state.progress)
            if outage and not saved and names is not None:
                note("no bounce has begun, so no member was restarted")
            if (outage and names is not None) or any(state.is_open for state in saved):
                note(f"resume: {own_command_line()}")
        raise


def warn_of_unapplied(planned: PlanOfGroups | None, names: Sequence[str], to: CommitMode) -> None:
    """Prints the groups whose offsets are not applied, unless they go back."""
    if planned is not None and to.value != planned.plan.header.source.kind and (early := planned.not_applied(names)):
        note(f"warning: {count_of(len(early), 'group')} not applied, see `migrate apply`: {list_of(early, SHOWN)}")


def _prepared(make: Callable[[str], bounce_plan.BounceSpec], group: str) -> bounce_plan.BounceSpec | GroupBounce:
    """Returns the parameters of the bounce, or its error if a file has no baseline of the group, or if Kubernetes
    allows no workload of its name."""
    try:
        return make(group)
    except (NoBaseline, InvalidWorkload) as error:
        return GroupBounce(group, error=error)


def _report(one: GroupBounce, planned: PlanOfGroups | None, several: bool) -> None:
    """Records the bounce in the journal of the plan, if there is one, and prints its error."""
    if planned is not None and (record := journal_record(planned.names[one.group], one)):
        planned.record([record])
    if isinstance(one.error, GateClosed):
        for line in text.report_lines(one.error.report):
            note(line)
    if one.error is not None and several:
        note(
            f"  ! group {one.group}: {one.error}" + (f" ({for_command_line(one.error.hint)})" if one.error.hint else "")
        )


def _check_workload(restart: Restart, names: Sequence[str]) -> None:
    if restart.rollout is not None and len(names) > 1 and "{group}" not in restart.rollout.workload:
        why = f"it names one workload for {len(names)} groups"
        raise UsageError(f"--kubernetes {restart.rollout.workload}", why, "use {group} in its name, or name one group")


def _end(found: Sequence[GroupBounce], groups: int, output: OutputFormat) -> None:
    """Prints the results of ``groups`` groups. Raises an error or `Exit` if not all of them are done."""
    if groups == 1 and found and found[0].error is not None:
        raise found[0].error
    _show_results(found, output)
    if any(one.is_stopped for one in found) or len(found) < groups:
        stopped = next((one.result.why for one in found if one.is_stopped and one.result), "stopped on request")
        raise Interrupted(f"{stopped}; the same command line resumes")
    fail_if(not all(one.ok for one in found))


def _default_state(
    view: GroupView,
    specs: Sequence[bounce_plan.BounceSpec | GroupBounce],
    plan: Path | None,
    to: CommitMode,
    several: bool,
) -> Path:
    """Returns the name of the state file: after the plan, else after the group if there is only one. The name gets a
    number if this is a new bounce: if a bounce in the file has another baseline, or if all bounces are finished and a
    group has restarted since. With one group, a finished bounce is enough."""
    valid = [spec for spec in specs if isinstance(spec, bounce_plan.BounceSpec)]
    stem = _stem(plan, [spec.group for spec in specs], to)
    for number in count(2):
        path = Path(f"{stem}.json" if number == 2 else f"{stem}-{number - 1}.json")
        saved = load_all(path)
        found = [(spec, saved[spec.group]) for spec in valid if spec.group in saved]
        if any(belongs_to_earlier(state, spec.baseline) for spec, state in found):
            note(f"the bounce in {path} has another baseline, so this is a new one")
        elif len(found) == len(valid) and _needs_new_file(view, [state for _, state in found], several):
            note(f"the bounce in {path} is finished, so this is a new one")
        else:
            return path
    raise AssertionError


def _stem(plan: Path | None, groups: Sequence[str], to: CommitMode) -> str:
    """Returns the name of the state file without its number and suffix."""
    label = plan.stem if plan is not None else groups[0] if len(groups) == 1 else "groups"
    return f"bounce-{re.sub(r'[^A-Za-z0-9._-]', '_', label)}-{to.value}"


def _needs_new_file(view: GroupView, states: Sequence[BounceState], several: bool) -> bool:
    def members(state: BounceState) -> Mapping[str, RegisteredMember]:
        return view.registry.members(state.group, view.cluster.topics).members

    if any(state.finished_ms is None for state in states):
        return False
    return not several or not all(is_unchanged(state, members(state)) for state in states)


def _show_results(found: Sequence[GroupBounce], output: OutputFormat) -> None:
    results = [one.result for one in found if one.result is not None]
    several = len(found) > 1
    if output is OutputFormat.JSON:
        rows = [_result_json(result) for result in results]
        print(json.dumps(rows if several else rows[0] if rows else [], indent=2))
    else:
        columns = [Column("group")] if several else []
        columns += [Column("member"), Column("host"), Column("status"), Column("command"), Column("successors")]
        lines = [
            (*([result.group] if several else []), s.member, s.host, s.status.value, s.command, " ".join(s.successors))
            for result in results
            for s in result.steps
        ]
        write_rows(columns, lines, output)
    for result in results:
        _show_notes(result)
    for one in found:
        if one.result is None and one.error is None:
            note(f"group {one.group}: {one.note}")
    if any(result.outcome is bounce_plan.BounceOutcome.PLANNED for result in results):
        note("nothing was executed; --execute runs these commands, one at a time, with a gate after each")
    if several:
        failed = [one.group for one in found if not one.ok]
        named = f"; not done: {', '.join(failed)}" if failed else ""
        note(f"{count_of(len(found) - len(failed), 'group')} of {len(found)} done{named}")


def _show_notes(result: bounce_plan.BounceResult) -> None:
    if result.report is not None:
        for line in text.report_lines(result.report):
            note(line)
    for copy in result.copies:
        before = "no offset" if copy.before is None else copy.before
        note(f"copy to ZooKeeper: {copy.topic}-{copy.partition} {before} -> {copy.after}: {copy.outcome}")
    note(
        f"bounce {result.change} of group {result.group}: {result.outcome.value}"
        + (f": {result.why}" if result.why else "")
    )
    if result.hint:
        note(f"hint: {for_command_line(result.hint)}")


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
        "hint": for_command_line(result.hint),
    }
