"""Damaged and malicious log entries: typed errors, bounded memory, and no record that was never written."""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import cramjam
import pytest
from crc32c import crc32c

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
SEED = int(os.environ.get("OFFSETMGR_SEED", "11"))
MUTATIONS = 200_000 if SOAK else 3_000

MIB = 1024 * 1024


def test_mutated_entries_give_typed_errors_or_the_written_records() -> None:
    script = Path(__file__).with_name("mutated_entries.py")
    done = subprocess.run(
        [sys.executable, str(script), str(SEED), str(MUTATIONS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    sys.stdout.write(f"seed {SEED}: {found}\n")

    assert found["wrong"] == [], f"seed {SEED}"
    outcomes = found["outcomes"]
    assert sum(outcomes.values()) == MUTATIONS
    for expected in ("raw: damage", "raw: suspicious", "raw: sound", "proved: CorruptData", "proved: records"):
        assert outcomes[expected] > MUTATIONS // 500, (SEED, outcomes)
    assert found["kib"] < 64 * 1024


# --- bombs ----------------------------------------------------------------------------------------

ZEROS = bytes(MIB)


def lz4_frame(block: bytes, times: int) -> bytes:
    blocks = (struct.pack("<I", len(block)) + block) * times
    return struct.pack("<I", 0x184D2204) + bytes((0x60, 0x70, 0)) + blocks + bytes(4)


def java_snappy(chunk: bytes, times: int) -> bytes:
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(chunk)) + chunk) * times


def zstd_of_repeated_bytes() -> bytes:
    """One frame of 8,192 blocks, each of which repeats one byte 128 Ki times."""
    repeated = struct.pack("<I", 128 * 1024 << 3 | 2)[:3] + b"\0"
    return struct.pack("<I", 0xFD2FB528) + b"\x00\x58" + repeated * 8192 + b"\x01\0\0"


BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "gzip": (1, lambda: gzip.compress(ZEROS) * 1024),
    "snappy in one piece with a false size": (2, lambda: b"\xff\xff\xff\xff\x0f" + ZEROS),
    "snappy in one piece of 160 MiB": (2, lambda: bytes(cramjam.snappy.compress_raw(bytes(160 * MIB)))),
    "snappy in Java's chunks": (2, lambda: java_snappy(bytes(cramjam.snappy.compress_raw(ZEROS)), 1024)),
    "lz4": (3, lambda: lz4_frame(bytes(cramjam.lz4.compress_block(ZEROS, store_size=False)), 1024)),
    "zstd in many frames": (4, lambda: bytes(cramjam.zstd.compress(ZEROS)) * 1024),
    "zstd in one frame of repeated bytes": (4, zstd_of_repeated_bytes),
}
"""Each decompresses to 1 GiB or claims to; one decompresses to 160 MiB."""


def with_checksum(magic: int, codec: int, body: bytes) -> bytes:
    """Returns an entry at offset 0 with a valid checksum around this body."""
    if magic == 1:
        message = struct.pack(">bBqii", 1, codec, 0, -1, len(body)) + body
        return struct.pack(">qiI", 0, len(message) + 4, zlib.crc32(message)) + message
    tail = struct.pack(">hiqqqhii", codec, 0, 0, 0, -1, -1, -1, 1) + body
    return struct.pack(">qiibI", 0, len(tail) + 9, 0, 2, crc32c(tail)) + tail


READER = """
import json, resource, sys
from pathlib import Path
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.segments.entries import EntryReader
outcomes = []
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 512 * 2**20,) * 2)
for limit in ({}, {"limit": 2**20}):
    with open(sys.argv[1], "rb") as file:
        try:
            next(iter(EntryReader(file, "bomb"))).batch(**limit)
            outcomes.append("read")
        except OffsetMgrError as error:
            outcomes.append(f"{type(error).__name__}: {error}")
print(json.dumps(outcomes))
"""


FORMATS = [(bomb, magic) for bomb, (codec, _) in BOMBS.items() for magic in (1, 2) if magic == 2 or codec < 4]
"""The bombs in each format that allows their codec; zstd exists since format 2."""


@pytest.mark.slow
@pytest.mark.parametrize(("bomb", "magic"), FORMATS)
def test_a_bomb_is_rejected_by_the_limit_before_it_allocates_the_memory(tmp_path: Path, bomb: str, magic: int) -> None:
    codec, body = BOMBS[bomb]
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(with_checksum(magic, codec, body()))

    done = subprocess.run(
        [sys.executable, "-c", READER, str(file)], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        f"LimitExceeded: {what} at offset 0: it decompresses to more than {limit} bytes"
        for what in [("message", "batch")[magic - 1]]
        for limit in ("134,217,728", "1,048,576")
    ]
