"""Entries of real brokers, from schemas/golden: read field by field, and written byte by byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offsetmgr.segments.batch_builder import Producer, batch, message_set
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.compression import NONE
from offsetmgr.segments.entries import LogEntry, split

GOLDEN = Path(__file__).resolve().parents[2] / "schemas" / "golden" / "log-entries.json"
ENTRIES: list[dict[str, Any]] = json.loads(GOLDEN.read_text())["entries"]


def octets(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def records_of(golden: dict[str, Any]) -> list[Record]:
    return [
        Record(
            one["offset"],
            one["timestamp"],
            octets(one["key"]),
            octets(one["value"]),
            tuple((name, octets(value)) for name, value in one["headers"]),
            one["log_append_time"],
        )
        for one in golden["records"]
    ]


def entry_of(golden: dict[str, Any]) -> LogEntry:
    (entry,) = split(bytes.fromhex(golden["bytes"]))
    return entry


@pytest.mark.parametrize("golden", ENTRIES, ids=lambda golden: golden["name"])
def test_an_entry_of_a_broker_is_read(golden: dict[str, Any]) -> None:
    entry = entry_of(golden)

    assert entry.intact()
    assert entry.header()._asdict() == golden["header"]
    assert entry.batch(controls=True).records == records_of(golden)


@pytest.mark.parametrize("golden", ENTRIES, ids=lambda golden: golden["name"])
def test_an_entry_is_written_as_the_broker_wrote_it(golden: dict[str, Any]) -> None:
    """Uncompressed entries are equal byte by byte. Compressed entries are equal in records and header, because each
    library compresses in its own way."""
    header, records = entry_of(golden).header(), records_of(golden)
    producer = None
    if header.producer_id is not None and header.producer_epoch is not None:
        sequence = -1 if header.base_sequence is None else header.base_sequence
        producer = Producer(header.producer_id, header.producer_epoch, sequence, header.transactional)
    if header.magic < 2:
        written = message_set(records, header.magic, header.codec)
    else:
        written = batch(
            records,
            header.codec,
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            leader_epoch=header.leader_epoch,
            producer=producer,
            control=header.control,
            delete_horizon=header.base_timestamp if header.delete_horizon else None,
        )

    (entry,) = split(written)
    assert entry.batch(controls=True) == entry_of(golden).batch(controls=True)
    if header.codec == NONE and not header.log_append_time:
        assert written.hex() == golden["bytes"]
    else:
        assert entry.header()._replace(crc=0, base_timestamp=None) == header._replace(crc=0, base_timestamp=None)


def test_the_golden_entries_cover_every_format_and_codec() -> None:
    covered = {(entry_of(golden).magic, entry_of(golden).header().codec) for golden in ENTRIES}

    assert covered == {(magic, codec) for magic in range(3) for codec in range(5 if magic == 2 else 4)}
