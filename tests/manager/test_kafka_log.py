"""`KafkaLog` on real brokers: the contract of `PartitionLog`, and cases that only a real broker can produce."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest
from blocking_writer import BlockingWriter, claimed
from confluent_kafka.admin import AdminClient
from log_contract import PARTITIONS, TIMEOUT_S, LogContract, read_to
from processes import delete_topic, fails, set_topic, wait_for
from stopwatch import Stopwatch

from offsetmgr.core.errors import OffsetMgrError, TimedOut, Unreachable
from offsetmgr.manager.log.base import AppendRejected, Fenced, OutcomeUnknown, PartitionLog, TooLarge
from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.manager.log.kafka.topic_admin import ensure_topic
from offsetmgr.sandbox import KafkaBroker, KraftBroker

pytestmark = pytest.mark.servers

UNUSED_PORT = "127.0.0.1:1"


def admin_of(cluster: KafkaLog | KafkaBroker | KraftBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def open_log(bootstrap: str, topic: str) -> KafkaLog:
    return KafkaLog(bootstrap, topic, ensure_topic(bootstrap, {}, topic, partitions=PARTITIONS).partitions)


class TestKafkaLog(LogContract):
    @pytest.fixture
    def log(self, broker: KafkaBroker | KraftBroker, unique: str) -> Iterator[KafkaLog]:
        log = open_log(broker.bootstrap, unique)
        yield log
        log.close()

    def recreate(self, log: PartitionLog) -> None:
        assert isinstance(log, KafkaLog)
        delete_topic(admin_of(log), log.topic)
        wait_for(lambda: open_log(log.bootstrap, log.topic), "the topic is recreated")

    def test_a_claim_ends_the_append_of_a_process_that_was_killed_in_the_middle(self, log, broker) -> None:
        """A process is killed during an endless series of appends; readers get only complete batches."""
        code = f"""
            from offsetmgr.manager.log.kafka import KafkaLog
            from blocking_writer import claimed
            writer = claimed(KafkaLog({broker.bootstrap!r}, {log.topic!r}, {PARTITIONS}), 1)
            number = 0
            while True:
                records = [(b"%06d" % number, b"x" * 200)] * 500
                writer.append({{1: records, 9: records}}, 20)
                print(number, flush=True)
                number += 1
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(10):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        process.wait()

        successor = claimed(log, 1)

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

    def test_a_batch_that_the_broker_rejects_as_too_large_leaves_the_writer_usable(self, log, broker) -> None:
        set_topic(admin_of(broker), log.topic, {"max.message.bytes": "5000"})
        writer = claimed(log, 1)
        batch = {9: [(b"big", b"x" * 9000)]}
        wait_for(lambda: fails(TooLarge, writer.append, batch, TIMEOUT_S), "the leader has the new limit")

        last = writer.append({1: [(b"small", b"2")]}, TIMEOUT_S)

        claimed(log, 1)
        newest: dict[int, dict[bytes, bytes | None]] = {1: {}, 9: {}}
        log.reader().load({1: last[1], 9: 0}, log.end_offsets([1, 9], TIMEOUT_S), newest)
        assert newest[1] == {b"small": b"2"}

    def test_an_append_to_a_deleted_topic_fails(self, log: KafkaLog, broker: KafkaBroker | KraftBroker) -> None:
        writer = claimed(log, 1)
        delete_topic(admin_of(broker), log.topic)

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
    writer = claimed(log, 1)
    last = writer.append({1: [(b"k", b"v")]}, TIMEOUT_S)
    delete_topic(admin_of(kraft), unique)
    wait_for(lambda: open_log(kraft.bootstrap, unique), "the topic is recreated")

    with pytest.raises(TimedOut):  # the last attempt may end without an answer
        log.end_offsets([1], 3)
    assert open_log(kraft.bootstrap, unique).end_offsets([1], TIMEOUT_S)[1] <= last[1]


def test_a_fenced_writer_cannot_claim_again(kraft: KraftBroker, unique: str) -> None:
    log = open_log(kraft.bootstrap, unique)
    first = claimed(log, 1)
    claimed(log, 1)
    for call in (lambda: first.append({1: [(b"k", b"v")]}, TIMEOUT_S), lambda: first.claim(TIMEOUT_S)):
        with pytest.raises(Fenced):
            call()


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
