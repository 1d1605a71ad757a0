"""Conversion of a table's rows for a store, and the groups and options of a table. The tests need no Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from memory_stores import HidingStore

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import CorruptData, GroupActive, GroupNotFound, UsageError
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.selection import ALL_TOPICS, GroupSelection
from offsetmgr.server.store_backends.store_calls import read_groups
from offsetmgr.spark import source_options, store_rows
from offsetmgr.spark.store_rows import read_rows, select_groups, select_groups_of_stores, write_rows
from offsetmgr.testing.memory import MemoryStore

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
CONFIG: Any = None


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> dict[str, MemoryStore]:
    """The stores that `open_store` opens, by URI."""
    found = {"one": MemoryStore("one"), "two": MemoryStore("two")}

    @contextmanager
    def kept(uri: str) -> Iterator[MemoryStore]:
        yield found[uri]

    def opened(uri: str, _config: object) -> Any:
        store = kept(uri)
        store.capabilities = found[uri].capabilities  # type: ignore[attr-defined]
        return store

    monkeypatch.setattr(store_rows, "open_store", opened)
    return found


def test_a_group_with_data_that_may_be_offsets_is_not_read_as_complete(stores: dict[str, MemoryStore]) -> None:
    stores["one"] = HidingStore("one", data={"g": {T0: Committed(5)}})
    unknown, known = read_rows(["g"], "one", CONFIG, ALL_TOPICS, errors=True)
    assert (*unknown[:4], unknown[-1]) == ("g", None, None, None, "group 'g': its offsets may be incomplete")
    assert (*known[:4], known[-1]) == ("g", "t", 0, 5, None)
    with pytest.raises(CorruptData, match="may be incomplete"):
        list(read_rows(["g"], "one", CONFIG, ALL_TOPICS, errors=False))
    assert read_groups(stores["one"], {"g": None})["g"].error is not None
    assert read_groups(stores["one"], {"g": [T0], "h": [T0]})["g"].offsets == {T0: Committed(5)}


def row(group: Any, topic: Any, partition: Any, offset: Any, **more: Any) -> dict[str, Any]:
    return {"group": group, "topic": topic, "partition": partition, "offset": offset, **more}


def written(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    found = write_rows(rows, "one", CONFIG)
    return [(o.group, o.topic, o.partition, o.offset, o.status, o.error) for o in found]


def test_several_commits_of_one_partition_are_all_rejected(stores: dict[str, MemoryStore]) -> None:
    why = "the table contains several commits for this partition"

    assert written([row("g", "t", 0, 5), row("g", "t", 1, 7), row("g", "t", 0, 3)]) == [
        ("g", "t", 1, 7, "written", None),
        ("g", "t", 0, 5, "failed", why),
        ("g", "t", 0, 3, "failed", why),
    ]
    assert list(stores["one"].data["g"]) == [T1]


def test_a_repeated_commit_counts_once(stores: dict[str, MemoryStore]) -> None:
    assert written([row("g", "t", 0, 5), row("g", "t", 0, 5)]) == [("g", "t", 0, 5, "written", None)]


def test_invalid_rows_fail_and_the_others_are_written(stores: dict[str, MemoryStore]) -> None:
    rows = [
        row("g", "t", 0, None, error=None),
        row("g", None, None, None, error="it is gone"),
        row("g", "t", 1, 7, error=None),
        row("h", "t", "0", 7, error=None),
    ]

    assert sorted(written(rows), key=str) == [
        ("g", "t", 0, None, "failed", "its offset is null"),
        ("g", "t", 1, 7, "written", None),
        ("g", None, None, None, "failed", "it could not be read: it is gone"),
        ("h", "t", "0", 7, "failed", "its partition is '0'"),
    ]


def test_separated_rows_of_one_group_are_written(stores: dict[str, MemoryStore]) -> None:
    rows = [row("g", "t", 0, 5), row("h", "t", 0, 6), row("g", "t", 1, 7)]

    assert {(group, tp, offset) for group, _, tp, offset, *_ in written(rows)} == {
        ("g", 0, 5),
        ("h", 0, 6),
        ("g", 1, 7),
    }
    assert {tp: found.offset for tp, found in stores["one"].data["g"].items()} == {T0: 5, T1: 7}


def test_a_group_that_a_dead_worker_has_locked_is_written_when_the_lock_has_ended(stores, monkeypatch) -> None:
    stores["one"].broken["g"] = GroupActive("group g", "has active members", lock_ends_s=10)
    waits: list[float] = []

    def lock_ends(seconds: float) -> None:
        waits.append(seconds)
        stores["one"].broken.clear()

    monkeypatch.setattr("time.sleep", lock_ends)
    assert written([row("g", "t", 0, 5), row("h", "t", 0, 6)]) == [
        ("h", "t", 0, 6, "written", None),
        ("g", "t", 0, 5, "written", None),
    ]
    assert waits == [10]


def test_a_group_that_stays_locked_fails(stores: dict[str, MemoryStore], monkeypatch: pytest.MonkeyPatch) -> None:
    stores["one"].broken["g"] = GroupActive("group g", "has active members", lock_ends_s=10)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    ((*_, status, error),) = written([row("g", "t", 0, 5)])
    assert status == "failed"
    assert "has active members" in error


def test_a_group_unknown_to_the_store_is_an_error_and_not_an_empty_table(stores: dict[str, MemoryStore]) -> None:
    stores["one"].commit("orders", {T0: OffsetAndMetadata(1)})

    assert [select_groups("one", CONFIG, GroupSelection(names)) for names in ("orders", None)] == [["orders"]] * 2
    with pytest.raises(GroupNotFound, match="'odrers'"):
        select_groups("one", CONFIG, GroupSelection(["orders", "odrers"]))


def test_a_group_must_exist_in_at_least_one_of_two_stores(stores: dict[str, MemoryStore]) -> None:
    stores["one"].commit("a-1", {T0: OffsetAndMetadata(1)})
    stores["two"].commit("b-1", {T0: OffsetAndMetadata(1)})
    both = [("one", CONFIG), ("two", CONFIG)]

    assert select_groups_of_stores(both, GroupSelection()) == ["a-1", "b-1"]
    assert select_groups_of_stores(both, GroupSelection(["b-*", "a-1"])) == ["a-1", "b-1"]
    for name in ("c-1", "c-*"):
        with pytest.raises(GroupNotFound, match="in any of the stores"):
            select_groups_of_stores(both, GroupSelection(["a-1", name]))


def test_options_of_a_table_have_defaults_and_names_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("security.protocol=SSL\n")
    given = {"Topic": "t", "GROUP": " a, b ,", "timeout": "7", "commandConfig": str(tmp_path / "client.properties")}
    options = source_options.checked("f", {**given, "path": "p"}, ["topic", "group"])
    assert options == {"path": "p"} | {name.lower(): value for name, value in given.items()}
    assert source_options.required("f", options, "Topic", "orders") == "t"
    assert (source_options.groups("f", options), source_options.groups("f", {})) == (["a", "b"], [])
    assert source_options.number("f", options, "tasks", 16) == 16
    config = source_options.connection("f", options)
    assert (config.timeout_ms, config.kafka["security.protocol"]) == (7, "SSL")
    assert source_options.connection("f", {}) == ConnectionConfig()
    assert source_options.dotted({"a__b": 1, "c": 2}) == {"a.b": 1, "c": 2}


@pytest.mark.parametrize(
    ("read", "arguments", "options", "why"),
    [
        (source_options.checked, [["topic"]], {"topics": "t"}, "there is no option 'topics'"),
        (source_options.required, ["topic", "orders"], {"topic": ""}, "option 'topic' is missing"),
        (source_options.groups, [], {"group": " ,"}, "option 'group' is empty"),
        (source_options.groups, [], {"group": "a,b*"}, r"group 'b\*' is a pattern"),
        (source_options.number, ["tasks", 16], {"tasks": "0"}, "option 'tasks' is '0'"),
        (source_options.number, ["tasks", 16], {"tasks": "many"}, "option 'tasks' is 'many'"),
    ],
)
def test_a_wrong_option_of_a_table_is_rejected(read, arguments: list[Any], options: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read("f", options, *arguments)
