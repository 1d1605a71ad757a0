"""`core.atomic_file`: a file has its old content or its new content, and a returned call has put it on disk."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from offsetmgr.core.atomic_file import replace_file, write_atomically, write_synced
from offsetmgr.core.errors import FileFailure


def write_new(stream: BinaryIO) -> str:
    stream.write(b"new")
    return "result"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    return path


@pytest.mark.parametrize("function", [replace_file, write_atomically])
def test_the_new_content_replaces_the_old_content(file: Path, function) -> None:
    assert function(file, write_new, overwrite=True) == "result"

    assert file.read_bytes() == b"new"
    assert list(file.parent.iterdir()) == [file]


def test_a_reader_sees_the_old_content_until_the_write_ends(file: Path) -> None:
    def write(stream: BinaryIO) -> None:
        stream.write(b"new")
        stream.flush()
        assert file.read_bytes() == b"old"

    write_atomically(file, write, overwrite=True)


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(file: Path) -> None:
    def fail(stream: BinaryIO) -> None:
        stream.write(b"new")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FileFailure, match=r"state.json not written: no space left on device"):
        replace_file(file, fail, overwrite=True)
    with pytest.raises(OSError, match="No space left on device"):
        write_atomically(file, fail, overwrite=True)

    assert file.read_bytes() == b"old"
    assert list(file.parent.iterdir()) == [file]


def test_an_existing_file_is_replaced_only_if_the_caller_allows_it(file: Path) -> None:
    with pytest.raises(FileFailure, match="exists already"):
        replace_file(file, write_new, overwrite=False)
    with pytest.raises(FileExistsError):
        write_atomically(file, write_new, overwrite=False)

    assert file.read_bytes() == b"old"


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_file_that_appears_during_the_write_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    path = tmp_path / "plan.json"
    if not hard_links:
        monkeypatch.setattr(os, "link", without_hard_links)

    def write(stream: BinaryIO) -> None:
        stream.write(b"new")
        path.write_bytes(b"of another process")

    with pytest.raises(FileExistsError):
        write_atomically(path, write, overwrite=False)

    assert path.read_bytes() == b"of another process"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_needs_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", without_hard_links)

    write_atomically(tmp_path / "plan.json", write_new, overwrite=False)

    assert (tmp_path / "plan.json").read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [tmp_path / "plan.json"]


def test_the_mode_and_the_symbolic_link_of_the_old_file_remain(file: Path, tmp_path: Path) -> None:
    file.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(file)

    replace_file(link, write_new, overwrite=True)

    assert link.is_symlink()
    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_the_content_is_on_disk_before_the_rename_and_the_directory_after_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bytes]] = []

    def fsync(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        seen.append((kind, file.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)

    replace_file(file, write_new, overwrite=True)

    assert seen == [("file", b"old"), ("directory", b"new")]


def test_a_synced_file_is_written_over_an_incomplete_file_of_an_earlier_run(file: Path) -> None:
    assert write_synced(file, write_new) == "result"
    assert file.read_bytes() == b"new"

    with pytest.raises(FileExistsError):
        write_synced(file, write_new, new=True)


def without_hard_links(source: Path, target: Path) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


KILLED = """
import os, signal, sys
from pathlib import Path
from offsetmgr.core.atomic_file import write_atomically

def die(stream):
    stream.write(b"half")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)

write_atomically(Path(sys.argv[1]), die, overwrite=True)
"""


def temporary_files(file: Path) -> list[Path]:
    return [path for path in file.parent.iterdir() if path != file]


def age(path: Path) -> None:
    os.utime(path, (time.time() - 3600,) * 2)


def test_the_next_write_removes_the_temporary_file_of_a_killed_writer(file: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False).returncode == -signal.SIGKILL
    (left,) = temporary_files(file)
    age(left)

    write_atomically(file, write_new, overwrite=True)

    assert file.read_bytes() == b"new"
    assert temporary_files(file) == []


def test_a_write_keeps_the_temporary_file_of_a_slow_writer_and_other_files(file: Path) -> None:
    other = file.with_name(f".{file.name}.backup.tmp")
    other.write_bytes(b"of another program")
    age(other)

    def write_slowly(stream: BinaryIO) -> None:
        stream.write(b"slow")
        stream.flush()
        for path in temporary_files(file):
            age(path)
        write_atomically(file, write_new, overwrite=True)

    write_atomically(file, write_slowly, overwrite=True)

    assert file.read_bytes() == b"slow"
    assert temporary_files(file) == [other]
