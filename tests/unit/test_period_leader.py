"""When a leader looks again although nothing changes, and what it takes for the partitions that there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offsetmgr.core.errors import Unreachable
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.leader import FindIdlePartitions, LeaderRound
from offsetmgr.period.leader_decision import Advance, Leader, LeaderView
from offsetmgr.period.records import OpenNode, PartitionsNode, ProgressNode
from offsetmgr.period.schedule import PeriodSchedule
from offsetmgr.period.state_nodes import BarrierStateStore, BarrierView

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
LEADER = Leader("m", 7)
OPEN = OpenNode(PeriodSchedule(0, 10_000), 0, "m", 7, 0)


class Time:
    """A clock that is set by hand; both of its hands show the same."""

    def __init__(self) -> None:
        self.s = 0.0

    def now_ms(self) -> int:
        return int(self.s * 1000)

    def monotonic(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds


class Writes(BarrierStateStore):
    """What a leader would write; ZooKeeper takes everything."""

    def __init__(self) -> None:
        self.advances: list[Advance] = []
        self.reports: list[ProgressNode] = []

    def write_advance(self, advance: Advance, view: BarrierView) -> bool:
        self.advances.append(advance)
        return True

    def report(self, node: ProgressNode, version: int | None) -> bool:
        self.reports.append(node)
        return True

    def delete_progress(self, members: object, view: BarrierView) -> None:
        """Nobody has died."""


def view(finished: dict[TopicPartition, int], open_: OpenNode = OPEN) -> BarrierView:
    seen = LeaderView(open_, PartitionsNode(open_.number, frozenset({A0, A1})), {"m": ProgressNode("m", 7, finished)})
    return BarrierView(seen, 3, 3, {"m": 1})


def leading(time: Time, idle: FindIdlePartitions | None) -> LeaderRound:
    return LeaderRound(OPEN.schedule, lambda: [A0, A1], idle, 2_000, 100, time)


def test_a_leader_without_anything_to_look_at_sleeps_until_it_is_woken() -> None:
    time = Time()
    assert leading(time, None).next_check_in_s(view({})) is None
    with_idle = leading(time, lambda _period, held: held)
    assert with_idle.next_check_in_s(view({}, replace(OPEN, stopped="aborted"))) is None, "never again"


def test_idle_partitions_are_looked_for_once_the_period_and_the_grace_have_passed_and_then_more_and_more_rarely() -> (
    None
):
    time, asked = Time(), []

    def idle(_period: object, held: object) -> list[TopicPartition]:
        asked.append(held)
        return []

    leader, nodes = leading(time, idle), Writes()
    assert not leader.step(nodes, view({A0: 0}), LEADER)
    assert (asked, leader.next_check_in_s(view({A0: 0}))) == ([], 12.0)
    time.s = 12.0
    pauses = []
    for _ in range(7):
        assert not leader.step(nodes, view({A0: 0}), LEADER)
        pauses.append(pause := leader.next_check_in_s(view({A0: 0})))
        assert pause is not None
        time.s += pause
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert asked == [[A1]] * 7


def test_what_is_idle_is_reported_in_the_leaders_name_and_nothing_else_is() -> None:
    time = Time()
    time.s = 12.0
    leader, nodes = leading(time, lambda _period, _held: [A1, TopicPartition("foreign", 1)]), Writes()
    assert leader.step(nodes, view({A0: 0}), LEADER)
    assert nodes.reports == [ProgressNode("m", 7, {A0: 0, A1: 0}, frozenset({A1}))]


@pytest.mark.parametrize("answer", [[], Unreachable("kafka", "is down")])
def test_partitions_that_are_not_known_again_are_those_of_before(answer: object) -> None:
    def topics() -> list[TopicPartition]:
        if isinstance(answer, Unreachable):
            raise answer
        return []

    leader, nodes = LeaderRound(OPEN.schedule, topics, None, 0, 100, Time()), Writes()
    assert leader.step(nodes, view({A0: 0, A1: 0}), LEADER)
    assert [advance.partitions.partitions for advance in nodes.advances] == [{A0, A1}]


def test_a_leader_that_led_before_does_not_fall_back_on_what_there_was_then() -> None:
    # Given one that was told of one partition, lost the lead, and leads again when there are two
    time, answers = Time(), [[A0]]

    def topics() -> list[TopicPartition]:
        if answers:
            return answers.pop()
        raise Unreachable("kafka", "is down")

    leader, nodes = LeaderRound(OPEN.schedule, topics, None, 0, 100, time), Writes()
    assert leader.step(nodes, view({A0: 0, A1: 0}), LEADER)
    time.s = 100.0
    assert leader.step(nodes, view({A0: 0, A1: 0}), LEADER)
    assert [advance.partitions.partitions for advance in nodes.advances] == [{A0}, {A0, A1}]


def test_a_cluster_is_asked_only_where_a_period_opens() -> None:
    asked = []
    leader = LeaderRound(OPEN.schedule, lambda: asked.append(1) or [A0], None, 0, 100, Time())
    assert not leader.step(Writes(), view({A0: 0}), LEADER)
    assert asked == []
    assert leader.step(Writes(), view({A0: 0, A1: 0}), LEADER)
    assert asked == [1]
