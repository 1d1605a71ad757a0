"""The mirror's rounds over stores in memory: what fails, what is retried, and what the lag says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import pytest

from offsetmgr.cli.migrate_output import MirrorLine
from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition, Unreachable
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.migration.change_notifier import PollingNotifier
from offsetmgr.migration.mirror import Mirror
from offsetmgr.migration.mirror_group import GroupMirror, MirrorState, MirrorStatus
from offsetmgr.migration.mirror_safety import LegacyGroup, LegacyMemberEvidence, LegacyOwner
from offsetmgr.migration.plan import PlanOptions
from offsetmgr.testing.memory import MemoryStore

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
AWAY = Unreachable("ZooKeeper", "no server answered")


@dataclass
class StepClock:
    """Time that passes only when somebody sleeps."""

    now: float = 1000.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def at(store: MemoryStore, group: str, **offsets: int) -> None:
    tps = {"p0": P0, "p1": P1}
    store.commit(group, {tps[name]: OffsetAndMetadata(offset) for name, offset in offsets.items()})


def held(store: MemoryStore, group: str) -> dict[int, int]:
    return {tp.partition: c.offset for tp, c in store.fetch(group).items() if isinstance(c, Committed)}


def mirror_of(source: MemoryStore, target: MemoryStore, **options: Any) -> Mirror:
    clock = StepClock()
    return Mirror(source, target, PlanOptions(**options), PollingNotifier(clock, 0.5), clock)


def test_a_group_that_comes_into_another_state_is_reported_at_once_and_the_same_state_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def status(at_s: float, **states: int) -> MirrorStatus:
        found = {MirrorState[name.upper()]: count for name, count in states.items()}
        return MirrorStatus(1, 0, 0, 0, found, int(at_s * 1000))

    line = MirrorLine()
    for at_s, states in [
        (100, {"following": 2}), (101, {"following": 2}), (102, {"following": 1, "taken": 1}),
        (102.3, {"failing": 1, "taken": 1}), (103, {"failing": 1, "taken": 1}), (112.3, {"failing": 1, "taken": 1}),
    ]:  # fmt: skip
        line.show(status(at_s, **states))

    said = [one.split("  ")[1].split(";")[0] for one in capsys.readouterr().err.splitlines()]
    assert said == ["2 following", "1 following, 1 taken", "1 failing, 1 taken", "1 failing, 1 taken"]


def test_once_ends_where_a_partition_can_never_be_written_and_the_others_are():
    source, target = MemoryStore("a"), MemoryStore("b")
    at(source, "g", p0=5, p1=7)
    target.broken["g", P1] = UnknownTopicOrPartition("orders-1", "the topic or partition does not exist on the broker")
    mirror = mirror_of(source, target)
    mirror.run(once=True)
    group = mirror.groups["g"]
    assert held(target, "g") == {0: 5}
    assert (group.state, group.succeeded, group.lag) == (MirrorState.FAILING, False, None)
    assert "does not exist on the broker" in group.detail


def test_a_retriable_failure_of_one_partition_is_tried_again_until_it_is_written():
    source, target = MemoryStore("a"), MemoryStore("b")
    at(source, "g", p0=5)
    target.broken["g", P0] = AWAY
    mirror = mirror_of(source, target)
    seen: list[tuple[dict[MirrorState, int], int]] = []

    def heal(status) -> None:
        seen.append((dict(status.states), status.unknown))
        if status.rounds == 3:
            target.broken.clear()

    mirror.report = heal
    mirror.run(once=True)
    assert seen == [*[({MirrorState.FAILING: 1}, 1)] * 3, ({MirrorState.FOLLOWING: 1}, 0)]
    assert held(target, "g") == {0: 5}


@dataclass
class LeavingStore(MemoryStore):
    """A source that can be away as a whole."""

    away: bool = False

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        if self.away:
            raise AWAY
        yield from super().scan(groups)


@dataclass
class LeavingFeed:
    """A feed whose source is away for some calls."""

    clock: StepClock
    away: Callable[[], bool]
    calls: int = 0

    def wait(self, timeout_s: float) -> set[str] | None:
        self.calls += 1
        if self.away():
            raise AWAY
        self.clock.sleep(timeout_s)
        return set()


def test_a_source_that_is_away_for_a_while_ends_nothing_and_is_named():
    source, target = LeavingStore("a"), MemoryStore("b")
    at(source, "g", p0=5)
    mirror = mirror_of(source, target)
    mirror.notifier = LeavingFeed(cast(StepClock, mirror.clock), lambda: source.away)
    stop = threading.Event()
    failing: list[tuple[float, str, int | None]] = []

    def steps(status) -> None:
        group = mirror.groups["g"]
        if group.state is MirrorState.FAILING:
            failing.append((mirror.clock.monotonic(), group.detail, group.lag))
        if status.rounds == 1:
            source.away = True
        elif failing and held(target, "g") == {0: 9}:
            stop.set()
        elif len(failing) == 8:
            source.away = False
            at(source, "g", p0=9)

    mirror.report, mirror.stop = steps, stop.is_set
    mirror.run()
    assert held(target, "g") == {0: 9}
    assert {(detail, lag) for _, detail, lag in failing} == {(str(AWAY), None)}
    pauses = [later - sooner for (sooner, *_), (later, *_) in pairwise(failing)]
    assert pauses == pytest.approx([0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])
    assert mirror.groups["g"].lag == 0


def test_the_very_first_comparison_raises():
    with pytest.raises(Unreachable):
        mirror_of(LeavingStore("a", data={"g": {P0: Committed(1)}}, away=True), MemoryStore("b")).run()


def test_a_group_found_later_never_gets_the_name_of_another_ones_target():
    source, target = MemoryStore("a"), MemoryStore("b")
    at(source, "old", p0=5)
    mirror = mirror_of(source, target, rename={"old": "new"})
    stop = threading.Event()

    def steps(status) -> None:
        if status.rounds == 1:
            at(source, "new", p0=90)
        elif status.rounds == 3:
            stop.set()

    mirror.report, mirror.stop = steps, stop.is_set
    mirror.run()
    assert held(target, "new") == {0: 5}
    assert mirror.groups["new"].state is MirrorState.REJECTED
    assert "group old is mirrored to new already" in mirror.groups["new"].detail


def test_lag_counts_what_the_target_lacks_and_is_unknown_where_the_source_cannot_be_read():
    source, target = MemoryStore("a"), MemoryStore("b")
    at(source, "g", p0=5, p1=7)
    at(target, "g", p0=50)
    mirror = mirror_of(source, target)
    assert mirror.run(once=True).lag == 0
    assert mirror.groups["g"].state is MirrorState.TARGET_AHEAD
    source.broken["g", P1] = OffsetMgrError("node", "not an offset")
    at(source, "g", p0=6)
    status = mirror.run(once=True)
    assert (mirror.groups["g"].state, mirror.groups["g"].lag, status.unknown) == (MirrorState.FAILING, None, 1)


def test_a_group_that_was_taken_while_its_target_was_behind_is_no_success():
    group = GroupMirror(
        "g", "g", mirrored_offsets={P0: Committed(60), P1: Committed(5)}, target_offsets={P0: 50, P1: 9}
    )
    group.compute_lag()
    group.mark_taken("a consumer took it")
    assert (group.state, group.lag, group.succeeded) == (MirrorState.TAKEN, 10, False)
    assert group.detail == "a consumer took it; the target was 10 offsets behind the source then"


# --- what proves that a member commits to ZooKeeper alone --------------------------------------------


def of(**offsets: int) -> dict[TopicPartition, Committed]:
    return {{"p0": P0, "p1": P1}[name]: Committed(offset) for name, offset in offsets.items()}


ONE = LegacyGroup({"a": 1}, {P0: LegacyOwner("a", 10)})


def test_a_partition_that_moved_beyond_the_target_proves_its_owner():
    watch = LegacyMemberEvidence()
    watch.observe(ONE, of(p0=5), {}, 0)
    assert watch.unproven(ONE, 0) == ["a"]
    watch.observe(ONE, of(p0=6), of(p0=5), 1)
    assert watch.unproven(ONE, 1) == []
    assert watch.allows_lock(ONE)


def test_a_partition_that_stands_beyond_the_target_proves_nothing():
    """A member bounced to dual commit a moment ago has not committed yet."""
    watch = LegacyMemberEvidence()
    for second in range(100):
        watch.observe(ONE, of(p0=5), {}, second)
    assert watch.unproven(ONE, 100) == ["a"]


def test_a_partition_whose_target_moved_along_proves_nothing():
    watch = LegacyMemberEvidence()
    watch.observe(ONE, of(p0=5), of(p0=5), 0)
    watch.observe(ONE, of(p0=6), of(p0=6), 1)
    watch.observe(ONE, of(p0=7), of(p0=900), 2)
    assert watch.unproven(ONE, 2) == ["a"]


def test_a_move_while_the_owner_changed_proves_no_client():
    watch = LegacyMemberEvidence()
    both = {"a": 1, "b": 2}
    watch.observe(LegacyGroup(both, {P0: LegacyOwner("a", 10)}), of(p0=5), {}, 0)
    later = LegacyGroup(both, {P0: LegacyOwner("b", 11)})
    watch.observe(later, of(p0=6), {}, 1)
    assert watch.unproven(later, 20) == ["b"]


def test_a_member_that_comes_back_under_its_name_is_new():
    watch = LegacyMemberEvidence()
    watch.observe(ONE, of(p0=5), {}, 0)
    watch.observe(ONE, of(p0=6), {}, 1)
    again = LegacyGroup({"a": 2}, {P0: LegacyOwner("a", 20)})
    assert not watch.allows_lock(again)
    watch.observe(again, of(p0=6), {}, 2)
    assert watch.unproven(again, 2) == ["a"]


def test_a_member_without_partitions_counts_until_it_can_get_none_any_more():
    watch = LegacyMemberEvidence()
    two = LegacyGroup({"a": 1, "spare": 2}, {P0: LegacyOwner("a", 10)})
    watch.observe(ONE, of(p0=5), {}, 0)
    watch.observe(two, of(p0=6), {}, 1)
    assert watch.unproven(two, 2) == ["spare"]
    fresh = LegacyMemberEvidence()
    fresh.observe(two, {}, {}, 1)
    assert fresh.unproven(two, 2) == ["a", "spare"]
    assert watch.unproven(two, 12) == []
    rebalancing = LegacyGroup({"a": 1, "spare": 2}, {})
    assert watch.unproven(rebalancing, 12) == ["spare"]


def test_an_owner_that_cannot_be_read_is_never_proven():
    watch = LegacyMemberEvidence()
    unknown = LegacyGroup({"a": 1}, {P0: LegacyOwner(None, 10)})
    watch.observe(unknown, of(p0=5), {}, 0)
    watch.observe(unknown, of(p0=6), {}, 1)
    assert watch.unproven(unknown, 20) == ["an owner that cannot be read"]
    assert not watch.allows_lock(unknown)
