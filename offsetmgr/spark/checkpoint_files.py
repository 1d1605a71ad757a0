"""Reads a checkpoint's files, on this machine or through Hadoop's file systems, and finds the newest finished batch.

Spark writes ``offsets/N`` before batch N runs and ``commits/N`` after its output, each with an atomic rename.
Therefore, if ``commits/N`` exists, the query has processed all records up to the offsets in ``offsets/N``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, Protocol

from offsetmgr.core.errors import CorruptData
from offsetmgr.spark.checkpoint import CheckpointBatch, newest_batch, parse_offsets

_FILE_SYSTEM: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")
_MAX_ATTEMPTS: Final = 3
"""Maximum number of attempts. An attempt fails if Spark removes the file of a batch after the file was listed and
before the file is read."""


def directory_of(root: str) -> str:
    """Returns the path of a checkpoint's directory without the scheme and the authority of its file system. Spark
    writes ``file:/a b`` without URL escapes."""
    found = _FILE_SYSTEM.match(root)
    return str(Path(root).absolute()) if found is None else "/" + root[found.end() :].strip("/")


class CheckpointFiles(Protocol):
    """A checkpoint's directory."""

    root: str

    def names(self, directory: str) -> list[str]:
        """Returns the names of the files in a directory of the checkpoint; an empty list if the directory does not
        exist yet."""
        ...

    def read(self, path: str) -> str | None:
        """Returns a file's text; None if the file does not exist."""
        ...


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
        try:
            return [entry.name for entry in (self._directory / directory).iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CorruptData(f"checkpoint {self.root}/{directory}", error.strerror or str(error)) from error

    def read(self, path: str) -> str | None:
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
        path = self._path(directory)
        try:
            files = path.getFileSystem(self._conf)
            return [status.getPath().getName() for status in files.listStatus(path)] if files.exists(path) else []
        except Exception as error:  # the file system's own exception classes
            raise CorruptData(f"checkpoint {self.root}/{directory}", _first_line(error)) from error

    def read(self, path: str) -> str | None:
        at = self._path(path)
        try:
            files = at.getFileSystem(self._conf)
            if not files.exists(at):
                return None
            stream = files.open(at)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Exception as error:
            raise CorruptData(f"checkpoint {self.root}/{path}", _first_line(error)) from error

    def _path(self, below: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{below}")


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
