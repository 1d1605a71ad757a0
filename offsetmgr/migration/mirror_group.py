"""One mirrored group: its state, the known offsets of both sides, and its lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum

from offsetmgr.core.advice import Advice
from offsetmgr.core.ahead_policy import AheadPolicy
from offsetmgr.core.commit_metadata import dropped_text, form_of
from offsetmgr.core.errors import OffsetMgrError, RecreatedTopic, RewindRefused
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import ChangeOutcome, EditStatus, GroupOffsets, HeldLock
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.groups.last_writes import LastWriter, skip_text
from offsetmgr.migration.mirror_safety import LegacyMemberEvidence


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
    watching_since: float | None = None
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

    @property
    def ended(self) -> bool:
        """Whether the mirror has nothing left to do for this group."""
        return self.state in (MirrorState.REJECTED, MirrorState.TAKEN)

    @property
    def can_be_copied(self) -> bool:
        """Whether the mirror may write to the group."""
        return not self.ended and self.unread is None

    @property
    def succeeded(self) -> bool:
        """Whether the mirror of this group counts as successful if it ends now."""
        if self.state is MirrorState.TAKEN:
            return not self.lag
        following = self.state in (MirrorState.FOLLOWING, MirrorState.TARGET_AHEAD)
        return following and not self.recreated and not self.refused()

    @property
    def not_mirrored(self) -> str:
        """The partitions that are not mirrored, as text; "" if every partition is mirrored."""
        if not self.recreated:
            return ""
        tp, error = min(self.recreated.items())
        more = f", and {len(self.recreated) - 1} more partitions" if len(self.recreated) > 1 else ""
        return Advice("refused: {}: {}{}", tp, error.why, more)

    def fail(self, error: OffsetMgrError, *, lag_unknown: bool = False) -> None:
        """Records an error. The mirror retries later. With ``lag_unknown``, the lag of the group becomes unknown."""
        self.state, self.detail = MirrorState.FAILING, error.text
        if lag_unknown:
            self.lag = None

    def reject(self, why: str) -> None:
        self.state, self.detail, self.lag = MirrorState.REJECTED, why, None

    def mark_taken(self, why: str) -> None:
        """Ends the mirror of the group, because a consumer or another mirror uses the group from now on."""
        self.state, self.detail, self.lock = MirrorState.TAKEN, why, None
        if self.lag:
            behind = count_of(self.lag, "offset")
            self.detail = Advice("{}; the target was {} behind the source then", why, behind)

    def set_target_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        self.target_offsets = {tp: c.offset for tp, c in offsets.items()}
        self.held = {(tp, c.offset): c.metadata for tp, c in offsets.items()}
        self.stale = False

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
        refused = {}
        for tp, committed in sorted(self.mirrored_offsets.items()):
            here, newer, writer = committed.offset, self._newer(tp), self.writers.get(tp)
            if tp in self.unread_partitions:
                refused[tp] = "is not mirrored until both stores can be read"
                continue
            there = self.target_offsets.get(tp, -1 if newer is None else newer)
            why = "nothing shows which store was written last" if writer is None else writer.why
            if there > here and newer is None and self.if_ahead is not AheadPolicy.KEEP:
                refused[tp] = f"keeps {skip_text(there, here)} ({why}); --if-ahead keep accepts it"
            elif there < here and newer is not None:
                refused[tp] = f"would write {skip_text(here, there)} ({why})"
        return refused

    def compute_lag(self) -> None:
        """Computes the lag from the known offsets."""
        if self.problem is not None:
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
        refused = list_of((f"{tp} {text}" for tp, text in self.refused().items()), 1, "; ")
        known = ((self.held.get((tp, c.offset), c.metadata), c.metadata) for tp, c in self.mirrored_offsets.items())
        forms = Counter(form_of(one) for there, one in known if one and (self.drops_metadata or there != one))
        dropped = f"drops {dropped_text(forms)}" if forms else ""
        details = [text for text in (self.note, self.not_mirrored, refused, dropped) if text]
        self.detail = Advice("; ".join("{}" for _ in details), *details)

    def record_outcomes(self, outcomes: Mapping[TopicPartition, ChangeOutcome]) -> bool:
        """Records the outcomes of a write. Returns False if a partition failed with an error that should be retried
        soon."""
        failed: list[OffsetMgrError] = []
        for tp, outcome in outcomes.items():
            if outcome.status is not EditStatus.FAILED:
                self.copied += outcome.status is EditStatus.WRITTEN
                self.target_offsets[tp] = self.mirrored_offsets[tp].offset
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
    groups with an unknown lag, except refused groups. ``recreated`` counts partitions that were refused because their
    topic was recreated."""

    rounds: int
    copied: int
    lag: int
    unknown: int
    states: Mapping[MirrorState, int]
    at_ms: int
    recreated: int = 0
