"""Typed fields of JSON objects: every error names the source, the field's path and the expected type."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest

from offsetmgr.core.errors import CorruptData, MalformedData, UnknownVersion
from offsetmgr.core.field_reader import FieldReader, parse_json


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def reader(**values: Any) -> FieldReader:
    return FieldReader.parse(json.dumps(values).encode(), "file f", hint="see the guide")


def test_fields_are_read_by_name_and_type() -> None:
    found = reader(
        version=1,
        n=7,
        t="x",
        b=False,
        c="blue",
        none=None,
        numbers={"a": 1},
        texts={"a": "x"},
        list=["x"],
        deep={"n": 1},
    )
    assert found.version((1, 2)) == 1
    assert (found.integer("n"), found.text("t"), found.boolean("b")) == (7, "x", False)
    assert found.choice("c", Colour) is Colour.BLUE
    assert (found.integers("numbers"), found.texts("texts"), found.text_list("list")) == ({"a": 1}, {"a": "x"}, ["x"])
    assert found.object("deep").integer("n") == 1


@pytest.mark.parametrize("name", ["none", "missing"])
def test_null_and_missing_fields_are_the_same(name: str) -> None:
    found = reader(none=None)
    assert found.optional_integer(name) is None
    assert found.optional_text(name) is None
    assert found.optional_choice(name, Colour) is None
    with pytest.raises(MalformedData, match=f"file f: has no '{name}'"):
        found.integer(name)


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (lambda found: found.integer("t"), "its 't' is not a number"),
        (lambda found: found.integer("b"), "its 'b' is not a number"),
        (lambda found: found.integer("n", maximum=6), "its 'n' is not a number between 0 and 6"),
        (lambda found: found.text("n"), "its 'n' is not a string"),
        (lambda found: found.boolean("n"), "its 'n' is not true or false"),
        (lambda found: found.choice("t", Colour), "its 't' is not one of red, blue"),
        (lambda found: found.object("list"), "its 'list' is not an object"),
        (lambda found: found.text_list("list"), "its 'list' is not a list of strings"),
        (lambda found: found.objects("t"), "its 't' is not a list of objects"),
        (lambda found: found.object("deep").text("n"), "its 'deep.n' is not a string"),
        (lambda found: found.texts("deep"), "its 'deep.n' is not a string"),
        (lambda found: found.objects("list")[1].integer("n"), "has no 'list[1].n'"),
        (lambda found: found.reject_unknown(["t", "n", "b"]), "its 'list' is an unknown field; known are t, n, b"),
    ],
)
def test_an_error_names_the_source_the_path_and_the_type(read: Callable[[FieldReader], object], why: str) -> None:
    with pytest.raises(MalformedData) as caught:
        read(reader(t="x", n=7, b=True, list=[{"n": 1}, {}], deep={"n": 1}))
    assert (caught.value.what, caught.value.why, caught.value.hint) == ("file f", why, "see the guide")


def test_an_unknown_version_is_named() -> None:
    with pytest.raises(UnknownVersion, match="file f: is of version 3; known: 1 to 2"):
        reader(version=3).version((1, 2))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"\xff", "is not UTF-8"),
        (b'{"a": secret}', "is not JSON: Expecting value (line 1, column 7)"),
        (b"[" * 100_000, "is JSON nested too deeply"),
        (b"1" * 5_000, "is JSON with a number that is too long"),
        (b"[]", "is JSON, but not an object"),
    ],
)
def test_what_is_not_a_json_object_is_named_and_not_quoted(data: bytes, why: str) -> None:
    with pytest.raises(CorruptData) as caught:
        FieldReader.parse(data, "ZooKeeper node /n", CorruptData)
    assert caught.value.why == why


def test_a_byte_order_mark_is_accepted() -> None:
    assert FieldReader.parse(b'\xef\xbb\xbf{"n":1}', "f").integer("n") == 1


def test_a_duplicate_key_can_be_an_error() -> None:
    data = b'{"a":{"b":1,"b":2}}'
    assert parse_json(data, AssertionError) == {"a": {"b": 2}}  # type: ignore[arg-type]
    with pytest.raises(MalformedData, match="'b' occurs twice in one object"):
        parse_json(data, lambda why: MalformedData("f", why), unique_keys=True)
