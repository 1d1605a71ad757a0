"""`PartitionLog`: an append-only, compacted, partitioned log with one fenced writer for each *shard group*.

The partitions are divided into a fixed number of shard groups: partition p belongs to shard group ``p % shard_groups``
(`shard_group_of`). A manager owns whole shard groups. A writer claims one shard group and appends to its partitions.

Ordering contract: a new owner first claims the shard group. After the claim no earlier writer can append, not even a
writer whose process was frozen and has resumed. The claim returns an offset of each partition, and every record that
was ever acknowledged lies below it. The owner then reads the partitions up to these offsets.

The calls of a writer are coroutines. All other calls block, and implementations call callbacks only in the caller's
thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, Protocol, TypeAlias

from offsetmgr.core.clock import BrokersClock
from offsetmgr.core.errors import ErrorCode, OffsetMgrError, ServerError
from offsetmgr.manager.shard import Shard
from offsetmgr.records.base import EncodedRecord

MAX_SHARD_GROUPS: Final = 8
"""The maximum number of shard groups of a log. It is not configurable, because processes with different values would
not fence each other."""


def shard_group_count(partitions: int) -> int:
    """Returns the number of shard groups of a log with this number of partitions."""
    return min(MAX_SHARD_GROUPS, partitions)


def shard_group_of(partition: int, partitions: int) -> int:
    return partition % shard_group_count(partitions)


def partitions_of(shard_group: int, partitions: int) -> range:
    """Returns the partitions of a shard group."""
    return range(shard_group, partitions, shard_group_count(partitions))


class AppendRejected(OffsetMgrError):
    """The append certainly did not happen, for example because there were too few in-sync replicas
    (COORDINATOR_NOT_AVAILABLE). The writer can be used again."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    retriable = True


class TooLarge(OffsetMgrError):
    """The log never accepts a record or batch of this size (INVALID_COMMIT_OFFSET_SIZE). Nothing was written, and the
    writer can be used again."""

    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE


class OutcomeUnknown(OffsetMgrError):
    """The outcome of the append is unknown. The writer must claim the shard group again, and the owner must then read
    the log up to the claim."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    retriable = True


class Fenced(OffsetMgrError):
    """Another writer has claimed the shard group (NOT_COORDINATOR). The writer cannot be used any more. The manager of
    the fenced writer may claim the shard group again only after a new assignment has given the shard group to this
    manager.

    If the append began after the other writer's claim, the records of the append are not in the log and never will be.
    If the append was in flight during the claim, the append ended before the claim returned, and only the new owner can
    determine the outcome of the append.
    """

    code = ErrorCode.NOT_COORDINATOR
    retriable = True


class LogClosed(OffsetMgrError):
    """The writer or reader was closed before or during the call; a write in flight has an unknown outcome."""


class CorruptRecords(OffsetMgrError):
    """The leader's copy of a record batch is damaged: its checksum does not match. The records from this offset on
    cannot be read."""

    def __init__(self, topic: str, partition: int, offset: int, why: str) -> None:
        super().__init__(
            f"{topic}-{partition}",
            f"the record batch at offset {offset} is damaged on the broker's disk: {why}",
            "let a replica with an intact copy lead the partition, or restore the log; "
            "the shard is served as soon as the batch can be read",
        )
        self.partition = partition
        self.offset = offset


def truncated(partition: str, end: int, position: int) -> ServerError:
    """Returns the error of a partition whose log ends before the position of its reader."""
    why = f"it ends at {end}, but has been read up to {position}: it was truncated, or the topic was recreated"
    return ServerError(partition, why, "restart this manager, so that it loads the partition again")


class DeletedRecords:
    """The records of the log that were deleted, by retention or by an administrator, although they may contain the
    newest values of keys. Only one thread at a time may note something about a partition."""

    def __init__(self) -> None:
        self.missing_below: defaultdict[int, int] = defaultdict(int)
        """The offset of each partition below which records were deleted before this process read them."""
        self.complete_from: defaultdict[int, int] = defaultdict(int)
        """The largest known `Claim.complete_from` of each partition."""

    def note_missing(self, partition: int, offset: int) -> None:
        self.missing_below[partition] = max(self.missing_below[partition], offset)

    def note_complete(self, partition: int, offset: int) -> None:
        self.complete_from[partition] = max(self.complete_from[partition], offset)

    def is_missing(self, partition: int) -> bool:
        """Returns whether this process may lack values of the partition."""
        return self.missing_below[partition] > self.complete_from[partition]

    def is_outdated(self, shard: Shard) -> bool:
        """Returns whether the log has newer values than the shard, which lacks records that were deleted."""
        return 0 < shard.gap_below <= self.complete_from[shard.partition]

    def note_gap(self, shard: Shard) -> None:
        """Notes in the shard that it will not replay records that were deleted."""
        if 0 < shard.position < self.missing_below[shard.partition]:
            shard.gap_below = self.missing_below[shard.partition]

    def forget(self) -> None:
        """Forgets everything, because the topic was recreated."""
        self.missing_below.clear()
        self.complete_from.clear()


class LogRecord(NamedTuple):
    partition: int
    offset: int
    key: bytes
    value: bytes | None


AppendOutcome: TypeAlias = int | OffsetMgrError
"""The outcome of an append to one partition: the offset of the last record, or `AppendRejected`, `TooLarge`,
`OutcomeUnknown` or `Fenced`."""


class ShardGroupWriter(Protocol):
    """The writer of one shard group's partitions. It runs on one event loop, and only one of its calls may be in
    progress."""

    async def claim(self, timeout_s: float) -> Mapping[int, int]:
        """Claims the shard group within ``timeout_s`` seconds. When the call returns, every earlier writer is fenced,
        and the unfinished append of every earlier writer has ended.

        Returns an offset of each partition. A reader that has read up to this offset (exclusive) has seen every record
        that was acknowledged to an earlier writer, and every record that this writer has appended.

        The first call claims the shard group unconditionally. Further calls succeed only if no other writer has claimed
        it since; otherwise they raise `Fenced`. The caller repeats the call after an error, after `OutcomeUnknown`, and
        to keep the claim alive. Raises `OffsetMgrError` (retriable or not); after an error the earlier writers may or
        may not be fenced.
        """

    @property
    def claimed(self) -> bool:
        """Whether the last claim succeeded, or an earlier claim is still valid after a failed one, so that `append` may
        be called."""

    async def complete_claim(self, timeout_s: float) -> Mapping[int, AppendOutcome]:
        """Completes the claim with information from the log. The caller calls it after it has read the log up to the
        claim. Returns the outcomes of the appends that this needed."""

    async def append(
        self, batches: Mapping[int, Sequence[EncodedRecord]], timeout_s: float
    ) -> Mapping[int, AppendOutcome]:
        """Appends one batch to each of these partitions within ``timeout_s`` seconds, and returns one outcome for each
        partition, once every in-sync replica has the batch. A batch is appended as a whole or not at all; the outcomes
        of the partitions do not depend on one another.

        The records of a batch have consecutive offsets. Empty batches are not allowed. Raises `LogClosed`.
        """

    def close(self) -> None:
        """Closes the writer at once; never raises. The shard group stays claimed."""


class LogReader(Protocol):
    """Reads acknowledged records only. Only one thread may use it at a time, but any thread may call `close`."""

    def load(
        self,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        newest: Mapping[int, MutableMapping[bytes, bytes | None]],
        *,
        progress: Callable[[int], None] | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> Mapping[int, int]:
        """Reads several partitions at once, each from its offset in ``starts`` up to its offset in ``ends``
        (exclusive), and stores the newest value of each key in ``newest[partition]`` (None for a tombstone).

        The method decodes nothing and keeps no overwritten value. It periodically calls ``progress`` with the number of
        offsets that it has read since the last call. It also calls ``stopped`` periodically, and stops early if
        ``stopped`` returns True. Returns the next offset to read in each partition. Unless the load was stopped, this
        offset is at least the partition's offset in ``ends``. The first record of a partition may be after the
        partition's offset in ``starts``, because of compaction or deletion. Records that no owner of the partition has
        written are ignored (see `invalid_keys`). Raises `OffsetMgrError`; `CorruptRecords` if a batch of any partition
        has a wrong checksum.
        """

    @property
    def invalid_keys(self) -> Mapping[int, AbstractSet[bytes]]:
        """The keys in each partition of the last `load` whose newest record another program has written. `load` has
        ignored this record. The owner appends the key again, with the value from before the record or as a tombstone,
        because compaction would keep only the invalid record. Partitions without such keys may be missing."""

    def follow(self, starts: Mapping[int, int]) -> None:
        """Selects the partitions whose records `poll` returns from now on, starting at these offsets.

        Partitions that were already followed at the same offset continue without interruption.
        """

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        """Returns up to ``max_records`` records, in order within each partition. Waits up to ``timeout_s`` seconds for
        the first record.

        It may return early without records if only a `position` has advanced. Raises `OffsetMgrError`; after
        `CorruptRecords` this reader cannot be used any more.
        """

    def position(self, partition: int) -> int:
        """Returns the next offset that `poll` will read. The position also advances past gaps and transaction markers,
        so it reaches the end offset."""

    def close(self) -> None: ...


class PartitionLog(Protocol):
    """The log of one topic. The constructor performs no I/O."""

    clock: BrokersClock
    """The time of the brokers, from the appends of the writers."""
    deleted: DeletedRecords
    """The readers note the records that were deleted. `ShardGroupWriter.complete_claim` appends what has changed."""

    @property
    def partitions(self) -> int: ...

    def writer(self, shard_group: int) -> ShardGroupWriter:
        """Returns a new writer that has not claimed the shard group yet."""

    def reader(self) -> LogReader: ...

    def generation(self, timeout_s: float) -> str:
        """Returns the identity of the topic; empty if unknown. The identity changes if the topic is deleted and
        recreated. Offsets of the deleted topic are not valid in the new topic. Raises `OffsetMgrError`.

        Brokers may briefly return an outdated identity, so callers request the identity before and after they read.
        """

    def start_offsets(self, partitions: Sequence[int], timeout_s: float) -> Mapping[int, int]:
        """Returns the first offset of each partition's log. Raises `OffsetMgrError`."""

    def end_offsets(self, partitions: Sequence[int], timeout_s: float) -> Mapping[int, int]:
        """Returns the last stable offset of each partition: every append below this offset has ended.

        The returned offset may briefly be too low, because brokers may return outdated values. An owner uses the
        offsets that its claim has returned. Raises `OffsetMgrError`.
        """

    def close(self) -> None: ...
