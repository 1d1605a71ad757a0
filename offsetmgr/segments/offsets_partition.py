"""Reads the directory of one partition of an offsets topic: the newest records at the end of its log.

The newest segment may end with damage after a broker was killed: the reader truncates it there as the broker's recovery
would, and reports that. Damage anywhere before is an error of the whole directory, since the records after it are
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from offsetmgr.core.errors import CorruptData, FileFailure, LimitExceeded, OffsetMgrError, UnknownVersion
from offsetmgr.core.model import TopicPartition
from offsetmgr.segments.checkpoints import LOG_START, read_checkpoint
from offsetmgr.segments.committed_offsets import DecodedRecord, decode
from offsetmgr.segments.entries import EntryReader
from offsetmgr.segments.offsets import OffsetsFold
from offsetmgr.segments.partition import partition_of, segments_in
from offsetmgr.segments.recovery import examine
from offsetmgr.segments.segment import Segment
from offsetmgr.segments.transaction_state import TransactionDecision, decisions

Tick = Callable[[int], None]
"""Receives the number of further bytes that have been read."""

_HINT: Final = "offsetmgr log verify tells more; log recover --to DIR writes a copy that ends before the damage"


class MissingRange(NamedTuple):
    """The part of a damaged tail that was not read: ``size`` bytes from ``position`` of ``file`` on."""

    file: Path
    position: int
    size: int
    why: str

    def __str__(self) -> str:
        return f"{self.file}: {self.size:,} bytes from position {self.position:,} on do not count: {self.why}"


class LogEnd(NamedTuple):
    """The end of a replica's log. Of two, that of the later leader wins, then the longer one (KIP-101)."""

    leader_epoch: int
    offset: int


@dataclass(slots=True)
class SavedPartition:
    """The content of the directory of one partition of an offsets topic.

    ``end`` is the end of its log, ``records`` the number of records, ``cut`` the ignored tail of its newest segment.
    ``pending`` are the offsets of ``transactions`` without a known outcome, ``aborted`` those of aborted ones; neither
    is in ``decoded``. ``latest`` is the latest time in the log, milliseconds since 1970.
    """

    directory: Path
    partition: TopicPartition
    end: LogEnd
    records: int
    size: int
    decoded: DecodedRecord = field(default_factory=DecodedRecord)
    cut: MissingRange | None = None
    pending: int = 0
    transactions: int = 0
    settled: int = 0
    """Transactions that are decided according to ``__transaction_state``, though their marker is not in this log."""
    aborted: int = 0
    keyless: int = 0
    latest: int | None = None
    unknown_start: OffsetMgrError | None = None
    """Why the start of the log is unknown; all its segments then count, as in a broker that starts."""


def read_partition(
    directory: Path, decided: Mapping[int, bool] | None = None, tick: Tick | None = None
) -> SavedPartition:
    """Reads the log in ``directory``; ``decided`` maps producers to whether their open transaction was committed.

    Raises `CorruptData` for damage that is not the newest segment's tail and for a directory that is no offsets topic,
    `LimitExceeded`, `UnknownVersion`, `UnsupportedOperation`, `FileFailure`.
    """
    name = partition_of(directory)
    fold, cut, size = _read(segments_in(directory), tick)
    settled = [producer for producer in fold.pending if producer in (decided or {})]
    for producer in settled:
        fold.settle(producer, committed=(decided or {})[producer])
    unknown_start: OffsetMgrError | None = None
    try:
        _forget_before(fold, read_checkpoint(directory.absolute().parent / LOG_START).get(name, 0))
    except (CorruptData, UnknownVersion, FileFailure) as error:  # LogManager.loadLogs (3.9) takes it for empty as well
        unknown_start = error
    decoded = decode(fold.newest)
    if decoded.foreign and decoded.foreign == len(fold.newest):
        raise CorruptData(f"directory {directory}", "not one of its keys is an offset's", "is this an offsets topic?")
    return SavedPartition(
        directory,
        name,
        _end(fold),
        fold.records,
        size,
        decoded,
        cut,
        sum(len(found) for found in fold.pending.values()),
        sum(1 for found in fold.pending.values() if found),
        len(settled),
        fold.aborted,
        fold.keyless,
        fold.largest_timestamp,
        unknown_start,
    )


def read_decisions(directory: Path, tick: Tick | None = None) -> tuple[list[TransactionDecision], list[OffsetMgrError]]:
    """Reads the decisions in the directory of a partition of ``__transaction_state``. Raises the errors of
    `read_partition`."""
    fold, _, _ = _read(segments_in(directory), tick)
    return decisions(fold.newest)


def log_end(directory: Path) -> LogEnd:
    """Returns the end of a replica's log according to its last segment with a sound entry. Raises the errors of
    `read_partition`."""
    filled = [segment for segment in segments_in(directory) if segment.size]
    for at in reversed(range(len(filled))):
        fold, _, _ = _read(filled[at:], None)
        if fold.end is not None:
            return _end(fold)
    return _end(OffsetsFold())


def _end(fold: OffsetsFold) -> LogEnd:
    return LogEnd(-1 if fold.leader_epoch is None else fold.leader_epoch, fold.end or 0)


def _read(segments: Iterable[Segment], tick: Tick | None) -> tuple[OffsetsFold, MissingRange | None, int]:
    """Reads all segments of a log; returns the ignored tail and the number of bytes."""
    fold = OffsetsFold()
    cut = None
    filled = [(segment, segment.size) for segment in segments]
    filled = [(segment, size) for segment, size in filled if size]
    for number, (segment, size) in enumerate(filled, 1):
        cut = _take(segment, size, fold, newest=number == len(filled), tick=tick)
    return fold, cut, sum(size for _, size in filled)


def _take(segment: Segment, size: int, fold: OffsetsFold, *, newest: bool, tick: Tick | None) -> MissingRange | None:
    position = 0
    with segment.walk(end=size) as walk:
        try:
            for chunk in walk.chunks():
                position = chunk.position
                fold.take(chunk.data)
                position = chunk.position + len(chunk.data)
                if tick is not None:
                    tick(len(chunk.data))
        except OSError as error:
            raise FileFailure(f"file {segment.log}", error.strerror or str(error)) from error
        except (CorruptData, LimitExceeded, UnknownVersion) as error:
            if position != walk.position:  # within a chunk, and not after it in the file
                position += fold.taken
            cut = _tail(segment, position) if newest else None
            if cut is None:
                where = f"file {segment.log}, position {position}"
                why = f"{error.what}: {error.why}"
                hint = "" if newest else _HINT
                raise type(error)(where, why, hint) from error
            return cut
        left = walk.left or 0
    return _left(segment, walk, left, newest=newest)


def _left(segment: Segment, walk: EntryReader, left: int, *, newest: bool) -> MissingRange | None:
    """Decides on a segment that ends within an entry."""
    if not left:
        return None
    why = "the file ends within an entry"
    if not newest:
        raise CorruptData(
            f"file {segment.log}, position {walk.position}",
            f"{why}, and it is not the newest",
            _HINT,
        )
    return MissingRange(segment.log, walk.position, left, why)


def _tail(segment: Segment, position: int) -> MissingRange | None:
    """Returns the truncation of a broker's recovery there; None if it would not truncate at this entry."""
    with segment.open() as file:
        found = examine(file, segment.base_offset, str(segment.log))
    if found.damage is None or found.sound != position:
        return None
    return MissingRange(segment.log, found.sound, found.cut, f"{found.damage}, {found.why}")


def _forget_before(fold: OffsetsFold, start: int) -> None:
    """Removes records before the log's start, which may be within a segment (DeleteRecords)."""
    for newest in (fold.newest, *fold.pending.values()):
        for key in [key for key, (at, _) in newest.items() if at < start] if start else ():
            del newest[key]
