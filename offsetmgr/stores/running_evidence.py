"""The evidence that the members of a running group continue at edited offsets, and the report about it.

The functions are pure: the caller passes the commits that it has read after the edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from offsetmgr.core.model import ABSENT, Absent, Offset, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome
from offsetmgr.core.plurals import count_of
from offsetmgr.kafka.protocol.requests import FetchedGroup

_MAX_NAMED: Final = 3
_MAX_RECORDS_PER_S: Final = 1_000_000
"""No consumer processes more records of a partition in a second."""


@dataclass(slots=True)
class TakeoverResult:
    """The result of one takeover: the outcomes, the before-images, and the numbers for the report."""

    outcomes: dict[TopicPartition, ChangeOutcome]
    before: Mapping[TopicPartition, Offset]
    members: int = 0
    back: int = 0
    seconds: float = 0.0
    rewritten: int = 0
    recreated: dict[TopicPartition, int] = field(default_factory=dict)
    """The partitions whose offset was deleted and has been committed again by a member that held it."""
    deleted: set[TopicPartition] = field(default_factory=set)
    """The partitions whose new offset another client has deleted during the takeover."""
    log_ends: dict[TopicPartition, int] = field(default_factory=dict)
    """The log ends at the end of the takeover. A batch that a member holds from before the edit ends there at most."""
    kept_partitions: bool = False
    """Whether a member committed edited partitions while offsetmgr owned them, in the consumer protocol. The member may
    have kept its positions."""
    ended_early: str = ""
    """The reason for which offsetmgr was no longer a member when the others came back."""
    left_at: float = 0.0


class WatchedPartition(NamedTuple):
    """An edited partition after the takeover: its new offset (None if the edit deleted it), its offset before the edit,
    and the log end at the end of the takeover (None if it is unknown)."""

    after: int | None
    before: Offset
    log_end: int | None

    def classify(self, offset: int, seconds: float) -> str:
        """Returns the field of `Evidence` for a commit that was seen ``seconds`` after the takeover."""
        beyond_batches = self.log_end is not None and offset > self.log_end
        if self.after is not None and not self.after <= offset <= self.after + max(seconds, 1.0) * _MAX_RECORDS_PER_S:
            return "stale"
        if isinstance(self.before, Absent):
            return "unclear"
        if self.after is None:
            return "moved" if offset < self.before.offset or beyond_batches else "unclear"
        if self.after < self.before.offset:
            return "moved" if offset < self.before.offset else "unclear"
        return "moved" if beyond_batches else "unclear"


@dataclass(slots=True)
class Evidence:
    """The offsets that were read after the takeover.

    ``stale`` are earlier commits, and ``unclear`` are commits that a member could also make without the edit. ``moved``
    are commits that show that the members have moved on from the edited offset. ``quiet`` are the partitions whose last
    successful read returned the edited offset, and ``deleted`` those whose new offset another client has deleted.
    ``unread`` is the reason for which offsets could not be read again.
    """

    stale: dict[TopicPartition, int] = field(default_factory=dict)
    unclear: dict[TopicPartition, int] = field(default_factory=dict)
    moved: dict[TopicPartition, int] = field(default_factory=dict)
    quiet: set[TopicPartition] = field(default_factory=set)
    deleted: set[TopicPartition] = field(default_factory=set)
    unread: str = ""

    def add(self, found: FetchedGroup, watched: Mapping[TopicPartition, WatchedPartition], seconds: float) -> None:
        """Adds the offsets that were read ``seconds`` after the takeover."""
        for tp in sorted(watched):
            if tp in found.errors:
                continue
            committed = found.offsets.get(tp)
            if (None if committed is None else committed.offset) == watched[tp].after:
                self.quiet.add(tp)
                continue
            self.quiet.discard(tp)
            if committed is None:
                self.deleted.add(tp)
            else:
                getattr(self, watched[tp].classify(committed.offset, seconds))[tp] = committed.offset

    def decided(self) -> set[TopicPartition]:
        """Returns the partitions that need not be read again."""
        return self.stale.keys() | self.unclear.keys() | self.moved.keys() | self.deleted


def watched_partitions(
    changes: Mapping[TopicPartition, Change], partitions: Iterable[TopicPartition], done: TakeoverResult
) -> dict[TopicPartition, WatchedPartition]:
    """Returns the partitions to read after the takeover."""
    return {
        tp: WatchedPartition(
            None if after is None else after.offset, done.before.get(tp, ABSENT), done.log_ends.get(tp)
        )
        for tp in partitions
        for after in (changes[tp].after,)
    }


def is_complete(changes: Mapping[TopicPartition, Change], done: TakeoverResult, evidence: Evidence) -> bool:
    """Returns whether no doubt about the edit is left."""
    doubt = evidence.stale or evidence.deleted or evidence.unread or done.ended_early or done.kept_partitions
    return done.back >= done.members and not doubt and not _deletions(changes, evidence.unclear)


def named(offsets: Mapping[TopicPartition, int]) -> str:
    """Names at most `_MAX_NAMED` partitions with their offsets."""
    return _shortened([f"{tp} at {offset}" for tp, offset in sorted(offsets.items())])


def report(changes: Mapping[TopicPartition, Change], done: TakeoverResult, evidence: Evidence) -> str:
    """Describes what offsetmgr saw, for `GroupEditResult.how`."""
    parts = [f"{done.back} of {count_of(done.members, 'member')} back after {done.seconds:.1f} s"]
    if done.ended_early:
        parts.append(
            f"not verified: offsetmgr was removed from the group before the members were back ({done.ended_early})"
        )
    elif done.back < done.members:
        parts.append("the others have not called poll yet and continue at the new offsets when they do, not verified")
    if done.kept_partitions:
        parts.append("not verified: a member committed partitions that it did not own, and may have kept its positions")
    if evidence.unread:
        parts.append(f"not verified: the offsets could not be read again ({evidence.unread})")
    if evidence.deleted:
        gone = _shortened([str(tp) for tp in sorted(evidence.deleted)])
        parts.append(f"not verified: another client meanwhile deleted the new offsets of {gone}")
    if done.rewritten:
        parts.append(f"{count_of(done.rewritten, 'earlier commit')} overwritten")
    return "; ".join((*parts, *_commits(changes, evidence)))


def _commits(changes: Mapping[TopicPartition, Change], evidence: Evidence) -> Iterable[str]:
    """Describes the commits of the members, first those of partitions with a new offset, then those of deletions."""
    began, again = (_deletions(changes, offsets) for offsets in (evidence.moved, evidence.unclear))
    moved = {tp: offset for tp, offset in evidence.moved.items() if tp not in began}
    unclear = {tp: offset for tp, offset in evidence.unclear.items() if tp not in again}
    absent = sum(changes[tp].after is None for tp in evidence.quiet)
    quiet = len(evidence.quiet) - absent
    if moved:
        yield f"seen: the members continue from the new offsets ({named(moved)})"
    if unclear:
        yield (
            f"inferred: {named(unclear)}: a member could also commit this without the edit, so the commits alone do not"
            " show that the members continue from the new offsets"
        )
    if quiet:
        yield f"{count_of(quiet, 'partition')} still at the new offset, without a commit of a member"
    if began:
        yield f"seen: the members began where auto.offset.reset says ({named(began)})"
    if again:
        yield (
            f"not verified: {count_of(len(again), 'deleted offset')} committed again ({named(again)}), by a member that"
            " began where auto.offset.reset says, or that kept its position"
        )
    if absent:
        yield f"{count_of(absent, 'deleted offset')} still absent, without a commit of a member"


def _deletions(
    changes: Mapping[TopicPartition, Change], offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    return {tp: offset for tp, offset in offsets.items() if changes[tp].after is None}


def _shortened(texts: list[str]) -> str:
    more = len(texts) - _MAX_NAMED
    return ", ".join(texts[:_MAX_NAMED]) + (f" and {count_of(more, 'other')}" if more > 0 else "")
