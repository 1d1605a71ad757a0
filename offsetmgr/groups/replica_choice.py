"""Reads each partition from its most advanced replica among the directories of several brokers.

A stopped cluster has no partition leaders. As in leader elections (KIP-101), this module selects the replica with the
latest leader epoch. If several replicas have the latest epoch, the module selects the replica with the longest log. If
one of the given replicas was in sync, the selected replica has every acknowledged record. The selected replica may also
have records that were never acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.segments.offsets_partition import LogEnd, log_end
from offsetmgr.segments.parallel import map_directories
from offsetmgr.segments.partition import segments_in

Result = TypeVar("Result")

_BYTES_PER_PROCESS: Final = 16 * 1024 * 1024
"""One more process is started for each block of this size that has to be read. A process reads one block in about a
quarter of a second."""


class RecoveryListener(NamedTuple):
    """Receives the notes, errors and progress of a read: information that is not an error, for example about a
    truncated tail or the selected replica; the error of a directory, a group or a key; and from time to time the number
    of bytes read and the total."""

    note: Callable[[str], None]
    error: Callable[[OffsetMgrError], None]
    on_progress: Callable[[int, int], None]


def read_most_advanced_replicas(
    replicas: Mapping[int, Sequence[Path]],
    read: Callable[[Path, Callable[[int], None]], Result],
    topic: str,
    listener: RecoveryListener,
    processes: int,
) -> Iterator[tuple[int, Result | OffsetMgrError]]:
    """Reads each partition from its most advanced replica. If a replica cannot be read, reports the error and reads the
    next best replica."""
    ranked = _ranked(replicas, topic, listener, processes)
    total = sum(_size(directories[0]) for directories in ranked.values())

    def report_bytes(done: int) -> None:
        listener.on_progress(done, max(total, done))

    processes = min(processes, 1 + total // _BYTES_PER_PROCESS)
    while ranked:
        number_of = {directories[0]: number for number, directories in ranked.items()}
        remaining: dict[int, list[Path]] = {}
        for directory, result in map_directories(read, list(number_of), processes, report_bytes):
            number = number_of[directory]
            if isinstance(result, OffsetMgrError) and len(ranked[number]) > 1:
                listener.error(result)
                remaining[number] = ranked[number][1:]
                listener.note(
                    f"{topic}-{number}: {remaining[number][0]} is read instead; it may lack the latest commits"
                )
            else:
                yield number, result
        ranked = remaining


def _ranked(
    replicas: Mapping[int, Sequence[Path]], topic: str, listener: RecoveryListener, processes: int
) -> dict[int, list[Path]]:
    """Returns the replicas of each partition, best first: by the latest leader epoch, then by the length of the log."""
    ranked = {number: list(replicas[number]) for number in sorted(replicas)}
    replicated = [directory for directories in ranked.values() if len(directories) > 1 for directory in directories]
    if not replicated:
        return ranked
    ends = dict(map_directories(_read_log_end, replicated, processes))
    for number, directories in ranked.items():
        if len(directories) == 1:
            continue
        readable = [
            (end, directory) for directory in directories if not isinstance(end := ends[directory], OffsetMgrError)
        ]
        readable.sort(key=lambda pair: pair[0], reverse=True)
        unreadable = {directory: end for directory in directories if isinstance(end := ends[directory], OffsetMgrError)}
        ranked[number] = [*(directory for _, directory in readable), *unreadable]
        names = [f"{directory} ({_describe_end(end)})" for end, directory in readable]
        names += [f"{directory} (not readable)" for directory in unreadable]
        listener.note(f"{topic}-{number}: the replica {names[0]} is used, not {', '.join(names[1:])}")
        if readable:  # if no replica is readable, the later read of each replica reports its error
            for directory, error in unreadable.items():
                why = f"the end of the log in {directory} is unknown; the result may lack the latest commits: {error}"
                listener.error(OffsetMgrError(f"{topic}-{number}", why, error.hint))
    return ranked


def _describe_end(end: LogEnd) -> str:
    if not end.offset:
        return "no valid record"
    epoch = f", leader epoch {end.leader_epoch}" if end.leader_epoch >= 0 else ""
    return f"up to offset {end.offset}{epoch}"


def _read_log_end(directory: Path, tick: Callable[[int], None]) -> LogEnd:
    del tick
    return log_end(directory)


def _size(directory: Path) -> int:
    try:
        return sum(segment.size for segment in segments_in(directory))
    except OffsetMgrError:
        return 0  # the read reports the error
