"""The limit on the decompressed size of a batch: memory stays within it, even if the bytes claim more."""

from __future__ import annotations

import gzip
import random
import struct
import subprocess
import sys

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import CorruptData, LimitExceeded, OffsetMgrError
from offsetmgr.segments.batch_builder import batch, message_set
from offsetmgr.segments.batch_reader import Record, batches
from offsetmgr.segments.compression import CODEC_NAMES, GZIP, LZ4, SNAPPY, ZSTD, compress, decompress
from offsetmgr.segments.zstd_bound import max_decompressed_size

CODECS = (GZIP, SNAPPY, LZ4, ZSTD)
MIB = 1024 * 1024


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: CODEC_NAMES[codec])
def test_data_of_exactly_the_limit_is_returned_and_one_byte_more_is_rejected(codec: int) -> None:
    data = bytes(range(256)) * 4096
    packed = compress(codec, data)

    assert decompress(codec, packed, "batch", len(data)) == data
    with pytest.raises(LimitExceeded, match="batch: it decompresses to more than 1,048,575 bytes"):
        decompress(codec, packed, "batch", len(data) - 1)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: CODEC_NAMES[codec])
@pytest.mark.parametrize("magic", [1, 2])
def test_a_batch_and_a_message_are_rejected_by_the_limit(codec: int, magic: int) -> None:
    if magic == 1 and codec == ZSTD:
        codec = GZIP
    record = Record(5, 1_700_000_000_000, b"k", bytes(5 * MIB))
    data = batch([record], codec) if magic == 2 else message_set([record], 1, codec)

    assert next(batches(data)).records == [record]
    with pytest.raises(
        LimitExceeded, match=r"(batch|message) at offset 5: it decompresses to more than 1,000,000 bytes"
    ):
        next(batches(data, limit=1_000_000))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: CODEC_NAMES[codec])
def test_a_bomb_is_rejected_in_little_memory(codec: int) -> None:
    """A gigabyte of zeros is read with a limit of 16 MiB in a process with 300 MiB of memory. (Snappy and LZ4 are less
    dense, and get 128 MiB of zeros.)"""
    program = f"""
import resource, sys
sys.path[:0] = {sys.path!r}
import zlib, cramjam, struct
from offsetmgr.core.errors import LimitExceeded
from offsetmgr.segments.compression import decompress
from offsetmgr.segments.compression import compress
codec = {codec}
zeros = bytes(1 << 20)
if codec == {GZIP}:
    stream = zlib.compressobj(wbits=31)
    bomb = (b"".join(stream.compress(zeros) for _ in range(64)) + stream.flush()) * 16
elif codec == {ZSTD}:
    bomb = compress(codec, zeros) * 1024
else:
    packed = compress(codec, zeros)
    bomb = packed[:16] + packed[16:] * 128 if codec == {SNAPPY} else packed * 128
limit = 300 << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    decompress(codec, bomb, "bomb", 16 << 20)
except LimitExceeded as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)

    assert (done.stdout, done.stderr) == ("bomb: it decompresses to more than 16,777,216 bytes\n", "")


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
def test_the_bound_of_zstd_is_never_below_the_decompressed_size(parts: list[bytes], level: int) -> None:
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"aside"
    data = skippable.join(bytes(cramjam.zstd.compress(part, level)) for part in parts)

    assert max_decompressed_size(data) >= sum(map(len, parts))
    assert decompress(ZSTD, data, "batch") == b"".join(parts)
    assert decompress(ZSTD, data, "batch", max(1, sum(map(len, parts)))) == b"".join(parts)


@given(st.sampled_from(CODECS), st.binary(min_size=1, max_size=200), st.data())
def test_truncated_or_changed_data_give_bytes_or_a_typed_error(codec: int, data: bytes, draw: st.DataObject) -> None:
    packed = bytearray(compress(codec, data * 20))
    at = draw.draw(st.integers(0, len(packed) - 1))
    if draw.draw(st.booleans()):
        packed[at] = draw.draw(st.integers(0, 255))
    else:
        del packed[at:]

    try:
        assert len(decompress(codec, bytes(packed), "batch", 2 * MIB)) <= 2 * MIB
    except OffsetMgrError as error:
        assert isinstance(error, CorruptData)
