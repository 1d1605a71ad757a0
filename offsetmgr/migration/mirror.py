"""A process that keeps a target store in step with a source store, for consumers without dual commit.

It only moves forward, in either direction. For a store with compare-and-set every write is conditional on the version
that was read. For Kafka the mirror locks each group (as a static member, so that a restarted mirror takes over from a
dead one at once, and a frozen one is fenced), and refuses groups to which others commit. Brokers of 0.8.2 have no lock:
there the store compares just before each write. The mirror keeps no state: the next one compares both sides again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import GroupActive, LockLost, OffsetMgrError, RecreatedTopic, Superseded
from offsetmgr.core.lockable_store import LockableStore
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, GroupEdit, GroupOffsets, OffsetStore
from offsetmgr.migration.batches import READ_GROUPS, batched
from offsetmgr.migration.mirror_feed import Feed, _moved
from offsetmgr.migration.mirror_group import GroupMirror, MirrorState, MirrorStatus
from offsetmgr.migration.mirror_safety import NOBODY, AskOldGroups, LegacyGroup
from offsetmgr.migration.plan import PlanOptions
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck

HOLDER = "offsetmgr-mirror"
"""The role under which groups are locked: one mirror for each group, the last one started."""

_SLICE_S: Final = 0.25
"""The longest wait, so that a mirror stops at once."""
_ROUNDING_S: Final = 0.01
_AGAIN_S: Final = 0.2
_MOST_BACK_OFF_S: Final = 5.0


@dataclass(slots=True)
class Mirror:
    """Follows the groups of ``options``. ``idle_s`` limits the time between two full comparisons, so that a missed
    notification costs time and never an offset.

    ``old_groups`` returns live old consumers that commit to the source: if the target's groups must be locked, a group
    is locked only after its consumers were seen to commit to the source alone (`mirror_safety`). If it is None, there
    are none, or they are trusted. ``watch_s`` limits how long ``once`` waits for that. Locked groups are committed
    again every ``refresh_s``, so that they do not expire; this must be well below the target's retention.

    ``crossing`` finds offsets in the deleted log of a recreated topic, which are not mirrored. If it is None, the
    caller vouches for them. Leader epochs are never mirrored.
    """

    source: OffsetStore
    target: OffsetStore
    options: PlanOptions
    feed: Feed
    clock: Clock
    stop: Callable[[], bool] = lambda: False
    report: Callable[[MirrorStatus], None] = lambda _status: None
    idle_s: float = 10.0
    settle_s: float = 1.0
    old_groups: AskOldGroups | None = None
    watch_s: float = 150.0
    refresh_s: float = 3600.0
    crossing: CrossClusterCheck | None = None
    groups: dict[str, GroupMirror] = field(default_factory=dict)
    rounds: int = 0
    cut: bool = False
    """Whether ``stop`` ended a run with ``once`` while something was left to write."""
    _sources: dict[str, str] = field(default_factory=dict)
    """The source's group by that of the target: never two for one."""
    _full_at: float = 0.0
    _failures: int = 0

    def run(self, *, once: bool = False) -> MirrorStatus:
        """Mirrors until ``stop`` returns True, or (``once``) until one comparison found nothing left to write.

        An unreachable store is tried again in the next round, and the status shows it; only the first comparison
        raises.
        """
        try:
            changed: set[str] | None = None
            while True:
                pending = self._round(changed)
                self.report(self.status())
                done = once and not pending and not self._still_watching()
                if done or self.stop():
                    self.cut = once and not done
                    return self.status()
                changed = self._next(pending)
        finally:
            if isinstance(self.target, LockableStore):
                self.target.release_locks([m.held for m in self.groups.values() if m.held is not None])

    def status(self) -> MirrorStatus:
        states: dict[MirrorState, int] = {}
        for mirrored in self.groups.values():
            states[mirrored.state] = states.get(mirrored.state, 0) + 1
        copied = sum(mirrored.copied for mirrored in self.groups.values())
        lag = sum(mirrored.lag or 0 for mirrored in self.groups.values())
        unseen = [m for m in self.groups.values() if m.lag is None and m.state is not MirrorState.REFUSED]
        recreated = sum(len(mirrored.recreated) for mirrored in self.groups.values())
        return MirrorStatus(self.rounds, copied, lag, len(unseen), states, self.clock.now_ms(), recreated)

    def _still_watching(self) -> bool:
        now = self.clock.monotonic()
        since = (m.watched_since for m in self.groups.values() if m.state is MirrorState.WATCHING)
        return any(began is not None and now - began < self.watch_s for began in since)

    # --- when ----------------------------------------------------------------------------------------

    def _next(self, pending: set[str]) -> set[str] | None:
        """Waits until something may have changed; returns the groups, None for all."""
        now = self.clock.monotonic()
        until = min(now + _AGAIN_S, self._full_at) if pending else self._full_at
        if self._failures:
            until = now + min(_AGAIN_S * 2.0 ** min(self._failures, 10), _MOST_BACK_OFF_S)
        changed: set[str] | None = set()
        while not changed and not self.stop() and (left := until - self.clock.monotonic()) > 0:
            if self._failures:
                self.clock.sleep(min(left, _SLICE_S))
                continue
            try:
                changed = self.feed.wait(min(left, _SLICE_S))
            except OffsetMgrError as error:
                self._fail(error)
                self.report(self.status())
                return self._next(pending)
            if changed is None:
                return None
            changed = changed | {m.group for m in self.groups.values() if m.held is not None and m.held.lost}
        if self._failures:
            return None
        return (changed or set()) | pending

    def _fail(self, error: OffsetMgrError) -> None:
        """A store as a whole cannot be used now."""
        self._failures += 1
        for mirrored in self.groups.values():
            if not mirrored.over:
                mirrored.fail(error, unseen=True)

    def _round(self, changed: set[str] | None) -> set[str]:
        """Compares and copies; returns the groups to check again soon."""
        self.rounds += 1
        pending: set[str] = set()
        try:
            if due := self.clock.monotonic() >= self._full_at:
                changed = None
            if changed is None:
                self._discover()
            if due:
                self._full_at = self.clock.monotonic() + self.idle_s
                if self.crossing is not None:
                    self.crossing.clear_cache()
                for mirrored in self.groups.values():
                    mirrored.stale = True
            for batch in batched(sorted(self.groups if changed is None else changed & self.groups.keys()), READ_GROUPS):
                pending |= self._copy([self.groups[name] for name in batch if not self.groups[name].over])
        except OffsetMgrError as error:
            if self.rounds == 1:
                raise
            self._fail(error)
            return set(self.groups)
        self._failures = 0
        return pending

    def _discover(self) -> None:
        found = [g for g in self.source.groups() if g not in self.groups and self.options.wants_group(g)]
        new: list[GroupMirror] = []
        for group in found:
            mirrored = self.groups[group] = GroupMirror(group, self.options.target_group(group))
            owner = self._sources.setdefault(mirrored.target_group, group)
            if owner != group:
                mirrored.refuse(f"group {owner} is mirrored to {mirrored.target_group} already; give it another name")
            else:
                new.append(mirrored)
        if new and isinstance(self.target, LockableStore):
            self._settle(new)

    def _settle(self, new: list[GroupMirror]) -> None:
        """Waits between two reads of the target, which show whether another client commits there."""
        found = self._target_offsets(new)
        now = self.clock.monotonic()
        for mirrored in new:
            seen = found[mirrored.target_group]
            if not (seen.error or seen.errors):
                mirrored.quiet, mirrored.quiet_since = seen, now
        until = now + self.settle_s
        left = self.settle_s
        while left > 0 and not self.stop():
            self.clock.sleep(min(left, _SLICE_S))
            left = min(left - _SLICE_S, until - self.clock.monotonic())

    # --- what ----------------------------------------------------------------------------------------

    def _copy(self, batch: list[GroupMirror]) -> set[str]:
        """Copies groups; returns those to check again soon."""
        target = self.target
        pending: set[str] = set()
        old: Mapping[str, LegacyGroup] = {}
        if isinstance(target, LockableStore):
            old, batch = self._members(batch, target, pending)
        following = self._see_source(batch, pending)
        if isinstance(target, LockableStore):
            return pending | self._copy_held(following, old, target)
        edits: dict[str, tuple[GroupMirror, GroupEdit]] = {}
        for mirrored in following:
            changes = {tp: Change(OffsetAndMetadata(c.offset, c.metadata)) for tp, c in mirrored.source.items()}
            edits[mirrored.target_group] = (mirrored, GroupEdit(mirrored.target_group, changes))
        for result in target.edit(edit for _, edit in edits.values()):
            mirrored, _ = edits[result.group]
            if not mirrored.book(result.outcomes):
                pending.add(mirrored.group)
            if any(outcome.error is not None and outcome.before is None for outcome in result.outcomes.values()):
                mirrored.lag = None
        return pending

    def _members(
        self, batch: list[GroupMirror], target: LockableStore, pending: set[str]
    ) -> tuple[Mapping[str, LegacyGroup], list[GroupMirror]]:
        """Reads the live old consumers, and releases locked groups in which there may be new ones."""
        if self.old_groups is None or not batch:
            return {}, batch
        old = self.old_groups(mirrored.group for mirrored in batch)
        known: list[GroupMirror] = []
        given_up: list[GroupMirror] = []
        for mirrored in batch:
            there = old.get(mirrored.group, NOBODY)
            if there.error is not None:
                mirrored.fail(there.error)
                if there.error.retriable:
                    pending.add(mirrored.group)
                continue
            known.append(mirrored)
            if mirrored.held is not None and mirrored.held.lost is None and not mirrored.watch.admits(there):
                given_up.append(mirrored)
        target.release_locks([m.held for m in given_up if m.held is not None])
        for mirrored in given_up:
            mirrored.held, mirrored.quiet, mirrored.watched_since = None, None, None
        return old, known

    def _see_source(self, batch: list[GroupMirror], pending: set[str]) -> list[GroupMirror]:
        """Reads the source; returns the groups with something to follow."""
        named = {mirrored.group: mirrored for mirrored in batch}
        following: list[GroupMirror] = []
        for found in self.source.scan(named):
            mirrored = named[found.group]
            mirrored.everything = found.offsets
            wanted = {tp: c for tp, c in found.offsets.items() if self.options.wants(tp)}
            mirrored.recreated = self._recreated(wanted)
            mirrored.source = {tp: c for tp, c in wanted.items() if tp not in mirrored.recreated}
            mirrored.problem = None
            if problem := found.error or next(iter(found.errors.values()), None):
                mirrored.problem = problem
                mirrored.fail(problem, unseen=True)
                if problem.retriable:
                    pending.add(mirrored.group)
            elif not mirrored.source and mirrored.held is None:
                mirrored.state, mirrored.detail, mirrored.lag = MirrorState.FOLLOWING, mirrored.left_out, 0
            if mirrored.source or mirrored.held is not None:
                following.append(mirrored)
        return following

    def _recreated(self, wanted: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, RecreatedTopic]:
        """Returns the offsets in deleted logs."""
        if self.crossing is None:
            return {}
        self.crossing.load_topics({tp.topic for tp in wanted})
        return {tp: error for tp, c in wanted.items() if (error := self.crossing.recreation_error(tp, c)) is not None}

    def _copy_held(
        self, following: list[GroupMirror], old: Mapping[str, LegacyGroup], target: LockableStore
    ) -> set[str]:
        """Copies groups that must be locked; returns those to check again soon."""
        pending: set[str] = set()
        for mirrored in following:
            if mirrored.held is not None and (lost := mirrored.held.lost):
                self._lose(mirrored, lost)
        self._see_target([m for m in following if not m.over and (m.held is None or m.stale)], pending)
        seen = [m for m in following if not m.over and not m.stale]
        wanted = [m for m in seen if m.held is None and self._may_take(m, old.get(m.group, NOBODY), pending)]
        self._take(wanted, target, pending)
        self._refresh([m for m in seen if m.held is not None], target)
        commits: dict[str, tuple[GroupMirror, dict[TopicPartition, OffsetAndMetadata]]] = {}
        for mirrored in seen:
            if mirrored.held is None or mirrored.stale:
                continue
            mirrored.measure()
            if behind := mirrored.behind():
                commits[mirrored.target_group] = (mirrored, behind)
            else:
                mirrored.settle()
        written = ((mirrored.held, values) for mirrored, values in commits.values() if mirrored.held is not None)
        for name, outcomes in target.commit_locked(written):
            if not self._committed(commits[name][0], outcomes):
                pending.add(commits[name][0].group)
        return pending

    def _see_target(self, batch: list[GroupMirror], pending: set[str]) -> None:
        """Reads the target; in a group without our lock, any movement is another client's commit."""
        named = {mirrored.target_group: mirrored for mirrored in batch}
        for name, found in self._target_offsets(batch).items():
            mirrored = named[name]
            problem = found.error or next(iter(found.errors.values()), None)
            if problem is not None:
                mirrored.stale = True
                mirrored.fail(problem, unseen=True)
                if problem.retriable:
                    pending.add(mirrored.group)
                continue
            mirrored.see_target(found.offsets)
            mirrored.measure()
            if mirrored.held is not None:
                continue
            if mirrored.quiet is not None and (moved := _moved(mirrored.quiet, found)):
                mirrored.refuse(
                    f"another client commits to this group in the target: {moved} moved while nothing was "
                    f"mirrored (seen)"
                )
            elif mirrored.quiet is None:
                mirrored.quiet_since = self.clock.monotonic()
            mirrored.quiet = found

    def _may_take(self, mirrored: GroupMirror, old: LegacyGroup, pending: set[str]) -> bool:
        """Returns whether no member could commit to the target too; else the group is watched."""
        if mirrored.over:
            return False
        now = self.clock.monotonic()
        assert mirrored.quiet is not None  # it was read a moment ago
        mirrored.watch.look(old, mirrored.everything, mirrored.quiet.offsets, now)
        if unproven := mirrored.watch.unproven(old, now):
            why = f"not yet seen whether they commit to Kafka too: {', '.join(unproven)}"
            mirrored.detail = f"live old consumers are registered; {why}"
        elif now - max(mirrored.quiet_since, mirrored.watch.since) < self.settle_s - _ROUNDING_S:
            mirrored.detail = "watched for commits of others to the target"
            pending.add(mirrored.group)
        else:
            mirrored.watched_since = None
            return True
        mirrored.state = MirrorState.WATCHING
        if mirrored.watched_since is None:
            mirrored.watched_since = now
        return False

    def _take(self, wanted: Iterable[GroupMirror], target: LockableStore, pending: set[str]) -> None:
        """Locks the groups and reads their offsets, which no other client changes from then on."""
        named = {mirrored.target_group: mirrored for mirrored in wanted}
        taken: list[GroupMirror] = []
        for name, held in target.lock_many(named, holder=HOLDER):
            mirrored = named[name]
            if isinstance(held, GroupActive) and not held.lock_ends_s:
                mirrored.refuse(f"the group has members in the target: {'; '.join(held.members) or held.why}")
            elif isinstance(held, OffsetMgrError):
                mirrored.fail(held)
                if held.retriable or isinstance(held, GroupActive):  # the lock of a killed run ends by itself
                    pending.add(mirrored.group)
            else:
                mirrored.held = held
                mirrored.note = "taken over from another offsetmgr mirror" if held.replaced else ""
                mirrored.stale, mirrored.refresh_at = True, 0.0
                taken.append(mirrored)
        self._see_target(taken, pending)

    def _refresh(self, held: list[GroupMirror], target: LockableStore) -> None:
        """Commits locked groups again before their offsets expire. Failures are retried soon."""
        now = self.clock.monotonic()
        due = {m.target_group: m for m in held if m.refresh_at <= now}
        for mirrored in due.values():
            mirrored.refresh_at = now + self.refresh_s
        for name, error in target.refresh_locked([m.held for m in due.values() if m.held is not None]):
            if error is not None and error.retriable:
                due[name].refresh_at = now + min(self.refresh_s, _MOST_BACK_OFF_S)

    def _target_offsets(self, mirrored: Iterable[GroupMirror]) -> dict[str, GroupOffsets]:
        return {found.group: found for found in self.target.scan(m.target_group for m in mirrored)}

    def _committed(
        self, mirrored: GroupMirror, outcomes: Mapping[TopicPartition, ChangeOutcome] | OffsetMgrError
    ) -> bool:
        """Records a commit to a locked group; returns True if nothing is left to do."""
        if isinstance(outcomes, LockLost):
            # The lock reports the reason: a consumer that joined the group, or a mirror that took over.
            self._lose(mirrored, (mirrored.held.lost if mirrored.held else None) or outcomes)
            return mirrored.over
        if isinstance(outcomes, OffsetMgrError):
            mirrored.fail(outcomes)
            return not outcomes.retriable
        return mirrored.book(outcomes)

    def _lose(self, mirrored: GroupMirror, error: OffsetMgrError) -> None:
        """The lock was lost. A group that a consumer or another mirror took stays theirs; else it is locked again."""
        assert mirrored.held is not None
        mirrored.held.release()
        mirrored.measure()
        if isinstance(error, GroupActive):
            mirrored.end(str(error))
        elif isinstance(error, Superseded):
            mirrored.end(f"another mirror took this group over ({error.why})")
        else:
            mirrored.held, mirrored.quiet = None, None
            mirrored.fail(error)
