"""The rules by which a position of one log is translated to another log. Each letter is a record; equal letters are
equal records."""

from __future__ import annotations

import time
from array import array
from random import Random

import pytest
from stopwatch import loop_s

from offsetmgr import TopicPartition
from offsetmgr.translation.alignment import NO_KEY, Alignment, InverseAlignment, LogStretch, Translation, Verdict
from offsetmgr.translation.comparison import CommittedPositions
from offsetmgr.translation.translator import TranslatedPartition

SEEN, BRACKETED, MISSING = Verdict.SEEN, Verdict.BRACKETED, Verdict.MISSING
NOT_YET, UNKNOWN, INFERRED = Verdict.NOT_YET, Verdict.UNKNOWN, Verdict.INFERRED


def stretch(records: str, start: int = 0, first: int | None = None, keys: str = "", aborted: str = "") -> LogStretch:
    """A log of one record at each offset from ``start`` on, without a record where there is a space, read from
    ``first`` on. ``keys`` has the key of each record. ``aborted`` are the records of aborted transactions."""
    first = start if first is None else first
    there = [(offset, record) for offset, record in enumerate(records, start) if record != " " and offset >= first]
    hashes = (ord(keys[offset - start]) if keys else NO_KEY for offset, _ in there)
    return LogStretch(
        first,
        start,
        start + len(records),
        array("q", (offset for offset, _ in there)),
        [record.encode() for _, record in there],
        keys=array("q", hashes),
        aborted={index for index, (_, record) in enumerate(there) if record in aborted},
        gaps=" " in records[first - start :],
    )


def translated(a: str, b: str, position: int, kind: type[Alignment] = Alignment) -> Translation:
    return kind(stretch(a), stretch(b)).translate(position)


def answers(*cases: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("a", "b", "position", "verdict", "offset"), cases)


@answers(
    pytest.param("abcdef", "XYZabcdef", 2, SEEN, 5, id="others before"),
    pytest.param("abcdef", "XabYcdef", 2, BRACKETED, 4, id="another record before the position"),
    pytest.param("abcdef", "abcdeYf", 2, SEEN, 2, id="another record after the position"),
    pytest.param("abcdef", "abcdefY", 2, BRACKETED, 2, id="another record at the end"),
    pytest.param("abcdef", "abcd", 2, SEEN, 2, id="B ends after the position"),
    pytest.param("abcdef", "abcd", 4, SEEN, 4, id="B ends at the position"),
    pytest.param("abcdef", "abcd", 5, NOT_YET, None, id="B ends before the position"),
    pytest.param("abcdef", "", 2, NOT_YET, None, id="B is empty"),
    pytest.param("abcdef", "", 0, SEEN, 0, id="B is empty, and no record precedes"),
    pytest.param("abcdef", "UVWXYZ", 2, UNKNOWN, None, id="no copy"),
    pytest.param("abcdef", "abcdebcd", 1, NOT_YET, None, id="the copier copies again"),
    pytest.param("abcdef", "abef", 1, MISSING, 1, id="B lacks records after the position"),
    pytest.param("abcdef", "abef", 5, SEEN, 3, id="B lacks records before the position"),
    pytest.param("abcdef", "cdef", 1, MISSING, 0, id="B has deleted records"),
    pytest.param("abcdef", "abcdeacdef", 1, BRACKETED, 1, id="a record is left out of the second copy"),
    pytest.param("abcdef", "acbdef", 2, BRACKETED, 1, id="in another order"),
    pytest.param("abcdef", "acbdef", 4, SEEN, 4, id="in another order before the position"),
    pytest.param("axbxc", "axbxc", 3, SEEN, 3, id="equal records between others"),
    pytest.param("axxxb", "axxxb", 2, SEEN, 2, id="among equal records"),
    pytest.param("axxb", "axxxb", 1, BRACKETED, 1, id="an equal record too many"),
    pytest.param("axxb", "axb", 1, MISSING, 1, id="an equal record too few"),
    pytest.param("abcx", "abcx", 1, SEEN, 1, id="a unique last record"),
    pytest.param("abxcx", "abxcx", 1, BRACKETED, 1, id="the last record is not unique"),
    pytest.param("xxxx", "xxxx", 2, UNKNOWN, None, id="only equal records"),
    pytest.param("", "", 0, SEEN, 0, id="both are empty"),
    pytest.param("", "XYZ", 0, INFERRED, 3, id="A is empty"),
)
def test_the_records_decide(a: str, b: str, position: int, verdict: Verdict, offset: int | None) -> None:
    assert translated(a, b, position)[:2] == (verdict, offset)


def test_a_position_outside_of_the_log_is_left_to_the_consumers_setting() -> None:
    alignment = Alignment(stretch("cdef", start=2), stretch("abcdef"))
    below, after = alignment.translate(1), alignment.translate(7)
    assert (below.verdict, below.why) == (
        UNKNOWN,
        "1 is below the start 2 of the source's log; there auto.offset.reset decides",
    )
    assert (after.verdict, after.why) == (
        UNKNOWN,
        "7 is after the end 6 of the source's log; there auto.offset.reset decides",
    )


def test_the_first_record_is_sure_only_by_time_stamps_if_a_deleted_the_records_before_it() -> None:
    a = stretch("cdef", start=2)
    assert Alignment(a, stretch("abcdef")).translate(2)[:3] == (BRACKETED, 2, 6)
    a.timed = True  # B's records cannot be copies of older ones
    for b in ("abcdef", "abcdcdef"):
        answer = Alignment(a, stretch(b)).translate(2)
        assert (answer.verdict, answer.offset) == (SEEN, b.rindex("c"))


def test_a_bracket_has_the_numbers_of_repeated_and_skipped_records() -> None:
    answer = translated("axxb", "axxxb", 1)
    assert (answer.offset, answer.upper, answer.repeats) == (1, 4, 3)


@pytest.mark.parametrize("position", [2, 3, 5])
def test_records_that_the_copier_may_have_changed_are_within_the_bracket(position: int) -> None:
    alignment = Alignment(stretch("abcdef"), stretch("abCDEF"))
    answer = alignment.translate(position)
    assert answer[:4] == (BRACKETED, 2, 6, 4)
    assert alignment.difference(position, answer, 5) == (1, 3)


def test_an_open_transaction_of_the_target_is_named() -> None:
    b = stretch("abcd")
    b.hidden = 2
    why = "; a transaction that began at offset 4 is open in the target"
    assert Alignment(stretch("abcdef"), b).translate(6)[3:5] == (
        0,
        f"the target ends 2 records before the position{why}",
    )
    empty = stretch("")
    empty.hidden = 2
    assert Alignment(stretch("abcdef"), empty).translate(2).why.startswith("the target is empty; a transaction")


def test_missing_and_waiting_records_are_counted() -> None:
    assert translated("abcdef", "abef", 1).missing == 2
    assert translated("abcdef", "ab", 6).waits == 4
    assert translated("abcdef", "", 4).waits == 4
    assert Alignment(stretch("abcdef", first=3), stretch("")).translate(4).waits == 4


@pytest.mark.parametrize("b", ["abcef", "abdef", "abcdef"])
def test_copies_of_aborted_records_may_lie_among_the_others(b: str) -> None:
    answer = Alignment(stretch("abcdef", aborted="cd"), stretch(b)).translate(3)
    assert (answer.verdict, answer.offset) == (SEEN, b.index("e"))


def test_a_compacted_record_is_excused_if_a_later_one_of_its_key_is_there() -> None:
    whole = stretch("abcdef", keys="121345")
    for a, b in ((whole, stretch(" bcdef", keys="121345")), (stretch(" bcdef", keys="121345"), whole)):
        a.timed = True
        assert Alignment(a, b).translate(0)[:2] == (SEEN, 1)
    found, tp, positions = Alignment(a, b), TopicPartition("orders", 0), CommittedPositions()
    positions.add("g", tp, 0, 0)
    positions.compare(TranslatedPartition(tp, tp, {0: found.translate(0)}, alignment=found))
    (row,) = positions.differences()
    assert row.repeats == 1 and "lacks 1 of the repeated records: the group may not have got them" in row.note
    removed = Alignment(whole, stretch("abc ef", keys="121345"))
    assert removed.translate(1)[:2] == (MISSING, 1)
    assert removed.translate(1).missing == 1


def test_only_aborted_and_compacted_records_follow_the_position() -> None:
    a, b = stretch("axz", keys="122", aborted="z"), stretch("a z", keys="1 2")
    assert Alignment(a, b).translate(1)[:3] == (BRACKETED, 3, 3)


def test_a_changed_copy_before_the_copy_of_an_aborted_record_is_within_the_bracket() -> None:
    a, b = stretch(" kxd", keys=" 121", aborted="x"), stretch(" Kxd", keys=" 121")
    a.timed = b.timed = True
    assert Alignment(a, b).translate(1)[:3] == (BRACKETED, 1, 3)


@answers(
    pytest.param("abcdef", "abcd", 2, SEEN, 2, id="in the copied part"),
    pytest.param("abcdef", "abcd", 4, SEEN, 4, id="the copy's end leads to the first record that was not copied"),
    pytest.param("abcdef", "", 0, SEEN, 0, id="nothing was copied"),
    pytest.param("abcdef", "abcdebcd", 7, BRACKETED, 3, id="in a stretch that is copied again"),
    pytest.param("abcdef", "abcdebcd", 8, BRACKETED, 5, id="at the end of such a stretch"),
    pytest.param("abcdef", "abef", 3, SEEN, 5, id="after records that were not copied"),
    pytest.param("abcdef", "abef", 2, BRACKETED, 4, id="directly after records that were not copied"),
    pytest.param("abcdef", "abef", 1, BRACKETED, 1, id="before records that were not copied"),
    pytest.param("cdef", "abcde", 3, SEEN, 1, id="the original has deleted records before the position"),
    pytest.param("cdef", "abcde", 1, MISSING, 0, id="the original has deleted records after the position"),
    pytest.param("abcdef", "abcX", 1, MISSING, 1, id="the copy has another record at its end"),
    pytest.param("abxcdxe", "abx", 3, BRACKETED, 2, id="the copy ends with a record that repeats"),
    pytest.param("abcdef", "", 1, UNKNOWN, None, id="outside of the copy"),
    pytest.param("abcdef", "XYZ", 1, UNKNOWN, None, id="no copy"),
)
def test_the_way_back_to_the_original(a: str, b: str, position: int, verdict: Verdict, offset: int | None) -> None:
    assert translated(a, b, position, InverseAlignment)[:2] == (verdict, offset)


def test_the_copies_of_aborted_records_lead_back_to_the_next_committed_one() -> None:
    back = InverseAlignment(stretch("abcdefg", aborted="cd"), stretch("abcdef"))
    assert [back.translate(position)[:2] for position in range(1, 7)] == [(SEEN, at) for at in (1, 4, 4, 4, 5, 6)]


def test_the_way_back_reads_the_original_until_it_holds_every_record_of_the_copy() -> None:
    back = InverseAlignment(stretch("abcdefgh", first=6), stretch("abcdef", first=3))
    assert back.translate(5)[:2] == (UNKNOWN, None)
    assert back.needs_earlier([5]) == (True, True)
    back = InverseAlignment(stretch("abcdefgh", first=3), stretch("abcdef", first=4))
    back.a.timed = True  # otherwise a record may be the copy of an older one
    assert back.translate(5)[:2] == (SEEN, 5)
    assert back.translate(3).earlier_b


@pytest.mark.parametrize(
    ("a", "b", "position", "lacking"),
    [
        ("abcd", "abcd", 0, 0),
        ("abcd", "acd", 0, 1),
        ("abcd", "acd", 2, 0),
        ("abcd", "ab", 0, 2),
        ("abcd", "ab", 3, 2),
        ("abcd", "", 1, 4),
        ("", "abcd", 0, 0),
        ("abcd", "abX", 0, None),
    ],
)
def test_the_records_that_the_target_lacks(a: str, b: str, position: int, lacking: int | None) -> None:
    assert Alignment(stretch(a), stretch(b)).lacking(position) == lacking


def test_aborted_and_compacted_records_are_not_lacking() -> None:
    assert Alignment(stretch("abcd", aborted="bd"), stretch("ac")).lacking(0) == 0
    assert Alignment(stretch("abcd", keys="1213"), stretch(" bcd", keys="1213")).lacking(0) == 0
    assert Alignment(stretch("abcd", aborted="b"), stretch("")).lacking(0) == 3
    assert InverseAlignment(stretch("abcdef"), stretch("XabYc")).lacking(0) == 1
    assert InverseAlignment(stretch("abcdef"), stretch("XabYc")).lacking(4) == 0
    assert InverseAlignment(stretch("abcdef"), stretch("")).lacking(0) == 0


def test_the_place_of_the_end_is_not_after_records_that_only_the_target_holds() -> None:
    found = Alignment(stretch("abc"), stretch("abcXY")).translate(3)
    assert (found.verdict, found.offset, found.upper, found.repeats) == (Verdict.BRACKETED, 3, 5, 2)


def test_records_are_not_lacking_because_a_part_of_the_other_log_was_not_read() -> None:
    one = Alignment(stretch("abcd"), stretch("abcd", first=2))
    back = InverseAlignment(stretch("abcdef", first=3), stretch("dcef"))
    one.is_cut = back.is_cut = True
    assert (one.lacking(0), one.lacking(2), back.lacking(0)) == (None, 0, None)


@pytest.mark.parametrize(
    ("first_a", "first_b", "position", "earlier"),
    [
        (0, 4, 3, (False, True)),
        (3, 3, 3, (True, True)),
        (2, 2, 3, (False, False)),
        (4, 0, 3, (True, False)),
        (2, 0, 3, (False, False)),
    ],
)
def test_it_knows_which_log_must_be_read_further_back(first_a: int, first_b: int, position: int, earlier) -> None:
    alignment = Alignment(stretch("abcdef", first=first_a), stretch("abcdef", first=first_b))
    answer = alignment.translate(position)
    assert alignment.needs_earlier([position]) == earlier
    assert answer.verdict == (UNKNOWN if any(earlier) else SEEN)


def test_a_first_copy_before_the_part_that_was_read_is_looked_for() -> None:
    a, b = stretch("abcdef"), "abcdeabc"
    assert Alignment(a, stretch(b, first=5)).following == 3
    assert Alignment(a, stretch(b, first=4)).following is None  # B holds e, so it is being copied again
    assert Alignment(a, stretch(b)).following is None
    assert Alignment(a, stretch("abcdef", first=3)).following is None
    alignment = Alignment(a, stretch(b, first=5))
    assert alignment.translate(1)[:2] == (SEEN, 6)
    alignment.may_be_copied_again = True
    assert alignment.translate(1).verdict == NOT_YET


@pytest.mark.parametrize(("committed", "expected"), [(2, (1, 0)), (3, (0, 0)), (5, (0, 2)), (6, (0, 3)), (7, None)])
def test_the_difference_of_a_committed_offset(committed: int, expected: tuple[int, int] | None) -> None:
    alignment = Alignment(stretch("abcdef"), stretch("abcdef"))
    assert alignment.difference(3, alignment.translate(3), committed) == expected


def test_the_difference_counts_a_record_once_that_b_holds_twice() -> None:
    alignment = Alignment(stretch("abcdef"), stretch("abcdebcdef"))
    assert alignment.difference(1, alignment.translate(1), 0) == (5, 0)
    assert alignment.difference(0, alignment.translate(0), 5) == (0, 1)
    assert alignment.difference(0, alignment.translate(0), 8) == (0, 4)


@pytest.mark.parametrize(
    ("a", "b", "position", "committed", "expected", "least"),
    [
        pytest.param("abcd", "abcdcdX", 1, 4, (0, 1), 1, id="others follow again"),
        pytest.param("abcd", "abcdabX", 2, 6, (1, 2), 2, id="others precede the position"),
        pytest.param("abcdef", "abCDEF", 3, 5, (1, 3), 0, id="changed copies"),
        pytest.param("axbc", "axbcX", 1, 4, (0, 3), 3, id="each is skipped"),
        pytest.param("axxb", "axxxb", 1, 3, (1, 2), 0, id="one of several equal records"),
    ],
)
def test_the_difference_from_a_bracket_counts_what_is_skipped(
    a: str, b: str, position: int, committed: int, expected: tuple[int, int], least: int
) -> None:
    alignment = Alignment(stretch(a), stretch(b))
    answer = alignment.translate(position)
    assert answer.verdict == BRACKETED
    assert alignment.difference(position, answer, committed) == expected
    assert alignment.difference(position, answer, committed, surely=True) == (expected[0], least)


def test_the_difference_is_unknown_without_an_answer_and_where_nothing_was_read() -> None:
    alignment = Alignment(stretch("abcdef", first=2), stretch("abcdef", first=2))
    assert alignment.difference(4, alignment.translate(4), 1) is None
    assert alignment.difference(1, alignment.translate(1), 4) is None


def test_the_alignment_of_a_copy_takes_about_a_microsecond_for_each_record() -> None:
    size, random, taken = 20_000, Random(1), []
    for _ in range(5):
        prints = [random.randbytes(12) for _ in range(size)]
        copies = [bytes(bytearray(one)) for one in prints]
        a, b = (LogStretch(0, 0, size, array("q", range(size)), list(one)) for one in (prints, copies))
        began = time.thread_time()
        alignment = Alignment(a, b)
        assert all(alignment.translate(position).verdict == SEEN for position in range(0, size, 1000))
        taken.append(time.thread_time() - began)
    assert min(taken) / loop_s() < 55


def test_a_long_run_of_equal_records_is_searched_once_for_all_positions() -> None:
    def taken(positions: int) -> float:
        alignment = Alignment(stretch("x" * 20_000 + "u"), stretch("x" * 20_000 + "u"))
        began = time.thread_time()
        for position in range(20_000, 20_000 - positions, -1):
            alignment.translate(position)
        return time.thread_time() - began

    assert min(taken(200) for _ in range(3)) < 20 * min(taken(2) for _ in range(3))
