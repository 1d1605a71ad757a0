"""Whether a log holds records of the format that somebody is about to write.

A topic is written in one format: the same offset has another key in each, so a mixed topic would hold two values for
it.  Shards without records would take commits of the wrong format before a shard with records says so; hence this look.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

from offsetmgr.log.base import PartitionLog
from offsetmgr.records.base import OtherFormat
from offsetmgr.records.choose import format_of

_TAIL: Final = 200
"""Offsets at the end of each partition that are looked at: the cleaner leaves the newest records alone."""


def check_format(log: PartitionLog, name: str, what: str, timeout: float) -> None:
    """Reads the last records of every partition. ``name`` is the format to be written, ``what`` the topic's name.

    Raises `OtherFormat`, and what reading raises.
    """
    partitions = range(log.partitions)
    ends = log.end_offsets(partitions, timeout)
    starts = {p: max(start, ends[p] - _TAIL) for p, start in log.start_offsets(partitions, timeout).items()}
    filled = {p: end for p, end in ends.items() if end > starts[p]}
    if not filled:
        return
    newest: dict[int, MutableMapping[bytes, bytes | None]] = {p: {} for p in filled}
    reader = log.reader()
    try:
        reader.load({p: starts[p] for p in filled}, filled, newest)
    finally:
        reader.close()
    found = {format_of(key) for keys in newest.values() for key in keys} - {None, name}
    if found:
        other = found.pop()
        raise OtherFormat(
            f"topic {what}",
            f"holds records of the format {other}, and {name} was asked for",
            f"--record-format {other}, or another --offsets-topic",
        )
