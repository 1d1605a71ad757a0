"""`Phase`: the stores to which the members of a group commit. `PhaseEvidence`: a phase with its `Confidence`. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from offsetmgr.core.commit_mode import CommitMode


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
