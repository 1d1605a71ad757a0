"""`LogContract`: the guarantees that every implementation of `PartitionLog` gives, as tests.

The tests of an implementation are a subclass that overrides the fixture ``log`` and `LogContract.recreate`. Each test
uses a new, empty log of ten partitions. Shard groups 0 and 1 have two partitions each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import pytest
from blocking_writer import BlockingWriter, claimed

from offsetmgr.manager.log.base import Fenced, LogClosed, LogReader, LogRecord, PartitionLog, TooLarge, partitions_of
from offsetmgr.records.base import EncodedRecord

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


class LogContract:
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
        """A function that claims a shard group. The fixture closes the writers after the test."""
        writers: list[BlockingWriter] = []

        def claim(shard_group: int) -> BlockingWriter:
            writers.append(claimed(log, shard_group, TIMEOUT_S))
            return writers[-1]

        yield claim
        for writer in writers:
            writer.close()

    # --- appending ----------------------------------------------------------------------------------

    def test_an_empty_log_begins_and_ends_at_zero(self, log: PartitionLog) -> None:
        everywhere = list(range(PARTITIONS))

        assert log.partitions == PARTITIONS
        assert dict(log.start_offsets(everywhere, TIMEOUT_S)) == dict.fromkeys(everywhere, 0)
        assert dict(log.end_offsets(everywhere, TIMEOUT_S)) == dict.fromkeys(everywhere, 0)

    def test_appended_records_are_read_with_keys_values_and_tombstones(self, claim: Claimer, reader: LogReader) -> None:
        ends = claim(1).append({1: [(b"a", b"1"), (b"empty", b"")], 9: [(b"gone", None)]}, TIMEOUT_S)

        reader.follow({1: 0, 9: 0})
        records = read(reader, 3)
        assert {(r.partition, r.offset, r.key, r.value) for r in records} == {
            (1, ends[1] - 1, b"a", b"1"),
            (1, ends[1], b"empty", b""),
            (9, ends[9], b"gone", None),
        }

    def test_the_records_of_an_append_are_consecutive_and_the_last_offset_is_returned(self, claim, reader) -> None:
        writer = claim(0)
        reader.follow({0: 0, 8: 0})

        first = writer.append({0: numbered(0, 40), 8: numbered(0, 3)}, TIMEOUT_S)
        second = writer.append({0: numbered(40, 60)}, TIMEOUT_S)

        records = [r for r in read(reader, 63) if r.partition == 0]
        assert [record.key for record in records] == [key for key, _ in numbered(0, 60)]
        assert [record.offset for record in records[:40]] == list(range(first[0] - 39, first[0] + 1))
        assert [record.offset for record in records[40:]] == list(range(second[0] - 19, second[0] + 1))
        assert second[0] - 19 > first[0]

    def test_a_large_append_over_all_partitions_of_a_shard_group(self, claim: Claimer, reader: LogReader) -> None:
        batches = {partition: numbered(0, 2500) for partition in partitions_of(1, PARTITIONS)}

        ends = claim(1).append(batches, TIMEOUT_S)

        newest: dict[int, dict[bytes, bytes | None]] = {partition: {} for partition in batches}
        reader.load(dict.fromkeys(batches, 0), {p: end + 1 for p, end in ends.items()}, newest)
        assert newest == {partition: dict(records) for partition, records in batches.items()}

    def test_only_a_batch_that_is_too_large_is_rejected_and_the_writer_continues(self, log, claim, reader) -> None:
        writer = claim(1)
        with pytest.raises(TooLarge):
            writer.append({1: [(b"small", b"1")], 9: [(b"big", b"x" * self.too_large)]}, TIMEOUT_S)

        writer.append({1: [(b"next", b"2")]}, TIMEOUT_S)

        assert [record.key for record in self.all_of(log, reader, 1)] == [b"small", b"next"]
        assert self.all_of(log, reader, 9) == []

    def test_closing_a_writer_is_quiet_and_final(self, claim: Claimer) -> None:
        writer = claim(2)

        writer.close()
        writer.close()

        with pytest.raises(LogClosed):
            writer.append({2: [(b"k", b"v")]}, TIMEOUT_S)

    # --- identity of the log -------------------------------------------------------------------------

    def recreate(self, log: PartitionLog) -> None:
        """Deletes the log and creates an empty one under the same name."""
        raise NotImplementedError("override `recreate`")

    def test_its_generation_stays_until_it_is_recreated(self, log: PartitionLog, claim: Claimer) -> None:
        before = log.generation(TIMEOUT_S)
        claim(1).append({1: numbered(0, 5)}, TIMEOUT_S)
        assert log.generation(TIMEOUT_S) == before

        self.recreate(log)

        after = log.generation(TIMEOUT_S)
        assert after != before or after == ""
        if after:
            assert log.end_offsets([1], TIMEOUT_S) == {1: 0}

    # --- claiming -----------------------------------------------------------------------------------

    def test_a_later_claim_fences_the_earlier_writer_for_good(self, log, claim, reader) -> None:
        earlier = claim(1)
        earlier.append({1: [(b"k", b"before")]}, TIMEOUT_S)
        later = claim(1)

        for _ in range(2):
            with pytest.raises(Fenced):
                earlier.append({1: [(b"k", b"zombie")], 9: [(b"k", b"zombie")]}, TIMEOUT_S)
        later.append({1: [(b"k", b"after")]}, TIMEOUT_S)
        with pytest.raises(Fenced):
            earlier.append({9: [(b"k", b"zombie")]}, TIMEOUT_S)

        claim(1)
        assert [record.value for record in self.all_of(log, reader, 1)] == [b"before", b"after"]
        assert self.all_of(log, reader, 9) == []

    def test_the_last_of_many_claims_wins_and_other_shard_groups_are_unaffected(self, claim: Claimer) -> None:
        other = claim(2)
        writers = [claim(1) for _ in range(4)]

        for fenced in writers[:-1]:
            with pytest.raises(Fenced):
                fenced.append({1: [(b"k", b"v")]}, TIMEOUT_S)
        writers[-1].append({1: [(b"k", b"v")]}, TIMEOUT_S)
        other.append({2: [(b"k", b"v")]}, TIMEOUT_S)

    def test_a_writer_created_before_but_claiming_later_fences_the_others(self, log, claim) -> None:
        prepared = BlockingWriter(log.writer(1))
        current = claim(1)

        prepared.claim(TIMEOUT_S)

        with pytest.raises(Fenced):
            current.append({1: [(b"k", b"v")]}, TIMEOUT_S)
        prepared.append({1: [(b"k", b"v")]}, TIMEOUT_S)
        prepared.close()

    def test_after_a_claim_the_end_offset_covers_everything_that_was_acknowledged(self, log, claim, reader) -> None:
        for round_ in range(5):
            acknowledged = claim(1).append({1: [(b"%d" % round_, b"v")], 9: [(b"%d" % round_, b"v")]}, TIMEOUT_S)

            claim(1)

            ends = log.end_offsets([1, 9], TIMEOUT_S)
            assert {p: ends[p] > acknowledged[p] for p in ends} == {1: True, 9: True}
            newest: dict[int, dict[bytes, bytes | None]] = {1: {}, 9: {}}
            reader.load({1: 0, 9: 0}, ends, newest)
            assert (len(newest[1]), len(newest[9])) == (round_ + 1, round_ + 1)

    # --- loading ------------------------------------------------------------------------------------

    def test_load_keeps_the_newest_value_of_each_key_and_tombstones(self, log, claim, reader) -> None:
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

    def test_poll_returns_at_most_the_requested_number_and_loses_nothing(self, claim, reader) -> None:
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

    def test_the_position_passes_claims_and_gaps_up_to_the_end(self, log, claim, reader) -> None:
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

    def test_following_other_partitions_keeps_the_positions_of_the_rest(self, claim, reader) -> None:
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
