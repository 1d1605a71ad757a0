"""Damaged and malicious log entries: typed errors, bounded memory, and no record that was never written."""

import contextlib
import gzip
import json
import os
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import CorruptData, LimitExceeded
from offsetmgr.segments.compression import CODEC_NAMES, GZIP, LZ4, SNAPPY, ZSTD, compress, decompress

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


# --- the limit ---------------------------------------------------------------------------------------

CODECS = (GZIP, SNAPPY, LZ4, ZSTD)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: CODEC_NAMES[codec])
def test_data_of_exactly_the_limit_is_returned_and_one_byte_more_is_rejected(codec: int) -> None:
    data = bytes(range(256)) * 4096
    packed = compress(codec, data)

    assert decompress(codec, packed, "batch", len(data)) == data
    with pytest.raises(LimitExceeded, match="batch: it decompresses to more than 1,048,575 bytes"):
        decompress(codec, packed, "batch", len(data) - 1)


@given(st.lists(st.tuples(st.sampled_from([0, 1, 300, 16_384, 70_000]), st.sampled_from([0, 1, 40_000])), max_size=4))
def test_all_members_of_a_gzip_stream_are_decompressed_with_zeros_between_them(members: list[tuple[int, int]]) -> None:
    contents = [random.Random(at).randbytes(size) for at, (size, _) in enumerate(members)]
    packed = [gzip.compress(content) + bytes(zeros) for content, (_, zeros) in zip(contents, members, strict=True)]

    assert decompress(GZIP, b"".join([gzip.compress(b"first"), *packed]), "batch") == b"".join([b"first", *contents])


@pytest.mark.slow
def test_a_gzip_stream_of_many_empty_members_is_read_in_linear_time() -> None:
    """The reader once copied the rest of the stream after each member, which took a minute for this stream."""
    packed = gzip.compress(b"") * 400_000 + gzip.compress(b"last")

    assert decompress(GZIP, packed, "batch") == b"last"


def test_snappy_data_that_claim_an_impossible_size_are_corrupt() -> None:
    claim = bytearray()
    size = 100 * MIB
    while size >= 0x80:
        claim.append(size & 0x7F | 0x80)
        size >>= 7
    claim.append(size)

    with pytest.raises(CorruptData, match="50 bytes of snappy data cannot expand to 104857600 bytes"):
        decompress(SNAPPY, bytes(claim) + bytes(50 - len(claim)), "batch")


@given(
    st.lists(st.binary(max_size=300) | st.integers(1, 400_000).map(bytes), min_size=1, max_size=4), st.integers(1, 15)
)
def test_all_frames_of_zstd_are_decompressed_up_to_the_limit(parts: list[bytes], level: int) -> None:
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"aside"
    data = skippable.join(bytes(cramjam.zstd.compress(part, level)) for part in parts)

    for limit in (max(1, sum(map(len, parts))), 2 * MIB):
        assert decompress(ZSTD, data, "batch", limit) == b"".join(parts)


def test_the_framings_of_java_are_read() -> None:
    """Snappy in chunks; LZ4 in independent blocks after a header with a wrong checksum, as in format 0, the last block
    not compressed. Kafka rejects LZ4 blocks that depend on each other."""
    data = random.Random(5).randbytes(1000) * 150
    chunks = [bytes(cramjam.snappy.compress_raw(data[at : at + 1000])) for at in range(0, len(data), 1000)]
    snappy = b"".join(struct.pack(">i", len(chunk)) + chunk for chunk in chunks)
    *blocks, last = (data[at : at + 65536] for at in range(0, len(data), 65536))
    packed = [bytes(cramjam.lz4.compress_block(block, store_size=False)) for block in blocks]
    framed = b"".join(struct.pack("<I", len(block)) + block for block in packed)
    header = struct.pack("<I", 0x184D2204) + bytes((0x60, 0x40, 0xEE))

    assert decompress(SNAPPY, b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + snappy, "batch") == data
    lz4 = header + framed + struct.pack("<I", len(last) | 0x80000000) + last + bytes(4)
    assert decompress(LZ4, lz4, "batch") == data
    with pytest.raises(CorruptData, match="depend on each other"):
        decompress(LZ4, bytes(cramjam.lz4.compress(b"x" * 200_000)), "batch")


@given(st.sampled_from(CODECS), st.binary(min_size=1, max_size=200), st.data())
def test_truncated_or_changed_data_give_bytes_or_a_typed_error(codec: int, data: bytes, draw: st.DataObject) -> None:
    packed = bytearray(compress(codec, data * 20))
    at = draw.draw(st.integers(0, len(packed) - 1))
    packed[at:] = draw.draw(st.sampled_from([b"", bytes([draw.draw(st.integers(0, 255))]) + packed[at + 1 :]]))

    with contextlib.suppress(CorruptData):
        assert len(decompress(codec, bytes(packed), "batch", 2 * MIB)) <= 2 * MIB
