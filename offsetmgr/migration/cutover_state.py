"""`CutoverState`: how far a cutover is, in its state file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from offsetmgr.core.cutover_options import ReverseReplicator
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.core.model import TopicPartition
from offsetmgr.migration.cutover_gates import Gate
from offsetmgr.migration.state_file import StateFileFormat

STATE_FILE: Final = StateFileFormat("cutover", "the state of a cutover", "offsetmgr-cutover", (1,))


@dataclass(slots=True)
class GroupState:
    """The progress of a group: the last step that was passed, and 0 until its offsets are translated. ``source`` are
    the translated offsets, ``written`` those in the target, and ``seen`` those that the last look found there;
    ``changed`` names one that another program has changed, which was found at ``changed_ms``. ``plan`` is the name of
    its plan. ``alive`` are static members that came back after their removal, and ``back`` is the state
    of the cutover that moved the group back. ``doubt`` names an offset that was not the written one before the first
    member was seen. ``places`` says how sure the written offsets are. The keys are partitions as text."""

    step: int = 0
    plan: str = ""
    source: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] | None = None
    changed: str = ""
    changed_ms: int = 0
    alive: list[str] = field(default_factory=list)
    back: str = ""
    doubt: str = ""
    places: str = ""


@dataclass(slots=True)
class TopicState:
    """The progress of a topic. When the replicator had stopped, ``ends`` were the ends of the target's logs, by
    partition of the target, and ``source_ends`` those of the source's. After step 10, the source holds only copies of
    the target's records from ``source_ends`` up to ``copied``."""

    step: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    source_ends: dict[str, int] = field(default_factory=dict)
    copied: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class CutoverState:
    """Everything that the next run needs. ``clusters`` are the ids of the source's cluster and of the target's, and
    ``excused`` the groups of the source that a run has excused. ``copies`` are the topics of the source that are copies
    of the target's. ``topic_ids`` are the ids of topics in both clusters, by name at the source."""

    clusters: tuple[str, str]
    topic_rules: tuple[str, ...] = ()
    renames: dict[str, str] = field(default_factory=dict)
    back_of: str = ""
    copies: list[str] = field(default_factory=list)
    way_back: ReverseReplicator = ReverseReplicator.NONE
    outputs: dict[str, Sequence[str]] = field(default_factory=dict)
    excused: list[str] = field(default_factory=list)
    topic_ids: dict[str, list[str]] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)

    def moved(self) -> dict[str, str]:
        """Returns the groups whose offsets may be at the target and that did not go back, with their names there."""
        moved = (name for name, one in self.groups.items() if one.step and not one.back)
        return {name: self.renames.get(name, name) for name in moved}

    def save(self, path: Path) -> None:
        """Replaces the file atomically. Raises `FileFailure`."""
        STATE_FILE.save(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> CutoverState | None:
        """Returns the saved state; None if there is no file. Raises the errors of `StateFileFormat.load`."""
        return STATE_FILE.load(path, cls._decoded)

    @classmethod
    def _decoded(cls, found: FieldReader) -> CutoverState:
        data = {name: value for name, value in found.values.items() if name not in ("format", "version")}
        data["clusters"], data["topic_rules"] = tuple(data["clusters"]), tuple(data["topic_rules"])
        data["way_back"] = ReverseReplicator(data["way_back"])
        data["groups"] = {name: GroupState(**one) for name, one in data["groups"].items()}
        data["topics"] = {name: TopicState(**one) for name, one in data["topics"].items()}
        for one in (*data["groups"].values(), *data["topics"].values()):
            Gate(one.step or Gate.READY)
        for tp in (tp for one in data["groups"].values() for tp in one.source):
            partition_of(tp)
        return cls(**data)


def partition_of(text: str) -> TopicPartition:
    """Returns the partition whose text this is."""
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))
