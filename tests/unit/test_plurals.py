"""Counts and lists in messages."""

import pytest

from offsetmgr.core.plurals import count_of, list_of


@pytest.mark.parametrize(("number", "text"), [(0, "0 groups"), (1, "1 group"), (2, "2 groups"), (1000, "1,000 groups")])
def test_a_count_has_its_noun(number: int, text: str) -> None:
    assert count_of(number, "group") == text


@pytest.mark.parametrize(
    ("items", "text"),
    [("", ""), ("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c and 1 more"), (range(2000), "0, 1, 2 and 1,997 more")],
)
def test_a_long_list_names_the_number_of_the_other_items(items: str | range, text: str) -> None:
    assert list_of(items, 3) == text


def test_another_separator_is_repeated_in_front_of_the_number() -> None:
    assert list_of(["m1: late", "m2: late", "m3: late"], 2, "; ") == "m1: late; m2: late; and 1 more"
