"""A process that keeps a target store following a source store, for consumers that have no dual commit.

Forward only, in either direction.  Towards a store with compare-and-set every write is conditional on the version that
was read; towards Kafka the mirror holds each group (a static member, so that a restarted mirror takes over from a dead
one at once, and a frozen one is fenced), and refuses groups that others commit to.  The mirror keeps no state of its
own: whatever it was doing when it was killed, the next one compares both sides and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from offsetmgr.clock import Clock
from offsetmgr.errors import GroupActive, LockLost, OffsetMgrError, RewindRefused
from offsetmgr.migration.batches import READ_GROUPS, batched
from offsetmgr.migration.plan import PlanOptions
from offsetmgr.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.stores.base import (
    Change,
    ChangeOutcome,
    GroupEdit,
    GroupOffsets,
    HeldGroup,
    HoldingStore,
    OffsetStore,
    Verdict,
)

HOLDER = "offsetmgr-mirror"
"""The role under which groups are held: one mirror a group, the last one started."""


class Feed(Protocol):
    """Tells when the source may have changed."""

    def wait(self, timeout_s: float) -> set[str] | None:
        """Groups that may have changed since the last call, after at most ``timeout_s``; None means any may have."""
        ...


@dataclass(frozen=True, slots=True)
class PollingFeed:
    """For sources without watches: everything may have changed, once an interval."""

    clock: Clock
    interval_s: float

    def wait(self, timeout_s: float) -> set[str] | None:
        self.clock.sleep(min(self.interval_s, timeout_s))
        return None


class MirrorState(StrEnum):
    """How one group stands."""

    FOLLOWING = "following"
    TARGET_AHEAD = "target-ahead"
    """Some partition is ahead in the target; it stays there, the others follow."""
    REFUSED = "refused"
    """Others use the group in the target; nothing is written."""
    TAKEN = "taken"
    """A consumer started with the group in the target: the cut-over has happened, the mirror of it is over."""
    FAILING = "failing"
    """The last attempt failed; it is tried again."""


@dataclass(slots=True)
class GroupMirror:
    """One mirrored group. ``lag`` counts the offsets by which the target was behind when it was last looked at and
    that could not be written since; ``copied`` the offsets (partitions) written so far."""

    group: str
    target_group: str
    state: MirrorState = MirrorState.FOLLOWING
    detail: str = ""
    lag: int = 0
    copied: int = 0
    held: HeldGroup | None = None
    known: dict[TopicPartition, int] = field(default_factory=dict)
    """What the target holds as far as we know: only meaningful while the group is held."""


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """A look at a running mirror: for people and for ``--format json``."""

    rounds: int
    copied: int
    lag: int
    states: Mapping[MirrorState, int]
    at_ms: int


@dataclass(slots=True)
class Mirror:
    """Follows the groups that ``options`` want. ``idle_s`` bounds the time between two full comparisons, so that a
    missed notification costs time, never an offset."""

    source: OffsetStore
    target: OffsetStore
    options: PlanOptions
    feed: Feed
    clock: Clock
    stop: Callable[[], bool] = lambda: False
    report: Callable[[MirrorStatus], None] = lambda _status: None
    idle_s: float = 10.0
    settle_s: float = 1.0
    groups: dict[str, GroupMirror] = field(default_factory=dict)
    rounds: int = 0

    def run(self, *, once: bool = False) -> MirrorStatus:
        """Mirrors until ``stop`` says so, or (``once``) until one full comparison found nothing left to write.

        A store that cannot be reached is tried again in the next round; the status shows it.
        """
        try:
            changed: set[str] | None = None
            while True:
                pending = self._round(changed)
                self.report(self.status())
                if self.stop() or (once and not pending):
                    return self.status()
                changed = self._next(pending)
        finally:
            if isinstance(self.target, HoldingStore):
                self.target.release_held([m.held for m in self.groups.values() if m.held is not None])

    def _next(self, pending: set[str]) -> set[str] | None:
        changed = self.feed.wait(0.2 if pending else self.idle_s)
        return None if changed is None else changed | pending

    def status(self) -> MirrorStatus:
        states: dict[MirrorState, int] = {}
        for mirrored in self.groups.values():
            states[mirrored.state] = states.get(mirrored.state, 0) + 1
        copied = sum(mirrored.copied for mirrored in self.groups.values())
        lag = sum(mirrored.lag for mirrored in self.groups.values())
        return MirrorStatus(self.rounds, copied, lag, states, self.clock.now_ms())

    def _round(self, changed: set[str] | None) -> set[str]:
        """Compares and copies; gives the groups that must be looked at again soon."""
        self.rounds += 1
        try:
            names = self._discover() if changed is None else sorted(changed & self.groups.keys())
            pending: set[str] = set()
            for batch in batched(names, READ_GROUPS):
                pending |= self._copy(batch)
        except OffsetMgrError as error:
            for mirrored in self.groups.values():
                mirrored.state, mirrored.detail = MirrorState.FAILING, str(error)
            if not self.groups:
                raise
            return set(self.groups)
        return pending

    def _discover(self) -> list[str]:
        found = [group for group in self.source.groups() if self.options.wants_group(group)]
        new = [group for group in found if group not in self.groups]
        for group in new:
            self.groups[group] = GroupMirror(group, self.options.target_group(group))
        if isinstance(self.target, HoldingStore):
            self._hold([self.groups[group] for group in new], self.target)
        return sorted(self.groups)

    def _hold(self, new: list[GroupMirror], target: HoldingStore) -> None:
        """Takes the groups, but only those that nobody else was seen to commit to meanwhile."""
        if not new:
            return
        before = self._target_offsets(new)
        self.clock.sleep(self.settle_s)
        after = self._target_offsets(new)
        quiet: list[GroupMirror] = []
        for mirrored in new:
            name = mirrored.target_group
            if moved := _moved(before[name], after[name]):
                mirrored.state = MirrorState.REFUSED
                mirrored.detail = (
                    f"somebody commits to this group in the target: {moved} moved while nothing was mirrored (seen)"
                )
            else:
                quiet.append(mirrored)
        self._take(quiet, target)

    def _take(self, wanted: Iterable[GroupMirror], target: HoldingStore) -> None:
        """Holds the groups, and learns what they hold: nobody else changes that from then on."""
        named = {mirrored.target_group: mirrored for mirrored in wanted}
        taken: list[GroupMirror] = []
        for name, held in target.hold_many(named, holder=HOLDER):
            mirrored = named[name]
            if isinstance(held, GroupActive):
                members = "; ".join(held.members) or held.why
                mirrored.state, mirrored.detail = MirrorState.REFUSED, f"the group has members in the target: {members}"
            elif isinstance(held, OffsetMgrError):
                mirrored.state, mirrored.detail = MirrorState.FAILING, str(held)
            else:
                mirrored.held = held
                mirrored.state, mirrored.detail = MirrorState.FOLLOWING, ""
                taken.append(mirrored)
        for name, found in self._target_offsets(taken).items():
            # What cannot be read now counts as unknown: the commit reads again, and refuses to lower anything.
            named[name].known = {tp: c.offset for tp, c in found.offsets.items()}

    def _target_offsets(self, mirrored: Iterable[GroupMirror]) -> dict[str, GroupOffsets]:
        return {found.group: found for found in self.target.scan(m.target_group for m in mirrored)}

    def _copy(self, batch: list[str]) -> set[str]:
        wanted = [self.groups[group] for group in batch]
        live = {m.group: m for m in wanted if m.state not in (MirrorState.REFUSED, MirrorState.TAKEN)}
        pending: set[str] = set()
        edits: dict[str, tuple[GroupMirror, GroupEdit]] = {}
        following: list[tuple[GroupMirror, Mapping[TopicPartition, Committed]]] = []
        for found in self.source.scan(live):
            mirrored = live[found.group]
            if problem := found.error or next(iter(found.errors.values()), None):
                mirrored.state, mirrored.detail = MirrorState.FAILING, str(problem)
                pending.add(mirrored.group)
            offsets = {tp: c for tp, c in found.offsets.items() if self.options.wants(tp)}
            if not offsets:
                continue
            if isinstance(self.target, HoldingStore):
                following.append((mirrored, offsets))
            else:
                changes = {tp: Change(OffsetAndMetadata(c.offset, c.metadata)) for tp, c in offsets.items()}
                edits[mirrored.target_group] = (mirrored, GroupEdit(mirrored.target_group, changes))
        if isinstance(self.target, HoldingStore):
            return pending | self._copy_held(following, self.target)
        for result in self.target.edit(edit for _, edit in edits.values()):
            if not _take_outcomes(edits[result.group][0], result.outcomes):
                pending.add(edits[result.group][0].group)
        return pending

    def _copy_held(
        self, following: list[tuple[GroupMirror, Mapping[TopicPartition, Committed]]], target: HoldingStore
    ) -> set[str]:
        """Copies groups that must be held; gives those that must be looked at again soon."""
        self._take([mirrored for mirrored, _ in following if mirrored.held is None], target)
        pending: set[str] = set()
        commits: dict[str, tuple[GroupMirror, dict[TopicPartition, OffsetAndMetadata]]] = {}
        for mirrored, offsets in following:
            if mirrored.held is None:
                done = mirrored.state is MirrorState.REFUSED
            elif lost := mirrored.held.lost:
                done = self._lose(mirrored, lost)
            elif behind := _behind(mirrored, offsets):
                commits[mirrored.target_group] = (mirrored, behind)
                continue
            else:
                done = True
            if not done:
                pending.add(mirrored.group)
        wanted = ((mirrored.held, values) for mirrored, values in commits.values() if mirrored.held is not None)
        for name, outcomes in target.commit_held(wanted):
            if not self._committed(*commits[name], outcomes):
                pending.add(commits[name][0].group)
        return pending

    def _committed(
        self,
        mirrored: GroupMirror,
        values: Mapping[TopicPartition, OffsetAndMetadata],
        outcomes: Mapping[TopicPartition, ChangeOutcome] | OffsetMgrError,
    ) -> bool:
        """Books a commit into a held group; True when nothing is left to do."""
        if isinstance(outcomes, LockLost):
            # Why it was lost is told by the hold: a consumer that wants the group, or a mirror that took over.
            return self._lose(mirrored, (mirrored.held.lost if mirrored.held else None) or outcomes)
        if isinstance(outcomes, OffsetMgrError):
            mirrored.state, mirrored.detail = MirrorState.FAILING, str(outcomes)
            return False
        mirrored.known.update({tp: values[tp].offset for tp, o in outcomes.items() if o.verdict is not Verdict.FAILED})
        return _take_outcomes(mirrored, outcomes)

    def _lose(self, mirrored: GroupMirror, error: OffsetMgrError) -> bool:
        """The group is ours no longer. Where a consumer has it, that is the cut-over; else it is taken again."""
        assert mirrored.held is not None
        mirrored.held.release()
        mirrored.held = None
        mirrored.detail = str(error)
        if isinstance(error, GroupActive):
            mirrored.state = MirrorState.TAKEN
            return True
        mirrored.state = MirrorState.FAILING
        return False


def _moved(before: GroupOffsets, after: GroupOffsets) -> TopicPartition | None:
    """A partition whose commit changed between two reads; None where none did (or could be read)."""
    return next((tp for tp, found in after.offsets.items() if before.offsets.get(tp) != found), None)


def _behind(
    mirrored: GroupMirror, offsets: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What a held group lacks; where nothing, its state is that of a group that follows."""
    known = mirrored.known
    behind = {tp: c for tp, c in offsets.items() if known.get(tp, -1) < c.offset}
    mirrored.lag = sum(c.offset - max(known.get(tp, c.offset), 0) for tp, c in behind.items())
    if not behind:
        ahead = any(known.get(tp, -1) > c.offset for tp, c in offsets.items())
        mirrored.state, mirrored.detail = MirrorState.TARGET_AHEAD if ahead else MirrorState.FOLLOWING, ""
    return {tp: OffsetAndMetadata(c.offset, c.metadata) for tp, c in behind.items()}


def _take_outcomes(mirrored: GroupMirror, outcomes: Mapping[TopicPartition, ChangeOutcome]) -> bool:
    """Books what a write did; True when nothing is left to do."""
    ahead = False
    failed: OffsetMgrError | None = None
    mirrored.lag = 0
    for outcome in outcomes.values():
        if outcome.verdict is Verdict.WRITTEN:
            mirrored.copied += 1
        elif isinstance(outcome.error, RewindRefused):
            ahead = True
        elif outcome.error is not None:
            failed = outcome.error
    if failed is not None:
        mirrored.state, mirrored.detail = MirrorState.FAILING, str(failed)
    else:
        mirrored.state = MirrorState.TARGET_AHEAD if ahead else MirrorState.FOLLOWING
        mirrored.detail = ""
    return failed is None
