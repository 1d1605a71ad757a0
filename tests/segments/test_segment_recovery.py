"""The sound part of a segment, byte by byte: both kinds of corruption, and faults that no checksum covers."""

import io
import struct
import tracemalloc
from typing import Any

import pytest

from offsetmgr.core.errors import FileFailure
from offsetmgr.segments.batch_builder import batch, message_set
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.compression import GZIP, ZSTD
from offsetmgr.segments.entries import CHUNK
from offsetmgr.segments.recovery import Damage, ExaminationResult, RecoveryOutcome, Suspicion, examine

TIME = 1_700_000_000_000


def records(first: int, number: int, *, time: bool = True) -> list[Record]:
    return [Record(first + n, TIME + first + n if time else None, b"k", b"value %d" % n) for n in range(number)]


FORMATS = {
    "format 0": lambda first, number: message_set(records(first, number, time=False), 0, GZIP),
    "format 1": lambda first, number: message_set(records(first, number), 1, GZIP),
    "format 2": lambda first, number: batch(records(first, number), ZSTD, leader_epoch=3),
}
"""For each format, a function that builds one entry with a number of messages."""


@pytest.fixture(params=FORMATS)
def entry(request: pytest.FixtureRequest):
    return FORMATS[request.param]


def examined(data: bytes, base: int = 0, **options: Any) -> ExaminationResult:
    return examine(io.BytesIO(data), base, "log", **options)


def moved(entry: bytes, offset: int) -> bytes:
    """The same entry with another offset."""
    return struct.pack(">q", offset) + entry[8:]


# --- damage ---------------------------------------------------------------------------------------


def test_a_whole_segment_is_sound(entry) -> None:
    data = entry(40, 3) + entry(43, 5)

    assert examined(data, 40) == ExaminationResult(40, len(data), len(data), 2, 48, outcome=RecoveryOutcome.KEPT)


def test_an_empty_segment_is_sound_and_its_base_offset_is_the_next_offset() -> None:
    assert examined(b"", 40) == ExaminationResult(40, 0, 0, 0, 40)


def test_a_missing_tail_is_cut_after_the_last_complete_entry(entry) -> None:
    first, second = entry(0, 3), entry(3, 5)

    for cut in range(len(second)):
        found = examined(first + second[:cut])
        expected = (len(first), 3, 1, Damage.MISSING_TAIL if cut else None)
        assert (found.valid_bytes, found.next_offset, found.entries, found.damage) == expected, cut


def test_a_flipped_bit_after_the_version_invalidates_the_segment_from_its_entry_on(entry) -> None:
    first, second, third = entry(0, 3), entry(3, 5), entry(8, 1)

    for at in range(17, len(second)):
        damaged = bytearray(second)
        damaged[at] ^= 1 << at % 8
        found = examined(first + damaged + third)
        assert (found.valid_bytes, found.next_offset, found.damage, found.outcome) == (
            len(first),
            3,
            Damage.INVALID_ENTRY,
            RecoveryOutcome.CUT,
        ), at
        assert found.why == "the checksum does not match its content"


@pytest.mark.parametrize(
    ("junk", "damage", "why"),
    [
        (b"\0", Damage.MISSING_TAIL, "1 bytes are not a complete entry"),
        (bytes(17), Damage.MISSING_TAIL, "17 bytes are not a complete entry"),
        (bytes(18), Damage.INVALID_ENTRY, "an entry cannot have 0 bytes"),
        (bytes(5 * CHUNK), Damage.INVALID_ENTRY, "an entry cannot have 0 bytes"),
        (struct.pack(">qi", 8, 13) + bytes(50), Damage.INVALID_ENTRY, "an entry cannot have 13 bytes"),
        (struct.pack(">qi", 8, -1) + bytes(50), Damage.INVALID_ENTRY, "an entry cannot have -1 bytes"),
        (struct.pack(">qiib", 8, 14, 0, 2) + bytes(50), Damage.INVALID_ENTRY, "the entry is shorter than its header"),
        (
            struct.pack(">qiib", 8, 14, 0, 1) + bytes(50),
            Damage.INVALID_ENTRY,
            "the checksum does not match its content",
        ),
        (
            struct.pack(">qi", 8, 2**31 - 1) + bytes(50),
            Damage.MISSING_TAIL,
            "the entry would end 2147483597 bytes after the end of the file",
        ),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else None,
)
def test_added_nonsense_is_cut(entry, junk: bytes, damage: Damage, why: str) -> None:
    data = entry(0, 3) + entry(3, 5)

    found = examined(data + junk)

    assert (found.valid_bytes, found.invalid_bytes, found.next_offset) == (len(data), len(junk), 8)
    assert (found.damage, found.why, found.outcome) == (damage, why, RecoveryOutcome.CUT)


def test_an_invalid_entry_with_a_huge_size_costs_no_memory(tmp_path) -> None:
    file = tmp_path / "00000000000000000000.log"
    good, claimed = batch(records(0, 3)), 128 * CHUNK
    with file.open("wb") as out:
        out.write(good + struct.pack(">qiib", 3, claimed, 0, 2))
        out.truncate(len(good) + 12 + claimed)  # a hole: it takes no disk space
    tracemalloc.start()
    with file.open("rb") as source:
        found = examine(source, 0, "log")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (found.valid_bytes, found.invalid_bytes, found.damage) == (len(good), 12 + claimed, Damage.INVALID_ENTRY)
    assert peak < 4 * CHUNK


def test_the_checksum_of_an_entry_larger_than_a_chunk_is_computed_piece_by_piece() -> None:
    large = batch([Record(0, TIME, None, b"x" * (5 * CHUNK))])
    data = large + batch(records(1, 1))
    damaged = bytearray(data)
    damaged[4 * CHUNK] ^= 1
    sound, broken = io.BytesIO(data), io.BytesIO(bytes(damaged))
    tracemalloc.start()
    whole, cut = examine(sound, 0, "log"), examine(broken, 0, "log")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (whole.valid_bytes, whole.entries, whole.damage) == (len(data), 2, None)
    assert (cut.valid_bytes, cut.entries, cut.damage) == (0, 0, Damage.INVALID_ENTRY)
    assert peak < 4 * CHUNK


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error() -> None:
    with pytest.raises(FileFailure, match="it became shorter while offsetmgr read it"):
        examined(batch(records(0, 3)), end=5000)


# --- faults that no checksum covers ----------------------------------------------------------------------


def test_decreasing_offsets_are_suspicious_and_a_broker_keeps_them() -> None:
    first, second, third = (batch(records(n, 5)) for n in (0, 5, 10))
    far = moved(second, 500)

    found = examined(first + far + third)

    assert (found.valid_bytes, found.damage, found.outcome) == (len(first + far + third), None, RecoveryOutcome.KEPT)
    why = "offset 10 comes after 504: one of the two entries was altered"
    assert found.suspicions == (Suspicion(len(first + far), 10, why),)


@pytest.mark.parametrize("offset", [39, -1, 40 + 2**31, 2**62])
def test_offsets_outside_the_segment_are_suspicious_and_the_brokers_behaviour_is_unknown(offset: int) -> None:
    first = batch(records(40, 5))

    found = examined(first + moved(batch(records(45, 1)), offset), 40)

    why = f"offsets {offset} to {offset} do not belong to a segment that begins at 40"
    assert found.suspicions == (Suspicion(len(first), offset, why),)
    assert (found.damage, found.outcome) == (None, RecoveryOutcome.UNKNOWN)


def test_repeated_old_blocks_make_a_broker_empty_the_segment() -> None:
    data = b"".join(batch([Record(n, TIME + n, None, b"x" * 1000)]) for n in range(20))

    found = examined(data + data)

    assert (found.valid_bytes, found.suspicion_count, found.suspicions[0].position) == (2 * len(data), 1, len(data))
    assert found.outcome is RecoveryOutcome.EMPTIED


def test_an_unknown_version_with_the_right_checksum_is_suspicious() -> None:
    data = bytearray(batch(records(0, 3)))
    data[16] = 9

    found = examined(bytes(data))

    assert found.suspicions == (Suspicion(0, 0, "message format 9 is not known"),)
    assert (found.damage, found.outcome) == (None, RecoveryOutcome.KEPT)


def test_gaps_that_compaction_left_are_not_suspicious(entry) -> None:
    assert examined(entry(0, 3) + entry(700, 2) + entry(90_000, 1)).suspicions == ()


def test_the_number_of_listed_suspicions_is_limited() -> None:
    found = examined(batch(records(7, 1)) * 3000)

    assert (len(found.suspicions), found.suspicion_count) == (100, 2999)
