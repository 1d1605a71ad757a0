"""Applies a plan: writes exactly the offsets of the plan. A partition is written only if the target still holds the
offset that the plan recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError, PlanError, RecreatedTopic
from offsetmgr.core.log_origin import LogOrigin
from offsetmgr.core.model import ABSENT, Absent, Committed, Offset, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupOffsets, OffsetStore, has_identity
from offsetmgr.groups.before_images import default_image_path
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan, PlannedChange
from offsetmgr.groups.execute import part, recorded, start_edit
from offsetmgr.groups.last_writes import GroupPair, LastWriter
from offsetmgr.kafka.cluster import Logs
from offsetmgr.migration.bounce_checkpoint import OffsetCopy
from offsetmgr.migration.cluster_logs import ClusterLogs
from offsetmgr.migration.copied_offsets import last_writes
from offsetmgr.migration.journaled_writer import GroupWrite, JournaledWriter, Report, read_batches
from offsetmgr.migration.observation import GroupHistory, GroupView, offset_or
from offsetmgr.migration.plan import GroupPlan, PlanFile, PlanSummary, StoreEndpoint
from offsetmgr.migration.progress import MigrationState
from offsetmgr.stores.dual_policy import catch_up_changes
from offsetmgr.stores.known_logs import NEW_LOG

# Copies Kafka's offsets to ZooKeeper for partitions without traffic, when a group goes back to ZooKeeper. A dual
# member never raises the ZooKeeper offset of a partition without traffic. The member starts from the larger of both
# offsets, and assumes that both stores already hold this offset. The copy only moves offsets forward. Each write is
# conditional on the version that was read. If a consumer commits at the same time, its commit is kept and the write
# is rejected. The operation log records the copy, with a file of before-images that undoes it.

OPERATION: Final = "runbook bounce copy"
"""The name of a copy in the operation log."""


def behind(
    history: GroupHistory, writers: Mapping[TopicPartition, LastWriter] = MappingProxyType({})
) -> dict[TopicPartition, Change]:
    """Returns the partitions without traffic whose ZooKeeper offset is below Kafka's, each with the write that raises
    the ZooKeeper offset. A dual member uses the larger offset of a partition that it owns. A partition without an owner
    is left out unless Kafka was written last, and every partition is left out if ZooKeeper was (``writers``)."""
    observation = history.latest
    in_zookeeper: dict[TopicPartition, Offset] = {}
    in_kafka: dict[TopicPartition, Offset] = {}
    for tp, kafka in observation.kafka.items():
        zookeeper, partition = observation.zookeeper.get(tp), history.partitions.get(tp)
        if partition is not None and (partition.zookeeper.changes or partition.new_kafka_changes):
            continue
        last = writers[tp].store if tp in writers else None
        kafka_is_last = partition is not None if last is None else last.offset == offset_or(kafka)
        if isinstance(zookeeper, Committed) and not kafka_is_last:
            continue
        if isinstance(kafka, Committed) and isinstance(zookeeper, Committed | Absent):
            in_zookeeper[tp], in_kafka[tp] = zookeeper, kafka
    return catch_up_changes(in_zookeeper, in_kafka)


def read_writers(view: GroupView, history: GroupHistory) -> Mapping[TopicPartition, LastWriter]:
    """Reads the last writers of the partitions in which Kafka is ahead of ZooKeeper."""
    found = history.latest
    sides = [
        GroupOffsets(found.group, {tp: one for tp, one in side.items() if isinstance(one, Committed)})
        for side in (found.zookeeper, found.kafka)
    ]
    (pair,) = last_writes(view.zookeeper, view.kafka).find([GroupPair(sides[0], sides[1])])
    return {tp: writer for tp, writer in pair.writers.items() if pair.ahead(tp)}


def copy_forward(
    store: OffsetStore,
    group: str,
    changes: dict[TopicPartition, Change],
    *,
    record: Callable[[list[OffsetCopy]], None],
) -> list[OffsetCopy]:
    """Executes the writes and returns their outcomes. ``record`` is called before the first write and must make the
    before-images durable.

    If a write is rejected because a consumer has committed, and ZooKeeper now has at least the offset to copy, the
    partition counts as caught up. If ZooKeeper is still behind in a partition after its write failed, the function sets
    the outcomes of all partitions and then raises the error of the write.
    """
    copies = {
        tp: OffsetCopy(tp.topic, tp.partition, offset_or(c.expected) if c.expected else None, c.after.offset)
        for tp, c in sorted(changes.items())
        if c.after is not None
    }
    record(list(copies.values()))
    rows = (PlannedChange(tp, c.expected or ABSENT, c.after) for tp, c in sorted(changes.items()))
    with EditPlan.of([GroupEditPlan(group, tuple(rows), by_partition=True)]) as plan:
        (result,) = recorded(start_edit(store, plan, default_image_path(OPERATION)), plan, part(OPERATION))
    failed: OffsetMgrError | None = None
    for tp, copy in copies.items():
        outcome = result.outcomes[tp]
        if outcome.status is not EditStatus.FAILED:
            copy.outcome = "written"
            continue
        found = store.fetch(group, [tp])[tp] if isinstance(outcome.error, Conflict) else None
        if isinstance(found, Committed) and found.offset >= copy.after:
            copy.outcome = "caught-up"
            continue
        failed = outcome.error
        copy.outcome = str(failed)
    if failed is not None:
        raise failed
    return list(copies.values())


@dataclass(slots=True)
class ApplyReport(Report):
    """The result of `apply`: a `Report`, and the counts of the ``planned`` groups. ``operation`` is the id of this run
    in the operation log. ``resumed`` is True if an earlier run had written offsets."""

    planned: PlanSummary = field(default_factory=PlanSummary)
    operation: str = ""
    resumed: bool = False


def check_endpoint(side: str, planned: StoreEndpoint, store: OffsetStore) -> None:
    """Raises `PlanError` if ``store`` is not the store for which the plan was made (data rule "migration is a state
    machine on disk")."""
    found = store.identity()
    if found.kind != planned.kind or not has_identity(store, planned.id):
        raise PlanError(
            f"{side} {store.uri}",
            f"the plan was made for {planned.kind} {planned.id} ({planned.how}), this is {found.kind} {found.id}"
            f" ({found.how})",
            "make a plan for this cluster",
        )


def require_comparison(plan: PlanFile) -> None:
    """Raises `PlanError` if the plan does not record whether both sides belong to the same Kafka cluster."""
    if plan.header.compared is None:
        why = "an older offsetmgr created it and did not compare the Kafka clusters of both sides"
        raise PlanError(f"plan {plan.path}", why, "create a new plan")


def apply(plan: PlanFile, state: MigrationState, writer: JournaledWriter, logs: Logs | None) -> Report:
    """Applies a plan, or the groups of ``writer.plan_run.only``, or resumes an earlier run.

    A group that was finalized or rolled back by itself is not written: the report counts a finalized group as skipped,
    and names a group that was rolled back in ``closed``.

    ``writer.store`` is the target. Groups that could not be planned and steps that the plan refuses are not written;
    the report counts only the steps to write. ``logs`` is the cluster against which the plan was checked: an
    offset that is now outside its log (because of retention, or because the topic was recreated) is rejected too.

    Raises `PlanError` if the target or the cluster differs from the plan's target or cluster, `JournalError` if the
    plan was rolled back or finalized, and any error from reading the cluster.
    """
    check_endpoint("target", plan.header.target, writer.store)
    state.reject_ended(plan.path)
    report, closed = writer.report, dict[str, str]()

    def tasks() -> Iterator[GroupWrite]:
        for group in plan.groups_of(writer.plan_run.only):
            if state.is_group_rolled_back(group.name):
                closed[group.name] = "it was rolled back; make a new plan for it"
            elif group.name in state.apply.done or group.name in state.finalized:
                report.skipped += 1
            elif task := _task(group, state):
                yield task

    recreated = recreated_topics(plan, writer.store)
    todo = without_recreated(tasks(), recreated) if recreated else tasks()
    if logs is not None and plan.header.cluster_id is not None:
        found = LogOrigin(logs.cluster_id(), "", logs.brokers())
        if not found.is_named(plan.header.cluster_id):
            why = f"the plan was checked against the logs of {plan.header.cluster_id}, this is {found.name}"
            raise PlanError("Kafka cluster", why, "name the plan's cluster")
        todo = _within_log_ranges(todo, logs)
    writer.run(todo)
    report.closed = closed
    return report


def recreated_topics(plan: PlanFile, target: OffsetStore) -> dict[str, str]:
    """Returns the plan's topics that were deleted and recreated since the plan was made, each with the reason."""
    planned = plan.summary.topic_ids
    found: dict[str, str] = {}
    for topic, now in target.topic_ids(planned).items():
        if (was := planned[topic]) and was != now:
            found[topic] = f"{NEW_LOG}: its topic id was {was} when the plan was made, and is {now} now"
    for topic, created in target.topic_creation_times(planned).items():
        if created > plan.header.created_at:
            found[topic] = f"{NEW_LOG}: it was created after the plan was made"
    return found


def without_recreated(
    tasks: Iterator[GroupWrite], recreated: Mapping[str, str], hint: str = "make a new plan"
) -> Iterator[GroupWrite]:
    """Yields the tasks, in which the partitions of recreated topics are marked as rejected, because the offsets to
    write refer to deleted logs. A deletion writes no offset."""
    for task in tasks:
        rejected: dict[TopicPartition, OffsetMgrError] = {
            step.tp: RecreatedTopic(str(step.tp), recreated[step.tp.topic], hint)
            for step in task.steps
            if step.tp.topic in recreated and step.after is not None
        }
        yield replace(task, rejected={**task.rejected, **rejected}) if rejected else task


def _within_log_ranges(tasks: Iterator[GroupWrite], logs: Logs) -> Iterator[GroupWrite]:
    """Yields the tasks, in which partitions whose planned offset is outside the log are marked as rejected. Groups
    share topics, so the log range of each partition is requested only once in a run."""
    ranges = ClusterLogs(logs)
    for batch in read_batches(tasks):
        ranges.load({step.tp for task in batch for step in task.steps})
        for task in batch:
            found = ((s.tp, ranges.rejection(s.tp, s.after.offset)) for s in task.steps if s.after is not None)
            rejected = {tp: error for tp, error in found if error is not None}
            yield replace(task, rejected={**task.rejected, **rejected}) if rejected else task


def _task(group: GroupPlan, state: MigrationState) -> GroupWrite | None:
    steps = group.writes()
    in_doubt: frozenset[TopicPartition] = frozenset()
    if group.name in state.apply.intents:
        applied = state.partitions(state.apply, group.name)
        steps = [step for step in steps if step.tp not in applied.written and step.tp not in applied.unchanged]
        in_doubt = applied.in_doubt
    if not steps:
        return None
    # In another cluster, a larger offset that apply did not write is not known to be newer.
    keep = not any(step.is_translated for step in steps)
    return GroupWrite(group.name, group.target_group, tuple(steps), group.guard, in_doubt, keep_newer=keep)
