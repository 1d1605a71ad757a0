"""Selects the directory of a partition among those of several brokers: the most advanced replica.

A stopped cluster has no leader to ask. The replica with records of the later leader wins, then the longer one, as in
elections (KIP-101). It may contain records that were never acknowledged, and lacks none as long as one of the replicas
was in sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.segments.offsets_partition import LogEnd, log_end
from offsetmgr.segments.parallel import map_directories
from offsetmgr.segments.partition import segments_in

Result = TypeVar("Result")

_A_PROCESS: Final = 16 * 1024 * 1024
"""Bytes for which another process is worth its start: a quarter of a second of reading."""


class ReplicaProgress(Protocol):
    """Receives what a read finds besides offsets."""

    def note(self, text: str) -> None:
        """Receives information that is not an error: a truncated damaged tail, the selected replica, ..."""
        ...

    def error(self, error: OffsetMgrError) -> None:
        """Receives the error of a directory, a group or a key."""
        ...

    def read(self, done: int, total: int) -> None:
        """Receives now and then the number of bytes read and the total."""
        ...


def most_advanced_replica(
    replicas: Mapping[int, Sequence[Path]],
    read: Callable[[Path, Callable[[int], None]], Result],
    topic: str,
    listener: ReplicaProgress,
    processes: int,
) -> Iterator[tuple[int, Result | OffsetMgrError]]:
    """Reads each partition from its most advanced replica, or from the next one after an error, which it reports."""
    ranked = _ranked(replicas, topic, listener, processes)
    total = sum(_size(directories[0]) for directories in ranked.values())

    def told(done: int) -> None:
        listener.read(done, max(total, done))

    processes = min(processes, 1 + total // _A_PROCESS)
    while ranked:
        number_of = {directories[0]: number for number, directories in ranked.items()}
        left: dict[int, list[Path]] = {}
        for directory, result in map_directories(read, list(number_of), processes, told):
            number = number_of[directory]
            if isinstance(result, OffsetMgrError) and len(ranked[number]) > 1:
                listener.error(result)
                left[number] = ranked[number][1:]
                listener.note(f"{topic}-{number}: {left[number][0]} is read instead; it may lack the latest commits")
            else:
                yield number, result
        ranked = left


def _ranked(
    replicas: Mapping[int, Sequence[Path]], topic: str, listener: ReplicaProgress, processes: int
) -> dict[int, list[Path]]:
    """Returns the replicas of each partition, best first: the latest leader epoch, then the longest log."""
    ranked = {number: list(replicas[number]) for number in sorted(replicas)}
    several = [directory for directories in ranked.values() if len(directories) > 1 for directory in directories]
    if not several:
        return ranked
    ends = dict(map_directories(_how_far, several, processes))
    for number, directories in ranked.items():
        if len(directories) == 1:
            continue
        known = [
            (end, directory) for directory in directories if not isinstance(end := ends[directory], OffsetMgrError)
        ]
        known.sort(key=lambda pair: pair[0], reverse=True)
        unknown = {directory: end for directory in directories if isinstance(end := ends[directory], OffsetMgrError)}
        ranked[number] = [*(directory for _, directory in known), *unknown]
        told = [f"{directory} ({_said(end)})" for end, directory in known]
        told += [f"{directory} (not readable)" for directory in unknown]
        listener.note(f"{topic}-{number}: of its replicas {told[0]} is used, not {', '.join(told[1:])}")
        if known:  # otherwise each read reports it
            for directory, error in unknown.items():
                why = f"how far {directory} goes is not known, so the result may lack the latest commits: {error}"
                listener.error(OffsetMgrError(f"{topic}-{number}", why, error.hint))
    return ranked


def _said(end: LogEnd) -> str:
    if not end.offset:
        return "nothing sound in it"
    epoch = f", leader epoch {end.leader_epoch}" if end.leader_epoch >= 0 else ""
    return f"up to offset {end.offset}{epoch}"


def _how_far(directory: Path, tick: Callable[[int], None]) -> LogEnd:
    del tick
    return log_end(directory)


def _size(directory: Path) -> int:
    try:
        return sum(segment.size for segment in segments_in(directory))
    except OffsetMgrError:
        return 0  # the read reports it
