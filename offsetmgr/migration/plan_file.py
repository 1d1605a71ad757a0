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
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.ahead_policy import AheadPolicy
from offsetmgr.core.atomic_file import write_atomically
from offsetmgr.core.batches import by_key
from offsetmgr.core.clock import ClockDifference
from offsetmgr.core.commit_metadata import dropped_form
from offsetmgr.core.errors import GroupNotFound, PlanError, UnknownVersion, UsageError, os_error_as
from offsetmgr.core.log_origin import OffsetTranslation, OriginComparison, Relation
from offsetmgr.core.model import BrokerPartition, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Guard
from offsetmgr.core.phase import Confidence
from offsetmgr.core.selection import GroupSelection
from offsetmgr.migration.partition_map import MapOrigin
from offsetmgr.migration.plan import (
    LEFT_OUT,
    PLAN_VERSION,
    PLAN_VERSION_KAFKA_0_7,
    PLAN_VERSION_SHIFTED,
    Action,
    GroupPlan,
    GroupScope,
    PlanHeader,
    PlanOptions,
    PlanSource,
    PlanStep,
    StoreEndpoint,
)

# Encodes and decodes the lines of a plan file.

_OPTIONAL = ("guard_note", "old_members", "members", "state", "error", "note", "wave", "owner")
"""The fields of `GroupPlan` that a plan file contains only if they are not empty."""
_ACTIONS = {action.value: action for action in Action}


def encode_offset(value: OffsetAndMetadata) -> str:
    """Encodes a commit as a number if it has only an offset, and otherwise as an object."""
    offset, metadata, leader_epoch, commit_timestamp = value
    if not metadata and leader_epoch is None and commit_timestamp is None:
        return str(offset)
    encoded = {name: field for name, field in value._asdict().items() if field not in (None, "")}
    return json.dumps(encoded, ensure_ascii=False, separators=(",", ":"))


def decode_offset(value: Any) -> OffsetAndMetadata:
    if value.__class__ is int:
        return tuple.__new__(OffsetAndMetadata, (value, "", None, None))
    return OffsetAndMetadata(
        value["offset"], value.get("metadata", ""), value.get("leader_epoch"), value.get("commit_timestamp")
    )


def encode_step(step: PlanStep, *, whole: bool = True) -> str:
    """Encodes one step as JSON. If ``whole`` is False, the JSON contains only the values that a journal needs: the
    before-image and the value to write.

    The function builds the JSON text itself, because `json.dumps` takes three times as long, and a plan consists mostly
    of steps.
    """
    tp, action, source, target, after, note, origin, proven = step
    text = f'{{"p":{tp[1] if tp[1] >= 0 else json.dumps(str(tp[1]))},"action":"{action}"'
    if whole and source is not None:
        text += f',"source":{encode_offset(source)}'
    if target is not None:
        text += f',"target":{encode_offset(target)}'
    if after is not None:
        text += f',"after":{encode_offset(after)}'
    if whole and origin is not None:
        text += f',"origin":{_encode_origin(origin)}'
    if whole and proven:
        text += ',"proven":true'
    return text + (f',"note":{json.dumps(note, ensure_ascii=False)}}}' if whole and note else "}")


def _encode_origin(origin: PlanSource) -> str:
    encoded = {
        "partition": BrokerPartition.to_json(origin.partition),
        "how": origin.how,
        "evidence": origin.evidence,
    }
    return json.dumps(encoded, ensure_ascii=False, separators=(",", ":"))


def decode_step(topic: str, encoded: Mapping[str, Any]) -> PlanStep:
    get, new = encoded.get, tuple.__new__  # skips the argument handling of named tuples
    source, target, after, note = get("source"), get("target"), get("after"), get("note", "")
    source_offset = None if source is None else decode_offset(source)
    target_offset = None if target is None else decode_offset(target)
    # Most steps write the source's value. To save time and memory, such a step uses one object for the source's offset
    # and the written offset.
    expected = source_offset if after == source else None if after is None else decode_offset(after)
    p = encoded["p"]
    tp = new(TopicPartition, (topic, p if p.__class__ is int else BrokerPartition.from_json(p)))
    origin = None
    if (found := get("origin")) is not None:
        origin = PlanSource(BrokerPartition.from_json(found["partition"]), found["how"], Confidence(found["evidence"]))
    action, proven = _ACTIONS[encoded["action"]], get("proven", False)
    return new(PlanStep, (tp, action, source_offset, target_offset, expected, note, origin, proven))


def encode_group(plan: GroupPlan) -> bytes:
    encoded: dict[str, Any] = {"group": plan.group, "target_group": plan.target_group, "guard": plan.guard.value}
    encoded |= {name: value for name in _OPTIONAL if (value := getattr(plan, name))}
    head = json.dumps(encoded, ensure_ascii=False, separators=(",", ":"))
    return f'{head[:-1]},"topics":{encode_steps(plan.steps)}}}'.encode()


def encode_steps(steps: Iterable[PlanStep], *, whole: bool = True) -> str:
    """Encodes steps as a JSON object that maps each topic to a list of its steps."""
    topics = by_key((step.tp.topic, encode_step(step, whole=whole)) for step in steps)
    members = (f"{json.dumps(topic, ensure_ascii=False)}:[{','.join(parts)}]" for topic, parts in topics.items())
    return "{" + ",".join(members) + "}"


def decode_group(line: bytes) -> GroupPlan:
    encoded = json.loads(line)
    steps = tuple(decode_step(topic, step) for topic, steps in encoded["topics"].items() for step in steps)
    found = ((name, encoded[name]) for name in _OPTIONAL if name in encoded)
    optional: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found}
    return GroupPlan(encoded["group"], encoded["target_group"], steps, Guard(encoded["guard"]), **optional)


def encode_header(header: PlanHeader) -> dict[str, Any]:
    options, used_map = header.options, header.partition_map
    optional = {
        "weaknesses": list(header.weaknesses),
        "clock": None if header.clock is None else header.clock._asdict(),
        "partition_map": None if used_map is None else asdict(used_map),
    }
    return {
        "plan_id": header.plan_id,
        "created_at": header.created_at,
        "source": asdict(header.source),
        "target": asdict(header.target),
        "options": {
            "if_ahead": (options.if_ahead or AheadPolicy.REFUSE).value,
            "if_ahead_given": options.if_ahead is not None,
            "clamp": options.clamp,
            "topics": list(options.topics),
            "groups": list(options.group_selection.patterns or ()),
            "rename": dict(options.rename),
            "onto_existing": options.onto_existing,
            **({"shift": options.shift} if options.shift else {}),
            **({"exclude_groups": list(options.exclude_groups)} if options.exclude_groups else {}),
        },
        "cluster_id": header.cluster_id,
        "retention_ms": header.retention_ms,
        "expires_at": header.expires_at,
        "tool": header.tool,
        **_encode_crossing(header),
        **{name: value for name, value in optional.items() if value},
    }


def _encode_crossing(header: PlanHeader) -> dict[str, Any]:
    if header.compared is None:
        return {}
    encoded = {"relation": header.compared.relation.value, "how": header.compared.how, "recreation": header.recreation}
    return {"logs": encoded | ({} if header.translate is None else {"translate": header.translate.value})}


def _decode_policy(options: Mapping[str, Any]) -> AheadPolicy | None:
    """Returns the caller's word; None if there was none. Release 0.1 stored ``keep`` with and without a word."""
    policy = AheadPolicy(options["if_ahead"])
    return policy if options.get("if_ahead_given", policy is not AheadPolicy.KEEP) else None


def _decode_comparison(logs: Mapping[str, Any]) -> OriginComparison:
    relation = Relation(logs["relation"])  # a plan of unknown clusters has the caller's word, if it needs one
    return OriginComparison(relation, logs["how"], relation is Relation.UNKNOWN and "translate" in logs)


def decode_header(encoded: Mapping[str, Any], version: int) -> PlanHeader:
    options = encoded["options"]
    partition_map = encoded.get("partition_map")
    logs = encoded.get("logs")
    clock = encoded.get("clock")
    return PlanHeader(
        encoded["plan_id"],
        encoded["created_at"],
        StoreEndpoint(**encoded["source"]),
        StoreEndpoint(**encoded["target"]),
        PlanOptions(
            _decode_policy(options),
            options["clamp"],
            tuple(options["topics"]),
            tuple(options["groups"]) or None,
            dict(options["rename"]),
            options["onto_existing"],
            options.get("shift", 0),
            tuple(options.get("exclude_groups", ())),
        ),
        encoded["cluster_id"],
        encoded["retention_ms"],
        encoded["tool"],
        None if logs is None else _decode_comparison(logs),
        OffsetTranslation(logs["translate"]) if logs and "translate" in logs else None,
        "" if logs is None else logs["recreation"],
        None if partition_map is None else MapOrigin(**partition_map),
        tuple(encoded.get("weaknesses", ())),
        None if clock is None else ClockDifference(**clock),
        version,
    )


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
