"""Describes plans and their execution in lines of text, for the commands ``offsetmgr migrate``."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.document import moment
from offsetmgr.core.model import KEEPS_ACTIVE_OFFSETS, dropped_text
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.migration.plan import Action

if TYPE_CHECKING:
    from offsetmgr.core.clock import ClockDifference
    from offsetmgr.migration.journaled_writer import Report
    from offsetmgr.migration.plan import PlanFile, PlanHeader, PlanSummary

SHOWN: Final = 20
"""Maximum number of printed lines of one kind. One more line replaces all further lines."""

MEANING: Final[Mapping[str, str | Advice]] = {
    Action.COPY: "will be written",
    Action.REWIND: "will be moved BACK (a rewind was allowed)",
    Action.SKIP_EQUAL: "are equal already",
    Action.KEEP_NEWER: Advice("stay: the target is ahead, and newer or kept by {if_ahead}"),
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


def time_text(at_ms: int) -> str:
    """Formats a time in UTC, with a precision of seconds."""
    return f"{moment(at_ms, seconds=True)} UTC"


def scope_line(plan: PlanFile, scope: PlanSummary, waves: Sequence[int] = ()) -> str:
    """Returns the cluster, the two stores, and the groups and partitions of a step. ``scope`` has the counts of its
    groups, which are in ``waves`` (default: in any wave)."""
    header, total = plan.header, plan.summary.groups
    cluster = header.cluster_id or (header.source if header.target.kind == "file" else header.target).id
    groups = count_of(scope.groups, "group")
    if scope.groups != total:
        groups = f"{scope.groups:,} of the plan's {count_of(total, 'group')}"
    if waves:
        groups = f"in wave {list_of(waves, SHOWN)}: {groups}"
    stores = f"{header.source.uri} -> {header.target.uri}"
    return f"cluster {cluster}: {stores}: {groups}, {count_of(sum(scope.actions.values()), 'partition')}"


def comparison_lines(header: PlanHeader) -> Iterator[str]:
    """Yields how the two stores' logs compare, and the guarantees that the target does not fully give."""
    if header.compared is not None:
        yield Advice("cluster {}", header.compared.text(header.translate))
        yield f"topics  recreated after the commit: {header.recreation}"
    yield from (f"warning {weakness}" for weakness in header.weaknesses)


def _header_lines(header: PlanHeader) -> Iterator[str]:
    """Yields what the planner checked, and the warnings that concern the whole plan."""
    yield from comparison_lines(header)
    if header.cluster_id is None:
        yield Advice("logs    not checked: no {bootstrap_server}, so topics and log ranges are unknown")
    else:
        yield f"logs    checked against Kafka cluster {header.cluster_id}"
    if header.options.shift:
        yield f"shift   {header.options.shift} is added to each copied offset"
    if (used := header.partition_map) is not None:
        confirmed = f"as {used.confirmed_by} confirmed (sha256 {used.sha256[:16]}...)"
        yield f"map     byte positions mapped to offsets, {confirmed}"


def _expiry_warnings(header: PlanHeader, summary: PlanSummary) -> Iterator[str]:
    """Yields what a plan must say about the expiry of offsets apart from `expiry_line`."""
    if header.retention_ms is None:
        if header.target.kind == "kafka" and summary.writes:
            why = "the brokers do not report offsets.retention.minutes (offsetmgr doctor: DescribeConfigs)"
            yield f"expiry  unknown for offsets that no consumer commits again, because {why}"
        return
    if summary.writes and header.clock is not None and header.clock.exceeds():
        yield f"warning the brokers' clock is {header.clock}: synchronise the clocks (offsetmgr doctor)"
    held = sum(summary.actions[action] for action in (Action.SKIP_EQUAL, Action.KEEP_NEWER, Action.TARGET_ONLY))
    if held:
        yield Advice(
            "expiry  unknown for {} already in the target, because Kafka counts from the commit time, which it does not"
            " expose; {} renews them",
            count_of(held, "offset"),
            Advice("migrate apply PLAN {refresh}"),
        )
        if summary.writes and not _expire_in_use(header):
            yield (
                "expiry  the group lock of a write restarts the retention of all offsets of the group, except of those"
                " that a client committed with its own retention time"
            )


def uncompared_line(done: Report) -> str:
    """Returns the result of a rollback after which the comparison of the offsets did not end."""
    failed = f"; failed: {list_of(done.failed, SHOWN)}" if done.failed else ""
    restored = f"{count_of(done.written, 'offset')} restored in {count_of(done.changed, 'group')}{failed}"
    return f"{restored}; the comparison with the before-images did not end"


def expiry_line(header: PlanHeader, at_ms: int, clock: ClockDifference | None) -> str:
    """Returns when offsets expire that are written at ``at_ms``, a time of this machine, by the brokers' clock.
    ``clock`` is the difference of the two clocks."""
    unless = "a consumer commits them again" if _expire_in_use(header) else "a consumer joins the group"
    after = "(offsets.retention.minutes after the copy)"
    return f"expiry  offsets copied now expire about {expiry_text(header, at_ms, clock)} {after}, unless {unless}"


def _expire_in_use(header: PlanHeader) -> bool:
    return any(KEEPS_ACTIVE_OFFSETS in weakness for weakness in header.weaknesses)


def expiry_text(header: PlanHeader, at_ms: int, clock: ClockDifference | None) -> str:
    """Returns the expiry of offsets that are written at ``at_ms``, a time of this machine, and names the clock unless
    the clocks of this machine and of the brokers agree."""
    retention_ms = header.retention_ms or 0
    if clock is None or not (clock.agrees or clock.exceeds()):
        return f"{time_text(at_ms + retention_ms)} by this machine's clock"
    expires = time_text(at_ms + clock.correction_ms + retention_ms)
    return f"{expires} by the brokers' clock" if clock.exceeds() else expires


def count_lines(summary: PlanSummary) -> Iterator[str]:
    """Yields the number of partitions of each action, and of the groups that are special."""
    for action, count in sorted(summary.actions.items(), key=lambda item: list(MEANING).index(item[0])):
        yield Advice("{} {}", f"  {count:>8} {action:<26}", MEANING[action])
    counts: list[tuple[int, str]] = [
        (summary.failed_groups, "not planned: the whole group is refused; nothing of it will be written"),
        (summary.left_out_groups, "left out: the group was never copied, so there is nothing to copy back"),
        (
            summary.active_groups,
            Advice(
                "active: the group has members in Kafka; apply refuses it, or waits for it with {}",
                Advice("{wait_empty_s:wait_empty} SECONDS"),
            ),
        ),
        (
            summary.unlocked_groups,
            "not atomic: old consumers of the group are registered in ZooKeeper, and a group lock would break their"
            " commits; they read the larger of both stores once dual commit is on",
        ),
    ]
    yield from (Advice("{} {}", f"  {count:>8}", text) for count, text in counts if count)


def plan_lines(plan: PlanFile, *, whole: bool = True) -> Iterator[str]:
    """Describes a new plan. With ``whole``, also yields its waves and the parts that need attention, in at most `SHOWN`
    lines."""
    header, summary = plan.header, plan.summary
    yield scope_line(plan, summary)
    yield from _header_lines(header)
    if header.retention_ms is not None and summary.writes:
        yield expiry_line(header, header.created_at, header.clock)
    yield from _expiry_warnings(header, summary)
    yield from count_lines(summary)
    if summary.dropped:
        yield f"warning the plan drops {dropped_text(summary.dropped)}"
    if not whole:
        return
    waves = Counter(group.wave for group in plan.groups())
    yield from (f"wave {w}: {count_of(waves[w], 'group')}" for w in sorted(w for w in waves if w is not None))
    if len(waves) > 1 and waves[None]:
        yield f"no wave: {count_of(waves[None], 'group')}, which the waves file does not name"
    if summary.needs_attention or header.options.clamp:
        lines = list(islice(_attention(plan), SHOWN + 1))
        yield from lines[:SHOWN]
        if len(lines) > SHOWN:
            every = Invocation("migrate plan", (), {"format": "json"})
            yield Advice("  ... and more: {} (or csv) lists every step", every)


def _attention(plan: PlanFile) -> Iterator[str]:
    """Yields the rejected steps, the rewinds, the failed groups and the active groups of a plan."""
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


def expiry_notes(
    plan: Path | str, dates: Iterable[int | None], options: Iterable[str], *, watched: bool
) -> Iterator[str]:
    """Yields the warnings about copied offsets that expire at these times unless they are renewed; see `expiry_texts`.
    ``options`` are the connection options of the command that renews them."""
    from offsetmgr.migration.location import expiry_texts

    renew = Invocation("migrate apply", (str(plan),), {"refresh": True}).command_line()
    refresh = " ".join((renew, *map(shlex.quote, options)))
    return expiry_texts(dates, SystemClock().now_ms(), refresh, watched=watched)
