"""Keeps a target store in step with a source store, for consumers without dual commit.

The mirror only moves offsets forward. Either store can be ZooKeeper or Kafka. If the target has compare-and-set, every
write is conditional on the version that was read. If the target is Kafka, the mirror locks each group: it joins the
group as a static member, so a restarted mirror takes over at once and a frozen mirror is fenced. The mirror refuses
groups to which other clients commit in the target. Brokers of Kafka 0.8.2 have no group lock; on them, the store
compares the offsets just before each write. The mirror keeps no state: a restarted mirror compares both sides again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import (
    GroupActive,
    LockLost,
    OffsetMgrError,
    RecreatedTopic,
    RewindRefused,
    Superseded,
)
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, GroupEdit, GroupOffsets, LockableStore, OffsetStore
from offsetmgr.core.retry import Backoff
from offsetmgr.migration.change_notifier import ChangeNotifier, first_changed_partition
from offsetmgr.migration.group_batches import read_batches
from offsetmgr.migration.mirror_group import GroupMirror, MirrorState, MirrorStatus
from offsetmgr.migration.mirror_safety import NO_MEMBERS, LegacyGroup, ReadLegacyGroups
from offsetmgr.migration.plan import PlanOptions
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck

HOLDER = "offsetmgr-mirror"
"""The name under which mirrors lock groups. A second mirror of a group takes the group over from the first."""
_MAX_WAIT_S: Final = 0.25  # between two calls of ``stop`` during a wait
_ROUNDING_S: Final = 0.01
_RETRY_S: Final = 0.2
_BACKOFF: Final = Backoff(2 * _RETRY_S, 5.0)


@dataclass(slots=True)
class Mirror:
    """Mirrors the groups that ``options`` select.

    ``idle_s`` limits the time between two full comparisons, which also find changes without a notification. Before the
    mirror locks a group, it watches for ``settle_s`` whether other clients commit to this group.

    ``legacy_groups`` returns the live old consumers of source groups. If the target's groups must be locked, the mirror
    first collects evidence that a group's old consumers commit to the source alone (`mirror_safety`). With ``once``,
    ``watch_s`` limits this step. ``legacy_groups`` is None if there are no old consumers, or if the user trusts them.
    Locked groups are committed again every ``refresh_s`` (well below the retention).

    ``crossing`` detects offsets of deleted logs (of recreated topics). These offsets are not mirrored. If ``crossing``
    is None, the caller guarantees that the source has no such offsets. Leader epochs are never mirrored. ``on_new`` is
    called with new groups before the mirror writes to them; an error that it raises prevents the writes.
    """

    source: OffsetStore
    target: OffsetStore
    options: PlanOptions
    notifier: ChangeNotifier
    clock: Clock
    stop: Callable[[], bool] = lambda: False
    report: Callable[[MirrorStatus], None] = lambda _status: None
    idle_s: float = 10.0
    settle_s: float = 1.0
    legacy_groups: ReadLegacyGroups | None = None
    watch_s: float = 150.0
    refresh_s: float = 3600.0
    crossing: CrossClusterCheck | None = None
    on_new: Callable[[Sequence[GroupMirror]], None] = lambda _new: None
    groups: dict[str, GroupMirror] = field(default_factory=dict)
    rounds: int = 0
    interrupted: bool = False  # whether ``stop`` ended a run with ``once`` before all writes
    _sources: dict[str, str] = field(default_factory=dict)  # the only source group of each target group
    _full_at: float = 0.0
    _failures: int = 0

    def run(self, *, once: bool = False) -> MirrorStatus:
        """Mirrors until ``stop`` returns True, or (``once``) until everything is written. Returns the last status.

        An error in the first round is raised. After an error in a later round, the next round retries.
        """
        try:
            changed: set[str] | None = None
            while True:
                pending = self._round(changed)
                self.report(self.status())
                done = once and not pending and not self._still_watching()
                if done or self.stop():
                    self.interrupted = once and not done
                    return self.status()
                changed = self._wait_for_changes(pending)
        finally:
            if isinstance(self.target, LockableStore):
                self.target.release_locks([m.lock for m in self.groups.values() if m.lock is not None])

    def status(self) -> MirrorStatus:
        states = dict(Counter(mirror.state for mirror in self.groups.values()))
        copied = sum(mirror.copied for mirror in self.groups.values())
        lag = sum(mirror.lag or 0 for mirror in self.groups.values())
        unknown = [m for m in self.groups.values() if m.lag is None and m.state is not MirrorState.REJECTED]
        recreated = sum(len(mirror.recreated) for mirror in self.groups.values())
        return MirrorStatus(self.rounds, copied, lag, len(unknown), states, self.clock.now_ms(), recreated)

    def _still_watching(self) -> bool:
        now = self.clock.monotonic()
        since = (m.watching_since for m in self.groups.values() if m.state is MirrorState.WATCHING)
        return any(began is not None and now - began < self.watch_s for began in since)

    def _wait_for_changes(self, pending: set[str]) -> set[str] | None:
        """Waits until a group may have changed. Returns the groups that may have changed (None: all groups)."""
        now = self.clock.monotonic()
        deadline = min(now + _RETRY_S, self._full_at) if pending else self._full_at
        if self._failures:
            deadline = now + _BACKOFF.pause_s(self._failures)
        changed: set[str] | None = set()
        while not changed and not self.stop() and (remaining_s := deadline - self.clock.monotonic()) > 0:
            if self._failures:
                self.clock.sleep(min(remaining_s, _MAX_WAIT_S))
                continue
            try:
                changed = self.notifier.wait(min(remaining_s, _MAX_WAIT_S))
            except OffsetMgrError as error:
                self._record_store_failure(error)
                self.report(self.status())
                return self._wait_for_changes(pending)
            if changed is None:
                return None
            changed = changed | {m.group for m in self.groups.values() if m.lock is not None and m.lock.lost}
        if self._failures:
            return None
        return (changed or set()) | pending

    def _record_store_failure(self, error: OffsetMgrError) -> None:
        """Records an error of a whole store for every group that is still mirrored."""
        self._failures += 1
        for mirror in self.groups.values():
            if not mirror.ended:
                mirror.fail(error, lag_unknown=True)

    def _round(self, changed: set[str] | None) -> set[str]:
        """Compares and copies the changed groups (None means all groups). Returns the groups to check again soon."""
        self.rounds += 1
        pending: set[str] = set()
        if self.crossing is not None:
            self.crossing.clear_cache()
        try:
            if due := self.clock.monotonic() >= self._full_at:
                changed = None
            if changed is None:
                self._discover()
            if due:
                self._full_at = self.clock.monotonic() + self.idle_s
                for mirror in self.groups.values():
                    mirror.stale = True
            names = self.groups if changed is None else changed & self.groups.keys()
            for batch in read_batches(sorted(names)):
                pending |= self._copy([mirror for name in batch if (mirror := self.groups[name]).can_be_copied])
        except OffsetMgrError as error:
            if self.rounds == 1:
                raise
            self._record_store_failure(error)
            return set(self.groups)
        self._failures = 0
        return pending

    def _discover(self) -> None:
        found = [g for g in self.source.groups() if g not in self.groups and self.options.selects_group(g)]
        new: list[GroupMirror] = []
        for group in found:
            mirror = GroupMirror(group, self.options.target_group(group), if_ahead=self.options.if_ahead)
            owner = self._sources.setdefault(mirror.target_group, group)
            if owner != group:
                self.groups[group] = mirror
                mirror.reject(f"group {owner} is mirrored to {mirror.target_group} already; give it another name")
            else:
                new.append(mirror)
        self.on_new([*new, *(mirror for mirror in self.groups.values() if mirror.unread or mirror.unread_partitions)])
        self.groups |= {mirror.group: mirror for mirror in new}
        if new and isinstance(self.target, LockableStore):
            self._observe_target(new)

    def _observe_target(self, new: list[GroupMirror]) -> None:
        """Reads the new groups in the target, then waits, so that the next read shows commits of other clients."""
        found, now = self._target_offsets(new), self.clock.monotonic()
        for mirror in new:
            current = found[mirror.target_group]
            if not (current.error or current.errors):
                mirror.unlocked_read, mirror.unchanged_since = current, now
        deadline, remaining_s = now + self.settle_s, self.settle_s
        while remaining_s > 0 and not self.stop():
            self.clock.sleep(min(remaining_s, _MAX_WAIT_S))
            remaining_s = min(remaining_s - _MAX_WAIT_S, deadline - self.clock.monotonic())

    def _copy(self, batch: list[GroupMirror]) -> set[str]:
        """Copies groups; returns the groups to check again soon."""
        target, pending = self.target, set[str]()
        legacy: Mapping[str, LegacyGroup] = {}
        if isinstance(target, LockableStore):
            legacy, batch = self._read_members(batch, target, pending)
        following = self._read_source(batch, pending)
        if isinstance(target, LockableStore):
            return pending | self._copy_locked(following, legacy, target)
        edits: dict[str, tuple[GroupMirror, GroupEdit]] = {}
        for mirror in following:
            changes = {tp: Change(value) for tp, value in mirror.to_write().items()}
            edits[mirror.target_group] = (mirror, GroupEdit(mirror.target_group, changes))
        for result in target.edit(edit for _, edit in edits.values()):
            mirror, _ = edits[result.group]
            ahead = {tp: o.before for tp, o in result.outcomes.items() if isinstance(o.error, RewindRefused)}
            old = {tp: before for tp, before in ahead.items() if isinstance(before, Committed)}
            mirror.recreated = {**mirror.recreated, **self._recreated(old)}
            if not mirror.record_outcomes(result.outcomes):
                pending.add(mirror.group)
            if any(outcome.error is not None and outcome.before is None for outcome in result.outcomes.values()):
                mirror.lag = None
        return pending

    def _read_members(
        self, batch: list[GroupMirror], target: LockableStore, pending: set[str]
    ) -> tuple[Mapping[str, LegacyGroup], list[GroupMirror]]:
        """Reads the live old consumers. Unlocks each group in which an old consumer may commit to Kafka too."""
        if self.legacy_groups is None or not batch:
            return {}, batch
        legacy = self.legacy_groups(mirror.group for mirror in batch)
        known: list[GroupMirror] = []
        to_release: list[GroupMirror] = []
        for mirror in batch:
            legacy_group = legacy.get(mirror.group, NO_MEMBERS)
            if legacy_group.error is not None:
                mirror.fail(legacy_group.error)
                if legacy_group.error.retriable:
                    pending.add(mirror.group)
                continue
            known.append(mirror)
            if mirror.lock is not None and mirror.lock.lost is None and not mirror.evidence.allows_lock(legacy_group):
                to_release.append(mirror)
        target.release_locks([m.lock for m in to_release if m.lock is not None])
        for mirror in to_release:
            mirror.lock, mirror.unlocked_read, mirror.watching_since = None, None, None
        return legacy, known

    def _read_source(self, batch: list[GroupMirror], pending: set[str]) -> list[GroupMirror]:
        """Reads the source; returns the groups with offsets to mirror."""
        named = {mirror.group: mirror for mirror in batch}
        following: list[GroupMirror] = []
        for found in self.source.scan(named):
            mirror = named[found.group]
            mirror.source_offsets = found.offsets
            selected = {tp: c for tp, c in found.offsets.items() if self.options.selects(tp)}
            mirror.recreated = self._recreated(selected)
            mirror.mirrored_offsets = {tp: c for tp, c in selected.items() if tp not in mirror.recreated}
            mirror.drops_metadata = not self.target.capabilities.metadata
            mirror.problem = None
            if problem := found.error or found.hidden or next(iter(found.errors.values()), None):
                mirror.problem = problem
                mirror.fail(problem, lag_unknown=True)
                if problem.retriable:
                    pending.add(mirror.group)
            elif not mirror.mirrored_offsets and mirror.lock is None:
                mirror.state, mirror.detail, mirror.lag = MirrorState.FOLLOWING, mirror.not_mirrored, 0
            if mirror.mirrored_offsets or mirror.lock is not None:
                following.append(mirror)
        return following

    def _recreated(self, selected: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, RecreatedTopic]:
        """Returns the partitions whose offsets belong to the deleted log of a recreated topic."""
        if self.crossing is None:
            return {}
        self.crossing.load_topics({tp.topic for tp in selected})
        return {tp: error for tp, c in selected.items() if (error := self.crossing.recreation_error(tp, c)) is not None}

    def _copy_locked(
        self, following: list[GroupMirror], legacy: Mapping[str, LegacyGroup], target: LockableStore
    ) -> set[str]:
        """Copies groups that must be locked; returns the groups to check again soon."""
        pending: set[str] = set()
        for mirror in following:
            if mirror.lock is not None and (lost := mirror.lock.lost):
                self._handle_lost_lock(mirror, lost)
        self._read_target([m for m in following if not m.ended and (m.lock is None or m.stale)], pending)
        current = [m for m in following if not m.ended and not m.stale]
        to_lock = [m for m in current if m.lock is None and self._may_lock(m, legacy.get(m.group, NO_MEMBERS), pending)]
        self._lock_groups(to_lock, target, pending)
        self._refresh([m for m in current if m.lock is not None], target)
        commits: dict[str, tuple[GroupMirror, dict[TopicPartition, OffsetAndMetadata]]] = {}
        for mirror in current:
            if mirror.lock is None or mirror.stale:
                continue
            mirror.compute_lag()
            if behind := mirror.behind():
                commits[mirror.target_group] = (mirror, behind)
            else:
                mirror.mark_in_step()
        written = ((mirror.lock, values) for mirror, values in commits.values() if mirror.lock is not None)
        for name, outcomes in target.commit_locked(written):
            if not self._record_commit(commits[name][0], outcomes):
                pending.add(commits[name][0].group)
        return pending

    def _read_target(self, batch: list[GroupMirror], pending: set[str]) -> None:
        """Reads the target. Rejects each unlocked group whose offsets have changed: another client commits to it."""
        named = {mirror.target_group: mirror for mirror in batch}
        for name, found in self._target_offsets(batch).items():
            mirror = named[name]
            problem = found.error or next(iter(found.errors.values()), None)
            if problem is not None:
                mirror.stale = True
                mirror.fail(problem, lag_unknown=True)
                if problem.retriable:
                    pending.add(mirror.group)
                continue
            mirror.set_target_offsets(found.offsets)
            mirror.compute_lag()
            if mirror.lock is not None:
                continue
            if mirror.unlocked_read is not None and (moved := first_changed_partition(mirror.unlocked_read, found)):
                mirror.reject(
                    f"another client commits to this group in the target: {moved} changed while nothing was "
                    f"mirrored (seen)"
                )
            elif mirror.unlocked_read is None:
                mirror.unchanged_since = self.clock.monotonic()
            mirror.unlocked_read = found

    def _may_lock(self, mirror: GroupMirror, legacy: LegacyGroup, pending: set[str]) -> bool:
        """Returns True if the mirror may lock the group: no other client commits to it. Otherwise watches the group."""
        if mirror.ended:
            return False
        now = self.clock.monotonic()
        assert mirror.unlocked_read is not None  # the caller has just read the group
        mirror.evidence.observe(legacy, mirror.source_offsets, mirror.unlocked_read.offsets, now)
        if unproven := mirror.evidence.unproven(legacy, now):
            why = f"whether they also commit to Kafka is unknown so far: {', '.join(unproven)}"
            mirror.detail = Advice("old consumers are registered; {}{}", why, legacy.hint)
        elif now - max(mirror.unchanged_since, mirror.evidence.changed_at) < self.settle_s - _ROUNDING_S:
            mirror.detail = "watching the target for commits of other clients"
            pending.add(mirror.group)
        else:
            mirror.watching_since = None
            return True
        mirror.state = MirrorState.WATCHING
        if mirror.watching_since is None:
            mirror.watching_since = now
        return False

    def _lock_groups(self, to_lock: Iterable[GroupMirror], target: LockableStore, pending: set[str]) -> None:
        """Locks the groups, then reads their offsets."""
        named = {mirror.target_group: mirror for mirror in to_lock}
        locked: list[GroupMirror] = []
        for name, lock in target.lock_many(named, holder=HOLDER):
            mirror = named[name]
            if isinstance(lock, GroupActive) and not lock.lock_ends_s:
                mirror.reject(f"the group has members in the target: {'; '.join(lock.members) or lock.why}")
            elif isinstance(lock, OffsetMgrError):
                mirror.fail(lock)
                if lock.retriable or isinstance(lock, GroupActive):  # the lock of a killed run ends by itself
                    pending.add(mirror.group)
            else:
                mirror.lock = lock
                mirror.note = "taken over from another offsetmgr mirror" if lock.replaced else ""
                mirror.stale, mirror.refresh_at = True, 0.0
                locked.append(mirror)
        self._read_target(locked, pending)

    def _refresh(self, locked: list[GroupMirror], target: LockableStore) -> None:
        """Commits the offsets of locked groups again before these offsets expire. Retries retriable errors soon."""
        now = self.clock.monotonic()
        due = {m.target_group: m for m in locked if m.refresh_at <= now}
        stale = {name: [*mirror.refused(), *mirror.recreated] for name, mirror in due.items()}
        for name, error in target.refresh_locked([m.lock for m in due.values() if m.lock is not None], stale):
            due[name].refresh_at = now + self.refresh_s
            if error is not None and error.retriable:
                due[name].refresh_at = now + min(self.refresh_s, _BACKOFF.max_s)

    def _target_offsets(self, mirrors: Iterable[GroupMirror]) -> dict[str, GroupOffsets]:
        return {found.group: found for found in self.target.scan(m.target_group for m in mirrors)}

    def _record_commit(
        self, mirror: GroupMirror, outcomes: Mapping[TopicPartition, ChangeOutcome] | OffsetMgrError
    ) -> bool:
        """Records the outcome of a commit to a locked group; returns True if the commit is complete."""
        if isinstance(outcomes, LockLost):
            # ``lock.lost`` has the reason: a consumer joined the group, or another mirror took over.
            self._handle_lost_lock(mirror, (mirror.lock.lost if mirror.lock else None) or outcomes)
            return mirror.ended
        if isinstance(outcomes, OffsetMgrError):
            mirror.fail(outcomes)
            return not outcomes.retriable
        return mirror.record_outcomes(outcomes)

    def _handle_lost_lock(self, mirror: GroupMirror, error: OffsetMgrError) -> None:
        """Ends the mirror of a group that another client has taken over. Locks other groups again later."""
        assert mirror.lock is not None
        mirror.lock.release()
        mirror.compute_lag()
        if isinstance(error, GroupActive):
            mirror.mark_taken(error.text)
        elif isinstance(error, Superseded):
            mirror.mark_taken(f"another mirror took this group over ({error.why})")
        else:
            mirror.lock, mirror.unlocked_read = None, None
            mirror.fail(error)
