"""The journal of a plan: an append-only, fsynced file of intents and outcomes.

Ordering contract: `Journal.append` returns only once its records are on disk (fsync). An intent with its before-images
is appended *before* the store is written, and the outcome after the write. A crash may lose outcomes, so a resumed
command checks the store for every intent without an outcome.

Every line is a JSON object with a sequence number and a CRC-32 of its own bytes. If a crash during an append left a
torn last line, the line is removed when the journal is opened for writing. Damage anywhere else is an error. Only one
process at a time can have a journal open for writing.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

from offsetmgr.core.atomic_file import replace_file, sync_directory
from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import JournalError, UnknownVersion
from offsetmgr.core.os_errors import os_error_as
from offsetmgr.core.retry import Backoff, BlockingRetries

VERSION = 3
VERSIONS = (2, VERSION)
"""The readable versions. A journal of an older version is continued with the records of `VERSION`: offsetmgr releases
that know only the older version reject them, because they would treat one finalized group as the whole plan."""

LOCK_BACKOFF: Final = Backoff.fixed(0.2)
"""The pause between two attempts to lock a journal that another process holds."""

JournalRecord = dict[str, Any]
"""One journal record; ``kind`` is one of: open, finalized, refreshed, renewed, group-finalized, group-blocked,
group-phase, and apply-, undo- or delete- with open, intent, outcome or complete."""


@dataclass(frozen=True, slots=True)
class EncodedJson:
    """A value in a record. The value is already encoded as JSON."""

    text: str


def journal_path(plan: Path) -> Path:
    """Returns the path of a plan's journal: ``plan.json`` -> ``plan.journal``."""
    return plan.with_suffix(".journal") if plan.suffix == ".json" else plan.with_name(plan.name + ".journal")


def _encode(number: int, now_ms: int, record: JournalRecord) -> bytes:
    plain = {name: value for name, value in record.items() if not isinstance(value, EncodedJson)}
    text = json.dumps({"n": number, "at": now_ms, **plain}, ensure_ascii=False, separators=(",", ":"))[:-1]
    for name, value in record.items():
        if isinstance(value, EncodedJson):
            text += f',"{name}":{value.text}'
    body = text.encode()
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def _decode(line: bytes) -> JournalRecord | None:
    """Returns the record in a line; None if the line is damaged or incomplete."""
    body, mark, crc = line.rpartition(b',"crc":"')
    if not mark or crc != b'%08x"}\n' % zlib.crc32(body):
        return None
    record: JournalRecord = json.loads(body + b"}")
    return record


def read_journal(path: Path) -> Iterator[tuple[int, JournalRecord]]:
    """Yields every record, in order, with its byte position. A torn last line is left out.

    Raises `JournalError` if an earlier line is damaged or missing, or if the file cannot be read.
    """
    with os_error_as(JournalError, f"journal {path}"), path.open("rb") as lines:
        position, expected = 0, 0
        damaged: int | None = None
        for line in lines:
            if damaged is not None:
                raise JournalError(f"journal {path}", f"damaged at byte {damaged}, before its end")
            record = _decode(line)
            if record is None:
                damaged = position
            else:
                if record["n"] != expected:
                    raise JournalError(f"journal {path}", f"record {expected} is missing at byte {position}")
                expected += 1
                yield position, record
            position += len(line)


def record_at(path: Path, position: int) -> JournalRecord:
    """Returns the record at a position that `read_journal` yielded."""
    with path.open("rb") as lines:
        lines.seek(position)
        record = _decode(lines.readline())
    if record is None:
        raise JournalError(f"journal {path}", f"damaged at byte {position}")
    return record


class Journal:
    """A journal, open for writing by this process only.

    The class is thread-safe. A store receives edits as a stream and may consume this stream in its own thread. The
    stream appends each edit's intent to the journal, so other threads call `append` too.
    """

    def __init__(self, path: Path, *, plan_sha256: str, clock: Clock, lock_wait_s: float = 0.0) -> None:
        """``lock_wait_s`` is the time in seconds for which `__enter__` waits while another process holds the
        journal."""
        self.path = path
        self._lock_wait_s = lock_wait_s
        self._plan = plan_sha256
        self._clock = clock
        self._lock = threading.Lock()
        self._fd = -1
        self._next = 0
        self._end = 0

    def __enter__(self) -> Self:
        """Opens or creates the journal, locks it, and removes a torn last line.

        Raises `JournalError` if another process has locked it, if it belongs to another plan, or if it is damaged.
        """
        created = not self.path.exists()
        hint = (
            "the journal is in its plan's directory: copy the plan (and its journal, if there is one) to a "
            "writable directory"
        )
        with os_error_as(JournalError, f"journal {self.path}", hint):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._take_lock()
            if created:
                sync_directory(self.path.parent)
            self._end = self._check()
            os.ftruncate(self._fd, self._end)
            if self._next == 0:
                self.append([{"kind": "open", "journal": VERSION, "plan": self._plan}])
        except BaseException:
            os.close(self._fd)
            raise
        return self

    def _take_lock(self) -> None:
        retries = BlockingRetries(self._clock.monotonic() + self._lock_wait_s, LOCK_BACKOFF, self._clock)
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if not retries.pause():
                    why = "another process is working on this plan"
                    raise JournalError(f"journal {self.path}", why, "wait until it ends, or stop it") from error

    def _check(self) -> int:
        """Reads the whole journal; returns the position after its last valid record."""
        end = 0
        for position, record in read_journal(self.path):
            if self._next == 0:
                check_opening(self.path, record, self._plan)
            self._next += 1
            end = position
        if self._next == 0:
            return 0
        with self.path.open("rb") as lines:
            lines.seek(end)
            return end + len(lines.readline())

    def append(self, records: Iterable[JournalRecord]) -> None:
        """Appends records and returns once they are on disk. Raises `JournalError`, for example if the disk is full.
        After this error the caller must not execute the writes that the records announce."""
        with self._lock:
            now = self._clock.now_ms()
            lines = [_encode(self._next + i, now, record) for i, record in enumerate(records)]
            if not lines:
                return
            data = b"".join(lines)
            try:
                self._write(data)
                os.fsync(self._fd)
            except OSError as error:
                os.ftruncate(self._fd, self._end)  # a complete line must not follow a torn line
                raise JournalError(
                    f"journal {self.path}",
                    error.strerror or str(error),
                    "free disk space, then run the same command again",
                ) from error
            self._next += len(lines)
            self._end += len(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        os.close(self._fd)


def copy_journal(old: Path, new: Path, plan_sha256: str) -> None:
    """Writes the records of ``old``, with their times, to the new file ``new`` as the journal of another plan. Replaces
    ``new`` if it exists. Raises `JournalError` if ``old`` is damaged, and `FileFailure` if ``new`` cannot be
    written."""

    def write(out: BinaryIO) -> None:
        for _position, record in read_journal(old):
            number, at = record.pop("n"), record.pop("at")
            opening = {"journal": VERSION, "plan": plan_sha256} if number == 0 else {}
            out.write(_encode(number, at, record | opening))

    replace_file(new, write, overwrite=True)


def check_opening(path: Path, record: JournalRecord, plan_sha256: str) -> None:
    """Raises `JournalError` or `UnknownVersion` if a journal's first record is not an opening record of this plan and
    of the known version."""
    if record.get("kind") != "open":
        raise JournalError(f"journal {path}", "it does not begin with an opening record")
    if record["journal"] not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise UnknownVersion(f"journal {path}", f"version {record['journal']} is not known here (known: {known})")
    if record["plan"] != plan_sha256:
        raise JournalError(
            f"journal {path}",
            "it belongs to another plan of the same name",
            "move it away, or use the plan that it belongs to",
        )
