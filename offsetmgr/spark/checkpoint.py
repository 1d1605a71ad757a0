"""Parses a streaming query's checkpoint: the batches, and the offsets up to which each batch read its sources.

Pure: it parses file names and texts that the caller has read. The formats are those of Spark 4.0 to 4.3
(``OffsetSeqLog``, ``CommitLog``). In ``offsets/N``, line 1 is the version, line 2 the batch's settings, and each later
line is the offset of one source, or ``-`` if the source has no offset yet. In version 1 the lines have the order of the
plan. In version 2 each line begins with the source's name, or with its position in the plan, and a colon. Spark writes
``commits/N`` after the output of batch N. The batch is finished when ``commits/N`` exists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from offsetmgr.core.errors import CorruptData, UnknownVersion, os_error_as
from offsetmgr.core.model import TopicPartition, is_valid_offset, is_valid_topic_name

_VERSION: Final = re.compile(r"v\d+")
_BY_POSITION, _BY_ID = "v1", "v2"
NO_OFFSET: Final = "-"
_NUMBER: Final = re.compile(r"0|[1-9][0-9]*")
_LIKE_A_NUMBER: Final = re.compile(r"-?[0-9]+")
_MAX_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class CheckpointBatch:
    """One micro-batch. ``lines`` are the end offsets of its sources as texts, by the id of the source. ``what`` names
    the file in errors. If ``ordered``, the ids are the positions of the sources in the plan."""

    number: int
    lines: Mapping[str, str]
    what: str
    ordered: bool = True

    @property
    def ends(self) -> tuple[Mapping[TopicPartition, int] | None, ...]:
        """The end offsets of the sources for a reader that does not know the plan. The end of a source is None if the
        source has no offset yet, or if its offset has the form of another source. Raises `CorruptData` for an offset
        that only a Kafka source can have written and that is invalid."""
        return tuple(
            kafka_offsets(line, self.what) if _is_kafkas(line, self.what) else None for line in self.lines.values()
        )


def newest_batch(names: Iterable[str]) -> int | None:
    """Returns the largest batch number among the file names of ``offsets`` or ``commits``; None if there is none. The
    function ignores other files, such as checksums and temporary files."""
    return max((int(name) for name in names if _NUMBER.fullmatch(name)), default=None)


def parse_offsets(text: str, number: int, what: str) -> CheckpointBatch:
    """Parses the file ``offsets/N``. ``what`` names it in errors. Raises `UnknownVersion`, `CorruptData`."""
    lines = text.removesuffix("\n").split("\n")
    version = lines[0]
    if not _VERSION.fullmatch(version):
        raise CorruptData(what, f"it begins with {version[:20]!r} instead of a version")
    if version not in (_BY_POSITION, _BY_ID):
        hint = "use a version of offsetmgr that knows this Spark's checkpoints"
        raise UnknownVersion(what, f"its version is {version}; offsetmgr supports {_BY_POSITION} and {_BY_ID}", hint)
    if len(lines) < 3:
        raise CorruptData(what, "it names no source")
    if version == _BY_POSITION:
        return CheckpointBatch(number, {str(position): line for position, line in enumerate(lines[2:])}, what)
    by_id: dict[str, str] = {}
    for line in lines[2:]:
        source, colon, offset = line.partition(":")
        if not colon or not offset or source in by_id:
            raise CorruptData(what, f"the line {_shown(line)} is not the offset of one source")
        by_id[source] = offset
    return CheckpointBatch(number, by_id, what, ordered=False)


def kafka_offsets(line: str, what: str) -> dict[TopicPartition, int]:
    """Parses the offset of a Kafka source, ``{"topic":{"0":23}}``. Raises `CorruptData`."""
    found: dict[TopicPartition, int] = {}
    for topic, partitions in _object(line, what).items():
        for partition, offset in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            valid = _NUMBER.fullmatch(partition) and is_valid_topic_name(topic)
            if not valid or type(offset) is not int or not is_valid_offset(offset):
                raise CorruptData(what, f"the line {_shown(line)} is not a valid offset of a Kafka source")
            found[TopicPartition(topic, int(partition))] = offset
    return found


def _is_kafkas(line: str, what: str) -> bool:
    """Returns whether this line has the form of a Kafka source's offset. Raises `CorruptData` for a line that
    is empty or has been cut."""
    if line and not line.startswith("{"):
        return False
    document = _object(line, what).values()
    return all(isinstance(one, dict) for one in document) and (
        not document or any(_LIKE_A_NUMBER.fullmatch(key) for one in document for key in one)
    )


def _object(line: str, what: str) -> dict[str, Any]:
    try:
        document: Any = json.loads(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise CorruptData(what, f"the line {_shown(line)} is not complete" if line else "one of its lines is empty")
    return document


def _shown(line: str) -> str:
    return repr(line if len(line) <= _MAX_SHOWN else line[:_MAX_SHOWN] + "...")


# Reads a checkpoint's files, on this machine or through Hadoop's file systems, and finds the newest finished batch.
# Spark writes ``offsets/N`` before batch N runs and ``commits/N`` after its output, each with an atomic rename.
# Therefore, if ``commits/N`` exists, the query has processed all records up to the offsets in ``offsets/N``.

_FILE_SYSTEM: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")
_MAX_ATTEMPTS: Final = 3
"""Maximum number of attempts. An attempt fails if Spark removes the file of a batch after the file was listed and
before the file is read."""


def directory_of(root: str) -> str:
    """Returns the path of a checkpoint's directory without the scheme and the authority of its file system. Spark
    writes ``file:/a b`` without URL escapes."""
    found = _FILE_SYSTEM.match(root)
    return str(Path(root).absolute()) if found is None else "/" + root[found.end() :].strip("/")


class LocalFiles:
    """A checkpoint on this machine's file system. `names` and `read` raise `CorruptData` for one on another."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._path = Path(directory_of(root))
        self._is_local = root.startswith("file:") or _FILE_SYSTEM.match(root) is None

    @property
    def _directory(self) -> Path:
        if not self._is_local:
            why = "it is not on this machine's file system, and no query with this checkpoint has run in this program"
            raise CorruptData(f"checkpoint {self.root}", why)
        return self._path

    def names(self, directory: str) -> list[str]:
        """Returns the names of the files in a directory of the checkpoint; an empty list if the directory does not
        exist yet."""
        with os_error_as(CorruptData, f"checkpoint {self.root}/{directory}"):
            try:
                return [entry.name for entry in (self._directory / directory).iterdir()]
            except FileNotFoundError:
                return []

    def read(self, path: str) -> str | None:
        """Returns a file's text; None if the file does not exist."""
        try:
            return (self._directory / path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise CorruptData(f"checkpoint {self.root}/{path}", str(error)) from error


class HadoopFiles:
    """A checkpoint on any file system that the driver's Hadoop client supports, such as HDFS and object stores.
    ``jvm`` and ``conf`` are the session's py4j objects."""

    def __init__(self, root: str, jvm: Any, conf: Any) -> None:
        self.root = root
        self._jvm = jvm
        self._conf = conf

    def names(self, directory: str) -> list[str]:
        """Does the same as `LocalFiles.names`."""
        path = self._path(directory)
        try:
            files = path.getFileSystem(self._conf)
            return [status.getPath().getName() for status in files.listStatus(path)] if files.exists(path) else []
        except Exception as error:  # the file system's own exception classes
            raise CorruptData(f"checkpoint {self.root}/{directory}", _first_line(error)) from error

    def read(self, path: str) -> str | None:
        """Does the same as `LocalFiles.read`."""
        at = self._path(path)
        try:
            files = at.getFileSystem(self._conf)
            if not files.exists(at):
                return None
            with closing(files.open(at)) as stream:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        except Exception as error:
            raise CorruptData(f"checkpoint {self.root}/{path}", _first_line(error)) from error

    def _path(self, below: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{below}")


CheckpointFiles: TypeAlias = LocalFiles | HadoopFiles


def newest_finished(files: CheckpointFiles, *, may_be_gone: bool = False) -> CheckpointBatch | None:
    """Returns the newest batch that has a file ``commits/N``, with the offsets from ``offsets/N``. Returns None if no
    batch has finished yet, or (``may_be_gone``) if the checkpoint has been deleted.

    Raises `UnknownVersion` or `CorruptData`. A missing ``offsets/N`` also raises `CorruptData`, as do a directory that
    is not a checkpoint, and a later batch without any ``commits/N``.
    """
    why = ""
    for _ in range(_MAX_ATTEMPTS):
        number = newest_batch(files.names("commits"))
        if number is not None:
            if (found := planned_batch(files, number)) is not None:
                return found
            why = f"commits/{number} has no offsets/{number}"
        elif planned := newest_batch(files.names("offsets")):  # Spark plans batch 1 after it has written commits/0
            why = f"it has offsets/{planned}, but its directory commits is empty or missing"
        elif planned == 0 or may_be_gone or files.read("metadata") is not None:
            return None
        else:
            why = "the directory does not exist, or it is not the checkpoint of a query: it has no file metadata"
    raise CorruptData(f"checkpoint {files.root}", why)


def planned_batch(files: CheckpointFiles, number: int) -> CheckpointBatch | None:
    """Returns the offsets that Spark planned for batch ``number``, finished or not; None if Spark has not planned this
    batch."""
    text = files.read(f"offsets/{number}")
    return None if text is None else parse_offsets(text, number, f"checkpoint {files.root}/offsets/{number}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
