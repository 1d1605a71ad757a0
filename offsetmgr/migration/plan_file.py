"""The plan file: valid JSON, with one group on each line and a hash at the end.

The line layout allows plans of a million offsets to be written and read as a stream::

    {"offsetmgr_plan": 3, "header": {...},
    "groups": [
    {...},
    {...}
    ],
    "summary": {...}, "sha256": "..."}

The hash covers every byte in front of it. If a plan file was edited, truncated or reformatted, the hash does not match
and the file is rejected. `plan_codec` encodes the lines.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.atomic_file import write_atomically
from offsetmgr.core.commit_metadata import dropped_form
from offsetmgr.core.errors import GroupNotFound, PlanError, UnknownVersion, UsageError
from offsetmgr.core.offset_store import Guard
from offsetmgr.core.os_errors import os_error_as
from offsetmgr.core.selection import GroupSelection
from offsetmgr.migration.plan import (
    LEFT_OUT,
    PLAN_VERSION,
    PLAN_VERSION_KAFKA_0_7,
    PLAN_VERSION_SHIFTED,
    Action,
    GroupPlan,
    GroupScope,
    PlanHeader,
)
from offsetmgr.migration.plan_codec import decode_group, decode_header, encode_group, encode_header

VERSIONS = (PLAN_VERSION, PLAN_VERSION_KAFKA_0_7, PLAN_VERSION_SHIFTED)
"""The readable versions."""
FetchTopicIds = Callable[[list[str]], Mapping[str, str]]
_HEAD = b'{"offsetmgr_plan": '
_GROUPS = b'"groups": [\n'
_GROUPS_END = b"],\n"
_HASH = b', "sha256": "'


_COUNTS = ("groups", "failed_groups", "active_groups", "unlocked_groups", "left_out_groups", "noted_groups")


class PlanSummary:
    """Counts of a plan, collected while the plan is written: its groups, its steps by action, and its groups with an
    error or with members."""

    def __init__(self) -> None:
        self.groups = 0
        self.actions: Counter[str] = Counter()
        self.failed_groups = 0
        self.active_groups = 0
        self.unlocked_groups = 0
        self.left_out_groups = 0
        self.dropped: Counter[str] = Counter()
        """The number of steps that drop metadata, by the form of the metadata."""
        self.noted_groups = 0
        self.topic_ids: dict[str, str] = {}
        """The id that each written topic had in the target when the plan was made; "" if the target has no topic ids.
        """

    def add(self, plan: GroupPlan) -> None:
        """Adds the plan of one group to the counts."""
        self.groups += 1
        self.failed_groups += bool(plan.error)
        self.active_groups += bool(plan.members)
        self.left_out_groups += plan.note.startswith(LEFT_OUT)
        self.noted_groups += bool(plan.note) and not plan.note.startswith(LEFT_OUT)
        self.unlocked_groups += plan.guard is Guard.COMPARE and bool(plan.writes())
        self.actions.update([step.action for step in plan.steps])
        for step in plan.writes():
            self.topic_ids.setdefault(step.tp.topic, "")
        noted = (step.note for step in plan.steps if step.note and not step.action.rejects)
        self.dropped.update(form for note in noted if (form := dropped_form(note)))

    @property
    def needs_attention(self) -> bool:
        """Whether the operator should read the plan before applying it. This is the case if a step is refused or is a
        rewind, or if a group could not be planned, has members, or was left out."""
        groups = self.failed_groups or self.active_groups or self.left_out_groups or self.noted_groups
        return bool(self.refused or groups or self.actions[Action.REWIND])

    @property
    def writes(self) -> int:
        """The number of steps that write an offset to the target."""
        return sum(n for action, n in self.actions.items() if Action(action).writes)

    @property
    def refused(self) -> int:
        """The number of steps that the plan refuses."""
        return sum(n for action, n in self.actions.items() if Action(action).rejects)

    @property
    def refuses_all(self) -> bool:
        """Whether the plan refuses every partition and group, so that nothing can be applied."""
        return bool(self.refused or self.failed_groups) and self.refused == sum(self.actions.values())

    def encode(self) -> dict[str, Any]:
        """Returns the JSON object in which the plan file stores the summary."""
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "actions": dict(sorted(self.actions.items())),
            "topic_ids": self.topic_ids,
            **({"dropped_metadata": dict(sorted(self.dropped.items()))} if self.dropped else {}),
        }

    @classmethod
    def decode(cls, encoded: Mapping[str, Any]) -> PlanSummary:
        """Returns the summary for a JSON object that `encode` returned."""
        summary = cls()
        for name in _COUNTS:
            setattr(summary, name, encoded.get(name, 0))
        summary.actions = Counter(encoded["actions"])
        summary.topic_ids = encoded.get("topic_ids", {})
        summary.dropped = Counter(encoded.get("dropped_metadata", {}))
        return summary


def summary_of(plan: PlanFile, only: GroupScope | None) -> PlanSummary:
    """Returns the counts of the groups in ``only``; of the whole plan if it is None."""
    if only is None:
        return plan.summary
    summary = PlanSummary()
    for group in plan.groups_of(only):
        summary.add(group)
    return summary


def select_groups(plan: PlanFile, groups: GroupSelection, waves: Iterable[int] = ()) -> GroupScope | None:
    """Returns the selected groups of the plan, with ``waves`` only those that are in one of them; None if the selection
    has all groups.

    Raises `GroupNotFound` as `GroupSelection.within` or if none of the selected groups is in the waves, and
    `UsageError` if the plan does not have a wave.
    """
    waves = set(waves)
    if groups.patterns is None and not groups.excluded and not waves:
        return None
    known = {group.group: group.wave for group in plan.groups()}
    hint = Advice("see: {}", Invocation("migrate status", (str(plan.path),)))
    if missing := sorted(waves - set(known.values())):
        found = ", ".join(str(wave) for wave in sorted({wave for wave in known.values() if wave is not None}))
        why = f"the plan has no such wave (its waves: {found})" if found else "the plan has no waves"
        raise UsageError(Advice("{wave} {}", missing[0]), why, hint)
    chosen = frozenset(
        name for name in groups.within(known, f"plan {plan.path}", hint=hint) if not waves or known[name] in waves
    )
    if not chosen and groups.patterns is None:
        raise GroupNotFound(Advice("{wave}"), "every group of these waves is excluded")
    if not chosen:
        raise GroupNotFound(
            Advice("{group} with {wave}"), "no group of this name is in this wave", "leave out one of them"
        )
    return chosen


def write_plan(
    path: Path, header: PlanHeader, groups: Iterable[GroupPlan], topic_ids: FetchTopicIds = lambda _topics: {}
) -> tuple[PlanSummary, str]:
    """Writes a plan as a stream to a temporary file, then creates the plan file atomically. Returns the summary and the
    hash of the plan.

    ``topic_ids`` returns the ids of topics in the target. Raises `PlanError` if the file exists (a plan is never
    overwritten) or cannot be written.
    """
    summary = PlanSummary()
    digest = hashlib.sha256()

    def write(out: BinaryIO) -> None:
        def put(data: bytes) -> None:
            digest.update(data)
            out.write(data)

        put(_HEAD + str(header.version).encode() + b', "header": ')
        put(json.dumps(encode_header(header), ensure_ascii=False).encode() + b",\n" + _GROUPS)
        between = b""
        for group in groups:
            put(between + encode_group(group))
            between = b",\n"
            summary.add(group)
        summary.topic_ids |= topic_ids(list(summary.topic_ids))
        put((b"\n" if summary.groups else b"") + _GROUPS_END)
        put(b'"summary": ' + json.dumps(summary.encode()).encode())
        out.write(_HASH + digest.hexdigest().encode() + b'"}\n')

    try:
        write_atomically(path, write, overwrite=False)
    except FileExistsError as error:
        why = "this file exists, and a plan is never overwritten"
        raise PlanError(f"plan {path}", why, "choose another name") from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        hint = (
            "free disk space, then run the same command again"
            if full
            else "name another file, in a directory that can be written"
        )
        raise PlanError(f"plan {path}", error.strerror or str(error), hint) from error
    return summary, digest.hexdigest()


class PlanFile:
    """A plan on disk. The hash is checked when the plan is opened. The groups can be read several times, one at a
    time."""

    def __init__(self, path: Path) -> None:
        """Raises `PlanError` if the file is missing, damaged or edited, and `UnknownVersion` for an unsupported
        version."""
        self.path = path
        with self._lines() as lines:
            self.header, self.sha256, self.summary = self._check(lines)

    @contextmanager
    def _lines(self) -> Iterator[BinaryIO]:
        with os_error_as(PlanError, f"plan {self.path}"), self.path.open("rb") as lines:
            yield lines

    def _check(self, lines: Iterable[bytes]) -> tuple[PlanHeader, str, PlanSummary]:
        digest = hashlib.sha256()
        first = last = b""
        version = 0
        for number, line in enumerate(lines):
            if number == 0:
                first = line
                version = self._check_version(first)
            digest.update(last)
            last = line
        if not first:
            raise PlanError(f"plan {self.path}", "the file is empty", "make a new plan")
        head, found, claimed = last.rpartition(_HASH)
        digest.update(head)
        if not found or claimed.rstrip() != digest.hexdigest().encode() + b'"}':
            raise PlanError(
                f"plan {self.path}", "its hash does not match: the file was edited or truncated", "make a new plan"
            )
        header = json.loads(first.rstrip().removesuffix(b",") + b"}")["header"]
        summary = json.loads(b"{" + head + b"}")["summary"]
        return decode_header(header, version), digest.hexdigest(), PlanSummary.decode(summary)

    def _check_version(self, first: bytes) -> int:
        if not first.startswith(_HEAD):
            raise PlanError(f"plan {self.path}", "this is not a plan of offsetmgr")
        version = first[len(_HEAD) :].partition(b",")[0].decode(errors="replace")
        known = {str(number): number for number in VERSIONS}
        if version not in known:
            why = f"version {version[:20]} is not known here (known: {', '.join(known)})"
            raise UnknownVersion(f"plan {self.path}", why)
        return known[version]

    def groups(self) -> Iterator[GroupPlan]:
        """Yields the plan's groups, one at a time, in the order of the file. Raises `PlanError` if the file cannot be
        read any more."""
        for _position, group in self.positioned_groups():
            yield group

    def groups_of(self, only: GroupScope | None) -> Iterator[GroupPlan]:
        """Yields the groups that are in ``only``; all groups if it is None."""
        return (group for group in self.groups() if only is None or group.group in only)

    def positioned_groups(self) -> Iterator[tuple[int, GroupPlan]]:
        """Yields each group with its byte position in the file, for `group_at`. Raises `PlanError` as `groups`."""
        with self._lines() as lines:
            lines.readline()
            position = lines.tell() + len(lines.readline())
            for line in lines:
                if line == _GROUPS_END:
                    return
                yield position, decode_group(line.rstrip().removesuffix(b","))
                position += len(line)

    def group_at(self, position: int) -> GroupPlan:
        """Returns the group at a position that `positioned_groups` yielded. Raises `PlanError` as `groups`."""
        with self._lines() as lines:
            lines.seek(position)
            return decode_group(lines.readline().rstrip().removesuffix(b","))
