"""Segments that `LogAppender` writes: Kafka reads their entries, records and indexes."""

import random
from pathlib import Path

import pytest
from broker_written_logs import KEYS, SEED, TIME, dumped
from end_of_transaction import end_of_transaction

from offsetmgr.sandbox import java_tool
from offsetmgr.segments.batch_builder import Producer
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.log_appender import LogAppender, RollPolicy
from offsetmgr.segments.partition import Partition

INDEX, TIME_INDEX = ".index", ".timeindex"

pytestmark = [pytest.mark.servers, pytest.mark.matrix]


def test_kafka_reads_appended_segments_and_their_indexes(tmp_path: Path) -> None:
    """`LogAppender` writes every format and codec, transactions and headers, and rolls segments. DumpLogSegments prints
    the same records and indexes as our reader."""
    rng = random.Random(SEED)
    directory = tmp_path / "written-0"
    with LogAppender(directory, RollPolicy(segment_bytes=20_000, index_interval_bytes=500)) as log:
        for turn in range(120):
            magic = turn % 3
            codec = rng.randrange(5 if magic == 2 else 4)
            producer = Producer(7, 1, turn * 10, transactional=True) if magic == 2 and turn % 4 == 0 else None
            records = [random_record(rng, magic, turn) for _ in range(rng.randint(1, 8))]
            log.append(records, codec, magic=magic, producer=producer)
            if producer is not None:
                ended = end_of_transaction(
                    log.next_offset, producer, commit=bool(turn % 8), timestamp=TIME + turn * 100
                )
                log.append_entries(ended)
    segments = Partition(directory).segments
    indexes = [segment.index_path(suffix) for segment in segments for suffix in (INDEX, TIME_INDEX)]

    files = [*(segment.log for segment in segments), *indexes]
    arguments = ["--deep-iteration", "--print-data-log", "--files", ",".join(map(str, files))]
    done = java_tool("kafka-3.9", "kafka.tools.DumpLogSegments", arguments, timeout_s=600)
    assert done.returncode == 0, done.stderr
    printed: dict[Path, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("Dumping "):
            printed[Path(line.removeprefix("Dumping "))] = lines = []
        else:
            lines.append(line.rstrip())

    assert len(segments) > 2
    for segment in segments:
        shown = [line for line in printed[segment.log] if line.startswith("| ") and "endTxnMarker" not in line]
        for line, row in zip(shown, dumped(segment.log), strict=True):
            assert line.startswith(f"| offset: {row['offset']} "), segment.log
            text = "" if row["key"] is None else f" key: {row['key']}"
            assert line.endswith(text + ("" if row["value"] is None else f" payload: {row['value']}")), segment.log
        assert not any("isvalid: false" in line for line in printed[segment.log])
        offsets, times = segment.offset_index(), segment.time_index()
        assert printed[segment.index_path(INDEX)] == [
            f"offset: {offset} position: {position}" for offset, position in (offsets[at] for at in range(len(offsets)))
        ]
        assert printed[segment.index_path(TIME_INDEX)] == [
            f"timestamp: {time_} offset: {offset}" for time_, offset in (times[at] for at in range(len(times)))
        ]
    assert any(len(segment.offset_index()) > 3 for segment in segments)


def random_record(rng: random.Random, magic: int, turn: int) -> Record:
    """A random record that the format can store, with printable key and value."""
    key = None if rng.random() < 0.2 else b"key-%d" % rng.randrange(KEYS)
    tombstone = key is not None and rng.random() < 0.2
    value = None if tombstone else rng.randbytes(rng.choice((1, 20, 300))).hex().encode()
    headers = (("h", b"1"), ("none", None)) if magic == 2 and rng.random() < 0.2 else ()
    return Record(0, None if magic == 0 else TIME + turn * 100 + rng.randrange(50), key, value, headers)
