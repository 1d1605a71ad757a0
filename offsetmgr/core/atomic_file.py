"""Replaces files atomically: a reader sees the old content or the new content, never a mixture.

Ordering contract: `write_atomically` and `replace_file` write and fsync a temporary file, rename it over the old file,
and fsync the directory. After they return, the new content survives a power failure. They also remove the temporary
files of earlier writers of the same file that were killed. The functions differ only in their errors: `replace_file`
raises `FileFailure`, and `write_atomically` raises `OSError` for callers with other errors.
`exclusive_writer` excludes concurrent writers.

Callers that truncate a file, append to a file, or rename files use `write_synced` and `sync_directory`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from offsetmgr.core.errors import FileFailure, OffsetMgrError
from offsetmgr.core.retry import Backoff, BlockingRetries

T = TypeVar("T")
_LOCK_BACKOFF: Final = Backoff.fixed(0.02)
_ABANDONED_AFTER_S: Final = 60.0
"""The least age of a temporary file that another writer removes. A writer locks its file right after it has created
it."""
_NO_HARD_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""The errors of a file system without hard links."""


def replace_file(path: Path, write: Callable[[BinaryIO], T], *, overwrite: bool) -> T:
    """Replaces the content of ``path`` with the output of ``write``, and returns the result of ``write``.

    If ``overwrite`` is False, the function raises an error if the file exists before the write, or if another process
    creates the file during the write. Raises `FileFailure` if the write fails; the old file is then unchanged. If the
    file was replaced but the fsync of its directory fails, the error reports that the new content may not survive a
    power failure.
    """
    what = f"file {path}"
    try:
        target, result = _replace(path, write, overwrite)
    except OffsetMgrError:  # ``write`` may read from a server
        raise
    except FileExistsError as error:
        raise FileFailure(what, "exists already", "choose another name") from error
    except OSError as error:
        raise FileFailure(f"{what} not written", reason(error), "the previous file is unchanged") from error
    try:
        sync_directory(target.parent)
    except OSError as error:
        hint = "check the file system, and write the file again"
        raise FileFailure(f"{what} written, but may not survive a power failure", reason(error), hint) from error
    return result


def write_atomically(path: Path, write: Callable[[BinaryIO], T], *, overwrite: bool) -> T:
    """Does the same as `replace_file`, but raises `OSError`. Raises `FileExistsError` if the file exists and
    ``overwrite`` is False."""
    target, result = _replace(path, write, overwrite)
    sync_directory(target.parent)
    return result


def _replace(path: Path, write: Callable[[BinaryIO], T], overwrite: bool) -> tuple[Path, T]:
    target = Path(os.path.realpath(path))
    if not overwrite and os.path.lexists(path):  # also a symbolic link to no file
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    remove_abandoned(target.parent, glob.escape(target.name))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")

    def write_with_mode(stream: BinaryIO) -> T:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if target.exists():
            os.fchmod(stream.fileno(), target.stat().st_mode & 0o7777)
        return write(stream)

    try:
        result = write_synced(temporary, write_with_mode, new=True)
        if overwrite:
            temporary.replace(target)
        else:
            _rename_to_new(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return target, result


def remove_abandoned(directory: Path, names: str) -> None:
    """Removes the temporary files whose writers have ended, of the files in ``directory`` that match the glob
    ``names``. A living writer holds a lock on its file."""
    for found in directory.glob(f".{names}.{8 * '[0-9a-f]'}.tmp"):
        with contextlib.suppress(OSError), found.open("rb") as stream:
            if os.fstat(stream.fileno()).st_mtime < time.time() - _ABANDONED_AFTER_S:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.unlink()


def _rename_to_new(temporary: Path, target: Path) -> None:
    """Renames a file. Unlike `Path.rename`, raises `FileExistsError` if another process has created ``target``."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        target.touch(exist_ok=False)
        temporary.replace(target)


def write_synced(path: Path, write: Callable[[BinaryIO], T], *, new: bool = False) -> T:
    """Writes a file and fsyncs its content, but not its directory entry. Raises `OSError`, and `FileExistsError` if
    ``new`` is True and the file exists."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_EXCL if new else os.O_TRUNC), 0o666)
    stream = os.fdopen(descriptor, "wb")
    try:
        result = write(stream)
        stream.flush()
        os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):  # close() would try to flush the failed bytes again
            stream.close()
        raise
    stream.close()
    return result


def append_line(path: Path, line: bytes) -> None:
    """Appends a line to a file, which is created if needed, and fsyncs both. The lines of concurrent writers do not
    mix. Removes the incomplete line of a writer that was killed. Raises `OSError`."""
    new = not path.exists()
    with path.open("a+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        complete = 0
        for found in stream:
            complete += len(found) if found.endswith(b"\n") else 0
        stream.truncate(complete)
        stream.write(line + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    if new:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes the entries of created, renamed and removed files durable. An fsync of a file alone does not make its
    directory entry durable. Raises `OSError`."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive_writer(path: Path, timeout_ms: int, busy: OffsetMgrError | None = None) -> Iterator[None]:
    """Holds an exclusive lock (flock) on a lock file in the directory of ``path``, and removes the lock file
    afterwards.

    Raises ``busy``, by default a `FileFailure`, if another process holds the lock for longer than ``timeout_ms``.
    """
    target = Path(os.path.realpath(path))
    lock_file = target.with_name(f".{target.name}.lock")
    retries = BlockingRetries(time.monotonic() + timeout_ms / 1000, _LOCK_BACKOFF)
    while (descriptor := _try_lock(lock_file, path)) is None:
        if not retries.pause():
            raise busy or FileFailure(f"file {path}", "another process is writing it", "try again when it is done")
    try:
        yield
    finally:
        lock_file.unlink(missing_ok=True)
        os.close(descriptor)


def _try_lock(lock_file: Path, path: Path) -> int | None:
    try:
        descriptor, held = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o666), False
        try:
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous owner may have removed the lock file after this process opened it and before flock.
                held = os.fstat(descriptor).st_ino == lock_file.stat().st_ino
        finally:
            if not held:
                os.close(descriptor)
        return descriptor if held else None
    except OSError as error:
        hint = "name another file, in a directory that can be written"
        raise FileFailure(f"file {path} cannot be locked", reason(error), hint) from error


def reason(error: OSError) -> str:
    """Returns the operating system's text for the error, in lower case."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


# `start_time` distinguishes a process from later processes with the same pid.


def start_time(pid: int) -> str:
    """Returns a text that distinguishes the process with this pid from all earlier and later processes with the same
    pid. The text is empty if no process with this pid runs."""
    try:
        # Of the fields after the command's closing parenthesis, the 1st is the state and the 20th is the start time
        # (ticks since boot).
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return "" if Path("/proc/self/stat").exists() else _start_time_from_ps(pid)
    return "" if fields[0] in "ZX" else f"{boot}/{fields[19]}"


def _start_time_from_ps(pid: int) -> str:
    """Like `start_time`, for systems without /proc."""
    answer = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
    ).stdout.split(maxsplit=1)
    return "" if len(answer) < 2 or answer[0].startswith("Z") else answer[1].strip()
