"""The values of a migration plan, and the decision about one partition. Pure.

A plan does not change after it was made. `apply` writes only offsets that are in the plan, and writes a partition only
if the target's offset has not changed since the plan was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.ahead_policy import AheadPolicy
from offsetmgr.core.clock import ClockDifference
from offsetmgr.core.commit_metadata import with_drop
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.log_origin import OffsetTranslation, OriginComparison
from offsetmgr.core.model import Committed, LogRange, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Guard
from offsetmgr.core.phase import Confidence
from offsetmgr.core.selection import GroupSelection, TopicSelection
from offsetmgr.groups.last_writes import LastWriter, skip_text
from offsetmgr.migration.partition_map import MapOrigin

PLAN_VERSION: Final = 3
PLAN_VERSION_KAFKA_0_7: Final = 4
"""The version of a plan with partitions of Kafka 0.7. A reader that supports only `PLAN_VERSION` would misread these
partitions."""
PLAN_VERSION_SHIFTED: Final = 5
"""The version of a plan with `PlanOptions.shift`. An older reader would compare both sides without it."""


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
    """The origin of an offset that was derived from a byte position of Kafka 0.7: the partition in the source, the
    derivation as text, and its confidence (data rule "verdicts carry evidence")."""

    partition: int
    how: str
    evidence: Confidence = Confidence.INFERRED


class PlanStep(NamedTuple):
    """The step of one partition in a plan; ``tp`` is the target's partition.

    ``source`` and ``target`` are the offsets of the two stores when the plan was made; None if there is no commit or if
    the offset is unreadable. ``after`` is the offset that the target holds after apply; None if the step is refused. If
    ``origin`` is set, ``source`` is a byte position in another partition (`source_tp`). This byte position can be
    compared only with a byte position that is read from the source later, not with offsets in the target. ``proven``
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
        return self.tp if self.origin is None else TopicPartition(self.tp.topic, self.origin.partition)

    @property
    def may_be_stale(self) -> bool:
        """Whether the target's offset is ahead and may be stale. A refresh leaves it out: it would look newer then."""
        return self.action is Action.REFUSE_REWIND or (self.action is Action.KEEP_NEWER and not self.proven)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options with which a plan is made.

    ``groups`` are names and globs of groups, or a `GroupSelection`; None means all groups. ``exclude_groups`` are names
    and globs of groups that are left out. ``topics`` have the form of ``--topic`` (``t``, ``a*``, ``t:0,1,4-7``); empty
    means all topics. ``rename`` maps a group to its name in the target. ``if_ahead`` is the caller's word for a
    partition whose target is ahead of the source. If it is None, the plan keeps the target's offset if evidence shows
    that the target was written last, and otherwise refuses the partition.
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
    topics: tuple[str, ...] = ()
    groups: GroupSelection | tuple[str, ...] | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    onto_existing: bool = False
    shift: int = 0
    exclude_groups: tuple[str, ...] = ()
    selection: TopicSelection = field(init=False, repr=False, compare=False)
    """The parsed ``topics``. Invalid text raises `UsageError` when the options are created."""
    group_selection: GroupSelection = field(init=False, repr=False, compare=False)
    """The parsed ``groups`` and ``exclude_groups``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "topics", _as_tuple(self.topics))
        groups = GroupSelection.of(self.groups)
        groups = GroupSelection(groups.patterns, exclude=(*groups.excluded, *_as_tuple(self.exclude_groups)))
        object.__setattr__(self, "group_selection", groups)
        object.__setattr__(self, "groups", groups.patterns)
        object.__setattr__(self, "exclude_groups", groups.excluded)
        object.__setattr__(self, "selection", TopicSelection.parse(self.topics))

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
        groups = self.group_selection.literal_first(set(existing))
        return replace(self, groups=groups, exclude_groups=())

    def selects_group(self, group: str) -> bool:
        """Returns whether the plan includes this group of the source (see ``groups``)."""
        return self.group_selection.matches(group)

    def selects(self, tp: TopicPartition) -> bool:
        """Returns whether the plan includes this partition (see ``topics``)."""
        return self.selection.matches(tp)

    def target_group(self, group: str) -> str:
        """Returns the name of the group in the target (see ``rename``)."""
        return self.rename.get(group, group)


def _as_tuple(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns the texts. A caller may pass one text instead of a tuple."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


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
    live members in ZooKeeper's registry, and ``members`` are the members that the Kafka coordinator reported. If the
    whole group could not be planned, ``error`` is the reason and ``steps`` is empty. ``note`` is the reason why nothing
    is planned for a group that the user named, or names data of the source that is not copied.
    """

    group: str
    target_group: str
    steps: tuple[PlanStep, ...]
    guard: Guard = Guard.LOCK
    guard_note: str = ""
    old_members: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    state: str = ""
    error: str = ""
    note: str = ""
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
    translate: OffsetTranslation | None = None
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
    if isinstance(target, OffsetMgrError):
        planned = None if isinstance(source, OffsetMgrError) else source
        return PlanStep(tp, Action.REFUSE_UNREADABLE, planned, None, None, f"target: {target}")
    if isinstance(source, OffsetMgrError):
        return PlanStep(tp, Action.REFUSE_UNREADABLE, None, current, None, f"source: {source}")
    if source is None:
        return PlanStep(tp, Action.TARGET_ONLY, None, current, current)
    if isinstance(log, OffsetMgrError):
        return PlanStep(tp, Action.REFUSE_UNREADABLE, source, current, None, f"log: {log}")
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
    if held < planned:
        if not newer or word is AheadPolicy.REWIND:
            return _with_dropped_metadata(copy)
        note = f"would write {skip_text(planned, held)} ({why}); --if-ahead rewind writes it all the same"
        return copy._replace(action=Action.REFUSE_NEWER, after=None, note=note)
    if word is AheadPolicy.REWIND:
        note = copy.note or f"moves back by {held - planned}"
        return _with_dropped_metadata(copy._replace(action=Action.REWIND, note=note))
    if word is AheadPolicy.KEEP or (word is None and newer):
        note = f"target is ahead by {held - planned}" + (", kept by --if-ahead keep" if word else f": {why}")
        return copy._replace(action=Action.KEEP_NEWER, after=copy.target, note=note, proven=True)
    accept = f"--if-ahead keep accepts it, --if-ahead rewind writes {planned}"
    note = f"keeps {skip_text(held, planned)} ({why}); {accept}"
    return copy._replace(action=Action.REFUSE_REWIND, after=None, note=note)
