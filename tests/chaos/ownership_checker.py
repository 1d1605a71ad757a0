"""What a shared group did, judged: no partition with two owners, no message from somebody who did not own it, none
lost, none doubled without a reason.

The reasons: the member's session was ended by the server (it was killed, frozen, or cut off), and the message lay at or
after the last committed offset. Two more are faults of the old consumer alone, and counted apart:

- *early read*: it reads the committed offset before it claims the partition, so it may begin at an offset that the
  owner before has committed past in between (fetchOffsets before reflectPartitionOwnershipDecision). Only what another
  old consumer committed is excused, and only within `EARLY_MS`: a Python owner keeps a partition for longer than that
  after its last commit, which is what it does so for.
- *late old consumer*: after its session has expired it goes on until its client tells it so, and then it may commit
  without a condition, over the new owner's offset.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zookeeper_history import Commit, GroupHistory, Life

from offsetmgr.core.model import TopicPartition

EARLY_MS: Final = 1000
"""From an old consumer's reading to its claim, at most: the default of `ConsumerSettings.release_delay_ms`."""


class Handed(NamedTuple):
    """One message handed out. ``old``: by an old consumer; ``time_ms``: when, in ms since 1970."""

    member: str
    old: bool
    partition: TopicPartition
    offset: int
    time_ms: int


@dataclass(slots=True)
class Verdict:
    """Each finding is a sentence; ``excused`` counts what was allowed, by reason."""

    findings: list[str] = field(default_factory=list)
    excused: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    lives: int = 0


def judge(history: GroupHistory, handed: Iterable[Handed], ends: Mapping[TopicPartition, int]) -> Verdict:
    """``ends`` are the logs' end offsets: every offset below them was produced, and must have been handed out."""
    return _Judge(history, list(handed), ends).verdict()


class _Judge:
    def __init__(self, history: GroupHistory, handed: list[Handed], ends: Mapping[TopicPartition, int]) -> None:
        self._history = history
        self._handed = handed
        self._ends = ends
        self._lives: dict[TopicPartition, list[Life]] = defaultdict(list)
        self._of_member: dict[tuple[str, TopicPartition], list[Life]] = defaultdict(list)
        for life in sorted(history.lives, key=lambda one: one.created_zxid):
            self._lives[life.partition].append(life)
            self._of_member[life.member, life.partition].append(life)
        self._commits: dict[TopicPartition, list[Commit]] = defaultdict(list)
        for commit in sorted(history.commits, key=lambda one: one.zxid):
            self._commits[commit.partition].append(commit)
        self._old = {message.member for message in handed if message.old}
        self._verdict = Verdict(messages=len(handed), lives=len(history.lives))

    def verdict(self) -> Verdict:
        self._one_owner()
        self._commits_of_owners()
        for message in self._handed:
            self._owned(message)
        self._lost_and_doubled()
        return self._verdict

    def _say(self, finding: str) -> None:
        self._verdict.findings.append(finding)

    def _one_owner(self) -> None:
        for partition, lives in self._lives.items():
            for before, after in itertools.pairwise(lives):
                if before.ended_zxid is None or before.ended_zxid > after.created_zxid:
                    self._say(f"{partition}: {after.owner} became owner while {before.owner} was")
                elif before.how == "deleted by others":
                    self._say(f"{partition}: the owner node of {before.owner} was deleted by others")

    def _commits_of_owners(self) -> None:
        for partition, commits in self._commits.items():
            for commit in commits:
                if self._foreign(commit):
                    member = self._history.members.get(commit.session, f"session {commit.session:x}")
                    if member in self._old:
                        self._verdict.excused["commit of a late old consumer"] += 1
                    else:
                        self._say(f"{partition}: {member} committed {commit.offset} without owning it")

    def _foreign(self, commit: Commit) -> bool:
        return not any(
            life.session == commit.session
            and life.created_zxid < commit.zxid
            and (life.ended_zxid is None or life.ended_zxid >= commit.zxid)
            for life in self._lives[commit.partition]
        )

    def _life(self, message: Handed) -> Life | None:
        """The member's latest life as owner that had begun when the message was handed out."""
        lives = self._of_member.get((message.member, message.partition), [])
        at = bisect_right([life.created_ms for life in lives], message.time_ms)
        return lives[at - 1] if at else None

    def _owned(self, message: Handed) -> None:
        life = self._life(message)
        if life is not None and not self._after_end(message, life):
            return
        if message.old and life is not None and life.how == "expired":
            self._verdict.excused["message of a late old consumer"] += 1
            return
        late = "never" if life is None else f"{message.time_ms - (life.ended_ms or 0)} ms before, {life.how}"
        self._say(f"{message.partition}: {message.member} handed out {message.offset}, which it owned last {late}")

    def _lost_and_doubled(self) -> None:
        by_message: dict[tuple[TopicPartition, int], list[Handed]] = defaultdict(list)
        for message in self._handed:
            by_message[message.partition, message.offset].append(message)
        for partition, end in self._ends.items():
            lost = [offset for offset in range(end) if (partition, offset) not in by_message]
            if lost:
                self._say(f"{partition}: {len(lost)} messages lost, the first at {lost[0]}")
        for messages in by_message.values():
            messages.sort(key=lambda one: one.time_ms)
            for before, after in itertools.pairwise(messages):
                self._doubled(before, after)

    def _doubled(self, before: Handed, after: Handed) -> None:
        life, next_life = self._life(before), self._life(after)
        if life is not None and life.how == "expired" and before.offset >= self._committed(life):
            self._verdict.excused["after the last commit of an expired member"] += 1
        elif after.old and next_life is not None and next_life.how == "expired" and self._after_end(after, next_life):
            self._verdict.excused["message of a late old consumer, doubled"] += 1
        elif any(
            self._foreign(commit)
            and before.time_ms <= commit.time_ms <= after.time_ms
            and commit.offset <= after.offset
            for commit in self._commits[after.partition]
        ):
            self._verdict.excused["a late old consumer's commit over the owner's"] += 1
        elif next_life is not None and after.old and self._early(next_life, after.offset):
            self._verdict.excused["early read of an old consumer"] += 1
        else:
            how = "never owned" if life is None else life.how or "still owned"
            self._say(
                f"{after.partition}: {before.offset} handed out by {before.member} ({how}) at {before.time_ms} "
                f"and again by {after.member} at {after.time_ms}"
            )

    @staticmethod
    def _after_end(message: Handed, life: Life) -> bool:
        return life.ended_ms is not None and message.time_ms > life.ended_ms

    def _committed(self, life: Life) -> int:
        """The offset committed when the life ended."""
        earlier = [c for c in self._commits[life.partition] if life.ended_zxid is None or c.zxid < life.ended_zxid]
        return earlier[-1].offset if earlier else 0

    def _early(self, life: Life, offset: int) -> bool:
        """Whether the commits past this message, which an early read may have missed, are old consumers' and came
        shortly before the life began."""
        before = [commit for commit in self._commits[life.partition] if commit.zxid < life.created_zxid]
        read = max((at for at, c in enumerate(before) if c.offset <= offset), default=-1)
        missed = before[read + 1 :]
        return bool(missed) and all(
            life.created_ms - commit.time_ms < EARLY_MS and self._history.members.get(commit.session) in self._old
            for commit in missed
        )
