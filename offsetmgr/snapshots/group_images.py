"""Files of before-images: Avro snapshots that contain the offsets before an edit, and the offsets planned for after the
edit.

The format is that of `offsetmgr.snapshots.avro` with one more field, ``left``, so every reader of snapshots can read
it. A partition in ``left`` that is not in ``offsets`` had no commit before the edit, so an undo deletes its offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, TypeAlias

import fastavro
from fastavro.write import Writer

from offsetmgr.core.errors import MalformedData, OffsetMgrError
from offsetmgr.core.model import BrokerPartition, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.snapshots.avro import MAGIC, SCHEMA, AvroFormat, ChecksumWriter, to_file_metadata
from offsetmgr.snapshots.avro_encoder import NO_END, RecordBlocks, RecordEncoder, end
from offsetmgr.snapshots.base import SnapshotHeader

IMAGES_SCHEMA: Final[dict[str, Any]] = {
    **SCHEMA,
    "fields": [
        *SCHEMA["fields"],
        {
            "name": "left",
            "doc": "what the edit was to leave in each partition that it changed; null: no commit",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Left",
                    "fields": [
                        {"name": "topic", "type": "string"},
                        {"name": "partition", "type": "int"},
                        {"name": "offset", "type": ["null", "long"]},
                    ],
                },
            },
        },
    ],
}
_PARSED: Final = fastavro.parse_schema(IMAGES_SCHEMA)


@dataclass(frozen=True, slots=True)
class GroupImages:
    """The before-images of one group. ``before`` contains the commits before the edit; ``left`` contains every
    partition that the edit changes, with the planned offset, or None if the edit deletes the commit."""

    group: str
    before: Mapping[TopicPartition, Committed]
    left: Mapping[TopicPartition, int | None]


ImageRow: TypeAlias = tuple[TopicPartition, Offset, OffsetAndMetadata | None, *tuple[Any, ...]]
"""A partition that an edit changes, its offset before the edit, and the planned offset (`None` if the edit deletes the
offset). Further values are ignored."""


def write_images(stream: BinaryIO, header: SnapshotHeader, groups: Iterable[tuple[str, Sequence[ImageRow]]]) -> int:
    """Writes before-images, one group after the other, each with its rows sorted by partition. Returns the number of
    partitions."""
    checked = ChecksumWriter(stream)
    writer = Writer(
        checked,  # type: ignore[arg-type]
        _PARSED,
        codec="deflate",
        metadata=to_file_metadata(header),
        compression_level=1,
    )
    encoder, blocks = RecordEncoder(), RecordBlocks(writer)
    group_count = offset_count = partitions = 0
    for group, rows in groups:
        changed = [row[0] for row in rows]
        there = [row[0] for row in rows if isinstance(row[1], Committed)]
        found = [row[1] for row in rows if isinstance(row[1], Committed)]
        before = encoder.columns(group, there, found)
        left = encoder.left(changed, [None if row[2] is None else row[2][0] for row in rows])
        blocks.add(before + NO_END + left)
        group_count += 1
        offset_count += len(there)
        partitions += len(rows)
    blocks.flush()
    blocks.add(encoder.group("", {}) + end(group_count, offset_count, checked.crc32) + encoder.left((), ()))
    blocks.flush()
    return partitions


def is_images(stream: BinaryIO) -> bool:
    """Returns whether a seekable stream is a file of before-images. Returns False for any other or broken file."""
    stream.seek(0)
    try:
        if stream.read(len(MAGIC)) != MAGIC:
            return False
        stream.seek(0)
        schema = fastavro.block_reader(stream).writer_schema
    except Exception:  # fastavro raises any error of its decoders; a later read of the file reports the cause
        return False
    finally:
        stream.seek(0)
    return isinstance(schema, dict) and any(f["name"] == "left" for f in schema.get("fields", ()))


def read_images(stream: BinaryIO, *, what: str) -> Iterator[GroupImages]:
    """Yields the before-images of a file, one group at a time. Checks the whole file before it yields the first group.

    Raises `MalformedData`, `UnknownVersion`.
    """
    checked = AvroFormat().open(stream, what=what)  # reads the whole file once and checks its checksum
    stream.seek(0)
    try:
        for record in fastavro.reader(stream):
            if not isinstance(record, dict) or record["end"] is not None:
                continue
            before = {
                TopicPartition(o["topic"], BrokerPartition.of(o["partition"])): Committed(
                    o["offset"], o["metadata"], o["leader_epoch"], o["commit_timestamp"]
                )
                for o in record["offsets"]
            }
            left = {TopicPartition(e["topic"], BrokerPartition.of(e["partition"])): e["offset"] for e in record["left"]}
            yield GroupImages(record["group"], before, left)
    except OffsetMgrError:
        raise
    except (KeyError, ValueError, EOFError, IndexError) as error:
        raise MalformedData(what, f"broken before-images (snapshot {checked.header.snapshot_id}): {error}") from error
