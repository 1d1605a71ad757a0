"""``offsetmgr runbook``: writes, checks and executes runbooks for rolling bounces of groups of old consumers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from offsetmgr.app import runbook
from offsetmgr.app.migrate import PlanSelection
from offsetmgr.app.runbook import (
    BounceOptions,
    EvidenceThresholds,
    GroupBounce,
    ObservationWindow,
    PhaseReport,
    Restart,
)
from offsetmgr.app.ui import Interrupted
from offsetmgr.cli.connect_flags import ConnectFlags, RunFlags, command
from offsetmgr.cli.options import (
    ExcludeGroup,
    FormatOption,
    GroupsOption,
    OneGroup,
    PlanScope,
    WaveOption,
    command_group,
    file_to_write,
    flag,
    opt,
    seconds_option,
)
from offsetmgr.cli.render import (
    COLLECTOR,
    Column,
    OutputFormat,
    fail_if,
    note,
    rows_of,
    write_document,
    write_rows,
    write_text,
)
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.document import to_markdown
from offsetmgr.core.errors import UsageError
from offsetmgr.core.plurals import printable

app = command_group("Rolling bounces of old consumer groups between ZooKeeper and Kafka: write, check, bounce.")

Baseline = Annotated[
    Path | None,
    opt(
        "--baseline", "FILE", "The runbook JSON that was written before the bounce; it lists the members at that time."
    ),
]
Plan = Annotated[
    Path | None,
    opt(
        "--plan",
        "PLAN",
        "A migration plan: names the servers, selects groups, and its journal records each group's phase.",
    ),
]
Poll = Annotated[float, opt("--poll", "SECONDS", "Polling interval.", min=0.05)]
Hosts = Annotated[
    list[str] | None,
    opt("--host", "MEMBER=HOST", "The host of a member with a configured id; repeatable."),
]


class RestartFlags(NamedTuple):
    """The options that restart members, or test the restart."""

    command: Annotated[
        str | None,
        opt(
            "--command",
            "TEMPLATE",
            "Shell command that restarts one member; {host} {member} {group} {phase} {settings} are replaced.",
        ),
    ] = None
    test_command: Annotated[
        str | None,
        opt(
            "--test-command",
            "TEMPLATE",
            "Shell command that tests the restart command of a member and changes nothing, such as 'ssh {host} true'.",
        ),
    ] = None
    kubernetes: Annotated[
        str | None,
        opt(
            "--kubernetes",
            "WORKLOAD",
            "In place of --command: restart deployment/NAME or statefulset/NAME with kubectl; {group} is replaced.",
        ),
    ] = None
    namespace: Annotated[str | None, opt("--namespace", "NAME", "The namespace of the workload.")] = None
    kube_context: Annotated[str | None, opt("--kube-context", "NAME", "The context of kubectl.")] = None
    configure: Annotated[
        str | None,
        opt(
            "--configure",
            "TEMPLATE",
            "Command that changes the settings of the workload before its rollout; {settings} {phase} {group} are "
            "replaced. Default: kubectl set env, which sets OFFSETS_STORAGE and DUAL_COMMIT_ENABLED.",
        ),
    ] = None

    def restart(self, pairs: list[str] | None, timeout_s: float = 600) -> Restart:
        """Returns the restart. ``pairs`` are the values of ``--host``."""
        hosts: dict[str, str] = {}
        for pair in pairs or []:
            member, equals, name = pair.partition("=")
            if not (equals and member and name):
                raise UsageError(f"--host {pair}", "is not MEMBER=HOST")
            hosts[member] = name
        return Restart(*self, hosts, timeout_s)


class EvidenceFlags(NamedTuple):
    """The options that decide how a gate is watched, and which evidence passes it."""

    poll: Poll = 0.5
    quiet: Annotated[
        float,
        opt("--quiet", "SECONDS", "Time without a change after which a partition counts as idle.", min=0),
    ] = 10
    accept_idle: Annotated[
        bool,
        flag("--accept-idle", "Accept partitions without traffic if the offsets show that nothing is lost."),
    ] = False
    accept_spare: Annotated[
        bool,
        flag(
            "--accept-spare",
            "Accept new members that own no partition, although there is no evidence of where they commit.",
        ),
    ] = False

    def thresholds(self) -> EvidenceThresholds:
        return EvidenceThresholds(self.accept_idle, self.accept_spare, quiet_ms=int(self.quiet * 1000))

    def window(self, seconds: float) -> ObservationWindow:
        return ObservationWindow(seconds, self.poll)


class RunbookGroups(NamedTuple):
    """The options that select groups for a runbook or a bounce."""

    group: GroupsOption = None
    wave: WaveOption = None
    exclude_group: ExcludeGroup = None
    plan: Plan = None

    def selection(self) -> PlanSelection:
        return PlanScope(self.group, self.wave, self.exclude_group).selection()


@command(app, "write", one="a runbook belongs to the groups of one cluster")
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
    found = runbook.write(
        connect,
        to,
        groups.selection(),
        plan=groups.plan,
        start=start,
        files=output or (),
        window=ObservationWindow(window_s, poll_s),
        restart=flags.restart(host),
    )
    if found.books and not output:
        write_text(to_markdown(*found.page()))
    fail_if(found.failed)


@command(app, "check", many=True)
def check(
    connect: ConnectFlags,
    group: OneGroup,
    phase: Annotated[CommitMode, opt("--phase", None, "The phase that every member should be in.")],
    baseline: Baseline = None,
    window_s: Annotated[float, seconds_option("--window", "Maximum time to watch.")] = 180,
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
    rules, window = evidence.thresholds(), evidence.window(window_s)
    report = runbook.check(connect, group, phase, plan=plan, baseline=baseline, rules=rules, window=window)
    _show_report(report, output)
    fail_if(not report.passed)


def _show_report(report: PhaseReport, output: OutputFormat) -> None:
    several = COLLECTOR.get() is not None
    if output.for_people and not several:
        write_text("\n".join(map(printable, report.lines())))
    elif output == OutputFormat.JSON and not several:
        write_document(report.to_json())
    else:
        rows: list[tuple[object, ...]] = [
            (kind, str(name), one.ok, one.confidence.value, one.why, for_command_line(one.remedy))
            for kind, name, one in report.results
        ]
        if (found := report.location) is not None and report.next is not None:
            why = f"phase {found.phase}: {found.why}"
            rows.append(("location", report.group, None, found.confidence.value, why, report.next.text()))
        names = ("kind", "name", "ok", "known", "evidence", "remedy")
        write_rows([Column(name) for name in names], rows, output)


@command(app, "bounce")
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
    *,
    evidence: EvidenceFlags,
    restart_timeout_s: Annotated[
        float,
        opt("--restart-timeout", "SECONDS", "Maximum time until a restarted member is back.", min=0),
    ] = 120,
    command_timeout_s: Annotated[
        float, opt("--command-timeout", "SECONDS", "Maximum run time of the command.", min=0)
    ] = 600,
    execution: RunFlags,
) -> None:
    """Restart the members one at a time into a phase, with a gate after each.

    With --kubernetes, one rollout restarts all members, and the gate follows it. With --test-command and without
    --execute, the command only tests the access to each member.

    A group's bounce stops at the first failed restart or gate; the same command line resumes there. Several groups
    follow one another and share one state file, and a group that stops does not hold up the others.
    """
    run = runbook.bounce(
        connect,
        to,
        groups.selection(),
        plan=groups.plan,
        restart=flags.restart(host, command_timeout_s),
        options=BounceOptions(
            start,
            baseline,
            start_baseline,
            state,
            evidence.thresholds(),
            evidence.window(window_s),
            restart_timeout_s,
        ),
        execute=execution.execute,
        reason=execution.reason or "",
    )
    if run.tests:
        write_rows(TESTS, rows_of(TESTS, run.tests), execution.output)
    elif run.groups:
        _show_results(run.found, execution.output)
    for line in run.lines():
        note(line)
    if run.stopped:
        raise Interrupted(f"{run.stopped}; the same command line resumes")
    fail_if(not run.ok)


TESTS = (
    Column("group"),
    Column("member"),
    Column("host"),
    Column("status"),
    Column("seconds", right=True),
    Column("command"),
)


def _show_results(found: Sequence[GroupBounce], output: OutputFormat) -> None:
    results = [one.result for one in found if one.result is not None]
    several = len(found) > 1
    if output == OutputFormat.JSON:
        rows = [result.to_json() for result in results]
        write_document(rows if several else rows[0] if rows else [])
    else:
        columns = [Column("group")] if several else []
        columns += [Column("member"), Column("host"), Column("status"), Column("command"), Column("successors")]
        lines = [
            (*([result.group] if several else []), s.member, s.host, s.status.value, s.command, " ".join(s.successors))
            for result in results
            for s in result.steps
        ]
        write_rows(columns, lines, output)
