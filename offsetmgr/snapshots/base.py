"""The interface of snapshot formats, and the code that all formats share: the header, capabilities and errors.

Ordering contract of reads: `Format.open` reads and checks the whole stream once. Therefore a broken file causes an
error before the caller uses the first group, and never in the middle of an import.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar, Final, NoReturn

from offsetmgr.core.advice import Advice
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import CorruptData, MalformedData, OffsetMgrError, UnsupportedOperation, UsageError
from offsetmgr.core.model import MAX_OFFSET, NEGATIVE_OFFSET, Committed, TopicPartition, dropped_text, form_of
from offsetmgr.core.offset_store import Capabilities, GroupOffsets, PartitionKinds
from offsetmgr.core.plurals import count_of

FORMAT_VERSION: Final = 1
LEAVE_OUT_GROUP: Final = Advice("leave out {group} (in a URI: group=)")
NAME_THE_GROUP: Final = Advice("name it with {group} (in a URI: group=)")
MAX_BAD_LINES: Final = 20
"""The maximum number of bad lines in one error. The reader stops when it has found this number of bad lines."""
MAX_SHOWN_CHARACTERS: Final = 80
"""The maximum number of characters of a bad line in an error."""


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """The origin of a snapshot. ``taken_at`` is milliseconds since 1970; ``source_kind`` is ``kafka``, ``zookeeper``,
    ``file``...; ``cluster_id`` is the id of the source store, or `None` if the store has no id."""

    snapshot_id: str
    taken_at: int
    source_uri: str = ""
    source_kind: str = ""
    cluster_id: str | None = None
    tool_version: str = ""
    log_cluster_id: str | None = None
    """The id of the Kafka cluster whose logs the offsets refer to; `None` if the source did not report it."""
    log_brokers: tuple[str, ...] = ()
    """Addresses (``host:port``) of that cluster's brokers, as the source reported them."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The ids that the source's topics had at the time of the snapshot, as far as they were known."""

    @classmethod
    def new(
        cls, source_uri: str = "", source_kind: str = "", cluster_id: str | None = None, tool_version: str = ""
    ) -> SnapshotHeader:
        """Returns a header for a snapshot taken now, with a new random id."""
        return cls(str(uuid.uuid4()), SystemClock().now_ms(), source_uri, source_kind, cluster_id, tool_version)


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """The result of a write. ``lost`` lists the kinds of data that the format cannot contain and that were therefore
    not written, with their counts. ``size`` is in bytes."""

    path: str
    groups: int
    offsets: int
    errors: int
    lost: tuple[str, ...]
    size: int = 0


class SnapshotReader(ABC):
    """An open snapshot that has been checked. A reader's memory use grows with the number of groups, not with the
    number of offsets."""

    header: SnapshotHeader | None = None
    """The header; `None` if the format cannot contain one."""
    format: Format
    """The format of the file. An edited snapshot is written back in this format."""

    index: Mapping[str, Any]
    """A mapping whose keys are the ids of all groups in the order of the file."""

    @abstractmethod
    def load(self, group: str) -> GroupOffsets:
        """Returns one group of the index."""

    def groups(self) -> Iterator[str]:
        """Yields the ids of all groups in the order of the file."""
        return iter(self.index)

    def read(self) -> Iterator[GroupOffsets]:
        """Yields all groups in the order of the file, one at a time."""
        return map(self.load, self.index)

    def find(self, group: str) -> GroupOffsets | None:
        """Returns one group; `None` if the file does not contain it."""
        return self.load(group) if group in self.index else None


@dataclass(frozen=True, slots=True)
class LoadedReader(SnapshotReader):
    """The reader of a file whose groups are all in memory."""

    format: Format
    header: SnapshotHeader | None
    index: Mapping[str, GroupOffsets] = field(default_factory=dict)

    def load(self, group: str) -> GroupOffsets:
        return self.index[group]


class Format(ABC):
    """A file format of snapshots. ``name`` is its name, as in ``?format=NAME``. ``group`` is the group of all offsets
    of a file, in formats that do not contain groups."""

    name: ClassVar[str]
    groups_in: ClassVar[str] = ""
    """The parts of a file that contain the groups, so that a user cannot name a group."""
    capabilities: ClassVar[Capabilities] = Capabilities(
        metadata=False, leader_epoch=False, commit_timestamp=False, conditional="file"
    )
    lossless: ClassVar[bool] = False
    """Whether a file contains all fields of an offset, the header, and read errors. A format that is not lossless
    contains none of them."""

    def __init__(self, group: str | None = None) -> None:
        if group is not None and self.groups_in:
            why = f"its {self.groups_in} contain the groups"
            raise UsageError(f"format {self.name}", why, LEAVE_OUT_GROUP)
        self.group = group

    @property
    def cannot_hold(self) -> str:
        """A description, for messages, of the data that this format can never contain; empty if it can contain
        everything."""
        return "" if self.lossless else "metadata, leader epochs, commit timestamps, snapshot id, time and source"

    def write(
        self, stream: BinaryIO, header: SnapshotHeader, groups: Iterable[GroupOffsets], *, keep_errors: bool = False
    ) -> SnapshotReport:
        """Writes the groups one after the other. Only a few groups are in memory at a time.

        Raises `UnsupportedOperation` for a name that the format cannot contain. Also raises it for a group or partition
        with a read error, unless ``keep_errors`` is set and the format can record errors.
        """
        dropped = DroppedFields(self, header)

        def accepted() -> Iterator[GroupOffsets]:
            for group in groups:
                reject_unreadable(self._without_written_errors(group, dropped.groups), self, keep_errors)
                dropped.count(group)
                yield group

        self._write(stream, header, accepted())
        return dropped.report()

    def _without_written_errors(self, group: GroupOffsets, number: int) -> GroupOffsets:  # noqa: ARG002
        """Returns the group without the errors that stand for a value of the file. ``number`` counts the groups before
        this one."""
        return group

    @abstractmethod
    def _write(self, stream: BinaryIO, header: SnapshotHeader, groups: Iterable[GroupOffsets]) -> None:
        """Writes groups that the file can contain."""

    @abstractmethod
    def open(self, stream: BinaryIO, *, what: str = "snapshot") -> SnapshotReader:
        """Checks a seekable stream and returns a reader. Errors use ``what`` as the name of the stream.

        Raises `MalformedData` with the bad lines, and `UnknownVersion`.
        """


MAGIC: Final = b"Obj\x01"


def is_avro(stream: BinaryIO) -> bool:
    """Returns whether a seekable stream is an Avro file. Afterwards it is at its start."""
    stream.seek(0)
    start = stream.read(len(MAGIC))
    stream.seek(0)
    return start == MAGIC


def group_entry(
    what: str,
    group: str,
    offsets: dict[TopicPartition, Committed],
    errors: dict[TopicPartition, OffsetMgrError] | None = None,
    error: OffsetMgrError | None = None,
) -> GroupOffsets:
    """Returns a group of the file ``what``. A partition with a negative offset is unreadable.

    Earlier releases wrote such offsets of brokers to files. Only the partition is unreadable, not the file.
    """
    errors = errors or {}
    for tp in [tp for tp, found in offsets.items() if found[0] < 0]:
        why = f"is {offsets.pop(tp)[0]} in the file: {NEGATIVE_OFFSET}"
        errors[tp] = CorruptData(f"{what}: group {group}, {tp}", why, "correct it, or remove it from the file")
    return GroupOffsets(group, offsets, errors, error)


class DroppedFields:
    """Counts the written groups and offsets, and the dropped fields that the format cannot contain. `report` returns
    the counts as a `SnapshotReport`."""

    def __init__(self, form: Format, header: SnapshotHeader) -> None:
        self._form = form
        self._source = header.source_uri
        self.groups = 0
        self.offsets = 0
        self.errors = 0
        self._metadata: Counter[str] = Counter()
        self._epochs = 0
        self._timestamps = 0

    def count(self, group: GroupOffsets) -> None:
        self.groups += 1
        self.offsets += len(group.offsets)
        self.errors += len(group.errors) + (group.error is not None)
        for _, metadata, epoch, timestamp, _ in () if self._form.lossless else group.offsets.values():
            if metadata:
                self._metadata[form_of(metadata)] += 1
            if epoch is not None:
                self._epochs += 1
            if timestamp is not None:
                self._timestamps += 1

    def report(self) -> SnapshotReport:
        lost = [dropped_text(self._metadata).removeprefix("the ")] if self._metadata else []
        for what, count in (("leader epoch", self._epochs), ("commit timestamp", self._timestamps)):
            lost += [f"{what} of {count_of(count, 'offset')}"] if count else []
        if not self._form.lossless:
            lost.append("snapshot id, time and source" + (f" ({self._source})" if self._source else ""))
        return SnapshotReport("", self.groups, self.offsets, self.errors, tuple(lost))


def reject_unreadable(group: GroupOffsets, form: Format, keep_errors: bool) -> None:
    """Raises `UnsupportedOperation` if the group must not be written. There are two possible reasons. The group has a
    read error, and the format cannot record errors or ``keep_errors`` is not set (data rule "absent is not zero"). Or
    the group has byte positions of Kafka 0.7, and readers of the format would mistake these positions for offsets."""
    only_numbered = form.capabilities.partitions is PartitionKinds.NUMBERED
    if only_numbered and (old := next((tp for tp in group.offsets if tp[1] < 0), None)):
        raise UnsupportedOperation(
            f"group {group.name!r} is not in the file",
            f"group {group.name} holds byte positions of Kafka 0.7 ({old}): in this format they look like offsets",
            "write Avro (.avro) or ExportZkOffsets' lines (.zk)",
        )
    first = group.error or next((error for _, error in sorted(group.errors.items())), None)
    if first is None or (keep_errors and form.lossless):
        return
    which = (
        f"group {group.name}" if group.error else f"{count_of(len(group.errors), 'partition')} of group {group.name}"
    )
    hint = "leave the group out" if form.lossless else "write Avro (.avro), which records what cannot be read"
    what = f"group {group.name!r} is not in the file"
    raise UnsupportedOperation(what, f"{which} could not be read: {first}", hint) from first


def has_control_character(text: str) -> bool:
    """Returns whether a text contains control characters (below space, or DEL), which line formats cannot contain."""
    return any(c < " " or c == "\x7f" for c in text)


class BadLine(Exception):
    """A line is invalid. The reader catches this exception and adds the number of the line."""


class BadLines:
    """Collects the bad lines of one file, and reports them in one error."""

    def __init__(self, what: str, unit: str = "line") -> None:
        self._what = what
        self._unit = unit
        self._bad: dict[int, str] = {}

    def add(self, number: int, content: bytes | str, why: str) -> None:
        """Records a bad line and the first reason for it. Raises `MalformedData` when `MAX_BAD_LINES` have been
        recorded."""
        self._bad.setdefault(number, f"{self._unit} {number}: {why} in {shown(content)}")
        if len(self._bad) >= MAX_BAD_LINES:
            self._raise(" (and possibly more)")

    def raise_if_any(self) -> None:
        if self._bad:
            self._raise("")

    def _raise(self, more: str) -> NoReturn:
        raise MalformedData(
            self._what,
            "; ".join(self._bad[n] for n in sorted(self._bad)) + more,
            f"fix or remove {'it' if len(self._bad) == 1 else 'them'}",
        )


def shown(content: bytes | str) -> str:
    """Returns a line as it appears in an error message: quoted, shortened, and with escaped control characters."""
    if isinstance(content, bytes):
        content = content[: 4 * MAX_SHOWN_CHARACTERS].decode("utf-8", "backslashreplace")
    text = content.rstrip("\r\n")
    return repr(text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "...")


def offset_number(text: str) -> int:
    """Parses an offset, which may be negative (see `group_entry`). Raises `BadLine`."""
    negative = text.startswith("-") and text.strip("-0") != ""
    return -number(text[1:], MAX_OFFSET, "offset") if negative else number(text, MAX_OFFSET, "offset")


def number(text: str, limit: int, name: str) -> int:
    """Parses digits, from 0 to ``limit``. Raises `BadLine`."""
    if not (text.isascii() and text.isdigit()):
        if text[:1] == "-" and text[1:].isascii() and text[1:].isdigit():
            raise BadLine(f"negative {name}")
        if "E+" in text.upper():
            raise BadLine(f"{name} {text[:40]} was rounded by a spreadsheet")
        raise BadLine(f"{name} is not a number" if text else f"empty {name}")
    # Check the length first, because int() raises a different error for very long texts.
    if len(text) > 40 or int(text) > limit:
        raise BadLine(f"{name} is larger than {limit}")
    return int(text)
