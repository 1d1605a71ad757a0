"""The checker of takeovers finds each kind of violation in a bad run, and none in a good one."""

from collections.abc import Callable, Sequence
from pathlib import Path

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
from offsetmgr.segments.batch_builder import Producer, batch
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

    def end_of_id(self, producer_id: int) -> None:
        self.batch((producer_id, LARGEST_EPOCH), [(FENCE_KEY, None)])

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
    log.end_of_id(7)
    log.claim((9, 0), ids=(7, 9))
    log.records((9, 0), "c", 0)
    assert not log.history.violations


# --- the raw log ----------------------------------------------------------------------------------


def other_id_claims(log: Log, *ids: int) -> None:
    log.claim((9, 0), ids=ids)
    log.records((9, 0), "c", 0)


def add_transaction(log: Log) -> None:
    log.history.add(RawBatch(0, 8, 8, *NEW, 4, True, 1_008, [Record(8, 1, *record_of("b", 3))]))


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (
            lambda log: log.records(OLD, "a", 3),
            "producer 7, epoch 0: it follows the claim at offset 4 by producer 7, epoch 1",
        ),
        (lambda log: log.records((5, 9), "a", 3), "it follows the claim at offset 4"),
        (lambda log: log.claim(OLD), "it is a claim by an older producer than the claim at offset 4"),
        (
            lambda log: (log.claim((9, 0), ids=(7, 9)), log.claim((7, 5), ids=(7, 9))),
            "older producer than the claim at offset 8",
        ),
        (lambda log: (log.end_of_id(7), log.records(NEW, "b", 3)), "an earlier batch has ended this producer id"),
        (lambda log: other_id_claims(log, 9), "the claim at offset 8 does not list {7}"),
        (lambda log: log.claim((7, 2), token="token 1"), "another claim has its token"),
        (lambda log: log.batch(NEW, [record_of("b", 3)], sequence=3), "its first sequence number is 3, not 4"),
        (lambda log: log.batch(NEW, [record_of("b", 3)], sequence=5), "its first sequence number is 5, not 4"),
        (lambda log: log.batch(NEW, [record_of("b", 3)], skip=2), "the reader missed records from offset 8 on"),
        (add_transaction, "it belongs to a transaction"),
    ],
)
def test_a_batch_that_breaks_a_rule_is_found(happens: Callable[[Log], object], why: str) -> None:
    log = good_log()
    happens(log)
    assert why in only_violation(log)


def test_a_record_without_a_claim_is_found() -> None:
    log = Log()
    log.records(OLD, "a", 0)
    assert "no claim precedes it" in only_violation(log)


def test_the_header_of_a_batch_is_read() -> None:
    records = [Record(n, None, *record_of("a", n)) for n in range(2)]
    found, _ = raw_batches(4, batch(records, producer=Producer(7, 3, 5)) * 2, 0)
    assert found[:7] == (4, 0, 1, 7, 3, 5, False)
    assert [record.value for record in found.records] == [b"a/0", b"a/1"]


# --- the events -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (
            [CLAIMED_A, Acknowledged("a", 0, 6, 7, 0, 2, 0, 1)],
            "lost: (b'key-0', b'a/0') at offset 2, where the log has (b'key-1', b'a/1')",
        ),
        ([Rejected("b", 0, 2, 1)], "b'b/2' is at offset 7: Rejected"),
        (
            [ACKNOWLEDGED_A, CLAIMED_B._replace(claim_end=2, reached=2, state={"key-0": "a/0"})],
            "offset 2 was acknowledged before",
        ),
        (
            [CLAIMED_A, CLAIMED_B._replace(state={"key-0": "a/0", "key-1": "a/1"})],
            "b'key-2' has the value b'a/2', but the owner has read None",
        ),
        ([CLAIMED_A, CLAIMED_B._replace(state={**CLAIMED_B.state, "key-2": "a/9"})], "but the owner has read b'a/9'"),
        ([CLAIMED_A, CLAIMED_B._replace(state={**CLAIMED_B.state, "key-7": "a/7"})], "b'key-7' has the value None"),
    ],
)
def test_an_event_that_the_log_does_not_explain_is_found(events: list[Event], why: str) -> None:
    assert why in checked(good_log(), events).violations[0]


def test_a_lost_record_is_found() -> None:
    log = good_log()
    beyond = Acknowledged("b", 0, 23, 24, 4, 8, 3, 1)
    report = checked(log, [*GOOD, beyond], [*log.compacted(), StoredRecord(9, b"key-3", b"b/9")][:-1])
    assert report.lost == 1
    assert report.violations[0].startswith("lost: (b'key-3', b'b/3') at offset 8, where the log has None")


def test_an_acknowledgement_behind_the_claim_of_another_owner_is_found() -> None:
    log = good_log()
    log.records(NEW, "a", 3)
    late = Acknowledged("a", 0, 6, 9, 0, 8, 3, 1)
    assert "acknowledged behind the claim of another owner" in only_violation(log, [late])


def test_an_offset_that_was_acknowledged_to_two_owners_is_found() -> None:
    report = checked(good_log(), [*GOOD, Acknowledged("c", 0, 30, 31, 4, 7, 2, 1)])
    assert report.doubled == 1
    assert any(one.startswith("offset 7 was acknowledged to b, too") for one in report.violations)


def test_a_record_that_is_in_the_log_twice_is_found() -> None:
    log = good_log()
    log.records(NEW, "b", 2)
    assert only_violation(log) == "b'b/2' is at the offsets 7 and 8"


def test_a_value_that_another_owner_overwrote_during_the_load_may_be_missing() -> None:
    log = good_log()
    slow = CLAIMED_A._replace(claim_end=3, reached=3, state={"key-1": "a/1"}, loaded_ms=2_000)
    assert not checked(log, [slow]).violations
    assert "b'key-0' has the value b'a/0'" in only_violation(log, [slow._replace(loaded_ms=1_003)])


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
