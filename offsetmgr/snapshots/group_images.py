"""Files of before-images. A file of before-images is an Avro snapshot of the offsets before an edit. It also contains
the offsets that the edit is planned to write.

The format is that of `offsetmgr.snapshots.avro` with one more field, ``after``, so every reader of snapshots can read
it. A partition that is in ``after`` but not in ``offsets`` had no commit before the edit, so an undo of the edit
deletes its offset. If its data was no offset, the field ``errors`` has the partition, with the data (as Latin-1) in the
field ``hint``. The field ``tree`` has all znodes of a group that the edit deletes. A file with such data or with a tree
has version 3, because a reader of version 2 would not restore it.

A file of version 4 is a saved plan. Its ``offsets`` are those that the plan writes, and its ``after`` those that the
plan has found, so an undo of this file executes the plan. If the plan copies a group, the metadata of the file has the
name of this group and the selected topics, and ``offsets`` and ``after`` of the group are equal.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

import fastavro

from offsetmgr.core.errors import CorruptData, MalformedData, UnknownVersion
from offsetmgr.core.model import BrokerPartition, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import SavedNode
from offsetmgr.core.selection import ALL_TOPICS, TopicSelection
from offsetmgr.snapshots.avro import AvroFormat, RecordWriter, checked_int, to_file_metadata
from offsetmgr.snapshots.base import SnapshotHeader, is_avro

_SCHEMA: Final = fastavro.schema.load_schema(str(Path(__file__).with_name("before-images.avsc")))
_NO_OFFSET: Final = "its data was no offset"
VERSION: Final = 2
"""The version of a file without znodes."""
VERSION_WITH_NODES: Final = 3
VERSION_OF_PLAN: Final = 4
_VERSION_KEY: Final = "offsetmgr.before_images_version"
"""The key under which the file's metadata contains `VERSION`. A file that is only a snapshot does not have this key."""
_COPIED_KEY: Final = "offsetmgr.plan_copies"


class ImagesKind(NamedTuple):
    """The kind of a file with before-images. If it is a saved plan of a copy, the plan copies the offsets of the group
    ``copied`` in ``topics``."""

    version: str
    copied: str | None = None
    topics: TopicSelection = ALL_TOPICS

    @property
    def is_plan(self) -> bool:
        """Whether the file is a saved plan."""
        return self.version == str(VERSION_OF_PLAN)


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
    copied: tuple[str, TopicSelection] | None = None,
) -> int:
    """Writes before-images, one group after the other, each with its rows sorted by partition, its znodes, and the data
    that is no offset. ``copied`` is the group that a saved plan copies, and its topics. Returns the number of
    partitions. Raises `UnsupportedOperation` if Avro cannot contain a value.
    """
    of_copy = {} if copied is None else {_COPIED_KEY: json.dumps([copied[0], copied[1].texts])}
    writer = RecordWriter(stream, _SCHEMA, to_file_metadata(header) | {_VERSION_KEY: str(version)} | of_copy)
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


def images_kind(path: Path) -> ImagesKind | None:
    """Returns the kind of a file of before-images, which may be a saved plan; None for a file of another kind and for
    one that cannot be read. (An import of before-images undoes the edit for which offsetmgr wrote the file.)"""
    try:
        with path.open("rb") as stream:
            return _kind(stream) if is_avro(stream) else None
    except Exception:  # fastavro raises any error of its decoders; a later read of the file reports the cause
        return None


def _kind(stream: BinaryIO) -> ImagesKind | None:
    metadata = fastavro.block_reader(stream).metadata
    if (version := metadata.get(_VERSION_KEY)) is None:
        return None
    group, topics = json.loads(metadata.get(_COPIED_KEY, "[null, []]"))
    return ImagesKind(version, group, TopicSelection.parse(topics))


def _partition(item: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(item["topic"], BrokerPartition.of(item["partition"]))


def read_images(stream: BinaryIO, *, what: str) -> Iterator[GroupImages]:
    """Yields the before-images of a file, one group at a time. Checks the whole file before it yields the first group.

    Raises `MalformedData`, `UnknownVersion`.
    """
    checked = AvroFormat().open(stream, what=what)  # reads the whole file once and checks its checksum
    stream.seek(0)
    if (kind := _kind(stream)) is None:
        why = "is a snapshot and holds no before-images, so there is no edit to undo"
        raise MalformedData(what, why, "import it: offsetmgr offsets import, or plan_import in a program")
    if kind.version not in (known := tuple(map(str, (VERSION, VERSION_WITH_NODES, VERSION_OF_PLAN)))):
        why = f"before-images version {kind.version} is not known (known: {', '.join(known)})"
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
    except (KeyError, ValueError, EOFError, IndexError) as error:
        raise MalformedData(what, f"broken before-images (snapshot {checked.header.snapshot_id}): {error}") from error
