"""The rules of `verify` for one partition. Pure.

If the target is ahead of the source, the size of its offset does not show that it is newer (data rule "larger is not
newer"). The partition passes if the target moved after the plan, if the plan has evidence or the caller's word for the
offset, or if the evidence that `verify` reads now shows it. If the source moved and the target did not, it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, TypeAlias

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import BrokerPartition, Committed, LogRange
from offsetmgr.core.phase import Confidence
from offsetmgr.groups.last_writes import LastWriter, skip_text
from offsetmgr.migration.plan import Action, MissingTopic, PlanSource, PlanStep, clamp_text


class Status(StrEnum):
    """The result of the verification of one partition."""

    EQUAL = "equal"
    KEPT_AHEAD = "kept-ahead"
    """The target was ahead when the plan was made, and still is: it was written last, or the caller kept it."""
    PROGRESS = "progress"
    """The target has moved forward since the plan, within its log."""
    NEW_IN_TARGET = "new-in-target"
    """The target has a commit that was made after the plan. The source has no commit."""
    SOURCE_GONE = "source-gone"
    """The target holds the expected offset or a larger offset. The source no longer has a commit."""
    MISSING = "missing"
    BEHIND = "behind"
    NOT_REWOUND = "not-rewound"
    BELOW_LOG_START = "below-log-start"
    """The log starts after the target's offset. The record at this offset has been deleted, so auto.offset.reset
    decides where a consumer continues."""
    BEYOND_LOG_END = "beyond-log-end"
    NO_SUCH_LOG = "no-such-log"
    """The target holds an offset of a topic or partition that does not exist in Kafka."""
    SOURCE_AHEAD = "source-ahead"
    """A client committed to the source after the copy. A consumer that starts from the target now would consume
    messages again."""
    SOURCE_REWOUND = "source-rewound"
    AHEAD_UNPROVEN = "ahead-unproven"
    """The target is ahead of the source, and nothing shows that it was written last. A consumer that starts from the
    target now may skip messages."""
    NOT_IN_PLAN = "not-in-plan"
    REFUSED = "refused"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"

    @property
    def ok(self) -> bool:
        """Whether a partition with this status passes the check."""
        return self in _PASSING


_PASSING: Final = frozenset(
    (Status.EQUAL, Status.KEPT_AHEAD, Status.PROGRESS, Status.NEW_IN_TARGET, Status.SOURCE_GONE)
)


VerifyOutcome: TypeAlias = tuple[Status, Confidence, str]
ReadLastWriter: TypeAlias = Callable[[], LastWriter | None]
"""Reads the evidence that shows which store was written last; None if the target is not ahead any more, or was written
last."""


def outside(offset: int, log: LogRange | MissingTopic | OffsetMgrError | None) -> VerifyOutcome:
    """Returns the result for an offset outside its log."""
    if isinstance(log, LogRange) and offset < log.start:
        why = f"below the log start by {log.start - offset}; {clamp_text(offset, log)}"
        return Status.BELOW_LOG_START, Confidence.SEEN, why
    if isinstance(log, LogRange):
        return Status.BEYOND_LOG_END, Confidence.SEEN, f"beyond the log end by {offset - log.end}"
    if isinstance(log, MissingTopic):
        return Status.NO_SUCH_LOG, Confidence.SEEN, log.value
    return Status.UNKNOWN, Confidence.UNKNOWN, f"the log's end is unknown: {log}"


def check_unplanned(source: Committed | None, target: Committed | None, read: ReadLastWriter) -> VerifyOutcome:
    """Returns the result for a partition that is not in the plan, from the current offsets of both stores."""
    if source is None:
        return Status.NEW_IN_TARGET, Confidence.SEEN, "committed in the target since the plan"
    if target is not None and target.offset >= source.offset:
        if target.offset > source.offset and (problem := _unproven(source.offset, target.offset, read())) is not None:
            return problem
        return Status.PROGRESS, Confidence.SEEN, "not in the plan; the target is not behind the source"
    return Status.NOT_IN_PLAN, Confidence.SEEN, "committed in the source since the plan; make a new plan for it"


def check_planned(
    step: PlanStep,
    source: Committed | None,
    target: Committed | None,
    log_end: int | None,
    read: ReadLastWriter = lambda: None,
    *,
    word: bool = False,
) -> VerifyOutcome:
    """Returns the result for a planned partition from the current offsets of both stores. ``word`` tells whether the
    caller chose to keep every target that is ahead."""
    if step.action.rejects:
        comparable = step.origin is None and not isinstance(step.tp.partition, BrokerPartition)
        if comparable and source is not None and target is not None and source.offset == target.offset:
            return Status.EQUAL, Confidence.SEEN, "the plan refused it, but source and target are equal now"
        return Status.REFUSED, Confidence.SEEN, f"the plan refused it: {step.note}"
    if step.after is None:
        return Status.UNKNOWN, Confidence.UNKNOWN, "the plan expects nothing here"
    if target is None:
        return Status.MISSING, Confidence.SEEN, "the target has no commit"
    expected = step.after.offset
    if target.offset < expected:
        return Status.BEHIND, Confidence.SEEN, f"behind the plan by {expected - target.offset}"
    if target.offset > expected:
        moved = _check_progress(step, target.offset, log_end)
        if not moved[0].ok:
            return moved
    else:
        moved = (Status.EQUAL, Confidence.SEEN, "")
    return _compare_with_source(step, source, target, moved, (lambda: None) if word else read)


def _check_progress(step: PlanStep, offset: int, log_end: int | None) -> VerifyOutcome:
    assert step.after is not None
    if log_end is None:
        return Status.UNKNOWN, Confidence.UNKNOWN, "moved forward, but the log's end is unknown"
    if offset > log_end:
        return Status.BEYOND_LOG_END, Confidence.SEEN, f"beyond the log end by {offset - log_end}"
    return Status.PROGRESS, Confidence.SEEN, f"moved forward by {offset - step.after.offset}"


def _compare_with_source(
    step: PlanStep, source: Committed | None, target: Committed, result_so_far: VerifyOutcome, read: ReadLastWriter
) -> VerifyOutcome:
    if step.origin is not None:
        return _compare_with_position(step, step.origin, source, result_so_far)
    if source is None:
        gone = (Status.SOURCE_GONE, Confidence.SEEN, "the source no longer holds it")
        return result_so_far if step.source is None else gone
    planned = -1 if step.source is None else step.source.offset
    if source.offset > target.offset and source.offset != planned:
        behind = source.offset - target.offset
        return (
            Status.SOURCE_AHEAD,
            Confidence.SEEN,
            f"the source moved on after the plan; a start from the target would repeat {behind} messages",
        )
    if source.offset < planned:
        back = planned - source.offset
        return Status.SOURCE_REWOUND, Confidence.SEEN, f"the source was moved back by {back} after the plan"
    kept = step.action in (Action.KEEP_NEWER, Action.TARGET_ONLY)
    if kept and result_so_far[0] is Status.EQUAL and target.offset > source.offset:
        proven = step.proven and source.offset == planned
        problem = None if proven else _unproven(source.offset, target.offset, read())
        why = f"as planned, the target stays ahead of the source by {target.offset - source.offset}"
        return problem or (Status.KEPT_AHEAD, Confidence.SEEN, why)
    if target.offset > source.offset != planned:  # both stores have moved since the plan
        writer = read()
        if writer is not None and writer.store is not None:
            return _unproven(source.offset, target.offset, writer) or result_so_far
    return result_so_far


def _unproven(source: int, target: int, writer: LastWriter | None) -> VerifyOutcome | None:
    """Returns the result for a target that is ahead; None if the target was written last."""
    if writer is None or writer.is_offset(target):
        return None
    why = f"keeps {skip_text(target, source)} ({writer.why}); to accept it, plan it again with --if-ahead keep"
    return Status.AHEAD_UNPROVEN, Confidence.UNKNOWN, why


def _compare_with_position(
    step: PlanStep, origin: PlanSource, source: Committed | None, result_so_far: VerifyOutcome
) -> VerifyOutcome:
    """Works like `_compare_with_source`, but compares the source's byte position with the byte position in the plan.
    The planned offset was derived from the planned byte position, so the result has the confidence of the
    derivation."""
    assert step.source is not None
    old = step.source.offset
    evidence = origin.evidence
    if source is None:
        return Status.SOURCE_GONE, evidence, f"the source no longer holds byte {old}"
    if source.offset > old:
        why = f"the source moved on after the plan, from byte {old} to {source.offset}; make a new plan"
        return Status.SOURCE_AHEAD, Confidence.SEEN, why
    if source.offset < old:
        why = f"the source was moved back after the plan, from byte {old} to {source.offset}"
        return Status.SOURCE_REWOUND, Confidence.SEEN, why
    status, _, detail = result_so_far
    return status, evidence, f"{detail}; {origin.how}" if detail else origin.how
