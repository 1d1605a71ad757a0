"""Checks the history of a group of Python members and old consumers: no partition has two owners, no member delivers a
message of a partition that it does not own, no message is lost, and none is duplicated without a reason.

The regular reason of a duplicate: the server ended the member's session (the member was killed, frozen or cut off), and
the message is at or after the last committed offset. Two more reasons are faults of the old consumer alone. They are
counted separately:

- *early read*: the old consumer reads the committed offset before it claims the partition (fetchOffsets before
  reflectPartitionOwnershipDecision), so it may start before an offset that the earlier owner committed in between. The
  check excuses this only for commits of another old consumer, and only within `EARLY_MS`: a Python owner keeps a
  partition for longer than that after its last commit, to prevent early reads.
- *late old consumer*: after its session has expired, the old consumer continues until its client reports the expiry.
  Then it may commit unconditionally, over the new owner's offset.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zookeeper_history import Commit, GroupHistory, OwnerNode

from offsetmgr.core.model import TopicPartition

EARLY_MS: Final = 1000
"""The longest time from an old consumer's read to its claim: the default of `ConsumerSettings.release_delay_ms`."""


class Delivery(NamedTuple):
    """One message that a member delivered to its application.

    ``old``: the member is an old consumer. ``time_ms`` is in ms since 1970.
    """

    member: str
    old: bool
    partition: TopicPartition
    offset: int
    time_ms: int


@dataclass(slots=True)
class CheckResult:
    """The violations as sentences; ``excused`` counts the permitted deviations by reason."""

    findings: list[str] = field(default_factory=list)
    excused: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    owner_nodes: int = 0


def check_history(
    history: GroupHistory, deliveries: Iterable[Delivery], ends: Mapping[TopicPartition, int]
) -> CheckResult:
    """Checks a group's history. ``ends`` are the logs' end offsets: every message below them must have been
    delivered."""
    return _Checker(history, list(deliveries), ends).check()


class _Checker:
    def __init__(self, history: GroupHistory, deliveries: list[Delivery], ends: Mapping[TopicPartition, int]) -> None:
        self._history = history
        self._deliveries = deliveries
        self._ends = ends
        self._owner_nodes: dict[TopicPartition, list[OwnerNode]] = defaultdict(list)
        self._nodes_of_member: dict[tuple[str, TopicPartition], list[OwnerNode]] = defaultdict(list)
        for node in sorted(history.owner_nodes, key=lambda one: one.created_zxid):
            self._owner_nodes[node.partition].append(node)
            self._nodes_of_member[node.member, node.partition].append(node)
        self._commits: dict[TopicPartition, list[Commit]] = defaultdict(list)
        for commit in sorted(history.commits, key=lambda one: one.zxid):
            self._commits[commit.partition].append(commit)
        self._old = {message.member for message in deliveries if message.old}
        self._result = CheckResult(messages=len(deliveries), owner_nodes=len(history.owner_nodes))

    def check(self) -> CheckResult:
        self._check_single_owner()
        self._check_commits()
        for message in self._deliveries:
            self._check_delivery(message)
        self._check_lost_and_duplicated()
        return self._result

    def _report(self, finding: str) -> None:
        self._result.findings.append(finding)

    def _check_single_owner(self) -> None:
        for partition, owner_nodes in self._owner_nodes.items():
            for before, after in itertools.pairwise(owner_nodes):
                if before.ended_zxid is None or before.ended_zxid > after.created_zxid:
                    self._report(f"{partition}: {after.owner} became owner while {before.owner} was")
                elif before.how == "deleted by others":
                    self._report(f"{partition}: the owner node of {before.owner} was deleted by others")

    def _check_commits(self) -> None:
        for partition, commits in self._commits.items():
            for commit in commits:
                if self._is_by_non_owner(commit):
                    member = self._history.members.get(commit.session, f"session {commit.session:x}")
                    if member in self._old:
                        self._result.excused["commit of a late old consumer"] += 1
                    else:
                        self._report(f"{partition}: {member} committed {commit.offset} without owning it")

    def _is_by_non_owner(self, commit: Commit) -> bool:
        return not any(
            node.session == commit.session
            and node.created_zxid < commit.zxid
            and (node.ended_zxid is None or node.ended_zxid >= commit.zxid)
            for node in self._owner_nodes[commit.partition]
        )

    def _node_of(self, message: Delivery) -> OwnerNode | None:
        """The member's latest owner node of the partition that was created before the message was delivered."""
        owner_nodes = self._nodes_of_member.get((message.member, message.partition), [])
        at = bisect_right([node.created_ms for node in owner_nodes], message.time_ms)
        return owner_nodes[at - 1] if at else None

    def _check_delivery(self, message: Delivery) -> None:
        node = self._node_of(message)
        if node is not None and not self._is_after_end(message, node):
            return
        if message.old and node is not None and node.how == "expired":
            self._result.excused["message of a late old consumer"] += 1
            return
        late = "never" if node is None else f"{message.time_ms - (node.ended_ms or 0)} ms before, {node.how}"
        self._report(f"{message.partition}: {message.member} delivered {message.offset}, which it owned last {late}")

    def _check_lost_and_duplicated(self) -> None:
        by_message: dict[tuple[TopicPartition, int], list[Delivery]] = defaultdict(list)
        for message in self._deliveries:
            by_message[message.partition, message.offset].append(message)
        for partition, end in self._ends.items():
            lost = [offset for offset in range(end) if (partition, offset) not in by_message]
            if lost:
                self._report(f"{partition}: {len(lost)} messages lost, the first at {lost[0]}")
        for messages in by_message.values():
            messages.sort(key=lambda one: one.time_ms)
            for before, after in itertools.pairwise(messages):
                self._check_duplicate(before, after)

    def _check_duplicate(self, before: Delivery, after: Delivery) -> None:
        node, next_node = self._node_of(before), self._node_of(after)
        if node is not None and node.how == "expired" and before.offset >= self._committed(node):
            self._result.excused["after the last commit of an expired member"] += 1
        elif (
            after.old and next_node is not None and next_node.how == "expired" and self._is_after_end(after, next_node)
        ):
            self._result.excused["message of a late old consumer, doubled"] += 1
        elif any(
            self._is_by_non_owner(commit)
            and before.time_ms <= commit.time_ms <= after.time_ms
            and commit.offset <= after.offset
            for commit in self._commits[after.partition]
        ):
            self._result.excused["a late old consumer's commit over the owner's"] += 1
        elif next_node is not None and after.old and self._is_early_read(next_node, after.offset):
            self._result.excused["early read of an old consumer"] += 1
        else:
            how = "never owned" if node is None else node.how or "still owned"
            self._report(
                f"{after.partition}: {before.offset} delivered by {before.member} ({how}) at {before.time_ms} "
                f"and again by {after.member} at {after.time_ms}"
            )

    @staticmethod
    def _is_after_end(message: Delivery, node: OwnerNode) -> bool:
        return node.ended_ms is not None and message.time_ms > node.ended_ms

    def _committed(self, node: OwnerNode) -> int:
        """The offset that was committed when the owner node ended."""
        earlier = [c for c in self._commits[node.partition] if node.ended_zxid is None or c.zxid < node.ended_zxid]
        return earlier[-1].offset if earlier else 0

    def _is_early_read(self, node: OwnerNode, offset: int) -> bool:
        """Whether all commits past this offset, which an early read can have missed, are of old consumers and happened
        shortly before the owner node was created."""
        before = [commit for commit in self._commits[node.partition] if commit.zxid < node.created_zxid]
        read = max((at for at, c in enumerate(before) if c.offset <= offset), default=-1)
        missed = before[read + 1 :]
        return bool(missed) and all(
            node.created_ms - commit.time_ms < EARLY_MS and self._history.members.get(commit.session) in self._old
            for commit in missed
        )
