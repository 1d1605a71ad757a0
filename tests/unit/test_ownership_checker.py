"""The checker of shared groups finds planted violations, and excuses only permitted duplicates."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from offsetmgr.core.model import TopicPartition

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

from ownership_checker import Delivery, check_history
from zookeeper_history import Commit, GroupHistory, OwnerNode

ORDERS = TopicPartition("orders", 0)


def sound_history() -> GroupHistory:
    """``g_a`` owns from 1000 to 2000 ms and commits 2, ``g_b`` from 2100 on, and commits 4."""
    return GroupHistory(
        owner_nodes=[
            OwnerNode(ORDERS, "g_a-0", 1, 10, 1000, 20, 2000, "released"),
            OwnerNode(ORDERS, "g_b-0", 2, 21, 2100),
        ],
        commits=[Commit(ORDERS, 2, 19, 1990, 1), Commit(ORDERS, 4, 30, 3000, 2)],
        members={1: "g_a", 2: "g_b"},
    )


def deliveries() -> list[Delivery]:
    return [
        Delivery("g_a", False, ORDERS, 0, 1500),
        Delivery("g_a", False, ORDERS, 1, 1990),
        Delivery("g_b", False, ORDERS, 2, 2100),
        Delivery("g_b", False, ORDERS, 3, 2200),
    ]


def test_a_sound_history_has_no_findings() -> None:
    result = check_history(sound_history(), deliveries(), {ORDERS: 4})

    assert (result.findings, dict(result.excused)) == ([], {})
    assert (result.messages, result.owner_nodes) == (4, 2)


def test_two_owners_at_once_are_found() -> None:
    history = sound_history()
    history.owner_nodes[1] = replace(history.owner_nodes[1], created_zxid=15, created_ms=1800)

    assert check_history(history, deliveries(), {ORDERS: 4}).findings == [
        "orders-0: g_b-0 became owner while g_a-0 was"
    ]


def test_a_message_after_the_end_of_ownership_is_found() -> None:
    late = [*deliveries()[:1], Delivery("g_a", False, ORDERS, 1, 2001), *deliveries()[2:]]

    assert check_history(sound_history(), late, {ORDERS: 4}).findings == [
        "orders-0: g_a delivered 1, which it owned last 1 ms before, released"
    ]


def test_a_message_from_a_member_that_never_owned_the_partition_is_found() -> None:
    foreign_owner = [*deliveries()[:3], Delivery("g_c", False, ORDERS, 3, 2200)]

    assert check_history(sound_history(), foreign_owner, {ORDERS: 4}).findings == [
        "orders-0: g_c delivered 3, which it owned last never"
    ]


def test_a_lost_message_is_found() -> None:
    assert check_history(sound_history(), deliveries()[:3], {ORDERS: 4}).findings == [
        "orders-0: 1 messages lost, the first at 3"
    ]


def test_a_message_delivered_twice_is_found_if_its_first_owner_released_the_partition() -> None:
    twice = [*deliveries(), Delivery("g_b", False, ORDERS, 1, 2300)]

    assert check_history(sound_history(), twice, {ORDERS: 4}).findings == [
        "orders-0: 1 delivered by g_a (released) at 1990 and again by g_b at 2300"
    ]


@pytest.mark.parametrize(("committed", "excused"), [(1, True), (2, False)])
def test_a_message_of_an_expired_owner_is_excused_from_its_last_commit_on(committed: int, excused: bool) -> None:
    history = sound_history()
    history.owner_nodes[0] = replace(history.owner_nodes[0], how="expired")
    history.commits[0] = replace(history.commits[0], offset=committed)
    twice = [*deliveries(), Delivery("g_b", False, ORDERS, 1, 2300)]

    result = check_history(history, twice, {ORDERS: 4})

    assert bool(result.findings) is not excused
    assert result.excused == ({"after the last commit of an expired member": 1} if excused else {})


@pytest.mark.parametrize(
    ("first_old", "second_old", "excused"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False)],
)
def test_an_early_read_is_excused_between_old_consumers_only(first_old: bool, second_old: bool, excused: bool) -> None:
    old = {"g_a": first_old, "g_b": second_old}
    twice = [*deliveries(), Delivery("g_b", False, ORDERS, 1, 2150)]

    result = check_history(sound_history(), [one._replace(old=old[one.member]) for one in twice], {ORDERS: 4})

    assert bool(result.findings) is not excused
    assert result.excused == ({"early read of an old consumer": 1} if excused else {})


@pytest.mark.parametrize(("committed_ms", "excused"), [(1101, True), (1100, False)])
def test_an_early_read_is_excused_for_as_long_as_a_python_owner_would_have_waited(
    committed_ms: int, excused: bool
) -> None:
    history = sound_history()
    history.commits[0] = replace(history.commits[0], time_ms=committed_ms)
    twice = [one._replace(old=True) for one in (*deliveries(), Delivery("g_b", True, ORDERS, 1, 2150))]

    result = check_history(history, twice, {ORDERS: 4})

    assert bool(result.findings) is not excused
    assert result.excused == ({"early read of an old consumer": 1} if excused else {})


def test_an_early_read_that_missed_several_commits_is_checked_against_the_first_of_them() -> None:
    history = sound_history()
    history.commits.insert(0, Commit(ORDERS, 1, 15, 1050, 1))
    delivered = [one._replace(old=True) for one in deliveries()]

    again_from_1 = check_history(history, [*delivered, Delivery("g_b", True, ORDERS, 1, 2150)], {ORDERS: 4})
    again_from_0 = check_history(history, [*delivered, Delivery("g_b", True, ORDERS, 0, 2140)], {ORDERS: 4})

    assert (again_from_1.findings, dict(again_from_1.excused)) == ([], {"early read of an old consumer": 1})
    assert again_from_0.findings == [
        "orders-0: 0 delivered by g_a (released) at 1500 and again by g_b at 2140",
    ]


def test_a_commit_without_ownership_is_found() -> None:
    history = sound_history()
    history.commits.append(Commit(ORDERS, 1, 31, 3100, 1))

    assert check_history(history, deliveries(), {ORDERS: 4}).findings == ["orders-0: g_a committed 1 without owning it"]


def test_an_owner_node_deleted_by_others_is_found() -> None:
    history = sound_history()
    history.owner_nodes[0] = replace(history.owner_nodes[0], how="deleted by others")

    assert check_history(history, deliveries(), {ORDERS: 4}).findings == [
        "orders-0: the owner node of g_a-0 was deleted by others"
    ]


@pytest.mark.parametrize("old", [False, True])
def test_late_messages_of_an_expired_member_are_excused_for_old_consumers_only(old: bool) -> None:
    history = sound_history()
    history.owner_nodes[0] = replace(history.owner_nodes[0], how="expired")
    delivered = [one._replace(old=old and one.member == "g_a") for one in deliveries()]
    late = [*delivered, Delivery("g_a", old, ORDERS, 2, 2150)]

    result = check_history(history, late, {ORDERS: 4})

    assert bool(result.findings) is not old
    assert result.excused == (
        {"message of a late old consumer": 1, "message of a late old consumer, doubled": 1} if old else {}
    )
