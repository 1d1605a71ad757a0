"""The checker of takeovers finds each kind of violation in a bad run, and none in a good one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

import pytest
from raw_log import LARGEST_EPOCH, PartitionHistory, RawBatch, raw_batches
from takeover_checker import (
    Acknowledged,
    Claimed,
    Event,
    Rejected,
    Report,
    StoredRecord,
    Unknown,
    WasFenced,
    check,
    line_of,
    read_events,
    record_of,
)

from offsetmgr.records.base import EncodedRecord
from offsetmgr.records.claim import FENCE_KEY, Claim, encode_claim
from offsetmgr.segments.append_batch import append_batch
from offsetmgr.segments.batch_builder import Producer
from offsetmgr.segments.batch_reader import Record

OLD, NEW = (7, 0), (7, 1)


class Log:
    """Builds the history of partition 0. A batch has the next sequence number unless a test gives another one."""

    def __init__(self) -> None:
        self.history = PartitionHistory(0)
        self._sequences: dict[tuple[int, int], int] = {}
        self._tokens = 0

    def batch(
        self, producer: tuple[int, int], records: Sequence[EncodedRecord], *, sequence: int | None = None, skip: int = 0
    ) -> None:
        first = self.history.end + skip
        number = self._sequences.get(producer, 0) if sequence is None else sequence
        self._sequences[producer] = number + len(records)
        found = [Record(first + n, 1, key, value) for n, (key, value) in enumerate(records)]
        self.history.add(RawBatch(0, first, first + len(found) - 1, *producer, number, False, 1_000 + first, found))

    def claim(self, producer: tuple[int, int], ids: tuple[int, ...] = (7,), token: str | None = None) -> None:
        self._tokens += 1
        self.batch(producer, [encode_claim(Claim(token or f"token {self._tokens}", "m", 1, ids))])

    def records(self, producer: tuple[int, int], owner: str, *numbers: int) -> None:
        self.batch(producer, [record_of(owner, number) for number in numbers])

    def compacted(self) -> list[StoredRecord]:
        """The records that an exact log cleaner would leave."""
        newest = {key: offset for offset, key in enumerate(self.history.keys)}
        return [StoredRecord(o, self.history.keys[o], self.history.values[o]) for o in sorted(newest.values())]


def good_log() -> Log:
    """The offsets: 0 a claim, 1 to 3 the records a/0 to a/2, 4 a claim, 5 to 7 the records b/0 to b/2."""
    log = Log()
    log.claim(OLD)
    log.records(OLD, "a", 0, 1)
    log.records(OLD, "a", 2)
    log.claim(NEW)
    log.records(NEW, "b", 0, 1, 2)
    return log


CLAIMED_A = Claimed("a", 0, 0, 5, 1_000, 1, 1, {})
CLAIMED_B = Claimed("b", 0, 10, 20, 1_004, 5, 5, {"key-0": "a/0", "key-1": "a/1", "key-2": "a/2"})
ACKNOWLEDGED_A = Acknowledged("a", 0, 6, 7, 0, 1, 0, 2)
ACKNOWLEDGED_B = Acknowledged("b", 0, 21, 22, 4, 5, 0, 3)
GOOD: list[Event] = [CLAIMED_A, ACKNOWLEDGED_A, CLAIMED_B, ACKNOWLEDGED_B]


def checked(log: Log, events: Sequence[Event], compacted: list[StoredRecord] | None = None) -> Report:
    return check({0: log.history}, events, {0: log.compacted() if compacted is None else compacted})


def only_violation(log: Log, events: Sequence[Event] = (), compacted: list[StoredRecord] | None = None) -> str:
    (found,) = checked(log, events, compacted).violations
    return found


def test_a_good_run_has_no_violations() -> None:
    late = Acknowledged("a", 0, 8, 12, 0, 3, 2, 1)
    others: list[Event] = [late, Rejected("b", 0, 3, 2), Unknown("a", 0), WasFenced("a", 13)]

    report = checked(good_log(), [*GOOD, *others])

    assert report == Report([], 1, 3, 1, 1, 1, 1, 0, 0)


def test_another_producer_id_after_a_batch_that_ends_the_old_one_is_no_violation() -> None:
    log = good_log()
    log.batch((7, LARGEST_EPOCH), [(FENCE_KEY, None)])
    log.claim((9, 0), ids=(7, 9))
    log.records((9, 0), "c", 0)
    assert not log.history.violations


# --- the raw log ----------------------------------------------------------------------------------


def test_a_batch_of_the_old_owner_behind_a_claim_is_found() -> None:
    log = good_log()
    log.records(OLD, "a", 3)
    assert "producer 7, epoch 0: it follows the claim at offset 4 by producer 7, epoch 1" in only_violation(log)


def test_a_batch_of_another_producer_id_behind_a_claim_is_found() -> None:
    log = good_log()
    log.records((5, 9), "a", 3)
    assert "it follows the claim at offset 4" in only_violation(log)


@pytest.mark.parametrize("producer", [OLD, (7, 0)])
def test_a_claim_by_an_older_producer_is_found(producer: tuple[int, int]) -> None:
    log = good_log()
    log.claim(producer)
    assert "it is a claim by an older producer than the claim at offset 4" in only_violation(log)


def test_a_claim_by_a_producer_id_of_the_past_is_found() -> None:
    log = good_log()
    log.claim((9, 0), ids=(7, 9))
    log.claim((7, 5), ids=(7, 9))
    assert "older producer than the claim at offset 8" in only_violation(log)


def test_a_record_without_a_claim_is_found() -> None:
    log = Log()
    log.records(OLD, "a", 0)
    assert "no claim precedes it" in only_violation(log)


def test_a_record_of_an_ended_producer_id_is_found() -> None:
    log = good_log()
    log.batch((7, LARGEST_EPOCH), [(FENCE_KEY, None)])
    log.records(NEW, "b", 3)
    assert "an earlier batch has ended this producer id" in only_violation(log)


def test_a_claim_that_omits_a_producer_id_is_found() -> None:
    log = good_log()
    log.claim((9, 0), ids=(9,))
    log.records((9, 0), "c", 0)
    assert "the claim at offset 8 does not list {7}" in only_violation(log)


def test_a_token_of_another_claim_is_found() -> None:
    log = Log()
    log.claim(OLD, token="same")
    log.claim(NEW, token="same")
    assert "another claim has its token" in only_violation(log)


@pytest.mark.parametrize("sequence", [1, 3])
def test_a_repeated_or_missing_sequence_number_is_found(sequence: int) -> None:
    log = Log()
    log.claim(OLD)
    log.records(OLD, "a", 0)
    log.batch(OLD, [record_of("a", 1)], sequence=sequence)
    assert f"its first sequence number is {sequence}, not 2" in only_violation(log)


def test_records_that_the_reader_missed_are_found() -> None:
    log = good_log()
    log.batch(NEW, [record_of("b", 3)], skip=2)
    assert "the reader missed records from offset 8 on" in only_violation(log)


def test_a_transaction_is_found() -> None:
    log = good_log()
    log.history.add(RawBatch(0, 8, 8, *NEW, 4, True, 1_008, [Record(8, 1, *record_of("b", 3))]))
    assert "it belongs to a transaction" in only_violation(log)


def test_the_header_of_a_batch_is_read() -> None:
    data = append_batch([record_of("a", 0), record_of("a", 1)], Producer(7, 3, 5))
    found, _ = raw_batches(4, data * 2, 0)
    assert found[:7] == (4, 0, 1, 7, 3, 5, False)
    assert [record.value for record in found.records] == [b"a/0", b"a/1"]


# --- the events -----------------------------------------------------------------------------------


def test_a_lost_record_is_found() -> None:
    log = good_log()
    beyond = Acknowledged("b", 0, 23, 24, 4, 8, 3, 1)
    report = checked(log, [*GOOD, beyond], [*log.compacted(), StoredRecord(9, b"key-3", b"b/9")][:-1])
    assert report.lost == 1
    assert report.violations[0].startswith("lost: (b'key-3', b'b/3') at offset 8, where the log has None")


def test_a_record_at_another_offset_is_found() -> None:
    report = checked(good_log(), [CLAIMED_A, Acknowledged("a", 0, 6, 7, 0, 2, 0, 1)])
    assert report.violations[0].startswith("lost: (b'key-0', b'a/0') at offset 2, where the log has (b'key-1', b'a/1')")


def test_an_acknowledgement_behind_the_claim_of_another_owner_is_found() -> None:
    log = good_log()
    log.records(NEW, "a", 3)
    late = Acknowledged("a", 0, 6, 9, 0, 8, 3, 1)
    assert "acknowledged behind the claim of another owner" in only_violation(log, [late])


def test_an_offset_that_was_acknowledged_to_two_owners_is_found() -> None:
    report = checked(good_log(), [*GOOD, Acknowledged("c", 0, 30, 31, 4, 7, 2, 1)])
    assert report.doubled == 1
    assert any(one.startswith("offset 7 was acknowledged to b, too") for one in report.violations)


def test_a_rejected_record_in_the_log_is_found() -> None:
    assert only_violation(good_log(), [Rejected("b", 0, 2, 1)]).startswith("b'b/2' is at offset 7: Rejected")


def test_a_record_that_is_in_the_log_twice_is_found() -> None:
    log = good_log()
    log.records(NEW, "b", 2)
    assert only_violation(log) == "b'b/2' is at the offsets 7 and 8"


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"key-0": "a/0", "key-1": "a/1"}, "b'key-2' has the value b'a/2', but the owner has read None"),
        ({"key-0": "a/0", "key-1": "a/1", "key-2": "a/9"}, "but the owner has read b'a/9'"),
        ({**CLAIMED_B.state, "key-7": "a/7"}, "b'key-7' has the value None"),
    ],
)
def test_an_owner_that_has_read_something_else_is_found(state: dict[str, str], why: str) -> None:
    assert why in only_violation(good_log(), [CLAIMED_A, CLAIMED_B._replace(state=state)])


def test_a_value_that_another_owner_overwrote_during_the_load_may_be_missing() -> None:
    log = good_log()
    slow = CLAIMED_A._replace(claim_end=3, reached=3, state={"key-1": "a/1"}, loaded_ms=2_000)
    assert not checked(log, [slow]).violations
    assert "b'key-0' has the value b'a/0'" in only_violation(log, [slow._replace(loaded_ms=1_003)])


def test_a_claim_below_an_acknowledged_offset_is_found() -> None:
    early = CLAIMED_B._replace(claim_end=2, reached=2, state={"key-0": "a/0"})
    assert only_violation(good_log(), [ACKNOWLEDGED_A, early]).startswith("offset 2 was acknowledged before")


def test_a_key_without_its_newest_acknowledged_value_in_the_compacted_log_is_found() -> None:
    log = good_log()
    compacted = [record for record in log.compacted() if record.key != b"key-1"]
    found = checked(log, GOOD, compacted).violations
    assert [one.rpartition(": Ack")[0] for one in found] == [
        f"the compacted log has no value of b'key-1' from offset {offset} on" for offset in (2, 6)
    ]


def test_a_changed_record_in_the_compacted_log_is_found() -> None:
    log = good_log()
    compacted = [*log.compacted(), StoredRecord(2, b"key-1", b"a/8")]
    assert only_violation(log, GOOD, compacted).startswith("the log cleaner has changed StoredRecord(offset=2")


def test_events_are_read_up_to_a_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "events"
    events = [*GOOD, Rejected("b", 0, 3, 2), Unknown("a", 0), WasFenced("a", 13)]
    file.write_text("".join(map(line_of, events)) + line_of(GOOD[0])[:-4])
    assert list(read_events([file])) == events
