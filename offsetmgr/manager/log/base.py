"""`PartitionLog`: an append-only, compacted, partitioned log with one writer a *shard group* that can be fenced.

Partitions are divided into a fixed number of shard groups (`slot_of`): partition p belongs to shard group ``p %
slots``. A shard group is what a manager owns, what it claims, and what a writer may append to.

Ordering contract: whoever takes over a shard group first claims it (from then on no earlier claimant can append, not
even one that wakes up later), then asks for the end offsets (which an unfinished append of the predecessor cannot move
any more), then reads up to them. Then it has seen everything that was ever acknowledged.

Everything here blocks; none of it starts threads that call back into its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Final, NamedTuple, Protocol

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.records.base import Record

MOST_SLOTS: Final = 8
"""Not configurable: processes that disagreed about it would not fence each other."""


def slot_count(partitions: int) -> int:
    """How many shard groups a log of so many partitions has."""
    return min(MOST_SLOTS, partitions)


def slot_of(partition: int, partitions: int) -> int:
    """The shard group that a partition belongs to."""
    return partition % slot_count(partitions)


def partitions_of(slot: int, partitions: int) -> range:
    """The partitions of a shard group."""
    return range(slot, partitions, slot_count(partitions))


class AppendRejected(OffsetMgrError):
    """An append certainly did not happen: too few replicas in sync, a timeout followed by a successful abort
    (COORDINATOR_NOT_AVAILABLE). The writer can be used again."""

    code = 15
    name = "COORDINATOR_NOT_AVAILABLE"
    retriable = True


class TooLarge(OffsetMgrError):
    """The log never takes a record or batch of this size (INVALID_COMMIT_OFFSET_SIZE); nothing was written, and the
    writer can be used again."""

    code = 28
    name = "INVALID_COMMIT_OFFSET_SIZE"


class OutcomeUnknown(OffsetMgrError):
    """Nobody knows yet whether the append happened. The writer is of no use any more: a new one must claim the shard
    group, and then the log tells, read to its end."""

    code = 15
    name = "COORDINATOR_NOT_AVAILABLE"
    retriable = True


class Fenced(OffsetMgrError):
    """Somebody else has claimed the shard group since (NOT_COORDINATOR). The writer is of no use any more, and whoever
    held it has to ask for the shard group again before it claims.

    An append that began after that claim did not happen and never will. One that was under way when the shard group was
    claimed has ended before the claim returned, one way or the other: the claimer knows, the fenced one does not.
    """

    code = 16
    name = "NOT_COORDINATOR"
    retriable = True


class LogClosed(OffsetMgrError):
    """The writer or reader was closed before or during the call; a write that had begun has an unknown outcome."""


class CorruptRecords(OffsetMgrError):
    """The broker's copy of a batch is damaged: its checksum does not match. Nothing from this offset on can be read."""

    def __init__(self, topic: str, partition: int, offset: int, why: str) -> None:
        super().__init__(
            f"{topic}-{partition}",
            f"the record batch at offset {offset} is damaged on the broker's disk: {why}",
            "let a replica with an intact copy lead the partition, or restore the log; "
            "the shard is served as soon as the batch can be read",
        )
        self.partition = partition
        self.offset = offset


class LogRecord(NamedTuple):
    """A record where it stands in the log."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    timestamp: int
    """Milliseconds since 1970, when it was appended or produced."""


class ShardGroupWriter(Protocol):
    """The right to append to one shard group's partitions. Used by one thread at a time."""

    def claim(self, timeout: float) -> None:
        """Takes the shard group (seconds): every earlier claimant is fenced, and its unfinished append has ended, one
        way or the other, when this returns. May take offsets of its own, which hold no records.

        Once a writer; raises `OffsetMgrError` (retriable or not), and then it is not known whether others are fenced.
        """
        ...

    def append(self, batches: Mapping[int, Sequence[Record]], timeout: float) -> Mapping[int, int]:
        """Appends all of it or nothing, within ``timeout`` seconds; returns once every in-sync replica has it.

        Gives the offset of the *last* record of each partition; a partition's records have consecutive offsets.
        Empty batches are not allowed.  Raises `AppendRejected`, `TooLarge`, `OutcomeUnknown`, `Fenced`.
        """
        ...

    @property
    def ready_at(self) -> float:
        """The moment (of `time.monotonic`) from which the next append is likely to be taken up at once; an earlier one
        is no error, but may take longer than waiting would have."""
        ...

    def close(self) -> None:
        """Gives up the writer (not the shard group), at once; never raises."""
        ...


class LogReader(Protocol):
    """Reads acknowledged records only. Used by one thread at a time; `close` may come from another."""

    def load(
        self,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        newest: Mapping[int, MutableMapping[bytes, bytes | None]],
        *,
        progress: Callable[[int], None] | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> Mapping[int, int]:
        """Reads the partitions from ``starts`` up to ``ends`` (the next offset after the last one to be read), several
        at once, and keeps the newest value of each key in ``newest[partition]`` (None for a tombstone).

        Fast: nothing is decoded, nothing is kept of what was overwritten.  ``progress`` is told how many offsets were
        passed since it was last told, ``stopped`` is asked now and then.  Gives the next offset to be read of each
        partition: at least its end, unless stopped.  Log starts after ``starts`` are no error (compaction, deletion).
        Raises `OffsetMgrError`; `CorruptRecords` where any of the partitions has a batch whose checksum does not match.
        """
        ...

    def follow(self, starts: Mapping[int, int]) -> None:
        """From now on `poll` gives the records of exactly these partitions, from these offsets on.

        Partitions that were followed before at the same offset go on without a break.
        """
        ...

    def poll(self, most: int, timeout: float) -> Sequence[LogRecord]:
        """The next records, at most ``most``, in order in each partition; waits up to ``timeout`` seconds for one.

        May come back early with nothing where only a `position` has moved. Raises `OffsetMgrError`; after
        `CorruptRecords` this reader is of no use any more.
        """
        ...

    def position(self, partition: int) -> int:
        """The next offset that `poll` will read: over gaps and markers too, so it reaches the end offset."""
        ...

    def close(self) -> None: ...


class PartitionLog(Protocol):
    """One topic. Construction does no I/O."""

    @property
    def partitions(self) -> int: ...

    def writer(self, slot: int) -> ShardGroupWriter:
        """A new writer, which has claimed nothing yet. Making it ahead of time makes its claim quicker."""
        ...

    def reader(self) -> LogReader: ...

    def generation(self, timeout: float) -> str:
        """Which topic of this name it is: another text once the topic was deleted and recreated, so that an offset of
        the earlier one means nothing any more. Empty where nobody can tell. Raises `OffsetMgrError`.

        Brokers may tell of the past for moments: who reads asks before and after.
        """
        ...

    def start_offsets(self, partitions: Sequence[int], timeout: float) -> Mapping[int, int]:
        """The first offsets that the log still has. Raises `OffsetMgrError`."""
        ...

    def end_offsets(self, partitions: Sequence[int], timeout: float) -> Mapping[int, int]:
        """For each partition the offset below which every append has ended (the last stable offset).

        Asked after a claim by a writer of this very object: a reader that has reached it has seen every record that was
        ever acknowledged to an earlier claimant. Of a shard group that writes elsewhere it may for moments lie below
        what was acknowledged just now, because an append is acknowledged before it becomes readable, and brokers may
        tell ends of the past. Raises `OffsetMgrError`.
        """
        ...

    def close(self) -> None: ...
