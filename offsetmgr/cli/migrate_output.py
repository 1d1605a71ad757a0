"""The output of the commands about plans."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.app.plan_text import SHOWN, time_text
from offsetmgr.app.ui import Interrupted
from offsetmgr.cli.errors import fail_if, worded
from offsetmgr.cli.render import PARTITION, Column, note
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.app.migrate import (
        GroupGate,
        GroupOutcome,
        GroupPlan,
        MirrorState,
        MirrorStatus,
        PlanSummary,
        RefreshReport,
        Report,
        VerifySummary,
    )

STEP_COLUMNS: Final = (
    Column("group"),
    Column("target_group", optional=True),
    *PARTITION,
    Column("action"),
    Column("source", right=True),
    Column("target", right=True),
    Column("after", right=True, rank=11),
    Column("note", optional=True),
)

VERIFY_COLUMNS: Final = (
    Column("group", get="target_group"),
    Column("topic", get="tp.topic"),
    Column("partition", right=True, title="PART", get="tp.partition"),
    Column("status"),
    Column("evidence", rank=12),
    Column("expected", right=True, rank=11),
    Column("source", right=True),
    Column("target", right=True),
    Column("log_end", right=True, rank=13),
    Column("detail", optional=True),
)


def step_rows(groups: Iterable[GroupPlan]) -> Iterator[tuple[Any, ...]]:
    """Yields each step of a plan as a row. If a group could not be planned, its only row contains the error."""
    for group in groups:
        names = group.group, group.target_group if group.target_group != group.group else None
        if group.error:
            yield (*names, None, None, "error", None, None, None, group.error)
        for step in group.steps:
            offsets = (value.offset if value else None for value in (step.source, step.target, step.after))
            yield (*names, *step.tp, step.action.value, *offsets, step.note)


def show_refresh(report: RefreshReport, expires: str) -> None:
    """Prints the number of groups whose offsets were committed again, and the first `SHOWN` failures. ``expires`` is
    the new expiry; empty if it is unknown."""
    until = f"; without a consumer they expire about {expires}" if expires else ""
    note(f"{count_of(len(report.renewed), 'group')} renewed: their offsets were committed again, unchanged{until}")
    if report.in_use:
        note(f"{count_of(len(report.in_use), 'group')} in use: the offsets of a group with members do not expire")
    for error in list(report.failed.values())[:SHOWN]:
        note(f"  ! {worded(error)}")
    if report.failed:
        note(f"NOT renewed: {count_of(len(report.failed), 'group')}")


def show_report(report: Report, verb: str) -> None:
    """Prints the results of a run, and at most `SHOWN` failures."""
    parts = [f"{count_of(report.written, 'offset')} {verb} in {count_of(report.changed, 'group')}"]
    if report.unchanged:
        parts.append(f"{report.unchanged} unchanged")
    if report.skipped:
        parts.append(f"{count_of(report.skipped, 'group')} completed by an earlier run")
    note("; ".join(parts))
    if report.not_atomic:
        note(
            f"not atomic: {count_of(report.not_atomic, 'group')} written without a group lock (new in Kafka, or with"
            " old consumers); the journal names the checks that replaced it"
        )
    lines = [line for outcome in report.failed.values() for line in _failure_lines(outcome)]
    for line in lines[:SHOWN]:
        note(line)
    for group, why in list(report.closed.items())[:SHOWN]:
        note(f"  ! {group} left as it is: {for_command_line(why)}")
    if lines:
        failed = sum(len(outcome.failed) for outcome in report.failed.values())
        note(f"failed: {count_of(failed, 'partition')} of {count_of(len(report.failed), 'group')}; the rest is done")


def _failure_lines(outcome: GroupOutcome) -> list[str]:
    """Returns one line for each failed partition; one line if all partitions of a group failed for one reason."""
    group = outcome.target_group
    if members := outcome.active_members:
        how = "is locked by another run of offsetmgr" if outcome.lock_ends_s else "is active"
        return [f"  ! {group} {how}: {'; '.join(members)}"]
    reasons = {tp: for_command_line(error.why or error.what) for tp, error in sorted(outcome.failed.items())}
    if len(reasons) > 1 and len({str(error) for error in outcome.failed.values()}) == 1:
        return [f"  ! {group}, {count_of(len(reasons), 'partition')}: {next(iter(reasons.values()))}"]
    return [f"  ! {group} {tp}: {why}" for tp, why in reasons.items()]


def show_verify_summary(summary: VerifySummary) -> None:
    total = sum(summary.counts.values())
    for status, count in sorted(summary.counts.items()):
        note(f"  {count:>8} {status}{'' if status.ok else '   <-- difference'}")
    if not total:
        note("nothing to verify: the plan and the stores have no offsets")
    elif summary.ok:
        groups = count_of(summary.groups, "group")
        note(f"verified: {count_of(total, 'partition')} of {groups}, read afresh on both sides")
        if summary.inferred:
            note(f"  {summary.inferred} of them by inference: only the partition map relates offset and byte position")
    else:
        wrong = sum(count for status, count in summary.counts.items() if not status.ok)
        note(f"NOT verified: {wrong:,} of {count_of(total, 'partition')} differ")


def show_gates(gates: Sequence[GroupGate]) -> None:
    """Prints the reason why a group may be finalized, for each of the first `SHOWN` groups."""
    for gate in gates[:SHOWN]:
        accepted = f"; accepted: {gate.accepted}" if gate.accepted else ""
        note(f"  {gate.group}: {gate.detail} ({gate.evidence}){accepted}")
    if len(gates) > SHOWN:
        note(f"  ... and {count_of(len(gates) - SHOWN, 'more group')}; the journal holds the evidence of each")


def gates_text(gates: Sequence[GroupGate]) -> str:
    """Returns the evidence with which the check of the members passed, for all groups."""
    found = Counter(gate.evidence.value for gate in gates)
    passed = ", ".join(f"{name} for {count_of(count, 'group')}" for name, count in sorted(found.items(), reverse=True))
    accepted = sum(bool(gate.accepted) for gate in gates)
    extra = f", with partitions accepted by --accept-idle in {count_of(accepted, 'group')}" if accepted else ""
    return f"no member found that commits to the source alone ({passed}{extra})"


def mirror_line(status: MirrorStatus) -> str:
    states = ", ".join(f"{count} {state}" for state, count in sorted(status.states.items()))
    lag = f"lag {status.lag}" + (f" + ? ({count_of(status.unknown, 'group')} unknown)" if status.unknown else "")
    rejected = f"; {count_of(status.recreated, 'partition')} of recreated topics refused" if status.recreated else ""
    copied = f"{count_of(status.copied, 'offset')} copied"
    return f"{time_text(status.at_ms)}  {states or 'no groups yet'}; {copied}, {lag}{rejected}"


MIRROR_COLUMNS: Final = (
    Column("group"),
    Column("target_group"),
    Column("state"),
    Column("copied", right=True),
    Column("lag", right=True),
    Column("detail", optional=True),
)


class MirrorLine:
    """Prints the state of a running mirror on stderr. On a terminal, each state overwrites the previous one. Otherwise
    a new line is printed every `EVERY_MS` milliseconds, and whenever groups change state."""

    EVERY_MS: Final = 10_000

    def __init__(self) -> None:
        self._moving = sys.stderr.isatty()
        self._next = 0
        self._states: Mapping[MirrorState, int] = {}

    def show(self, status: MirrorStatus, *, last: bool = False) -> None:
        if self._moving:
            sys.stderr.write(f"\r\x1b[K{mirror_line(status)}" + ("\n" if last else ""))
            sys.stderr.flush()
        elif last or status.at_ms >= self._next or status.states != self._states:
            self._next = status.at_ms + self.EVERY_MS
            self._states = status.states
            note(mirror_line(status))


def print_next_step(report: Report, then: str) -> None:
    if report.failed:
        note("run the same command again to retry the failed groups")
    elif not report.interrupted:
        note(then)


def end_of_planning(summary: PlanSummary, following: str, *, failed: object = False) -> None:
    """Prints the next command of a new plan, unless the plan refuses everything. Raises `typer.Exit` if it does, if it
    refuses a whole group, or if ``failed``."""
    if not summary.refuses_all:
        note(following)
    elif not summary.actions["refuse-byte-position"]:  # a note names the map that these need
        note("nothing can be applied: the plan refuses everything; correct the causes above, then plan again")
    fail_if(failed or summary.failed_groups or summary.refuses_all)


def option_text(words: Iterable[str]) -> str:
    """Returns words of a command line as text, each with a leading space."""
    return "".join(f" {shlex.quote(word)}" for word in words)


def exit_if_interrupted(report: Report) -> None:
    """Raises `Interrupted` if Ctrl-C stopped the run before it was complete."""
    if report.interrupted:
        raise Interrupted("started writes are finished and recorded; run the same command again to continue")
