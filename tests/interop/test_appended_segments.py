"""Segments that `LogAppender` writes: Kafka reads their entries, records and indexes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from broker_written_logs import KEYS, SEED, TIME, consumed, fail_on_damage, fields_of
from confluent_kafka.admin import AdminClient, NewTopic
from dump_log_segments import lines_of, printed_by_kafka

from offsetmgr.sandbox import KraftBroker
from offsetmgr.segments.batch_builder import Producer, end_of_transaction
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.log_appender import LogAppender, RollPolicy
from offsetmgr.segments.message_scan import MessageFilter, messages
from offsetmgr.segments.partition import segments_in
from offsetmgr.segments.segment import INDEX, TIME_INDEX

pytestmark = [pytest.mark.servers, pytest.mark.matrix]


def test_kafka_reads_appended_segments_and_their_indexes(tmp_path: Path) -> None:
    """`LogAppender` writes every format and codec, transactions and headers, and rolls segments. DumpLogSegments prints
    the same entries, records and indexes as our reader."""
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
    segments = segments_in(directory)
    indexes = [segment.index_path(suffix) for segment in segments for suffix in (INDEX, TIME_INDEX)]

    printed = printed_by_kafka("kafka-3.9", [*(segment.log for segment in segments), *indexes])

    assert len(segments) > 2
    for segment in segments:
        assert list(map(str.rstrip, lines_of(segment))) == printed[segment.log], segment.log
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


@pytest.mark.soak
def test_a_broker_serves_appended_segments(tmp_path: Path) -> None:
    """`LogAppender` replaces the log of a topic while the broker is down. The broker starts, and consumers read the
    appended records."""
    rng = random.Random(SEED)
    with KraftBroker(tmp_path / "kraft") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("given", 1, 1, config={"retention.ms": "-1"})])["given"].result(60)
        broker.stop()
        directory = broker.directory / "data" / "given-0"
        for file in directory.iterdir():
            if file.suffix in (".log", ".index", ".timeindex", ".snapshot"):
                file.unlink()
        with LogAppender(directory, RollPolicy(segment_bytes=40_000)) as log:
            for turn in range(300):
                codec = rng.randrange(5)
                log.append([random_record(rng, 2, turn) for _ in range(rng.randint(1, 8))], codec, leader_epoch=0)
        kept = [fields_of(m.record) for m in messages(segments_in(directory), MessageFilter(), fail_on_damage)]
        broker.start()

        assert consumed(broker.bootstrap, ["given-0"], "read_uncommitted") == {"given-0": kept}
        assert len(kept) > 1000
