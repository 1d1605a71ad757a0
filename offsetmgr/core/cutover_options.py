"""The choices of an operator who moves groups and producers to another cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from offsetmgr.core.log_origin import TranslationRules


class ReverseReplicator(StrEnum):
    """Whether groups that were moved to another cluster can go back after its producers have started."""

    RUNNING = "running"
    """A reverse replicator copies the target's new records to the source."""
    NONE = "none"


class CutoverOptions(NamedTuple):
    """How a cutover decides. ``renames`` are the names of groups in the target. The command waits for ``wait_s``
    seconds at a closed gate, and looks twice at everything that must stand still, ``interval_s`` seconds apart.
    ``max_behind`` is the number of records by which the replicator may be behind in a topic when a group is stopped.
    ``outputs`` are the topics to which a group writes exactly once. ``excused`` groups stay at the source, or have
    moved by other means.
    ``replicator_stopped`` is the operator's word. ``way_back`` tells whether a reverse replicator runs; None if an
    earlier run has said it. ``undo`` takes back the groups that have not consumed at the target. ``back_of`` is the
    state of the cutover whose way back this one is.
    """

    rules: TranslationRules = TranslationRules()
    renames: Mapping[str, str] = {}
    wait_s: float = 0.0
    interval_s: float = 5.0
    max_behind: int = 1000
    remove_static_members: bool = False
    outputs: Mapping[str, Sequence[str]] = {}
    excused: tuple[str, ...] = ()
    replicator_stopped: bool = False
    way_back: ReverseReplicator | None = None
    undo: bool = False
    back_of: Path | None = None
    reason: str = ""
