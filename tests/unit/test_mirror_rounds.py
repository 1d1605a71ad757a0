"""The mirror's rounds over in-memory stores: failures, retries, and the reported lag."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import pytest
from one_migration import LockableMemoryStore

from offsetmgr.cli.migrate_output import MirrorLine
from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition, Unreachable
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Capabilities, GroupOffsets
from offsetmgr.migration.change_notifier import PollingNotifier
from offsetmgr.migration.mirror import Mirror
from offsetmgr.migration.mirror_group import GroupMirror, MirrorState, MirrorStatus
from offsetmgr.migration.mirror_safety import LegacyGroup, LegacyMemberEvidence, LegacyOwner
from offsetmgr.migration.plan import PlanOptions
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.testing.memory import MemoryStore

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
UNREACHABLE = Unreachable("ZooKeeper", "no server answered")


@dataclass
class StepClock:
    """A clock that advances only in `sleep`."""

    now: float = 1000.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def set_offsets(store: MemoryStore, group: str, **offsets: int) -> None:
    tps = {"p0": P0, "p1": P1}
    store.commit(group, {tps[name]: OffsetAndMetadata(offset) for name, offset in offsets.items()})


def offsets_in(store: MemoryStore, group: str) -> dict[int, int]:
    return {tp.partition: c.offset for tp, c in store.fetch(group).items() if isinstance(c, Committed)}


def mirror_of(source: MemoryStore, target: MemoryStore, **options: Any) -> Mirror:
    clock = StepClock()
    return Mirror(source, target, PlanOptions(**options), PollingNotifier(clock, 0.5), clock)


def test_a_new_state_of_a_group_is_reported_at_once_and_an_unchanged_one_periodically(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def status(time_s: float, **states: int) -> MirrorStatus:
        found = {MirrorState[name.upper()]: count for name, count in states.items()}
        return MirrorStatus(1, 0, 0, 0, found, int(time_s * 1000))

    line = MirrorLine()
    for time_s, states in [
        (100, {"following": 2}), (101, {"following": 2}), (102, {"following": 1, "taken": 1}),
        (102.3, {"failing": 1, "taken": 1}), (103, {"failing": 1, "taken": 1}), (112.3, {"failing": 1, "taken": 1}),
    ]:  # fmt: skip
        line.show(status(time_s, **states))

    shown = [one.split("  ")[1].split(";")[0] for one in capsys.readouterr().err.splitlines()]
    assert shown == ["2 following", "1 following, 1 taken", "1 failing, 1 taken", "1 failing, 1 taken"]


def test_once_ends_if_the_only_partition_left_can_never_be_written():
    source, target = MemoryStore("a"), MemoryStore("b")
    set_offsets(source, "g", p0=5, p1=7)
    target.broken["g", P1] = UnknownTopicOrPartition("orders-1", "the topic or partition does not exist on the broker")
    mirror = mirror_of(source, target)
    mirror.run(once=True)
    group = mirror.groups["g"]
    assert offsets_in(target, "g") == {0: 5}
    assert (group.state, group.succeeded, group.lag) == (MirrorState.FAILING, False, None)
    assert "does not exist on the broker" in group.detail


def test_a_retriable_failure_of_one_partition_is_retried_until_it_is_written():
    source, target = MemoryStore("a"), MemoryStore("b")
    set_offsets(source, "g", p0=5)
    target.broken["g", P0] = UNREACHABLE
    mirror = mirror_of(source, target)
    seen: list[tuple[dict[MirrorState, int], int]] = []

    def heal(status) -> None:
        seen.append((dict(status.states), status.unknown))
        if status.rounds == 3:
            target.broken.clear()

    mirror.report = heal
    mirror.run(once=True)
    assert seen == [*[({MirrorState.FAILING: 1}, 1)] * 3, ({MirrorState.FOLLOWING: 1}, 0)]
    assert offsets_in(target, "g") == {0: 5}


class NewTopicStore(LockableMemoryStore):
    """A target whose topic was created at second 5."""

    has_topic_creation_times = True

    def topic_creation_times(self, topics: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(topics, 5000)


def test_an_offset_of_a_deleted_log_is_not_committed_again():
    offsets = {P0: Committed(5, commit_timestamp=4000), P1: Committed(7, commit_timestamp=6000)}
    source, target = MemoryStore("a", data={"g": offsets}), NewTopicStore("b", data={"g": dict(offsets)})
    mirror = mirror_of(source, target)
    mirror.crossing = CrossClusterCheck(source, target)
    mirror.run(once=True)
    assert (target.refreshed, mirror.groups["g"].succeeded) == ({"g": {P1}}, False)


class OffsetsOnly(MemoryStore):
    capabilities = Capabilities(metadata=False, leader_epoch=False, commit_timestamp=False, conditional="version")


def test_metadata_that_the_target_cannot_hold_is_named():
    source, target = MemoryStore("a"), OffsetsOnly("b")
    source.commit("g", {P0: OffsetAndMetadata(5, "checked by hand")})
    mirror = mirror_of(source, target)
    mirror.run(once=True)
    assert mirror.groups["g"].detail == "drops the metadata of 1 offset (a client's own text)"


def test_metadata_of_an_offset_that_the_target_has_already_is_named():
    mirror = GroupMirror("g", "g", mirrored_offsets={P0: Committed(5, "checked by hand"), P1: Committed(7, "same")})
    mirror.set_target_offsets({P0: Committed(5), P1: Committed(7, "same")})
    mirror.mark_in_step()
    assert mirror.detail == "drops the metadata of 1 offset (a client's own text)"
    mirror.set_target_offsets({P0: Committed(4), P1: Committed(7, "same")})  # then the mirror writes the offset of P0
    mirror.mark_in_step()
    assert mirror.detail == ""


def test_a_partition_that_could_not_be_read_at_the_start_is_written_only_after_both_stores_were_read():
    source, target = MemoryStore("a"), MemoryStore("b")
    set_offsets(source, "g", p0=5, p1=90)
    set_offsets(target, "g", p1=40)
    mirror = mirror_of(source, target)
    prepared: list[dict[int, int]] = []

    def prepare(new: Sequence[GroupMirror]) -> None:
        prepared.append(offsets_in(target, "g"))
        for one in new:
            one.unread_partitions = frozenset({P1} if len(prepared) == 1 else ())

    mirror.on_new = prepare
    mirror.run(once=True)
    group = mirror.groups["g"]
    assert offsets_in(target, "g") == {0: 5, 1: 40}
    assert (group.succeeded, "orders-1 is not mirrored until both stores can be read" in group.detail) == (False, True)

    mirror.clock.sleep(mirror.idle_s)
    mirror.run(once=True)
    assert offsets_in(target, "g") == {0: 5, 1: 90}
    assert prepared == [{1: 40}, {0: 5, 1: 40}]


@dataclass
class UnreliableStore(MemoryStore):
    """A source that can become unreachable."""

    unreachable: bool = False

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        if self.unreachable:
            raise UNREACHABLE
        yield from super().scan(groups)


@dataclass
class UnreliableNotifier:
    """A notifier whose source is unreachable for some calls."""

    clock: StepClock
    unreachable: Callable[[], bool]
    calls: int = 0

    def wait(self, timeout_s: float) -> set[str] | None:
        self.calls += 1
        if self.unreachable():
            raise UNREACHABLE
        self.clock.sleep(timeout_s)
        return set()


def test_a_temporarily_unreachable_source_is_reported_and_does_not_end_the_mirror():
    source, target = UnreliableStore("a"), MemoryStore("b")
    set_offsets(source, "g", p0=5)
    mirror = mirror_of(source, target)
    mirror.notifier = UnreliableNotifier(cast(StepClock, mirror.clock), lambda: source.unreachable)
    stop = threading.Event()
    failing: list[tuple[float, str, int | None]] = []

    def steps(status) -> None:
        group = mirror.groups["g"]
        if group.state is MirrorState.FAILING:
            failing.append((mirror.clock.monotonic(), group.detail, group.lag))
        if status.rounds == 1:
            source.unreachable = True
        elif failing and offsets_in(target, "g") == {0: 9}:
            stop.set()
        elif len(failing) == 8:
            source.unreachable = False
            set_offsets(source, "g", p0=9)

    mirror.report, mirror.stop = steps, stop.is_set
    mirror.run()
    assert offsets_in(target, "g") == {0: 9}
    assert {(detail, lag) for _, detail, lag in failing} == {(str(UNREACHABLE), None)}
    pauses = [later - sooner for (sooner, *_), (later, *_) in pairwise(failing)]
    assert pauses == pytest.approx([0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])
    assert mirror.groups["g"].lag == 0


def test_a_failure_of_the_first_comparison_is_raised():
    with pytest.raises(Unreachable):
        mirror_of(UnreliableStore("a", data={"g": {P0: Committed(1)}}, unreachable=True), MemoryStore("b")).run()


def test_a_group_found_later_is_never_mirrored_to_the_target_of_another_group():
    source, target = MemoryStore("a"), MemoryStore("b")
    set_offsets(source, "old", p0=5)
    mirror = mirror_of(source, target, rename={"old": "new"})
    stop = threading.Event()

    def steps(status) -> None:
        if status.rounds == 1:
            set_offsets(source, "new", p0=90)
        elif status.rounds == 3:
            stop.set()

    mirror.report, mirror.stop = steps, stop.is_set
    mirror.run()
    assert offsets_in(target, "new") == {0: 5}
    assert mirror.groups["new"].state is MirrorState.REJECTED
    assert "group old is mirrored to new already" in mirror.groups["new"].detail


def test_lag_counts_only_offsets_behind_the_source_and_is_unknown_if_the_source_is_unreadable():
    source, target = MemoryStore("a"), MemoryStore("b")
    set_offsets(source, "g", p0=5, p1=7)
    set_offsets(target, "g", p0=50)
    mirror = mirror_of(source, target)
    assert mirror.run(once=True).lag == 0
    assert mirror.groups["g"].state is MirrorState.TARGET_AHEAD
    source.broken["g", P1] = OffsetMgrError("node", "not an offset")
    set_offsets(source, "g", p0=6)
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


# --- evidence that a member commits only to ZooKeeper ------------------------------------------------


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


def test_a_partition_that_stays_beyond_the_target_proves_nothing():
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


def test_a_move_during_a_change_of_owner_proves_nothing():
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


def test_a_member_without_partitions_is_unproven_until_it_can_no_longer_get_one():
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
