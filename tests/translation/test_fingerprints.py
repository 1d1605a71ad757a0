"""The fingerprints of records: equal for equal records, in every format and codec, and in any number of pieces."""

import pytest

from offsetmgr.core.model import LogRange
from offsetmgr.segments.batch_builder import Producer, batch, message_set
from offsetmgr.segments.batch_reader import Record
from offsetmgr.translation.fingerprints import Equality, FingerprintRules, Piece

TIME = 1_700_000_000_000
PLAIN = Record(0, TIME, b"ab", b"cd")
DIFFERENT = (
    PLAIN,
    PLAIN._replace(timestamp=TIME + 1),
    PLAIN._replace(key=None),
    PLAIN._replace(key=b""),
    PLAIN._replace(value=None),
    PLAIN._replace(value=b""),
    PLAIN._replace(key=b"abc", value=b"d"),
    PLAIN._replace(headers=(("a", None),)),
    PLAIN._replace(headers=(("a", b""),)),
    PLAIN._replace(headers=(("a", b"1"), ("b", b"2"))),
    PLAIN._replace(headers=(("b", b"2"), ("a", b"1"))),
    PLAIN._replace(value=b"v" * 10_000),
)


def piece_of(data: bytes, rules: FingerprintRules, first: int = 0, stop: int = 1 << 40) -> Piece:
    piece = Piece(LogRange(0, 1 << 40), first, stop, rules)
    piece.add(data)
    return piece


def fingerprint(record: Record, rules: FingerprintRules, magic: int = 2, codec: int = 0) -> bytes:
    if magic == 0:
        record = record._replace(timestamp=None)
    data = batch([record], codec) if magic == 2 else message_set([record], magic, codec)
    return piece_of(data, rules).stretch.prints[0]


def test_records_that_differ_in_any_part_have_different_fingerprints() -> None:
    found = [fingerprint(record, FingerprintRules()) for record in DIFFERENT]
    assert len(set(found)) == len(DIFFERENT)
    assert all(len(one) * 8 >= 96 for one in found)


@pytest.mark.parametrize("codec", [0, 1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_equal_records_have_equal_fingerprints_in_every_format(magic: int, codec: int) -> None:
    rules = FingerprintRules(timestamps=False)
    for record in DIFFERENT:
        if magic == 2 or not record.headers:
            assert fingerprint(record, rules, magic, codec) == fingerprint(record, rules)


def test_the_headers_of_copiers_do_not_count() -> None:
    rules = FingerprintRules(ignored_headers=("copied-from", "x-original-offset"))
    for record in DIFFERENT:
        dead_letter = record._replace(headers=(("x-original-offset", b"3"), *record.headers))
        for one in (record, dead_letter):
            copy = one._replace(headers=(*one.headers, ("copied-from", b"7")))
            assert fingerprint(copy, rules) == fingerprint(one, rules) == fingerprint(record, rules)
    assert len({fingerprint(record, rules) for record in DIFFERENT}) == len(DIFFERENT)


def test_the_id_of_a_schema_counts_only_in_values_that_have_one() -> None:
    rules = FingerprintRules(Equality.WITHOUT_SCHEMA_ID)
    values = [b"\0" + number + b"avro" for number in (b"\0\0\0\1", b"\0\0\0\2")]
    values += [b"\1" + value[1:] for value in values] + [b"\0\0\0\1", b"\0\0\0\2"]
    found = [fingerprint(PLAIN._replace(value=value), rules) for value in values]
    assert [found.index(one) for one in found] == [0, 0, 2, 3, 4, 5]


def test_an_open_transaction_hides_the_records_from_its_first_one_on() -> None:
    records = [PLAIN._replace(offset=offset) for offset in range(6)]
    data = batch(records[:2]) + batch(records[2:4], producer=Producer(1, 0, 0, transactional=True)) + batch(records[4:])
    piece = Piece(LogRange(0, 6), 0, 6, FingerprintRules())
    piece.add(data)
    visible = piece.committed()
    assert (list(visible.offsets), visible.end, visible.hidden) == ([0, 1], 2, 4)
    assert (piece.stretch.end, piece.stretch.hidden) == (6, 0)


@pytest.mark.parametrize("magic", [1, 2])
def test_pieces_of_a_log_make_the_same_stretch_as_the_whole(magic: int) -> None:
    records = [Record(number, TIME + number, b"%d" % number, b"value") for number in range(40)]
    batches = [records[first : first + 8] for first in range(0, 40, 8)]
    data = b"".join(batch(one) if magic == 2 else message_set(one, magic, codec=1) for one in batches)
    whole = piece_of(data, FingerprintRules(), stop=40)
    for middle in range(1, 40):
        first, later = (piece_of(data, FingerprintRules(), *range_) for range_ in ((0, middle), (middle, 40)))
        first.extend(later)
        assert (first.stretch.offsets, first.stretch.prints) == (whole.stretch.offsets, whole.stretch.prints)
        assert not first.stretch.gaps
        assert first.next_offset == 40
