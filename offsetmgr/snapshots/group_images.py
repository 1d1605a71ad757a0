"""Files of before-images. A file of before-images is an Avro snapshot of the offsets before an edit. It also contains
the offsets that the edit is planned to write.

The format is that of `offsetmgr.snapshots.avro` with one more field, ``after``, so every reader of snapshots can read
it. A partition that is in ``after`` but not in ``offsets`` had no commit before the edit, so an undo of the edit
deletes its offset. If its data was no offset, the field ``errors`` has the partition, with the data (as Latin-1) in the
field ``hint``. The field ``tree`` has all znodes of a group that the edit deletes. A file with such data or with a tree
has version 3, because a reader of version 2 would not restore it.

A file of version 4 is a saved plan. Its ``offsets`` are those that the plan writes, and its ``after`` those that the
plan has found, so an undo of this file executes the plan.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, TypeAlias

import fastavro

from offsetmgr.core.errors import CorruptData, MalformedData, OffsetMgrError, UnknownVersion
from offsetmgr.core.model import BrokerPartition, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import SavedNode
from offsetmgr.snapshots.avro import (
    MAGIC,
    PARTITION,
    SCHEMA,
    AvroFormat,
    RecordWriter,
    array_of,
    checked_int,
    to_file_metadata,
)
from offsetmgr.snapshots.base import SnapshotHeader

IMAGES_SCHEMA: Final[dict[str, Any]] = {
    **SCHEMA,
    "fields": [
        *SCHEMA["fields"],
        {
            "name": "after",
            "doc": "the planned offset of each partition that the edit changes; null: the edit deletes the commit",
            "type": array_of("OffsetAfter", [*PARTITION, {"name": "offset", "type": ["null", "long"]}]),
        },
        {
            "name": "tree",
            "doc": "all znodes of a deleted group, parents first; JSON: [[PATH, BASE64, [[PERMISSIONS, SCHEME, ID]]]]",
            "default": None,
            "type": ["null", "string"],
        },
    ],
}
_PARSED: Final = fastavro.parse_schema(IMAGES_SCHEMA)

_NO_OFFSET: Final = "its data was no offset"
VERSION: Final = 2
"""The version of a file without znodes."""
VERSION_WITH_NODES: Final = 3
VERSION_OF_PLAN: Final = 4
_VERSION_KEY: Final = "offsetmgr.before_images_version"
"""The key under which the file's metadata contains `VERSION`. A file that is only a snapshot does not have this key."""


@dataclass(frozen=True, slots=True)
class GroupImages:
    """The before-images of one group. ``before`` contains the commits before the edit. ``after`` maps every partition
    that the edit changes to its planned offset, or to None if the edit deletes the commit. ``nodes`` are the znodes of
    a group that the edit deletes. ``raw`` has the data of partitions whose data was no offset."""

    group: str
    before: Mapping[TopicPartition, Committed]
    after: Mapping[TopicPartition, int | None]
    nodes: tuple[SavedNode, ...] = ()
    raw: Mapping[TopicPartition, bytes] = field(default_factory=dict)


ImageRow: TypeAlias = tuple[TopicPartition, Offset, OffsetAndMetadata | None, *tuple[Any, ...]]
"""A partition that an edit changes, its offset before the edit, and the planned offset (`None` if the edit deletes the
offset). Further values are ignored."""


def write_images(
    stream: BinaryIO,
    header: SnapshotHeader,
    groups: Iterable[tuple[str, Sequence[ImageRow], Sequence[SavedNode], Mapping[TopicPartition, bytes]]],
    *,
    version: int = VERSION,
) -> int:
    """Writes before-images, one group after the other, each with its rows sorted by partition, its znodes, and the data
    that is no offset. Returns the number of partitions. Raises `UnsupportedOperation` if Avro cannot contain a value.
    """
    writer = RecordWriter(stream, _PARSED, to_file_metadata(header) | {_VERSION_KEY: str(version)})
    partitions = 0
    for group, rows, nodes, raw in groups:
        before = [(row[0], row[1]) for row in rows if isinstance(row[1], Committed)]
        # With the name of the type, fastavro does not have to search the union.
        changed = [(row[0], None if row[2] is None else ("long", row[2].offset)) for row in rows]
        after = (
            {"topic": tp[0], "partition": checked_int("partition", tp[1]), "offset": offset} for tp, offset in changed
        )
        errors = [(tp, CorruptData(str(tp), _NO_OFFSET, data.decode("latin-1"))) for tp, data in sorted(raw.items())]
        writer.write(group, before, errors, after=after, tree=_encoded(nodes))
        partitions += len(rows)
    writer.finish(after=[], tree=None)
    return partitions


def _encoded(nodes: Sequence[SavedNode]) -> str | None:
    """Returns the field ``tree``, without the znodes whose data is lost. If such a znode has saved children, the file
    has it without data."""
    parents = {one.path.rpartition("/")[0] for one in nodes if one.path}
    kept = (one for one in nodes if one.data is not None or one.path in parents)
    tree = [[one.path, b64encode(one.data or b"").decode(), one.acl] for one in kept]
    return json.dumps(tree) if tree else None


def _decoded(tree: str | None) -> tuple[SavedNode, ...]:
    return tuple(
        SavedNode(path, b64decode(data), tuple((permissions, scheme, of) for permissions, scheme, of in acl))
        for path, data, acl in json.loads(tree or "[]")
    )


def images_version(stream: BinaryIO) -> str | None:
    """Returns the version of the before-images in a seekable stream; None for a file of another kind and for a broken
    file."""
    stream.seek(0)
    try:
        if stream.read(len(MAGIC)) != MAGIC:
            return None
        stream.seek(0)
        return _version(stream)
    except Exception:  # fastavro raises any error of its decoders; a later read of the file reports the cause
        return None
    finally:
        stream.seek(0)


def _version(stream: BinaryIO) -> str | None:
    """Returns the version of the before-images in a file; None if the file is only a snapshot."""
    version = fastavro.block_reader(stream).metadata.get(_VERSION_KEY)
    return version.decode() if isinstance(version, bytes) else version


def _partition(item: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(item["topic"], BrokerPartition.of(item["partition"]))


def read_images(stream: BinaryIO, *, what: str) -> Iterator[GroupImages]:
    """Yields the before-images of a file, one group at a time. Checks the whole file before it yields the first group.

    Raises `MalformedData`, `UnknownVersion`.
    """
    checked = AvroFormat().open(stream, what=what)  # reads the whole file once and checks its checksum
    stream.seek(0)
    if (version := _version(stream)) is None:
        why = "is a snapshot and holds no before-images, so there is no edit to undo"
        raise MalformedData(what, why, "import it: offsetmgr offsets import, or plan_import in a program")
    if version not in (known := tuple(map(str, (VERSION, VERSION_WITH_NODES, VERSION_OF_PLAN)))):
        why = f"before-images version {version} is not known (known: {', '.join(known)})"
        raise UnknownVersion(what, why, "use a newer offsetmgr")
    stream.seek(0)
    try:
        for record in fastavro.reader(stream):
            if not isinstance(record, dict) or record["end"] is not None:
                continue
            before = {
                _partition(o): Committed(o["offset"], o["metadata"], o["leader_epoch"], o["commit_timestamp"])
                for o in record["offsets"]
            }
            after = {_partition(e): e["offset"] for e in record["after"]}
            raw = {_partition(e): e["hint"].encode("latin-1") for e in record["errors"] or ()}
            yield GroupImages(record["group"], before, after, _decoded(record.get("tree")), raw)
    except OffsetMgrError:
        raise
    except (KeyError, ValueError, EOFError, IndexError) as error:
        raise MalformedData(what, f"broken before-images (snapshot {checked.header.snapshot_id}): {error}") from error
