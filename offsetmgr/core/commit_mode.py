"""The three commit modes of groups of old (ZooKeeper-based) consumers, their settings, and the safe changes between
them.

Pure. A process reads its commit mode only when it starts. To change the mode of a group, the operator restarts every
member with new settings, one after the other (a rolling bounce).

Source: kafka.consumer.ZookeeperConsumerConnector and kafka.consumer.ConsumerConfig, 0.8.2 to 1.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple

from offsetmgr.core.errors import GateRefused
from offsetmgr.core.model import Committed, Offset, TopicPartition


class CommitMode(Enum):
    """The stores to which a member commits, and the stores from which the member reads the committed offset of a
    partition that is assigned to it.

    >>> CommitMode("dual")
    <CommitMode.DUAL: 'dual'>
    """

    ZOOKEEPER = "zookeeper"
    """Commits to ZooKeeper alone (``dual.commit.enabled`` has no effect here); reads ZooKeeper."""
    DUAL = "dual"
    """Commits to Kafka first, and then commits to ZooKeeper the offsets that Kafka accepted. Reads the larger of the
    two offsets."""
    KAFKA = "kafka"
    """Commits to Kafka alone; reads Kafka."""


@dataclass(frozen=True, slots=True)
class CommitModeSettings:
    """The settings of a commit mode in the ``consumer.properties`` of a member. ``notes`` are hints for the operator
    who edits the file."""

    properties: tuple[tuple[str, str], ...]
    note: str
    """The hint about these properties."""

    @property
    def notes(self) -> tuple[str, ...]:
        return (self.note, *_AUTO_COMMIT_NOTES)

    def as_lines(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.properties]


_AUTO_COMMIT_NOTES = (
    "A check waits for commits, so give it a window of at least three times auto.commit.interval.ms (default: 60000).",
    "With auto.commit.enable=false the application commits by itself (commitOffsets); a check then sees a member only"
    " when the application has committed.",
    "A member that stops cleanly commits before it leaves. After a member is killed, the messages that it consumed"
    " since its last commit are consumed again.",
)

SETTINGS: Mapping[CommitMode, CommitModeSettings] = {
    CommitMode.ZOOKEEPER: CommitModeSettings(
        (("offsets.storage", "zookeeper"),),
        "dual.commit.enabled may be left out: with offsets.storage=zookeeper it has no effect.",
    ),
    CommitMode.DUAL: CommitModeSettings(
        (("offsets.storage", "kafka"), ("dual.commit.enabled", "true")),
        "Every owned partition is committed to Kafka at each automatic commit; a ZooKeeper node is written only"
        " when its offset changes.",
    ),
    CommitMode.KAFKA: CommitModeSettings(
        (("offsets.storage", "kafka"), ("dual.commit.enabled", "false")),
        "Set dual.commit.enabled explicitly: with offsets.storage=kafka its default is true.",
    ),
}


class AlreadyInPhase(GateRefused):
    """The group is in the phase of the bounce already, so no restart is needed."""


@dataclass(frozen=True, slots=True)
class CommitModeChange:
    """One rolling bounce, in which every member changes from the mode ``start`` to the mode ``to``."""

    start: CommitMode
    to: CommitMode

    def __str__(self) -> str:
        return f"{self.start.value} -> {self.to.value}"

    @property
    def next_mode(self) -> CommitMode | None:
        """The mode to which the migration goes on after this change; None if this change is its end."""
        ends = {CommitMode.ZOOKEEPER: CommitMode.KAFKA, CommitMode.KAFKA: CommitMode.ZOOKEEPER}
        return ends.get(self.start) if self.to is CommitMode.DUAL else None


SAFE_CHANGES: Mapping[CommitModeChange, str] = {
    CommitModeChange(CommitMode.ZOOKEEPER, CommitMode.DUAL): (
        "Members not yet bounced commit to ZooKeeper alone; bounced members commit to both stores and read the larger"
        " of both. ZooKeeper therefore has every commit, so the next owner of a partition continues at the last commit."
    ),
    CommitModeChange(CommitMode.DUAL, CommitMode.KAFKA): (
        "Dual members commit to Kafka before ZooKeeper, so Kafka has every commit. Bounced members read Kafka alone;"
        " members not yet bounced read the larger of both."
    ),
    CommitModeChange(CommitMode.KAFKA, CommitMode.DUAL): (
        "Every member still commits to Kafka, so Kafka has every commit; dual members read the larger of both."
        " The commits of dual members bring ZooKeeper up to date for partitions with traffic; the offsets of the other"
        " partitions are copied before the gate."
    ),
    CommitModeChange(CommitMode.DUAL, CommitMode.ZOOKEEPER): (
        "Once ZooKeeper has caught up on every partition, the commits of dual members keep it up to date. Bounced"
        " members read and write ZooKeeper alone; members not yet bounced read the larger of both."
    ),
}

UNSAFE_CHANGES: Mapping[CommitModeChange, str] = {
    CommitModeChange(CommitMode.ZOOKEEPER, CommitMode.KAFKA): (
        "a bounced member reads Kafka alone, which does not contain the commits made to ZooKeeper. If Kafka has an old"
        " offset, the member repeats messages. If Kafka has none, the member follows auto.offset.reset: with largest"
        " (the default) it skips everything not yet consumed, with smallest it repeats everything. Members not yet"
        " bounced read ZooKeeper alone: if a partition moves back to one of them, that member repeats what the bounced"
        " member consumed"
    ),
    CommitModeChange(CommitMode.KAFKA, CommitMode.ZOOKEEPER): (
        "a bounced member reads ZooKeeper alone, which has received no commits since Kafka took over. The member"
        " repeats everything committed to Kafka since then; for a partition without an offset in ZooKeeper, it skips"
        " everything not yet consumed if auto.offset.reset=largest. Members not yet bounced read Kafka alone: if a"
        " partition moves back to one of them, that member repeats what the bounced member consumed"
    ),
}


def route(start: CommitMode, to: CommitMode) -> tuple[CommitModeChange, ...]:
    """Returns, in order, the rolling bounces that safely change the commit mode from ``start`` to ``to``. The result is
    empty if the modes are equal."""
    if start is to:
        return ()
    if CommitModeChange(start, to) in SAFE_CHANGES:
        return (CommitModeChange(start, to),)
    return (CommitModeChange(start, CommitMode.DUAL), CommitModeChange(CommitMode.DUAL, to))


def require_safe(
    start: CommitMode,
    to: CommitMode,
    *,
    zookeeper: Mapping[TopicPartition, Offset] | None = None,
    kafka: Mapping[TopicPartition, Offset] | None = None,
) -> CommitModeChange:
    """Returns the change from ``start`` to ``to`` if one rolling bounce can safely make this change.

    Raises `AlreadyInPhase` if the modes are equal. Raises `GateRefused` if the change leads directly from ZooKeeper
    to Kafka, or directly from Kafka to ZooKeeper, because such a change makes members lose or repeat messages. If the
    caller passes the offsets of both stores, the error lists examples of affected partitions.
    """
    change = CommitModeChange(start, to)
    if start is to:
        raise AlreadyInPhase(f"bounce {change}", "the group is in this phase already", "no bounce is needed")
    if change in SAFE_CHANGES:
        return change
    reason = UNSAFE_CHANGES[change]
    if numbers := _consequences(start, zookeeper or {}, kafka or {}):
        reason += "; now: " + "; ".join(numbers)
    raise GateRefused(
        f"bounce {change} directly",
        reason,
        f"go through dual: first bounce to dual, check it, then bounce to {to.value}",
    )


def _consequences(
    start: CommitMode, zookeeper: Mapping[TopicPartition, Offset], kafka: Mapping[TopicPartition, Offset]
) -> list[str]:
    """Returns a line for each of the first three affected partitions: the committed offset of the group, and the offset
    at which a restarted member would start."""
    current, other = (zookeeper, kafka) if start is CommitMode.ZOOKEEPER else (kafka, zookeeper)
    name = "Kafka" if start is CommitMode.ZOOKEEPER else "ZooKeeper"
    texts: list[str] = []
    for tp in sorted(current):
        current_offset, other_offset = current[tp], other.get(tp)
        if not isinstance(current_offset, Committed):
            continue
        if not isinstance(other_offset, Committed):
            texts.append(f"{tp} is at {current_offset.offset}, and {name} has no offset")
        elif other_offset.offset < current_offset.offset:
            repeated = current_offset.offset - other_offset.offset
            texts.append(f"{tp} is at {current_offset.offset}, {name} at {other_offset.offset}: {repeated} repeated")
    shown = texts[:3]
    if len(texts) > len(shown):
        shown.append(f"and {len(texts) - len(shown)} more partitions")
    return shown


# `Phase`: the stores to which the members of a group commit. `PhaseEvidence`: a phase with its `Confidence`. Pure.


class Phase(StrEnum):
    """The stores to which the members of a group commit. ``MOVED`` is the phase after a finalized migration.

    >>> Phase.MOVED.mode, Phase.DUAL.mode
    (None, <CommitMode.DUAL: 'dual'>)
    """

    ZOOKEEPER = "zookeeper"
    DUAL = "dual"
    KAFKA = "kafka"
    MANAGER = "manager"
    MOVED = "moved"
    UNKNOWN = "unknown"
    """The evidence is insufficient, or members are in different phases."""

    @classmethod
    def of(cls, mode: CommitMode) -> Phase:
        """Returns the phase of a group whose members have this setting."""
        return cls(mode.value)

    @property
    def mode(self) -> CommitMode | None:
        """The setting of old consumers in this phase; None if the phase is no setting of theirs."""
        return next((mode for mode in CommitMode if mode.value == self.value), None)


class Confidence(StrEnum):
    """The confidence of a result."""

    SEEN = "seen"
    """Observed commits, offsets or members prove the result."""
    INFERRED = "inferred"
    """The result follows from the stated numbers and a stated assumption."""
    RECORDED = "journal"
    """The journal of a migration records the result."""
    UNKNOWN = "unknown"


class PhaseEvidence(NamedTuple):
    """The phase of a group, its confidence, and the evidence as text. ``members`` are the settings that the observed
    commits prove; there are several if members are in different phases."""

    phase: Phase
    confidence: Confidence
    why: str
    members: frozenset[CommitMode] = frozenset()

    @property
    def known_phase(self) -> str:
        """The phase and its confidence, as in ``kafka (seen)``; without evidence only ``unknown``."""
        is_unknown = self.phase is Phase.UNKNOWN or self.confidence is Confidence.UNKNOWN
        return self.phase if is_unknown else f"{self.phase} ({self.confidence})"
