"""Verifies a migration: reads both stores again and checks every partition of the plan, the source and the target.

Each result has a confidence (data rule "verdicts carry evidence"): *seen* (both values were read), *inferred* or
*unknown*. A partition with an unknown result never passes. The source is read before the target. A dual consumer writes
Kafka before ZooKeeper, so a target in Kafka never appears to be behind because of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property, partial
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.advice import Advice
from offsetmgr.core.commit_mode import Confidence
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import BrokerPartition, Committed, LogRange, TopicPartition
from offsetmgr.core.offset_store import AheadPolicy, GroupOffsets, OffsetStore
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.last_writes import GroupPair, LastWriter, LastWrites, skip_text
from offsetmgr.kafka.cluster import Logs
from offsetmgr.migration.apply import check_endpoint, recreated_topics
from offsetmgr.migration.cluster_logs import ClusterLogs
from offsetmgr.migration.copied_offsets import last_writes, transferred_steps
from offsetmgr.migration.journaled_writer import read_pairs
from offsetmgr.migration.plan import (
    Action,
    GroupPlan,
    GroupScope,
    MissingTopic,
    PlanFile,
    PlanStep,
    clamp_text,
)
from offsetmgr.migration.planner import unfit_name
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.translated_groups import TranslatedGroups, evidence_of
from offsetmgr.translation.translator import TranslatedOffset, Translations

# The rules of `verify` for one partition. Pure. If the target is ahead of the source, the size of its offset does not
# show that it is newer (data rule "larger is not newer"). The partition passes if the target moved after the plan, if
# the plan has evidence or the caller's word for the offset, or if the evidence that `verify` reads now shows it. If
# the source moved and the target did not, it fails.


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


_NOT_REWOUND: Final = "the rewind was not written"

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
    why = "the log's end is unknown: {}"
    return Status.UNKNOWN, Confidence.UNKNOWN, Advice(why, log.text if isinstance(log, OffsetMgrError) else log)


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
    read: ReadLastWriter,
    *,
    applied: bool,
) -> VerifyOutcome:
    """Returns the result for a planned partition from the current offsets of both stores. ``applied`` tells whether
    apply wrote the step."""
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
    if target.offset == expected:
        return _compare_with_source(step, source, target, (Status.EQUAL, Confidence.SEEN, ""), read)
    if step.action is Action.REWIND and not applied:
        return Status.NOT_REWOUND, Confidence.SEEN, _NOT_REWOUND
    moved = _check_progress(step, target.offset, log_end)
    return _compare_with_source(step, source, target, moved, read) if moved[0].ok else moved


def _check_progress(step: PlanStep, offset: int, log_end: int | None) -> VerifyOutcome:
    assert step.after is not None
    if log_end is None:
        return Status.UNKNOWN, Confidence.UNKNOWN, "moved forward, but the log's end is unknown"
    return Status.PROGRESS, Confidence.SEEN, f"moved forward by {offset - step.after.offset}"


def _compare_with_source(
    step: PlanStep, source: Committed | None, target: Committed, result_so_far: VerifyOutcome, read: ReadLastWriter
) -> VerifyOutcome:
    """An offset that was derived from a position in another log has the confidence of the derivation."""
    origin, planned = step.origin, -1 if step.source is None else step.source.offset
    if source is None:
        evidence = Confidence.SEEN if origin is None else origin.evidence
        return (Status.SOURCE_GONE, evidence, "the source no longer holds it") if step.source else result_so_far
    if source.offset > planned and (origin is not None or source.offset > target.offset):
        repeats = f"a start from the target would repeat {source.offset - target.offset} messages"
        then = repeats if origin is None else "make a new plan"
        return Status.SOURCE_AHEAD, Confidence.SEEN, f"the source moved on after the plan; {then}"
    if source.offset < planned:
        back = planned - source.offset
        return Status.SOURCE_REWOUND, Confidence.SEEN, f"the source was moved back by {back} after the plan"
    if origin is not None:
        status, _, detail = result_so_far
        return status, origin.evidence, Advice.joined(filter(None, (detail, origin.how)))
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
    text = "keeps {} ({}); to accept it, plan it again with {if_ahead=keep}"
    why = Advice(text, skip_text(target, source), writer.why)
    return Status.AHEAD_UNPROVEN, Confidence.UNKNOWN, why


def check_translated(
    step: PlanStep | None,
    source: Committed,
    target: Committed,
    there: TranslatedOffset | OffsetMgrError,
    apart: tuple[int, int] | None,
    *,
    applied: bool,
) -> VerifyOutcome:
    """Returns the result for a partition of two clusters: is the group in the target at the record of its present
    position in the source? ``there`` is the translation of this position, and ``apart`` are the numbers of records that
    the group repeats and skips; None if they are not known. ``applied`` tells whether apply wrote the step."""
    moved = step is None or step.source is None or step.source.offset != source.offset
    planned = None if step is None or step.after is None else step.after.offset
    is_kept = step is not None and step.action is Action.KEEP_NEWER and step.proven
    if is_kept and not moved and target.offset == planned:
        return Status.KEPT_AHEAD, Confidence.SEEN, "as planned, the target stays ahead of the source"
    refused = f"the plan refused it: {step.note}" if step is not None and step.action.rejects else ""
    if isinstance(there, OffsetMgrError) or there.problem or there.answer.offset is None:
        why = there.text if isinstance(there, OffsetMgrError) else there.problem
        return (Status.REFUSED, Confidence.SEEN, refused) if refused else (Status.UNKNOWN, Confidence.UNKNOWN, why)
    right, evidence = there.answer.offset, evidence_of(there)
    if target.offset == right or apart == (0, 0):
        how = "" if there.how == there.answer.verdict else there.how
        return Status.EQUAL, evidence, f"the plan refused it, but it is right now ({there.how})" if refused else how
    if refused:
        return Status.REFUSED, Confidence.SEEN, refused
    if target.offset < right if apart is None else not apart[1]:
        since = "the source moved on after the plan; " * (moved and step is not None)
        number = f"{right - target.offset} offsets" if apart is None else count_of(apart[0], "record")
        status = Status.SOURCE_AHEAD if since else Status.NOT_IN_PLAN if step is None else Status.BEHIND
        return status, evidence, f"{since}a start there repeats {number}: the right offset is {right} ({there.how})"
    if step is not None and step.action is Action.REWIND and not applied:
        return Status.NOT_REWOUND, evidence, _NOT_REWOUND
    number = f"{target.offset - right} offsets" if apart is None else count_of(apart[1], "record")
    text = "a start there skips {}: the right offset is {} ({}); to accept it, plan it again with {if_ahead=keep}"
    return Status.AHEAD_UNPROVEN, Confidence.UNKNOWN, Advice(text, number, right, there.how)


def has_progressed(step: PlanStep | None, source: Committed, target: Committed | None, *, applied: bool) -> bool:
    """Returns whether consumers have moved on in the target since apply, while the source stood still."""
    if step is None or step.source is None or step.after is None or target is None:
        return False
    return applied and source.offset == step.source.offset and target.offset > step.after.offset


class PartitionResult(NamedTuple):
    """The result for one partition, with its offsets. An offset is None if there is no commit or if it is unknown.
    ``tp`` is None for a result about the whole group."""

    group: str
    target_group: str
    tp: TopicPartition | None
    status: Status
    evidence: Confidence
    expected: int | None = None
    source: int | None = None
    target: int | None = None
    log_end: int | None = None
    detail: str = ""
    verdict: str | None = None
    """How sure the translation of the source's present position is; None without one."""
    repeats: int | None = None
    skips: int | None = None
    """The numbers of records that the group repeats and skips in the target; None if unknown."""


@dataclass(slots=True)
class VerifySummary:
    """The number of results by status. ``ok`` is True only if every partition passed."""

    counts: Counter[Status] = field(default_factory=Counter)
    groups: int = 0
    inferred: int = 0
    """The number of results that passed although they are only inferred."""
    accepted: int = 0
    """The number of results that passed by the user's word, although the place of the record is not sure."""
    is_translated: bool = False

    def add(self, result: PartitionResult) -> None:
        """Adds one result to the counts."""
        self.counts[result.status] += 1
        self.inferred += result.status.ok and result.evidence is Confidence.INFERRED
        self.accepted += result.status.ok and result.evidence is Confidence.UNKNOWN

    @property
    def ok(self) -> bool:
        """Whether every partition passed."""
        return all(status.ok for status in self.counts)

    def lines(self) -> Iterator[str]:
        """Describes the counts."""
        total = count_of(self.counts.total(), "partition")
        for status, count in sorted(self.counts.items()):
            yield f"  {count:>8} {status}{'' if status.ok else '   <-- difference'}"
        if not self.counts:
            yield "nothing to verify: the plan and the stores have no offsets"
        elif not self.ok:
            wrong = sum(count for status, count in self.counts.items() if not status.ok)
            yield f"NOT verified: {wrong:,} of {total} differ"
        else:
            yield f"verified: {total} of {count_of(self.groups, 'group')}, read afresh on both sides"
            if self.inferred:
                map_only = "only the partition map relates offset and byte position"
                why = "the records between were not read" if self.is_translated else map_only
                yield f"  {self.inferred} of them by inference: {why}"
            if self.accepted:
                yield f"  {self.accepted} of them at a place that is not sure, which was accepted"


class VerifyResults(Iterator[PartitionResult]):
    """Compares every partition with a plan: iterate over it for the results. ``summary`` has their counts; it reads the
    results first that the caller has not read. ``is_rolled_back`` tells whether the plan was rolled back, and
    ``is_translated`` whether the two sides are different clusters, so that the results have verdicts. If an error ends
    the results, further calls raise it again."""

    def __init__(self, results: Iterable[PartitionResult], summary: VerifySummary, *, is_rolled_back: bool) -> None:
        self._results, self._summary = iter(results), summary
        self._error: BaseException | None = None
        self.is_rolled_back, self.is_translated = is_rolled_back, summary.is_translated

    def __next__(self) -> PartitionResult:
        if self._error is not None:
            raise self._error
        try:
            return next(self._results)
        except BaseException as error:  # also the end of the iteration
            self._error = error
            raise

    @property
    def summary(self) -> VerifySummary:
        """The numbers of results by status. ``summary.ok`` is True only if every partition passed."""
        for _ in self:
            pass
        return self._summary


@dataclass
class MigrationVerifier:
    """Compares a plan with the current offsets of its two stores. It only reads.

    ``open_logs`` returns the Kafka cluster in whose logs the offsets must be. Without a cluster, the logs are not
    checked. In this case, a partition whose target has moved forward is *unknown*. ``state`` is the content of the
    journal, which shows the rewinds that were written. ``only`` limits the check to these planned groups.
    """

    plan: PlanFile
    source: OffsetStore
    target: OffsetStore
    open_logs: Callable[[], Logs | None]
    state: MigrationState
    only: GroupScope | None = None
    summary: VerifySummary = field(default_factory=VerifySummary)
    open_translations: Callable[[], Translations | None] = lambda: None
    """Returns the translations by the records, if the plan has rules for them."""

    def results(self) -> Iterator[PartitionResult]:
        """Yields one result for each partition, and completes the summary. Raises `PlanError` if a store is not the
        planned one."""
        check_endpoint("source", self.plan.header.source, self.source)
        check_endpoint("target", self.plan.header.target, self.target)
        existing = set(self.target.groups())
        if self._translated is not None:
            read = read_pairs(self.source, self.target, existing, _named(self.plan.groups_of(self.only)))
            self._load_translations(self._translated, chain.from_iterable(read))
        options, planned = self.plan.header.options, set[str]()
        for batch in read_pairs(self.source, self.target, existing, _named(self.plan.groups_of(self.only))):
            planned.update(group.name for group, _ in batch)
            yield from self._batch(batch)
        others = list(self.source.groups()) if self.only is None else []  # before another thread asks the source
        new = (name for name in others if name not in planned and options.selects_group(name))
        unplanned = (GroupPlan(name, options.target_group(name), ()) for name in new)
        for batch in read_pairs(self.source, self.target, existing, _named(unplanned)):
            yield from self._batch(batch)

    @cached_property
    def _translated(self) -> TranslatedGroups | None:
        translations = self.open_translations()
        return None if translations is None else TranslatedGroups(translations, self.plan.header.options.selects)

    def _load_translations(self, translated: TranslatedGroups, pairs: Iterable[tuple[GroupPlan, GroupPair]]) -> None:
        """Translates the present positions of groups, and compares the target's offsets with them, unless consumers
        have moved on there."""
        positions, committed = set[tuple[TopicPartition, int]](), set[tuple[TopicPartition, int, int]]()
        for plan, pair in pairs:
            steps, applied = {step.tp: step for step in plan.steps}, self._applied(plan)
            for tp, position in translated.positions(pair.source):
                copy = translated.translations.target(tp)
                found, held, step = pair.source.offsets[tp], pair.target.offsets.get(copy), steps.get(copy)
                if held is None:
                    positions.add((tp, position))
                elif not has_progressed(step, found, held, applied=copy in applied):
                    committed.add((tp, position, held.offset))
        translated.translations.load(positions, committed)

    @cached_property
    def _recreated(self) -> Mapping[str, str]:
        return recreated_topics(self.plan, self.target)

    def _applied(self, plan: GroupPlan) -> Collection[TopicPartition]:
        """Returns the partitions whose log in the target has held the offset of the step, and is still the same."""
        if not plan.steps or self.state.is_group_rolled_back(plan.name):
            return ()
        return {tp for tp in transferred_steps(plan, self.state) if tp.topic not in self._recreated}

    def _batch(self, batch: list[tuple[GroupPlan, GroupPair]]) -> Iterator[PartitionResult]:
        targets = [pair.target for _, pair in batch]
        # The log ranges are read after the offsets (see `offsetmgr.core.log_origin`).
        self._logs.load(offsets=((tp, found.offset) for target in targets for tp, found in target.offsets.items()))
        if self._translated is not None:
            self._load_translations(self._translated, batch)
        for group, pair in batch:
            self.summary.groups += 1
            for result in self._group(group, pair):
                self.summary.add(result)
                shifted = self._shift and result.source is not None
                yield result._replace(source=(result.source or 0) - self._shift) if shifted else result

    @property
    def _shift(self) -> int:
        return self.plan.header.options.shift

    @cached_property
    def _last_writes(self) -> LastWrites:
        return last_writes(self.source, self.target, window_s=0)

    @cached_property
    def _logs(self) -> ClusterLogs:
        """The log ranges of the partitions in the target that were read so far."""
        return ClusterLogs(self.open_logs())

    def _group(self, plan: GroupPlan, pair: GroupPair) -> Iterator[PartitionResult]:
        source, target = pair.source, pair.target
        hidden = source.hidden if source.offsets or not plan.steps else None  # finalize deletes offsets, and only them
        if failed := source.error or hidden or target.error or target.hidden:
            yield _group_result(plan, Status.UNREADABLE, Confidence.UNKNOWN, failed.text)
            return
        if (unfit := unfit_name(self.target, plan.target_group)) is not None:
            yield _group_result(plan, Status.REFUSED, Confidence.SEEN, Advice("target: {}", unfit.text))
            return
        if plan.error:
            yield _group_result(plan, Status.REFUSED, Confidence.SEEN, f"could not be planned: {plan.error}")
        if self._shift:
            shifted = {tp: found._replace(offset=found.offset + self._shift) for tp, found in source.offsets.items()}
            source = replace(source, offsets=shifted)
        steps = {step.tp: _shifted_step(step, self._shift) if self._shift else step for step in plan.steps}
        compared = cache(lambda: self._last_writes.find([pair])[0])

        def last_writer(tp: TopicPartition) -> LastWriter | None:
            now = compared()  # the stores may have been read again, so the target may have moved
            writer = now.writers.get(tp)
            is_open = writer is not None and now.ahead(tp) and not writer.is_offset(now.target.offsets[tp].offset)
            return writer if is_open else None

        applied: Collection[TopicPartition] = ()
        if self._translated is not None or any(step.action is Action.REWIND for step in plan.steps):
            applied = self._applied(plan)
        both = GroupPair(source, target)
        for tp, old in self._partitions(steps, source, target):
            yield self._partition(plan, old, tp, both, steps.get(tp), partial(last_writer, tp), applied=tp in applied)

    def _partitions(
        self, steps: Mapping[TopicPartition, PlanStep], source: GroupOffsets, target: GroupOffsets
    ) -> Iterable[tuple[TopicPartition, TopicPartition]]:
        """Returns the partitions of the target, each with that of the source, in order."""
        translated = None if self._translated is None else self._translated.translations
        selects = self.plan.header.options.selects
        sources = {step.tp: step.source_tp for step in steps.values() if step.origin is not None}
        planned = {old: tp for tp, old in sources.items()}
        for old in filter(selects, (*source.offsets, *source.errors)):
            copy = old if translated is None else translated.target(old)
            sources.setdefault(planned.get(old, copy), old)
        for tp in (*target.offsets, *target.errors):
            if (found := tp if translated is None else translated.source(tp)) is not None and selects(found):
                sources.setdefault(tp, found)
        return sorted({**{tp: tp for tp in steps}, **sources}.items())

    def _partition(
        self,
        plan: GroupPlan,
        old: TopicPartition,
        tp: TopicPartition,
        pair: GroupPair,
        step: PlanStep | None,
        read: ReadLastWriter,
        *,
        applied: bool,
    ) -> PartitionResult:
        """``old`` is the partition of the source. ``applied`` tells whether apply wrote the step."""
        translated, word = self._translated, self.plan.header.options.if_ahead is AheadPolicy.KEEP
        source, target, end = pair.source.offsets.get(old), pair.target.offsets.get(tp), self._logs.end(tp)
        there: TranslatedOffset | OffsetMgrError | None = None
        apart: tuple[int, int] | None = None
        outcome: VerifyOutcome
        if unreadable := pair.source.errors.get(old) or pair.target.errors.get(tp):
            outcome = Status.UNREADABLE, Confidence.UNKNOWN, unreadable.text
        elif translated and source and step and target and has_progressed(step, source, target, applied=applied):
            outcome = _check_progress(step, target.offset, end)
        else:
            there = translated.get(old, source) if translated is not None and source is not None else None
            if translated and there and source and target:
                apart = translated.translations.difference(old, source.offset, target.offset)
                outcome = check_translated(step, source, target, there, apart, applied=applied)
            elif step is None:
                outcome = check_unplanned(source, target, read)
            else:
                outcome = check_planned(step, source, target, end, (lambda: None) if word else read, applied=applied)
        if outcome[0] is Status.MISSING and step is not None:
            outcome = self._missing(plan.name, step, source)
        if outcome[0].ok and target is not None and not self._logs.holds(tp, target.offset):
            outcome = outside(target.offset, self._logs.get(tp))
        known = there if isinstance(there, TranslatedOffset) else None
        planned = step.after.offset if step and step.after else None
        expected = planned if known is None or known.problem else known.answer.offset
        offsets = (expected, source and source.offset, target and target.offset, end)
        of_records = (known and str(known.answer.verdict), *(apart or (None, None)))
        return PartitionResult(plan.name, plan.target_group, tp, *outcome[:2], *offsets, outcome[2], *of_records)

    def _missing(self, group: str, step: PlanStep, source: Committed | None) -> VerifyOutcome:
        """Returns why the target lacks an offset, according to the journal."""
        why = "deleted or expired since, so make a new plan"
        if self.state.is_group_rolled_back(group):
            why = "the plan was rolled back"
        elif changed := self._recreated.get(step.tp.topic):
            why = f"{changed}; make a new plan"
        elif step.action.writes and group not in self.state.apply.done:
            why = "not applied yet, run migrate apply"
        why = f"the target has no commit: {why}"
        if step.is_translated and source and step.source and source.offset != step.source.offset:
            return Status.SOURCE_AHEAD, Confidence.SEEN, f"{why}; the source moved on after the plan"
        return Status.MISSING, Confidence.SEEN, why


def _named(groups: Iterable[GroupPlan]) -> Iterator[tuple[GroupPlan, str, str]]:
    return ((group, group.name, group.target_group) for group in groups)


def _group_result(plan: GroupPlan, status: Status, evidence: Confidence, detail: str) -> PartitionResult:
    return PartitionResult(plan.name, plan.target_group, None, status, evidence, detail=detail)


def _shifted_step(step: PlanStep, shift: int) -> PlanStep:
    return step._replace(source=step.source and step.source._replace(offset=step.source.offset + shift))
