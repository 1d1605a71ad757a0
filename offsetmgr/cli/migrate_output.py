"""The execution of plans from the command line, and the output of the commands about plans."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.app.ui import Interrupted, Waits
from offsetmgr.cli.errors import fail_if
from offsetmgr.cli.followup_commands import command_line
from offsetmgr.cli.render import GROUP_PARTITION, PARTITION, Column, note, progress
from offsetmgr.cli.stop_signals import stop_on_signal
from offsetmgr.cli.terminal import Terminal
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.commit_metadata import dropped_text
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import KEEPS_ACTIVE_OFFSETS
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.fleet import expiry_texts
from offsetmgr.migration.journaled_writer import JournaledWriter, Report
from offsetmgr.migration.plan import Action
from offsetmgr.migration.plan_file import PlanFile, PlanSummary
from offsetmgr.migration.plan_run import PlanRun, journaled_writer
from offsetmgr.migration.progress import MigrationState

if TYPE_CHECKING:
    from offsetmgr.core.clock_difference import ClockDifference
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.migration.finalize import GroupGate
    from offsetmgr.migration.journaled_writer import GroupOutcome, Report
    from offsetmgr.migration.mirror_group import GroupMirror, MirrorState, MirrorStatus
    from offsetmgr.migration.plan import GroupPlan, PlanHeader, PlanStep
    from offsetmgr.migration.plan_file import PlanFile, PlanSummary
    from offsetmgr.migration.refresh import RefreshReport
    from offsetmgr.migration.verify import PartitionResult, VerifySummary


SHOWN: Final = 20
"""Maximum number of printed lines of one kind. One more line replaces all further lines."""

MEANING: Final[Mapping[str, str]] = {
    Action.COPY: "will be written",
    Action.REWIND: "will be moved BACK (a rewind was allowed)",
    Action.SKIP_EQUAL: "are equal already",
    Action.KEEP_NEWER: "stay: the target is ahead, and newer or kept by --if-ahead",
    Action.TARGET_ONLY: "stay: only the target has a commit",
    Action.REFUSE_REWIND: "refused: the target is ahead, and is not known to be newer",
    Action.REFUSE_NEWER: "refused: the target was written last",
    Action.REFUSE_TOPIC_MISSING: "refused: the topic does not exist in Kafka",
    Action.REFUSE_PARTITION_MISSING: "refused: the partition does not exist in Kafka",
    Action.REFUSE_OUT_OF_RANGE: "refused: outside the log",
    Action.REFUSE_BYTE_POSITION: "refused: is a byte position of Kafka 0.7, not an offset",
    Action.REFUSE_UNSUPPORTED_TARGET: "refused: is an offset, but the target holds byte positions of Kafka 0.7",
    Action.REFUSE_UNREADABLE: "refused: one side could not be read; fix the cause and create a new plan, or exclude it",
    Action.REFUSE_RECREATED: "refused: the topic was recreated after the commit",
    Action.REFUSE_LOST: "refused: the offset was copied, and was deleted or has expired since",
}

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
    *GROUP_PARTITION,
    Column("status"),
    Column("evidence", rank=12),
    Column("expected", right=True, rank=11),
    Column("source", right=True),
    Column("target", right=True),
    Column("log_end", right=True, rank=13),
    Column("detail", optional=True),
)


def moment(ms: int) -> str:
    """Formats a time in UTC, with a precision of seconds."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def step_rows(groups: Iterable[GroupPlan]) -> Iterator[tuple[Any, ...]]:
    """Yields each step of a plan as a row. If a group could not be planned, its only row contains the error."""
    for group in groups:
        other = group.target_group if group.target_group != group.group else None
        if group.error:
            yield (group.group, other, None, None, "error", None, None, None, group.error)
        for step in group.steps:
            yield (group.group, other, step.tp.topic, step.tp.partition, step.action.value, *_offsets(step), step.note)


def _offsets(step: PlanStep) -> tuple[int | None, int | None, int | None]:
    source, target, after = (value.offset if value else None for value in (step.source, step.target, step.after))
    return source, target, after


def show_plan_header(header: PlanHeader) -> None:
    note(f"from    {header.source.uri}  ({header.source.kind} {header.source.id}, {header.source.how})")
    note(f"to      {header.target.uri}  ({header.target.kind} {header.target.id}, {header.target.how})")
    if header.compared is not None:
        note(f"cluster {header.compared.text(header.translate)}")
        note(f"topics  recreated after the commit: {header.recreation}")
    if header.cluster_id is None:
        note("logs    not checked: no --bootstrap-server, so topics and log ranges are unknown")
    else:
        note(f"logs    checked against Kafka cluster {header.cluster_id}")
    if header.options.shift:
        note(f"shift   {header.options.shift} is added to each copied offset")
    show_weaknesses(header.weaknesses)
    if header.partition_map is not None:
        used = header.partition_map
        note(
            f"map     byte positions mapped to offsets, as {used.confirmed_by} confirmed (sha256 {used.sha256[:16]}...)"
        )


def show_weaknesses(weaknesses: Iterable[str]) -> None:
    """Prints a warning for each guarantee that offsetmgr cannot fully give when it writes to the target."""
    for weakness in weaknesses:
        note(f"warning {weakness}")


def show_expiry(header: PlanHeader, summary: PlanSummary, at_ms: int, clock: ClockDifference | None) -> None:
    """Prints when offsets written at ``at_ms``, a time of this machine, expire by the brokers' clock. ``clock`` is the
    difference of the two clocks. For offsets that the target had before, the expiry is unknown."""
    if header.retention_ms is None:
        if header.target.kind == "kafka" and summary.writes:
            why = "the brokers do not report offsets.retention.minutes (offsetmgr doctor: DescribeConfigs)"
            note(f"expiry  unknown for offsets that no consumer commits again, because {why}")
        return
    expire_in_use = any(KEEPS_ACTIVE_OFFSETS in weakness for weakness in header.weaknesses)
    if summary.writes:
        expires = _expiry(header, at_ms, clock)
        after = "(offsets.retention.minutes after the copy)"
        if clock is not None and clock.exceeds():
            note(f"warning the brokers' clock is {clock}: synchronise the clocks (offsetmgr doctor)")
        if expire_in_use:
            note(f"expiry  offsets copied now expire about {expires} {after}, unless a consumer commits them again")
        else:
            note(f"expiry  offsets copied now expire about {expires} {after}, unless a consumer joins the group")
    if held := sum(summary.actions[action] for action in (Action.SKIP_EQUAL, Action.KEEP_NEWER, Action.TARGET_ONLY)):
        note(
            f"expiry  unknown for {count_of(held, 'offset')} already in the target, because Kafka counts from the"
            " commit time, which it does not expose; migrate apply PLAN --refresh renews them"
        )
        if summary.writes and not expire_in_use:
            note(
                "expiry  the group lock of a write restarts the retention of all offsets of the group, except of those"
                " that a client committed with its own retention time"
            )


def show_mirror_expiry(retention_ms: int, refresh_s: float) -> None:
    """Prints that the mirror commits its offsets again every ``refresh_s`` seconds, and when the offsets expire after
    the mirror has ended."""
    note(
        f"expiry  the mirror commits its offsets again every {refresh_s / 60:,g} min; after it ends, offsets that no"
        f" consumer commits expire within {retention_ms / 60_000:,g} min (offsets.retention.minutes)"
    )


def show_refresh(report: RefreshReport, header: PlanHeader, at_ms: int, clock: ClockDifference | None) -> None:
    """Prints the number of groups whose offsets were committed again, and the first `SHOWN` failures."""
    until = (
        "" if header.retention_ms is None else f"; without a consumer they expire about {_expiry(header, at_ms, clock)}"
    )
    note(f"{count_of(len(report.renewed), 'group')} renewed: their offsets were committed again, unchanged{until}")
    if report.in_use:
        note(f"{count_of(len(report.in_use), 'group')} in use: the offsets of a group with members do not expire")
    for error in list(report.failed.values())[:SHOWN]:
        note(f"  ! {error}")
    if report.failed:
        note(f"NOT renewed: {count_of(len(report.failed), 'group')}")


def _expiry(header: PlanHeader, at_ms: int, clock: ClockDifference | None) -> str:
    """Returns the expiry of offsets that are written at ``at_ms``, a time of this machine, and names the clock unless
    the clocks of this machine and of the brokers agree."""
    retention = header.retention_ms or 0
    if clock is None or not (clock.agrees or clock.exceeds()):
        return f"{moment(at_ms + retention)} by this machine's clock"
    expires = moment(at_ms + clock.correction_ms + retention)
    return f"{expires} by the brokers' clock" if clock.exceeds() else expires


def show_plan_summary(summary: PlanSummary) -> None:
    note(f"{count_of(summary.groups, 'group')}, {count_of(sum(summary.actions.values()), 'partition')}:")
    for action, count in sorted(summary.actions.items(), key=lambda item: list(MEANING).index(item[0])):
        note(f"  {count:>8} {action:<26} {MEANING[action]}")
    if summary.dropped:
        note(f"warning the plan drops {dropped_text(summary.dropped)}")
    if summary.failed_groups:
        note(f"  {summary.failed_groups:>8} not planned: the whole group is refused; nothing of it will be written")
    if summary.left_out_groups:
        note(f"  {summary.left_out_groups:>8} left out: the group was never copied, so there is nothing to copy back")
    if summary.active_groups:
        note(
            f"  {summary.active_groups:>8} active: the group has members in Kafka; apply refuses it, or waits for it"
            " with --wait-empty SECONDS"
        )
    if summary.unlocked_groups:
        note(
            f"  {summary.unlocked_groups:>8} not atomic: old consumers of the group are registered in ZooKeeper, and a"
            " group lock would break their commits; they read the larger of both stores once dual commit is on"
        )


def show_waves(plan: PlanFile) -> None:
    """Prints the number of groups of each wave; nothing if the plan has no waves."""
    waves = Counter(group.wave for group in plan.groups())
    for wave in sorted(wave for wave in waves if wave is not None):
        note(f"wave {wave}: {count_of(waves[wave], 'group')}")
    if len(waves) > 1 and waves[None]:
        note(f"no wave: {count_of(waves[None], 'group')}, which the waves file does not name")


def show_attention(plan: PlanFile) -> None:
    """Prints the parts of a plan that need attention, such as rejected steps, rewinds, failed groups and active groups,
    in at most `SHOWN` lines."""
    if not (plan.summary.needs_attention or plan.header.options.clamp):
        return
    lines = list(_first(_attention(plan), SHOWN + 1))
    for line in lines[:SHOWN]:
        note(line)
    if len(lines) > SHOWN:
        note("  ... and more: offsetmgr migrate plan --format json (or csv) lists every step")


def _attention(plan: PlanFile) -> Iterator[str]:
    for group in plan.groups():
        if group.error:
            yield f"  ! {group.group}: {group.error}"
        if group.note:
            yield f"  {group.group}: {group.note}"
        if group.members:
            yield f"  ! {group.target_group} is active ({group.state}): {'; '.join(group.members)}"
        for step in group.steps:
            if step.action.rejects or step.action is Action.REWIND or (step.note and step.action.writes):
                yield f"  ! {group.group} {step.tp}: {step.action}: {step.note}"


def _first(items: Iterable[str], count: int) -> Iterator[str]:
    for number, item in enumerate(items):
        if number >= count:
            return
        yield item


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
    failed = [(o, tp, error) for o in report.failed.values() for tp, error in sorted(o.failed.items())]
    shown_groups: set[str] = set()
    lines = 0
    for outcome, tp, error in failed:
        if outcome.active_members:
            if outcome.group in shown_groups:
                continue
            shown_groups.add(outcome.group)
            how = "is locked by another run of offsetmgr" if outcome.lock_ends_s else "is active"
            line = f"  ! {outcome.target_group} {how}: {'; '.join(outcome.active_members)}"
        elif len(outcome.failed) > 1 and len({str(e) for e in outcome.failed.values()}) == 1:
            if outcome.group in shown_groups:
                continue
            shown_groups.add(outcome.group)
            line = (
                f"  ! {outcome.target_group}, {count_of(len(outcome.failed), 'partition')}: {error.why or error.what}"
            )
        else:
            line = f"  ! {outcome.target_group} {tp}: {error.why or error.what}"
        lines += 1
        if lines <= SHOWN:
            note(line)
    for group, why in list(report.closed.items())[:SHOWN]:
        note(f"  ! {group} left as it is: {why}")
    if failed:
        note(
            f"failed: {count_of(len(failed), 'partition')} of {count_of(len(report.failed), 'group')}; the rest is done"
        )


def verify_row(found: PartitionResult) -> tuple[Any, ...]:
    return (
        found.target_group,
        found.tp.topic if found.tp else None,
        found.tp.partition if found.tp else None,
        found.status.value,
        found.evidence.value,
        found.expected,
        found.source,
        found.target,
        found.log_end,
        found.detail,
    )


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
    return f"{moment(status.at_ms)}  {states or 'no groups yet'}; {copied}, {lag}{rejected}"


def mirror_rows(groups: Iterable[GroupMirror]) -> Iterator[tuple[Any, ...]]:
    for mirrored in groups:
        yield (
            mirrored.group,
            mirrored.target_group,
            mirrored.state.value,
            mirrored.copied,
            mirrored.lag,
            mirrored.detail,
        )


MIRROR_COLUMNS: Final = (
    Column("group"),
    Column("target_group"),
    Column("state"),
    Column("copied", right=True),
    Column("lag", right=True),
    Column("detail", optional=True),
)


class MigrateProgress:
    """Shows the number of completed groups with `progress`."""

    def __init__(self, what: str, total: int) -> None:
        self._items: Any = progress(self._ticks(), what, total)

    def _ticks(self) -> Iterator[None]:
        while True:
            yield None

    def __enter__(self) -> MigrateProgress:
        return self

    def count(self, _outcome: GroupOutcome) -> None:
        next(self._items)

    def __exit__(self, *_: object) -> None:
        self._items.close()


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
    elif not summary.actions[Action.REFUSE_BYTE_POSITION]:  # a note names the map that these need
        note("nothing can be applied: the plan refuses everything; correct the causes above, then plan again")
    fail_if(failed or summary.failed_groups or summary.refuses_all)


def option_text(words: Iterable[str]) -> str:
    """Returns words of a command line as text, each with a leading space."""
    return "".join(f" {shlex.quote(word)}" for word in words)


def note_expiry(plan: Path | str, dates: Iterable[int | None], options: str, *, watched: bool) -> None:
    """Prints when copied offsets expire that no consumer commits again, and the command that renews them."""
    refresh = f"{command_line('migrate', 'apply', plan, '--refresh')}{options}"
    for text in expiry_texts(dates, SystemClock().now_ms(), refresh, watched=watched):
        note(f"warning: {text}")


def exit_if_interrupted(report: Report) -> None:
    """Raises `Interrupted` if Ctrl-C stopped the run before it was complete."""
    if report.interrupted:
        raise Interrupted("started writes are finished and recorded; run the same command again to continue")


@contextmanager
def plan_writer(
    plan: PlanFile, run: PlanRun, store: OffsetStore, wait_empty_s: float = 0.0
) -> Iterator[tuple[JournaledWriter, MigrationState]]:
    """Like `journaled_writer`; also turns Ctrl-C into a clean stop, and prints progress on stderr. If an error ends the
    run, prints how much was written before. Before the first write, Ctrl-C interrupts the run at once."""
    writers: list[JournaledWriter] = []

    def has_begun() -> bool:
        return any(writer.report.begun for writer in writers)

    groups = plan.summary.groups if run.only is None else len(run.only)
    try:
        waits = Waits(Terminal())
        with (
            stop_on_signal("groups under way are finished", has_begun) as stop,
            MigrateProgress(f"{run.name}: groups", groups) as shown,
            journaled_writer(
                plan,
                run,
                store,
                stop=stop,
                progress=shown.count,
                wait_empty_s=wait_empty_s,
                on_lock_wait=waits,
            ) as (writer, state),
        ):
            writers.append(writer)
            yield writer, state
    except OffsetMgrError:
        for writer in writers:
            if writer.report.started:
                note(
                    f"the offsets of up to {count_of(writer.report.started, 'group')} had been changed when the error"
                    f" occurred ({writer.report.written:,} are confirmed); the next run checks them"
                )
        raise
    except KeyboardInterrupt:
        if has_begun():
            raise
        raise Interrupted("this run wrote nothing; run the same command again") from None
