"""`LogReadContract`: the tests of a log's readers, which are a part of `LogContract`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import pytest

from offsetmgr.manager.log.base import (
    LogClosed,
    LogReader,
    LogRecord,
    PartitionLog,
    TooLarge,
)
from offsetmgr.records.base import EncodedRecord
from offsetmgr.testing.blocking_writer import BlockingWriter

Claimer: TypeAlias = Callable[[int], BlockingWriter]
"""A function that claims a shard group, and returns its writer."""

PARTITIONS = 10

TIMEOUT_S = 20.0
"""Seconds after which a test fails if an expected event has not happened."""


def numbered(first: int, end: int) -> list[EncodedRecord]:
    """Returns records whose keys are the numbers from ``first`` up to, but not including, ``end``."""
    return [(b"%06d" % number, b"value %d" % number) for number in range(first, end)]


def read(reader: LogReader, count: int) -> list[LogRecord]:
    """Reads until there are at least ``count`` records, and returns them."""
    records: list[LogRecord] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records after {TIMEOUT_S:g} s"
        records += reader.poll(1000, 1)
    return records


def read_to(reader: LogReader, ends: Mapping[int, int]) -> list[LogRecord]:
    """Reads until the reader has reached the position in ``ends`` in each partition, and returns the records."""
    records: list[LogRecord] = []
    deadline = time.monotonic() + TIMEOUT_S
    while any(reader.position(partition) < end for partition, end in ends.items()):
        assert time.monotonic() < deadline, f"not at {ends} after {TIMEOUT_S:g} s"
        records += reader.poll(1000, 1)
    return records


class LogReadContract:
    """The tests of loading a log and of following its new records."""

    too_large = 2_000_000
    """The size in bytes of a single value that the log always rejects."""

    @pytest.fixture
    def log(self) -> PartitionLog | Iterator[PartitionLog]:
        """A new, empty log of `PARTITIONS` partitions. The overriding fixture closes the log after the test."""
        raise NotImplementedError("override the fixture `log`")

    @pytest.fixture
    def reader(self, log: PartitionLog) -> Iterator[LogReader]:
        reader = log.reader()
        yield reader
        reader.close()

    @pytest.fixture
    def claim(self, log: PartitionLog) -> Iterator[Claimer]:
        """A function that creates a writer and claims a shard group with it. The fixture closes the writers after the
        test."""
        writers: list[BlockingWriter] = []

        def claim(shard_group: int) -> BlockingWriter:
            writer = BlockingWriter(log.writer(shard_group))
            writers.append(writer)
            writer.claim(TIMEOUT_S)
            return writer

        yield claim
        for writer in writers:
            writer.close()

    # --- loading ------------------------------------------------------------------------------------

    def test_load_keeps_the_newest_value_of_each_key_and_tombstones(
        self, log: PartitionLog, claim: Claimer, reader: LogReader
    ) -> None:
        writer = claim(0)
        writer.append({0: [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")], 8: [(b"a", b"8")]}, TIMEOUT_S)
        writer.append({0: [(b"b", None), (b"c", None), (b"c", b"1")]}, TIMEOUT_S)
        claim(0)
        ends = log.end_offsets([0, 8, 2], TIMEOUT_S)
        newest: dict[int, dict[bytes, bytes | None]] = {0: {}, 8: {}, 2: {}}
        passed: list[int] = []

        reached = reader.load({0: 0, 8: 0, 2: 0}, ends, newest, progress=passed.append)

        assert newest == {0: {b"a": b"2", b"b": None, b"c": b"1"}, 8: {b"a": b"8"}, 2: {}}
        assert all(reached[partition] >= end for partition, end in ends.items())
        assert sum(passed) == sum(reached.values())

    def test_load_begins_at_the_given_offset(self, log: PartitionLog, claim: Claimer, reader: LogReader) -> None:
        writer = claim(1)
        start = writer.append({1: [(b"old", b"1"), (b"both", b"1")]}, TIMEOUT_S)[1] + 1
        writer.append({1: [(b"both", b"2"), (b"new", b"2")]}, TIMEOUT_S)
        claim(1)
        newest: dict[int, dict[bytes, bytes | None]] = {1: {b"both": b"1"}}

        reader.load({1: start}, log.end_offsets([1], TIMEOUT_S), newest)

        assert newest == {1: {b"both": b"2", b"new": b"2"}}

    def test_a_load_up_to_the_start_reads_nothing(self, log: PartitionLog, reader: LogReader) -> None:
        newest: dict[int, dict[bytes, bytes | None]] = {1: {}}

        assert reader.load({1: 0}, log.end_offsets([1], TIMEOUT_S), newest) == {1: 0}
        assert newest == {1: {}}

    def test_a_stopped_load_returns_the_position_that_it_reached(self, claim: Claimer, reader: LogReader) -> None:
        ends = claim(1).append({1: numbered(0, 10)}, TIMEOUT_S)

        reached = reader.load({1: 0}, {1: ends[1] + 1}, {1: {}}, stopped=lambda: True)

        assert reached == {1: 0}

    # --- following ----------------------------------------------------------------------------------

    def test_poll_without_new_records_waits_and_returns_nothing(self, reader: LogReader) -> None:
        reader.follow({1: 0, 9: 0})

        assert list(reader.poll(10, 0.05)) == []
        assert reader.position(1) == 0

    def test_poll_returns_records_that_are_appended_while_it_waits(self, claim: Claimer, reader: LogReader) -> None:
        writer = claim(1)
        reader.follow({1: 0, 9: 0})
        read_to(reader, {1: 0, 9: 0})

        appending = threading.Thread(target=writer.append, args=({9: [(b"k", b"v")]}, TIMEOUT_S))
        appending.start()
        records = read(reader, 1)
        appending.join()

        assert [(record.partition, record.key) for record in records] == [(9, b"k")]

    def test_poll_returns_at_most_the_requested_number_and_loses_nothing(
        self, claim: Claimer, reader: LogReader
    ) -> None:
        claim(0).append({0: numbered(0, 30), 8: numbered(0, 30)}, TIMEOUT_S)
        reader.follow({0: 0, 8: 0})
        got: list[LogRecord] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(got) < 60 and time.monotonic() < deadline:
            some = reader.poll(7, 1)
            assert len(some) <= 7
            got += some

        for partition in (0, 8):
            assert [r.key for r in got if r.partition == partition] == [key for key, _ in numbered(0, 30)]

    def test_the_position_passes_claims_and_gaps_up_to_the_end(
        self, log: PartitionLog, claim: Claimer, reader: LogReader
    ) -> None:
        writer = claim(1)
        reader.follow({1: 0, 9: 0})
        for number in range(3):
            writer.append({1: [(b"k", b"%d" % number)]}, TIMEOUT_S)
        with pytest.raises(TooLarge):
            writer.append({1: [(b"k", b"small")], 9: [(b"k", b"x" * self.too_large)]}, TIMEOUT_S)
        claim(1)
        ends = log.end_offsets([1, 9], TIMEOUT_S)

        records = read_to(reader, ends)

        assert [record.value for record in records] == [b"0", b"1", b"2", b"small"]
        assert {partition: reader.position(partition) for partition in ends} == ends

    def test_following_other_partitions_keeps_the_positions_of_the_rest(
        self, claim: Claimer, reader: LogReader
    ) -> None:
        one, two = claim(1), claim(2)
        one.append({1: numbered(0, 5)}, TIMEOUT_S)
        reader.follow({1: 0})
        first = read(reader, 5)
        two.append({2: numbered(0, 5)}, TIMEOUT_S)
        one.append({1: numbered(5, 10)}, TIMEOUT_S)

        reader.follow({1: reader.position(1), 2: 0})
        second = read(reader, 10)
        reader.follow({2: reader.position(2)})
        one.append({1: numbered(10, 15)}, TIMEOUT_S)
        two.append({2: numbered(5, 10)}, TIMEOUT_S)
        third = read(reader, 5)

        assert [r.key for r in first] == [key for key, _ in numbered(0, 5)]
        assert [r.key for r in second if r.partition == 1] == [key for key, _ in numbered(5, 10)]
        assert [r.key for r in second if r.partition == 2] == [key for key, _ in numbered(0, 5)]
        assert [(r.partition, r.key) for r in third] == [(2, key) for key, _ in numbered(5, 10)]

    def test_following_from_another_offset_reads_from_there(self, claim: Claimer, reader: LogReader) -> None:
        last = claim(1).append({1: numbered(0, 5)}, TIMEOUT_S)[1]
        reader.follow({1: 0})
        read(reader, 5)

        reader.follow({1: last - 1})

        assert [record.key for record in read(reader, 2)] == [key for key, _ in numbered(3, 5)]

    def test_closing_a_reader_ends_the_poll_of_another_thread(self, log: PartitionLog) -> None:
        reader = log.reader()
        reader.follow({1: 0})
        polling, ended = threading.Event(), threading.Event()

        def poll() -> None:
            try:
                while True:
                    polling.set()
                    reader.poll(10, TIMEOUT_S)
            except LogClosed:
                ended.set()

        thread = threading.Thread(target=poll)
        thread.start()
        assert polling.wait(TIMEOUT_S)

        reader.close()

        assert ended.wait(TIMEOUT_S / 2)
        thread.join()
        reader.close()

    def all_of(self, log: PartitionLog, reader: LogReader, partition: int) -> list[LogRecord]:
        """Returns all readable records of a partition."""
        reader.follow({partition: 0})
        found = list(read_to(reader, log.end_offsets([partition], TIMEOUT_S)))
        return found + [record for record in reader.poll(1000, 0.2) if record.partition == partition]
