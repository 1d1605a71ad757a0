"""Copies Kafka's offsets to ZooKeeper for partitions without traffic, when a group goes back to ZooKeeper.

A dual member never raises the ZooKeeper offset of a partition without traffic. The member starts from the larger of
both offsets, and assumes that both stores already hold this offset. The copy only moves offsets forward. Each write is
conditional on the version that was read. If a consumer commits at the same time, its commit is kept and the write is
rejected. The operation log records the copy, with a file of before-images that undoes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError
from offsetmgr.core.model import ABSENT, Absent, Committed, Offset, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupOffsets, OffsetStore
from offsetmgr.groups.before_images import default_image_path
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan, PlannedChange
from offsetmgr.groups.last_writer import LastWriter
from offsetmgr.groups.last_writes import GroupPair
from offsetmgr.groups.saved_edit import execute_saved, part
from offsetmgr.migration.bounce_checkpoint import OffsetCopy
from offsetmgr.migration.copied_offsets import last_writes
from offsetmgr.migration.group_observer import GroupView
from offsetmgr.migration.ownership_history import GroupHistory, offset_or
from offsetmgr.stores.dual_policy import catch_up_changes

OPERATION: Final = "runbook bounce copy"
"""The name of a copy in the operation log."""


def behind(
    history: GroupHistory, writers: Mapping[TopicPartition, LastWriter] = MappingProxyType({})
) -> dict[TopicPartition, Change]:
    """Returns the partitions without traffic whose ZooKeeper offset is below Kafka's, each with the write that raises
    the ZooKeeper offset. A dual member uses the larger offset of a partition that it owns. A partition without an owner
    is left out unless Kafka was written last, and every partition is left out if ZooKeeper was (``writers``)."""
    observation = history.latest
    if observation is None:
        return {}
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
    if found is None:
        return {}
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
        tp: OffsetCopy(tp.topic, tp.partition, offset_or(c.expected, -1) if c.expected else None, c.after.offset)
        for tp, c in sorted(changes.items())
        if c.after is not None
    }
    record(list(copies.values()))
    rows = (PlannedChange(tp, c.expected or ABSENT, c.after) for tp, c in sorted(changes.items()))
    with EditPlan.of([GroupEditPlan(group, tuple(rows), by_partition=True)]) as plan:
        (result,) = execute_saved(store, plan, default_image_path(OPERATION), part(OPERATION)).results
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
