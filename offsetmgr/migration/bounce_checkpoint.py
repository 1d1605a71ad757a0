"""The state file of the rolling bounces of one or more groups, from which a killed run is resumed.

Ordering contract: a step's status is written and fsynced *before* its command runs (``running``), and again after the
command has ended. The before-image of a copy is written before the copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.operation_log import RecordedOperation, own_command_line
from offsetmgr.migration import observation
from offsetmgr.migration.observation import Observation, RegisteredMember
from offsetmgr.migration.plan import GroupPlan, PlanHeader
from offsetmgr.migration.state_file import StateFileFormat

OPERATION: Final = "runbook bounce"
"""The name of a bounce in the operation log."""
STATE_FILE: Final = StateFileFormat("bounce", "the state of a rolling bounce", "offsetmgr-bounce", (2, 3, 4))
"""Files of version 2 hold the bounce of one group. Versions 2 and 3 have neither the stores of the baseline nor the
registrations at the end of a bounce."""


class StepStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    """The command was about to run, is running, or was running when the bounce was killed."""
    COMMAND_FAILED = "command-failed"
    RETURNED = "returned"
    """The command has ended with exit code 0, but the gate after this step has not passed yet."""
    PASSED = "passed"
    MEMBER_LEFT = "member-left"
    """The member left the group before its step began, so no command was run for the member."""


_PROGRESS: Final = {
    StepStatus.PENDING: "not begun",
    StepStatus.RUNNING: "its command was started, and the result is not known",
    StepStatus.COMMAND_FAILED: "its command failed",
    StepStatus.RETURNED: "restarted, and its gate has not passed",
}


@dataclass(slots=True)
class RestartStep:
    """The restart of one member, or of all members of a Kubernetes workload.

    ``czxid`` identifies the member's registration at the start of the bounce. ``before`` has the registrations (czxid
    by id) just before the command. A registration that is not in ``before`` is a successor of the member. For a
    workload, ``member`` is its name, and ``workload_members`` are its members.
    """

    member: str
    host: str | None
    czxid: int
    status: StepStatus = StepStatus.PENDING
    before: dict[str, int] = field(default_factory=dict)
    successors: list[str] = field(default_factory=list)
    command: str = ""
    exit_code: int | None = None
    pid: int | None = None
    """The process id of the command while it runs, so that a resumed bounce can wait for it."""
    started_ms: int | None = None
    passed_ms: int | None = None
    workload_members: list[str] = field(default_factory=list)

    @property
    def members(self) -> list[str]:
        """The members that the command restarts."""
        return self.workload_members or [self.member]

    def present(self, registered: Mapping[str, RegisteredMember]) -> list[str]:
        """Returns the members that are registered as they were before the command."""
        known = [member for member in self.members if member in registered]
        return [m for m in known if not self.before or self.before.get(m) == registered[m].czxid]


@dataclass(slots=True)
class OffsetCopy:
    """An offset that is copied from Kafka to ZooKeeper; ``before`` is None if ZooKeeper had no offset.

    ``outcome`` is ``intended`` until the outcome is known, then ``written``, ``caught-up`` (the consumer committed
    first) or the text of the error.
    """

    topic: str
    partition: int
    before: int | None
    after: int
    outcome: str = "intended"


@dataclass(slots=True)
class BounceState:
    """Everything that a resumed bounce needs."""

    group: str
    change: CommitModeChange
    baseline: Observation
    steps: list[RestartStep]
    copies: list[OffsetCopy] = field(default_factory=list)
    opened_ms: int | None = None
    """The time at which the gate before the first step was passed; None if that gate has not been passed yet."""
    finished_ms: int | None = None
    finished_members: dict[str, int] = field(default_factory=dict)
    """The registrations (czxid by id) at the end of the bounce."""

    @property
    def is_open(self) -> bool:
        """Whether the bounce has begun and is not finished."""
        return self.opened_ms is not None and self.finished_ms is None

    @property
    def progress(self) -> str:
        """The number of steps that an open bounce has done, and the state of its next step."""
        left = [step for step in self.steps if step.status not in (StepStatus.PASSED, StepStatus.MEMBER_LEFT)]
        total = len(self.steps)
        begun = f"bounce {self.change} of group {self.group}: {total - len(left)} of {count_of(total, 'step')} done"
        if not left:
            return f"{begun}; the gate of the whole group is left"
        return f"{begun}; step {self.steps.index(left[0]) + 1}, {left[0].member}: {_PROGRESS[left[0].status]}"

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "from_phase": self.change.start.value,
            "to_phase": self.change.to.value,
            "opened_ms": self.opened_ms,
            "finished_ms": self.finished_ms,
            "finished_members": self.finished_members,
            "steps": [asdict(step) for step in self.steps],
            "copies": [asdict(c) for c in self.copies],
            "baseline": observation.to_json(self.baseline),
        }


def save(state: BounceState, path: Path) -> None:
    """Replaces the group's bounce in the file atomically, and keeps the bounces of other groups. Returns once the new
    content is on disk. Raises `FileFailure`, and any error from `load_all`."""
    bounces = {**load_all(path), state.group: state}
    STATE_FILE.save(path, {"bounces": [found.to_json() for found in bounces.values()]})


def load_all(path: Path) -> dict[str, BounceState]:
    """Returns the saved bounces by group; empty if there is no file. Raises the errors of `StateFileFormat.load`."""
    return STATE_FILE.load(path, decode_all) or {}


def decode_all(found: FieldReader) -> dict[str, BounceState]:
    """Returns the saved bounces in the content of a state file, by group."""
    bounces = [found] if found.get("version") == 2 else found.objects("bounces")
    return {one.text("group"): _decode(one.values, f"baseline of {found.what}") for one in bounces}


def _decode(data: Mapping[str, Any], baseline: str) -> BounceState:
    return BounceState(
        group=data["group"],
        change=CommitModeChange(CommitMode(data["from_phase"]), CommitMode(data["to_phase"])),
        baseline=observation.from_json(data["baseline"], where=baseline),
        steps=[RestartStep(**{**s, "status": StepStatus(s["status"])}) for s in data["steps"]],
        copies=[OffsetCopy(**c) for c in data["copies"]],
        opened_ms=data["opened_ms"],
        finished_ms=data["finished_ms"],
        finished_members=data.get("finished_members", {}),
    )


def belongs_to_earlier(state: BounceState, baseline: Observation | None) -> bool:
    """Whether the bounce has begun and is not finished, and has another baseline than ``baseline``."""
    return state.is_open and baseline is not None and baseline.at_ms != state.baseline.at_ms


def is_unchanged(state: BounceState, live: Mapping[str, RegisteredMember]) -> bool:
    """Whether the live members are those of the end of the bounce."""
    return bool(live) and all(state.finished_members.get(m.id) == m.czxid for m in live.values())


def resume(path: Path, group: str, to: CommitMode, baseline: Observation | None = None) -> BounceState | None:
    """Returns the saved state of this bounce; None if the bounce has not begun. Raises `UsageError` if the file belongs
    to bounces to another phase or to a bounce with another baseline, or if this bounce is finished, and any error from
    `load_all`."""
    saved = load_all(path)
    other, state = next((found for found in saved.values() if found.change.to is not to), None), saved.get(group)
    if other is not None:
        why = f"it belongs to the bounce {other.change} of group {other.group}"
        hint = "name another one with {state}"
    elif state is not None and state.finished_ms is not None:
        why = f"the bounce {state.change} of group {state.group} is finished"
        hint = "name another one with {state} for a new bounce"
    elif state is not None and belongs_to_earlier(state, baseline):
        why = f"it belongs to an earlier bounce of group {group} (baseline of {observation.at(state.baseline.at_ms)})"
        hint = "name another {state} for a new bounce, or remove the file; to resume, give the baseline of that bounce"
    else:
        return state
    raise UsageError(f"state file {path}", why, Advice(hint))


def state_stem(plan: str | Path | None, groups: Sequence[str], to: CommitMode) -> str:
    """Returns the name of the state file without its number and suffix: after the plan, else after the group if there
    is only one."""
    label = Path(plan).stem if plan is not None else groups[0] if len(groups) == 1 else "groups"
    return f"bounce-{re.sub(r'[^A-Za-z0-9._-]', '_', label)}-{to.value}"


def default_state_file(
    stem: str,
    baselines: Mapping[str, Observation | None],
    members: Callable[[str], Mapping[str, RegisteredMember]],
    note: Callable[[str], None],
    *,
    several: bool,
) -> Path:
    """Returns the state file of bounces of the groups in ``baselines``. Its name gets a number if this is a new bounce:
    if a bounce in the file has another baseline, or if all bounces are finished and a group has restarted since. With
    one group, a finished bounce is enough. ``members`` returns the live members of a group."""

    def is_over(states: Sequence[BounceState]) -> bool:
        finished = all(state.finished_ms is not None for state in states)
        return finished and not (several and all(is_unchanged(state, members(state.group)) for state in states))

    for number in count(2):
        path = Path(f"{stem}.json" if number == 2 else f"{stem}-{number - 1}.json")
        saved = load_all(path)
        found = [saved[group] for group in baselines if group in saved]
        if any(belongs_to_earlier(state, baselines[state.group]) for state in found):
            note(f"the bounce in {path} has another baseline, so this is a new one")
        elif len(found) == len(baselines) and is_over(found):
            note(f"the bounce in {path} is finished, so this is a new one")
        else:
            return path
    raise AssertionError


def unfinished_texts(path: Path, names: Sequence[str] | None, *, outage: bool = False) -> list[str]:
    """Returns how far the open bounces in a state file are, and the command line that resumes them. Without ``names``,
    the groups are not known yet."""
    saved = [state for name, state in load_all(path).items() if names is None or name in names]
    texts = [state.progress for state in saved if state.is_open]
    if outage and not saved and names is not None:
        texts.append("no bounce has begun, so no member was restarted")
    if (outage and names is not None) or any(state.is_open for state in saved):
        texts.append(f"resume: {own_command_line()}")
    return texts


class OpenBounce(NamedTuple):
    """A bounce that has begun and is not finished: its state file, and how far it is. ``state`` is None if the file
    cannot be read. ``at_ms`` is the time of the run that was the last to work on it."""

    path: str
    at_ms: int
    text: str
    state: BounceState | None = None


def open_bounces(
    groups: Iterable[GroupPlan], header: PlanHeader, operations: Iterable[RecordedOperation]
) -> dict[str, OpenBounce]:
    """Returns the open bounces of the groups of a plan, by their names in the plan, between its stores. The
    ``operations`` of the operation log name the state files."""
    runs = [one for one in operations if one.start.name == OPERATION]
    if not runs:
        return {}
    to_zookeeper = header.target.kind == "zookeeper"
    names = {one.target_group if to_zookeeper else one.name: one.name for one in groups}
    found: dict[str, OpenBounce] = {}
    files: dict[str, dict[str, BounceState] | OffsetMgrError] = {}
    wanted, ids = set(names), {header.source.id, header.target.id}
    for one in reversed(runs):
        if wanted.isdisjoint(one.start.groups):
            continue
        path = one.start.files[0]
        if path not in files:
            try:
                files[path] = load_all(Path(path))
            except OffsetMgrError as error:
                files[path] = error
        saved, at_ms = files[path], one.ended_ms or one.at_ms
        running = f" (process {one.pid} is working on it)" if one.is_running else ""
        for name in wanted.intersection(one.start.groups):
            if isinstance(saved, OffsetMgrError):
                found[names[name]] = OpenBounce(path, at_ms, f"{saved}")
            elif (state := saved.get(name)) is None or ids.isdisjoint(state.baseline.stores.values() or ids):
                continue  # a file of an older release does not name the stores
            elif state.is_open:
                found[names[name]] = OpenBounce(path, at_ms, f"{state.progress}{running}", state)
            wanted.discard(name)
    return found
