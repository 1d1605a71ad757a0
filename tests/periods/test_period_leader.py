"""The leader's checks at times without a change, and its list of the partitions."""

from dataclasses import dataclass, replace

import pytest

from offsetmgr.core.errors import Unreachable
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.leader import CoordinatorOptions, FindIdlePartitions, LeaderRound
from offsetmgr.period.leader_decision import Advance, Leader, LeaderView
from offsetmgr.period.records import OpenNode, PartitionsNode, ProgressNode
from offsetmgr.period.schedule import PeriodSchedule
from offsetmgr.period.state_nodes import BarrierStateStore, BarrierView

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
LEADER = Leader("m", 7)
OPEN = OpenNode(PeriodSchedule(0, 10_000), 0, "m", 7, 0)


@dataclass
class SetClock:
    """A clock that the test sets. Both of its times are equal."""

    s: float = 0.0

    def now_ms(self) -> int:
        return int(self.s * 1000)

    def monotonic(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds


class RecordedWrites(BarrierStateStore):
    """Records the writes of a leader. Each write succeeds."""

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
        """No member has died, so there is nothing to delete."""


def view(finished: dict[TopicPartition, int], open_: OpenNode = OPEN) -> BarrierView:
    seen = LeaderView(open_, PartitionsNode(open_.number, frozenset({A0, A1})), {"m": ProgressNode("m", 7, finished)})
    return BarrierView(seen, 3, 3, {"m": 1})


def leader_round(time: SetClock, idle: FindIdlePartitions | None) -> LeaderRound:
    return LeaderRound(OPEN.schedule, lambda: [A0, A1], CoordinatorOptions(idle, 2_000, clock=time))


def test_a_leader_without_anything_to_check_sleeps_until_a_node_changes() -> None:
    time = SetClock()
    assert leader_round(time, None).next_check_in_s(view({})) is None
    with_idle = leader_round(time, lambda _period, lagging: lagging)
    assert with_idle.next_check_in_s(view({}, replace(OPEN, stopped="aborted"))) is None, "no further check"


def test_idle_partitions_are_searched_after_the_period_and_its_grace_with_growing_pauses() -> None:
    time, searches = SetClock(), []

    def idle(_period: object, lagging: object) -> list[TopicPartition]:
        searches.append(lagging)
        return []

    leader, nodes = leader_round(time, idle), RecordedWrites()
    assert not leader.step(nodes, view({A0: 0}), LEADER)
    assert (searches, leader.next_check_in_s(view({A0: 0}))) == ([], 12.0)
    time.s = 12.0
    pauses = []
    for _ in range(7):
        assert not leader.step(nodes, view({A0: 0}), LEADER)
        pauses.append(pause := leader.next_check_in_s(view({A0: 0})))
        assert pause is not None
        time.s += pause
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert searches == [[A1]] * 7


def test_the_leader_reports_idle_partitions_and_no_others_in_its_own_name() -> None:
    leader, nodes = (
        leader_round(SetClock(12.0), lambda _period, _held: [A1, TopicPartition("foreign", 1)]),
        RecordedWrites(),
    )
    assert leader.step(nodes, view({A0: 0}), LEADER)
    assert nodes.reports == [ProgressNode("m", 7, {A0: 0, A1: 0}, frozenset({A1}))]


@pytest.mark.parametrize("answer", [[], Unreachable("kafka", "is down")])
def test_the_leader_keeps_the_previous_partitions_if_they_cannot_be_listed(answer: object) -> None:
    def topics() -> list[TopicPartition]:
        if isinstance(answer, Unreachable):
            raise answer
        return []

    leader, nodes = LeaderRound(OPEN.schedule, topics, CoordinatorOptions(clock=SetClock())), RecordedWrites()
    assert leader.step(nodes, view({A0: 0, A1: 0}), LEADER)
    assert [advance.partitions.partitions for advance in nodes.advances] == [{A0, A1}]


def test_a_leader_that_led_before_does_not_use_its_old_list_of_partitions() -> None:
    # The leader has read one partition, lost the lead, and leads again when there are two.
    time, answers = SetClock(), [[A0]]

    def topics() -> list[TopicPartition]:
        if answers:
            return answers.pop()
        raise Unreachable("kafka", "is down")

    leader, nodes = LeaderRound(OPEN.schedule, topics, CoordinatorOptions(clock=time)), RecordedWrites()
    assert leader.step(nodes, view({A0: 0, A1: 0}), LEADER)
    time.s = 100.0
    assert leader.step(nodes, view({A0: 0, A1: 0}), LEADER)
    assert [advance.partitions.partitions for advance in nodes.advances] == [{A0}, {A0, A1}]
