"""The fixtures of tests that verify and recover logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from damaged_log import JUNK, NEWEST, SOUND, CommandResult, command

from offsetmgr.segments.batch_builder import batch
from offsetmgr.segments.batch_reader import Record


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A broker's log directory: one partition with two segments, of which the newer one ends with invalid bytes."""
    directory = tmp_path / "kafka" / "orders-0"
    directory.mkdir(parents=True)
    (directory / "00000000000000000000.log").write_bytes(
        b"".join(batch([Record(n, None, None, b"old")]) for n in range(40))
    )
    (directory / "00000000000000000000.index").write_bytes(b"")
    (directory / f"{NEWEST}.log").write_bytes(SOUND + JUNK)
    (directory / f"{NEWEST}.index").write_bytes(b"index")
    (directory / f"{NEWEST}.timeindex").write_bytes(b"times")
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (tmp_path / "kafka" / "meta.properties").write_text("version=0\nbroker.id=0\n")
    (tmp_path / "kafka" / ".lock").touch()
    return tmp_path / "kafka"


@pytest.fixture
def log(log_dir: Path) -> Path:
    """The segment with the invalid bytes."""
    return log_dir / "orders-0" / f"{NEWEST}.log"


@pytest.fixture
def offsetmgr() -> Callable[..., CommandResult]:
    return command


@pytest.fixture
def older(log_dir: Path) -> Path:
    """The older segment, damaged in the middle. The valid part of the log ends there."""
    file = log_dir / "orders-0" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[10 * len(data) // 40 + 30] ^= 1  # in the eleventh entry
    file.write_bytes(data)
    return file
