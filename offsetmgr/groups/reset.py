"""Plans the reset of a group: computes the offset at which the group continues, for each scenario of
kafka-consumer-groups.

`resolve` is pure. The semantics are those of Kafka's ConsumerGroupCommand: to-offset, shift-by and from-file are
clamped to the log (with a note); to-datetime and by-duration use the log's end if there is no record at or after the
time; to-current uses the log's end if nothing is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.batches import batched
from offsetmgr.core.errors import Conflict, GroupNotFound, OffsetMgrError, UnsupportedOperation, UsageError, value_of
from offsetmgr.core.log_origin import LogRangeCache
from offsetmgr.core.model import (
    ABSENT,
    Committed,
    LogRange,
    Offset,
    OffsetAndMetadata,
    TopicPartition,
    form_of,
)
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore, PartitionKinds
from offsetmgr.core.plurals import list_of
from offsetmgr.core.scenario import (
    Scenario,
    ShiftBy,
    ToCurrent,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToOffsets,
    ToTime,
)
from offsetmgr.core.selection import GroupSelection, TopicSelection
from offsetmgr.groups.edit_plan import GroupEditPlan, PlannedChange, plan_change, plan_replacement, replaced_data
from offsetmgr.groups.scan import require_known, scan_in_order
from offsetmgr.kafka.protocol.errors import NegativeOffset
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck

if TYPE_CHECKING:
    from offsetmgr.kafka.cluster import KafkaCluster

NEW_GROUP: Final = Advice("{create:new_group} creates a new one; {} shows the existing ones", Invocation("groups list"))
_REPLACES: Final = "replaces a negative offset, which an undo does not restore"
GROUPS_AT_ONCE: Final = 500
"""The number of groups whose log ranges are requested together."""
MAX_GROUPS_NAMED: Final = 5
"""The number of groups of a file that a hint names."""


class ResolvedOffset(NamedTuple):
    """The offset at which a group continues, and a note about it."""

    offset: int
    note: str = ""


def clamp(offset: int, log: LogRange) -> ResolvedOffset:
    """Returns ``offset``, clamped to the log as in Kafka's tool, with a note if the offset was outside the log."""
    if offset > log.end:
        return ResolvedOffset(log.end, f"clamped from {offset} to the log's end")
    if offset < log.start:
        return ResolvedOffset(log.start, f"clamped from {offset} to the log's start")
    return ResolvedOffset(offset)


def outside_log(offset: int, log: LogRange) -> str:
    """Returns a note if ``offset`` is outside the log, so that a consumer that starts there follows its
    ``auto.offset.reset``; else an empty string."""
    if log.start <= offset <= log.end:
        return ""
    place = f"below the log's start ({log.start})" if offset < log.start else f"beyond the log's end ({log.end})"
    return f"{place}: auto.offset.reset would decide"


def resolve(
    scenario: Scenario, explicit_offset: int | None, current: Offset, log: LogRange, for_time: int | None
) -> ResolvedOffset:
    """Returns the offset at which the group continues.

    ``explicit_offset`` is the partition's offset in `ToOffsets`. ``for_time`` is the offset that the broker found for
    `ToTime`. Raises `UsageError` if the scenario needs a committed offset and the partition has none, or if the
    scenario needs an explicit offset and ``explicit_offset`` is None.
    """
    match scenario:
        case ToEarliest():
            return ResolvedOffset(log.start)
        case ToLatest():
            return ResolvedOffset(log.end)
        case ToCurrent():
            if isinstance(current, Committed):
                return ResolvedOffset(current.offset)
            return ResolvedOffset(log.end, "nothing committed: the log's end")
        case ToOffset(offset):
            return clamp(offset, log)
        case ShiftBy(by):
            if not isinstance(current, Committed):
                raise UsageError("shift-by", "nothing is committed that could be shifted", Advice("use {to_offset}"))
            return clamp(current.offset + by, log)
        case ToTime():
            if for_time is None:
                return ResolvedOffset(log.end, "no record at or after that time: the log's end")
            return ResolvedOffset(for_time)
        case ToOffsets():
            if explicit_offset is None:
                raise UsageError("from-file", "gives no offset for this partition")
            return clamp(explicit_offset, log)


def plan_reset(
    store: OffsetStore,
    cluster: KafkaCluster,
    groups: Iterable[str],
    topics: TopicSelection,
    scenario: Scenario,
    *,
    create: bool = False,
) -> Iterator[GroupEditPlan]:
    """Plans a reset, group by group.

    If a topic is named exactly, every selected partition of the topic is reset, even if it has no commit. If a topic is
    selected by a pattern, or if no topics are given, only partitions with a commit are reset. `ToOffsets` resets only
    the partitions that it contains. Unless ``create`` is True, a group that the store does not know is an error.

    Raises any error that concerns the whole store or the whole cluster. An error that concerns a single partition is
    the problem of the partition's change. Raises `UsageError` for a store of Kafka 0.7, because its byte positions do
    not refer to the cluster's logs.
    """
    if store.capabilities.partitions is PartitionKinds.OF_BROKERS:
        raise UsageError(
            f"reset in {store.uri}",
            "it holds byte positions of Kafka 0.7, and no log can be read at them",
            Advice("{} commits a position unchanged", Invocation("offsets set")),
        )
    named = topics.named()
    counts = cluster.topics(named) if named else {}
    logs = _Logs(cluster, scenario)

    def wanted(group: str) -> Iterable[TopicPartition]:
        if isinstance(scenario, ToOffsets):
            return filter(topics.matches, scenario.offsets.get(group, {}))
        return topics.explicit_partitions(counts)

    scanned = scan_in_order(store, groups, wanted)
    for batch in batched(scanned, GROUPS_AT_ONCE):
        chosen: list[tuple[GroupOffsets, list[TopicPartition]]] = []
        for found in batch:
            if not (found.offsets or found.errors or found.error or create):
                require_known([store], [found.name], NEW_GROUP)
            chosen.append((found, _partitions(found, topics, scenario, counts)))
        logs.load(tp for _, partitions in chosen for tp in partitions)
        for found, partitions in chosen:
            yield _plan_group(store, logs, found, partitions, scenario, named)


def _partitions(
    found: GroupOffsets, topics: TopicSelection, scenario: Scenario, counts: Mapping[str, int]
) -> list[TopicPartition]:
    if isinstance(scenario, ToOffsets):
        unread = scenario.unread.get(found.name, GroupOffsets(found.name, {}))
        return sorted(filter(topics.matches, {*scenario.offsets.get(found.name, {}), *unread.errors}))
    return topics.expand(counts, [*found.offsets, *found.errors])


class _Logs:
    """The log ranges of partitions. For `ToTime`, the object also contains the offset of the first record at or after
    the time. Both are requested in bulk, and only once for each partition."""

    def __init__(self, cluster: KafkaCluster, scenario: Scenario) -> None:
        self._cluster = cluster
        self._timestamp = scenario.timestamp_ms if isinstance(scenario, ToTime) else None
        self.ranges = LogRangeCache(cluster.log_ranges)
        self.times: dict[TopicPartition, int | OffsetMgrError | None] = {}

    def load(self, partitions: Iterable[TopicPartition]) -> None:
        """Requests the log ranges of the partitions for which it has not requested them yet. Raises
        `UnsupportedOperation` if a leader cannot find offsets by time; in this case nothing is reset."""
        needed = set(partitions)
        self.ranges.load(needed)
        if self._timestamp is not None and (new := needed - self.times.keys()):
            self.times.update(self._cluster.offsets_for_time(new, self._timestamp))
            for found in self.times.values():
                if isinstance(found, UnsupportedOperation):
                    raise found


def _plan_group(
    store: OffsetStore,
    logs: _Logs,
    found: GroupOffsets,
    partitions: list[TopicPartition],
    scenario: Scenario,
    named_topics: Collection[str],
) -> GroupEditPlan:
    file = scenario if isinstance(scenario, ToOffsets) else ToOffsets({})
    unread = file.unread.get(found.name, GroupOffsets(found.name, {}))
    if (problem := found.error or unread.error) is not None:
        return GroupEditPlan(found.name, (), problem)
    if not partitions:
        return GroupEditPlan(found.name, (), _nothing_to_reset(store, found.name, scenario))
    explicit_offsets = file.offsets.get(found.name, {})

    def change(tp: TopicPartition) -> PlannedChange:
        current: Offset = found.offsets.get(tp, ABSENT)
        log, for_time, unreadable = logs.ranges.known[tp], logs.times.get(tp), found.errors.get(tp)
        replaces = isinstance(unreadable, NegativeOffset) and tp.topic in named_topics
        unreadable = (None if replaces else unreadable) or file.rejected.get(tp) or unread.errors.get(tp)
        if unreadable is not None:
            return PlannedChange(tp, current, None, problem=unreadable, writes=False)
        try:
            resolved = resolve(scenario, explicit_offsets.get(tp), current, value_of(log), value_of(for_time))
        except OffsetMgrError as error:
            return PlannedChange(tp, current, None, problem=error, writes=False)
        after = OffsetAndMetadata(resolved.offset)
        note = "; ".join(filter(None, (_REPLACES if replaces else "", resolved.note)))
        return plan_change(tp, current, after, store.capabilities, note=note, keeps_metadata=True)

    changes = tuple(change(tp) for tp in partitions)
    return GroupEditPlan(found.name, changes, unrecognised=found.unrecognised)


def _nothing_to_reset(store: OffsetStore, group: str, scenario: Scenario) -> GroupNotFound:
    what = f"group {group!r}"
    if not isinstance(scenario, ToOffsets):
        offsets = "start offset" if store.capabilities.acknowledges else "committed offsets"
        return GroupNotFound(what, f"it has no {offsets} in these topics", Advice("name the topic with {topic}"))
    if scenario.offsets.get(group):
        return GroupNotFound(
            what, "the file has no offsets for it in these topics", Advice("correct or leave out {topic}")
        )
    if named := sorted(name for name, offsets in scenario.offsets.items() if offsets):
        hint = f"groups in the file: {list_of(named, MAX_GROUPS_NAMED)}"
    else:
        hint = "the file has no offsets at all; choose another file"
    return GroupNotFound(what, "the file has no offsets for it", hint)


def offsets_of(
    entries: Iterable[GroupOffsets], crossing: CrossClusterCheck, groups: GroupSelection
) -> tuple[ToOffsets, Counter[str]]:
    """Returns the offsets in a snapshot, and counts the metadata of the selected groups, which a reset does not write,
    by its form."""
    by_group: dict[str, dict[TopicPartition, int]] = {}
    rejected: dict[TopicPartition, OffsetMgrError] = {}
    unread: dict[str, GroupOffsets] = {}
    dropped: Counter[str] = Counter()
    for entry in entries:
        if entry.errors or entry.error:
            unread[entry.name] = entry
        crossing.load_topics({tp.topic for tp in entry.offsets})
        by_group[entry.name] = {tp: committed.offset for tp, committed in entry.offsets.items()}
        for tp, committed in entry.offsets.items():
            if (error := crossing.recreation_error(tp, committed)) is not None:
                rejected[tp] = error
        if groups.matches(entry.name):
            dropped.update(form_of(one.metadata) for one in entry.offsets.values() if one.metadata)
    return ToOffsets(by_group, rejected, unread), dropped


def only_partition(store: OffsetStore, groups: list[str], topics: TopicSelection) -> tuple[str, TopicPartition, int]:
    """Returns the only selected group and partition, and the committed offset."""
    named = topics.numbered(store.capabilities.partitions)
    if len(groups) != 1 or len(named) != 1:
        hint = Advice("as in {group} G {topic=orders:3} {skip=1}")
        raise UsageError(Advice("{skip}"), "needs exactly one group and one partition", hint)
    (group,), (partition,) = groups, named
    current = store.fetch(group, [partition])[partition]
    if not isinstance(current, Committed):
        hint = Advice("use {to_offset}")
        raise GroupNotFound(f"group {group!r}", f"has committed nothing in {partition}", hint)
    return group, partition, current.offset


def unless_moved(plan: GroupEditPlan, committed: int) -> GroupEditPlan:
    """Returns the plan. If the group has committed since its offset ``committed`` was read, the change gets the problem
    `Conflict`, because the group would skip other records."""

    def checked(change: PlannedChange) -> PlannedChange:
        before = change.before.offset if isinstance(change.before, Committed) else None
        if change.problem is not None or before == committed:
            return change
        why = f"the group has moved from {committed} to {before}, so it is not stuck"
        return change._replace(problem=Conflict(str(change.partition), why), writes=False)

    return replace(plan, changes=tuple(map(checked, plan.changes)))


def plan_set(
    store: OffsetStore,
    group: str,
    to: OffsetAndMetadata | Mapping[TopicPartition, OffsetAndMetadata],
    topics: TopicSelection,
    *,
    create: bool = False,
    keeps_metadata: bool = True,
) -> GroupEditPlan:
    """Plans to set exact offsets: one for all partitions of ``topics``, or one for each partition. `OutsideLogChecks`
    compares them with the logs.

    Partitions that are named by number, or that have an offset of their own, are set even if others cannot be read, and
    even if their data is no offset. ``keeps_metadata`` is as in `plan_change`.
    """
    named = list(to) if isinstance(to, Mapping) else topics.numbered(store.capabilities.partitions)
    (found,) = scan_in_order(store, [group], lambda _group: named)
    if found.error is not None:
        raise found.error
    if not (found.offsets or found.errors or create):
        require_known([store], [group], NEW_GROUP)
    if isinstance(to, OffsetAndMetadata):
        to = dict.fromkeys(filter(topics.matches, [*named, *found.offsets, *found.errors]), to)
    if not to:
        hint = Advice("name partitions, as in {topic=t:0,1}")
        raise GroupNotFound(f"group {group!r}", "has no committed offsets in these topics", hint)

    def change(tp: TopicPartition, after: OffsetAndMetadata) -> PlannedChange:
        error = found.errors.get(tp)
        if error is not None and not isinstance(error, NegativeOffset):
            return plan_replacement(store, tp, error, after, named)
        note, before = "" if error is None else _REPLACES, found.offsets.get(tp, ABSENT)
        return plan_change(tp, before, after, store.capabilities, note=note, keeps_metadata=keeps_metadata)

    changes = tuple(change(tp, after) for tp, after in sorted(to.items()))
    raw = replaced_data(changes, found.errors)
    return GroupEditPlan(group, changes, unrecognised=found.unrecognised, raw=raw)
