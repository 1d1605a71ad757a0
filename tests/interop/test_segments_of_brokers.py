"""Segments of real brokers in every format and codec, with and without compaction and transactions: every record equals
the one that a consumer reads, and every field equals the output of Kafka's DumpLogSegments.

Message formats 0 and 1 come from broker 3.9.1 with an inter-broker version before 3.0, which still writes them.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from offsetmgr.cli.app import run
from offsetmgr.consumer import SimpleConsumer
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer, java_tool
from offsetmgr.segments.batch_builder import Producer, end_of_transaction
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.entries import LogEntry
from offsetmgr.segments.log_appender import LogAppender, RollPolicy
from offsetmgr.segments.message_scan import LogMessage, MessageFilter, entries_of, messages
from offsetmgr.segments.partition import partition_of, segments_in
from offsetmgr.segments.segment import INDEX, LOG, TIME_INDEX, Segment
from offsetmgr.segments.time_lookup import at_or_after, offsets_before
from offsetmgr.segments.transactions import Transactions, marker_of

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
pytestmark = [pytest.mark.servers, pytest.mark.timeout(900 if SOAK else 240)]
SEED = int(os.environ.get("OFFSETMGR_SEED", "7"))
COUNT: Final = 4_000 if SOAK else 400
"""Messages per partition."""
KEYS: Final = 30
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""The codec of each partition, by its number."""
TRANSACTIONS: Final = len(CODECS)
"""The number of the partition with transactions, after one partition for each codec."""
FORMATS: Final = {"0.9.0": 0, "0.10.2": 1, "2.8": 2}
"""The version of the messages that brokers write, by ``message.format.version``."""
TIME: Final = 1_700_000_000_000
SEGMENT_BYTES: Final = "40000"
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
    "max.compaction.lag.ms": "1",
}

MessageFields = tuple[int, int | None, bool, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Offset, timestamp, whether the broker set the timestamp, key, value, headers."""


class Written(NamedTuple):
    """The messages that a consumer read from a partition, and a consistent copy of the partition's files."""

    directory: Path
    magic: int
    uncommitted: list[MessageFields]
    committed: list[MessageFields]

    @property
    def segments(self) -> tuple[Segment, ...]:
        return segments_in(self.directory)


# --- writing --------------------------------------------------------------------------------------


def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
    assert error is None, error


def produce(bootstrap: str, topic: str, partition: int, codec: str, rng: random.Random, headers: bool) -> None:
    """Writes small and large messages, tombstones, and (without compaction) messages without a key, in batches of all
    sizes."""
    producer = ck.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "linger.ms": 2,
            "batch.size": 16_384,  # a batch has to fit into a segment
            "enable.idempotence": headers,
            "on_delivery": delivered,
        }
    )
    for number in range(COUNT):
        key = None if "delete" in topic and rng.random() < 0.1 else b"key-%d" % rng.randrange(KEYS)
        size = 30_000 if number == COUNT // 2 else rng.choice((0, 10, 100, 1500))
        value = (
            None
            if key is not None and rng.random() < 0.1
            else (b"value-%d-" % number) + rng.randbytes(size // 2).hex().encode()
        )
        producer.produce(
            topic,
            key=key,
            value=value,
            partition=partition,
            timestamp=TIME + number * 10 + rng.randrange(100),
            headers=[("number", b"%d" % number), ("none", None)] if headers and number % 7 == 0 else None,
        )
        if rng.random() < 0.05:
            assert producer.flush(30) == 0
    assert producer.flush(30) == 0


def transact(bootstrap: str, topic: str, partition: int, rng: random.Random) -> ck.Producer:
    """Writes interleaved transactions of two producers, some of them aborted, and messages without a transaction.

    The last transaction stays open; returns its producer, which the caller must keep.
    """
    producers = []
    for number in range(2):
        producer = ck.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{number}", "on_delivery": delivered}
        )
        producer.init_transactions(30)
        producers.append(producer)
    plain = ck.Producer({"bootstrap.servers": bootstrap, "on_delivery": delivered})
    for turn in range(COUNT // 40):
        for producer in producers:
            producer.begin_transaction()
        for number in range(4):
            value = b"turn-%d-" % turn + rng.randbytes(400).hex().encode()
            producers[number % 2].produce(topic, value, b"key-%d" % rng.randrange(KEYS), partition)
            producers[number % 2].flush(30)
            plain.produce(topic, b"plain " + value, b"plain-%d" % rng.randrange(KEYS), partition)
            plain.flush(30)
        for producer in producers:
            (producer.abort_transaction if rng.random() < 0.4 else producer.commit_transaction)(30)
    producers[0].begin_transaction()
    producers[0].produce(topic, b"never seen", b"open", partition)
    producers[0].flush(30)
    plain.produce(topic, b"not stable", b"behind", partition)
    plain.flush(30)
    return producers[0]


def wait_for(condition: Callable[[], bool], description: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not {description} after {seconds:g} s"
        time.sleep(0.1)


# --- reading with a consumer ----------------------------------------------------------------------


def consumed(bootstrap: str, partitions: list[str], isolation: str) -> dict[str, list[MessageFields]]:
    """Every message that a consumer reads from these partitions up to their ends."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "check.crcs": True,
        }
    )
    found: dict[str, list[MessageFields]] = {name: [] for name in partitions}
    ended: set[str] = set()
    try:
        consumer.assign(
            [ck.TopicPartition(topic, int(n), 0) for topic, _, n in (p.rpartition("-") for p in partitions)]
        )
        deadline = time.monotonic() + 90
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"{set(partitions) - ended} were not read in 90 s"
            for message in consumer.consume(10_000, 0.2):
                name = f"{message.topic()}-{message.partition()}"
                if error := message.error():
                    assert error.code() == ck.KafkaError._PARTITION_EOF, error
                    ended.add(name)
                    continue
                kind, timestamp = message.timestamp()
                offset, headers = message.offset(), message.headers() or []
                assert offset is not None and isinstance(headers, list)
                found[name].append(
                    (
                        offset,
                        None if kind == ck.TIMESTAMP_NOT_AVAILABLE else timestamp,
                        kind == ck.TIMESTAMP_LOG_APPEND_TIME,
                        message.key(),
                        message.value(),
                        tuple((name, as_bytes(header)) for name, header in headers),
                    )
                )
    finally:
        consumer.close()
    return found


def as_bytes(header: str | bytes | None) -> bytes | None:
    return header.encode() if isinstance(header, str) else header


def fields_of(record: Record) -> MessageFields:
    return (record.offset, record.timestamp, record.log_append_time, record.key, record.value, record.headers)


def logs_of(directory: Path) -> list[tuple[str, int, int, int]] | None:
    """The attributes of a partition's files that change with an append or a compaction. Returns None if a file
    disappears meanwhile."""
    found = []
    for file in sorted(directory.iterdir()):
        if LOG in file.suffixes:
            try:
                stat = file.stat()
            except FileNotFoundError:
                return None
            found.append((file.name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return found


def copied(bootstrap: str, data: Path, target: Path, magics: dict[str, int]) -> list[Written]:
    """Consistent copies of partitions: reads and copies a partition again if the broker changed it meanwhile."""
    done: dict[str, Written] = {}
    deadline = time.monotonic() + 90
    while pending := [name for name in magics if name not in done]:
        assert time.monotonic() < deadline, f"{', '.join(pending)} keep changing"
        before = {name: logs_of(data / name) for name in pending}
        uncommitted = consumed(bootstrap, pending, "read_uncommitted")
        committed = consumed(bootstrap, pending, "read_committed")
        for name in pending:
            shutil.rmtree(target / name, ignore_errors=True)
            try:
                shutil.copytree(data / name, target / name)
            except (shutil.Error, FileNotFoundError):
                continue
            if before[name] is not None and logs_of(data / name) == before[name]:
                done[name] = Written(target / name, magics[name], uncommitted[name], committed[name])
    return [done[name] for name in magics]


# --- the brokers ----------------------------------------------------------------------------------


def write_all(bootstrap: str, data: Path, target: Path, topics: dict[str, tuple[int, dict[str, str]]]) -> list[Written]:
    """Creates and fills topics with a partition for each codec, and one for transactions if the format supports
    them."""
    rng = random.Random(SEED)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics(
        [
            NewTopic(
                topic, num_partitions=TRANSACTIONS + 1, replication_factor=1, config={"retention.ms": "-1", **config}
            )
            for topic, (_, config) in topics.items()
        ],
        operation_timeout=30,
    )
    for done in created.values():
        done.result(60)
    open_producers = []
    magics: dict[str, int] = {}
    for topic, (magic, _) in topics.items():
        for partition, codec in enumerate(CODECS[: 5 if magic == 2 else 4]):
            produce(bootstrap, topic, partition, codec, rng, headers=magic == 2)
            magics[f"{topic}-{partition}"] = magic
        if magic == 2:
            open_producers.append(transact(bootstrap, topic, TRANSACTIONS, rng))
            magics[f"{topic}-{TRANSACTIONS}"] = magic
    checkpoint = data / "cleaner-offset-checkpoint"
    compacted = {name for name in magics if "compact" in name}

    def cleaned() -> bool:
        lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        return {f"{topic}-{number}" for topic, number, _ in map(str.split, lines[2:])} >= compacted

    wait_for(cleaned, f"compacted: {', '.join(sorted(compacted))}")
    written = copied(bootstrap, data, target, magics)
    for producer in open_producers:
        producer.abort_transaction(30)
    return written


def topics_of(formats: dict[str, int], by_topic: bool) -> dict[str, tuple[int, dict[str, str]]]:
    """One topic without and one with compaction for each format. The uncompacted topic of format 1 and the compacted
    topic of format 2 have LogAppendTime timestamps."""
    found: dict[str, tuple[int, dict[str, str]]] = {}
    for version, magic in formats.items():
        config = {"message.format.version": version} if by_topic else {}
        # Broker 4.1 accepts less than 1 MiB only under the internal name.
        config["internal.segment.bytes" if version == "4.1" else "segment.bytes"] = SEGMENT_BYTES
        kept, compacted = (dict(config), {**config, **COMPACTED})
        if magic:
            (kept if magic == 1 else compacted)["message.timestamp.type"] = "LogAppendTime"
        found[f"format{magic}-delete"] = (magic, kept)
        found[f"format{magic}-compact"] = (magic, compacted)
    return found


FAST_CLEANER: Final = {"log.cleaner.backoff.ms": 100, "log.cleaner.threads": 2}


BROKERS: Final = ("by topic", "0.9.0", "0.10.2", "4.1") if SOAK else ("by topic",)
"""Broker 3.9.1 with inter-broker version 2.8, which writes each format to separate topics; the same broker with an
older version for everything; broker 4.1.1."""


class BrokerLogs(NamedTuple):
    """The partitions that one broker wrote, and the jars that contain its tools."""

    name: str
    jars: str
    written: list[Written]
    bootstrap: str
    data: Path


@pytest.fixture(scope="module", params=BROKERS)
def broker_logs(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerLogs]:
    name: str = request.param
    directory, copies = tmp_path_factory.mktemp("broker"), tmp_path_factory.mktemp("copies")
    broker: KafkaBroker | KraftBroker
    if name == "4.1":
        topics = topics_of({"4.1": 2}, by_topic=False)
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
            name, "kafka-4.1" if name == "4.1" else "kafka-3.9", written, broker.bootstrap, directory / "data"
        )


def fail_on_damage(error: OffsetMgrError) -> None:
    raise AssertionError(f"an intact file is reported as damaged: {error}")


def read(written: Written, **filters: Any) -> list[LogMessage]:
    return list(messages(written.segments, MessageFilter(**filters), fail_on_damage))


# --- our reader --------------------------------------------------------------------------------


def test_every_message_equals_the_one_a_consumer_reads(broker_logs: BrokerLogs) -> None:
    for written in broker_logs.written:
        found = read(written)
        assert [fields_of(message.record) for message in found] == written.uncommitted, written.directory.name
        assert {message.header.magic for message in found} == {written.magic}, written.directory.name
    formats = (
        [FORMATS[broker_logs.name]]
        if broker_logs.name in FORMATS
        else ([2] if broker_logs.name == "4.1" else [0, 1, 2])
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


# --- Kafka's own tool -----------------------------------------------------------------------------

_TIMES: Final = {None: "NoTimestampType", False: "CreateTime", True: "LogAppendTime"}
_INNER_CHECKSUM: Final = re.compile(r" isValid: true crc: \d+}")
"""Kafka also prints the checksum of each inner message, which our reader verifies and does not return."""


def number(value: int | None) -> int:
    """The number, or -1 for None, as Kafka prints it."""
    return -1 if value is None else value


def time_of(magic: int, by_broker: bool, timestamp: int | None) -> str:
    return f"{_TIMES[None if magic == 0 else by_broker]}: {number(timestamp)}"


def entry_line(entry: LogEntry) -> str:
    """The line that DumpLogSegments prints for an entry's header."""
    h = entry.header()
    time_ = time_of(h.magic, h.log_append_time, h.largest_timestamp)
    end = f"size: {len(entry.data)} magic: {h.magic} compresscodec: {CODECS[h.codec]} crc: {h.crc} isvalid: true"
    if h.magic < 2:
        return f"offset: {h.last_offset} position: {entry.position} {time_} {end}"
    last = -1 if h.base_sequence is None else h.base_sequence + h.last_offset - entry.offset
    horizon = f"[{h.base_timestamp}]" if h.delete_horizon else ".empty"
    return (
        f"baseOffset: {h.base_offset} lastOffset: {h.last_offset} count: {h.record_count}"
        f" baseSequence: {number(h.base_sequence)} lastSequence: {last} producerId: {number(h.producer_id)}"
        f" producerEpoch: {number(h.producer_epoch)} partitionLeaderEpoch: {number(h.leader_epoch)}"
        f" isTransactional: {str(h.transactional).lower()} isControl: {str(h.control).lower()}"
        f" deleteHorizonMs: OptionalLong{horizon} position: {entry.position} {time_} {end}"
    )


def record_line(message: LogMessage) -> str:
    """The line that DumpLogSegments prints for a record."""
    record, _, header, sequence = message
    key_size, value_size = (-1 if field is None else len(field) for field in (record.key, record.value))
    line = f"| offset: {record.offset} {time_of(header.magic, record.log_append_time, record.timestamp)}"
    line += f" keySize: {key_size} valueSize: {value_size}"
    if header.magic == 2:
        line += f" sequence: {number(sequence)} headerKeys: [{','.join(name for name, _ in record.headers)}]"
    if header.control:
        marker = marker_of(record)
        return f"{line} endTxnMarker: {marker.name.upper()} coordinatorEpoch: {marker.coordinator_epoch}"
    line += "" if record.key is None else f" key: {record.key.decode()}"
    return line + ("" if record.value is None else f" payload: {record.value.decode()}")


def lines_of(segment: Segment) -> Iterator[str]:
    """The lines that DumpLogSegments prints for a segment."""
    records = messages((segment,), MessageFilter(controls=True), fail_on_damage)
    message = next(records, None)
    for entry in entries_of(segment, MessageFilter(), fail_on_damage):
        yield entry_line(entry)
        while message is not None and message.entry.position == entry.position:
            yield record_line(message)
            message = next(records, None)


def printed_by_kafka(jar_set: str, files: list[Path]) -> dict[Path, list[str]]:
    arguments = ["--deep-iteration", "--print-data-log", "--files", ",".join(map(str, files))]
    done = java_tool(jar_set, "kafka.tools.DumpLogSegments", arguments, timeout_s=150)
    assert done.returncode == 0, done.stderr
    found: dict[Path, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("Dumping "):
            found[Path(line.removeprefix("Dumping "))] = lines = []
        elif not line.startswith("Log starting offset: "):
            lines.append(_INNER_CHECKSUM.sub("", line).rstrip())
    return found


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
                (answer,) = consumer.offsets_for_times([ck.TopicPartition(topic, int(number), timestamp)], timeout=30)
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
    if broker_logs.name == "4.1":
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


# --- our writer --------------------------------------------------------------------------------


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
