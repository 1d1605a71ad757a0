"""Variable-length numbers, which Kafka and Avro share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.varint import decode_varint, encode_varint, unzigzag, zigzag


@pytest.mark.parametrize(
    ("number", "data"),
    [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\1"), (300, b"\xac\2"), (2**32 - 1, b"\xff\xff\xff\xff\x0f")],
)
def test_seven_bits_are_in_each_byte_the_lowest_first(number: int, data: bytes) -> None:
    assert encode_varint(number) == data


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_a_number_is_read_as_it_was_written(number: int, after: bytes) -> None:
    data = encode_varint(number)
    assert decode_varint(b"x" + data + after, 1, 10) == (number, 1 + len(data))


@given(st.integers(-(2**63), 2**63 - 1))
def test_zigzag_numbers_are_not_negative(number: int) -> None:
    assert 0 <= zigzag(number) < 2**64
    assert unzigzag(zigzag(number)) == number


def test_small_numbers_alternate_in_zigzag() -> None:
    assert [zigzag(number) for number in (0, -1, 1, -2, 2)] == [0, 1, 2, 3, 4]


def test_a_number_that_does_not_end_is_an_error() -> None:
    with pytest.raises(IndexError):
        decode_varint(b"\x80\x80", 0, 5)
    with pytest.raises(ValueError, match="within 5 bytes"):
        decode_varint(b"\x80" * 6, 0, 5)
