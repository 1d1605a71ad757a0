"""Detects whether a running broker uses a directory of logs, with evidence.

A running broker holds a lock on the file ``.lock`` of each of its log directories (Java's ``FileChannel.tryLock``: a
POSIX record lock over the whole file). A writer takes the same lock, so that no broker can start meanwhile. Such a lock
belongs to the process, and closing any descriptor of the file releases it: so this process locks a file once for all
users, and never opens it again while it is held.

Source: kafka.utils.FileLock, kafka.log.LogManager.lockLogDirs; proc(5), fcntl_locking(2).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from offsetmgr.core.errors import Conflict, FileFailure

LOCK: Final = ".lock"
_OF_A_LOG_DIR: Final = ("meta.properties", "recovery-point-offset-checkpoint", "cleaner-offset-checkpoint")
"""A broker's log directory has some of these files besides the lock."""
_PROC: Final = Path("/proc")
_FLOCK: Final = struct.Struct("hhqqi4x")
"""struct flock of Linux: type, whence, start, length, process."""
_WRITES: Final = os.O_WRONLY | os.O_RDWR
_ELSEWHERE: Final = "write a repaired copy elsewhere with --to"
_opening = threading.Lock()
"""Held while a lock file is opened, and until it is either closed or in `_held`."""
_held: dict[Path, list[int]] = {}
"""Lock files that this process has locked: the descriptor, and the number of users."""


class Use(StrEnum):
    """The kind of user of a directory."""

    RUNNING = "a running broker uses it"
    IDLE = "no running broker uses it"
    UNKNOWN = "it is unknown whether a running broker uses it"


@dataclass(frozen=True, slots=True)
class BrokerUse:
    """The user of a directory and the evidence: ``known`` is *seen*, *inferred* or *unknown*."""

    use: Use
    known: str
    how: str
    log_dir: Path | None = None
    """The broker's log directory that contains the directory, or equals it; None if there is none."""

    def __str__(self) -> str:
        return f"{self.use} ({self.known}: {self.how})"


def detect_broker(path: Path) -> BrokerUse:
    """Returns who uses a log directory, a partition's directory, or a file in one. It changes nothing and takes no
    lock.

    The lock decides if there is one. Otherwise the processes of this machine with files of the directory open for
    writing decide. A broker of another machine on a shared disk is detected only by its lock, if the file system shares
    locks.
    """
    real = Path(os.path.realpath(path))
    directory = real if real.is_dir() else real.parent
    log_dir = _log_dir(directory)
    if log_dir is not None and (log_dir / LOCK).exists():
        return _by_lock(log_dir)
    for near in (directory, directory.parent):
        # A lock file alone may belong to any program, unless a process holds the lock.
        if (near / LOCK).exists() and (found := _by_lock(near)).use is not Use.IDLE:
            return found
    return _by_processes(directory, log_dir)


@contextlib.contextmanager
def require_unused(path: Path, elsewhere: str = _ELSEWHERE) -> Iterator[BrokerUse]:
    """Keeps brokers out of the log directory of ``path`` as long as the context lasts.

    Yields the evidence that no broker is there. Several contexts of one process may hold the same directory. Raises
    `Conflict` if a broker is there, or if that is unknown (``elsewhere`` is what the user can do instead);
    `FileFailure` if the lock file cannot be opened.
    """
    found = detect_broker(path)
    if found.use is not Use.IDLE:
        raise in_use(path, found, elsewhere)
    if found.log_dir is None:
        yield found
        return
    lock = found.log_dir / LOCK
    with _opening:
        held = _held.get(lock)
        if held is None:
            _held[lock] = [_locked(lock, path, elsewhere), 1]
        else:
            held[1] += 1
    try:
        yield found
    finally:
        with _opening:
            held = _held[lock]
            held[1] -= 1
            if not held[1]:
                os.close(_held.pop(lock)[0])


@contextlib.contextmanager
def require_unused_parent(target: Path, elsewhere: str = _ELSEWHERE) -> Iterator[None]:
    """Works as `require_unused` for a path to be written, if ``target`` would be in a broker's log directory."""
    there = _nearest(target)
    if _log_dir(there) is None:
        yield
    else:
        with require_unused(there, elsewhere):
            yield


def refuse_beside(target: Path, elsewhere: str = _ELSEWHERE) -> None:
    """Raises the `Conflict` of `require_unused_parent`; changes nothing and takes no lock."""
    there = _nearest(target)
    if _log_dir(there) is not None and (found := detect_broker(there)).use is not Use.IDLE:
        raise in_use(there, found, elsewhere)


def in_use(path: Path, found: BrokerUse, elsewhere: str = _ELSEWHERE) -> Conflict:
    """Returns the error of a write to a directory in use."""
    hint = "stop the broker" if found.use is Use.RUNNING else "run this as the user that the broker runs as"
    return Conflict(f"directory {path}", str(found), f"{hint}, or {elsewhere}")


def _nearest(target: Path) -> Path:
    """Returns the existing part of the path."""
    real = Path(os.path.realpath(target))
    return next(directory for directory in (real, *real.parents) if directory.exists())


def _locked(lock: Path, path: Path, elsewhere: str) -> int:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise FileFailure(
            f"file {lock}", error.strerror or str(error), "it has to be locked against brokers"
        ) from error
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise Conflict(f"directory {path}", f"a broker has just started: it holds {lock}", "stop it") from error
        why = f"{lock} cannot be locked against brokers: {error.strerror or error}"
        raise Conflict(f"directory {path}", why, elsewhere) from error
    return descriptor


def _log_dir(directory: Path) -> Path | None:
    for candidate in (directory, *directory.parents):
        if any((candidate / name).exists() for name in _OF_A_LOG_DIR):
            return candidate
    return None


def _by_lock(log_dir: Path) -> BrokerUse:
    lock = log_dir / LOCK
    if sys.platform != "linux":
        return BrokerUse(Use.UNKNOWN, "unknown", f"{lock} can be asked for its holder on Linux only", log_dir)
    try:
        with _opening:
            if lock in _held:
                return BrokerUse(Use.IDLE, "seen", f"this process itself holds the lock of {lock}", log_dir)
            descriptor = os.open(lock, os.O_RDONLY)
            try:
                answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            finally:
                os.close(descriptor)
    except OSError as error:
        return BrokerUse(Use.UNKNOWN, "unknown", f"{lock} cannot be asked: {error.strerror or error}", log_dir)
    kind, _, _, _, process = _FLOCK.unpack(answer)
    if kind == fcntl.F_UNLCK:
        return BrokerUse(
            Use.IDLE, "seen", f"no process holds the lock of {lock}, which a running broker holds", log_dir
        )
    who = f"process {process}" if process > 0 else "a process of another container or machine"
    return BrokerUse(Use.RUNNING, "seen", f"{who} holds the lock of {lock}", log_dir)


def _by_processes(directory: Path, log_dir: Path | None) -> BrokerUse:
    """Decides by open files; a memory-mapped index is not open any more, but its segments are."""
    missing = f"no {LOCK} in {log_dir}" if log_dir else "it is in no broker's log directory"
    if not (_PROC / "self" / "fd").exists():
        return BrokerUse(
            Use.UNKNOWN, "unknown", f"{missing}, and this system does not tell which files are open", log_dir
        )
    try:
        files = {(s.st_dev, s.st_ino) for s in (file.stat() for file in directory.rglob("*") if file.is_file())}
    except OSError as error:
        return BrokerUse(Use.UNKNOWN, "unknown", f"{missing}, and {directory}: {error.strerror or error}", log_dir)
    hidden = 0
    for process in _PROC.iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        writes = _writes_to(process, files)
        if writes is None:
            hidden += 1
        elif writes:
            why = f"{missing}, but process {process.name} has {writes} open for writing"
            return BrokerUse(Use.RUNNING, "seen", why, log_dir)
    if hidden:
        why = f"{missing}, and the open files of {hidden} processes may not be looked at"
        return BrokerUse(Use.UNKNOWN, "unknown", why, log_dir)
    return BrokerUse(Use.IDLE, "inferred", f"{missing}, and no process has a file of it open for writing", log_dir)


def _writes_to(process: Path, files: set[tuple[int, int]]) -> str | None:
    """Returns the name of one of these files that the process has open for writing, "" without one; None if that is
    hidden.

    Processes that have ended are not hidden, nor those of the kernel, which have no files.
    """
    try:
        descriptors = list((process / "fd").iterdir())
    except PermissionError:
        return None
    except OSError:
        return ""
    for descriptor in descriptors:
        try:
            found = descriptor.stat()
            if (found.st_dev, found.st_ino) in files and _open_for_writing(process, descriptor.name):
                return str(descriptor.readlink())
        except OSError:
            continue  # closed meanwhile
    return ""


def _open_for_writing(process: Path, descriptor: str) -> bool:
    for line in (process / "fdinfo" / descriptor).read_text().splitlines():
        if line.startswith("flags:"):
            return bool(int(line.split()[1], 8) & _WRITES)
    return False
