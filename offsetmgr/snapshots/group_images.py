"""Files of before-images. A file of before-images is an Avro snapshot of the offsets before an edit. It also contains
the offsets that the edit is planned to write.

The format is that of `offsetmgr.snapshots.avro` with one more field, ``after``, so every reader of snapshots can read
it. A partition that is in ``after`` but not in ``offsets`` had no commit before the edit, so an undo of the edit
deletes its offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, TypeAlias

import fastavro
from fastavro.write import Writer

from offsetmgr.core.errors import MalformedData, OffsetMgrError, UnknownVersion
from offsetmgr.core.model import BrokerPartition, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.snapshots.avro import MAGIC, SCHEMA, AvroFormat, ChecksumWriter, to_file_metadata
from offsetmgr.snapshots.avro_encoder import NO_END, RecordBlocks, RecordEncoder, end
from offsetmgr.snapshots.base import SnapshotHeader

IMAGES_SCHEMA: Final[dict[str, Any]] = {
    **SCHEMA,
    "fields": [
        *SCHEMA["fields"],
        {
            "name": "after",
            "doc": "the planned offset of each partition that the edit changes; null: the edit deletes the commit",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "OffsetAfter",
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

VERSION: Final = 2
"""The version of the field ``after``."""
_VERSION_KEY: Final = "offsetmgr.before_images_version"
"""The key under which the file's metadata contains `VERSION`. A file that is only a snapshot does not have this key."""


@dataclass(frozen=True, slots=True)
class GroupImages:
    """The before-images of one group. ``before`` contains the commits before the edit. ``after`` maps every partition
    that the edit changes to its planned offset, or to None if the edit deletes the commit."""

    group: str
    before: Mapping[TopicPartition, Committed]
    after: Mapping[TopicPartition, int | None]


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
        metadata=to_file_metadata(header) | {_VERSION_KEY: str(VERSION)},
        compression_level=1,
    )
    encoder, blocks = RecordEncoder(), RecordBlocks(writer)
    group_count = offset_count = partitions = 0
    for group, rows in groups:
        changed = [row[0] for row in rows]
        committed_partitions = [row[0] for row in rows if isinstance(row[1], Committed)]
        found = [row[1] for row in rows if isinstance(row[1], Committed)]
        before = encoder.columns(group, committed_partitions, found)
        after = encoder.planned_offsets(changed, [None if row[2] is None else row[2][0] for row in rows])
        blocks.add(before + NO_END + after)
        group_count += 1
        offset_count += len(committed_partitions)
        partitions += len(rows)
    blocks.flush()
    blocks.add(encoder.group("", {}) + end(group_count, offset_count, checked.crc32) + encoder.planned_offsets((), ()))
    blocks.flush()
    return partitions


def is_images(stream: BinaryIO) -> bool:
    """Returns whether a seekable stream is a file of before-images. Returns False for a file of another kind and for a
    broken file."""
    stream.seek(0)
    try:
        if stream.read(len(MAGIC)) != MAGIC:
            return False
        stream.seek(0)
        version = _version(stream)
    except Exception:  # fastavro raises any error of its decoders; a later read of the file reports the cause
        return False
    finally:
        stream.seek(0)
    return version is not None


def _version(stream: BinaryIO) -> str | None:
    """Returns the version of the before-images in a file; None if the file is only a snapshot."""
    version = fastavro.block_reader(stream).metadata.get(_VERSION_KEY)
    return version.decode() if isinstance(version, bytes) else version


def read_images(stream: BinaryIO, *, what: str) -> Iterator[GroupImages]:
    """Yields the before-images of a file, one group at a time. Checks the whole file before it yields the first group.

    Raises `MalformedData`, `UnknownVersion`.
    """
    checked = AvroFormat().open(stream, what=what)  # reads the whole file once and checks its checksum
    stream.seek(0)
    if (version := _version(stream)) is None:
        why = "is a snapshot and holds no before-images, so there is no edit to undo"
        raise MalformedData(what, why, "import it: offsetmgr offsets import, or plan_import in a program")
    if version != str(VERSION):
        raise UnknownVersion(
            what, f"before-images version {version} is not known (known: {VERSION})", "use a newer offsetmgr"
        )
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
            after = {
                TopicPartition(e["topic"], BrokerPartition.of(e["partition"])): e["offset"] for e in record["after"]
            }
            yield GroupImages(record["group"], before, after)
    except OffsetMgrError:
        raise
    except (KeyError, ValueError, EOFError, IndexError) as error:
        raise MalformedData(what, f"broken before-images (snapshot {checked.header.snapshot_id}): {error}") from error
