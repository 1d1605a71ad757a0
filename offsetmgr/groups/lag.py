"""Lag: the distance of each committed offset from the end of its log.

Log ends are read in bulk after the commits, so that an active group never has a negative lag.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition
from offsetmgr.core.model import ABSENT, BrokerPartition, Committed, LogRange, Offset, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
from offsetmgr.groups.selection import ALL_TOPICS, TopicSelection, require_known, scan_in_order
from offsetmgr.kafka.cluster.base import Cluster

BATCH: Final = 100_000
"""The number of offsets whose log ranges are requested together; it limits memory, and most clusters have fewer."""

STALE: Final = "older than Kafka's"
"""The start of the note of a row whose group has a larger offset in Kafka, or the only one. The lag then counts from
that one."""

NOTHING: Final = "nothing committed"
"""The note of a partition without a commit."""


class LagRow(NamedTuple):
    """One partition of one group; None means not known.

    ``lag`` counts records from the committed offset, or from the log's start if that is larger. It is unknown if the
    committed offset is beyond the log's end (for example a recreated topic): ``note`` mentions it. ``error`` is why the
    partition could not be read.
    """

    group: str
    partition: TopicPartition
    committed: Offset
    log_start: int | None
    log_end: int | None
    lag: int | None
    note: str = ""
    error: OffsetMgrError | None = None


class GroupLag(NamedTuple):
    """The rows of one group, sorted by partition; ``error`` is set if the whole group could not be read."""

    group: str
    rows: list[LagRow]
    error: OffsetMgrError | None = None


def needs_log_range(row: LagRow) -> bool:
    """Returns whether a row has a lag, an unknown lag or a note."""
    return row.lag is None or row.lag > 0 or bool(row.note)


def lag_of(committed: int, log: LogRange) -> int | None:
    """Returns the records between ``committed`` and the log's end; None if it is beyond the end."""
    return log.end - max(committed, log.start) if committed <= log.end else None


def lag(
    store: OffsetStore,
    cluster: Cluster | None,
    groups: Iterable[str],
    topics: TopicSelection = ALL_TOPICS,
    *,
    strict: bool = False,
    also: Mapping[str, Collection[TopicPartition]] = MappingProxyType({}),
    newer: OffsetStore | None = None,
) -> Iterator[GroupLag]:
    """Yields the lag of groups in their order; without a cluster the lag and the logs are unknown.

    ``newer`` is the Kafka store of the same cluster, for groups that may have left ZooKeeper: if it has a larger
    offset, or the only one, the lag counts from that, and the note names it.

    With ``strict``, a group that the store does not know, and of which ``newer`` has nothing, is `GroupNotFound`.
    ``also`` are partitions to report even without a commit. It makes one scan of the store, and one bulk request to the
    cluster for each `BATCH` of offsets.
    """
    logs: dict[TopicPartition, LogRange | OffsetMgrError] = {}
    batch: list[GroupOffsets] = []
    waiting = 0
    for found in scan_in_order(store, groups):
        if strict and newer is None:
            _require_known(store, found)
        batch.append(found)
        waiting += len(found.offsets)
        if waiting >= BATCH:
            yield from _flush(store, cluster, batch, topics, logs, also, newer, strict=strict)
            batch, waiting = [], 0
    yield from _flush(store, cluster, batch, topics, logs, also, newer, strict=strict)


def _require_known(store: OffsetStore, *read: GroupOffsets) -> None:
    """Raises `GroupNotFound` for a group without offsets that the store does not know."""
    if not any(found.offsets or found.errors or found.error for found in read):
        require_known(store, [read[0].group])


def _flush(
    store: OffsetStore,
    cluster: Cluster | None,
    batch: list[GroupOffsets],
    topics: TopicSelection,
    logs: dict[TopicPartition, LogRange | OffsetMgrError],
    also: Mapping[str, Collection[TopicPartition]],
    newer: OffsetStore | None,
    *,
    strict: bool,
) -> Iterator[GroupLag]:
    """Yields the rows of one batch. ``logs`` are the known ranges; those that a commit has passed are requested
    again."""
    everything = not topics.patterns
    in_kafka = {} if newer is None else {found.group: found for found in newer.scan([found.group for found in batch])}
    wanted: set[TopicPartition] = set()
    for found in batch:
        there = in_kafka.get(found.group)
        if strict and there is not None:
            _require_known(store, found, there)
        for tp, committed in (*found.offsets.items(), *(there.offsets.items() if there is not None else ())):
            log = logs.get(tp)
            if isinstance(tp.partition, BrokerPartition):
                continue  # a byte position has no lag in messages
            if (log is None or (isinstance(log, LogRange) and committed.offset > log.end)) and (
                everything or topics.matches(tp)
            ):
                wanted.add(tp)
        wanted.update(tp for tp in also.get(found.group, ()) if tp not in logs)
    if wanted and cluster is not None:
        logs.update(_named(cluster, cluster.log_ranges(wanted)))
    for found in batch:
        there = in_kafka.get(found.group)
        held: dict[TopicPartition, Offset] = {**found.offsets}
        if there is not None and found.error is None:
            held |= {tp: ABSENT for tp in (*there.offsets, *there.errors) if tp not in held and tp not in found.errors}
        rows = [
            _row(found.group, tp, offset, logs, _ahead(there, tp, offset))
            for tp, offset in held.items()
            if everything or topics.matches(tp)
        ]
        rows += [
            LagRow(found.group, tp, ABSENT, None, None, None, "unreadable", error)
            for tp, error in found.errors.items()
            if topics.matches(tp)
        ]
        rows += [
            uncommitted(found.group, tp, logs.get(tp))
            for tp in also.get(found.group, ())
            if found.error is None and tp not in held and tp not in found.errors
        ]
        rows.sort(key=_partition)
        # An unreadable value of Kafka is missing in the rows: one row has its error, or else the group has it.
        unread = None if there is None or any(row.error is there.error for row in rows) else there.error
        yield GroupLag(found.group, rows, found.error or unread)


def _named(
    cluster: Cluster, logs: Mapping[TopicPartition, LogRange | OffsetMgrError]
) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
    """Returns the logs, and distinguishes missing topics from missing partitions."""
    unknown = {tp.topic for tp, log in logs.items() if isinstance(log, UnknownTopicOrPartition)}
    if not unknown:
        return logs
    there = cluster.topics(sorted(unknown))
    gone = {
        topic: UnknownTopicOrPartition(f"topic {topic}", "does not exist in this Kafka cluster")
        for topic in unknown.difference(there)
    }
    return {tp: gone.get(tp.topic, log) for tp, log in logs.items()}


def _ahead(in_kafka: GroupOffsets | None, tp: TopicPartition, held: Offset) -> Committed | OffsetMgrError | None:
    """Returns the larger offset of the partition in Kafka, or the error; None if there is none. Any offset is larger
    than none."""
    if in_kafka is None:
        return None
    if (error := in_kafka.error or in_kafka.errors.get(tp)) is not None:
        return error
    found = in_kafka.offsets.get(tp)
    if found is None or (isinstance(held, Committed) and found.offset <= held.offset):
        return None
    return found


def _row(
    group: str,
    tp: TopicPartition,
    held: Offset,
    logs: Mapping[TopicPartition, LogRange | OffsetMgrError],
    ahead: Committed | OffsetMgrError | None,
) -> LagRow:
    log = logs.get(tp)
    notes = []
    if isinstance(ahead, Committed):
        notes.append(f"{STALE} {ahead.offset}")
    elif ahead is not None:
        notes.append("Kafka's offset unknown")
    behind: int | None = None
    newest = ahead if isinstance(ahead, Committed) else held
    if log is None:
        notes += ["a byte position of Kafka 0.7"] if isinstance(tp.partition, BrokerPartition) else []
    elif isinstance(log, OffsetMgrError):
        notes.append("log unknown")
    elif isinstance(newest, Committed):
        if (behind := lag_of(newest.offset, log)) is None:
            notes.append("beyond the log's end")
        elif newest.offset < log.start:
            notes.append("below the log's start")
    error = log if isinstance(log, OffsetMgrError) else ahead if isinstance(ahead, OffsetMgrError) else None
    start, end = (log.start, log.end) if isinstance(log, LogRange) else (None, None)
    return LagRow(group, tp, held, start, end, behind, "; ".join(notes), error)


def uncommitted(group: str, tp: TopicPartition, log: LogRange | OffsetMgrError | None) -> LagRow:
    """Returns the row of a partition without a commit: the lag is unknown, the log may be known."""
    if isinstance(log, LogRange):
        return LagRow(group, tp, ABSENT, log.start, log.end, None, NOTHING)
    return LagRow(group, tp, ABSENT, None, None, None, NOTHING, log)


def _partition(row: LagRow) -> TopicPartition:
    return row.partition
