"""Logs that real brokers write in every format and codec, with and without compaction and transactions.

Message formats 0 and 1 come from broker 3.9.1 with an inter-broker version before 3.0, which still writes them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic
from processes import run_command, wait_for

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
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
    def segments(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))


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
        deadline = time.monotonic() + 120
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"{set(partitions) - ended} were not read in 120 s"
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


def dumped(path: Path, *options: str) -> list[dict[str, Any]]:
    """The rows that ``log dump`` prints for a partition's directory or for a segment, which must not be damaged."""
    rows: list[dict[str, Any]] = json.loads(run_command("log", "dump", str(path), *options, "--format", "json").stdout)
    return rows


def fields_of(row: Mapping[str, Any]) -> MessageFields:
    """The fields of a row of ``log dump``. Every key and value in these logs is text."""
    headers = tuple((name, as_bytes(header)) for name, header in row["headers"])
    by_broker = row["timestamp_type"] == "append"
    return row["offset"], row["timestamp"], by_broker, as_bytes(row["key"]), as_bytes(row["value"]), headers


def logs_of(directory: Path) -> list[tuple[str, int, int, int]] | None:
    """The attributes of a partition's files that change with an append or a compaction. Returns None if a file
    disappears meanwhile."""
    found = []
    for file in sorted(directory.iterdir()):
        if ".log" in file.suffixes:
            try:
                stat = file.stat()
            except FileNotFoundError:
                return None
            found.append((file.name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return found


def copied(bootstrap: str, data: Path, target: Path, magics: dict[str, int]) -> list[Written]:
    """Consistent copies of partitions: reads and copies a partition again if the broker changed it meanwhile."""
    done: dict[str, Written] = {}
    deadline = time.monotonic() + 120
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
        # Broker 4.4 accepts less than 1 MiB only under the internal name.
        config["internal.segment.bytes" if version == "4.4" else "segment.bytes"] = SEGMENT_BYTES
        kept, compacted = (dict(config), {**config, **COMPACTED})
        if magic:
            (kept if magic == 1 else compacted)["message.timestamp.type"] = "LogAppendTime"
        found[f"format{magic}-delete"] = (magic, kept)
        found[f"format{magic}-compact"] = (magic, compacted)
    return found


FAST_CLEANER: Final = {"log.cleaner.backoff.ms": 100, "log.cleaner.threads": 2}
