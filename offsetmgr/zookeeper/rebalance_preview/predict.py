"""Predicts the assignment that the members of a group would compute, and its differences. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import AssignmentRefused, UnequalSubscriptions
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.groups.assignors import (
    ClusteredAssignor,
    EqualRoundRobinAssignor,
    Moves,
    RangeAssignor,
    RoundRobinAssignor,
    ThreadId,
    assignor_named,
    moves,
    partitions_with_equal_hash,
)
from offsetmgr.zookeeper.rebalance_preview.group_snapshot import GroupSnapshot

Owners = Mapping[TopicPartition, ThreadId | None]
UNREADABLE: Final = ThreadId("", -1)
"""Represents an unreadable owner: it equals no thread of any member."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The assignments before and after, each a thread for each partition."""

    strategy: str
    before: Mapping[TopicPartition, ThreadId]
    """The present owners (`UNREADABLE` for an unreadable one); if they are unknown, the assignment that the members
    would have computed before the changes."""
    after: Mapping[TopicPartition, ThreadId]
    seen: bool
    """Whether ``before`` was observed and not computed."""
    doubts: tuple[str, ...] = ()
    """Reasons why the real group may divide differently."""

    @property
    def moves(self) -> Moves:
        return moves(self.before, self.after)


def assignment(snapshot: GroupSnapshot, strategy: str, *, internal: bool = False) -> dict[TopicPartition, ThreadId]:
    """The assignment that the members compute. Raises what `GroupSnapshot.streams` and `Assignor.assign` raise."""
    return assignor_named(strategy, snapshot.leaders).assign(snapshot.streams(internal=internal), snapshot.partitions)


def predict(before: GroupSnapshot, after: GroupSnapshot, strategy: str, *, internal: bool = False) -> Prediction:
    """Predicts the effect of a change from ``before`` to ``after``. Raises as `assignment` does.

    As in Kafka, members that see no broker at all change nothing.
    """
    seen = before.owners is not None
    owned = (
        {partition: thread or UNREADABLE for partition, thread in before.owners.items()}
        if before.owners is not None
        else assignment(before, strategy, internal=internal)
    )
    doubts = _doubts(after, strategy, internal=internal)
    if after.brokers is not None and not after.brokers:
        still = {partition: thread for partition, thread in owned.items() if thread.member_id in after.members}
        return Prediction(strategy, owned, still, seen, (*doubts, "no broker is alive: members change nothing"))
    return Prediction(strategy, owned, assignment(after, strategy, internal=internal), seen, doubts)


def matching_strategies(snapshot: GroupSnapshot, *, internal: bool = False) -> list[str]:
    """The strategies whose result equals the present owners; empty if owners are unknown or nothing matches."""
    candidates = [ClusteredAssignor.name] if snapshot.of_kafka_0_7 else [RangeAssignor.name, RoundRobinAssignor.name]
    if not snapshot.owners:
        return []
    return [
        strategy
        for strategy in candidates
        if assignment(snapshot, strategy, internal=internal) == dict(snapshot.owners)
    ]


def usual_strategy(snapshot: GroupSnapshot) -> str:
    """Kafka's default: 0.7 had only one strategy."""
    return ClusteredAssignor.name if snapshot.of_kafka_0_7 else RangeAssignor.name


def _doubts(snapshot: GroupSnapshot, strategy: str, *, internal: bool) -> tuple[str, ...]:
    streams = snapshot.streams(internal=internal)
    consumed = {topic for topics in streams.values() for topic in topics}
    doubts = [f"no partitions of topic {topic} are known" for topic in sorted(consumed - snapshot.topics.keys())]
    if strategy in (RoundRobinAssignor.name, EqualRoundRobinAssignor.name):
        partitions = {topic: held for topic, held in snapshot.partitions.items() if topic in consumed}
        alike = sorted({one.topic for tied in partitions_with_equal_hash(partitions) for one in tied})
        if alike:
            doubts.append(f"topics {' and '.join(alike)} hash alike: real members may swap their partitions")
    if strategy == RoundRobinAssignor.name:
        doubts += _refused_by_older_members(streams, snapshot.partitions)
    return tuple(doubts)


def _refused_by_older_members(streams: dict[str, dict[str, int]], partitions: dict[str, list[int]]) -> list[str]:
    try:
        EqualRoundRobinAssignor().assign(streams, partitions)
    except UnequalSubscriptions as unequal:
        return [f"members before Kafka 0.10.2 refuse these subscriptions: {', '.join(unequal.members)} differ"]
    except AssignmentRefused:
        return []  # reported for the strategy itself
    return []


def as_ranges(partitions: Iterable[TopicPartition]) -> str:
    """Partitions in short form: ``bills:0 orders:0-3,7``; those of Kafka 0.7 are listed individually."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return " ".join(f"{topic}:{','.join(_runs(numbers))}" for topic, numbers in by_topic.items())


def _runs(numbers: list[int]) -> list[str]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number >= 0 and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
