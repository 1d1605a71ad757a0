"""`PackedValues` behaves as a dict from partitions to values whose partitions are in ascending order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.manager.packed_values import PackedValues

PARTITIONS = st.one_of(st.integers(0, 70), st.integers(0, 300), st.sampled_from([-(2**31), -1, 2**31 - 1]))
VALUES = st.one_of(st.binary(min_size=3, max_size=5), st.just(b"x" * 24), st.binary(max_size=2), st.just(b"y" * 70_000))
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.tuples(PARTITIONS, VALUES)),
        st.tuples(st.just("put_many"), st.lists(st.tuples(PARTITIONS, VALUES), max_size=80)),
        st.tuples(st.just("put_run"), st.tuples(st.integers(0, 70), st.lists(VALUES, max_size=70))),
        st.tuples(st.just("remove_many"), st.lists(PARTITIONS, max_size=40)),
    ),
    max_size=12,
)


def put_many(packed: PackedValues, model: dict[int, bytes], items: list[tuple[int, bytes]]) -> None:
    before = len(model)
    model.update(items)
    added = packed.put_many([partition for partition, _ in items], [value for _, value in items])
    assert added == len(model) - before


def apply(packed: PackedValues, model: dict[int, bytes], what: str, change: Any) -> None:
    if what == "put":
        assert packed.put(*change) == (change[0] not in model)
        model.update([change])
    elif what == "put_many":
        put_many(packed, model, change)
    elif what == "put_run":
        put_many(packed, model, list(enumerate(change[1], change[0])))
    else:
        found = {partition for partition in change if model.pop(partition, None) is not None}
        assert packed.remove_many(change) == len(found)


@given(CHANGES, st.lists(PARTITIONS, max_size=80))
def test_any_changes(changes: list[tuple[str, Any]], sought: list[int]) -> None:
    packed, model = PackedValues(), dict[int, bytes]()
    for what, change in changes:
        apply(packed, model, what, change)

        assert list(packed.items()) == sorted(model.items())
        assert list(packed) == sorted(model)
        assert (len(packed), bool(packed)) == (len(model), bool(model))
        assert [packed.get(partition) for partition in sought] == [model.get(partition) for partition in sought]
        for partitions in (sought, sorted(model), range(50)):
            assert packed.get_many(partitions) == [model.get(partition) for partition in partitions]


def test_the_last_value_of_a_partition_counts() -> None:
    for others in (0, 20):
        packed = PackedValues()
        partitions = [5, *range(10, 10 + others), 5]
        assert packed.put_many(partitions, [b"old", *[b"other"] * others, b"new"]) == 1 + others
        assert packed.get(5) == b"new"


def test_an_iteration_survives_a_change() -> None:
    packed = PackedValues()
    packed.put_many([1, 200], [b"one", b"two"])
    iterator = packed.items()
    assert next(iterator) == (1, b"one")
    packed.remove_many([1, 200])
    assert list(iterator) == []
