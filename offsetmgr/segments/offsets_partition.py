"""Reads the committed offsets from the directory of one partition of an offsets topic.

If a broker was killed, the end of the newest segment may be damaged. In this case the reader ignores the part that the
broker's recovery would truncate, and reports the ignored part. Damage anywhere else is an error for the whole
directory, because the records after the damage cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.errors import CorruptData, FileFailure, LimitExceeded, OffsetMgrError, UnknownVersion
from offsetmgr.core.model import TopicPartition
from offsetmgr.segments.checkpoints import LOG_START, read_checkpoint
from offsetmgr.segments.committed_offsets import DecodedPartition, decode
from offsetmgr.segments.offsets import OffsetsReplay
from offsetmgr.segments.partition import partition_of, segments_in
from offsetmgr.segments.recovery import examine
from offsetmgr.segments.segment import Segment
from offsetmgr.segments.transaction_state import TransactionDecision, decisions

OnBytesRead = Callable[[int], None]
"""Callback for progress: receives the number of bytes that were read since the last call."""

_HINT: Final = Advice(
    "{} shows the damage; log recover {to=DIR} writes a copy that ends before it", Invocation("log verify")
)


class IgnoredTail(NamedTuple):
    """The damaged end of a log that the reader ignores: ``size`` bytes from ``position`` of ``file`` on."""

    file: Path
    position: int
    size: int
    why: str

    def __str__(self) -> str:
        return f"{self.file}: {self.size:,} bytes from position {self.position:,} on are ignored: {self.why}"


class LogEnd(NamedTuple):
    """The end of a replica's log. Two ends are compared by their leader epochs and, if the epochs are equal, by their
    offsets (KIP-101)."""

    leader_epoch: int
    offset: int


@dataclass(slots=True)
class SavedPartition:
    """The content of the directory of one partition of an offsets topic.

    ``ignored_tail`` is the damaged end of the newest segment. ``transactions`` is the number of transactions whose
    outcome is unknown, and ``pending`` is the number of committed offsets in these transactions. ``decoded`` contains
    neither the pending offsets nor those of aborted transactions.
    """

    partition: TopicPartition
    decoded: DecodedPartition
    ignored_tail: IgnoredTail | None = None
    pending: int = 0
    transactions: int = 0
    decided_transactions: int = 0
    """Number of transactions whose markers are not in this log, but whose outcome is known from
    ``__transaction_state``."""
    keyless: int = 0
    unknown_start: OffsetMgrError | None = None
    """The error if the start offset of the log cannot be read. In this case the result includes the records of all
    segments. A broker that cannot read the start offsets at its start does the same."""


def read_partition(
    directory: Path,
    on_read: OnBytesRead | None = None,
    decided: Mapping[int, Mapping[int, bool]] = MappingProxyType({}),
) -> SavedPartition:
    """Reads the log in ``directory``.

    ``decided`` has the known outcomes of transactions of each partition, by the partition's number. It maps the id of a
    producer to whether the producer's open transaction was committed (True) or aborted (False). Raises
    `CorruptData` if the log is damaged anywhere but at the end of the newest segment, or if the directory does not
    belong to an offsets topic. Also raises `LimitExceeded`, `UnknownVersion`, `UnsupportedOperation` and `FileFailure`.
    """
    name = partition_of(directory)
    replay, ignored_tail = _read(segments_in(directory), on_read)
    outcomes = decided.get(name.partition, {})
    decided_transactions = outcomes.keys() & replay.pending.keys()
    for producer in decided_transactions:
        replay.end_transaction(producer, committed=outcomes[producer])
    unknown_start: OffsetMgrError | None = None
    try:
        # The log's start offset may be within a segment (DeleteRecords).
        start = read_checkpoint(directory.absolute().parent / LOG_START).get(name, 0)
        for newest in (replay.newest, *replay.pending.values()):
            for key in [key for key, (at, _) in newest.items() if at < start] if start else ():
                del newest[key]
    except (CorruptData, UnknownVersion, FileFailure) as error:  # like LogManager.loadLogs (3.9)
        unknown_start = error
    decoded = decode(replay.newest)
    if decoded.foreign and decoded.foreign == len(replay.newest):
        raise CorruptData(
            f"directory {directory}", "none of its keys is the key of an offset", "is this an offsets topic?"
        )
    return SavedPartition(
        name,
        decoded,
        ignored_tail,
        sum(len(found) for found in replay.pending.values()),
        sum(1 for found in replay.pending.values() if found),
        len(decided_transactions),
        replay.keyless,
        unknown_start,
    )


def read_decisions(
    directory: Path, on_read: OnBytesRead | None = None
) -> tuple[list[TransactionDecision], list[OffsetMgrError]]:
    """Reads the directory of a partition of ``__transaction_state``. Returns the decided transactions, and the errors
    of unreadable records. Raises the errors of `read_partition`."""
    replay, _ = _read(segments_in(directory), on_read)
    return decisions(replay.newest)


def log_end(directory: Path, on_read: OnBytesRead | None = None) -> LogEnd:
    """Returns the end of a replica's log, which is the end of its last segment that has a valid entry. Raises the
    errors of `read_partition`."""
    filled = [segment for segment in segments_in(directory) if segment.size]
    for at in reversed(range(len(filled))):
        replay, _ = _read(filled[at:], on_read)
        if replay.end is not None:
            return _end(replay)
    return _end(OffsetsReplay())


def _end(replay: OffsetsReplay) -> LogEnd:
    return LogEnd(-1 if replay.leader_epoch is None else replay.leader_epoch, replay.end or 0)


def _read(segments: Iterable[Segment], on_read: OnBytesRead | None) -> tuple[OffsetsReplay, IgnoredTail | None]:
    """Replays all segments of a log. Returns the replay and the ignored tail."""
    replay = OffsetsReplay()
    ignored_tail = None
    filled = [(segment, segment.size) for segment in segments]
    filled = [(segment, size) for segment, size in filled if size]
    for number, (segment, size) in enumerate(filled, 1):
        ignored_tail = _replay_segment(segment, size, replay, newest=number == len(filled), on_read=on_read)
    return replay, ignored_tail


def _replay_segment(
    segment: Segment, size: int, replay: OffsetsReplay, *, newest: bool, on_read: OnBytesRead | None
) -> IgnoredTail | None:
    position = 0
    with segment.open_reader(end=size) as reader:
        try:
            for chunk in reader.chunks():
                position = chunk.position
                replay.replay(chunk.data)
                position = chunk.position + len(chunk.data)
                if on_read is not None:
                    on_read(len(chunk.data))
        except (CorruptData, LimitExceeded, UnknownVersion) as error:
            if position != reader.position:  # the damage is within the last chunk, not after it
                position += replay.replayed_bytes
            ignored_tail = _damaged_tail(segment, position) if newest else None
            if ignored_tail is None:
                where = f"file {segment.log}, position {position}"
                why = f"{error.what}: {error.why}"
                hint = "" if newest else _HINT
                raise type(error)(where, why, hint) from error
            return ignored_tail
    if not reader.incomplete_bytes:
        return None
    why = "the file ends within an entry"
    if not newest:
        where = f"file {segment.log}, position {reader.position}"
        raise CorruptData(where, f"{why}, although it is not the newest segment", _HINT)
    return IgnoredTail(segment.log, reader.position, reader.incomplete_bytes, why)


def _damaged_tail(segment: Segment, position: int) -> IgnoredTail | None:
    """Returns the tail that a broker's recovery would truncate; None if the recovery would not truncate the segment at
    ``position``."""
    with segment.open() as file:
        found = examine(file, segment.base_offset, str(segment.log))
    if found.damage is None or found.valid_bytes != position:
        return None
    return IgnoredTail(segment.log, found.valid_bytes, found.invalid_bytes, f"{found.damage}, {found.why}")
