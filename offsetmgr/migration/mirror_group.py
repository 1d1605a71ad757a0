"""One mirrored group: its state, what is known of both sides, and how far the target is behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from offsetmgr.core.errors import OffsetMgrError, RecreatedTopic, RewindRefused
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import ChangeOutcome, EditStatus, GroupOffsets, HeldLock
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.mirror_safety import MemberWatch


class MirrorState(StrEnum):
    """How one group stands."""

    FOLLOWING = "following"
    TARGET_AHEAD = "target-ahead"
    """Some partition is ahead in the target; it stays there, the others follow."""
    WATCHING = "watching"
    """Live old consumers are registered, and it was not yet seen whether they commit to the target too; nothing is
    held or written."""
    REFUSED = "refused"
    """Others use the group in the target; nothing is written."""
    TAKEN = "taken"
    """A consumer started with the group in the target: the cut-over has happened, the mirror of it is over. Or
    another mirror took it."""
    FAILING = "failing"
    """The last attempt failed; it is tried again."""


@dataclass(slots=True)
class GroupMirror:
    """One mirrored group.

    ``lag``: how many offsets the target is behind the source as last seen, where no commit counts as offset 0; None
    where the last look failed, or there was none. ``copied``: the offsets (partitions) written so far.
    """

    group: str
    target_group: str
    state: MirrorState = MirrorState.FOLLOWING
    detail: str = ""
    lag: int | None = None
    copied: int = 0
    held: HeldLock | None = None
    note: str = ""
    """What is worth saying of a group that follows."""
    problem: OffsetMgrError | None = None
    """Why the source, or a part of it, could not be read when it was last looked at."""
    everything: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    """What the source holds, as last seen."""
    source: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    """That of it which is mirrored."""
    recreated: Mapping[TopicPartition, RecreatedTopic] = field(default_factory=dict)
    """What of it is not mirrored: it points into the deleted log of a topic that was recreated since."""
    known: dict[TopicPartition, int] = field(default_factory=dict)
    """What the target holds as far as we know."""
    stale: bool = True
    """Whether the target must be read again before ``known`` is believed."""
    refresh_at: float = 0.0
    """When (monotonic seconds) what is held must be committed again, lest it expire."""
    watch: MemberWatch = field(default_factory=MemberWatch)
    watched_since: float | None = None
    quiet: GroupOffsets | None = None
    """What the target held when it was last read, as long as we did not hold the group."""
    quiet_since: float = 0.0
    """Since when (monotonic seconds) nothing moved there, as far as was seen."""

    @property
    def over(self) -> bool:
        """Whether nothing is to be done for this group any more."""
        return self.state in (MirrorState.REFUSED, MirrorState.TAKEN)

    @property
    def good(self) -> bool:
        """Whether the mirror may end with the group as it stands, and call that a success."""
        if self.state is MirrorState.TAKEN:
            return not self.lag
        return self.state in (MirrorState.FOLLOWING, MirrorState.TARGET_AHEAD) and not self.recreated

    @property
    def left_out(self) -> str:
        """What is not mirrored of a group that follows, in words; "" where that is nothing."""
        if not self.recreated:
            return ""
        tp, error = min(self.recreated.items())
        more = f", and {len(self.recreated) - 1} more partitions" if len(self.recreated) > 1 else ""
        return f"refused: {tp}: {error.why}{more}"

    def fail(self, error: OffsetMgrError, *, unseen: bool = False) -> None:
        """Tries again later; ``unseen``: and so it is not known how far the target is behind."""
        self.state, self.detail = MirrorState.FAILING, str(error)
        if unseen:
            self.lag = None

    def refuse(self, why: str) -> None:
        self.state, self.detail, self.lag = MirrorState.REFUSED, why, None

    def end(self, why: str) -> None:
        """The group is another's from now on."""
        self.state, self.detail, self.held = MirrorState.TAKEN, why, None
        if self.lag:
            self.detail += f"; the target was {count_of(self.lag, 'offset')} behind the source then"

    def see_target(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        self.known = {tp: c.offset for tp, c in offsets.items()}
        self.stale = False

    def behind(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the target lacks of the source as last seen."""
        behind = {tp: c for tp, c in self.source.items() if self.known.get(tp, -1) < c.offset}
        return {tp: OffsetAndMetadata(c.offset, c.metadata) for tp, c in behind.items()}

    def measure(self) -> None:
        """Counts how far the target is behind, by what is known of both sides."""
        if self.problem is not None:
            self.lag = None
            return
        self.lag = sum(max(c.offset - self.known.get(tp, 0), 0) for tp, c in self.source.items())

    def settle(self) -> None:
        """The target has all that was seen in the source."""
        if self.problem is not None:
            self.fail(self.problem, unseen=True)
            return
        ahead = any(self.known.get(tp, -1) > c.offset for tp, c in self.source.items())
        self.state = MirrorState.TARGET_AHEAD if ahead else MirrorState.FOLLOWING
        self.detail = "; ".join(filter(None, (self.note, self.left_out)))

    def book(self, outcomes: Mapping[TopicPartition, ChangeOutcome]) -> bool:
        """Takes in what a write of the source's offsets did; True where trying again at once is of no use."""
        failed: list[OffsetMgrError] = []
        for tp, outcome in outcomes.items():
            if outcome.status is not EditStatus.FAILED:
                self.copied += outcome.status is EditStatus.WRITTEN
                self.known[tp] = self.source[tp].offset
                continue
            if isinstance(outcome.before, Committed):
                self.known[tp] = outcome.before.offset
            elif outcome.before is not None:
                self.known.pop(tp, None)
            if outcome.error is not None and not isinstance(outcome.error, RewindRefused):
                failed.append(outcome.error)
        self.measure()
        if not failed:
            self.settle()
            return True
        again = next((error for error in failed if error.retriable), None)
        self.fail(again or failed[0])
        return again is None


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """A look at a running mirror. ``lag`` is that of all groups whose lag is known; ``unknown`` counts the others,
    but for those refused. ``recreated`` counts the partitions refused because their topic was recreated."""

    rounds: int
    copied: int
    lag: int
    unknown: int
    states: Mapping[MirrorState, int]
    at_ms: int
    recreated: int = 0
