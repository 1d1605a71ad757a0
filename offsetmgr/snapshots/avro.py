"""offsetmgr's own snapshot format: an Avro object container file that contains all data of a snapshot.

The header is in the file's metadata (keys ``offsetmgr.*``), and each record is a group. Only the last record sets the
field ``end``. This field contains the number of groups and offsets in the file, and the CRC-32 of all bytes before the
last block. The checksum is necessary because raw deflate has none: with the checksum, a reader can detect a truncated
or damaged file. Any Avro reader can read the records; ``snapshot.avsc`` is the schema. A snapshot also records each
read error and its class. Therefore an offset that could not be read never counts as absent (data rule "absent is not
zero").
"""

from __future__ import annotations

import io
import json
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import fastavro
from fastavro.write import Writer

from offsetmgr.core import errors as error_classes
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import MalformedData, OffsetMgrError, UnknownVersion, UnsupportedOperation
from offsetmgr.core.model import BrokerPartition, Committed, TopicPartition
from offsetmgr.core.offset_store import Capabilities, GroupOffsets, PartitionKinds
from offsetmgr.snapshots.base import (
    FORMAT_VERSION,
    BadLines,
    Format,
    SnapshotHeader,
    SnapshotReader,
    group_entry,
    is_avro,
)

_BLOCK_BYTES: Final = 64_000
"""The approximate size of a block of records before compression. A reader decodes one block at a time."""
_META: Final = "offsetmgr."
_TEXTS: Final = ("source_uri", "source_kind", "tool_version", "cluster_id", "log_cluster_id")
"""The fields of the header that the metadata contains unchanged, unless they are None."""
_NULL: Final = ("null", None)
_SCHEMA: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("snapshot.avsc").read_text(encoding="utf-8"))
_PARSED: Final = fastavro.parse_schema(_SCHEMA)
_NAMES_ONLY: Final = fastavro.parse_schema(
    {**_SCHEMA, "fields": [f for f in _SCHEMA["fields"] if f["name"] in ("group", "end")]}
)


class AvroFormat(Format):
    """The Avro format."""

    name = "avro"
    groups_in = "records"
    capabilities = Capabilities(
        metadata=True, leader_epoch=True, commit_timestamp=True, conditional="file", partitions=PartitionKinds.ALL
    )
    lossless = True

    def _write(self, stream: BinaryIO, header: SnapshotHeader, groups: Iterable[GroupOffsets]) -> None:
        writer = RecordWriter(stream, _PARSED, to_file_metadata(header))
        for group in groups:
            errors = (*([] if group.error is None else [(None, group.error)]), *sorted(group.errors.items()))
            writer.write(group.name, sorted(group.offsets.items(), key=itemgetter(0)), errors)
        writer.finish()

    def open(self, stream: BinaryIO, *, what: str = "snapshot") -> AvroReader:
        return AvroReader(stream, self, what)


class AvroReader(SnapshotReader):
    """A checked Avro snapshot, with an index that gives the block of each group."""

    def __init__(self, stream: BinaryIO, form: AvroFormat, what: str) -> None:
        self.format = form
        self._stream = stream
        self._what = what
        self.index: dict[str, int] = {}
        self._blocks: array[int] = array("q")
        """The position of each block, and the position after the last block."""
        self.header: SnapshotHeader = self._first_pass()
        self._head = self._bytes(0, self._blocks[0])
        self._last_block = -1
        self._last_records: dict[str, dict[str, Any]] = {}
        """A cache of the records in the block that was decoded last, because consecutive groups are usually in the same
        block."""

    def read(self) -> Iterator[GroupOffsets]:
        for block in range(len(self._blocks) - 2):  # the last block contains only the record with ``end``
            yield from map(self._entry, self._decode(block))

    def load(self, group: str) -> GroupOffsets:
        block = self.index[group]
        if block != self._last_block:
            self._last_records = {record["group"]: record for record in self._decode(block)}
            self._last_block = block
        return self._entry(self._last_records[group])

    def _decode(self, block: int) -> Iterator[dict[str, Any]]:
        # fastavro reads only whole files, so it receives the file's header followed by one block.
        data = self._bytes(self._blocks[block], self._blocks[block + 1])
        yield from fastavro.reader(io.BytesIO(self._head + data))  # type: ignore[misc]

    def _bytes(self, start: int, end: int) -> bytes:
        self._stream.seek(start)
        return self._stream.read(end - start)

    def _entry(self, record: dict[str, Any]) -> GroupOffsets:
        new = tuple.__new__  # faster, because it skips the argument handling of named tuples
        offsets = {
            new(TopicPartition, (o["topic"], o["partition"])): new(
                Committed, (o["offset"], o["metadata"], o["leader_epoch"], o["commit_timestamp"], None)
            )
            for o in record["offsets"]
        }
        group = record["group"]
        if len(offsets) != len(record["offsets"]):
            raise MalformedData(self._what, f"group {group!r} holds a partition twice", "take the snapshot again")
        if any(tp[1] < 0 for tp in offsets):
            offsets = {TopicPartition(topic, BrokerPartition.of(p)): found for (topic, p), found in offsets.items()}
        errors, whole = _errors(record["errors"]) if record["errors"] else ({}, None)
        return group_entry(self._what, group, offsets, errors, whole)

    # --- the first pass ---------------------------------------------------------------------------

    def _first_pass(self) -> SnapshotHeader:
        if not is_avro(self._stream):
            raise MalformedData(
                self._what, "not an Avro file", Advice("name its format with {format:as=csv|zk|json|spark}")
            )
        try:
            file = fastavro.block_reader(self._stream, reader_schema=_NAMES_ONLY)
            header = _from_metadata(file.metadata, self._what)
            end = self._read_names(file)
        except OffsetMgrError:
            raise
        except Exception as error:  # fastavro does not convert the errors of its decoders
            raise MalformedData(self._what, f"broken Avro: {type(error).__name__}: {error}".rstrip(": ")) from error
        if end is None:
            raise MalformedData(self._what, "it is truncated: the last record of a snapshot is missing")
        if end["groups"] != len(self.index) or end["crc32"] != self._checksum(self._blocks[-2]):
            raise MalformedData(self._what, "it is damaged: its checksum does not match")
        return header

    def _read_names(self, file: Any) -> Mapping[str, int] | None:
        bad = BadLines(self._what, "record")
        numbers: dict[str, int] = {}
        number = 0
        end: Mapping[str, int] | None = None
        for block in file:
            self._blocks.append(block.offset)
            for record in block:
                number += 1
                if end is not None:
                    bad.add(number, record["group"], "a record after the last record of the snapshot")
                elif record["end"] is not None:
                    end = record["end"]
                elif (before := numbers.setdefault(record["group"], number)) != number:
                    bad.add(number, record["group"], f"the same group as record {before}")
                else:
                    self.index[record["group"]] = len(self._blocks) - 1
            last = block.offset + block.size
        bad.raise_if_any()
        if end is not None:
            self._blocks.append(last)
        return end

    def _checksum(self, length: int) -> int:
        self._stream.seek(0)
        crc = 0
        while length > 0 and (data := self._stream.read(min(length, 1 << 20))):
            crc = zlib.crc32(data, crc)
            length -= len(data)
        return crc


class RecordWriter:
    """Writes the records of one file with fastavro."""

    def __init__(self, stream: BinaryIO, schema: Any, metadata: dict[str, str]) -> None:
        """``schema`` is parsed. It has the fields of ``snapshot.avsc``, and perhaps more."""
        self._checked = _ChecksumWriter(stream)
        self._writer = Writer(
            self._checked,  # type: ignore[arg-type]
            schema,
            codec="deflate",
            sync_interval=_BLOCK_BYTES,
            metadata=metadata,
            compression_level=1,
        )
        self._groups = 0
        self._offsets = 0

    def write(
        self,
        group: str,
        offsets: Iterable[tuple[TopicPartition, Committed]],
        errors: Iterable[tuple[TopicPartition | None, OffsetMgrError]],
        after: Iterable[dict[str, Any]] = (),
        **more: Any,
    ) -> None:
        """Writes the record of a group. ``offsets`` are sorted; the partition `None` in ``errors`` stands for an error
        of the whole group. ``after`` and ``more`` are further fields of the schema. Raises `UnsupportedOperation`."""
        try:
            # The branches of the unions are named, so that fastavro does not try them one after the other.
            items = [
                {
                    "topic": topic,
                    "partition": checked_int("partition", partition),
                    "offset": offset,
                    "metadata": metadata,
                    "leader_epoch": _NULL if epoch is None else ("int", checked_int("leader epoch", epoch)),
                    "commit_timestamp": _NULL if timestamp is None else ("long", timestamp),
                }
                for (topic, partition), (offset, metadata, epoch, timestamp, _) in offsets
            ]
            recorded = list(map(_error_item, errors))
            self._writer.write(
                {"group": group, "offsets": items, "errors": recorded, "end": None, "after": list(after), **more}
            )
        except (UnsupportedOperation, ValueError, OverflowError) as error:
            raise UnsupportedOperation(f"group {group!r}", f"Avro cannot contain it: {error}") from error
        self._groups += 1
        self._offsets += len(items)

    def finish(self, **more: Any) -> None:
        """Writes the last record. ``more`` are further fields of the schema."""
        self._writer.flush()  # the checksum covers all bytes before the block of the last record
        end = {"groups": self._groups, "offsets": self._offsets, "crc32": self._checked.crc32}
        self._writer.write({"group": "", "offsets": [], "errors": [], "end": end, **more})
        self._writer.flush()


def checked_int(what: str, number: int) -> int:
    """Returns the number. Raises `UnsupportedOperation` if it does not fit into Avro's type int, which fastavro does
    not check."""
    if -(1 << 31) <= number < 1 << 31:
        return number
    raise UnsupportedOperation(f"{what} {number}", "it does not fit into 32 bits")


def _error_item(recorded: tuple[TopicPartition | None, OffsetMgrError]) -> dict[str, Any]:
    tp, error = recorded
    topic, partition = (None, None) if tp is None else tp
    texts = {"what": error.what, "why": error.why, "hint": error.hint}
    return {"topic": topic, "partition": partition, "kind": type(error).__name__, **texts}


class _ChecksumWriter:
    """A stream that forwards all writes to another stream and computes the CRC-32 of the written bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.crc32 = 0

    def write(self, data: bytes) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        return self._stream.write(data)

    def flush(self) -> None:
        self._stream.flush()

    def seekable(self) -> bool:
        """Returns False, so that fastavro does not try to append to an existing file."""
        return False


def _errors(recorded: list[dict[str, Any]]) -> tuple[dict[TopicPartition, OffsetMgrError], OffsetMgrError | None]:
    """Returns the recorded errors of partitions, and the recorded error of the whole group (`None` if there is none).
    An error whose class is unknown becomes an `OffsetMgrError`."""
    partitions: dict[TopicPartition, OffsetMgrError] = {}
    whole: OffsetMgrError | None = None
    for e in recorded:
        kind = getattr(error_classes, e["kind"], OffsetMgrError)
        if not (isinstance(kind, type) and issubclass(kind, OffsetMgrError)) or kind is error_classes.PartialFailure:
            kind = OffsetMgrError
        error = kind(e["what"], e["why"], e["hint"])
        if e["topic"] is None:
            whole = error
        else:
            partitions[TopicPartition(e["topic"], BrokerPartition.of(e["partition"]))] = error
    return partitions, whole


def to_file_metadata(header: SnapshotHeader) -> dict[str, str]:
    values = {
        "version": str(FORMAT_VERSION),
        "snapshot_id": header.snapshot_id,
        "taken_at": str(header.taken_at),
        **{name: getattr(header, name) for name in _TEXTS},
        "log_brokers": json.dumps(header.log_brokers) if header.log_brokers else None,
        "topic_ids": json.dumps(dict(header.topic_ids), separators=(",", ":")) if header.topic_ids else None,
    }
    return {_META + key: value for key, value in values.items() if value is not None}


def _from_metadata(metadata: Mapping[str, Any], what: str) -> SnapshotHeader:
    values: dict[str, Any] = {
        key.removeprefix(_META): value if isinstance(value, str) else value.decode("utf-8")
        for key, value in metadata.items()
        if key.startswith(_META)
    }
    version = values.get("version")
    if version is None:
        raise MalformedData(what, "it is an Avro file, but not an offsetmgr snapshot: its header is missing")
    if version != str(FORMAT_VERSION):
        raise UnknownVersion(
            what, f"snapshot format version {version} is not known (known: {FORMAT_VERSION})", "use a newer offsetmgr"
        )
    try:
        return SnapshotHeader(
            values["snapshot_id"],
            int(values["taken_at"]),
            **{name: values[name] for name in _TEXTS if name in values},
            log_brokers=tuple(json.loads(values.get("log_brokers", "[]"))),
            topic_ids=json.loads(values.get("topic_ids", "{}")),
        )
    except (KeyError, ValueError) as error:
        raise MalformedData(what, f"its header is broken: {error}") from error
