"""``offsets reset --skip``: finds the offset after the records that a group has to skip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.core.errors import Conflict, CorruptData, GroupNotFound, OffsetOutOfRange, UsageError
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import TopicSelection
from offsetmgr.groups.edit_plan import GroupEditPlan, PlannedChange
from offsetmgr.groups.reset import ToOffsets


class SkippedRecords:
    """The records that the group skips: they begin at ``committed``, the committed offset of ``partition``, and end
    before ``target``."""

    def __init__(self, group: str, partition: TopicPartition, committed: int, target: int) -> None:
        self.group = group
        self.partition = partition
        self.committed = committed
        self.target = target

    def scenario(self) -> ToOffsets:
        return ToOffsets({self.group: {self.partition: self.target}})

    def check(self, plans: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
        """Yields the plans. If the group has committed since its offset was read, the change gets the problem
        `Conflict`, because the group would skip other records."""
        for plan in plans:
            yield replace(plan, changes=tuple(self._checked(change) for change in plan.changes))

    def _checked(self, change: PlannedChange) -> PlannedChange:
        before = change.before.offset if isinstance(change.before, Committed) else None
        if change.problem is not None or before == self.committed:
            return change
        why = f"the group has moved from {self.committed} to {before}, so it is not stuck"
        return change._replace(problem=Conflict(str(change.partition), why), writes=False)


def skipped_records(
    connect: ConnectFlags, store: OffsetStore, groups: list[str], topics: TopicSelection, count: int
) -> SkippedRecords:
    """Reads the log from the committed offset on, to find the offset after ``count`` records. Offsets without a record
    (compaction, transactions) do not count.

    Raises `UsageError` unless exactly one group and one partition are named, `GroupNotFound` if nothing is committed,
    and `OffsetOutOfRange` if the committed offset is outside the log or the log has fewer records.
    """
    named = list(topics.numbered(store.capabilities.partitions))
    if len(groups) != 1 or len(named) != 1:
        why = "needs exactly one group and one partition"
        raise UsageError("--skip", why, "as in --group G --topic orders:3 --skip 1")
    (group,), (partition,) = groups, named
    current = store.fetch(group, [partition])[partition]
    if not isinstance(current, Committed):
        raise GroupNotFound(f"group {group!r}", f"has committed nothing in {partition}", "use --to-offset")
    target = _offset_after(connect, partition, current.offset, count)
    return SkippedRecords(group, partition, current.offset, target)


def _offset_after(connect: ConnectFlags, partition: TopicPartition, start: int, count: int) -> int:
    from offsetmgr.consumer.simple import SimpleConsumer

    connect.cluster("offsets reset --skip")  # raises an error if no brokers are known
    at, found, bootstrap = start, 0, connect.bootstrap()
    assert bootstrap is not None
    with SimpleConsumer(bootstrap, config=connect.resolved.connection) as log:
        while True:
            try:
                read = log.fetch({partition: at})[partition]
            except CorruptData as error:
                hint = "the records of a damaged batch cannot be counted: name the offset with --to-offset"
                raise CorruptData(error.what, error.why, hint) from None
            except OffsetOutOfRange as error:  # the hint of the library names a parameter of its consumer
                hint = "--to-earliest goes to the log's start, --to-latest to its end"
                raise OffsetOutOfRange(error.what, error.why, hint) from None
            for record in read.records:
                found += 1
                if found == count:
                    return record.offset + 1
            if read.next_offset <= at or read.next_offset >= read.high_watermark:
                why = (
                    f"{count_of(found, 'record')} {'follows' if found == 1 else 'follow'} the committed offset {start}"
                )
                raise OffsetOutOfRange(f"--skip {count} in {partition}", why, "--to-latest goes to the log's end")
            at = read.next_offset
