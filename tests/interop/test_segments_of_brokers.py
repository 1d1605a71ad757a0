"""Segments of real brokers: every record equals the one that a consumer reads, and every field equals the output of
Kafka's DumpLogSegments.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Final

import confluent_kafka as ck
import pytest
from broker_written_logs import (
    FAST_CLEANER,
    FORMATS,
    SEED,
    SOAK,
    TIME,
    TRANSACTIONS,
    BrokerLogs,
    fail_on_damage,
    fields_of,
    read,
    topics_of,
    write_all,
)
from dump_log_segments import lines_of, printed_by_kafka

from offsetmgr.cli.app import run
from offsetmgr.consumer import SimpleConsumer
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer
from offsetmgr.segments.message_scan import MessageFilter, entries_of
from offsetmgr.segments.partition import partition_of
from offsetmgr.segments.time_lookup import at_or_after, offsets_before
from offsetmgr.segments.transactions import Transactions

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
BROKERS: Final = ("by topic", "0.9.0", "0.10.2", "4.4") if SOAK else ("by topic",)
"""Broker 3.9.1 with inter-broker version 2.8, which writes each format to separate topics; the same broker with an
older version for everything; broker 4.4.0."""


@pytest.fixture(scope="module", params=BROKERS)
def broker_logs(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerLogs]:
    name: str = request.param
    directory, copies = tmp_path_factory.mktemp("broker"), tmp_path_factory.mktemp("copies")
    broker: KafkaBroker | KraftBroker
    if name == "4.4":
        topics = topics_of({"4.4": 2}, by_topic=False)
        broker = KraftBroker(directory, config=FAST_CLEANER)
    else:
        version = "2.8" if name == "by topic" else name
        topics = topics_of(FORMATS if name == "by topic" else {name: FORMATS[name]}, by_topic=name == "by topic")
        versions = {"inter.broker.protocol.version": version, "log.message.format.version": version}
        chroot = f"{zookeeper.connect}/segments-{version}"
        broker = KafkaBroker(directory, zookeeper=chroot, config={**versions, **FAST_CLEANER})
    with broker:
        written = write_all(broker.bootstrap, directory / "data", copies, topics)
        yield BrokerLogs(
            name, "kafka-4.4" if name == "4.4" else "kafka-3.9", written, broker.bootstrap, directory / "data"
        )


def test_every_message_equals_the_one_a_consumer_reads(broker_logs: BrokerLogs) -> None:
    for written in broker_logs.written:
        found = read(written)
        assert [fields_of(message.record) for message in found] == written.uncommitted, written.directory.name
        assert {message.header.magic for message in found} == {written.magic}, written.directory.name
    formats = (
        [FORMATS[broker_logs.name]]
        if broker_logs.name in FORMATS
        else ([2] if broker_logs.name == "4.4" else [0, 1, 2])
    )
    assert len(broker_logs.written) == 2 * sum(6 if magic == 2 else 4 for magic in formats)


def test_every_codec_was_written_and_compaction_left_gaps(broker_logs: BrokerLogs) -> None:
    for written in broker_logs.written:
        topic, _, number = written.directory.name.rpartition("-")
        found = read(written)
        if int(number) < TRANSACTIONS:
            assert {message.header.codec for message in found} >= {int(number)}, written.directory.name
        last = found[-1].record.offset
        assert (len(found) <= last) == (topic.endswith("compact") or int(number) == TRANSACTIONS), (
            written.directory.name
        )
        assert len(written.segments) > 1, written.directory.name


def test_a_read_of_committed_messages_excludes_aborted_and_unstable_ones(broker_logs: BrokerLogs) -> None:
    for written in broker_logs.written:
        found = [fields_of(message.record) for message in read(written, committed=True)]
        assert found == written.committed, written.directory.name
        if written.directory.name.endswith(f"-{TRANSACTIONS}"):
            assert 0 < len(found) < len(written.uncommitted)


def test_aborted_transactions_equal_the_brokers_index(broker_logs: BrokerLogs) -> None:
    for written in broker_logs.written:
        if not written.directory.name.endswith(f"delete-{TRANSACTIONS}"):
            continue
        walked = Transactions()
        for segment in written.segments:
            walked.add_all(entries_of(segment, MessageFilter(), fail_on_damage))
        kept = [one for segment in written.segments for one in segment.aborted_index()]

        assert [one._replace(last_stable_offset=None) for one in kept] == walked.aborted
        assert len(kept) > 2
        assert walked.last_stable_offset == next(iter(walked.open.values()))


def test_reading_begins_at_any_offset(broker_logs: BrokerLogs) -> None:
    rng = random.Random(SEED)
    for written in broker_logs.written:
        last = written.uncommitted[-1][0]
        for first in [0, last, last + 1, *(rng.randrange(last) for _ in range(4))]:
            found = [fields_of(message.record) for message in read(written, first=first, end=first + 50)]
            assert found == [one for one in written.uncommitted if first <= one[0] < first + 50], written.directory.name


def test_every_field_equals_the_output_of_dump_log_segments(broker_logs: BrokerLogs) -> None:
    segments = [segment for written in broker_logs.written for segment in written.segments]

    printed = printed_by_kafka(broker_logs.jars, [segment.log for segment in segments])

    assert len(printed) == len(segments)
    for segment in segments:
        assert list(map(str.rstrip, lines_of(segment))) == printed[segment.log], segment.log
    if broker_logs.name == "by topic":
        text = [line for lines in printed.values() for line in lines]
        for seen in ("magic: 0", "magic: 1", "magic: 2", "endTxnMarker: ABORT", "OptionalLong[", "LogAppendTime: 1"):
            assert any(seen in line for line in text), seen


def test_offsets_for_times_equal_the_brokers(broker_logs: BrokerLogs) -> None:
    """Compares only uncompacted topics: compaction may have changed the others since they were copied."""
    rng = random.Random(SEED)
    kept = [written for written in broker_logs.written if "delete" in written.directory.name]
    consumer = ck.Consumer(
        {"bootstrap.servers": broker_logs.bootstrap, "group.id": "reader", "isolation.level": "read_uncommitted"}
    )
    try:
        for written in kept:
            if written.magic == 0:  # brokers reject ListOffsets by time for this format
                assert at_or_after(written.segments, TIME) is None
                continue
            topic, _, number = written.directory.name.rpartition("-")
            times = [time_ for _, time_, *_ in written.uncommitted if time_ is not None]
            timestamps = [min(times) - 1, *(rng.choice(times) - rng.randrange(3) for _ in range(4))]
            if int(number) != TRANSACTIONS:  # the broker has since written the marker of the open transaction
                timestamps.append(max(times) + 1)
            for timestamp in timestamps:
                (answer,) = consumer.offsets_for_times([ck.TopicPartition(topic, int(number), timestamp)], timeout=120)
                found = at_or_after(written.segments, timestamp)
                assert (-1 if found is None else found.offset) == answer.offset, (written.directory.name, timestamp)
    finally:
        consumer.close()


def test_offsets_before_a_time_equal_the_brokers(broker_logs: BrokerLogs) -> None:
    """Brokers before 4.0 find segments by the modification times of their files, which the copies keep. The partition
    with transactions is excluded, because the broker has written to it since."""
    kept = [
        written
        for written in broker_logs.written
        if "delete" in written.directory.name and not written.directory.name.endswith(f"-{TRANSACTIONS}")
    ]
    if broker_logs.name == "4.4":
        kept = []
    with SimpleConsumer(broker_logs.bootstrap) as consumer:
        for written in kept:
            tp = partition_of(written.directory)
            for segment in written.segments[:-1][:3]:
                timestamp = segment.modified
                answer = consumer.get_offsets_before([tp], timestamp, 100)[tp]
                assert offsets_before(written.segments, timestamp, 100, timestamp + 1) == list(answer), (tp, timestamp)


def test_log_dump_decodes_the_offsets_topic_of_a_running_broker(
    broker_logs: BrokerLogs, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = broker_logs.written[0].directory.name.rpartition("-")[0]
    consumer = ck.Consumer({"bootstrap.servers": broker_logs.bootstrap, "group.id": unique})
    consumer.commit(offsets=[ck.TopicPartition(topic, 1, 42)], asynchronous=False)
    consumer.close()

    assert run(["log", "dump", str(broker_logs.data), "--topic", "__consumer_offsets", "--format", "json"]) == 0

    rows = [row for row in json.loads(capsys.readouterr().out) if row["key"].get("group") == unique]
    assert [row["key"] for row in rows] == [{"type": "offset", "group": unique, "topic": topic, "partition": 1}]
    assert rows[0]["value"]["offset"] == 42
