"""`LogContract`: tests of the contract of `PartitionLog`. Users can test their own implementations with them.

The tests check only the guarantees that *every* implementation of `PartitionLog` gives. The test module of an
implementation contains a subclass of `LogContract` that overrides a fixture and a method::

    pytest.register_assert_rewrite("offsetmgr.testing")   # before the import, for readable failures
    from offsetmgr.testing.log_contract import LogContract

    class TestMyLog(LogContract):
        @pytest.fixture
        def log(self): ...
        def recreate(self, log): ...

Every test uses a new, empty log of ten partitions. Shard groups 0 and 1 have two partitions each.
"""

from __future__ import annotations

import time

import pytest

from offsetmgr.manager.log.base import (
    Fenced,
    LogClosed,
    LogReader,
    PartitionLog,
    TooLarge,
    partitions_of,
)
from offsetmgr.testing.blocking_writer import BlockingWriter
from offsetmgr.testing.log_read_contract import PARTITIONS, TIMEOUT_S, Claimer, LogReadContract, numbered, read


class LogContract(LogReadContract):
    """The tests of the contract of `PartitionLog`. Subclasses must override the fixture ``log`` and `recreate`."""

    # --- appending ----------------------------------------------------------------------------------

    def test_an_empty_log_begins_and_ends_at_zero(self, log: PartitionLog) -> None:
        everywhere = list(range(PARTITIONS))

        assert log.partitions == PARTITIONS
        assert dict(log.start_offsets(everywhere, TIMEOUT_S)) == dict.fromkeys(everywhere, 0)
        assert dict(log.end_offsets(everywhere, TIMEOUT_S)) == dict.fromkeys(everywhere, 0)

    def test_appended_records_are_read_with_keys_values_and_tombstones(self, claim: Claimer, reader: LogReader) -> None:
        before = time.time_ns() // 1_000_000

        ends = claim(1).append({1: [(b"a", b"1"), (b"empty", b"")], 9: [(b"gone", None)]}, TIMEOUT_S)

        reader.follow({1: 0, 9: 0})
        records = read(reader, 3)
        assert {(r.partition, r.offset, r.key, r.value) for r in records} == {
            (1, ends[1] - 1, b"a", b"1"),
            (1, ends[1], b"empty", b""),
            (9, ends[9], b"gone", None),
        }
        assert all(abs(record.timestamp - before) < 60_000 for record in records)

    def test_the_records_of_an_append_are_consecutive_and_the_last_offset_is_returned(
        self, claim: Claimer, reader: LogReader
    ) -> None:
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

    def test_only_a_batch_that_is_too_large_is_rejected_and_the_writer_continues(
        self, log: PartitionLog, claim: Claimer, reader: LogReader
    ) -> None:
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

    def test_a_later_claim_fences_the_earlier_writer_for_good(
        self, log: PartitionLog, claim: Claimer, reader: LogReader
    ) -> None:
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

    def test_a_writer_created_before_but_claiming_later_fences_the_others(
        self, log: PartitionLog, claim: Claimer
    ) -> None:
        prepared = BlockingWriter(log.writer(1))
        current = claim(1)

        prepared.claim(TIMEOUT_S)

        with pytest.raises(Fenced):
            current.append({1: [(b"k", b"v")]}, TIMEOUT_S)
        prepared.append({1: [(b"k", b"v")]}, TIMEOUT_S)
        prepared.close()

    def test_after_a_claim_the_end_offset_covers_everything_that_was_acknowledged(
        self, log: PartitionLog, claim: Claimer, reader: LogReader
    ) -> None:
        for round_ in range(5):
            acknowledged = claim(1).append({1: [(b"%d" % round_, b"v")], 9: [(b"%d" % round_, b"v")]}, TIMEOUT_S)

            claim(1)

            ends = log.end_offsets([1, 9], TIMEOUT_S)
            assert {p: ends[p] > acknowledged[p] for p in ends} == {1: True, 9: True}
            newest: dict[int, dict[bytes, bytes | None]] = {1: {}, 9: {}}
            reader.load({1: 0, 9: 0}, ends, newest)
            assert (len(newest[1]), len(newest[9])) == (round_ + 1, round_ + 1)
