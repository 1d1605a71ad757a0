"""The entries of log files: entries of real brokers, from schemas/golden, and files read in chunks of any size."""

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import rows

from offsetmgr.core.errors import CorruptData, LimitExceeded
from offsetmgr.segments.batch_builder import Producer, batch, message, message_set
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.compression import CODEC_NAMES, GZIP, NONE
from offsetmgr.segments.entries import EntryReader

GOLDEN = Path(__file__).resolve().parents[2] / "schemas" / "golden" / "log-entries.json"
ENTRIES: list[dict[str, Any]] = json.loads(GOLDEN.read_text())["entries"]
Dump: TypeAlias = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def dump(tmp_path: Path) -> Dump:
    """A function that returns the rows that ``log dump`` prints for a segment with these bytes."""

    def call(data: bytes, option: str) -> Any:
        (tmp_path / f"{0:020}.log").write_bytes(data)
        return rows("log", "dump", tmp_path / f"{0:020}.log", option)

    return call


def octets(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def readable(text: str | None) -> object:
    """Bytes as ``log dump`` prints them."""
    try:
        return None if text is None else bytes.fromhex(text).decode()
    except UnicodeDecodeError:
        return {"hex": text}


@pytest.mark.parametrize("golden", ENTRIES, ids=lambda golden: golden["name"])
def test_an_entry_of_a_broker_is_read(golden: dict[str, Any], dump: Dump) -> None:
    header = golden["header"]
    (entry,) = dump(bytes.fromhex(golden["bytes"]), "--entries")
    records = dump(bytes.fromhex(golden["bytes"]), "--controls")

    assert (entry["codec"], entry["records"]) == (CODEC_NAMES[header["codec"]], header["record_count"])
    assert (entry["timestamp_type"] == "append") == header["log_append_time"]
    assert {name: entry[name] for name in header if name in entry and name != "codec"} == {
        name: value for name, value in header.items() if name in entry and name != "codec"
    }
    for row, record in zip(records, golden["records"], strict=True):
        assert (row["offset"], row["timestamp"]) == (record["offset"], record["timestamp"])
        assert (row["timestamp_type"] == "append") == record["log_append_time"]
        if header["control"]:
            assert row["control"] == {"00000000": "abort", "00000001": "commit"}[record["key"]]
            assert row["value"] == {"coordinator_epoch": int(record["value"][4:], 16)}
        else:
            assert (row["key"], row["value"]) == (readable(record["key"]), readable(record["value"]))
            assert row["headers"] == [[name, readable(value)] for name, value in record["headers"]]


@pytest.mark.parametrize("golden", ENTRIES, ids=lambda golden: golden["name"])
def test_an_entry_is_written_as_the_broker_wrote_it(golden: dict[str, Any], dump: Dump) -> None:
    """Uncompressed entries are equal byte by byte. Compressed entries are equal in records and header, because each
    library compresses in its own way."""
    header = golden["header"]
    records = [
        Record(
            one["offset"], one["timestamp"], octets(one["key"]), octets(one["value"]),
            tuple((name, octets(value)) for name, value in one["headers"]), one["log_append_time"],
        )
        for one in golden["records"]
    ]  # fmt: skip
    producer = None
    if header["producer_id"] is not None:
        sequence = -1 if header["base_sequence"] is None else header["base_sequence"]
        producer = Producer(header["producer_id"], header["producer_epoch"], sequence, header["transactional"])
    if header["magic"] < 2:
        written = message_set(records, header["magic"], header["codec"])
    else:
        written = batch(
            records,
            header["codec"],
            base_offset=header["base_offset"],
            last_offset=header["last_offset"],
            leader_epoch=header["leader_epoch"],
            producer=producer,
            control=header["control"],
            delete_horizon=header["base_timestamp"] if header["delete_horizon"] else None,
        )

    if header["codec"] == NONE and not header["log_append_time"]:
        assert written.hex() == golden["bytes"]
        return
    original = bytes.fromhex(golden["bytes"])
    assert dump(written, "--controls") == dump(original, "--controls")
    (ours,), (theirs,) = dump(written, "--entries"), dump(original, "--entries")
    unlike = ("crc", "size", "base_timestamp")
    assert {name: ours[name] for name in ours if name not in unlike} == {
        name: theirs[name] for name in theirs if name not in unlike
    }


def test_the_golden_entries_cover_every_format_and_codec() -> None:
    covered = {(golden["header"]["magic"], golden["header"]["codec"]) for golden in ENTRIES}

    assert covered == {(magic, codec) for magic in range(3) for codec in range(5 if magic == 2 else 4)}


# --- files ------------------------------------------------------------------------------------------


def whole(offset: int, size: int) -> bytes:
    return batch([Record(offset, 5, None, b"x" * size)])


def walk(data: bytes, **options: int) -> EntryReader:
    return EntryReader(io.BytesIO(data), "a file", **options)


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 400), st.integers(0, 60))
def test_the_entries_do_not_depend_on_the_chunk_size(sizes: list[int], chunk: int, cut: int) -> None:
    written = [whole(base, size) for base, size in enumerate(sizes)]
    data = b"".join(written) + whole(99, 40)[:cut]

    entries = walk(data, chunk=chunk)

    assert [(entry.position, entry.offset, entry.data) for entry in entries] == [
        (sum(map(len, written[:number])), number, one) for number, one in enumerate(written)
    ]
    assert (entries.position, entries.incomplete_bytes) == (len(data) - cut, cut)
    assert b"".join(piece.data for piece in walk(data, chunk=chunk).chunks()) == b"".join(written)


def test_a_file_can_be_read_from_the_beginning_of_any_entry_to_the_end_of_another() -> None:
    """The file has entries of all formats."""
    packed = message_set([Record(7, 5, None, b"a"), Record(9, 5, None, b"b")], 1, GZIP)
    mixed = [message(Record(5, None, None, b"zero"), 0), message(Record(6, 5, None, b"one"), 1), packed]
    mixed += [whole(10, 3), whole(11, 50)]
    data, start = b"".join(mixed), len(mixed[0])
    end = len(data) - len(mixed[-1])

    for until in (end, end + 5):
        assert [entry.offset for entry in walk(data, position=start, end=until, chunk=20)] == [6, 9, 10]
    assert [entry.offset for entry in walk(data)] == [5, 6, 9, 10, 11]


@pytest.mark.parametrize(
    ("second", "error", "why"),
    [
        (whole(2, 50), LimitExceeded, r"the entry has \d+ bytes, more than the maximum of 100"),
        *(
            (
                struct.pack(">qi", 7, size) + bytes(100),
                CorruptData,
                f"entry at offset 7 has an invalid size: {size} bytes",
            )
            for size in (-1, 0, 13, -(2**31))
        ),
    ],
)
def test_an_entry_of_an_impossible_size_ends_the_walk_at_its_position(second: bytes, error, why: str) -> None:
    first = whole(1, 10)
    entries = walk(first + second, chunk=16, max_entry_bytes=100)
    found = []

    with pytest.raises(error, match=f"a file, position {len(first)}: .*{why}"):
        for entry in entries:
            found.append(entry.offset)

    assert (found, entries.position) == ([1], len(first))
