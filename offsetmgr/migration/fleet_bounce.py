"""Rolling bounces of several groups, one group after the other. A group whose bounce is refused or fails does not hold
up the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from offsetmgr.core.errors import GateRefused, GroupNotFound, MalformedData, OffsetMgrError, UsageError
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.operation_log import OperationLog, OperationStart, shortened
from offsetmgr.groups.saved_edit import EditOrigin, caused_by
from offsetmgr.migration.bounce import bounce
from offsetmgr.migration.bounce_checkpoint import load
from offsetmgr.migration.bounce_plan import BounceOutcome, BounceResult, BounceSpec, plan_bounce
from offsetmgr.migration.group_observer import GroupView
from offsetmgr.migration.journal import JournalRecord
from offsetmgr.migration.phase_inference import PhaseReport
from offsetmgr.migration.precheck import missing_evidence
from offsetmgr.migration.runbook import check_phase

OPERATION: Final = EditOrigin("runbook bounce")


class GroupBounce(NamedTuple):
    """The bounce of one group. ``error`` is the reason for which the bounce did not begin. If both fields are None, the
    state file shows that the bounce is finished."""

    group: str
    result: BounceResult | None = None
    error: OffsetMgrError | None = None

    @property
    def ok(self) -> bool:
        """Whether the bounce was executed, planned or finished earlier."""
        good = (BounceOutcome.DONE, BounceOutcome.PLANNED)
        return self.error is None and (self.result is None or self.result.outcome in good)

    @property
    def is_stopped(self) -> bool:
        """Whether the bounce was stopped on request."""
        return self.result is not None and self.result.outcome is BounceOutcome.STOPPED


def bounce_groups(
    view: GroupView,
    specs: Iterable[BounceSpec],
    state_path: Path,
    *,
    execute: bool,
    several: bool = True,
    progress: Callable[[str], None] = lambda _text: None,
    stop: Callable[[], bool] = lambda: False,
    origin: EditOrigin = OPERATION,
) -> Iterator[GroupBounce]:
    """Executes, resumes or plans the bounces, and yields each result. All bounces share the state file.

    A refused gate, a failed restart and a closed gate concern only their group. Any other error, such as an unreachable
    server, is raised, because it concerns all groups. With ``several``, the progress names each group, and bounces that
    the state file shows as finished are skipped if their groups are still in the phase; otherwise such a bounce is an
    error. Once ``stop`` returns True, no further bounce begins. With ``execute``, the operation log records the bounces
    as ``origin``.
    """
    run = partial(_bounce_each, view, state_path, execute, several, progress, stop, origin)
    specs = list(specs)
    if not execute:
        yield from run(specs)
        return
    names = [spec.group for spec in specs]
    stores = (view.zookeeper.uri, view.kafka.uri)
    files = (str(state_path.absolute()),)
    start = OperationStart(origin.operation, stores, shortened(names), len(names), 0, files, reason=origin.reason)
    with OperationLog().recorded(start) as recorded:
        for one in run(specs):
            recorded.failed += not one.ok and not one.is_stopped
            recorded.interrupted = recorded.interrupted or one.is_stopped
            recorded.written += sum(copy.outcome == "written" for copy in (one.result.copies if one.result else ()))
            yield one
        recorded.interrupted = recorded.interrupted or stop()


def _bounce_each(
    view: GroupView,
    state_path: Path,
    execute: bool,
    several: bool,
    progress: Callable[[str], None],
    stop: Callable[[], bool],
    origin: EditOrigin,
    specs: Iterable[BounceSpec],
) -> Iterator[GroupBounce]:
    for spec in specs:
        spec.check_command()
        if stop():
            return
        try:
            if several and _is_done(view, spec, state_path, progress):
                yield GroupBounce(spec.group)
                continue
        except (GroupNotFound, MalformedData, UsageError) as error:
            yield GroupBounce(spec.group, error=error)
            continue
        if several:
            progress(f"group {spec.group}")
        indent = "  " if several else ""
        try:
            if execute:
                with caused_by(origin):
                    result = bounce(view, spec, state_path, progress=partial(_indented, progress, indent), stop=stop)
            else:
                result = plan_bounce(view, spec, state_path)
        except (GateRefused, GroupNotFound, MalformedData, UsageError) as error:
            yield GroupBounce(spec.group, error=error)
            continue
        found = GroupBounce(spec.group, result)
        yield found
        if found.is_stopped:
            return


def _is_done(view: GroupView, spec: BounceSpec, state_path: Path, progress: Callable[[str], None]) -> bool:
    """Returns whether the state file shows that the bounce is finished, and the group is still in its phase: the
    members are those of the end of the bounce, or they commit as the phase does.

    Raises `UsageError` if the group may have left the phase since, or if the file belongs to another cluster.
    """
    saved = load(state_path, spec.group)
    if saved is None or saved.finished_ms is None or saved.change.to is not spec.to:
        return False
    view.require_stores(f"state file {state_path}", saved.baseline)
    live = view.registry.members(spec.group, view.cluster.topics).members
    if live and all(saved.finished_members.get(m.id) == m.czxid for m in live.values()):
        return True
    progress(f"group {spec.group}: restarted since the finished bounce in {state_path}; watching its commits")
    report = check_phase(view, spec.group, spec.to, rules=spec.rules, window=spec.window)
    if report.passed:
        return True
    raise UsageError(
        f"state file {state_path}",
        f"the bounce {saved.change} of group {spec.group} in it is finished, and its members have restarted since; they"
        f" are not known to be in phase {spec.to.value}: {missing_evidence(report)}",
        "name another one with --state for a new bounce",
    )


def _indented(progress: Callable[[str], None], indent: str, text: str) -> None:
    progress(f"{indent}{text}")


def journal_record(group: str, found: GroupBounce) -> JournalRecord | None:
    """Returns the record of a bounce for the journal of a plan; None if the bounce was stopped, only planned, or
    finished earlier. ``group`` is the group's name in the plan."""
    if found.error is not None:
        return {
            "kind": "group-blocked",
            "group": group,
            "step": found.error.what,
            "why": found.error.why,
            "hint": found.error.hint,
        }
    if (result := found.result) is None or result.outcome in (BounceOutcome.STOPPED, BounceOutcome.PLANNED):
        return None
    if result.outcome is BounceOutcome.FAILED:
        step = f"bounce {result.change}"
        return {"kind": "group-blocked", "group": group, "step": step, "why": result.why, "hint": result.hint}
    assert result.report is not None  # a finished bounce has passed the gate of the whole group
    return phase_record(group, result.report)


def phase_record(group: str, report: PhaseReport) -> JournalRecord:
    """Returns the record of a phase that every member of the group has reached."""
    known = ", ".join(sorted({member.confidence.value for member in report.members}))
    why = f"{count_of(len(report.members), 'member')} committed as phase {report.phase.value} does ({known})"
    return {"kind": "group-phase", "group": group, "phase": report.phase.value, "why": why}
