"""Detects whether a running broker uses a log directory, and keeps brokers out while offsetmgr writes to one.

A running broker locks the file ``.lock`` in each of its log directories (Java's ``FileChannel.tryLock``: a POSIX record
lock over the whole file). Before offsetmgr writes to a log directory, it takes the same lock, so that no broker can
start while it writes. A POSIX lock belongs to a process, and the process loses the lock when it closes any descriptor
of the file. Therefore offsetmgr locks each file once per process, shares the lock among all callers, and never opens
the file again while it holds the lock.

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

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import Conflict, FileFailure, os_error_as

LOCK: Final = ".lock"
_LOG_DIR_FILES: Final = ("meta.properties", "recovery-point-offset-checkpoint", "cleaner-offset-checkpoint")
"""A directory that contains one of these files counts as a broker's log directory."""
_PROC: Final = Path("/proc")
_FLOCK: Final = struct.Struct("hhqqi4x")
"""Linux' ``struct flock``: type, whence, start, length, process id."""
_WRITES: Final = os.O_WRONLY | os.O_RDWR
_ELSEWHERE: Final = Advice("write a repaired copy elsewhere with {to}")
_lock = threading.Lock()
"""Guards `_locked_files`. A thread that opens a lock file holds this lock until it has registered the file in
`_locked_files` or closed it."""
_locked_files: dict[Path, list[int]] = {}
"""The lock files that this process has locked, each with its descriptor and the number of contexts that use the
lock."""


class Use(StrEnum):
    """Whether a running broker uses a directory."""

    RUNNING = "a running broker uses it"
    IDLE = "no running broker uses it"
    UNKNOWN = "it is unknown whether a running broker uses it"


@dataclass(frozen=True, slots=True)
class BrokerUse:
    """Whether a broker uses a directory, and the evidence for this."""

    use: Use
    how: str
    """Describes the evidence."""
    log_dir: Path | None = None
    """The broker's log directory: the examined directory or its nearest parent that is a log directory; `None` if there
    is none."""
    inferred: bool = False
    """Whether the evidence is indirect: no lock shows the use."""

    def __str__(self) -> str:
        known = "unknown" if self.use is Use.UNKNOWN else "inferred" if self.inferred else "seen"
        return f"{self.use} ({known}: {self.how})"


def detect_broker(path: Path) -> BrokerUse:
    """Returns whether a broker uses ``path``: a log directory, a partition's directory, or a file in one of these.
    Takes no lock.

    If the log directory has a lock file, the result depends only on whether a process holds the lock of this file. If
    the log directory has no lock file, a broker counts as running if a process holds the lock of a file ``.lock`` in
    the directory or in its parent, or if another process of this machine has a file of the directory open for writing.
    A broker on another machine that uses the same disk is detected only by its lock, and only if the file system shares
    locks between machines.
    """
    real = Path(os.path.realpath(path))
    directory = real if real.is_dir() else real.parent
    log_dir = _log_dir(directory)
    if log_dir is not None and (log_dir / LOCK).exists():
        return _by_lock(log_dir)
    for near in (directory, directory.parent):
        # Outside of a log directory, any program may have created a file named ``.lock``, so ignore the file if no
        # process holds its lock.
        if (near / LOCK).exists() and (found := _by_lock(near)).use is not Use.IDLE:
            return found
    return _by_processes(directory, log_dir)


@contextlib.contextmanager
def require_unused(path: Path, elsewhere: str = _ELSEWHERE) -> Iterator[BrokerUse]:
    """Keeps brokers out of the log directory of ``path`` while the context is open.

    Yields the evidence that no broker uses the directory. Several contexts of one process may lock the same directory.
    Raises `Conflict` if a broker uses the directory or may use it; ``elsewhere`` is the alternative that the hint of
    the `Conflict` proposes. Raises `FileFailure` if the lock file cannot be opened.
    """
    found = require_idle(path, elsewhere)
    if found.log_dir is None:
        yield found
        return
    lock = found.log_dir / LOCK
    with _lock:
        held = _locked_files.get(lock)
        if held is None:
            _locked_files[lock] = [_lock_file(lock, path, elsewhere), 1]
        else:
            held[1] += 1
    try:
        yield found
    finally:
        with _lock:
            held = _locked_files[lock]
            held[1] -= 1
            if not held[1]:
                os.close(_locked_files.pop(lock)[0])


def require_unused_parent(
    target: Path, elsewhere: str = _ELSEWHERE
) -> contextlib.AbstractContextManager[BrokerUse | None]:
    """Keeps brokers out, as `require_unused` does, of the log directory in which ``target``, a new file or directory,
    will be created. Locks nothing if ``target`` is outside every broker's log directory."""
    parent = _nearest(target)
    return contextlib.nullcontext() if _log_dir(parent) is None else require_unused(parent, elsewhere)


def check_parent_unused(target: Path, elsewhere: str = _ELSEWHERE) -> None:
    """Raises `Conflict` if ``target`` is in a broker's log directory and a broker uses or may use this directory. Takes
    no lock."""
    parent = _nearest(target)
    if _log_dir(parent) is not None:
        require_idle(parent, elsewhere)


def require_idle(path: Path, elsewhere: str = _ELSEWHERE) -> BrokerUse:
    """Returns the evidence that no broker uses the log directory of ``path``. Raises `Conflict` if a broker uses or may
    use it. Takes no lock."""
    found = detect_broker(path)
    if found.use is Use.IDLE:
        return found
    hint = "stop the broker" if found.use is Use.RUNNING else "run this as the user that the broker runs as"
    raise Conflict(f"directory {path}", str(found), Advice("{}, or {}", hint, elsewhere))


def _nearest(target: Path) -> Path:
    """Returns the nearest existing directory or file on the path to ``target``."""
    real = Path(os.path.realpath(target))
    return next(directory for directory in (real, *real.parents) if directory.exists())


def _lock_file(lock: Path, path: Path, elsewhere: str) -> int:
    with os_error_as(FileFailure, f"cannot open {lock}", "offsetmgr locks this file to keep brokers out"):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise Conflict(f"directory {path}", f"a broker has just started: it holds {lock}", "stop it") from error
        why = f"offsetmgr cannot lock {lock} to keep brokers out: {error.strerror or error}"
        raise Conflict(f"directory {path}", why, elsewhere) from error
    return descriptor


def _log_dir(directory: Path) -> Path | None:
    for candidate in (directory, *directory.parents):
        if any((candidate / name).exists() for name in _LOG_DIR_FILES):
            return candidate
    return None


def _by_lock(log_dir: Path) -> BrokerUse:
    lock = log_dir / LOCK
    if sys.platform != "linux":
        return BrokerUse(Use.UNKNOWN, f"only Linux shows which process holds the lock of {lock}", log_dir)
    try:
        with _lock:
            if lock in _locked_files:
                return BrokerUse(Use.IDLE, f"this process itself holds the lock of {lock}", log_dir)
            descriptor = os.open(lock, os.O_RDONLY)
            try:
                answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            finally:
                os.close(descriptor)
    except OSError as error:
        return BrokerUse(Use.UNKNOWN, f"cannot check the lock of {lock}: {error.strerror or error}", log_dir)
    kind, _, _, _, process = _FLOCK.unpack(answer)
    if kind == fcntl.F_UNLCK:
        return BrokerUse(Use.IDLE, f"no process holds the lock of {lock}, which a running broker holds", log_dir)
    who = f"process {process}" if process > 0 else "a process of another container or machine"
    return BrokerUse(Use.RUNNING, f"{who} holds the lock of {lock}", log_dir)


def _by_processes(directory: Path, log_dir: Path | None) -> BrokerUse:
    """Decides by the files that processes have open for writing. A running broker has its segments open, but it maps
    its indexes into memory and does not keep them open."""
    missing = f"no {LOCK} in {log_dir}" if log_dir else "it is not in a broker's log directory"
    if not (_PROC / "self" / "fd").exists():
        return BrokerUse(Use.UNKNOWN, f"{missing}, and this system does not show which files are open", log_dir)
    try:
        files = {(s.st_dev, s.st_ino) for s in (file.stat() for file in directory.rglob("*") if file.is_file())}
    except OSError as error:
        return BrokerUse(Use.UNKNOWN, f"{missing}, and {directory}: {error.strerror or error}", log_dir)
    hidden = 0
    for process in _PROC.iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        writes = _writes_to(process, files)
        if writes is None:
            hidden += 1
        elif writes:
            why = f"{missing}, but process {process.name} has {writes} open for writing"
            return BrokerUse(Use.RUNNING, why, log_dir)
    if hidden:
        why = f"{missing}, and the open files of {hidden} processes cannot be read"
        return BrokerUse(Use.UNKNOWN, why, log_dir)
    return BrokerUse(Use.IDLE, f"{missing}, and no process has a file of it open for writing", log_dir, True)


def _writes_to(process: Path, files: set[tuple[int, int]]) -> str | None:
    """Returns the name of one of ``files`` that the process has open for writing; empty if there is none.

    Returns `None` if this user may not see the files of a process that may be a broker. Returns an empty string for an
    ended process and for a kernel thread, because neither has open files.
    """
    try:
        descriptors = list((process / "fd").iterdir())
    except PermissionError:
        return None if _may_be_broker(process) else ""
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


def _may_be_broker(process: Path) -> bool:
    """Returns whether the command line, which every user may read, is that of a Java program or names Kafka, as that of
    a native image does."""
    try:
        command = (process / "cmdline").read_bytes().lower()
    except PermissionError:
        return True
    except OSError:  # ended meanwhile
        return False
    return b"java" in command or b"kafka" in command


def _open_for_writing(process: Path, descriptor: str) -> bool:
    for line in (process / "fdinfo" / descriptor).read_text().splitlines():
        if line.startswith("flags:"):
            return bool(int(line.split()[1], 8) & _WRITES)
    return False
