"""The schedule and the batches of expiration passes."""

from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.batches import batched_by_size
from offsetmgr.manager.expiration import ExpirationSchedule


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 60))
def test_batches_contain_every_group_once_and_stay_within_the_limit(sizes: list[int], limit: int) -> None:
    groups = [f"g{index}" for index in range(len(sizes))]
    pieces = list(batched_by_size(groups, lambda group: 1 + sizes[int(group[1:])], limit))

    assert [group for piece in pieces for group in piece] == groups
    assert all(piece for piece in pieces)
    total = [sum(1 + sizes[int(group[1:])] for group in piece) for piece in pieces]
    assert all(len(piece) == 1 or size <= limit for piece, size in zip(pieces, total, strict=True))
    # Each batch is as large as permitted.
    assert all(size + 1 + sizes[int(later[0][1:])] > limit for size, later in zip(total, pieces[1:], strict=False))


def test_a_pass_continues_if_groups_lose_their_offsets() -> None:
    sizes = {"a": 5, "b": 5}
    pieces = batched_by_size(["a", "b", "c"], lambda group: 1 + sizes.get(group, 0), 8)

    assert next(pieces) == ["a"]
    sizes.clear()
    assert next(pieces) == ["b", "c"]


def test_a_pass_is_due_ten_minutes_after_the_start_and_every_ten_minutes_from_then_on() -> None:
    schedule = ExpirationSchedule(partitions=1)
    schedule.start(0, now=0.0)

    assert [now for now in (0.0, 599.9, 600.0, 600.1, 1199.9, 1200.0) if schedule.take_due(now)] == [600.0, 1200.0]


def test_passes_are_spread_over_the_interval() -> None:
    schedule = ExpirationSchedule(partitions=4, interval_s=600.0)
    for partition in range(4):
        schedule.start(partition, now=1000.0)

    assert schedule.take_due(1000.0) == []
    assert schedule.take_due(1149.9) == []
    assert schedule.take_due(1310.0) == [0, 1]
    assert schedule.take_due(1310.0) == []
    assert schedule.take_due(1449.9) == []
    assert schedule.take_due(5000.0) == [2, 3, 0, 1]


def test_a_partition_that_is_not_served_has_no_pass() -> None:
    schedule = ExpirationSchedule(partitions=2, interval_s=600.0)
    schedule.start(0, now=0.0)
    schedule.stop(0)
    schedule.stop(1)

    assert schedule.take_due(10_000.0) == []
