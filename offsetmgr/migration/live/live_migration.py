"""Changes the storage mode of a group while its members run.

Ordering contract::

    1  the ``storage`` znode announces the switch, and this process has an ephemeral znode next to it
    2  every member has acknowledged the announcement, so no member commits any more
    3  this process checks again for clients that commit without following the mode, copies the offsets that the
       remaining store lacks (after it has recorded their before-images), and compares both stores
    4  this process writes the new mode to ``storage``, in the session of step 1 and conditional on the znode's version
    5  the members continue in the new mode

If the session of this process ends before step 4, because the process is killed or frozen, the members return to the
old mode by themselves. Offsets that this process has already copied do no harm, because a copy only moves offsets
forward. After step 4 the switch is complete.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.commit_mode import SAFE_CHANGES, CommitMode, CommitModeChange
from offsetmgr.core.errors import Conflict, GateRefused, GroupNotFound, OffsetMgrError, RecreatedTopic, TimedOut
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.model import ABSENT, Committed, Offset, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEditResult, OffsetStore
from offsetmgr.core.plurals import list_of
from offsetmgr.groups.edit_plan import GroupEditPlan, PlannedChange
from offsetmgr.groups.execute import EditSink, execute
from offsetmgr.kafka.cluster.base import Cluster
from offsetmgr.migration.live.switch_evidence import FollowerAck, SwitchEvidence, SwitchSnapshot
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.stores.dual_policy import catch_up_changes, partitions_ahead
from offsetmgr.stores.switched.mode_listener import mode_after_abandoned_switch
from offsetmgr.stores.switched.nodes import FollowerState, NodeState, SwitchStateStore
from offsetmgr.stores.switched.records import StorageModeNode
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.registry import members

STEPS: Final = ("announced", "acknowledged", "copied", "compared", "changed", "followed")
"""The steps that `LiveMigration` reports, in this order."""
_POLL_S: Final = 1.0
"""Maximum seconds between two checks of the members. A change that a watch reports starts the next check at once."""
_SHOWN: Final = 3

ImagesOf = Callable[[OffsetStore, GroupEditPlan], EditSink[GroupEditPlan, GroupEditResult]]
"""Returns the sink that stores the before-images of an edit plan. The arguments are the store that the plan edits, and
the plan."""


class SwitchSides(NamedTuple):
    """The two stores of a switch.

    ``cluster`` is the Kafka cluster whose coordinators report the members of the group; None if the group certainly has
    no members in Kafka. ``translate`` says how to treat offsets if the two stores belong to different Kafka clusters.
    """

    zookeeper: OffsetStore
    kafka: OffsetStore
    cluster: Cluster | None
    translate: OffsetTranslation | None = None


class LiveMigration:
    """Changes the mode of one group.

    ``session`` must have been created with ``session_timeout_ms``, so that it never opens a second ZooKeeper session.
    If the session ends before the new mode is written, the members return to the old mode. ``on_step`` receives each of
    `STEPS`; ``on_wait`` periodically receives the members that have not acknowledged yet.
    """

    def __init__(
        self,
        session: ZookeeperSession,
        group: str,
        sides: SwitchSides,
        *,
        who: str,
        images_of: ImagesOf,
        on_step: Callable[[str], None] = lambda _: None,
        on_wait: Callable[[list[FollowerState]], None] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        """Raises `UsageError` if the group name cannot be the name of a znode."""
        self.group = group
        self._session = session
        self._nodes = SwitchStateStore(session, group)
        self._stores = {CommitMode.ZOOKEEPER: sides.zookeeper, CommitMode.KAFKA: sides.kafka}
        self._cluster = sides.cluster
        self._who = who
        self._images_of = images_of
        self._on_step = on_step
        self._on_wait = on_wait
        self._stop: Callable[[], bool] = lambda: False
        self._clock = clock or SystemClock()
        self._translate = sides.translate

    @cached_property
    def crossing(self) -> CrossClusterCheck:
        """Whether the offsets of both stores refer to the same logs. Raises `OtherCluster` if the stores belong to
        different clusters and the user has not accepted this difference, and any error from
        `OffsetStore.log_origin`."""
        crossing = CrossClusterCheck(
            self._stores[CommitMode.ZOOKEEPER],
            self._stores[CommitMode.KAFKA],
            self._translate,
            ("ZooKeeper", "Kafka side"),
        )
        crossing.check(f"switch of group {self.group}")
        return crossing

    # --- before the switch ---------------------------------------------------------------------------

    def declare(self, mode: CommitMode) -> None:
        """Declares ``mode`` as the mode in which the members commit now, for a group without a declared mode. No offset
        is read.

        Raises `Conflict` if a mode was already declared, and any error from `crossing`.
        """
        _ = self.crossing
        declared = StorageModeNode(mode, 1, self._who, self._clock.now_ms())
        if not self._nodes.declare(declared):
            self.require_undeclared(but=declared)

    def require_undeclared(self, *, but: StorageModeNode | None = None) -> None:
        """Raises `Conflict` if the group has a declared mode. The declaration ``but`` is permitted."""
        seen = self._nodes.read()
        if seen is not None and seen.storage != but:
            why = f"{seen.storage.who} has already declared mode {seen.storage.mode.value}"
            raise Conflict(f"switch of group {self.group}", why, "to change the mode, leave out --declare")

    def inspect(self, to: CommitMode) -> SwitchSnapshot:
        """Returns the state of the group and the offsets that a change to the mode ``to`` must copy. Raises
        `GroupNotFound` if the group has no declared mode, and any error from reading."""
        _ = self.crossing
        seen = self._read_state()
        followers = tuple(self._nodes.followers())
        ahead, copies, rejected = self._differences(seen.storage.mode, to)
        return SwitchSnapshot(
            seen, self._nodes.switcher(), followers, self._non_participants(followers), ahead, copies, rejected
        )

    def check(self, snapshot: SwitchSnapshot, to: CommitMode) -> None:
        """Raises `GateRefused` if the change is not safe now, and `Conflict` if another switch is in progress."""
        storage = snapshot.state.storage
        if snapshot.switcher is not None:
            raise Conflict(
                f"switch of group {self.group}",
                f"{snapshot.switcher.who} is switching it",
                "wait until that switch ends",
            )
        what = f"switch of group {self.group} {storage.mode.value} -> {to.value}"
        if storage.mode is to:
            raise GateRefused(what, "the group is already in this mode", "nothing needs to be done")
        if CommitModeChange(storage.mode, to) not in SAFE_CHANGES:
            why = "must go through mode dual, in which both stores have the group's offsets before one of them is left"
            raise GateRefused(what, why, f"switch with --to dual first, then with --to {to.value}")
        if snapshot.foreign_owners:
            raise GateRefused(
                what,
                f"{list_of(snapshot.foreign_owners, _SHOWN)} would keep committing to the old store",
                "restart them with offsets=switched, stop them, or use a rolling bounce: offsetmgr runbook",
            )
        if snapshot.ahead:
            lines = [
                f"{tp}: {'no offset' if in_use is None else in_use} in use, {unused} in the other store"
                for tp, (in_use, unused) in snapshot.ahead.items()
            ]
            raise GateRefused(
                what,
                f"in mode dual the larger offset counts, and messages would be skipped: {list_of(lines, _SHOWN)}",
                "set or delete those offsets in the store that is not in use, if they are old",
            )

        if snapshot.recreated:
            lines = [f"{error.what}: {error.why}" for error in snapshot.recreated.values()]
            why = f"the offsets of recreated topics would be copied: {list_of(lines, _SHOWN)}"
            raise GateRefused(what, why, "delete or reset those offsets in the store that holds them")

    def _read_state(self) -> NodeState:
        seen = self._nodes.read()
        if seen is None:
            raise GroupNotFound(
                f"switch of group {self.group}",
                "its storage mode is not declared",
                "declare where its members commit now, with --declare --to MODE",
            )
        return seen

    def _non_participants(self, followers: tuple[FollowerState, ...]) -> tuple[str, ...]:
        """Returns the clients that commit without following the mode. A registered consumer follows the mode if a
        follower has the same ZooKeeper session."""
        sessions = {follower.session_id for follower in followers}
        found = [m.member_id for m in members(self._session, self.group) if m.session_id not in sessions]
        described = {} if self._cluster is None else self._cluster.describe_groups([self.group])
        for group in described.values():
            if isinstance(group, OffsetMgrError):
                raise group
            found += [f"{member} (in Kafka)" for member in group.members]
        return tuple(found)

    def _differences(
        self, mode: CommitMode, to: CommitMode
    ) -> tuple[
        dict[TopicPartition, tuple[int | None, int]],
        dict[TopicPartition, Change],
        dict[TopicPartition, RecreatedTopic],
    ]:
        """Returns three mappings by partition: the offsets of partitions in which the unused store is ahead, the
        changes that the remaining store needs, and the reasons why a partition must not be copied (its offset belongs
        to a deleted log)."""
        if mode is to:
            return {}, {}, {}
        single = mode if to is CommitMode.DUAL else to
        if single is CommitMode.DUAL:
            return {}, {}, {}  # a change between ZooKeeper and Kafka, which `check` rejects
        single_offsets = self._stores[single].fetch(self.group)
        other_offsets = self._stores[
            CommitMode.KAFKA if single is CommitMode.ZOOKEEPER else CommitMode.ZOOKEEPER
        ].fetch(self.group)
        if to is CommitMode.DUAL:
            return partitions_ahead(single_offsets, other_offsets), {}, {}
        copies = catch_up_changes(single_offsets, other_offsets)
        self.crossing.load_topics({tp.topic for tp in copies})
        rejected = {tp: why for tp in copies if (why := self._recreated(tp, other_offsets[tp])) is not None}
        translated = {
            tp: change._replace(after=self.crossing.adapt(change.after))
            for tp, change in copies.items()
            if change.after is not None and tp not in rejected
        }
        return {}, translated, rejected

    def _recreated(self, tp: TopicPartition, offset: Offset) -> RecreatedTopic | None:
        return self.crossing.recreation_error(tp, offset) if isinstance(offset, Committed) else None

    # --- the switch ----------------------------------------------------------------------------------

    def execute(
        self, to: CommitMode, *, wait_s: float, stay: bool = False, stop: Callable[[], bool] = lambda: False
    ) -> SwitchEvidence:
        """Changes the mode of the group and waits until its members follow.

        The method waits up to ``wait_s`` for the acknowledgements of all members. If a member has not acknowledged by
        then, the method restores the old mode and raises `TimedOut`, which names the late members. With ``stay``, the
        wait for acknowledgements has no limit. During the wait, members that have acknowledged do not commit. If
        ``stop`` returns True before the new mode is written, the old mode is restored and `Conflict` is raised. If
        ``stop`` returns True later, only the wait for members ends.

        Raises any error from `check`. If an error occurs before the new mode is written, the old mode is restored. The
        evidence names the members that were not seen to follow the new mode within ``wait_s``.
        """
        self._stop = stop
        self._check_stop()
        snapshot = self.inspect(to)
        if snapshot.state.storage.switching_to is not None and snapshot.switcher is None:
            gone = "its process has ended"
            self._nodes.abandon_switch(
                snapshot.state, mode_after_abandoned_switch(snapshot.state.storage, gone, self._clock.now_ms())
            )
            snapshot = self.inspect(to)
        self.check(snapshot, to)
        began_ms = self._clock.now_ms()
        announced = self._announce(snapshot.state, to)
        try:
            acknowledged = self._acknowledgements(announced.storage.epoch, wait_s, stay, needed=True)
            self._on_step("acknowledged")
            copies, compared = self._copy_and_compare(announced.storage.mode, to)
            self._check_stop()
            changed = replace(
                announced.storage,
                mode=to,
                epoch=announced.storage.epoch + 1,
                who=self._who,
                when_ms=self._clock.now_ms(),
                switching_to=None,
            )
            self._write_mode(announced, changed)
        except BaseException:
            self._restore_mode(announced)
            raise
        self._on_step("changed")
        followed = self._acknowledgements(changed.epoch, wait_s, False, needed=False)
        self._on_step("followed")
        return SwitchEvidence(
            self.group,
            announced.storage.mode,
            to,
            changed.epoch,
            began_ms,
            changed.when_ms,
            tuple(
                FollowerAck(f.name, f.node.host, f.node.process, ms, followed.get(name, (f, None))[1])
                for name, (f, ms) in acknowledged.items()
            ),
            copies,
            compared,
        )

    def _announce(self, seen: NodeState, to: CommitMode) -> NodeState:
        now_ms = self._clock.now_ms()
        announced = replace(seen.storage, epoch=seen.storage.epoch + 1, who=self._who, when_ms=now_ms, switching_to=to)
        if not self._nodes.begin_switch(seen, announced, self._who) and self._read_state().storage != announced:
            raise Conflict(
                f"switch of group {self.group}",
                "another process has changed its mode meanwhile",
                "run the command again",
            )
        self._on_step("announced")
        return NodeState(announced, seen.version + 1)

    def _check_stop(self) -> None:
        if self._stop():
            raise Conflict(f"switch of group {self.group}", "was abandoned; the old mode applies")

    def _write_mode(self, announced: NodeState, changed: StorageModeNode) -> None:
        if not self._nodes.end_switch(announced, changed) and self._read_state().storage != changed:
            why = "its members have returned to the old mode: this process was too slow, or its session has ended"
            raise Conflict(f"switch of group {self.group}", why, "try again")

    def _restore_mode(self, announced: NodeState) -> None:
        """Restores the old mode. If this fails, closes the session. When the session has ended, the members restore the
        old mode themselves."""
        try:
            self._nodes.end_switch(
                announced,
                mode_after_abandoned_switch(
                    announced.storage, f"{self._who}: abandoned the switch", self._clock.now_ms()
                ),
            )
        except OffsetMgrError:
            self._session.close()

    def _copy_and_compare(self, mode: CommitMode, to: CommitMode) -> tuple[dict[TopicPartition, Change], int]:
        """Copies the offsets that the remaining store lacks, and compares both stores. During this time no member
        commits."""
        snapshot = self.inspect(to)
        self.check(replace(snapshot, switcher=None), to)
        copies = dict(snapshot.copies)
        if copies:
            remaining_store = self._stores[to]
            changes = (PlannedChange(tp, c.expected or ABSENT, c.after) for tp, c in sorted(copies.items()))
            plan = GroupEditPlan(self.group, tuple(changes))
            # No member commits now, so the group lock makes no member's commit fail. The lock also rejects a copy that
            # arrives late.
            for result in execute(remaining_store, [[plan]], self._images_of(remaining_store, plan)):
                for error in result.failures.values():
                    raise error
        self._on_step("copied")
        ahead, left, _ = self._differences(mode, to)
        if ahead or left:
            partitions = list_of([*ahead, *left], _SHOWN)
            why = f"a client that does not follow the mode commits: {partitions} changed while all members were stopped"
            raise GateRefused(f"switch of group {self.group}", why, "find that client: offsetmgr groups describe")
        both = {tp for store in self._stores.values() for tp in store.fetch(self.group)}
        self._on_step("compared")
        return copies, len(both)

    def _acknowledgements(
        self, epoch: int, wait_s: float, stay: bool, *, needed: bool
    ) -> dict[str, tuple[FollowerState, int]]:
        """Waits until all members have acknowledged ``epoch``. Returns the members that have acknowledged ``epoch``,
        each with the time (ms) at which this process first saw the acknowledgement."""
        follower_changed = threading.Event()
        found: dict[str, tuple[FollowerState, int]] = {}
        deadline = self._clock.monotonic() + wait_s
        while True:
            follower_changed.clear()
            late = [follower for follower in self._nodes.followers() if follower.name not in found]
            self._nodes.watch_followers([follower.name for follower in late], lambda _: follower_changed.set())
            late = []
            for follower in self._nodes.followers():
                if follower.node.epoch >= epoch:
                    found.setdefault(follower.name, (follower, self._clock.now_ms()))
                else:
                    late.append(follower)
            if needed:
                self._check_stop()
            if not late or (not needed and self._stop()):
                return found
            if self._clock.monotonic() >= deadline:
                if not needed:
                    return found
                if not stay:
                    who = list_of(late, _SHOWN)
                    why = f"no acknowledgement from {who} within {wait_s:g} s; the old mode was restored"
                    hint = "a frozen member counts until its session ends; --stay keeps waiting"
                    raise TimedOut(f"switch of group {self.group}", why, hint)
                deadline += wait_s
            self._on_wait(late)
            follower_changed.wait(min(_POLL_S, max(0.0, deadline - self._clock.monotonic())))
