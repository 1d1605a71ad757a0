"""A byte of the offsets topic changed on a broker's disk: the shard is not served, and its error names the cause."""

import logging
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from backend_listeners import ManagerListener
from blocking_writer import claimed
from conftest import MakeTopic
from memory_listener import FETCH, WireClient, commit_errors

from offsetmgr.core.errors import CoordinatorLoadInProgress, ErrorCode
from offsetmgr.manager.log.base import CorruptRecords
from offsetmgr.manager.log.kafka import KafkaLog
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers

RETRIABLE = {14, 15, 16}
OFFSET = 0x0102_0304_0506_0708
"""Eight bytes that occur only once in the log."""


def exchange(listener: ManagerListener, group: str, offset: int | None) -> tuple[int, int]:
    """Commits, or fetches where ``offset`` is None; error code and offset."""
    with WireClient(listener.port) as client:
        if offset is not None:
            return next(iter(commit_errors(client.commit(group, {("orders", 0): offset})).values())), offset
        topics = [{"name": "orders", "partition_indexes": [0]}]
        answer = client.ask(FETCH, 5, {"group_id": group, "topics": topics})
        part = answer["topics"][0]["partitions"][0] if answer["topics"] else {"error_code": 0}
        return answer["error_code"] or part["error_code"], part.get("committed_offset", -1)


def until_served(listener: ManagerListener, group: str, offset: int, *, commit: bool = False) -> None:
    """Repeats a fetch, which has to find the offset, or its commit while the errors are retriable."""
    deadline = time.monotonic() + 120
    while (found := exchange(listener, group, offset if commit else None))[0] in RETRIABLE:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    assert found == (0, offset)


@contextmanager
def damaged(kafka: KafkaBroker, topic: str, partition: int, data: bytes) -> Iterator[None]:
    """Flips a bit in the last byte of ``data`` on the broker's disk, and flips it back at the end."""
    file = kafka.directory / "data" / f"{topic}-{partition}" / f"{0:020}.log"
    at = file.read_bytes().index(data) + len(data) - 1

    def flip() -> None:
        with file.open("r+b") as log:
            log.seek(at)
            before = log.read(1)[0]
            log.seek(at)
            log.write(bytes([before ^ 1]))

    flip()
    try:
        yield
    finally:
        flip()


def test_a_shard_with_a_damaged_record_is_not_served(kafka: KafkaBroker, unique: str, caplog) -> None:
    names = [f"{unique}-{n}" for n in range(50)]
    affected, later = [name for name in names if shard_for(name, 2) == 0][:2]
    intact = next(name for name in names if shard_for(name, 2) == 1)

    def manager() -> ManagerListener:
        return ManagerListener(kafka.bootstrap, unique, partitions=2, replication_factor=1, record_format="kafka")

    with manager() as listener:
        until_served(listener, affected, OFFSET, commit=True)
        until_served(listener, intact, 7, commit=True)
        until_served(listener, later, 8, commit=True)  # a later record must not make the load look complete
    with damaged(kafka, unique, 0, struct.pack(">q", OFFSET)), manager() as listener:
        until_served(listener, intact, 7)
        deadline = time.monotonic() + 120
        while (found := exchange(listener, affected, None)) != (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1):
            assert found[0] in RETRIABLE, f"a shard with a damaged record served {found}"
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        page = listener.process._readiness()
        assert page.status == 503
        assert f"{unique}-0: the record batch at offset" in page.body.decode()
        errors = [r for r in caplog.records if r.levelno == logging.ERROR and "its log is damaged" in r.message]
        assert f"{unique}-0: the record batch at offset" in errors[0].__dict__["why"]
        with pytest.raises(CoordinatorLoadInProgress):
            listener.process.dump(0, None, 100)  # `manager dump` prints no partial shard
        assert exchange(listener, affected, 9)[0] in RETRIABLE, "no commit is accepted after a damaged record"
    with manager() as listener:
        until_served(listener, affected, OFFSET)


@pytest.mark.parametrize("which", [1, 3])
def test_no_reader_skips_a_damaged_batch(kafka: KafkaBroker, make_topic: MakeTopic, unique: str, which: int) -> None:
    """The damaged batch is in the middle of the log or at its end. The other partition stays readable."""
    log = KafkaLog(kafka.bootstrap, make_topic(unique, 2), 2)
    writers = [claimed(log, shard_group) for shard_group in range(2)]
    for shard_group, writer in enumerate(writers):
        for number in range(4):
            writer.append({shard_group: [(b"key", f"value {number}".encode())]}, 30)
    ends = log.end_offsets([0, 1], 30)
    newest: Mapping[int, dict[bytes, bytes | None]] = {0: {}, 1: {}}
    with damaged(kafka, unique, 0, f"value {which}".encode()):
        with pytest.raises(CorruptRecords, match=f"{unique}-0: the record batch at offset") as raised:
            log.reader().load({0: 0, 1: 0}, ends, newest)
        assert newest[0].get(b"key") != f"value {which}".encode()
        reader = log.reader()
        reader.follow({0: 0})
        seen: list[bytes | None] = []
        with pytest.raises(CorruptRecords):
            while True:
                seen += [record.value for record in reader.poll(100, 1)]
        with pytest.raises(CorruptRecords):
            reader.poll(100, 1)
        assert seen == [f"value {number}".encode() for number in range(len(seen))]
        assert len(seen) <= which
        assert reader.position(0) <= raised.value.offset
        reader.close()
        assert log.reader().load({1: 0}, {1: ends[1]}, newest)[1] >= ends[1]
    log.reader().load({0: 0}, {0: ends[0]}, newest)
    assert newest == {0: {b"key": b"value 3"}, 1: {b"key": b"value 3"}}
    for writer in writers:
        writer.close()
    log.close()
