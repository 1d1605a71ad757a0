"""`StateFileFormat`: the state of an operation that a later run continues, as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from offsetmgr.core.atomic_file import exclusive_writer, replace_file
from offsetmgr.core.errors import JournalError, os_error_as
from offsetmgr.core.field_reader import FieldReader

T = TypeVar("T")


class StateFileFormat(NamedTuple):
    """The format of the state files of an ``operation``, such as ``bounce``. ``content`` is what such a file has, and
    ``name`` its ``format`` field. A file is written in the last of the ``versions``, and all of them are read."""

    operation: str
    content: str
    name: str
    versions: tuple[int, ...]

    def save(self, path: Path, state: Mapping[str, Any]) -> None:
        """Replaces the file atomically. Returns once the new content is on disk. Raises `FileFailure`."""
        text = json.dumps({"format": self.name, "version": self.versions[-1], **state}, indent=2) + "\n"
        replace_file(path, lambda out: out.write(text.encode()), overwrite=True)

    def load(self, path: Path, decode: Callable[[FieldReader], T]) -> T | None:
        """Returns the decoded state; None if there is no file. Raises `JournalError` if the file cannot be read, and
        the errors of `decoded`."""
        what = f"{self.operation} state {path}"
        with os_error_as(JournalError, what):
            data = path.read_bytes() if path.exists() else None
        return None if data is None else self.decoded(FieldReader.parse(data, what, JournalError), decode)

    def decoded(self, found: FieldReader, decode: Callable[[FieldReader], T]) -> T:
        """Returns the decoded fields of a document. Raises the error of ``found`` if they are damaged or of another
        format, and `UnknownVersion` for a file of a later version."""
        found.require_format(self.name, self.versions, self.content)
        try:
            return decode(found)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise found.error(f"is damaged ({type(error).__name__}: {error})") from error

    def exclusive(self, path: Path) -> AbstractContextManager[None]:
        """Locks the operation with this state file for this process. The block raises `JournalError` if another process
        has locked it."""
        why, hint = "another process is executing it", "wait until it ends, or stop it first"
        return exclusive_writer(path, 0, JournalError(f"{self.operation} {path}", why, hint))
