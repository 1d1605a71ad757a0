"""Randomly damaged segments that a real broker recovers.

The broker keeps exactly the bytes that offsetmgr considers valid, and accepts segments that offsetmgr truncated.
"""

import fcntl
import os
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from damaged_log import command
from processes import create_topic

from offsetmgr.core.errors import SandboxError
from offsetmgr.sandbox import KafkaBroker, KraftBroker
from offsetmgr.segments.batch_reader import batches

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
SEED = int(os.environ.get("OFFSETMGR_SEED", "7"))
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
ROUNDS = 14
ZOOKEEPERS = {"v0": ("0.9.0", 4), "v1": ("0.10.2", 4), "v2": ("2.8", 5)}
"""Topic -> message.format.version and the number of codecs that it supports. Brokers of 2.8 also write old formats."""
KRAFTS = {"v2": ("", 5)}
SHARES = {"v0": 1, "v1": 1, "v2": 4}
TRANSACTIONAL = 8
"""Partitions of the topic ``tx``."""
COMMITTED = {"isolation.level": "read_committed"}
TRANSACTIONS = 8
OUTCOMES = (b"committed", b"aborted")
PARTITIONS = 120 if SOAK else 14
"""Partitions of each topic, multiplied by its share. Each of the broker's two log directories has half of them."""


def produce(bootstrap: str, partitions: dict[str, int], codecs: dict[str, int], chance: random.Random) -> None:
    """Produces batches of 1 to 9 messages, compressed with the partition's codec."""
    producers = {
        codec: Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 0}) for codec in NAMES
    }
    for _ in range(ROUNDS):
        for topic, number in partitions.items():
            for partition in range(number):
                producer = producers[NAMES[partition % codecs[topic]]]
                for n in range(chance.randint(1, 9)):
                    value = chance.randbytes(chance.randint(0, 120)) + b"." * chance.randint(0, 400)
                    key = None if n % 5 == 4 else b"k%d" % chance.randrange(99)
                    producer.produce(topic, key=key, value=value, partition=partition)
        for producer in producers.values():
            assert producer.flush(60) == 0


def produce_in_transactions(bootstrap: str) -> None:
    """Every other transaction is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(60)
    for turn in range(TRANSACTIONS):
        producer.begin_transaction()
        for partition in range(TRANSACTIONAL):
            for _ in range(3):
                producer.produce("tx", value=OUTCOMES[turn % 2], partition=partition)
        assert producer.flush(60) == 0  # an abort discards messages that were not sent yet
        (producer.abort_transaction if turn % 2 else producer.commit_transaction)(60)


def entries(data: bytes) -> list[int]:
    """Start positions of the entries of an undamaged log."""
    found, at = [], 0
    while at < len(data):
        found.append(at)
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
    return found


DAMAGED = ("missing tail", "invalid entry")
KINDS = ("cut", "flip", "flips", "zeros", "junk", "hole", "torn", "old", "size", "offset", "version")


def damage(data: bytes, chance: random.Random, kinds: tuple[str, ...]) -> tuple[str, bytes]:
    """A description of the damage, and the damaged bytes."""
    size = len(data)
    somewhere = chance.randrange(size)
    more = chance.randint(1, 9000)
    out = bytearray(data)
    kind = chance.choice(kinds)
    if kind == "cut":
        return f"cut at {somewhere}", data[:somewhere]
    if kind in ("flip", "flips"):
        bits = [chance.randrange(8 * size) for _ in range(1 if kind == "flip" else chance.randint(2, 5))]
        for bit in bits:
            out[bit // 8] ^= 1 << bit % 8
        return f"bits {bits} flipped", bytes(out)
    if kind == "zeros":
        return f"{more} zero bytes added", data + bytes(more)
    if kind == "junk":
        return f"{more} random bytes added", data + chance.randbytes(more)
    if kind == "hole":
        out[somewhere : somewhere + 512] = bytes(len(out[somewhere : somewhere + 512]))
        return f"512 zero bytes from {somewhere} on", bytes(out)
    if kind == "torn":
        return f"cut at {somewhere}, {more} random bytes added", data[:somewhere] + chance.randbytes(more)
    if kind == "old":
        return f"the first {somewhere} bytes added again", data + data[:somewhere]
    entry = chance.choice(entries(data))
    if kind == "size":
        claimed = chance.choice([0, 13, 14, 48, 49, 2**31 - 1, -1, size, chance.randrange(2**31)])
        out[entry + 8 : entry + 12] = struct.pack(">i", claimed)
        return f"the entry at {entry} claims {claimed} bytes", bytes(out)
    if kind == "offset":
        bit = chance.randrange(31)
        out[entry + 7 - bit // 8] ^= 1 << bit % 8
        return f"bit {bit} of the offset at {entry} flipped", bytes(out)
    out[entry + 16] = chance.randrange(256)
    return f"version {out[entry + 16]} at {entry}", bytes(out)


@dataclass
class Damaged:
    """One partition, its damage, and the expected size and end of the last segment that recovery keeps."""

    directory: Path
    file: Path
    outcome: str
    how: str
    size: int
    end: int
    as_written: bool
    """False if the damage changed bytes that no checksum covers, so that consumers may get unreadable messages."""

    @property
    def topic(self) -> str:
        return self.directory.name.rpartition("-")[0]

    @property
    def partition(self) -> int:
        return int(self.directory.name.rpartition("-")[2])


def unflushed(directory: Path) -> list[Path]:
    """The segments that a broker recovers: those from its recovery point on."""
    topic, _, partition = directory.name.rpartition("-")
    checkpoint = directory.parent / "recovery-point-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
    points = {(name, number): int(offset) for name, number, offset in map(str.split, lines)}
    segments = sorted(directory.glob("*.log"))
    point = points.get((topic, partition), 0)
    first = max((number for number, file in enumerate(segments) if int(file.stem) <= point), default=0)
    return segments[first:]


def verified(*files: Path) -> list[dict[str, Any]]:
    return command("log", "verify", *files, "--format", "json").rows


def damaged(directory: Path, scratch: Path, chance: random.Random) -> tuple[str, bool]:
    """Damages the newest segment of a partition, or another segment that the broker had not flushed yet.

    Returns the damage, and whether the valid bytes are as they were written. Damage that gives a segment an impossible
    offset is skipped, because it keeps the broker from starting.
    """
    at_risk = unflushed(directory)
    file = at_risk[-1]
    # The consumers' view of transactions depends on every marker.
    kinds: tuple[str, ...] = ("zeros", "junk") if directory.name.startswith("tx-") else KINDS
    if len(at_risk) > 1 and chance.random() < 0.25:
        file, kinds = at_risk[-2], ("cut", "hole", "torn", "zeros", "junk")
    data = file.read_bytes()
    while True:
        how, content = damage(data, chance, kinds)
        (scratch / file.name).write_bytes(content)
        (found,) = verified(scratch / file.name)
        if found["broker"] != "unknown":
            file.write_bytes(content)
            return f"{file.name}: {how}", data.startswith(content[: found["sound"]])


def messages_in(log: Damaged) -> int:
    """The number of messages that consumers should get from a recovered partition, according to offsetmgr's reader."""
    files = sorted(log.file.parent.glob("*.log"))
    contents = [file.read_bytes()[: log.size if file == log.file else None] for file in files]
    return sum(
        not (batch.transactional and record.value == b"aborted")
        for content in contents
        for batch in batches(content)
        for record in batch.records
    )


def damaged_for_the_broker(directory: Path, scratch: Path, chance: random.Random) -> Damaged:
    how, as_written = damaged(directory, scratch, chance)
    rows = verified(*unflushed(directory))
    row = next((row for row in rows if row["broker"] != "kept" or row["state"] in DAMAGED), rows[-1])
    outcome = row["broker"]
    size = {"kept": row["size"], "cut": row["sound"], "emptied": 0}[outcome]
    end = row["base_offset"] if outcome == "emptied" else row["next_offset"]
    later = " with later segments" if row is not rows[-1] else ""
    return Damaged(directory, Path(row["path"]), outcome + later, how, size, end, as_written)


def damaged_and_recovered(directory: Path, scratch: Path, chance: random.Random) -> Damaged:
    """Damages a log until there is something to truncate, and truncates it in place with ``log recover``."""
    as_written = True
    while True:
        how, now = damaged(directory, scratch, chance)
        as_written = as_written and now
        strict = ["--strict"] * any(row["broker"] == "emptied" for row in verified(*unflushed(directory)))
        before = {file: file.read_bytes() for file in unflushed(directory)}
        done = command("log", "recover", directory, "--in-place", "--execute", "--yes", "--format", "json", *strict)
        (row,) = done.rows
        if row["action"] != "nothing to cut":
            break
    assert (done.code, row["action"]) == (0, "cut"), done.err
    assert "no running broker uses it (seen: no process holds the lock" in done.err
    file, copy = Path(row["path"]), Path(row["copy"])
    assert file.read_bytes() + copy.read_bytes() == before[file]
    behind = [one.with_name(f"{one.name}.cut-from-0") for one in before if one > file]
    assert row["cut"] == sum(kept.stat().st_size for kept in (copy, *behind))
    return Damaged(directory, file, "cut", how, file.stat().st_size, row["next_offset"], as_written)


def await_end(consumer: Consumer, topic: str, partition: int, at_least: int = 0) -> int:
    """The log's end offset, once it is at least `at_least`. A broker that has just started leads no partition yet."""
    deadline = time.monotonic() + 120
    while True:
        try:
            end = int(consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)[1])
        except KafkaException:
            end = -1
        if end >= at_least:
            return end
        assert time.monotonic() < deadline, f"{topic}-{partition} ends at {end}"
        time.sleep(0.05)


def read(bootstrap: str, logs: list[Damaged]) -> dict[tuple[str, int], tuple[int, int]]:
    """The end offset of each log, and the number of messages that consumers get from the logs with `as_written`."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.partition.eof": True, **COMMITTED})
    try:
        ends = {(log.topic, log.partition): await_end(consumer, log.topic, log.partition) for log in logs}
        counts = Counter(dict.fromkeys(ends, 0))
        unread = {(log.topic, log.partition) for log in logs if log.as_written}
        consumer.assign([TopicPartition(*log, 0) for log in unread])
        while unread:
            for message in consumer.consume(1000, timeout=0.1):
                at = str(message.topic()), message.partition() or 0
                error = message.error()
                if error is None:
                    counts[at] += 1
                elif message.topic() is not None:  # an error without a topic concerns a connection
                    assert error.name() == "_PARTITION_EOF", error
                    unread.discard(at)
        return {log: (end, counts[log]) for log, end in ends.items()}
    finally:
        consumer.close()


@pytest.fixture(params=["ZooKeeper", *(["KRaft"] if SOAK else [])])
def broker(request, unique, tmp_path) -> Iterator[KafkaBroker | KraftBroker]:
    """A broker with two log directories."""
    config = {
        "log.dirs": f"{tmp_path / 'broker' / 'data'},{tmp_path / 'broker' / 'second'}",
        "log.index.size.max.bytes": 65536,
        "num.recovery.threads.per.data.dir": 2,
        "transaction.state.log.num.partitions": 1,
    }
    if request.param == "KRaft":
        created: KafkaBroker | KraftBroker = KraftBroker(tmp_path / "broker", config=config)
    else:
        zookeeper = request.getfixturevalue("zookeeper").connect
        config |= {"inter.broker.protocol.version": "2.8", "log.segment.bytes": 16384}  # 4.x requires at least 1 MiB
        created = KafkaBroker(tmp_path / "broker", zookeeper=f"{zookeeper}/{unique}", config=config)
    try:
        yield created.start()
    finally:
        created.kill()


def test_a_broker_keeps_exactly_the_valid_bytes_and_accepts_truncated_segments(broker, make_topic, tmp_path):
    chance = random.Random(SEED)
    topics = ZOOKEEPERS if isinstance(broker, KafkaBroker) else KRAFTS
    partitions = {topic: SHARES[topic] * PARTITIONS for topic in topics}
    for topic, (version, _) in topics.items():
        config = {"message.format.version": version} if version else {}
        make_topic(topic, partitions[topic], bootstrap=broker.bootstrap, config=config)
    produce(broker.bootstrap, partitions, {topic: codecs for topic, (_, codecs) in topics.items()}, chance)
    first, second = broker.directory / "data", broker.directory / "second"

    verifying = command("log", "verify", first)
    assert f"a running broker uses it (seen: process {broker.pid} holds the lock" in verifying.err
    copied = command("log", "recover", first, "--to", second / "copies")
    assert (copied.code, "a running broker uses it" in copied.err) == (1, True)

    make_topic("tx", TRANSACTIONAL, bootstrap=broker.bootstrap)
    produce_in_transactions(broker.bootstrap)

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    for partition in range(TRANSACTIONAL):
        # The last markers are written after the producer's call has returned, or when the broker starts again.
        await_end(consumer, "tx", partition, 4 * TRANSACTIONS)
    consumer.close()

    broker.kill()
    with (second / ".lock").open("r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # as log recover does
        with pytest.raises(SandboxError, match="Failed to acquire lock"):
            broker.start()

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    logs = [damaged_for_the_broker(directory, scratch, chance) for directory in sorted(first.glob("[vt][012x]-*"))]
    ours = [damaged_and_recovered(directory, scratch, chance) for directory in sorted(second.glob("[vt][012x]-*"))]
    (second / ".kafka_cleanshutdown").touch()  # the broker recovers nothing there
    assert len(logs) + len(ours) == sum(partitions.values()) + TRANSACTIONAL
    outcomes = Counter(log.outcome for log in logs)
    sys.stdout.write(f"seed {SEED}: {len(logs)} logs recovered by the broker {dict(outcomes)}, {len(ours)} truncated\n")
    assert len(logs) >= (300 if SOAK and isinstance(broker, KafkaBroker) else PARTITIONS)

    broker.start()
    served = read(broker.bootstrap, [*logs, *ours])

    wrong = []
    for log in [*logs, *ours]:
        newest = max(log.file.parent.glob("*.log"))
        size = newest.stat().st_size if newest == log.file else -1
        end, messages = served[log.topic, log.partition]
        expected = log.size, log.end, messages_in(log) if log.as_written else 0
        if not log.as_written and isinstance(broker, KraftBroker):
            expected = log.size, end, 0  # 4.x may use the offset of an entry near the changed one as the end
        if (size, end, messages) != expected:
            wrong.append(f"{log}: {size} bytes, end {end}, {messages} messages")
    assert wrong == [], "\n".join(wrong)


BAD_FILES = {
    "partition.metadata": ("", "version: 0\n", "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n"),
    "leader-epoch-checkpoint": ("0\n2\n0 0\n", "0\n1\n0\n", "7\n1\n0 0\n"),
}
READ_EPOCHS = ("", "0\n", "0\n0\n")


def test_a_broker_starts_after_the_remedies_for_files_that_it_cannot_read(zookeeper, unique, tmp_path) -> None:
    broker = KafkaBroker(tmp_path / "broker", zookeeper=f"{zookeeper.connect}/{unique}").start()
    logs = broker.directory / "data"
    try:
        create_topic(broker.bootstrap, "t", 4)
        produce(broker.bootstrap, {"t": 4}, {"t": 1}, random.Random(SEED))
        broker.stop()
        for partition, content in enumerate(READ_EPOCHS, 1):
            (logs / f"t-{partition}" / "leader-epoch-checkpoint").write_text(content)
        assert command("log", "verify", logs).code == 0
        for name, contents in BAD_FILES.items():
            for content in contents if SOAK else contents[:1]:
                bad = logs / "t-0" / name
                bad.write_text(content)
                done = command("log", "verify", logs)
                assert (done.code, f"error: {bad}: " in done.err) == (1, True)
                with pytest.raises(SandboxError):
                    broker.start()
                if name == "partition.metadata":  # the remedies that the hints name
                    bad.write_bytes((logs / "t-1" / name).read_bytes())
                else:
                    bad.rename(tmp_path / name)
        broker.start()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        assert all(await_end(consumer, "t", partition, 1) > 0 for partition in range(4))
        consumer.close()
    finally:
        broker.kill()
