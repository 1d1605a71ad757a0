"""Predicts the assignment that the members of a group would compute, and the partitions that would move. Pure."""

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
"""Represents an unknown owner: the owner node exists but cannot be decoded. This value is not equal to the thread of
any member."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The assignments before and after a change."""

    strategy: str
    before: Mapping[TopicPartition, ThreadId]
    """The present owner of each partition; `UNREADABLE` if the owner node cannot be decoded. If the snapshot does not
    contain the owners, ``before`` is the assignment that the members would compute without the change."""
    after: Mapping[TopicPartition, ThreadId]
    observed: bool
    """Whether ``before`` contains the present owners. If False, ``before`` is a computed assignment."""
    caveats: tuple[str, ...] = ()
    """Reasons why the members may compute another assignment than ``after``."""

    @property
    def moves(self) -> Moves:
        return moves(self.before, self.after)


def assignment(snapshot: GroupSnapshot, strategy: str, *, internal: bool = False) -> dict[TopicPartition, ThreadId]:
    """Computes the group's assignment. Raises as `GroupSnapshot.streams` and `Assignor.assign`."""
    return assignor_named(strategy, snapshot.leaders).assign(snapshot.streams(internal=internal), snapshot.partitions)


def predict(before: GroupSnapshot, after: GroupSnapshot, strategy: str, *, internal: bool = False) -> Prediction:
    """Predicts the effect of a change from ``before`` to ``after``. Raises as `assignment` does.

    As in Kafka, members do not rebalance while no broker is alive.
    """
    observed = before.owners is not None
    owned = (
        {partition: thread or UNREADABLE for partition, thread in before.owners.items()}
        if before.owners is not None
        else assignment(before, strategy, internal=internal)
    )
    caveats = _caveats(after, strategy, internal=internal)
    if after.brokers is not None and not after.brokers:
        remaining = {partition: thread for partition, thread in owned.items() if thread.member_id in after.members}
        return Prediction(
            strategy, owned, remaining, observed, (*caveats, "no broker is alive: the members do not rebalance")
        )
    return Prediction(strategy, owned, assignment(after, strategy, internal=internal), observed, caveats)


def matching_strategies(snapshot: GroupSnapshot, *, internal: bool = False) -> list[str]:
    """Returns the strategies whose assignment equals the present owners. The list is empty if the owners are
    unknown."""
    candidates = [ClusteredAssignor.name] if snapshot.of_kafka_0_7 else [RangeAssignor.name, RoundRobinAssignor.name]
    if not snapshot.owners:
        return []
    return [
        strategy
        for strategy in candidates
        if assignment(snapshot, strategy, internal=internal) == dict(snapshot.owners)
    ]


def default_strategy(snapshot: GroupSnapshot) -> str:
    """Returns Kafka's default strategy, which in Kafka 0.7 is the only strategy."""
    return ClusteredAssignor.name if snapshot.of_kafka_0_7 else RangeAssignor.name


def _caveats(snapshot: GroupSnapshot, strategy: str, *, internal: bool) -> tuple[str, ...]:
    streams = snapshot.streams(internal=internal)
    consumed = {topic for topics in streams.values() for topic in topics}
    caveats = [f"the partitions of topic {topic} are unknown" for topic in sorted(consumed - snapshot.topics.keys())]
    if strategy in (RoundRobinAssignor.name, EqualRoundRobinAssignor.name):
        partitions = {topic: held for topic, held in snapshot.partitions.items() if topic in consumed}
        tied_topics = sorted({one.topic for tied in partitions_with_equal_hash(partitions) for one in tied})
        if tied_topics:
            caveats.append(
                f"topics {' and '.join(tied_topics)} have partitions with equal hashes: members may swap them"
            )
    if strategy == RoundRobinAssignor.name:
        caveats += _rejected_by_older_members(streams, snapshot.partitions)
    return tuple(caveats)


def _rejected_by_older_members(streams: dict[str, dict[str, int]], partitions: dict[str, list[int]]) -> list[str]:
    try:
        EqualRoundRobinAssignor().assign(streams, partitions)
    except UnequalSubscriptions as unequal:
        return [f"members before Kafka 0.10.2 reject these subscriptions: {', '.join(unequal.members)} differ"]
    except AssignmentRefused:
        return []  # reported for the strategy itself
    return []


def partition_ranges(partitions: Iterable[TopicPartition]) -> str:
    """Formats partitions as ranges: ``bills:0 orders:0-3,7``. Partitions of Kafka 0.7 are listed individually."""
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
