"""`SimpleConsumer` and the SimpleConsumer of Kafka 0.10.2 return the same results for the same requests to one
broker."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as CkPartition
from confluent_kafka.admin import AdminClient

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer import EARLIEST, LATEST, FetchResult, SimpleConsumer
from offsetmgr.core.errors import OffsetOutOfRange, PartialFailure, UnknownTopicOrPartition
from offsetmgr.core.model import ABSENT, Committed, LogRange, OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, jars
from offsetmgr.sandbox.java import LOG4J_FLAGS, QUICK_START, java_command

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION = 1, 3
BEGINNING = 1_700_000_000_000
ENOUGH = 1024 * 1024
# The records are years old, and the broker must not delete them.
KEPT = {"retention.ms": "-1"}


class JavaMessage(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class JavaPartition(NamedTuple):
    error: int
    high_watermark: int
    messages: list[JavaMessage]


class UnreadableResponse(Exception):
    """The old consumer could not decode the broker's response."""


class OldSimpleConsumer:
    """Kafka 0.10.2's SimpleConsumer, connected to one broker, in a process that executes requests line by line."""

    def __init__(self, broker: KafkaBroker, directory: Path) -> None:
        program = Path(__file__).with_name("OldSimpleConsumer.java")
        command = java_command(
            [jars.resolve("kafka-0.10.2"), jars.resolve("janino")],
            "org.codehaus.janino.SimpleCompiler",
            [str(program), "OldSimpleConsumer", "127.0.0.1", str(broker.port)],
            jvm=("-Xmx128m", *QUICK_START, *LOG4J_FLAGS),
        )
        self._errors = (directory / "errors.txt").open("w")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def __enter__(self) -> OldSimpleConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(90)
        self._process.stdout.close()
        self._errors.close()

    def _request(self, *words: object) -> list[list[str]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\t".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line == ".\n":
                return lines
            lines.append(line.rstrip("\n").split("\t"))
        raise AssertionError(f"the old consumer ended at {words}: see {self._errors.name}")

    def fetch(self, offsets: dict[TopicPartition, int], size: int = ENOUGH) -> dict[TopicPartition, JavaPartition]:
        found: dict[TopicPartition, JavaPartition] = {}
        requested = [word for tp, offset in offsets.items() for word in (tp.topic, tp.partition, offset)]
        for kind, *words in self._request("fetch", size, *requested):
            if kind == "X":
                raise UnreadableResponse(*words)
            if kind == "P":
                part = JavaPartition(int(words[2]), int(words[3]), [])
                found[TopicPartition(words[0], int(words[1]))] = part
            else:
                part.messages.append(JavaMessage(int(words[0]), int(words[1]), _bytes(words[2]), _bytes(words[3])))
        return found

    def offsets_before(self, tp: TopicPartition, when: int, limit: int) -> tuple[int, tuple[int, ...]]:
        ((_, error, *offsets),) = self._request("before", *tp, when, limit)
        return int(error), tuple(map(int, offsets))

    def coordinator(self, group: str) -> tuple[int, str, int]:
        ((_, error, host, port),) = self._request("coordinator", group)
        return int(error), host, int(port)

    def commit(self, group: str, tp: TopicPartition, offset: int, metadata: str) -> int:
        ((_, error),) = self._request("commit", group, *tp, offset, metadata)
        return int(error)

    def committed(self, group: str, tp: TopicPartition) -> tuple[int, int, str]:
        ((_, error, offset, metadata),) = self._request("committed", group, *tp)
        return int(error), int(offset), metadata


def _bytes(text: str) -> bytes | None:
    return None if text == r"\N" else bytes.fromhex(text)


def as_java(fetched: FetchResult) -> list[JavaMessage]:
    """The records in the form of the old format: without headers, and with -1 for no timestamp."""
    return [JavaMessage(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value) for r in fetched.records]


@pytest.fixture(scope="module")
def broker(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A 3.9.1 broker on which topics may use any message format."""
    directory = tmp_path_factory.mktemp("formats")
    config = {"inter.broker.protocol.version": "2.8", "log.message.format.version": "2.8"}
    with KafkaBroker(
        directory, zookeeper=f"{zookeeper.connect}/{directory.name}-{os.getpid()}", config=config
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def old(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldSimpleConsumer]:
    with OldSimpleConsumer(broker, tmp_path_factory.mktemp("old")) as consumer:
        yield consumer


@pytest.fixture(scope="module")
def ours(broker: KafkaBroker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(broker.bootstrap, config=ConnectionConfig(timeout_ms=20_000)) as consumer:
        yield consumer


def produce(
    broker: KafkaBroker, topic: str, count: int, *, codec: str = "none", partition: int = 0, size: int = 40
) -> list[JavaMessage]:
    """``count`` messages in batches of ten; every seventh has no key, every eleventh no value.

    Returns the written messages.
    """
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "compression.codec": codec,
            "batch.num.messages": 10,
            "linger.ms": 100,
            "max.in.flight.requests.per.connection": 1,
            "log_level": 0,
        }
    )
    written: list[JavaMessage] = []

    def record_delivery(error: object, message: object) -> None:
        assert error is None
        written.append(JavaMessage(message.offset(), message.timestamp()[1], message.key(), message.value()))  # type: ignore[attr-defined]

    for number in range(count):
        producer.produce(
            topic,
            key=None if number % 7 == 0 else f"k{number}".encode(),
            value=None if number % 11 == 0 else f"value {number} ".encode() * (size // 8),
            partition=partition,
            timestamp=BEGINNING + number * 1000,
            on_delivery=record_delivery,
        )
    assert producer.flush(30) == 0
    return written


FORMATS = {"2": "2.8", "1": "0.10.2", "0": "0.9.0"}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("magic", FORMATS)
def test_a_fetch_from_any_offset_returns_the_same_messages(broker, old, ours, make_topic, unique, magic, codec) -> None:
    topic = make_topic(unique, bootstrap=broker.bootstrap, config={**KEPT, "message.format.version": FORMATS[magic]})
    tp = TopicPartition(topic, 0)
    written = produce(broker, topic, 30, codec=codec)
    if magic == "0":
        written = [message._replace(timestamp=-1) for message in written]

    for offset in (0, 1, 9, 10, 15, 29, 30):
        got = ours.fetch({tp: offset})[tp]
        java_result = old.fetch({tp: offset})[tp]

        assert as_java(got) == written[offset:]
        assert (got.fetch_offset, got.next_offset, got.high_watermark) == (offset, 30, 30)
        assert (java_result.error, java_result.high_watermark) == (0, 30)
        # Java's consumer returns a compressed batch from its beginning. The broker converts its response to an older
        # format and cuts it at the size of the newer one, so the last messages may be missing.
        java = [message for message in java_result.messages if message.offset >= offset]
        assert java == written[offset : offset + len(java)]
        assert offset == 30 or java
        if magic != "2":
            assert java == written[offset:]


def test_zstd_and_headers_are_read_though_the_old_consumer_cannot(broker, old, ours, make_topic, unique) -> None:
    topic = make_topic(unique, 2, bootstrap=broker.bootstrap, config=KEPT)
    zstd, headers = TopicPartition(topic, 0), TopicPartition(topic, 1)
    written = produce(broker, topic, 30, codec="zstd")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    producer.produce(topic, "v", "k", partition=1, timestamp=BEGINNING, headers=[("a", b"1"), ("b", None), ("a", b"")])
    assert producer.flush(30) == 0

    got = ours.fetch({zstd: 4, headers: 0})

    assert as_java(got[zstd]) == written[4:]
    (record,) = got[headers].records
    assert record.headers == (("a", b"1"), ("b", None), ("a", b""))
    assert (record.offset, record.timestamp, record.key, record.value) == (0, BEGINNING, b"k", b"v")
    with pytest.raises(UnreadableResponse):
        old.fetch({zstd: 0})


def test_a_fetch_of_several_partitions_reports_empty_and_missing_ones(broker, old, ours, make_topic, unique) -> None:
    # In a format that the old consumer supports, so that the broker does not convert the messages.
    config = {**KEPT, "message.format.version": FORMATS["1"]}
    topic = make_topic(unique, 4, bootstrap=broker.bootstrap, config=config)
    full, more, empty, outside = (TopicPartition(topic, number) for number in range(4))
    missing, missing_topic = TopicPartition(topic, 9), TopicPartition(f"{topic}-not", 0)
    produce(broker, topic, 20)
    produce(broker, topic, 10, partition=1)
    requested = {full: 5, more: 0, empty: 0, outside: 7, missing: 0, missing_topic: 0}

    java_result = old.fetch(requested)
    with pytest.raises(PartialFailure) as caught:
        ours.fetch(requested)

    got: dict[TopicPartition, FetchResult] = caught.value.successes
    failed = caught.value.failures
    for tp in (full, more, empty):
        assert java_result[tp] == (0, got[tp].high_watermark, as_java(got[tp]))
    assert [len(got[tp].records) for tp in (full, more, empty)] == [15, 10, 0]
    assert got[empty] == FetchResult((), 0, 0, 0, 0)
    codes = {
        outside: OFFSET_OUT_OF_RANGE,
        missing: UNKNOWN_TOPIC_OR_PARTITION,
        missing_topic: UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert {tp: part.error for tp, part in java_result.items() if part.error} == codes
    assert {tp: error.code for tp, error in failed.items()} == codes


def test_a_fetch_size_below_one_message_still_returns_every_message(broker, old, ours, make_topic, unique) -> None:
    topic = make_topic(unique, 2, bootstrap=broker.bootstrap, config=KEPT)
    tps = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    written = {tp: produce(broker, topic, 20, partition=tp.partition, size=4000) for tp in tps}
    followed: dict[TopicPartition, list[JavaMessage]] = {tp: [] for tp in tps}
    offsets = dict.fromkeys(tps, 0)
    rounds = 0

    while offsets != dict.fromkeys(tps, 20):
        rounds += 1
        for tp, got in ours.fetch(offsets, max_bytes=1).items():
            assert got.records or offsets[tp] == 20, "a partition is never starved by the others"
            followed[tp] += as_java(got)
            offsets[tp] = got.next_offset

    assert followed == written
    assert rounds > 1
    for tp in tps:
        java: list[JavaMessage] = []
        while len(java) < 20:
            java += [m for m in old.fetch({tp: len(java)}, 1)[tp].messages if m.offset >= len(java)]
        assert java == written[tp]


def test_an_offset_out_of_range_is_an_error_or_reset_by_the_callers_choice(broker, old, ours, make_topic, unique):
    topic = make_topic(unique, bootstrap=broker.bootstrap, config=KEPT)
    tp = TopicPartition(topic, 0)
    written = produce(broker, topic, 30)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_records([CkPartition(topic, 0, 12)])[CkPartition(topic, 0, 12)].result(90)

    for offset in (11, 31):
        assert old.fetch({tp: offset})[tp].error == OFFSET_OUT_OF_RANGE
        with pytest.raises(OffsetOutOfRange) as caught:
            ours.fetch({tp: offset})
        assert caught.value.log_range == LogRange(12, 30)
        assert caught.value.why == "the log begins at 12 and ends at 30 (OFFSET_OUT_OF_RANGE)"
        earliest = ours.fetch({tp: offset}, out_of_range="earliest")[tp]
        assert as_java(earliest) == written[12:]
        assert (earliest.fetch_offset, earliest.log_start_offset) == (12, 12)
        assert ours.fetch({tp: offset}, out_of_range="latest")[tp] == FetchResult((), 30, 30, 30, 12)
    assert old.offsets_before(tp, EARLIEST, 1) == (0, (12,))
    assert old.offsets_before(tp, LATEST, 1) == (0, (30,))
    with SimpleConsumer(broker.bootstrap, out_of_range="earliest") as resetting:
        assert resetting.fetch({tp: 0})[tp].fetch_offset == 12


def test_offsets_before_a_time_are_the_same_across_segments(broker, old, ours, make_topic, unique) -> None:
    topic = make_topic(unique, 2, bootstrap=broker.bootstrap, config={**KEPT, "segment.bytes": "1000"})
    tp, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    produce(broker, topic, 60, size=80)
    segments = sorted((broker.directory / "data" / f"{topic}-0").glob("*.log"))
    bases = [int(segment.stem) for segment in segments]
    assert bases[0] == 0
    assert len(bases) >= 4
    now = int(time.time())
    times = [now - 1000 + 100 * number for number in range(len(segments))]
    for segment, seconds in zip(segments, times, strict=True):
        os.utime(segment, (seconds, seconds))

    def expected(when: int, limit: int) -> tuple[int, ...]:
        known = [base for base, seconds in zip(bases, times, strict=True) if seconds * 1000 <= when]
        return tuple(reversed([*known, 60] if when >= now * 1000 + 60_000 else known))[:limit]

    moments = [m for seconds in times for m in (seconds * 1000 - 1, seconds * 1000, seconds * 1000 + 1)]
    for when in (*moments, now * 1000 + 3_600_000):
        for limit in range(1, len(bases) + 2):
            got = ours.get_offsets_before([tp], when, limit)[tp]
            assert got == expected(when, limit)
            assert old.offsets_before(tp, when, limit) == (0, got)
    everything = (60, *reversed(bases))
    for when, all_offsets in ((LATEST, everything), (EARLIEST, (0,))):
        for limit in (1, 2, 100):
            got = ours.get_offsets_before([tp], when, limit)[tp]
            assert got == all_offsets[:limit]
            assert old.offsets_before(tp, when, limit) == (0, got)
    both = ours.get_offsets_before([tp, empty], LATEST, 2)
    assert both == {tp: everything[:2], empty: (0,)}
    assert old.offsets_before(empty, LATEST, 2) == (0, (0,))
    with pytest.raises(UnknownTopicOrPartition):
        ours.get_offsets_before([TopicPartition(topic, 9)], LATEST)
    assert old.offsets_before(TopicPartition(topic, 9), LATEST, 1) == (UNKNOWN_TOPIC_OR_PARTITION, ())


def test_both_consumers_find_the_same_coordinator_and_commits(broker, old, ours, make_topic, unique) -> None:
    topic = make_topic(unique, 3, bootstrap=broker.bootstrap)
    theirs, mine, uncommitted = (TopicPartition(topic, number) for number in range(3))
    at = ours.find_coordinator(unique)
    assert old.coordinator(unique) == (0, at.host, at.port)

    assert old.commit(unique, theirs, 7, "by Java") == 0
    ours.commit_offsets(unique, {mine: OffsetAndMetadata(8, "by us")})

    for coordinator in (None, at, str(at)):
        found = ours.fetch_offsets(unique, [theirs, mine, uncommitted], coordinator=coordinator)
        assert found == {theirs: Committed(7, "by Java"), mine: Committed(8, "by us"), uncommitted: ABSENT}
    assert ours.fetch_offsets(unique) == {theirs: Committed(7, "by Java"), mine: Committed(8, "by us")}
    assert old.committed(unique, mine) == (0, 8, "by us")
    assert old.committed(unique, theirs) == (0, 7, "by Java")
    assert old.committed(unique, uncommitted) == (0, -1, "")
    ours.commit_offsets(unique, {mine: OffsetAndMetadata(3)}, coordinator=at)
    assert old.committed(unique, mine) == (0, 3, "")
