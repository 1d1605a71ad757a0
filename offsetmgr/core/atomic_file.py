"""Replaces files atomically: a reader sees the old content or the new content, never a mixture.

Ordering contract: `replace_file` writes and fsyncs a temporary file, renames it over the old file, and fsyncs the
directory. After `replace_file` returns, the new content survives a power failure. `exclusive_writer` excludes
concurrent writers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import FileFailure
from offsetmgr.core.retry import Backoff, BlockingRetries

T = TypeVar("T")
_LOCK_BACKOFF: Final = Backoff.fixed(0.02)


def replace_file(path: Path, write: Callable[[BinaryIO], T], *, overwrite: bool) -> T:
    """Replaces the content of ``path`` with the output of ``write``, and returns the result of ``write``.

    If ``overwrite`` is False, the function raises an error if the file exists before the write, or if another process
    creates the file during the write. Raises `FileFailure` if the write fails; the old file is then unchanged. If the
    file was replaced but the fsync of its directory fails, the error reports that the new content may not survive a
    power failure.
    """
    target = Path(os.path.realpath(path))
    what = f"file {path}"
    if not overwrite and target.exists():
        raise _exists(what)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        result = _write_temporary(target, temporary, write)
        if overwrite:
            temporary.replace(target)
        else:
            os.link(temporary, target)
            temporary.unlink()
    except FileExistsError as error:
        raise _exists(what) from error
    except OSError as error:
        raise FileFailure(f"{what} not written", reason(error), "the previous file is unchanged") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    try:
        _sync_directory(target.parent)
    except OSError as error:
        hint = "check the file system, and write the file again"
        raise FileFailure(f"{what} written, but may not survive a power failure", reason(error), hint) from error
    return result


def _write_temporary(target: Path, temporary: Path, write: Callable[[BinaryIO], T]) -> T:
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    stream = os.fdopen(descriptor, "wb")
    try:
        if target.exists():
            os.fchmod(descriptor, target.stat().st_mode & 0o7777)
        result = write(stream)
        stream.flush()
        os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):  # close() would try to flush the failed bytes again
            stream.close()
        raise
    stream.close()
    return result


@contextlib.contextmanager
def exclusive_writer(path: Path, clock: Clock, timeout_ms: int) -> Iterator[None]:
    """Holds an exclusive lock (flock) on a lock file in the directory of ``path``, and removes the lock file
    afterwards.

    Raises `FileFailure` if another process holds the lock for longer than ``timeout_ms``.
    """
    target = Path(os.path.realpath(path))
    lock_file = target.with_name(f".{target.name}.lock")
    retries = BlockingRetries(clock.monotonic() + timeout_ms / 1000, _LOCK_BACKOFF, clock)
    while (descriptor := _try_lock(lock_file, path)) is None:
        if not retries.pause():
            raise FileFailure(f"file {path}", "another process is writing it", "try again when it is done")
    try:
        yield
    finally:
        lock_file.unlink(missing_ok=True)
        os.close(descriptor)


def _try_lock(lock_file: Path, path: Path) -> int | None:
    try:
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        hint = "name another file, in a directory that can be written"
        raise FileFailure(f"file {path} cannot be locked", reason(error), hint) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous owner may have removed the lock file after this process opened it and before flock.
        if os.fstat(descriptor).st_ino == lock_file.stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(descriptor)
        hint = "name another file, in a directory that can be written"
        raise FileFailure(f"file {path} cannot be locked", reason(error), hint) from error
    os.close(descriptor)
    return None


def reason(error: OSError) -> str:
    """Returns the operating system's text for the error, in lower case."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def _exists(what: str) -> FileFailure:
    return FileFailure(what, "exists already", "choose another name")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
