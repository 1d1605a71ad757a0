"""The values of a migration plan, the decision about one partition, and the description of a plan. Pure.

A plan does not change after it was made. `apply` writes only offsets that are in the plan, and writes a partition only
if the target's offset has not changed since the plan was made.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

from offsetmgr.core.advice import Advice, Invocation, for_command_line
from offsetmgr.core.atomic_file import write_atomically
from offsetmgr.core.batches import by_key
from offsetmgr.core.clock import ClockDifference
from offsetmgr.core.commit_mode import CommitMode, Confidence
from offsetmgr.core.document import time_text
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, PlanError, UnknownVersion, UsageError, os_error_as
from offsetmgr.core.log_origin import (
    OffsetTranslation,
    OriginComparison,
    Relation,
    TranslationChoice,
    TranslationRules,
)
from offsetmgr.core.model import (
    KEEPS_ACTIVE_OFFSETS,
    BrokerPartition,
    Committed,
    LogRange,
    Offset,
    OffsetAndMetadata,
    TopicPartition,
    dropped_form,
    with_drop,
)
from offsetmgr.core.offset_store import AheadPolicy, Guard
from offsetmgr.core.plurals import SHOWN, count_of, list_of
from offsetmgr.core.selection import GroupSelection, TopicSelection
from offsetmgr.groups.last_writes import LastWriter, skip_text
from offsetmgr.migration.partition_map import MapOrigin

PLAN_VERSION: Final = 3
PLAN_VERSION_KAFKA_0_7: Final = 4
"""The version of a plan with partitions of Kafka 0.7. A reader that supports only `PLAN_VERSION` would misread these
partitions."""
PLAN_VERSION_SHIFTED: Final = 5
"""The version of a plan with `PlanOptions.shift`. An older reader would compare both sides without it."""
PLAN_VERSION_TRANSLATED: Final = 6
"""The version of a plan between clusters, in which both offsets of a step belong to different logs."""


STILL_RUNNING: Final = "the group goes on there, and repeats in the target what it consumes from now on; stop it first"
LEFT_OUT: Final = "left out: "
"""The beginning of the note of a group of which a reverse plan writes nothing, because it was never copied."""


class Action(StrEnum):
    """The planned action for one partition."""

    COPY = "copy"
    """Write the source's offset: the target has none, or a smaller one."""
    REWIND = "rewind"
    """Write the source's offset over a larger offset in the target, because the caller allowed rewinds."""
    SKIP_EQUAL = "skip-equal"
    """The target holds this offset already."""
    KEEP_NEWER = "keep-newer"
    """The target is ahead of the source and is not changed: it was written last, or the caller chose to keep it."""
    TARGET_ONLY = "target-only"
    """Only the target has a commit for this partition. The commit is not changed."""
    REFUSE_REWIND = "refuse-rewind"
    """The target is ahead, and nothing shows that it was written last, or the caller chose to refuse such
    partitions."""
    REFUSE_NEWER = "refuse-newer"
    """The target was written last, although the source has the larger offset."""
    REFUSE_TOPIC_MISSING = "refuse-topic-missing"
    REFUSE_PARTITION_MISSING = "refuse-partition-missing"
    REFUSE_OUT_OF_RANGE = "refuse-out-of-range"
    """The source's offset is outside the partition's log. The note names the offset that clamping would write."""
    REFUSE_BYTE_POSITION = "refuse-byte-position"
    """The source holds a byte position of Kafka 0.7, and no map translates it."""
    REFUSE_UNSUPPORTED_TARGET = "refuse-unsupported-target"
    """The target is a store of Kafka 0.7, which cannot hold the offset of a numbered partition."""
    REFUSE_UNTRANSLATED = "refuse-untranslated"
    """The offset cannot be translated for the target's cluster. The note has the reason."""
    REFUSE_UNSURE = "refuse-unsure"
    """The place of the record in the target's cluster is not known, or not surely. The note has the verdict."""
    REFUSE_UNREADABLE = "refuse-unreadable"
    """An offset or the log range could not be read. An unreadable offset never counts as absent, and nothing is
    written."""
    REFUSE_RECREATED = "refuse-recreated"
    """The topic was deleted and recreated after the source's commit. The note has the reason."""
    REFUSE_LOST = "refuse-lost"
    """In a reverse plan: the first migration copied the offset, but its target no longer holds an offset for the
    partition."""

    @property
    def writes(self) -> bool:
        """Whether the migration writes the offset to the target."""
        return self is Action.COPY or self is Action.REWIND

    @property
    def rejects(self) -> bool:
        """Whether the plan refuses the partition."""
        return self in _REJECTIONS


_REJECTIONS = frozenset(action for action in Action if action.value.startswith("refuse-"))


class PlanSource(NamedTuple):
    """The origin of an offset whose number was derived from the source's: the partition in the source, the derivation
    as text, and its confidence (data rule "verdicts carry evidence").

    The source has a byte position of Kafka 0.7, or else a position in the log of ``topic`` in another cluster. Then
    ``verdict`` says how sure the translation is; "" if there is none. From the offset on, a group repeats at most
    ``repeats`` records, and skips ``skips`` records, which the target lacks; None if unknown.
    """

    partition: int
    how: str
    evidence: Confidence = Confidence.INFERRED
    topic: str | None = None
    verdict: str = ""
    repeats: int | None = None
    skips: int | None = None


class PlanStep(NamedTuple):
    """The step of one partition in a plan; ``tp`` is the target's partition.

    ``source`` and ``target`` are the offsets of the two stores when the plan was made; None if there is no commit or if
    the offset is unreadable. ``after`` is the offset that the target holds after apply; None if the step is refused. If
    ``origin`` is set, ``source`` is a position in another log (`source_tp`). This position can be compared only with a
    position that is read from the source later, not with offsets in the target. ``proven``
    tells, for an offset that the target keeps ahead, whether evidence or the caller's word was given for it. It is
    False in plans of releases that took the larger offset for the newer one.
    """

    tp: TopicPartition
    action: Action
    source: OffsetAndMetadata | None
    target: OffsetAndMetadata | None
    after: OffsetAndMetadata | None
    note: str = ""
    origin: PlanSource | None = None
    proven: bool = False

    @property
    def source_tp(self) -> TopicPartition:
        """The partition in the source."""
        if self.origin is None:
            return self.tp
        topic = self.tp.topic if self.origin.topic is None else self.origin.topic
        return TopicPartition(topic, self.origin.partition)

    @property
    def is_translated(self) -> bool:
        """Whether ``source`` is a position in a log of another cluster."""
        return self.origin is not None and self.origin.topic is not None

    @property
    def may_be_stale(self) -> bool:
        """Whether the target's offset is ahead and may be stale. A refresh leaves it out: it would look newer then."""
        return self.action is Action.REFUSE_REWIND or (self.action is Action.KEEP_NEWER and not self.proven)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options with which a plan is made.

    ``groups`` are names and globs of groups, or a `GroupSelection`; None means all groups. ``topics`` are texts of the
    form of ``--topic`` (``t``, ``a*``, ``t:0,1,4-7``), or a `TopicSelection`; empty means all topics. Created options
    hold a `GroupSelection` and a `TopicSelection`. ``GroupSelection(names, exclude=...)`` leaves groups out. ``rename``
    maps a group to its name in the target. ``if_ahead`` is the caller's word for a partition whose target is ahead of
    the source. If it is None, the plan keeps the target's offset if evidence shows that the target was written last,
    and otherwise refuses the partition.
    ``clamp`` moves an offset outside the log to the nearest end of the log; without it the plan refuses the partition.
    ``onto_existing`` allows a renamed group to be merged with a group that the target already has. ``shift`` is added
    to each copied offset, for clients that commit the offset of the last processed record and not of the next one.

    Raises `UsageError` if a topic is not valid, or if ``groups`` is empty.

    >>> options = PlanOptions(groups=("shop", "audit-*"), topics=("orders:0-3",), rename={"shop": "shop-new"})
    >>> options.selects_group("audit-7"), options.target_group("shop")
    (True, 'shop-new')
    """

    if_ahead: AheadPolicy | None = None
    clamp: bool = False
    topics: TopicSelection | tuple[str, ...] = ()
    groups: GroupSelection | tuple[str, ...] | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    onto_existing: bool = False
    shift: int = 0
    selection: TopicSelection = field(init=False, repr=False, compare=False)
    """The selection of ``topics``. Invalid text raises `UsageError` when the options are created."""
    group_selection: GroupSelection = field(init=False, repr=False, compare=False)
    """The selection of ``groups``."""

    def __post_init__(self) -> None:
        groups, topics = GroupSelection.of(self.groups), TopicSelection.of(self.topics or None)
        for name, value in (("groups", groups), ("group_selection", groups), ("topics", topics), ("selection", topics)):
            object.__setattr__(self, name, value)

    def for_source(self, uri: str) -> PlanOptions:
        """Returns the options with the `AheadPolicy` that applies to the source ``uri``.

        A snapshot file is usually older than the target. Therefore a partition whose target is ahead is refused, unless
        the caller chose another policy.
        """
        if self.if_ahead is not None or not uri.startswith("file:"):
            return self
        return replace(self, if_ahead=AheadPolicy.REFUSE)

    def literal_first(self, existing: Iterable[str]) -> PlanOptions:
        """Returns the options with one change: each pattern that equals the name of an existing group is escaped, so
        that it matches only that group."""
        return replace(self, groups=self.group_selection.literal_first(set(existing)))

    def selects_group(self, group: str) -> bool:
        """Returns whether the plan includes this group of the source (see ``groups``)."""
        return self.group_selection.matches(group)

    def selects(self, tp: TopicPartition) -> bool:
        """Returns whether the plan includes this partition (see ``topics``)."""
        return self.selection.matches(tp)

    def target_group(self, group: str) -> str:
        """Returns the name of the group in the target (see ``rename``)."""
        return self.rename.get(group, group)


def check_renames(rename: Mapping[str, str], groups: Iterable[str]) -> None:
    """Raises `UsageError` if two groups would get the same name, which would mix their offsets."""
    seen: dict[str, str] = {}
    for group in groups:
        new = rename.get(group, group)
        if new in seen:
            raise UsageError(
                "rename", f"groups {seen[new]} and {group} would both become {new}", "give each a name of its own"
            )
        seen[new] = group


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The plan of one group.

    ``guard`` is the guard of the group's writes; ``guard_note`` is the reason for this guard. ``old_members`` are the
    live members in ZooKeeper's registry, ``members`` are the members that the target's coordinator reported, and
    ``source_members`` those that still run in the source, if that is another cluster. If the whole group could not be
    planned, ``error`` is the reason and ``steps`` is empty. ``note`` is the reason why nothing
    is planned for a group that the user named, or names data of the source that is not copied.
    """

    name: str
    target_group: str
    steps: tuple[PlanStep, ...]
    guard: Guard = Guard.LOCK
    guard_note: str = ""
    old_members: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    state: str = ""
    error: str = ""
    note: str = ""
    source_members: tuple[str, ...] = ()
    wave: int | None = None
    """The wave in which the operator moves the group; None if the plan has no waves."""
    owner: str = ""
    """The team or the person responsible for the group."""

    def writes(self) -> list[PlanStep]:
        """Returns the steps that write an offset to the target."""
        return [step for step in self.steps if step.action.writes]


GroupScope: TypeAlias = frozenset[str]
"""The groups of a plan to which a step is limited, by their names in the source."""


@dataclass(frozen=True, slots=True)
class StoreEndpoint:
    """One side of a plan: its URI (without credentials) and its identity (data rule "migration is a state machine on
    disk"). ``how`` describes how the identity was determined."""

    uri: str
    kind: str
    id: str
    how: str


@dataclass(frozen=True, slots=True)
class PlanHeader:
    """The values that apply to the whole plan. Times are milliseconds since 1970 UTC."""

    plan_id: str
    created_at: int
    source: StoreEndpoint
    target: StoreEndpoint
    options: PlanOptions
    cluster_id: str | None
    """The Kafka cluster in which topics and log ranges were checked: its id, or the addresses of its brokers if it has
    no id (`LogOrigin.name`). None if topics and log ranges were not checked."""
    retention_ms: int | None
    """The time for which the target keeps the offsets of a group that no consumer joins. None if this time is unknown
    or unlimited."""
    tool: str
    compared: OriginComparison | None = None
    """Whether the offsets of both sides refer to the same logs; None in plans of older versions of offsetmgr, which did
    not compare the logs."""
    translate: TranslationChoice | None = None
    """How the user wants offsets of another cluster to be treated."""
    recreation: str = ""
    """How the plan detects topics that were recreated after a commit, as text for the user."""
    partition_map: MapOrigin | None = None
    """The map that translates byte positions of Kafka 0.7."""
    weaknesses: tuple[str, ...] = ()
    """The guarantees that the target does not fully give, one sentence each (`OffsetStore.weaknesses`)."""
    clock: ClockDifference | None = None
    """The difference between the clocks of the target's brokers and of the machine that made the plan; None if it is
    unknown."""
    version: int = PLAN_VERSION
    """The version of the plan file, one of the versions of this module."""

    @property
    def rules(self) -> TranslationRules | None:
        """The rules of the translation between two clusters; None if offsets are not translated by the records."""
        return self.translate if isinstance(self.translate, TranslationRules) else None

    @property
    def expires_at(self) -> int | None:
        """The time at which the copied offsets expire if no consumer starts. The time is computed as if the offsets
        were copied when the plan was made, by the brokers' clock if it is known. None if the retention time is unknown
        or the offsets do not expire."""
        return self.expiry_of(self.created_at)

    def expiry_of(self, copied_at: int | None) -> int | None:
        """Like `expires_at`, for offsets that were copied at this time of the machine that made the plan; None if the
        time is unknown."""
        if self.retention_ms is None or copied_at is None:
            return None
        return copied_at + (self.clock.correction_ms if self.clock else 0) + self.retention_ms

    @property
    def end(self) -> CommitMode:
        """The phase in which the migration of old consumers ends."""
        return CommitMode.ZOOKEEPER if self.target.kind == "zookeeper" else CommitMode.KAFKA


class MissingTopic(StrEnum):
    """A topic or partition that does not exist in the Kafka cluster, as text."""

    TOPIC = "the topic does not exist in the Kafka cluster"
    PARTITION = "the partition does not exist in the Kafka cluster"


def decide(
    tp: TopicPartition,
    source: OffsetAndMetadata | OffsetMgrError | None,
    target: Offset | OffsetMgrError,
    log: LogRange | MissingTopic | OffsetMgrError | None,
    options: PlanOptions,
    writer: LastWriter | None = None,
) -> PlanStep:
    """Returns the step of one partition.

    ``source`` is the source's commit, without the fields that the target cannot hold; None if only the target has a
    commit. ``log`` is the log range in the cluster; None if there is no cluster to check against. ``writer`` is the
    last writer, if both stores hold different offsets. If ``source`` or ``target`` is an error, the step is a refusal.
    """
    current = target.value() if isinstance(target, Committed) else None
    for side, found in (("target", target), ("source", source), ("log", log)):
        if isinstance(found, OffsetMgrError):
            held = None if isinstance(source, OffsetMgrError) else source
            return PlanStep(tp, Action.REFUSE_UNREADABLE, held, current, None, Advice("{}: {}", side, found.text))
    assert not isinstance(source, OffsetMgrError)
    assert not isinstance(log, OffsetMgrError)
    if source is None:
        return PlanStep(tp, Action.TARGET_ONLY, None, current, current)
    if isinstance(log, MissingTopic):
        action = Action.REFUSE_TOPIC_MISSING if log is MissingTopic.TOPIC else Action.REFUSE_PARTITION_MISSING
        return PlanStep(tp, action, source, current, None, log.value)
    note, planned = "", source
    if options.shift:
        planned = OffsetAndMetadata(source.offset + options.shift)
        note = f"shifted from {source.offset} to {planned.offset}"
        if planned.offset < 0:
            return PlanStep(tp, Action.REFUSE_OUT_OF_RANGE, source, current, None, f"{note}, which is no offset")
    may_keep = options.if_ahead in (None, AheadPolicy.KEEP) and current is not None and current.offset > planned.offset
    if log is not None and not log.start <= planned.offset <= log.end and not may_keep:
        if not options.clamp:
            return PlanStep(tp, Action.REFUSE_OUT_OF_RANGE, source, current, None, clamp_text(planned.offset, log))
        clamped, edge = _clamped(planned.offset, log)
        note = f"clamped from {planned.offset} to {clamped} ({edge})"
        planned = OffsetAndMetadata(clamped)
    copy = PlanStep(tp, Action.COPY, source, current, planned, note)
    if current is None:
        return _with_dropped_metadata(copy)
    if current.offset == planned.offset:
        lost = "" if planned.metadata == current.metadata else planned.metadata
        return PlanStep(tp, Action.SKIP_EQUAL, source, current, current, with_drop(note, lost))
    return _against_target(copy, options, writer)


def clamp_text(offset: int, log: LogRange) -> str:
    """Returns, as text, the log's range and the offset that clamping would give."""
    clamped, edge = _clamped(offset, log)
    return f"log holds {log.start} to {log.end}; clamping would give {clamped} ({edge})"


def _clamped(offset: int, log: LogRange) -> tuple[int, str]:
    clamped = min(max(offset, log.start), log.end)
    return clamped, "the log start" if clamped == log.start else "the log end"


def _with_dropped_metadata(step: PlanStep) -> PlanStep:
    """Returns the step of a write with the metadata that it drops in its note."""
    if step.source is None or step.after is None or step.after.metadata:
        return step
    held = "" if step.target is None or step.target.offset == step.after.offset else step.target.metadata
    return step._replace(note=with_drop(step.note, step.source.metadata or held))


def _against_target(copy: PlanStep, options: PlanOptions, writer: LastWriter | None) -> PlanStep:
    """Returns the step for two different offsets. ``copy`` is the step that writes the source's offset."""
    assert copy.target is not None
    assert copy.after is not None
    held, planned, word = copy.target.offset, copy.after.offset, options.if_ahead
    newer = writer is not None and writer.is_offset(held)
    why = "nothing shows which store was written last" if writer is None else writer.why
    if held < planned and (not newer or word is AheadPolicy.REWIND):
        return _with_dropped_metadata(copy)
    if held < planned:
        refusal = Advice("would write {} ({}); {if_ahead=rewind} writes it all the same", skip_text(planned, held), why)
        return copy._replace(action=Action.REFUSE_NEWER, after=None, note=refusal)
    if word is AheadPolicy.REWIND:
        note = copy.note or f"moves back by {held - planned}"
        return _with_dropped_metadata(copy._replace(action=Action.REWIND, note=note))
    if word is AheadPolicy.KEEP or (word is None and newer):
        ahead = f"target is ahead by {held - planned}"
        note = Advice("{}, kept by {if_ahead=keep}", ahead) if word else f"{ahead}: {why}"
        return copy._replace(action=Action.KEEP_NEWER, after=copy.target, note=note, proven=True)
    text = "keeps {} ({}); {if_ahead=keep} accepts it, {if_ahead=rewind} writes {}"
    refusal = Advice(text, skip_text(held, planned), why, planned)
    return copy._replace(action=Action.REFUSE_REWIND, after=None, note=refusal)


# The plan file: valid JSON, with one group on each line and a hash at the end. The line layout allows plans of a
# million offsets to be written and read as a stream:: {"offsetmgr_plan": 3, "header": {...}, "groups": [ {...}, {...}
# ], "summary": {...}, "sha256": "..."} The hash covers every byte in front of it. If a plan file was edited,
# truncated or reformatted, the hash does not match and the file is rejected. Texts are stored as the command line words
# them.

_OPTIONAL = ("guard_note", "old_members", "members", "state", "error", "note", "source_members", "wave", "owner")
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
    return text + (f',"note":{json.dumps(for_command_line(note), ensure_ascii=False)}}}' if whole and note else "}")


@lru_cache(maxsize=10_000)  # groups share positions
def _encode_origin(origin: PlanSource) -> str:
    encoded = {**origin._asdict(), "partition": BrokerPartition.to_json(origin.partition)}
    if origin.topic is None:
        encoded = {name: encoded[name] for name in ("partition", "how", "evidence")}
    return json.dumps(encoded, ensure_ascii=False, separators=(",", ":"))


def _decode_origin(found: Mapping[str, Any]) -> PlanSource:
    numbers = {"partition": BrokerPartition.from_json(found["partition"]), "evidence": Confidence(found["evidence"])}
    return PlanSource(**{**found, **numbers})


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
        origin = _decode_origin(found)
    action, proven = _ACTIONS[encoded["action"]], get("proven", False)
    return new(PlanStep, (tp, action, source_offset, target_offset, expected, note, origin, proven))


def encode_group(plan: GroupPlan) -> bytes:
    encoded: dict[str, Any] = {"group": plan.name, "target_group": plan.target_group, "guard": plan.guard.value}
    found = ((name, getattr(plan, name)) for name in _OPTIONAL)
    encoded |= {name: for_command_line(value) if name == "error" else value for name, value in found if value}
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
    optional = _with_tuples({name: encoded[name] for name in _OPTIONAL if name in encoded})
    return GroupPlan(encoded["group"], encoded["target_group"], steps, Guard(encoded["guard"]), **optional)


_PLAIN = ("plan_id", "created_at", "cluster_id", "retention_ms", "tool")
"""The fields of `PlanHeader` that a plan file contains as they are."""


def encode_header(header: PlanHeader) -> dict[str, Any]:
    options = header.options
    encoded: dict[str, Any] = {
        **{name: getattr(header, name) for name in (*_PLAIN, "expires_at")},
        "source": asdict(header.source),
        "target": asdict(header.target),
        "options": {
            "if_ahead": (options.if_ahead or AheadPolicy.REFUSE).value,
            "if_ahead_given": options.if_ahead is not None,
            "clamp": options.clamp,
            **options.selection.encoded(),
            **options.group_selection.encoded(),
            "rename": dict(options.rename),
            "onto_existing": options.onto_existing,
            **({"shift": options.shift} if options.shift else {}),
        },
    }
    if (found := header.compared) is not None:
        encoded["logs"] = {"relation": found.relation.value, "how": found.how, "recreation": header.recreation}
        if header.translate is not None:
            encoded["logs"]["translate"] = "auto" if header.rules else header.translate
        if header.rules is not None:
            encoded["logs"]["rules"] = header.rules._asdict()
    optional = {
        "weaknesses": list(header.weaknesses),
        "clock": header.clock and header.clock._asdict(),
        "partition_map": header.partition_map and asdict(header.partition_map),
    }
    return encoded | {name: value for name, value in optional.items() if value}


def _with_tuples(encoded: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON object with tuples instead of lists, as the fields of values are."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in encoded.items()}


def decode_header(encoded: Mapping[str, Any], version: int) -> PlanHeader:
    options = encoded["options"]
    logs, clock, used_map = (encoded.get(name) for name in ("logs", "clock", "partition_map"))
    policy: AheadPolicy | None = AheadPolicy(options["if_ahead"])
    if not options.get("if_ahead_given", policy is not AheadPolicy.KEEP):
        policy = None  # release 0.1 stored ``keep`` with and without the caller's word
    found: dict[str, Any] = {name: encoded[name] for name in _PLAIN}
    if logs is not None:
        relation = Relation(logs["relation"])  # a plan of unknown clusters has the caller's word, if it needs one
        is_accepted = relation is Relation.UNKNOWN and "translate" in logs
        found |= {"compared": OriginComparison(relation, logs["how"], is_accepted), "recreation": logs["recreation"]}
        if "rules" in logs:
            found["translate"] = TranslationRules(**_with_tuples(logs["rules"]))
        elif "translate" in logs:
            found["translate"] = OffsetTranslation(logs["translate"])
    return PlanHeader(
        source=StoreEndpoint(**encoded["source"]),
        target=StoreEndpoint(**encoded["target"]),
        options=PlanOptions(
            policy,
            options["clamp"],
            TopicSelection.decoded(options),
            GroupSelection.decoded(options),
            dict(options["rename"]),
            options["onto_existing"],
            options.get("shift", 0),
        ),
        partition_map=used_map and MapOrigin(**used_map),
        weaknesses=tuple(encoded.get("weaknesses", ())),
        clock=clock and ClockDifference(**clock),
        version=version,
        **found,
    )


VERSIONS = (PLAN_VERSION, PLAN_VERSION_KAFKA_0_7, PLAN_VERSION_SHIFTED, PLAN_VERSION_TRANSLATED)
"""The readable versions."""
_HEAD = b'{"offsetmgr_plan": '
_GROUPS = b'"groups": [\n'
_GROUPS_END = b"],\n"
_HASH = b', "sha256": "'


_COUNTS = ("groups", "failed_groups", "active_groups", "unlocked_groups", "left_out_groups")


@dataclass(slots=True)
class PlanSummary:
    """Counts of a plan, collected while the plan is written: its groups, its steps by action, and its groups with an
    error or with members."""

    groups: int = 0
    failed_groups: int = 0
    active_groups: int = 0
    unlocked_groups: int = 0
    left_out_groups: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    """The number of steps that drop metadata, by the form of the metadata."""
    topic_ids: dict[str, str] = field(default_factory=dict)
    """The id that each written topic had in the target when the plan was made; "" if the target has no topic ids."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """The number of translated positions by verdict; "" counts those without one."""
    unsure: int = 0
    """The number of planned writes at places that are not sure, which the user accepted."""
    repeats: int = 0
    """The number of records that the groups repeat at most there."""
    skips: int = 0
    """The number of records that the groups do not get there, because the target lacks them."""
    running: int = 0
    """The number of groups that still run in the source, which is another cluster."""
    source_topic_ids: dict[str, str] = field(default_factory=dict)
    """Like ``topic_ids``, for the translated topics of the source."""
    digests: dict[str, str] = field(default_factory=dict)
    """The hash of the records that were read of each partition of the source and of its copy."""

    def add(self, plan: GroupPlan) -> None:
        """Adds the plan of one group to the counts."""
        self.groups += 1
        self.failed_groups += bool(plan.error)
        self.active_groups += bool(plan.members)
        self.left_out_groups += plan.note.startswith(LEFT_OUT)
        self.unlocked_groups += plan.guard is Guard.COMPARE and bool(plan.writes())
        self.running += bool(plan.source_members)
        self.actions.update([step.action for step in plan.steps])
        for step in plan.writes():
            self.topic_ids.setdefault(step.tp.topic, "")
            if step.is_translated and step.origin is not None:
                self.unsure += step.origin.evidence is not Confidence.SEEN
                self.repeats += step.origin.repeats or 0
                self.skips += step.origin.skips or 0
        for step in plan.steps:
            if step.origin is not None and step.origin.topic is not None:
                self.verdicts[step.origin.verdict] += 1
                self.topic_ids.setdefault(step.tp.topic, "")
                self.source_topic_ids.setdefault(step.origin.topic, "")
        noted = (step.note for step in plan.steps if step.note and not step.action.rejects)
        self.dropped.update(form for note in noted if (form := dropped_form(note)))

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

    @property
    def digest(self) -> str:
        """A hash of everything that was read for the translation."""
        return hashlib.sha256(json.dumps(sorted(self.digests.items())).encode()).hexdigest()

    def encode(self) -> dict[str, Any]:
        """Returns the JSON object in which the plan file stores the summary."""
        names = ("verdicts", "unsure", "repeats", "skips", "running", "source_topic_ids", "digests")
        translated = {name: found for name in names if (found := getattr(self, name))}
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "actions": dict(sorted(self.actions.items())),
            "topic_ids": self.topic_ids,
            **({"dropped_metadata": dict(sorted(self.dropped.items()))} if self.dropped else {}),
            **({"translated": translated} if translated else {}),
        }

    @classmethod
    def decode(cls, encoded: Mapping[str, Any]) -> PlanSummary:
        """Returns the summary for a JSON object that `encode` returned."""
        counts: dict[str, Any] = {name: encoded.get(name, 0) for name in _COUNTS}
        actions, dropped = Counter(encoded["actions"]), Counter(encoded.get("dropped_metadata", {}))
        translated = dict(encoded.get("translated", {}))
        translated["verdicts"] = Counter(translated.get("verdicts", {}))
        ids = encoded.get("topic_ids", {})
        return cls(**counts, actions=actions, dropped=dropped, topic_ids=ids, **translated)


def summary_of(plan: PlanFile, only: GroupScope | None) -> PlanSummary:
    """Returns the counts of the groups in ``only``; of the whole plan if it is None."""
    if only is None:
        return plan.summary
    summary = PlanSummary()
    for group in plan.groups_of(only):
        summary.add(group)
    return summary


def select_groups(groups: GroupSelection, waves: Iterable[int], *plans: PlanFile) -> GroupScope | None:
    """Returns the selected groups of the plans, with ``waves`` only those that are in one of them; None if the
    selection has all groups.

    Raises `GroupNotFound` as `GroupSelection.within` or if none of the selected groups is in the waves, and
    `UsageError` if none of the plans has a wave.
    """
    waves = set(waves)
    if groups.everything and not waves:
        return None
    known = [(group.name, group.wave) for plan in plans for group in plan.groups()]
    hint = Advice("see: {}", Invocation("migrate status", (str(plans[0].path),)))
    where, numbers = f"plan {', '.join(str(plan.path) for plan in plans)}", {wave for _, wave in known} - {None}
    if missing := sorted(waves - numbers):
        found = f"such wave (its waves: {', '.join(map(str, sorted(filter(None, numbers))))})" if numbers else "waves"
        raise UsageError(Advice("{wave} {}", missing[0]), f"{where} has no {found}", hint)
    of_waves = (name for name, wave in known if not waves or wave in waves)
    chosen = frozenset(of_waves).intersection(groups.within((name for name, _ in known), where, hint=hint))
    if chosen:
        return chosen
    if groups.patterns is None:
        raise GroupNotFound(Advice("{wave}"), "every group of these waves is excluded")
    raise GroupNotFound(Advice("{group} with {wave}"), "no group of this name is in this wave", "leave out one of them")


def write_plan(
    path: Path,
    header: PlanHeader,
    groups: Iterable[GroupPlan],
    complete: Callable[[PlanSummary], object] = lambda _summary: None,
) -> tuple[PlanSummary, str]:
    """Writes a plan as a stream to a temporary file, then creates the plan file atomically. Returns the summary and the
    hash of the plan.

    ``complete`` adds to the summary what the groups do not tell (`Planner.complete`). Raises `PlanError` if the file
    exists (a plan is never overwritten) or cannot be written.
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
        complete(summary)
        put((b"\n" if summary.groups else b"") + _GROUPS_END)
        put(b'"summary": ' + json.dumps(summary.encode()).encode())
        out.write(_HASH + digest.hexdigest().encode() + b'"}\n')

    try:
        write_atomically(path, write, overwrite=False)
    except OffsetMgrError:  # of the servers that the plan is read from
        raise
    except FileExistsError as error:
        why = "this file exists, and a plan is never overwritten"
        raise PlanError(f"plan {path}", why, "choose another name") from error
    except OSError as error:
        hint = "name another file, in a directory that can be written"
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            hint = "free disk space, then run the same command again"
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
        return (group for group in self.groups() if only is None or group.name in only)

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


# Describes plans in lines of text, for the commands of a migration.

_MEANING: Final[Mapping[str, str | Advice]] = {
    Action.COPY: "will be written",
    Action.REWIND: "will be moved BACK (a rewind was allowed)",
    Action.SKIP_EQUAL: "are equal already",
    Action.KEEP_NEWER: Advice("stay: the target is ahead, and newer or kept by {if_ahead}"),
    Action.TARGET_ONLY: "stay: only the target has a commit",
    Action.REFUSE_REWIND: "refused: the target is ahead, and is not known to be newer",
    Action.REFUSE_NEWER: "refused: the target was written last",
    Action.REFUSE_TOPIC_MISSING: "refused: the topic does not exist in Kafka",
    Action.REFUSE_PARTITION_MISSING: "refused: the partition does not exist in Kafka",
    Action.REFUSE_OUT_OF_RANGE: "refused: outside the log",
    Action.REFUSE_BYTE_POSITION: "refused: is a byte position of Kafka 0.7, not an offset",
    Action.REFUSE_UNSUPPORTED_TARGET: "refused: is an offset, but the target holds byte positions of Kafka 0.7",
    Action.REFUSE_UNTRANSLATED: "refused: cannot be translated for the target's cluster; the note has the reason",
    Action.REFUSE_UNSURE: Advice(
        "refused: the place of the record is not copied yet, or not sure; then migrate plan with {accept} takes the"
        " earliest, if any"
    ),
    Action.REFUSE_UNREADABLE: "refused: one side could not be read; fix the cause and create a new plan, or exclude it",
    Action.REFUSE_RECREATED: "refused: the topic was recreated after the commit",
    Action.REFUSE_LOST: "refused: the offset was copied, and was deleted or has expired since",
}


def scope_line(plan: PlanFile, scope: PlanSummary, waves: Sequence[int] = ()) -> str:
    """Returns the cluster, the two stores, and the groups and partitions of a step. ``scope`` has the counts of its
    groups, which are in ``waves`` (default: in any wave)."""
    header, total = plan.header, plan.summary.groups
    cluster = header.cluster_id or (header.source if header.target.kind == "file" else header.target).id
    groups = count_of(scope.groups, "group")
    if scope.groups != total:
        groups = f"{scope.groups:,} of the plan's {count_of(total, 'group')}"
    where = f"in wave {list_of(waves, SHOWN)}: " if waves else ""
    partitions = count_of(scope.actions.total(), "partition")
    return f"cluster {cluster}: {header.source.uri} -> {header.target.uri}: {where}{groups}, {partitions}"


def comparison_lines(header: PlanHeader) -> Iterator[str]:
    """Yields how the two stores' logs compare, and the guarantees that the target does not fully give."""
    if header.compared is not None:
        yield Advice("cluster {}", header.compared.text(header.translate))
        yield f"topics  recreated after the commit: {header.recreation}"
    yield from (f"warning {weakness}" for weakness in header.weaknesses)


def expiry_line(header: PlanHeader, at_ms: int, clock: ClockDifference | None) -> str:
    """Returns when offsets expire that are written at ``at_ms``, a time of this machine, by the brokers' clock.
    ``clock`` is the difference of the two clocks."""
    unless = "a consumer commits them again" if expire_in_use(header) else "a consumer joins the group"
    after = "(offsets.retention.minutes after the copy)"
    return f"expiry  offsets copied now expire about {expiry_text(header, at_ms, clock)} {after}, unless {unless}"


def expire_in_use(header: PlanHeader) -> bool:
    """Returns whether the offsets of a group with members expire, too."""
    return any(KEEPS_ACTIVE_OFFSETS in weakness for weakness in header.weaknesses)


def expiry_text(header: PlanHeader, at_ms: int, clock: ClockDifference | None) -> str:
    """Returns the expiry of offsets that are written at ``at_ms``, a time of this machine, and names the clock unless
    the clocks of this machine and of the brokers agree."""
    retention_ms = header.retention_ms or 0
    if clock is None or not (clock.agrees or clock.exceeds()):
        return f"{time_text(at_ms + retention_ms)} by this machine's clock"
    expires = time_text(at_ms + clock.correction_ms + retention_ms)
    return f"{expires} by the brokers' clock" if clock.exceeds() else expires


def count_lines(summary: PlanSummary) -> Iterator[str]:
    """Yields the number of partitions of each action, and of the groups that are special."""
    for action, count in sorted(summary.actions.items(), key=lambda item: list(_MEANING).index(item[0])):
        yield Advice("{} {}", f"  {count:>8} {action:<26}", _MEANING[action])
    counts: list[tuple[int, str]] = [
        (summary.failed_groups, "not planned: the whole group is refused; nothing of it will be written"),
        (summary.left_out_groups, "left out: the group was never copied, so there is nothing to copy back"),
        (
            summary.active_groups,
            Advice(
                "active: the group has members in Kafka; apply refuses it, or waits for it with"
                " {wait_empty_s:wait_empty} SECONDS"
            ),
        ),
        (summary.running, f"still running in the source: {STILL_RUNNING}"),
        (
            summary.unlocked_groups,
            "not atomic: old consumers of the group are registered in ZooKeeper, and a group lock would break their"
            " commits; they read the larger of both stores once dual commit is on",
        ),
    ]
    yield from (Advice("{} {}", f"  {count:>8}", text) for count, text in counts if count)
