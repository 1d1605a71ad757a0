"""Lag: how far behind the end of its log each committed offset is.

Log ends are asked for in bulk and after the commits were read, so that a live group never shows a negative lag.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from offsetmgr.cluster.base import Cluster
from offsetmgr.errors import OffsetMgrError, UnknownTopicOrPartition
from offsetmgr.model import ABSENT, BrokerPartition, Committed, LogRange, Offset, TopicPartition
from offsetmgr.operations.selection import ALL_TOPICS, TopicSelection, require_known, scan_in_order
from offsetmgr.stores.base import GroupOffsets, OffsetStore

BATCH: Final = 100_000
"""Offsets whose log ranges are asked for together; bounds memory, and is more than most clusters have."""

STALE: Final = "older than Kafka's"
"""How the note of a row begins whose group has a larger offset in Kafka, from which the lag counts."""

NOTHING: Final = "nothing committed"
"""The note of a row whose partition has no commit."""


class LagRow(NamedTuple):
    """One partition of one group; None is "not known".

    ``lag`` counts records from the committed offset, or from the log's start where that lies above it. It is unknown
    where the committed offset lies beyond the log's end (a topic made anew, say): ``note`` says so.
    ``error`` is why the partition could not be read.
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
    """All rows of one group, sorted by partition; ``error`` where the group as a whole could not be read."""

    group: str
    rows: list[LagRow]
    error: OffsetMgrError | None = None


def needs_a_look(row: LagRow) -> bool:
    """Whether a row is more than a partition without lag: behind, of unknown lag, or with something to say of it."""
    return row.lag is None or row.lag > 0 or bool(row.note)


def lag_of(committed: int, log: LogRange) -> int | None:
    """Records between ``committed`` and the log's end; None where it lies beyond the end."""
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
    """The lag of groups, in the order asked; without a cluster it is unknown, and so are the logs.

    ``newer`` is the Kafka store of the same cluster, for groups that may have left ZooKeeper: where it holds a larger
    offset, the lag counts from that one, and the note names it.

    ``strict``: a group that the store does not know is `GroupNotFound`. ``also``: partitions that a group is asked
    for even where it has nothing committed.
    One scan of the store, and one bulk question to the cluster for each `BATCH` of offsets.
    """
    logs: dict[TopicPartition, LogRange | OffsetMgrError] = {}
    batch: list[GroupOffsets] = []
    waiting = 0
    for found in scan_in_order(store, groups):
        if strict and not (found.offsets or found.errors or found.error):
            require_known(store, [found.group])
        batch.append(found)
        waiting += len(found.offsets)
        if waiting >= BATCH:
            yield from _flush(cluster, batch, topics, logs, also, newer)
            batch, waiting = [], 0
    yield from _flush(cluster, batch, topics, logs, also, newer)


def _flush(
    cluster: Cluster | None,
    batch: list[GroupOffsets],
    topics: TopicSelection,
    logs: dict[TopicPartition, LogRange | OffsetMgrError],
    also: Mapping[str, Collection[TopicPartition]],
    newer: OffsetStore | None,
) -> Iterator[GroupLag]:
    """Rows of one batch. ``logs`` are the ranges known so far; those that a commit has outrun are asked for again."""
    everything = not topics.patterns
    in_kafka = {} if newer is None else {found.group: found for found in newer.scan([found.group for found in batch])}
    wanted: set[TopicPartition] = set()
    for found in batch:
        for tp, committed in found.offsets.items():
            log = logs.get(tp)
            if isinstance(tp.partition, BrokerPartition):
                continue  # a byte position: no log of messages tells how far it is behind
            if (log is None or (isinstance(log, LogRange) and committed.offset > log.end)) and (
                everything or topics.matches(tp)
            ):
                wanted.add(tp)
        wanted.update(tp for tp in also.get(found.group, ()) if tp not in logs)
    if wanted and cluster is not None:
        logs.update(_named(cluster, cluster.log_ranges(wanted)))
    for found in batch:
        rows = [
            _row(found.group, tp, committed, logs, _ahead(in_kafka.get(found.group), tp, committed))
            for tp, committed in found.offsets.items()
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
            if found.error is None and tp not in found.offsets and tp not in found.errors
        ]
        rows.sort(key=_partition)
        yield GroupLag(found.group, rows, found.error)


def _named(
    cluster: Cluster, logs: Mapping[TopicPartition, LogRange | OffsetMgrError]
) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
    """The logs, with what brokers say alike of topics and of partitions that do not exist told apart."""
    unknown = {tp.topic for tp, log in logs.items() if isinstance(log, UnknownTopicOrPartition)}
    if not unknown:
        return logs
    there = cluster.topics(sorted(unknown))
    gone = {
        topic: UnknownTopicOrPartition(f"topic {topic}", "does not exist in this Kafka cluster")
        for topic in unknown.difference(there)
    }
    return {tp: gone.get(tp.topic, log) for tp, log in logs.items()}


def _ahead(
    in_kafka: GroupOffsets | None, tp: TopicPartition, committed: Committed
) -> Committed | OffsetMgrError | None:
    """The larger offset that Kafka holds of the partition, or why it is not known; None where there is none."""
    if in_kafka is None:
        return None
    if (error := in_kafka.error or in_kafka.errors.get(tp)) is not None:
        return error
    found = in_kafka.offsets.get(tp)
    return found if found is not None and found.offset > committed.offset else None


def _row(
    group: str,
    tp: TopicPartition,
    committed: Committed,
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
    if log is None:
        notes += ["a byte position of Kafka 0.7"] if isinstance(tp.partition, BrokerPartition) else []
    elif isinstance(log, OffsetMgrError):
        notes.append("log unknown")
    else:
        from_here = ahead.offset if isinstance(ahead, Committed) else committed.offset
        if (behind := lag_of(from_here, log)) is None:
            notes.append("beyond the log's end")
        elif from_here < log.start:
            notes.append("below the log's start")
    error = log if isinstance(log, OffsetMgrError) else ahead if isinstance(ahead, OffsetMgrError) else None
    start, end = (log.start, log.end) if isinstance(log, LogRange) else (None, None)
    return LagRow(group, tp, committed, start, end, behind, "; ".join(notes), error)


def uncommitted(group: str, tp: TopicPartition, log: LogRange | OffsetMgrError | None) -> LagRow:
    """A partition without a commit: the lag is unknown, the log need not be."""
    if isinstance(log, LogRange):
        return LagRow(group, tp, ABSENT, log.start, log.end, None, NOTHING)
    return LagRow(group, tp, ABSENT, None, None, None, NOTHING, log)


def _partition(row: LagRow) -> TopicPartition:
    return row.partition
