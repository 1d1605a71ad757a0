"""Readers of the offsets topic on real brokers: they load and follow raw batches, and find those of other programs."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from claim_writer import ClaimWriter
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import MakeTopic
from log_contract import TIMEOUT_S, numbered, read, read_to
from processes import fails, wait_for
from stopwatch import Stopwatch

from offsetmgr.core.errors import OffsetMgrError, ServerError, TimedOut, UnknownTopicOrPartition, Unreachable
from offsetmgr.manager.log.base import LogClosed, LogRecord
from offsetmgr.manager.log.kafka import KafkaLog, log_load
from offsetmgr.records.base import EncodedRecord
from offsetmgr.sandbox import KafkaBroker, KraftBroker

pytestmark = pytest.mark.servers

Newest = dict[int, dict[bytes, bytes | None]]


@pytest.fixture
def topic(broker: KafkaBroker | KraftBroker, make_topic: MakeTopic, unique: str) -> str:
    config = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    return make_topic(unique, 3, bootstrap=broker.bootstrap, config=config)


@pytest.fixture
def writer(broker: KafkaBroker | KraftBroker, topic: str) -> Iterator[ClaimWriter]:
    with ClaimWriter(broker.bootstrap, topic) as writer:
        yield writer


@contextlib.contextmanager
def log_of(bootstrap: str, topic: str) -> Iterator[KafkaLog]:
    with contextlib.closing(KafkaLog(bootstrap, topic, 3)) as log:
        yield log


@contextlib.contextmanager
def reader_of(bootstrap: str, topic: str) -> Iterator[Any]:
    with log_of(bootstrap, topic) as log, contextlib.closing(log.reader()) as reader:
        yield reader


@pytest.fixture
def log(broker: KafkaBroker | KraftBroker, topic: str) -> Iterator[KafkaLog]:
    with log_of(broker.bootstrap, topic) as log:
        yield log


@pytest.fixture
def reader(log: KafkaLog) -> Iterator[Any]:
    with contextlib.closing(log.reader()) as reader:
        yield reader


def loaded(reader: Any, ends: Mapping[int, int], starts: Mapping[int, int] | None = None) -> Newest:
    newest: Newest = {partition: {} for partition in ends}
    reached = reader.load(starts or dict.fromkeys(ends, 0), ends, newest)
    assert all(reached[partition] >= end for partition, end in ends.items())
    return newest


def alarms(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int]]:
    """The partition and the offset of each batch that was logged as invalid."""
    found = [record.__dict__ for record in caplog.records if "another program wrote" in record.message]
    return [(one["partition"], one["offset"]) for one in found]


def keys_of(records: Sequence[LogRecord]) -> list[bytes]:
    return [record.key for record in records]


def test_a_load_returns_the_newest_values_and_the_progress(writer: ClaimWriter, reader: Any, topic: str) -> None:
    owner = writer.producer(topic)
    ends = {}
    for partition in range(3):
        writer.claim(partition, owner, ids=[1], token=f"token {partition}")
        writer.append(partition, [*numbered(0, 3000), (b"gone", b"1")], owner)
        writer.append(partition, [(b"gone", None), (b"000001", b"new")], owner, codec=1)
        ends[partition] = 1 + 3001 + 2
    passed: list[int] = []

    newest: Newest = {partition: {} for partition in ends}
    reached = reader.load(dict.fromkeys(ends, 0), ends, newest, progress=passed.append)

    assert reached == ends
    right: dict[bytes, bytes | None] = {**dict(numbered(0, 3000)), b"gone": None, b"000001": b"new"}
    assert newest == dict.fromkeys(ends, right)
    assert sum(passed) == sum(ends.values())
    assert reader.invalid_keys == {}


def test_a_position_before_the_log_continues_at_its_start_and_one_after_its_end_is_an_error(
    broker: KafkaBroker | KraftBroker, writer: ClaimWriter, reader: Any, make_topic: MakeTopic, topic: str
) -> None:
    deleted = make_topic(f"{topic}-d", 1, bootstrap=broker.bootstrap)
    with ClaimWriter(broker.bootstrap, deleted) as deleting:
        owner = deleting.producer(deleted)
        deleting.claim(0, owner)
        start = deleting.append(0, numbered(0, 5), owner)
        deleting.claim(0, owner)
        end = deleting.append(0, numbered(5, 7), owner) + 2
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    deletion = admin.delete_records([ck.TopicPartition(deleted, 0, start + 3)])
    assert [future.exception() for future in deletion.values()] == [None]
    with reader_of(broker.bootstrap, deleted) as other:
        assert loaded(other, {0: end}) == {0: dict(numbered(3, 7))}
        other.follow({0: 0})
        assert keys_of(read_to(other, {0: end})) == [key for key, _ in numbered(3, 7)]

    reader.follow({0: 1000})
    with pytest.raises(ServerError, match="truncated, or the topic was recreated"):
        read(reader, 1)
    with pytest.raises(ServerError, match="truncated, or the topic was recreated"):
        reader.load({0: 1000}, {0: 2000}, {0: {}})


def load_beyond_the_end(reader: Any) -> None:
    reader.load({0: 0}, {0: 10}, {0: {}})


def poll_at_the_end(reader: Any) -> None:
    reader.follow({0: 0})
    reader.poll(10, TIMEOUT_S)


@pytest.mark.parametrize("call", [load_beyond_the_end, poll_at_the_end])
def test_a_reader_that_is_closed_ends_its_calls(reader: Any, call: Callable[[Any], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, reader)
        assert not wait([waiting], 0.3).done

        with Stopwatch() as watch:
            reader.close()
            assert isinstance(waiting.exception(TIMEOUT_S), LogClosed)

    assert watch.seconds < TIMEOUT_S / 2
    with pytest.raises(LogClosed):
        call(reader)
    reader.close()


def test_a_stalled_load_fails(reader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_load, "STALL_TIMEOUT_S", 0.5)
    with pytest.raises(TimedOut, match=r"no records arrived for 0\.5 s"):
        reader.load({0: 0}, {0: 10}, {0: {}})


def test_a_deleted_topic_and_missing_brokers_are_errors(broker, reader, topic) -> None:
    with reader_of("127.0.0.1:1", topic) as lost:
        with pytest.raises(Unreachable):
            lost.load({0: 0}, {0: 1}, {0: {}})
        lost.follow({0: 0})
        assert list(lost.poll(10, 0.2)) == []
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    with pytest.raises(UnknownTopicOrPartition):
        reader.load({0: 0}, {0: 1}, {0: {}})
    reader.follow({0: 0})
    with pytest.raises(UnknownTopicOrPartition):
        read(reader, 1)


# --- brokers of their own ----------------------------------------------------------------------------

COMPACTED = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "internal.segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


def test_a_log_that_the_cleaner_has_compacted(tmp_path: Path, make_topic: MakeTopic, unique: str) -> None:
    """Old claims are gone, batches are empty, tombstones are removed, and batches have other timestamps."""
    with KraftBroker(tmp_path, config={"log.cleaner.backoff.ms": 100}) as broker:
        topic = make_topic(unique, 1, bootstrap=broker.bootstrap, config=COMPACTED)
        right: dict[bytes, bytes | None] = {}
        with ClaimWriter(broker.bootstrap, topic) as writer:
            ids: list[int] = []
            for round_ in range(4):
                owner = writer.producer(f"{topic}-{round_ // 2}")
                ids.append(owner.id)
                writer.claim(0, owner, ids=ids, token=f"round {round_}")
                for first in range(0, 500, 50):
                    records: list[EncodedRecord] = [
                        (b"key %04d" % n, b"value %d of round %d" % (n, round_) if (n + round_) % 5 else None)
                        for n in range(first - round_ * 20, first + 50)
                    ]
                    end = writer.append(0, records, owner) + len(records)
                    right |= records
        wait_for(lambda: log_size(tmp_path) < 100_000, "the log is compacted")
        with reader_of(broker.bootstrap, topic) as reader:
            newest = loaded(reader, {0: end})
            found = {key: value for key, value in newest[0].items() if value is not None}
            assert found == {key: value for key, value in right.items() if value is not None}
            assert reader.invalid_keys == {}
            reader.follow({0: 0})
            followed = {record.key: record.value for record in read_to(reader, {0: end})}
            assert {key: value for key, value in followed.items() if value is not None} == found


def log_size(directory: Path) -> int:
    """The bytes of the log of the only topic with one partition."""
    return sum(file.stat().st_size for file in directory.glob("**/*-0/*.log"))


@pytest.mark.matrix
def test_unreplicated_records_are_not_read_and_a_follower_goes_on_at_the_next_leader(zookeeper, tmp_path, unique):
    settings = {
        "transaction.state.log.replication.factor": 1,
        "replica.lag.time.max.ms": 60_000,
        "auto.leader.rebalance.enable": "false",
    }
    chroot = f"{zookeeper.connect}/{unique}"
    sessions_ms = (3000, 60_000)  # the test kills broker 0, and broker 1 must stay in sync while it is frozen
    brokers = [
        KafkaBroker(
            tmp_path / str(n), zookeeper=chroot, broker_id=n, config={**settings, "zookeeper.session.timeout.ms": ms}
        )
        for n, ms in enumerate(sessions_ms)
    ]
    with contextlib.ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.kill)
            broker.start()
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        wait_for(lambda: len(admin.list_topics(timeout=60).brokers) == 2, "both brokers are known")
        new = NewTopic(unique, num_partitions=1, replica_assignment=[[0, 1]], config={"cleanup.policy": "compact"})
        admin.create_topics([new])[unique].result(TIMEOUT_S)

        def leader() -> int | None:
            partitions = admin.list_topics(unique, timeout=60).topics[unique].partitions
            return partitions[0].leader if partitions else None

        wait_for(lambda: leader() == 0, "broker 0 leads")
        reader = stack.enter_context(reader_of(bootstrap, unique))
        writer = stack.enter_context(ClaimWriter(bootstrap, unique))
        owner = writer.producer(unique)
        writer.claim(0, owner)
        start = writer.append(0, [(b"whole", b"1")], owner)
        reader.follow({0: 0})
        assert keys_of(read(reader, 1)) == [b"whole"]

        brokers[1].freeze()
        end = writer.append(0, [(b"leader only", b"1")], owner, acks=1) + 1
        assert list(reader.poll(10, 2)) == []
        assert reader.position(0) == start + 1
        brokers[1].thaw()
        assert keys_of(read(reader, 1)) == [b"leader only"]
        assert reader.position(0) == end

        brokers[0].kill()
        append = partial(writer.append, 0, [(b"next leader", b"1")], owner, acks=1)
        wait_for(lambda: not fails((OffsetMgrError, AssertionError), append), "broker 1 leads")
        assert keys_of(read(reader, 1)) == [b"next leader"]
        newest = loaded(reader, {0: end + 1})
        assert set(newest[0]) == {b"whole", b"leader only", b"next leader"}


@pytest.fixture(autouse=True)
def no_debug_output(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
