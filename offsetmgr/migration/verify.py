"""Verifies a migration: reads both stores again and checks every partition of the plan, the source and the target.

Each result has a confidence (data rule "verdicts carry evidence"): *seen* (both values were read), *inferred* or
*unknown*. A partition with an unknown result never passes. The source is read before the target. A dual consumer writes
Kafka before ZooKeeper, so a target in Kafka never appears to be behind because of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import NamedTuple

from offsetmgr.core.ahead_policy import AheadPolicy
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
from offsetmgr.core.phase import Confidence
from offsetmgr.groups.last_writes import GroupPair, LastWriter, LastWrites
from offsetmgr.kafka.cluster.base import Logs
from offsetmgr.migration.apply import check_endpoint
from offsetmgr.migration.cluster_logs import ClusterLogs
from offsetmgr.migration.copied_offsets import last_writes
from offsetmgr.migration.group_batches import prefetch, read_batches
from offsetmgr.migration.plan import Action, GroupPlan, GroupScope, PlanStep
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.planner import unfit_name
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.verify_rules import (
    ReadLastWriter,
    Status,
    check_planned,
    check_unplanned,
    outside,
)


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


@dataclass(slots=True)
class VerifySummary:
    """The number of results by status. ``ok`` is True only if every partition passed."""

    counts: Counter[Status] = field(default_factory=Counter)
    groups: int = 0
    inferred: int = 0
    """The number of results that passed although they are only inferred."""

    def add(self, result: PartitionResult) -> None:
        """Adds one result to the counts."""
        self.counts[result.status] += 1
        self.inferred += result.status.ok and result.evidence is Confidence.INFERRED

    @property
    def ok(self) -> bool:
        """Whether every partition passed."""
        return all(status.ok for status in self.counts)


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
    _log_ranges: ClusterLogs | None = None

    def results(self) -> Iterator[PartitionResult]:
        """Yields one result for each partition, and completes the summary. Raises `PlanError` if a store is not the
        planned one."""
        check_endpoint("source", self.plan.header.source, self.source)
        check_endpoint("target", self.plan.header.target, self.target)
        planned: set[str] = set()
        existing = set(self.target.groups())
        for batch, sources in prefetch(self._read_source, read_batches(self.plan.groups_of(self.only))):
            planned.update(group.group for group in batch)
            yield from self._batch(batch, sources, existing)
        options = self.plan.header.options
        others = self.source.groups() if self.only is None else ()
        unplanned = (g for g in others if g not in planned and options.selects_group(g))
        for names in read_batches(unplanned):
            plans = [GroupPlan(name, options.target_group(name), ()) for name in names]
            yield from self._batch(plans, self._read_source(plans), existing)

    def _read_source(self, batch: list[GroupPlan]) -> dict[str, GroupOffsets]:
        return {found.group: found for found in self.source.scan(group.group for group in batch)}

    def _batch(
        self, batch: list[GroupPlan], sources: Mapping[str, GroupOffsets], existing: set[str]
    ) -> Iterator[PartitionResult]:
        known = [group.target_group for group in batch if group.target_group in existing]
        targets = {found.group: found for found in self.target.scan(known)} if known else {}
        log = self._load_logs(targets)
        for group in batch:
            self.summary.groups += 1
            target = targets.get(group.target_group, GroupOffsets(group.target_group, {}))
            for result in self._group(group, GroupPair(sources[group.group], target), log):
                self.summary.add(result)
                shifted = self._shift and result.source is not None
                yield result._replace(source=(result.source or 0) - self._shift) if shifted else result

    @property
    def _shift(self) -> int:
        return self.plan.header.options.shift

    @cached_property
    def _last_writes(self) -> LastWrites:
        return last_writes(self.source, self.target, window_s=0)

    def _load_logs(self, targets: Mapping[str, GroupOffsets]) -> ClusterLogs:
        """Returns the log ranges of all partitions in the target.

        The log ranges are read after the offsets (see `offsetmgr.core.log_range_cache`).
        """
        if self._log_ranges is None:
            self._log_ranges = ClusterLogs(self.open_logs())
        self._log_ranges.load(
            offsets=((tp, found.offset) for target in targets.values() for tp, found in target.offsets.items())
        )
        return self._log_ranges

    def _group(self, plan: GroupPlan, pair: GroupPair, log: ClusterLogs) -> Iterator[PartitionResult]:
        source, target = pair.source, pair.target
        hidden = source.hidden if source.offsets or not plan.steps else None  # finalize deletes offsets, and only them
        if failed := source.error or hidden or target.error or target.hidden:
            yield _group_result(plan, Status.UNREADABLE, Confidence.UNKNOWN, str(failed))
            return
        if (unfit := unfit_name(self.target, plan.target_group)) is not None:
            yield _group_result(plan, Status.REFUSED, Confidence.SEEN, f"target: {unfit}")
            return
        if plan.error:
            yield _group_result(plan, Status.REFUSED, Confidence.SEEN, f"could not be planned: {plan.error}")
        if self._shift:
            source = _shifted(source, self._shift)
        steps = {step.tp: _shifted_step(step, self._shift) if self._shift else step for step in plan.steps}
        if any(step.origin for step in plan.steps):
            source = _with_mapped_partitions(plan, source)
        readable, new = not source.errors and not target.errors, tuple.__new__
        compared = cache(lambda: self._last_writes.find([pair])[0])

        def last_writer(tp: TopicPartition) -> LastWriter | None:
            now = compared()  # the stores may have been read again, so the target may have moved
            writer = now.writers.get(tp)
            is_open = writer is not None and now.ahead(tp) and not writer.is_offset(now.target.offsets[tp].offset)
            return writer if is_open else None

        for tp in self._all_partitions(steps, source, target):
            step, source_offset, target_offset = steps.get(tp), source.offsets.get(tp), target.offsets.get(tp)
            unchanged = readable and step and target_offset and _is_unchanged(step, source_offset, target_offset)
            if unchanged and target_offset and log.holds(tp, target_offset.offset):
                offset, of_source = target_offset.offset, source_offset.offset if source_offset else None
                fields = (Status.EQUAL, Confidence.SEEN, offset, of_source, offset, log.end(tp), "")
                yield new(PartitionResult, (plan.group, plan.target_group, tp, *fields))
            else:
                yield self._partition(plan, tp, step, GroupPair(source, target), log, partial(last_writer, tp))

    def _rewind_is_missing(self, group: str, step: PlanStep, target_offset: Committed | None) -> bool:
        """Returns whether a planned rewind was not written. (A target beyond the planned offset proves nothing by
        itself: consumers may have advanced since the rewind.)"""
        if (
            step.action is not Action.REWIND
            or step.after is None
            or target_offset is None
            or target_offset.offset <= step.after.offset
        ):
            return False
        done = self.state.partitions(self.state.apply, group)
        return step.tp not in done.written and step.tp not in done.in_doubt

    def _why_missing(self, group: str, step: PlanStep) -> str:
        """Returns why the target lacks an offset, according to the journal."""
        if self.state.is_group_rolled_back(group):
            return "the target has no commit: the plan was rolled back"
        if step.action.writes and group not in self.state.apply.done:
            return "the target has no commit: not applied yet, run migrate apply"
        return "the target has no commit: deleted or expired since, so make a new plan"

    def _all_partitions(
        self, steps: Mapping[TopicPartition, PlanStep], source: GroupOffsets, target: GroupOffsets
    ) -> list[TopicPartition]:
        if steps.keys() == source.offsets.keys() == target.offsets.keys() and not (source.errors or target.errors):
            return sorted(steps)  # the most frequent case
        options = self.plan.header.options
        found = {*source.offsets, *source.errors, *target.offsets, *target.errors}
        if options.topics:
            found = {tp for tp in found if options.selects(tp)}
        return sorted(found.union(steps))

    def _partition(
        self,
        plan: GroupPlan,
        tp: TopicPartition,
        step: PlanStep | None,
        pair: GroupPair,
        log: ClusterLogs,
        read: ReadLastWriter,
    ) -> PartitionResult:
        source, target, word = pair.source, pair.target, self.plan.header.options.if_ahead is AheadPolicy.KEEP
        source_offset, target_offset = source.offsets.get(tp), target.offsets.get(tp)
        if unreadable := source.errors.get(tp) or target.errors.get(tp):
            status, evidence, detail = Status.UNREADABLE, Confidence.UNKNOWN, str(unreadable)
        else:
            if step is None:
                status, evidence, detail = check_unplanned(source_offset, target_offset, read)
            elif self._rewind_is_missing(plan.group, step, target_offset):
                status, evidence, detail = Status.NOT_REWOUND, Confidence.SEEN, "the rewind was not written"
            else:
                found = check_planned(step, source_offset, target_offset, log.end(tp), read, word=word)
                status, evidence, detail = found
                if status is Status.MISSING:
                    detail = self._why_missing(plan.group, step)
            if status.ok and target_offset is not None and not log.holds(tp, target_offset.offset):
                status, evidence, detail = outside(target_offset.offset, log.get(tp))
        return PartitionResult(
            plan.group,
            plan.target_group,
            tp,
            status,
            evidence,
            step.after.offset if step and step.after else None,
            source_offset.offset if source_offset else None,
            target_offset.offset if target_offset else None,
            log.end(tp),
            detail,
        )


def _group_result(plan: GroupPlan, status: Status, evidence: Confidence, detail: str) -> PartitionResult:
    return PartitionResult(plan.group, plan.target_group, None, status, evidence, detail=detail)


def _is_unchanged(step: PlanStep, source: Committed | None, target: Committed | None) -> bool:
    """Returns whether both sides still hold what the plan expects. This is a fast path for the most frequent case."""
    return (
        target is not None
        and source is not None
        and step.after is not None
        and step.source is not None
        and target.offset == step.after.offset
        and source.offset == step.source.offset
        and not step.action.rejects
        and step.action is not Action.KEEP_NEWER
        and step.origin is None
    )


def _shifted(source: GroupOffsets, shift: int) -> GroupOffsets:
    """Returns the source's offsets as the target holds them after a copy with `PlanOptions.shift`."""
    shifted = {tp: found._replace(offset=found.offset + shift) for tp, found in source.offsets.items()}
    return replace(source, offsets=shifted)


def _shifted_step(step: PlanStep, shift: int) -> PlanStep:
    return step._replace(source=step.source and step.source._replace(offset=step.source.offset + shift))


def _with_mapped_partitions(plan: GroupPlan, source: GroupOffsets) -> GroupOffsets:
    """Returns the source's offsets and errors, with byte positions under the partitions to which the plan maps them."""
    new = {step.source_tp: step.tp for step in plan.steps if step.origin is not None}
    return replace(
        source,
        offsets={new.get(tp, tp): found for tp, found in source.offsets.items()},
        errors={new.get(tp, tp): error for tp, error in source.errors.items()},
    )
