"""The mirror's rounds over in-memory stores: failures, retries, and the reported lag."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from committed_offsets import offsets_of
from memory_stores import LockableMemoryStore
from scripted_group import ScriptedClock

from offsetmgr import PlanOptions
from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition, Unreachable
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Capabilities, GroupOffsets
from offsetmgr.migration.mirror import GroupMirror, LegacyGroup, LegacyMemberEvidence, Mirror
from offsetmgr.migration.observation import PartitionOwner
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.testing.memory import MemoryStore

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
UNREACHABLE = Unreachable("ZooKeeper", "no server answered")


def set_offsets(store: MemoryStore, group: str, **offsets: int) -> None:
    tps = {"p0": P0, "p1": P1}
    store.commit(group, {tps[name]: OffsetAndMetadata(offset) for name, offset in offsets.items()})


@dataclass
class Notifier:
    """Reports after each wait that every group may have changed."""

    clock: ScriptedClock
    unreachable: Callable[[], bool]

    def wait(self, timeout_s: float) -> set[str] | None:
        if self.unreachable():
            raise UNREACHABLE
        self.clock.sleep(timeout_s)
        return None


def mirror_of(source: MemoryStore, target: MemoryStore, **options: Any) -> Mirror:
    clock = ScriptedClock()
    notifier = Notifier(clock, lambda: getattr(source, "unreachable", False))
    return Mirror(source, target, PlanOptions(**options), notifier, clock)


def test_once_ends_if_the_only_partition_left_can_never_be_written() -> None:
    source, target = MemoryStore("a"), MemoryStore("b")
    set_offsets(source, "g", p0=5, p1=7)
    target.broken["g", P1] = UnknownTopicOrPartition("orders-1", "the topic or partition does not exist on the broker")
    mirror = mirror_of(source, target)
    mirror.run(once=True)
    group = mirror.groups["g"]
    assert offsets_of(target, "g") == {0: 5}
    assert (group.state.value, group.succeeded, group.lag) == ("failing", False, None)
    assert "does not exist on the broker" in group.detail


def test_a_retriable_failure_of_one_partition_is_retried_until_it_is_written() -> None:
    source, target = MemoryStore("a"), MemoryStore("b")
    set_offsets(source, "g", p0=5)
    target.broken["g", P0] = UNREACHABLE
    mirror = mirror_of(source, target)
    seen: list[tuple[dict[str, int], int]] = []

    def heal(status: Any) -> None:
        seen.append(({state.value: number for state, number in status.states.items()}, status.unknown))
        if mirror.rounds == 3:
            target.broken.clear()

    mirror.report = heal
    mirror.run(once=True)
    assert seen == [*[({"failing": 1}, 1)] * 3, ({"following": 1}, 0)]
    assert offsets_of(target, "g") == {0: 5}


def test_an_offset_of_a_deleted_log_is_not_committed_again() -> None:
    offsets = {P0: Committed(5, commit_timestamp=4000), P1: Committed(7, commit_timestamp=6000)}
    source, target = MemoryStore("a", data={"g": offsets}), LockableMemoryStore("b", data={"g": dict(offsets)})
    mirror = mirror_of(source, target)
    mirror.crossing = CrossClusterCheck(source, target)
    mirror.run(once=True)
    assert (target.refreshed, mirror.groups["g"].succeeded) == ({"g": {P1}}, False)


class OffsetsOnly(MemoryStore):
    capabilities = Capabilities(metadata=False, leader_epoch=False, commit_timestamp=False, conditional="version")


def test_metadata_that_the_target_cannot_hold_is_named() -> None:
    source, target = MemoryStore("a"), OffsetsOnly("b")
    source.commit("g", {P0: OffsetAndMetadata(5, "checked by hand")})
    mirror = mirror_of(source, target)
    mirror.run(once=True)
    assert mirror.groups["g"].detail == "drops the metadata of 1 offset (a client's own text)"


def test_metadata_of_an_offset_that_the_target_has_already_is_named() -> None:
    mirror = GroupMirror("g", "g", mirrored_offsets={P0: Committed(5, "checked by hand"), P1: Committed(7, "same")})
    mirror.set_target_offsets({P0: Committed(5), P1: Committed(7, "same")})
    mirror.mark_in_step()
    assert mirror.detail == "drops the metadata of 1 offset (a client's own text)"
    mirror.set_target_offsets({P0: Committed(4), P1: Committed(7, "same")})  # then the mirror writes the offset of P0
    mirror.mark_in_step()
    assert mirror.detail == ""


def test_a_partition_that_could_not_be_read_at_the_start_is_written_only_after_both_stores_were_read() -> None:
    source, target = MemoryStore("a"), MemoryStore("b")
    set_offsets(source, "g", p0=5, p1=90)
    set_offsets(target, "g", p1=40)
    mirror = mirror_of(source, target)
    prepared: list[dict[int, int]] = []

    def prepare(new: Sequence[Any]) -> None:
        prepared.append(offsets_of(target, "g"))
        for one in new:
            one.unread_partitions = frozenset({P1} if len(prepared) == 1 else ())

    mirror.on_new = prepare
    mirror.run(once=True)
    group = mirror.groups["g"]
    assert offsets_of(target, "g") == {0: 5, 1: 40}
    assert (group.succeeded, "orders-1 is not mirrored until both stores can be read" in group.detail) == (False, True)
    mirror.clock.sleep(mirror.idle_s)
    mirror.run(once=True)
    assert offsets_of(target, "g") == {0: 5, 1: 90}
    assert prepared == [{1: 40}, {0: 5, 1: 40}]


@dataclass
class UnreliableStore(MemoryStore):
    """A source that can become unreachable."""

    unreachable: bool = False

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        if self.unreachable:
            raise UNREACHABLE
        yield from super().scan(groups)


def test_a_temporarily_unreachable_source_is_reported_and_does_not_end_the_mirror() -> None:
    source, target = UnreliableStore("a"), MemoryStore("b")
    set_offsets(source, "g", p0=5)
    mirror = mirror_of(source, target)
    stop = threading.Event()
    failing: list[tuple[float, str, int | None]] = []

    def steps(_status: Any) -> None:
        group = mirror.groups["g"]
        if group.state.value == "failing":
            failing.append((mirror.clock.monotonic(), group.detail, group.lag))
        if mirror.rounds == 1:
            source.unreachable = True
        elif failing and offsets_of(target, "g") == {0: 9}:
            stop.set()
        elif len(failing) == 8:
            source.unreachable = False
            set_offsets(source, "g", p0=9)

    mirror.report, mirror.stop = steps, stop.is_set
    mirror.run()
    assert offsets_of(target, "g") == {0: 9}
    assert {(detail, lag) for _, detail, lag in failing} == {(str(UNREACHABLE), None)}
    pauses = [later - sooner for (sooner, *_), (later, *_) in pairwise(failing)]
    assert pauses == pytest.approx([0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])
    assert mirror.groups["g"].lag == 0


def test_a_failure_of_the_first_comparison_is_raised() -> None:
    with pytest.raises(Unreachable):
        mirror_of(UnreliableStore("a", data={"g": {P0: Committed(1)}}, unreachable=True), MemoryStore("b")).run()


def test_a_group_found_later_is_never_mirrored_to_the_target_of_another_group() -> None:
    source, target = MemoryStore("a"), MemoryStore("b")
    set_offsets(source, "old", p0=5)
    mirror = mirror_of(source, target, rename={"old": "new"})
    stop = threading.Event()

    def steps(_status: Any) -> None:
        if mirror.rounds == 1:
            set_offsets(source, "new", p0=90)
        elif mirror.rounds == 3:
            stop.set()

    mirror.report, mirror.stop = steps, stop.is_set
    mirror.run()
    assert offsets_of(target, "new") == {0: 5}
    assert mirror.groups["new"].state.value == "rejected"
    assert "group old is mirrored to new already" in mirror.groups["new"].detail


def test_lag_counts_only_offsets_behind_the_source_and_is_unknown_if_the_source_is_unreadable() -> None:
    source, target = MemoryStore("a"), MemoryStore("b")
    set_offsets(source, "g", p0=5, p1=7)
    set_offsets(target, "g", p0=50)
    mirror = mirror_of(source, target)
    assert mirror.run(once=True).lag == 0
    assert mirror.groups["g"].state.value == "target-ahead"
    source.commit("g", {P1: OffsetAndMetadata(3)}, allow_rewind=True)
    mirror.run(once=True)
    assert offsets_of(target, "g") == {0: 50, 1: 7}  # a rewind of the source never reaches the target
    source.broken["g", P1] = OffsetMgrError("node", "not an offset")
    set_offsets(source, "g", p0=6)
    status = mirror.run(once=True)
    assert (mirror.groups["g"].state.value, mirror.groups["g"].lag, status.unknown) == ("failing", None, 1)


# --- evidence that a member commits only to ZooKeeper ------------------------------------------------

UNREADABLE = "an owner that cannot be read"
ONE = LegacyGroup({"a": 1}, {P0: PartitionOwner("a", 10)})
RETURNED = LegacyGroup({"a": 2}, {P0: PartitionOwner("a", 20)})
TWO = LegacyGroup({"a": 1, "spare": 2}, {P0: PartitionOwner("a", 10)})
MOVED = LegacyGroup({"a": 1, "spare": 2}, {P0: PartitionOwner("spare", 11)})
REBALANCING = LegacyGroup({"a": 1, "spare": 2}, {})
UNKNOWN = LegacyGroup({"a": 1}, {P0: PartitionOwner(UNREADABLE, 10)})


@pytest.mark.parametrize(
    ("steps", "asked", "at", "unproven"),
    [  # each step is an observation of the group: its offset in ZooKeeper, the offset in the target, and the second
        ([(ONE, 5, None, 0)], ONE, 0, ["a"]),
        ([(ONE, 5, None, 0), (ONE, 6, 5, 1)], ONE, 1, []),
        # a member bounced to dual commit a moment ago stays beyond the target until it commits
        ([(ONE, 5, None, second) for second in range(100)], ONE, 100, ["a"]),
        ([(ONE, 5, 5, 0), (ONE, 6, 6, 1), (ONE, 7, 900, 2)], ONE, 2, ["a"]),  # the target moved along
        ([(TWO, 5, None, 0), (MOVED, 6, None, 1)], MOVED, 20, ["spare"]),  # a move during a change of owner
        ([(ONE, 5, None, 0), (ONE, 6, None, 1), (RETURNED, 6, None, 2)], RETURNED, 2, ["a"]),
        # a member without partitions is unproven until it can no longer get one
        ([(ONE, 5, None, 0), (TWO, 6, None, 1)], TWO, 2, ["spare"]),
        ([(TWO, None, None, 1)], TWO, 2, ["a", "spare"]),
        ([(ONE, 5, None, 0), (TWO, 6, None, 1)], TWO, 12, []),
        ([(ONE, 5, None, 0), (TWO, 6, None, 1)], REBALANCING, 12, ["spare"]),
        ([(UNKNOWN, 5, None, 0), (UNKNOWN, 6, None, 1)], UNKNOWN, 20, [UNREADABLE]),
    ],
)
def test_only_a_move_beyond_the_target_proves_that_an_owner_commits_to_zookeeper_alone(steps, asked, at, unproven):
    def of(offset: int | None) -> dict[TopicPartition, Committed]:
        return {} if offset is None else {P0: Committed(offset)}

    watch = LegacyMemberEvidence()
    for group, source, target, second in steps:
        watch.observe(group, of(source), of(target), second)
    assert watch.unproven(asked, at) == unproven


def test_a_group_is_locked_only_if_all_its_registered_members_are_proven() -> None:
    watch = LegacyMemberEvidence()
    watch.observe(ONE, {P0: Committed(5)}, {}, 0)
    watch.observe(ONE, {P0: Committed(6)}, {}, 1)
    assert watch.allows_lock(ONE)
    assert not watch.allows_lock(RETURNED)
    assert not watch.allows_lock(UNKNOWN)
