"""`KafkaLog` on real brokers: the contract of `PartitionLog`, and cases that only a real broker can produce."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from stopwatch import Stopwatch

from offsetmgr.core.errors import OffsetMgrError, ServerError, TimedOut, Unreachable
from offsetmgr.manager.log.base import AppendRejected, Fenced, OutcomeUnknown, PartitionLog, TooLarge
from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.manager.log.kafka.topic_admin import ensure_topic
from offsetmgr.records.base import EncodedRecord
from offsetmgr.sandbox import KafkaBroker, KraftBroker

pytest.register_assert_rewrite("offsetmgr.testing")

from offsetmgr.testing.blocking_writer import BlockingWriter  # noqa: E402
from offsetmgr.testing.log_contract import LogContract  # noqa: E402
from offsetmgr.testing.log_read_contract import PARTITIONS, TIMEOUT_S, numbered, read, read_to  # noqa: E402

pytestmark = pytest.mark.servers

UNUSED_PORT = "127.0.0.1:1"


def open_log(bootstrap: str, topic: str) -> KafkaLog:
    return KafkaLog(bootstrap, topic, ensure_topic(bootstrap, {}, topic, partitions=PARTITIONS).partitions)


class TestKafkaLog(LogContract):
    @pytest.fixture(params=["kafka", "kraft"])
    def broker(self, request: pytest.FixtureRequest) -> KafkaBroker | KraftBroker:
        found: KafkaBroker | KraftBroker = request.getfixturevalue(request.param)
        return found

    @pytest.fixture
    def log(self, broker: KafkaBroker | KraftBroker, unique: str) -> Iterator[KafkaLog]:
        log = open_log(broker.bootstrap, unique)
        yield log
        log.close()

    def recreate(self, log: PartitionLog) -> None:
        assert isinstance(log, KafkaLog)
        delete_topic(log.bootstrap, log.topic)
        assert eventually(lambda: open_log(log.bootstrap, log.topic))

    def test_a_claim_ends_the_append_of_a_process_that_was_killed_in_the_middle(
        self, log: KafkaLog, broker: KafkaBroker | KraftBroker
    ) -> None:
        """A process is killed during an endless series of appends; readers get only complete batches."""
        code = f"""
            from offsetmgr.manager.log.kafka import KafkaLog
            from offsetmgr.testing.blocking_writer import BlockingWriter  # noqa: E402
            writer = BlockingWriter(KafkaLog({broker.bootstrap!r}, {log.topic!r}, {PARTITIONS}).writer(1))
            writer.claim(20)
            number = 0
            while True:
                records = [(b"%06d" % number, b"x" * 200)] * 500
                writer.append({{1: records, 9: records}}, 20)
                print(number, flush=True)
                number += 1
        """
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(10):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        process.wait()

        successor = BlockingWriter(log.writer(1))
        successor.claim(TIMEOUT_S)

        ends = log.end_offsets([1, 9], TIMEOUT_S)
        reader = log.reader()
        reader.follow({1: 0, 9: 0})
        records = read_to(reader, ends)
        reader.close()
        successor.close()
        counts = {p: [0] * (acknowledged + 3) for p in (1, 9)}
        for record in records:
            counts[record.partition][int(record.key)] += 1
        for found in counts.values():
            assert found[: acknowledged + 1] == [500] * (acknowledged + 1)
            assert found[acknowledged + 1] in (0, 500)
            assert found[acknowledged + 2] == 0

    def test_a_batch_that_the_broker_rejects_as_too_large_leaves_the_writer_usable(
        self, log: KafkaLog, broker: KafkaBroker | KraftBroker
    ) -> None:
        set_topic(broker.bootstrap, log.topic, {"max.message.bytes": "5000"})
        writer = BlockingWriter(log.writer(1))
        writer.claim(TIMEOUT_S)
        assert eventually(lambda: is_rejected_as_too_large(writer.append, {9: [(b"big", b"x" * 9000)]}))

        last = writer.append({1: [(b"small", b"2")]}, TIMEOUT_S)

        BlockingWriter(log.writer(1)).claim(TIMEOUT_S)
        newest: dict[int, dict[bytes, bytes | None]] = {1: {}, 9: {}}
        log.reader().load({1: last[1], 9: 0}, log.end_offsets([1, 9], TIMEOUT_S), newest)
        assert newest[1] == {b"small": b"2"}

    def test_a_batch_above_the_size_limit_is_rejected_before_it_is_sent(
        self, broker: KafkaBroker | KraftBroker, unique: str
    ) -> None:
        state = ensure_topic(broker.bootstrap, {}, unique, partitions=1)
        log = KafkaLog(broker.bootstrap, unique, state.partitions, max_message_bytes=5_000)
        writer = BlockingWriter(log.writer(0))
        writer.claim(TIMEOUT_S)

        with pytest.raises(TooLarge, match="allowed are 5000"):
            writer.append({0: numbered(0, 2000)}, TIMEOUT_S)

        writer.append({0: numbered(0, 100)}, TIMEOUT_S)
        newest: dict[int, dict[bytes, bytes | None]] = {0: {}}
        log.reader().load({0: 0}, log.end_offsets([0], TIMEOUT_S), newest)
        assert newest == {0: dict(numbered(0, 100))}

    def test_a_reader_skips_records_that_were_deleted_after_its_start_offset(
        self, log: KafkaLog, broker: KafkaBroker | KraftBroker
    ) -> None:
        writer = BlockingWriter(log.writer(1))
        writer.claim(TIMEOUT_S)
        offsets = [writer.append({1: [(b"%d" % number, b"v")]}, TIMEOUT_S)[1] for number in range(4)]
        # Brokers delete records only in topics with cleanup.policy=delete, so the test sets it for a moment.
        set_topic(broker.bootstrap, log.topic, {"cleanup.policy": "delete"})
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        up_to = [ck.TopicPartition(log.topic, 1, offsets[2])]
        assert eventually(lambda: [f.exception() for f in admin.delete_records(up_to).values()] == [None])
        writer.claim(TIMEOUT_S)  # the first claim is among the deleted records
        ends = log.end_offsets([1], TIMEOUT_S)
        newest: dict[int, dict[bytes, bytes | None]] = {1: {}}

        reached = log.reader().load({1: 0}, ends, newest)

        reader = log.reader()
        reader.follow({1: 0})
        followed = read_to(reader, ends)
        reader.close()
        assert log.start_offsets([1], TIMEOUT_S) == {1: offsets[2]}
        assert newest == {1: {b"2": b"v", b"3": b"v"}}
        assert [record.key for record in followed] == [b"2", b"3"]
        assert reached == ends

    def test_a_position_beyond_the_end_of_the_log_is_an_error(self, log: KafkaLog) -> None:
        reader = log.reader()
        reader.follow({1: 1000})

        with pytest.raises(ServerError, match="truncated, or the topic was recreated"):
            read(reader, 1)
        reader.close()

    def test_an_append_to_a_deleted_topic_fails(self, log: KafkaLog, broker: KafkaBroker | KraftBroker) -> None:
        writer = BlockingWriter(log.writer(1))
        writer.claim(TIMEOUT_S)
        delete_topic(broker.bootstrap, log.topic)

        # A broker that has lost a partition may have appended the batch before, so the outcome may be unknown.
        with Stopwatch() as watch, pytest.raises((AppendRejected, OutcomeUnknown)):
            writer.append({1: [(b"k", b"v")]}, 2)

        assert watch.seconds < 20
        assert (
            log.topic not in AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=TIMEOUT_S).topics
        )


def test_without_brokers_every_call_ends_within_its_timeout() -> None:
    log = KafkaLog(UNUSED_PORT, "nowhere", PARTITIONS)
    writer, reader = BlockingWriter(log.writer(0)), log.reader()

    assert raised_within(15, lambda: writer.claim(1)) in (TimedOut, Unreachable)
    assert raised_within(15, lambda: log.end_offsets([0], 1)) in (TimedOut, Unreachable)
    assert raised_within(10, writer.close) is None
    reader.follow({0: 0})
    assert list(reader.poll(10, 0.2)) == []
    assert raised_within(10, reader.close) is None


def test_an_end_offset_below_an_acknowledged_append_is_not_returned(kraft: KraftBroker, unique: str) -> None:
    log = open_log(kraft.bootstrap, unique)
    writer = BlockingWriter(log.writer(1))
    writer.claim(TIMEOUT_S)
    last = writer.append({1: [(b"k", b"v")]}, TIMEOUT_S)
    delete_topic(kraft.bootstrap, unique)
    assert eventually(lambda: open_log(kraft.bootstrap, unique))

    with pytest.raises(TimedOut):  # the last attempt may end without an answer
        log.end_offsets([1], 3)
    assert open_log(kraft.bootstrap, unique).end_offsets([1], TIMEOUT_S)[1] <= last[1]


def test_an_append_before_the_claim_is_an_error(kraft: KraftBroker, unique: str) -> None:
    log = open_log(kraft.bootstrap, unique)
    with pytest.raises(ValueError, match="append before claim"):
        BlockingWriter(log.writer(1)).append({1: [(b"k", b"v")]}, TIMEOUT_S)


def test_a_fenced_writer_cannot_claim_again(kraft: KraftBroker, unique: str) -> None:
    log = open_log(kraft.bootstrap, unique)
    first, second = BlockingWriter(log.writer(1)), BlockingWriter(log.writer(1))
    first.claim(TIMEOUT_S)
    second.claim(TIMEOUT_S)
    with pytest.raises(Fenced):
        first.append({1: [(b"k", b"v")]}, TIMEOUT_S)
    with pytest.raises(Fenced):
        first.claim(TIMEOUT_S)


def raised_within(seconds: float, call: Callable[..., object]) -> type[OffsetMgrError] | None:
    """The class of the error that a call raises, or None. Fails if the call takes longer than ``seconds``."""
    error: type[OffsetMgrError] | None = None
    with Stopwatch() as watch:
        try:
            call()
        except OffsetMgrError as raised:
            error = type(raised)
    assert watch.seconds < seconds
    return error


def is_rejected_as_too_large(append: Callable[..., object], batches: Mapping[int, Sequence[EncodedRecord]]) -> bool:
    try:
        append(batches, TIMEOUT_S)
    except TooLarge:
        return True
    return False


def eventually(condition: Callable[..., object]) -> bool:
    """Whether a condition becomes true within the timeout: new topic settings reach the leader with a delay."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def delete_topic(bootstrap: str, topic: str) -> None:
    """Deletes a topic and waits until it is gone from the broker's metadata, which a KRaft broker updates after the
    controller has responded."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert eventually(lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics)


def set_topic(bootstrap: str, topic: str, settings: Mapping[str, str]) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in settings.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)
