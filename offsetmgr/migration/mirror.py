"""Keeps a target store in step with a source store, for consumers without dual commit.

The mirror only moves offsets forward. Either store can be ZooKeeper or Kafka. If the target has compare-and-set, every
write is conditional on the version that was read. If the target is Kafka, the mirror locks each group: it joins the
group as a static member, so a restarted mirror takes over at once and a frozen mirror is fenced. The mirror refuses
groups to which other clients commit in the target. Brokers of Kafka 0.8.2 have no group lock; on them, the store
compares the offsets just before each write. A restarted mirror compares both sides again.

If the target belongs to another cluster, the mirror translates each offset by the records (`OffsetTranslator`), and
then works with the target's offsets alone. A group is mirrored while it lives in the source: the mirror stops a group
of which the target holds an offset that offsetmgr did not write last (`OwnOffsets`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from offsetmgr.core.advice import Advice
from offsetmgr.core.clock import Clock
from offsetmgr.core.document import time_text
from offsetmgr.core.errors import (
    GroupActive,
    LockLost,
    OffsetMgrError,
    RecreatedTopic,
    RewindRefused,
    Superseded,
    UsageError,
)
from offsetmgr.core.model import (
    PERSISTENT_MEMBERS_HINT,
    Committed,
    OffsetAndMetadata,
    TopicPartition,
    dropped_text,
    form_of,
)
from offsetmgr.core.offset_store import (
    AheadPolicy,
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupOffsets,
    HeldLock,
    LockableStore,
    OffsetStore,
    PartitionKinds,
)
from offsetmgr.core.plurals import count_of
from offsetmgr.core.retry import Backoff
from offsetmgr.groups.last_writes import LastWriter, skip_text
from offsetmgr.migration.journaled_writer import read_batches
from offsetmgr.migration.observation import PartitionOwner, partition_owners
from offsetmgr.migration.plan import PlanOptions, PlanStep
from offsetmgr.migration.translated_offsets import OffsetTranslator, waits
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.zookeeper.client.session import ZookeeperSession

# Notifies a mirror when its source may have changed.


class ChangeNotifier(Protocol):
    """Waits for changes of the source. `OffsetWatcher` implements it for ZooKeeper."""

    def wait(self, timeout_s: float) -> set[str] | None:
        """Waits at most ``timeout_s`` and returns the groups that may have changed since the last call. The set is
        empty if there was no change. None means that every group may have changed."""


@dataclass(slots=True)
class SilentSource:
    """Notifier for a source without watches: only the full comparisons find its changes."""

    clock: Clock

    def wait(self, timeout_s: float) -> set[str]:
        self.clock.sleep(timeout_s)
        return set()


# Collects evidence that a group's live old (ZooKeeper-based) consumers commit only to ZooKeeper. Without this
# evidence, a mirror must not lock the group in Kafka. Pure. While a group is locked in Kafka, the commits of a member
# with dual commit fail. After a failed commit to Kafka, the member does not write ZooKeeper either, so neither store
# would receive the member's progress. A dual member writes Kafka first, so its ZooKeeper offset is never ahead of its
# offset in Kafka. Therefore, if the ZooKeeper offset of a partition was seen to *move* beyond the offset that was
# read from Kafka afterwards, the owner of the partition commits to ZooKeeper alone. A ZooKeeper offset that is merely
# ahead proves nothing: a member that was just restarted with dual commit may not have committed yet.

REBALANCE_S: Final = 10.0
"""The number of seconds after a change of the members during which a rebalance may still assign partitions to a member
without partitions. An old consumer tries to rebalance 4 times, 2 s apart."""


@dataclass(frozen=True, slots=True)
class LegacyGroup:
    """The live old consumers of one group: their ZooKeeper sessions by member id, and the owners of partitions.

    ``error`` is the reason why the members or the owners could not be read. None means that both were read.
    """

    members: Mapping[str, int]
    owners: Mapping[TopicPartition, PartitionOwner]
    error: OffsetMgrError | None = None

    @property
    def hint(self) -> str:
        """The end of a message about the members, if no session belongs to any of them."""
        if any(self.members.values()):
            return ""
        return Advice("; their registrations are persistent: {}", PERSISTENT_MEMBERS_HINT)


ReadLegacyGroups = Callable[[Iterable[str]], Mapping[str, LegacyGroup]]
"""Returns the live old consumers of groups. Groups without live members are missing from the result."""

NO_MEMBERS: Final = LegacyGroup({}, {})


@dataclass(slots=True)
class LegacyMemberEvidence:
    """The evidence about the members of one group. A member is identified by its id and its session, so a member that
    registers again counts as a new member."""

    members: Mapping[str, int] | None = None
    changed_at: float = -math.inf
    """The time (monotonic seconds) at which the members were first seen or last changed; minus infinity if no member
    was seen."""
    _first_seen: dict[TopicPartition, tuple[PartitionOwner, int]] = field(default_factory=dict)
    _proven: set[tuple[str, int]] = field(default_factory=set)

    def observe(
        self,
        group: LegacyGroup,
        source: Mapping[TopicPartition, Committed],
        target: Mapping[TopicPartition, Committed],
        now: float,
    ) -> None:
        """Records one observation. The members must be read first, then the source, then the target."""
        if self.members != group.members and (self.members is not None or group.members):
            self.changed_at = now
        self.members = dict(group.members)
        self._proven &= set(group.members.items())
        for tp, owned in group.owners.items():
            offset = source[tp].offset if tp in source else -1
            first = self._first_seen.get(tp)
            if first is None or first[0] != owned:
                self._first_seen[tp] = (owned, offset)
            elif offset > first[1] and _offset(target, tp) < offset:
                self._proven |= {(m, session) for m, session in group.members.items() if m == owned.member}

    def unproven(self, group: LegacyGroup, now: float) -> list[str]:
        """Returns the members for which no observation proves that they commit to ZooKeeper alone."""
        members = {owned.member for owned in group.owners.values()}
        if not members or now - self.changed_at < REBALANCE_S:
            members |= group.members.keys()
        return sorted(m for m in members if not self._is_proven(group, m))

    def allows_lock(self, group: LegacyGroup) -> bool:
        """Returns whether the group may stay locked: there is no new member, and every owner is proven to commit to
        ZooKeeper alone."""
        known = set((self.members or {}).items())
        owners = {owned.member for owned in group.owners.values()}
        return known.issuperset(group.members.items()) and all(self._is_proven(group, m) for m in owners)

    def _is_proven(self, group: LegacyGroup, member: str) -> bool:
        return (member, group.members.get(member, 0)) in self._proven


def _offset(found: Mapping[TopicPartition, Committed], tp: TopicPartition) -> int:
    return found[tp].offset if tp in found else -1


# One mirrored group: its state, the known offsets of both sides, and its lag.


class MirrorState(StrEnum):
    """The state of one mirrored group."""

    FOLLOWING = "following"
    TARGET_AHEAD = "target-ahead"
    """The target is ahead of the source in some partitions. These partitions are not changed; the others follow the
    source."""
    WATCHING = "watching"
    """The mirror does not know yet whether old consumers or other clients also commit to the target. In this state, the
    mirror neither locks the group nor writes its offsets."""
    REJECTED = "rejected"
    """Other clients use the group in the target. Nothing is written."""
    TAKEN = "taken"
    """The mirror of this group has ended, because a consumer of the group started on the target (the cutover), or
    because another mirror took the group over."""
    NOT_YET = "not-yet"
    """The target does not hold all records before an offset of the source yet. Its partition is tried in each round."""
    FAILING = "failing"
    """The last attempt failed and will be retried."""


@dataclass(slots=True)
class GroupMirror:
    """One mirrored group.

    ``lag`` is the number of messages by which the target was behind the source at the last read. A partition without a
    commit in the target counts as offset 0. ``lag`` is None if the last read failed, or if nothing was read yet.
    ``copied`` is the number of offsets written so far.
    """

    group: str
    target_group: str
    state: MirrorState = MirrorState.FOLLOWING
    detail: str = ""
    lag: int | None = None
    copied: int = 0
    lock: HeldLock | None = None
    note: str = ""
    """Information for the user, shown while the target of the group is in step."""
    problem: OffsetMgrError | None = None
    """The error if the last read of the source failed for the whole group or for a partition."""
    source_offsets: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    """The source's offsets at the last read."""
    mirrored_offsets: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    """The source's offsets that are mirrored. They are the offsets that the options select, except offsets that belong
    to a deleted log."""
    recreated: Mapping[TopicPartition, RecreatedTopic] = field(default_factory=dict)
    """The source's offsets that are not mirrored, because they belong to the deleted log of a recreated topic."""
    target_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The target's offsets as of the last read or write."""
    stale: bool = True
    """Whether the target must be read again before ``target_offsets`` is used."""
    refresh_at: float = 0.0
    """The time (monotonic seconds) at which locked offsets must be committed again, so that they do not expire."""
    evidence: LegacyMemberEvidence = field(default_factory=LegacyMemberEvidence)
    unlocked_read: GroupOffsets | None = None
    """The target's offsets at the last read while the group was not locked."""
    unchanged_since: float = 0.0
    """The time (monotonic seconds) since which ``unlocked_read`` has not changed."""
    drops_metadata: bool = False
    """Whether the target cannot hold metadata."""
    held: Mapping[tuple[TopicPartition, int], str] = field(default_factory=dict)
    """The metadata that the target had at the last read, by partition and offset. The mirror does not write an offset
    that the target has already, so this metadata stays."""
    if_ahead: AheadPolicy | None = None
    """The user's word for a target that is ahead."""
    writers: Mapping[TopicPartition, LastWriter] = field(default_factory=dict)
    """The last writers of partitions in which both sides held different offsets before the mirror wrote any."""
    first_offsets: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    """The source's offsets when ``writers`` were determined."""
    unread: OffsetMgrError | None = None
    """The error of a group that could not be read then. The mirror tries again before it writes to the group."""
    unread_partitions: Set[TopicPartition] = frozenset()
    """The partitions that could not be read then. The mirror tries again before it writes them."""
    untranslated: Mapping[TopicPartition, PlanStep] = field(default_factory=dict)
    """The target's partitions for which the source's offset has no known place, and which are not mirrored."""
    sent: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """The offsets that a translating mirror wrote last, and tried to write since."""
    was_read: bool = False
    """Whether ``target_offsets`` was read once."""
    waiting_since: float = 0.0
    """The time (monotonic seconds) since which a mirror with ``once`` has watched the group, or has waited for records
    that the target lacks."""
    lives_in_target: bool = False
    """Whether the mirror of this group has ended because another client, which is no mirror, uses it in the target."""

    @property
    def ended(self) -> bool:
        """Whether the mirror has nothing left to do for this group."""
        return self.state in (MirrorState.REJECTED, MirrorState.TAKEN)

    @property
    def succeeded(self) -> bool:
        """Whether the mirror of this group counts as successful if it ends now."""
        if self.state is MirrorState.TAKEN:
            return not self.lag and not self.untranslated
        following = self.state in (MirrorState.FOLLOWING, MirrorState.TARGET_AHEAD)
        return following and not self.recreated and not self.untranslated and not self.refused()

    @property
    def waits(self) -> bool:
        """Whether the target does not hold the records of a partition yet."""
        return bool(waits(self.untranslated))

    @property
    def not_mirrored(self) -> str:
        """The partitions that are not mirrored, as text; "" if every partition is mirrored."""
        found = {tp: one.why for tp, one in self.recreated.items()}
        found |= {tp: one.note for tp, one in self.untranslated.items()}
        if not found:
            return ""
        refused = found.keys() - waits(self.untranslated)
        first = min(refused or found)
        more = f", and {count_of(len(found) - 1, 'more partition')}" if len(found) > 1 else ""
        return Advice("{}: {}: {}{}", "refused" if refused else "waits", first, found[first], more)

    def fail(self, error: OffsetMgrError, *, lag_unknown: bool = False) -> None:
        """Records an error. The mirror retries later. With ``lag_unknown``, the lag of the group becomes unknown."""
        self.state, self.detail = MirrorState.FAILING, error.text
        if lag_unknown:
            self.lag = None

    def reject(self, why: str, *, lives_in_target: bool = True) -> None:
        self.state, self.detail, self.lag, self.lives_in_target = MirrorState.REJECTED, why, None, lives_in_target

    def mark_taken(self, why: str, *, lives_in_target: bool = True) -> None:
        """Ends the mirror of the group, because a consumer or another mirror uses the group from now on."""
        self.state, self.detail, self.lives_in_target = MirrorState.TAKEN, why, lives_in_target
        if self.lag:
            behind = count_of(self.lag, "offset")
            self.detail = Advice("{}; the target was {} behind the source then", why, behind)
        if self.untranslated:
            self.detail = Advice("{}; {}", self.detail, self.not_mirrored)

    def writer_in_target(self, offsets: Mapping[TopicPartition, Committed]) -> str:
        """Returns why ``offsets``, which the target of a translating mirror holds now, are those of another writer; ""
        if they are not. A partition that lost its offset has none: Kafka removes those of deleted topics. An offset of
        a partition that is not mirrored is another writer's if it changes."""
        for tp, committed in sorted(offsets.items()):
            there, known, sent = committed.offset, self.target_offsets.get(tp), self.sent.get(tp, set())
            is_mirrored = tp in self.mirrored_offsets or tp in self.untranslated
            if there in sent or not (is_mirrored or (self.was_read and there != known)):
                continue
            last = max(sent, default=known)
            was = f"is at {there} in the target" if last is None else f"was at {last} in the target, and is at {there}"
            return f"{tp} {was}, which is not the mirror's own offset: {_OTHER_WRITER}"
        return ""

    def set_target_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        self.target_offsets = {tp: c.offset for tp, c in offsets.items()}
        self.held = {(tp, c.offset): c.metadata for tp, c in offsets.items()}
        self.stale, self.was_read = False, True

    def behind(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the source's offsets that are larger than the target's offsets."""
        return {tp: value for tp, value in self.to_write().items() if self.target_offsets.get(tp, -1) < value.offset}

    def to_write(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the source's offsets, without those that are larger than a newer offset in the target."""
        known = ((tp, c) for tp, c in self.mirrored_offsets.items() if tp not in self.unread_partitions)
        found = ((tp, c, self._newer(tp)) for tp, c in known)
        written = ((tp, c) for tp, c, newer in found if newer is None or newer > c.offset)
        return {tp: OffsetAndMetadata(c.offset, c.metadata) for tp, c in written}

    def _newer(self, tp: TopicPartition) -> int | None:
        """Returns the target's offset if it was written last, and the source has not changed since; otherwise None."""
        writer, first, now = self.writers.get(tp), self.first_offsets.get(tp), self.mirrored_offsets.get(tp)
        if writer is None or writer.store is None or first is None or first != now:
            return None
        return None if writer.store.offset == first.offset else writer.store.offset

    def refused(self) -> dict[TopicPartition, str]:
        """Returns the partitions whose offset in the target stays although it may be stale, or is newer and smaller,
        each with the consequence. The mirror does not refresh them: a stale offset would look newer then."""
        refused: dict[TopicPartition, str] = {}
        for tp, committed in sorted(self.mirrored_offsets.items()):
            here, newer, writer = committed.offset, self._newer(tp), self.writers.get(tp)
            if tp in self.unread_partitions:
                refused[tp] = "is not mirrored until both stores can be read"
                continue
            there = self.target_offsets.get(tp, -1 if newer is None else newer)
            why = "nothing shows which store was written last" if writer is None else writer.why
            if writer is None and tp in self.sent:
                why = "the group moved back in the source"
            if there > here and newer is None and self.if_ahead is not AheadPolicy.KEEP:
                refused[tp] = Advice("keeps {} ({}); {if_ahead=keep} accepts it", skip_text(there, here), why)
            elif there < here and newer is not None:
                refused[tp] = f"would write {skip_text(here, there)} ({why})"
        return refused

    def compute_lag(self) -> None:
        """Computes the lag from the known offsets."""
        if self.problem is not None or self.waits:
            self.lag = None
            return
        self.lag = sum(max(c.offset - self.target_offsets.get(tp, 0), 0) for tp, c in self.to_write().items())

    def mark_in_step(self) -> None:
        """Records that the target has every offset that was read from the source."""
        if self.problem is not None:
            self.fail(self.problem, lag_unknown=True)
            return
        ahead = any(self.target_offsets.get(tp, -1) > c.offset for tp, c in self.mirrored_offsets.items())
        self.state = MirrorState.TARGET_AHEAD if ahead else MirrorState.FOLLOWING
        if self.waits:
            self.state = MirrorState.NOT_YET
        refused = [Advice("{} {}", tp, text) for tp, text in self.refused().items()]
        others = f"and {len(refused) - 1:,} more" if len(refused) > 1 else ""
        known = ((self.held.get((tp, c.offset), c.metadata), c.metadata) for tp, c in self.mirrored_offsets.items())
        forms = Counter(form_of(one) for there, one in known if one and (self.drops_metadata or there != one))
        dropped = f"drops {dropped_text(forms)}" if forms else ""
        self.detail = Advice.joined(filter(None, (self.note, self.not_mirrored, *refused[:1], others, dropped)))

    def record_outcomes(self, outcomes: Mapping[TopicPartition, ChangeOutcome]) -> bool:
        """Records the outcomes of a write. Returns False if a partition failed with an error that should be retried
        soon."""
        failed: list[OffsetMgrError] = []
        for tp, outcome in outcomes.items():
            if outcome.status is not EditStatus.FAILED:
                self.copied += outcome.status is EditStatus.WRITTEN
                self.target_offsets[tp] = self.mirrored_offsets[tp].offset
                self.sent[tp] = {self.target_offsets[tp]}
                continue
            if isinstance(outcome.before, Committed):
                self.target_offsets[tp] = outcome.before.offset
            elif outcome.before is not None:
                self.target_offsets.pop(tp, None)
            if outcome.error is not None and not isinstance(outcome.error, RewindRefused):
                failed.append(outcome.error)
        self.compute_lag()
        if not failed:
            self.mark_in_step()
            return True
        retriable = next((error for error in failed if error.retriable), None)
        self.fail(retriable or failed[0])
        return retriable is None


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """The status of a running mirror. ``lag`` is the sum over all groups with a known lag; ``unknown`` counts the
    groups with an unknown lag, except refused groups. ``refused`` counts the partitions that are not mirrored because
    their topic was recreated, or because their place in the target's log is not known."""

    copied: int
    lag: int
    unknown: int
    states: Mapping[MirrorState, int]
    at_ms: int
    refused: int = 0

    @property
    def text(self) -> str:
        """The status in one line."""
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items())) or "no groups yet"
        unknown = f" + ? ({count_of(self.unknown, 'group')} unknown)" if self.unknown else ""
        if self.unknown == self.states.get(MirrorState.NOT_YET):
            unknown = " + ?"
        refused = f"; {count_of(self.refused, 'partition')} refused" if self.refused else ""
        copied = count_of(self.copied, "offset")
        return f"{time_text(self.at_ms)}  {states}; {copied} copied, lag {self.lag}{unknown}{refused}"


HOLDER = "offsetmgr-mirror"
"""The name under which mirrors lock groups. A second mirror of a group takes the group over from the first."""
_OTHER_WRITER: Final = (
    "another client uses this group, such as a consumer, or MirrorMaker with sync.group.offsets.enabled=true; if the "
    "group does not live in the target, stop that client, delete the group's offsets there, and start the mirror again"
)
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
    first collects evidence that a group's old consumers commit to the source alone. With ``once``,
    ``watch_s`` limits this step. ``legacy_groups`` is None if there are no old consumers, or if the user trusts them.
    Locked groups are committed again every ``refresh_s`` (well below the retention).

    ``crossing`` detects offsets of deleted logs (of recreated topics). These offsets are not mirrored. If ``crossing``
    is None, the caller guarantees that the source has no such offsets. Leader epochs are never mirrored. ``on_new`` is
    called with new groups before the mirror writes to them; an error that it raises prevents the writes. ``on_ended``
    is called with each group whose mirror has ended.

    ``translator`` translates the offsets if the target has other logs. Then ``legacy_groups`` must be None, and
    ``idle_s``, counted from the end of a round, is the interval in which the source is read.
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
    on_ended: Callable[[GroupMirror], None] = lambda _mirror: None
    translator: OffsetTranslator | None = None
    groups: dict[str, GroupMirror] = field(default_factory=dict)
    rounds: int = 0
    interrupted: bool = False  # whether ``stop`` ended a run with ``once`` before all writes
    _sources: dict[str, str] = field(default_factory=dict)  # the only source group of each target group
    _full_at: float = 0.0
    _failures: int = 0
    _pending: set[str] = field(default_factory=set)  # the groups to check again soon
    _ended: set[str] = field(default_factory=set)  # the groups of which `on_ended` was called

    def run(self, *, once: bool = False) -> MirrorStatus:
        """Mirrors until ``stop`` returns True, or (``once``) until everything is written. Returns the last status.

        An error in the first round is raised. After an error in a later round, the next round retries.
        """
        try:
            changed: set[str] | None = None
            while True:
                self._round(changed)
                self.report(self.status())
                done = once and not self._pending and not self._still_waiting()
                if done or self.stop():
                    self.interrupted = once and not done
                    return self.status()
                changed = self._wait_for_changes()
        finally:
            self._release(self.groups.values())

    def _release(self, mirrors: Iterable[GroupMirror]) -> None:
        """Releases the locks of the groups."""
        locked = [mirror for mirror in mirrors if mirror.lock is not None]
        if isinstance(self.target, LockableStore):
            self.target.release_locks([mirror.lock for mirror in locked if mirror.lock is not None])
        for mirror in locked:
            mirror.lock = mirror.unlocked_read = None

    def status(self) -> MirrorStatus:
        states = dict(Counter(mirror.state for mirror in self.groups.values()))
        copied = sum(mirror.copied for mirror in self.groups.values())
        lag = sum(mirror.lag or 0 for mirror in self.groups.values())
        unknown = [m for m in self.groups.values() if m.lag is None and m.state is not MirrorState.REJECTED]
        refused = sum(len(m.recreated) + len(m.untranslated) - len(waits(m.untranslated)) for m in self.groups.values())
        return MirrorStatus(copied, lag, len(unknown), states, self.clock.now_ms(), refused)

    def _still_waiting(self) -> bool:
        """Returns whether a group is watched, or waits for records, and began to do so less than ``watch_s`` ago."""
        now, states = self.clock.monotonic(), (MirrorState.WATCHING, MirrorState.NOT_YET)
        waiting = [mirror for mirror in self.groups.values() if mirror.state in states]
        for mirror in waiting:
            mirror.waiting_since = mirror.waiting_since or now
        return any(now - mirror.waiting_since < self.watch_s for mirror in waiting)

    def _wait_for_changes(self) -> set[str] | None:
        """Waits until a group may have changed. Returns the groups that may have changed (None: all groups)."""
        now = self.clock.monotonic()
        deadline = min(now + _RETRY_S, self._full_at) if self._pending else self._full_at
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
                return self._wait_for_changes()
            if changed is None:
                return None
            changed = changed | {m.group for m in self.groups.values() if m.lock is not None and m.lock.lost}
        if self._failures:
            return None
        return (changed or set()) | self._pending

    def _fail(self, mirror: GroupMirror, error: OffsetMgrError, *, lag_unknown: bool = False) -> None:
        """Records an error of a group. If the error is retriable, the group is checked again soon."""
        mirror.fail(error, lag_unknown=lag_unknown)
        if error.retriable:
            self._pending.add(mirror.group)

    def _record_store_failure(self, error: OffsetMgrError) -> None:
        """Records an error of a whole store for every group that is still mirrored."""
        self._failures += 1
        for mirror in self.groups.values():
            if not mirror.ended:
                mirror.fail(error, lag_unknown=True)

    def _round(self, changed: set[str] | None) -> None:
        """Compares and copies the changed groups (None means all groups)."""
        self.rounds += 1
        self._pending = set()
        if self.crossing is not None:
            self.crossing.clear_cache()
        try:
            if due := self.clock.monotonic() >= self._full_at:
                changed = None
            if changed is None:
                self._discover()
            if due:
                for mirror in self.groups.values():
                    mirror.stale = True
            names = self.groups if changed is None else changed & self.groups.keys()
            for batch in read_batches(sorted(names)) if self.translator is None else [sorted(names)]:
                mirrors = (self.groups[name] for name in batch)
                current = [mirror for mirror in mirrors if not mirror.ended and mirror.unread is None]
                self._copy(current, again=changed is not None)
                self._end([mirror for mirror in self.groups.values() if mirror.ended])
            if due:  # a round may take longer than the interval
                self._full_at = self.clock.monotonic() + self.idle_s
        except OffsetMgrError as error:
            if self.rounds == 1:
                raise
            self._record_store_failure(error)
            self._pending = set(self.groups)
        else:
            self._failures = 0

    def _discover(self) -> None:
        found = [g for g in self.source.groups() if g not in self.groups and self.options.selects_group(g)]
        new: list[GroupMirror] = []
        for group in found:
            mirror = GroupMirror(group, self.options.target_group(group), if_ahead=self.options.if_ahead)
            owner = self._sources.setdefault(mirror.target_group, group)
            if owner != group:
                self.groups[group] = mirror
                why = f"group {owner} is mirrored to {mirror.target_group} already; give it another name"
                mirror.reject(why, lives_in_target=False)
            else:
                new.append(mirror)
        if self.translator is None:
            unread = (mirror for mirror in self.groups.values() if mirror.unread or mirror.unread_partitions)
            self.on_new([*new, *unread])
        else:
            own = self.translator.own.load((mirror.group, mirror.target_group) for mirror in new)
            for mirror in new:
                mirror.sent = own[mirror.target_group]
        self.groups |= {mirror.group: mirror for mirror in new}

    def _copy(self, batch: list[GroupMirror], *, again: bool) -> None:
        """Copies groups. With ``again``, translated offsets are those of the last full round."""
        target = self.target
        if isinstance(target, LockableStore):
            legacy, batch = self._read_members(batch)
            self._copy_locked(self._read_source(batch, again=again), legacy, target)
            return
        following = self._read_source(batch, again=again)
        if self.translator is not None:
            self._read_target(following)
            following = [mirror for mirror in following if not (mirror.ended or mirror.stale)]
            self._begin_writes([(mirror, mirror.behind()) for mirror in following])
        named = {mirror.target_group: mirror for mirror in following}
        writes = ((name, mirror.to_write()) for name, mirror in named.items())
        edits = (GroupEdit(name, {tp: Change(value) for tp, value in values.items()}) for name, values in writes)
        for result in target.edit(edits):
            mirror = named[result.group]
            ahead = {tp: o.before for tp, o in result.outcomes.items() if isinstance(o.error, RewindRefused)}
            old = {tp: before for tp, before in ahead.items() if isinstance(before, Committed)}
            mirror.recreated = {**mirror.recreated, **self._recreated(old)}
            self._record_outcomes(mirror, result.outcomes)
            if any(outcome.error is not None and outcome.before is None for outcome in result.outcomes.values()):
                mirror.lag = None

    def _read_members(self, batch: list[GroupMirror]) -> tuple[Mapping[str, LegacyGroup], list[GroupMirror]]:
        """Reads the live old consumers. Unlocks each group in which an old consumer may commit to Kafka too."""
        if self.legacy_groups is None or not batch:
            return {}, batch
        legacy = self.legacy_groups(mirror.group for mirror in batch)
        found = [(mirror, legacy.get(mirror.group, NO_MEMBERS)) for mirror in batch]
        for mirror, group in found:
            if group.error is not None:
                self._fail(mirror, group.error)
        known = [(mirror, group) for mirror, group in found if group.error is None]
        locked = [(mirror, group) for mirror, group in known if mirror.lock is not None and mirror.lock.lost is None]
        self._release([mirror for mirror, group in locked if not mirror.evidence.allows_lock(group)])
        return legacy, [mirror for mirror, _ in known]

    def _read_source(self, batch: list[GroupMirror], *, again: bool) -> list[GroupMirror]:
        """Reads the source; returns the groups with offsets to mirror."""
        if again and self.translator is not None:  # only a full round reads the logs
            return [mirror for mirror in batch if mirror.mirrored_offsets or mirror.lock is not None]
        named = {mirror.group: mirror for mirror in batch}
        following: list[GroupMirror] = []
        read: Iterable[GroupOffsets] = self.source.scan(named)
        for found in read if self.translator is None else self.translator.load(read):
            mirror = named[found.name]
            mirror.source_offsets = found.offsets
            selected = {tp: c for tp, c in found.offsets.items() if self.options.selects(tp)}
            if self.translator is None:
                mirror.recreated = self._recreated(selected)
                mirror.mirrored_offsets = {tp: c for tp, c in selected.items() if tp not in mirror.recreated}
            else:
                mirror.mirrored_offsets, mirror.untranslated = self.translator.of(found)
            mirror.drops_metadata = not self.target.capabilities.metadata
            mirror.problem = found.error or found.hidden or next(iter(found.errors.values()), None)
            if mirror.problem is not None:
                self._fail(mirror, mirror.problem, lag_unknown=True)
            elif not mirror.mirrored_offsets and mirror.lock is None:
                mirror.detail, mirror.lag = mirror.not_mirrored, None if mirror.waits else 0
                mirror.state = MirrorState.NOT_YET if mirror.waits else MirrorState.FOLLOWING
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
    ) -> None:
        """Copies groups that must be locked."""
        for mirror in following:
            if mirror.lock is not None and (lost := mirror.lock.lost):
                self._handle_lost_lock(mirror, lost)
        self._read_target([m for m in following if not m.ended and (m.lock is None or m.stale)])
        current = [m for m in following if not m.ended and not m.stale]
        to_lock = [m for m in current if m.lock is None and self._may_lock(m, legacy.get(m.group, NO_MEMBERS))]
        self._lock_groups(to_lock, target)
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
        self._begin_writes(list(commits.values()))
        written = ((mirror.lock, values) for mirror, values in commits.values() if mirror.lock is not None)
        for name, outcomes in target.commit_locked(written):
            self._record_commit(commits[name][0], outcomes)

    def _begin_writes(self, writes: Sequence[tuple[GroupMirror, Mapping[TopicPartition, OffsetAndMetadata]]]) -> None:
        """Saves the before-images of translated offsets, and remembers the offsets as the mirror's own."""
        if self.translator is None:
            return
        self.on_new([mirror for mirror, _ in writes])
        for mirror, values in writes:
            for tp, value in values.items():
                mirror.sent.setdefault(tp, set()).add(value.offset)
        self.translator.own.save({mirror.target_group: mirror.sent for mirror, values in writes if values})

    def _end(self, mirrors: Iterable[GroupMirror]) -> None:
        """Reports groups whose mirror has ended. Later runs find no own offsets in a group that lives in the target."""
        ended = [mirror for mirror in mirrors if mirror.group not in self._ended]
        if self.translator is not None:
            self.translator.own.save({mirror.target_group: {} for mirror in ended if mirror.lives_in_target})
        for mirror in ended:
            self._ended.add(mirror.group)
            self.on_ended(mirror)

    def _record_outcomes(self, mirror: GroupMirror, outcomes: Mapping[TopicPartition, ChangeOutcome]) -> None:
        """Records the outcomes of a write. If one should be retried soon, the group is checked again soon."""
        if self.translator is not None:
            found = {tp: one.before for tp, one in outcomes.items() if isinstance(one.before, Committed)}
            if why := mirror.writer_in_target(found):
                self._release([mirror])
                mirror.reject(why)
                return
        if not mirror.record_outcomes(outcomes):
            self._pending.add(mirror.group)

    def _read_target(self, batch: list[GroupMirror]) -> None:
        """Reads the target. Rejects each unlocked group whose offsets have changed: another client commits to it."""
        named = {mirror.target_group: mirror for mirror in batch}
        for found in self.target.scan(named):
            mirror = named[found.name]
            problem = found.error or next(iter(found.errors.values()), None)
            if problem is not None:
                mirror.stale = True
                self._fail(mirror, problem, lag_unknown=True)
                continue
            if self.translator is not None and (why := mirror.writer_in_target(found.offsets)):
                self._release([mirror])
                mirror.reject(why)
                continue
            mirror.set_target_offsets(found.offsets)
            mirror.compute_lag()
            if mirror.lock is not None or not isinstance(self.target, LockableStore):
                continue
            if mirror.unlocked_read is not None and (moved := found.first_change(mirror.unlocked_read)):
                why = f"another client commits to this group in the target: {moved} changed while nothing was mirrored"
                mirror.reject(f"{why} (seen)")
            elif mirror.unlocked_read is None:
                mirror.unchanged_since = self.clock.monotonic()
            mirror.unlocked_read = found

    def _may_lock(self, mirror: GroupMirror, legacy: LegacyGroup) -> bool:
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
            self._pending.add(mirror.group)
        else:
            return True
        mirror.state = MirrorState.WATCHING
        return False

    def _lock_groups(self, to_lock: Iterable[GroupMirror], target: LockableStore) -> None:
        """Locks the groups, then reads their offsets."""
        named = {mirror.target_group: mirror for mirror in to_lock}
        locked: list[GroupMirror] = []
        for name, lock in target.lock_many(named, holder=HOLDER):
            mirror = named[name]
            if isinstance(lock, GroupActive) and not lock.lock_ends_s:
                mirror.reject(f"the group has members in the target: {'; '.join(lock.members) or lock.why}")
            elif isinstance(lock, OffsetMgrError):
                self._fail(mirror, lock)
                if isinstance(lock, GroupActive):  # the lock of a killed run ends by itself
                    self._pending.add(mirror.group)
            else:
                mirror.lock = lock
                mirror.note = "taken over from another offsetmgr mirror" if lock.replaced else ""
                mirror.stale, mirror.refresh_at = True, 0.0
                locked.append(mirror)
        self._read_target(locked)

    def _refresh(self, locked: list[GroupMirror], target: LockableStore) -> None:
        """Commits the offsets of locked groups again before these offsets expire. Retries retriable errors soon."""
        now = self.clock.monotonic()
        due = {m.target_group: m for m in locked if m.refresh_at <= now}
        stale = {name: [*mirror.refused(), *mirror.recreated] for name, mirror in due.items()}
        for name, error in target.refresh_locked([m.lock for m in due.values() if m.lock is not None], stale):
            due[name].refresh_at = now + self.refresh_s
            if error is not None and error.retriable:
                due[name].refresh_at = now + min(self.refresh_s, _BACKOFF.max_s)

    def _record_commit(
        self, mirror: GroupMirror, outcomes: Mapping[TopicPartition, ChangeOutcome] | OffsetMgrError
    ) -> None:
        """Records the outcome of a commit to a locked group."""
        if isinstance(outcomes, LockLost):
            # ``lock.lost`` has the reason: a consumer joined the group, or another mirror took over.
            self._handle_lost_lock(mirror, (mirror.lock.lost if mirror.lock else None) or outcomes)
        elif isinstance(outcomes, OffsetMgrError):
            self._fail(mirror, outcomes)
        else:
            self._record_outcomes(mirror, outcomes)

    def _handle_lost_lock(self, mirror: GroupMirror, error: OffsetMgrError) -> None:
        """Ends the mirror of a group that another client has taken over. Locks other groups again later."""
        self._release([mirror])
        mirror.compute_lag()
        if isinstance(error, GroupActive):
            mirror.mark_taken(error.text)
        elif isinstance(error, Superseded):
            mirror.mark_taken(f"another mirror took this group over ({error.why})", lives_in_target=False)
        else:
            mirror.fail(error)
            self._pending.add(mirror.group)


def require_equal_layouts(source: OffsetStore, target: OffsetStore) -> None:
    """Raises `UsageError` if one of the two stores contains byte positions of Kafka 0.7 and the other one contains
    offsets."""
    kinds = {one.capabilities.partitions for one in (source, target)}
    if PartitionKinds.OF_BROKERS in kinds and len(kinds) > 1:
        raise UsageError(
            "migrate mirror",
            "one side holds byte positions of Kafka 0.7 and the other side offsets, which cannot be compared",
            Advice("a plan can translate them once: migrate plan {partition_map}"),
        )


def legacy_groups(session: ZookeeperSession, groups: Iterable[str]) -> Mapping[str, LegacyGroup]:
    """Returns the members and owners of groups; see `ReadLegacyGroups`.

    Raises an error if the session fails. An error that concerns a single group is stored in its `LegacyGroup.error`.
    """
    from offsetmgr.zookeeper.groups.registry import members_many, owners_many

    found = {group.group: group for group in members_many(session, groups) if group.members or group.error}
    found_groups = {name: LegacyGroup({}, {}, group.error) for name, group in found.items()}
    for owned in owners_many(session, [name for name, group in found.items() if group.error is None]):
        problem = owned.error or next(iter(owned.errors.values()), None)
        members = {member.member_id: member.node.ephemeral_owner for member in found[owned.group].members}
        found_groups[owned.group] = LegacyGroup(members, partition_owners(owned), problem)
    return found_groups
