"""Checks that the records of a log have the format that this process will write.

A topic must have one format. The key of an offset differs between the formats, so a topic with two formats could have
two values for the same offset. Without this check, shards without records would accept commits in the wrong format
until a shard with records detects the mismatch. The check also detects that the topic has records of another program,
before the manager writes an offset to the topic.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import closing
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.manager.log.base import CorruptRecords, LogReader, PartitionLog
from offsetmgr.manager.log.topic import UnsuitableTopic
from offsetmgr.records.base import FormatMismatch
from offsetmgr.records.registry import format_of, record_format

_TAIL_OFFSETS: Final = 200
"""The number of offsets that the check reads at the end of each partition, where the log cleaner does not remove
records."""
_MAX_KEY_BYTES_SHOWN: Final = 20
"""The number of bytes of an unknown key that an error message contains."""


def check_format(log: PartitionLog, name: str, what: str, timeout_s: float) -> None:
    """Reads the last records of every partition. ``name`` is the format to be written, ``what`` the topic's name.

    Unknown records are accepted if the topic also has records of the format ``name``, because the shards report the
    unknown records. A topic with only unknown records is rejected, and so is a topic with only records that no manager
    has written. Raises `FormatMismatch`, `UnsuitableTopic`, and any
    error from reading.
    """
    partitions = range(log.partitions)
    ends = log.end_offsets(partitions, timeout_s)
    starts = {p: max(start, ends[p] - _TAIL_OFFSETS) for p, start in log.start_offsets(partitions, timeout_s).items()}
    nonempty = {p: end for p, end in ends.items() if end > starts[p]}
    if not nonempty:
        return
    newest: dict[int, MutableMapping[bytes, bytes | None]] = {p: {} for p in nonempty}
    with closing(log.reader()) as reader:
        _read(reader, starts, nonempty, newest)
        invalid = {partition: keys for partition, keys in reader.invalid_keys.items() if keys}
    seen = {partition: {key: _format(key) for key in keys} for partition, keys in newest.items() if keys}
    found = {form for keys in seen.values() for form in keys.values()}
    others = found - {None, name}
    if others:
        other = others.pop()
        raise FormatMismatch(
            f"topic {what}",
            f"it has records of the format {other}, but this manager would write {name}",
            Advice("use {record_format} {}, or another {offsets_topic}", other),
        )
    if found == {None} or (not found and invalid):
        records = "records that are not committed offsets" if found else "only records that no manager has written"
        more = ", and import the offsets"
        partition, key = next((partition, next(iter(keys))) for partition, keys in (seen or invalid).items())
        raise UnsuitableTopic(
            f"topic {what}",
            f"it has {records} (partition {partition}: {_describe_key(key)})",
            Advice("choose another {offsets_topic}{}; nothing was written to this one", "" if found else more),
        )


def _read(
    reader: LogReader,
    starts: Mapping[int, int],
    ends: dict[int, int],
    newest: Mapping[int, MutableMapping[bytes, bytes | None]],
) -> None:
    """Reads the partitions. Skips a partition with damaged records: the load of its shard reports the damage, and the
    other shards can be served."""
    while ends:
        try:
            reader.load({p: starts[p] for p in ends}, ends, newest)
        except CorruptRecords as error:
            del ends[error.partition]
        else:
            return


def _format(key: bytes) -> str | None:
    """Returns the format of a key; None if no format can decode the key. The whole key is decoded, because a key of
    another program may begin with the same bytes."""
    name = format_of(key)
    if name is not None:
        try:
            record_format(name).decode_key(key)
        except (CorruptData, UnknownVersion):
            return None
    return name


def _describe_key(key: bytes) -> str:
    return f"key {key[:_MAX_KEY_BYTES_SHOWN]!r}{'...' if len(key) > _MAX_KEY_BYTES_SHOWN else ''}" if key else "no key"
