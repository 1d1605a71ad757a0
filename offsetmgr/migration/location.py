"""Where groups are, how sure that is, and what to do next: the phase with its evidence, the lag, the state of each
group of a plan, and the next step.

Pure. `group_locator` reads the stores, and a plan only adds what its journal records. A store that could not be read,
or that the settings do not name, never counts as a store without offsets: the phase is then unknown, and the evidence
names the store.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.core import TITLES
from offsetmgr.core.advice import Advice, Argument, Invocation, option
from offsetmgr.core.commit_mode import Confidence, Phase, PhaseEvidence
from offsetmgr.core.document import moment
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError
from offsetmgr.core.model import (
    ABSENT,
    BrokerPartition,
    Committed,
    GroupMember,
    LogRange,
    TopicPartition,
)
from offsetmgr.core.offset_store import UnrecognisedData
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import literal_pattern
from offsetmgr.groups.lag import BELOW_START, NO_START, START_OFFSET, lag_of, state_of
from offsetmgr.groups.last_writes import LastWriter
from offsetmgr.migration.observation import OffsetReadResult, at
from offsetmgr.migration.plan import GroupPlan, GroupScope, PlanFile
from offsetmgr.migration.progress import GroupProgress, MigrationState, Stage

if TYPE_CHECKING:
    from offsetmgr.kafka.client.share_groups import ShareOffsets
    from offsetmgr.migration.bounce_checkpoint import OpenBounce

RESTART_VARIABLE: Final = "$RESTART"
"""The restart command of the members in a next command. The operator defines the variable, as in a runbook."""
EXAMPLE_RESTART: Final = "ssh {host} sudo restart-consumer {member} {settings}"
_RESTART_NOTE: Final = f"{RESTART_VARIABLE} is the command that restarts one member, as in: RESTART='{EXAMPLE_RESTART}'"


@dataclass(frozen=True, slots=True)
class StoreSample:
    """The offsets and members of one group in one configured store. ``name`` is the kind of the store.

    If ``error`` is set, the offsets are unknown; if ``members_error`` is set, the members are unknown.
    """

    name: str
    uri: str
    offsets: Mapping[TopicPartition, OffsetReadResult] = field(default_factory=dict)
    members: tuple[GroupMember, ...] = ()
    error: OffsetMgrError | None = None
    members_error: OffsetMgrError | None = None
    unrecognised: tuple[UnrecognisedData, ...] = ()
    """The data of the group that offsetmgr does not understand, if it holds no offsets."""
    unregistered: str = ""
    """The reason why a ZooKeeper does not show the members that commit to it."""
    share: ShareOffsets | None = None
    """The start offsets of a share group, which has no committed offsets."""

    @property
    def title(self) -> str:
        """The name of the store in messages."""
        return TITLES[self.name]

    def of(self, tp: TopicPartition) -> OffsetReadResult:
        """Returns the read result of one partition. All commits of the group were read, so a partition that was not
        found has no commit."""
        return self.error if self.error is not None else self.offsets.get(tp, ABSENT)

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """The partitions with a commit, or with the start offset of a share group."""
        return self.offsets if self.share is None else self.share.offsets

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """The committed offsets that could be read."""
        return {tp: found.offset for tp, found in self.offsets.items() if isinstance(found, Committed)}

    @property
    def may_have_group(self) -> bool:
        """Whether the store has offsets or members of the group, or could not be read."""
        return bool(self.offsets or self.members or self.error or self.members_error or self.share)

    @property
    def problem(self) -> OffsetMgrError | None:
        """The error of the store, or of the first partition that could not be read; None if all offsets are known."""
        return self.error or next((e for e in self.offsets.values() if isinstance(e, OffsetMgrError)), None)

    @property
    def members_text(self) -> str:
        """The number of members, as text; empty if there are none."""
        if self.members_error is not None:
            return f"{self.name} unknown"
        return f"{self.name} {len(self.members)}" if self.members else ""


SideKinds: TypeAlias = tuple[str | None, str | None]
"""The kinds of the source and of the target of a plan; None for a store that the settings do not name."""


@dataclass(frozen=True, slots=True)
class MigratedGroup:
    """The migration of a group by a plan: its stage, and the kinds of the source and the target. A kind is
    None if the settings do not name this store."""

    path: str
    group: str
    """The name of the group in the plan and in the source."""
    target_group: str
    stage: Stage
    source: str | None
    target: str | None
    source_uri: str
    target_uri: str
    finalized_at: int | None = None
    source_deleted: bool = False
    expires_at: int | None = None
    """The time at which the copied offsets expire if no consumer commits them again; None if it is unknown."""
    bounce: OpenBounce | None = None
    """The bounce of the members that has begun and is not finished."""


def migrated_group(
    plan: PlanFile, state: MigrationState, group: GroupPlan, sides: SideKinds, bounce: OpenBounce | None
) -> MigratedGroup:
    """Returns the migration of a group. ``sides`` are the kinds of the source and the target among the configured
    stores. ``bounce`` is left out if the journal has a later phase or the end of the group."""
    note = state.phases.get(group.name)
    later = (note and note.at, state.group_finalized_at(group.name))
    if bounce is not None and any(at is not None and at > bounce.at_ms for at in later):
        bounce = None
    finalized_at = state.group_finalized_at(group.name)
    if state.phase_after_end(group.name, plan.header.end) is not None:
        finalized_at = None  # its members were taken back afterwards
    return MigratedGroup(
        str(plan.path),
        group.name,
        group.target_group,
        state.stage_of(group),
        *sides,
        plan.header.source.uri,
        plan.header.target.uri,
        finalized_at,
        source_deleted=group.name in state.delete.done,
        expires_at=plan.header.expiry_of(state.copied_at(group)),
        bounce=bounce,
    )


@dataclass(frozen=True, slots=True)
class GroupSample:
    """One group in all configured stores, read in the order of ``stores``: ZooKeeper, Kafka, manager.

    ``seen`` is the phase that observed commits prove; None without such a proof.
    """

    group: str
    stores: tuple[StoreSample, ...]
    logs: Mapping[TopicPartition, LogRange | OffsetMgrError] = field(default_factory=dict)
    seen: PhaseEvidence | None = None
    plan: MigratedGroup | None = None
    writers: Mapping[TopicPartition, LastWriter] = field(default_factory=dict)
    """The last writers where ZooKeeper and Kafka hold different offsets."""
    named: Mapping[str, StoreSample] = field(default_factory=dict)
    """Each store, by its name, under the name that the group has there. A plan may rename the group."""
    watched: bool = False
    """Whether the commits of the group were watched."""

    def side(self, name: str | None) -> StoreSample | None:
        """Returns the sample of a side of the plan, under the name that the group has there; None if the side is not
        configured."""
        return self.named.get(name or "") or self.store(name or "")

    def store(self, name: str) -> StoreSample | None:
        """Returns the sample of a store (``zookeeper``, ``kafka``, ``manager``); None if it is not configured."""
        return next((store for store in self.stores if store.name == name), None)


@dataclass(frozen=True, slots=True)
class LocatedPartition:
    """One partition of a located group: the read result of each store, by the store's name, and the lag. The lag is
    None if it is unknown; ``note`` gives the reason."""

    partition: TopicPartition
    offsets: Mapping[str, OffsetReadResult]
    log: LogRange | OffsetMgrError | None
    lag: int | None
    note: str = ""

    @property
    def log_end(self) -> int | None:
        """The end of the log; None if it is unknown."""
        return self.log.end if isinstance(self.log, LogRange) else None

    def offset_or_state(self, store: str) -> int | str | None:
        """Returns the offset in a store; the state of the error if it cannot be read, and None without a commit."""
        found = self.offsets.get(store)
        if isinstance(found, Committed):
            return found.offset
        return state_of(found) if isinstance(found, OffsetMgrError) else None


@dataclass(frozen=True, slots=True)
class GroupLocation:
    """The location of one group. ``lag`` is the sum over all partitions; None if the lag of any partition is
    unknown."""

    sample: GroupSample
    evidence: PhaseEvidence
    partitions: tuple[LocatedPartition, ...]

    @property
    def name(self) -> str:
        """The name of the group."""
        return self.sample.group

    @property
    def phase(self) -> Phase:
        """The stores to which the members commit."""
        return self.evidence.phase

    @property
    def confidence(self) -> Confidence:
        """The confidence of the phase."""
        return self.evidence.confidence

    @property
    def why(self) -> str:
        """The evidence for the phase, as text."""
        return self.evidence.why

    @property
    def lag(self) -> int | None:
        """The lag of the group in records; None if the lag of a partition is unknown."""
        lags = [partition.lag for partition in self.partitions]
        return None if None in lags or not lags else sum(lag for lag in lags if lag is not None)

    @property
    def below_start(self) -> int:
        """The number of partitions whose log begins after the offset: records were deleted that the group had not
        consumed."""
        return sum(partition.note == BELOW_START for partition in self.partitions)

    @property
    def next(self) -> NextStep:
        """The next step."""
        return next_step(_situation_of(self))

    @property
    def members_text(self) -> str:
        """The number of members in each store that has some, as text."""
        return ", ".join(text for store in self.sample.stores if (text := store.members_text)) or "0"

    @property
    def expires_ms(self) -> int | None:
        """The time at which the copied offsets expire, in milliseconds since 1970; see `Situation.expires_ms`."""
        return _situation_of(self).expires_ms

    def missing(self, known: Collection[str]) -> OffsetMgrError | None:
        """Returns the error of a group that no store has. ``known`` are the groups that the stores list."""
        stores = self.sample.stores
        if self.name in known or any(store.may_have_group for store in stores):
            return None
        uris = ", ".join(store.uri for store in stores)
        return GroupNotFound(f"group {self.name!r}", f"does not exist in {uris}")


def locate(sample: GroupSample) -> GroupLocation:
    """Returns the location of the group."""
    phase = sample.seen or _moved(sample) or infer_by_offsets(sample)
    valid: str | None = phase.phase
    unread = ""
    if phase.phase is Phase.MOVED and sample.plan is not None:
        valid = sample.plan.target
        if sample.group != sample.plan.target_group:
            unread = f"lag unknown, because the group is {sample.plan.target_group} in {sample.plan.target_uri}"
        if sample.store(valid or "") is None:
            unread = f"lag unknown, because the target {sample.plan.target_uri} was not read"
    every = sorted({tp for store in sample.stores for tp in store.offsets})
    partitions = [_partition(sample, valid, tp, unread) for tp in every]
    return GroupLocation(sample, phase, tuple(partitions) or tuple(_share_partitions(sample)))


# --- the phase ---------------------------------------------------------------------------------------


def unknown_phase(why: str) -> PhaseEvidence:
    """Returns the evidence of a phase that is not known. ``why`` is the reason."""
    return PhaseEvidence(Phase.UNKNOWN, Confidence.UNKNOWN, why)


def _inferred(name: str, why: str) -> PhaseEvidence:
    return PhaseEvidence(Phase(name), Confidence.INFERRED, why)


def _moved(sample: GroupSample) -> PhaseEvidence | None:
    """Returns the phase of a group whose migration is finalized; None for any other group."""
    plan = sample.plan
    if plan is None or plan.finalized_at is None:
        return None
    why = f"{plan.path} moved it from {plan.source_uri} to {plan.target_uri}, finalized {at(plan.finalized_at)}"
    source, target = sample.side(plan.source), sample.side(plan.target)
    if target is None or target.error is not None:
        return PhaseEvidence(Phase.MOVED, Confidence.INFERRED, f"{why}; the target was not read")
    if source is None or source.error is not None:
        return PhaseEvidence(Phase.MOVED, Confidence.INFERRED, f"{why}; the source was not read")
    for store in (source, target):
        if store.problem is not None:
            return unknown_phase(f"{why}, but offsets in {store.title} cannot be read: {store.problem}")
    undecided = ""
    for tp, offset in sorted(source.committed.items()):
        held, writer = target.committed.get(tp, -1), sample.writers.get(tp)
        last = "" if writer is None or writer.store is None else writer.store.title
        if offset == held or last == target.title or (writer is not None and writer.is_unchanged):
            continue
        if offset > held or last == source.title:
            newer = f"is ahead of {target.title} on {tp}" if offset > held else f"was written last on {tp}"
            evidence = "" if writer is None else f" ({writer.why})"
            return unknown_phase(
                f"{why}, but {source.title} {newer}: a client may still commit to the source{evidence}"
            )
        undecided = undecided or f"{why}; whether a client has committed {tp} to {source.title} since is not known"
    if undecided:
        return PhaseEvidence(Phase.MOVED, Confidence.INFERRED, undecided)
    return PhaseEvidence(Phase.MOVED, Confidence.SEEN, f"{why}; {source.title} has no newer offset")


def infer_by_offsets(sample: GroupSample) -> PhaseEvidence:
    """Infers the phase from offsets and members, without an observation of commits."""
    if (sharing := next((store for store in sample.stores if store.share is not None), None)) is not None:
        why = "a share group: the share coordinator keeps its start offsets"
        return PhaseEvidence(Phase(sharing.name), Confidence.SEEN, why)
    for store in sample.stores:
        if store.problem is not None:
            return unknown_phase(f"offsets in {store.title} cannot be read: {store.problem}")
    holding = [store for store in sample.stores if store.committed]
    old, new = _members(sample, ("zookeeper",)), _members(sample, ("kafka", "manager"))
    if old and new:
        why = f"{count_of(len(old), 'old consumer')} in ZooKeeper and {count_of(len(new), 'member')} in Kafka are live"
        return unknown_phase(f"{why}; their commits were not watched")
    if new and (where := _only_members(sample)) is not None:
        registry = sample.store("zookeeper")
        unchecked = "the settings do not name it" if registry is None else registry.unregistered
        return phase_of_members(where.name, len(new), unchecked)
    if not holding:
        return unknown_phase("no configured store has an offset of the group")
    if len(sample.stores) == 1:
        missing = "Kafka" if holding[0].name == "zookeeper" else "ZooKeeper"
        return unknown_phase(f"{_count(holding[0])}; the settings do not name {missing}, so it was not checked")
    if len(holding) == 1:
        empty = " and ".join(store.title for store in sample.stores if store is not holding[0])
        return _inferred(holding[0].name, f"{_count(holding[0])} and none in {empty}")
    return _compare(sample, holding, old)


def phase_of_members(store: str, members: int, unchecked: str = "") -> PhaseEvidence:
    """Returns the phase of a group whose only live members are those of a coordinator. It is seen if ZooKeeper was read
    too, which then has no old consumer. ``unchecked`` is the reason why ZooKeeper does not show this."""
    checked = f"was not checked, because {unchecked}" if unchecked else "has none"
    why = f"{TITLES[store]} has {count_of(members, 'member')} of the group, and members commit to their coordinator"
    known = Confidence.INFERRED if unchecked else Confidence.SEEN
    return PhaseEvidence(Phase(store), known, f"{why}; ZooKeeper {checked}")


def _members(sample: GroupSample, names: tuple[str, ...]) -> list[GroupMember]:
    return [member for store in sample.stores if store.name in names for member in store.members]


def _only_members(sample: GroupSample) -> StoreSample | None:
    """Returns the only store in which members of the group are live; None if there are several such stores or if the
    members in ZooKeeper are unknown."""
    registry = sample.store("zookeeper")
    if registry is not None and registry.members_error is not None:
        return None
    having = [store for store in sample.stores if store.members]
    return having[0] if len(having) == 1 else None


def _count(store: StoreSample) -> str:
    return f"{count_of(len(store.committed), 'offset')} in {store.title}"


def _compare(sample: GroupSample, holding: list[StoreSample], old: list[GroupMember]) -> PhaseEvidence:
    """Infers the phase from the partitions in which the stores hold different offsets: the members commit to the store
    that was written last. ``old`` are the old consumers that are registered in ZooKeeper."""
    every = sorted({tp for store in holding for tp in store.committed})
    differing = [tp for tp in every if len({store.committed.get(tp) for store in holding}) > 1]
    titles = " and ".join(store.title for store in holding)
    if not differing:
        why = f"{titles} hold equal offsets on {count_of(len(every), 'partition')}"
        return unknown_phase(f"{why}: the members commit to both, or the offsets were copied and no commit followed")
    partitions = f"{len(differing)} of {count_of(len(every), 'partition')}"
    written = {tp: _last_writer(sample, holding, tp) for tp in differing}
    if undecided := next((tp for tp, (name, _) in written.items() if name is None), None):
        why = f"{titles} hold different offsets on {partitions}, and nothing shows which was written last"
        return unknown_phase(f"{why}: {undecided}: {written[undecided][1]}")
    names = {name: tp for tp, (name, _) in reversed(written.items()) if name is not None}
    if len(names) > 1:
        named = ", ".join(f"{TITLES[name]} on {tp}" for name, tp in sorted(names.items(), key=lambda item: item[1]))
        return unknown_phase(f"no store was written last everywhere: {named}")
    ((name, first),) = names.items()
    why = f"{TITLES[name]} was written last on {partitions}: {first}: {written[first][1]}"
    registry = sample.store("zookeeper")
    if name == "zookeeper":
        return _inferred(name, f"{why}; a dual member commits to Kafka first")
    if name == "kafka" and old:
        live = count_of(len(old), "old consumer")
        return unknown_phase(
            f"{why}, but {live} may commit to both: a dual member does not write its starting offset again"
        )
    if registry is not None and registry.members_error is not None:
        return unknown_phase(f"{why}, but the old consumers in ZooKeeper could not be read")
    return _inferred(name, f"{why}; no old consumer is registered" if registry is not None else why)


def _last_writer(sample: GroupSample, holding: list[StoreSample], tp: TopicPartition) -> tuple[str | None, str]:
    """Returns the name of the store that was written last, or None, and the evidence."""
    having = [store for store in holding if tp in store.committed]
    if len(having) == 1:
        return having[0].name, f"only {having[0].title} has an offset"
    writer = sample.writers.get(tp)
    if writer is None or {store.name for store in having} != {"zookeeper", "kafka"}:
        return None, "the times of the commits are unknown"
    return next((s.name for s in having if writer.store and s.title == writer.store.title), None), writer.why


# --- the lag -----------------------------------------------------------------------------------------


def _partition(sample: GroupSample, phase: str | None, tp: TopicPartition, unread: str) -> LocatedPartition:
    """Returns the located partition. ``unread`` is the reason for which the store that is valid was not read."""
    offsets = {store.name: store.of(tp) for store in sample.stores}
    log = sample.logs.get(tp)
    lag, note = (None, unread) if unread else _lag(offsets, phase, tp, log)
    return LocatedPartition(tp, offsets, log, lag, note)


def _share_partitions(sample: GroupSample) -> Iterator[LocatedPartition]:
    """Yields the partitions of a share group, with the lag that the broker counts."""
    for store in sample.stores:
        if store.share is None:
            continue
        for tp, found in sorted(store.share.offsets.items()):
            start, note = (ABSENT, NO_START) if found.start is None else (Committed(found.start), START_OFFSET)
            yield LocatedPartition(tp, {store.name: start}, sample.logs.get(tp), found.lag, note)
        for tp, error in sorted(store.share.errors.items()):
            yield LocatedPartition(tp, {store.name: error}, sample.logs.get(tp), None)


def _valid_offsets(
    offsets: Mapping[str, OffsetReadResult], phase: str | None
) -> Iterator[tuple[str, OffsetReadResult]]:
    """Yields the offsets from which the members may start, by the store's name."""
    if phase == Phase.DUAL:
        both = [(name, offsets[name]) for name in ("zookeeper", "kafka") if name in offsets]
        if all(isinstance(found, Committed) for _, found in both):
            yield max(both, key=lambda one: one[1].offset if isinstance(one[1], Committed) else -1)
            return
        yield from both
    elif phase is not None and phase in offsets:
        yield phase, offsets[phase]
    else:
        yield from ((name, found) for name, found in offsets.items() if found != ABSENT)


def _lag(
    offsets: Mapping[str, OffsetReadResult],
    phase: str | None,
    tp: TopicPartition,
    log: LogRange | OffsetMgrError | None,
) -> tuple[int | None, str]:
    """Returns the lag of a partition and a note. The lag is None if it depends on an unknown value."""
    if isinstance(tp.partition, BrokerPartition):
        return None, "a byte position of Kafka 0.7"
    valid = dict(_valid_offsets(offsets, phase))
    if unread := next((name for name, found in valid.items() if isinstance(found, OffsetMgrError)), None):
        return None, f"the offset in {TITLES[unread]} cannot be read"
    if not isinstance(log, LogRange):
        return None, "log unknown" if log is None else f"log unknown: {log.why or log}"
    lags = {name: lag_of(found.offset, log) for name, found in valid.items() if isinstance(found, Committed)}
    if not lags:
        return None, f"nothing committed in {' and '.join(TITLES[name] for name in valid)}"
    if len(set(lags.values())) > 1:
        each = ", ".join(f"{'?' if lag is None else lag} from {TITLES[name]}" for name, lag in lags.items())
        return None, f"lag unknown, because the phase is unknown: {each}"
    lag = next(iter(lags.values()))
    if lag is None:
        return None, "beyond the log's end"
    below = any(isinstance(found, Committed) and found.offset < log.start for found in valid.values())
    return lag, BELOW_START if below else ""


# --- the groups of a plan ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """Evidence about one group from the servers.

    ``evidence`` has the phase of the members; `Phase.UNKNOWN` also if there are no members. ``members`` are the
    registered old consumers and the members in Kafka. ``obstacles`` are the reasons for which a verification of the
    group would fail now. ``verifies`` is whether its partitions would pass this verification. ``is_lost`` is whether
    the target has no offset for some of these partitions.
    """

    evidence: PhaseEvidence
    members: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    verifies: bool = True
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The state of one group. ``since_ms`` is a time in milliseconds since 1970; None if no step is recorded.
    ``blocked_by`` is empty if no obstacle is known. ``expires_ms`` is the time at which the copied offsets expire if no
    consumer commits them again; None if it is unknown, or if the group has consumers in the target."""

    name: str
    target_group: str
    wave: int | None
    owner: str
    state: Stage | Phase
    since_ms: int | None
    known: Confidence
    evidence: str
    blocked_by: str
    next: NextStep
    expires_ms: int | None = None


def group_statuses(
    plan: PlanFile,
    state: MigrationState,
    only: GroupScope | None = None,
    live: Mapping[str, LiveGroup] | None = None,
    bounces: Mapping[str, OpenBounce] | None = None,
) -> list[GroupStatus]:
    """Returns the state of each group, by wave and name. ``live`` is the evidence from the servers, and ``bounces`` are
    the open bounces, by group."""
    statuses = _Statuses(plan, state, bounces or {})
    found = [statuses.status(group, (live or {}).get(group.name)) for group in plan.groups_of(only)]
    return sorted(found, key=lambda one: (one.wave is None, one.wave or 0, one.name))


_ROLLED_BACK = frozenset((Stage.ROLLED_BACK, Stage.ROLLED_BACK_IN_PART))
_CLOSED = frozenset((Stage.FINALIZED, Stage.NOT_PLANNED)) | _ROLLED_BACK


@dataclass(frozen=True)
class _Statuses:
    """The way of the plan's groups from the first state to the last. Between ZooKeeper and Kafka, members are restarted
    twice: from the phase ``start`` to dual, and from dual to the phase ``end``."""

    plan: PlanFile
    state: MigrationState
    bounces: Mapping[str, OpenBounce]

    @property
    def end(self) -> Phase:
        return Phase.of(self.plan.header.end)

    @property
    def start(self) -> Phase:
        return Phase.KAFKA if self.end is Phase.ZOOKEEPER else Phase.ZOOKEEPER

    def status(self, group: GroupPlan, live: LiveGroup | None) -> GroupStatus:
        phases = (self.start, self.end)
        plan = migrated_group(self.plan, self.state, group, phases, self.bounces.get(group.name))
        word, since, evidence = self._recorded(group, plan.bounce)
        known = Confidence.RECORDED
        left_end = word is Stage.FINALIZED and live is not None and _has_left(live, self.end)
        if live is not None and (word not in _CLOSED or left_end):
            evidence, known = live.evidence.why, live.evidence.confidence
            in_end = live.evidence.phase is Phase.UNKNOWN and left_end  # members are in different phases
            seen = self.end if in_end else self._visible(self.end if left_end else word, live.evidence.phase)
            since = since if seen is word else None  # the journal does not record the time of this change
            word = seen
        blocked = "; ".join(dict.fromkeys(self._obstacles(group, word, live, plan.bounce)))
        names, now = (group.name, group.target_group, group.wave, group.owner), self._now(group, plan, word, live)
        return GroupStatus(*names, word, since, known, evidence, blocked, next_step(now), now.expires_ms)

    def _recorded(self, group: GroupPlan, bounce: OpenBounce | None) -> tuple[Stage | Phase, int | None, str]:
        """Returns the state that the plan and the journal record, its time and its evidence."""
        name, state = group.name, self.state
        stage, note = state.stage_of(group), state.phases.get(name)
        if stage in _ROLLED_BACK:
            return stage, state.undo.at.get(name, state.last_at), ""
        if stage is Stage.FINALIZED:
            if (later := state.phase_after_end(name, self.plan.header.end)) is not None and later.phase is not None:
                return Phase.of(later.phase), later.at, later.text
            if bounce is not None and bounce.state is not None:
                return Phase.of(bounce.state.change.start), bounce.at_ms, bounce.text
            removed = "the source's offsets were deleted" if name in state.delete.done else ""
            return stage, state.group_finalized_at(name), removed
        if stage is not Stage.NOT_PLANNED and note is not None and note.phase is not None:
            return Phase.of(note.phase), note.at, note.text
        if stage is Stage.APPLIED and name not in state.apply.done:
            stage = Stage.PLANNED  # it has nothing to write, and no run of apply concerned it
        was_applied = stage in (Stage.APPLIED, Stage.APPLIED_IN_PART)
        return stage, state.apply.at.get(name) if was_applied else self.plan.header.created_at, ""

    def _visible(self, recorded: Stage | Phase, phase: Phase) -> Stage | Phase:
        """Returns the state for the phase in which the members were observed. Members in the first phase, which have
        not been restarted yet, do not change the states before it."""
        is_before = phase is self.start and isinstance(recorded, Stage)
        return recorded if phase is Phase.UNKNOWN or is_before else phase

    def _obstacles(
        self, group: GroupPlan, word: Stage | Phase, live: LiveGroup | None, bounce: OpenBounce | None
    ) -> Iterator[str]:
        if word is Stage.NOT_PLANNED:
            yield group.error
        if self._was_undo_last(group.name) and (
            failures := self._failures(self.state.undo, group.name, "not rolled back")
        ):
            yield failures
        if bounce is not None and word not in _ROLLED_BACK:
            yield bounce.text
        if word is Stage.FINALIZED and live is not None:
            yield from live.obstacles
        if word in _CLOSED:
            return
        finalized = self.state.group_finalized_at(group.name)
        if bounce is None and finalized is not None and self._is_back(group, word):
            yield f"it was finalized {moment(finalized)}, but its members commit as phase {word} does"
        rejected = Counter(step.action for step in group.steps if step.action.rejects)
        if rejected:
            kinds = ", ".join(f"{count} {action.value.removeprefix('refuse-')}" for action, count in rejected.items())
            first = next(step for step in group.steps if step.action.rejects)
            yield f"the plan refused {count_of(rejected.total(), 'partition')} ({kinds}): {first.tp}: {first.note}"
        if not self.state.is_applied(group):
            if failures := self._failures(self.state.apply, group.name, "not applied"):
                yield failures
            elif isinstance(word, Phase):
                yield "its offsets are not applied"
        if (note := self.state.blocked.get(group.name)) is not None and not _has_ended(note.text, live):
            yield note.text
        if live is not None:
            yield from live.obstacles

    def _is_back(self, group: GroupPlan, word: Stage | Phase) -> bool:
        """Whether a finalized group has left the last phase. A group in phase dual may have been finalized there."""
        note, end = self.state.phases.get(group.name), self.plan.header.end
        was_at_end = note is not None and note.phase is end
        is_later = self.state.phase_after_end(group.name, end) is not None
        return word is not self.end and (word is self.start or was_at_end or is_later)

    def _was_undo_last(self, name: str) -> bool:
        """Whether a rollback is the last step of the group. The failures of a rollback are over after a later step."""
        state, undone = self.state, self.state.undo.at.get(name)
        phase = state.phases.get(name)
        later = (state.apply.at.get(name), phase and phase.at, state.group_finalized_at(name))
        return undone is not None and undone >= max((at for at in later if at is not None), default=0)

    def _failures(self, work: GroupProgress, group: str, label: str) -> str:
        """Returns the failures of the last attempt to write the group; an empty string if there are none."""
        if group in work.done:
            return ""
        outcomes = list(self.state.outcomes(work, group))
        failed = outcomes[-1].get("failed", ()) if outcomes else ()
        if not failed:
            return f"{label}: an earlier run was interrupted" if group in work.unknown else ""
        topic, partition, _kind, why = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return f"{label}: {topic}-{partition}: {why}{more}"

    def _now(self, group: GroupPlan, plan: MigratedGroup, word: Stage | Phase, live: LiveGroup | None) -> Situation:
        phase = word if isinstance(word, Phase) else Phase.MOVED if word is Stage.FINALIZED else self.start
        if plan.stage is Stage.PLANNED and self.state.is_applied(group):  # apply has nothing to write
            plan = replace(plan, stage=Stage.APPLIED)
        is_lost = live is not None and live.is_lost
        return Situation(
            group.name,
            phase,
            plan,
            has_members=bool(group.old_members if live is None else live.members),
            is_committed=is_lost or (bool(live.members) if live is not None else group.name in self.state.phases),
            is_lost=is_lost and word is Stage.APPLIED,
            verifies=live is None or live.verifies,
        )


def _has_left(live: LiveGroup, end: Phase) -> bool:
    """Whether members of a finalized group were seen in another phase than the last one."""
    if live.evidence.phase is Phase.UNKNOWN:
        return live.evidence.confidence is Confidence.SEEN and bool(live.members)
    return live.evidence.phase is not end


def _has_ended(blocked: str, live: LiveGroup | None) -> bool:
    """Whether the members were seen in the phase to which a bounce was blocked. ``blocked`` begins with the step, as in
    ``bounce zookeeper -> dual: ...``."""
    if live is None or live.evidence.phase is Phase.UNKNOWN or live.evidence.confidence is not Confidence.SEEN:
        return False
    step = blocked.partition(":")[0]
    return step.startswith("bounce ") and step.endswith(f"-> {live.evidence.phase.value}")


# --- the next step ----------------------------------------------------------------------------------------


class NextStep(NamedTuple):
    """The next step of a group: the invocation, or None if there is none, and the reason. ``is_open`` is whether the
    operator has something to do that is no command; ``why`` then names it."""

    call: Invocation | None
    why: str
    is_open: bool = False

    def __str__(self) -> str:
        return self.why if self.call is None else f"{self.call} {self.why}"

    def command_line(self, options: str = "") -> str:
        """Returns the command line with these connection options, which begin with a space; empty if there is nothing
        to do. The shell replaces `RESTART_VARIABLE`."""
        if self.call is None:
            return ""
        command, quoted = option("command"), shlex.quote(RESTART_VARIABLE)
        line = self.call.command_line().replace(f"{command} {quoted}", f'{command} "{RESTART_VARIABLE}"')
        return line + options

    def text(self, options: str = "") -> str:
        """Returns the command line, what the operator does, or the reason for which there is nothing to do."""
        return self.command_line(options) or (self.why if self.is_open else f"nothing: {self.why}")

    @property
    def note(self) -> str:
        """The explanation of the variable in the command line, or the arguments that it lacks; empty if there are none.
        The state of a bounce does not have the namespace of a workload."""
        if workload := self.call and self.call.named.get("kubernetes"):
            return Advice("add the {namespace}, {kube_context} and {configure} of the first bounce of {}", workload)
        return _RESTART_NOTE if RESTART_VARIABLE in self.command_line() else ""

    def to_json(self, options: str = "") -> dict[str, str | None]:
        """Returns the command and the reason as a JSON object."""
        return {"command": self.command_line(options) or None, "why": self.why}


class Situation(NamedTuple):
    """The facts that decide the next step of a group. The source and the target of ``plan`` are the phases in which the
    migration begins and ends. Without an observation, the group of a plan is in its first phase. ``has_members`` is
    whether old consumers have to be restarted. ``is_committed`` is whether a renewal of the copied offsets is of no
    use, because the group has consumers, has committed since the copy, or has lost the copied offsets. ``location`` is
    None if the plan was asked for its steps."""

    name: str
    phase: Phase
    plan: MigratedGroup | None = None
    has_members: bool = False
    is_committed: bool = False
    location: GroupLocation | None = None
    is_lost: bool = False
    verifies: bool = True

    @property
    def expires_ms(self) -> int | None:
        """The time at which the copied offsets expire, in milliseconds since 1970; None if it is unknown, or if a
        renewal is of no use."""
        if self.plan is None or self.is_committed or self.plan.stage in _ROLLED_BACK | {Stage.NOT_PLANNED}:
            return None
        return self.plan.expires_at


def _situation_of(one: GroupLocation) -> Situation:
    plan, registry = one.sample.plan, one.sample.store("zookeeper")
    sides = {plan.source, plan.target} if plan is not None else set()
    has_members = registry is not None and bool(registry.members) and sides == {Phase.ZOOKEEPER, Phase.KAFKA}
    return Situation(one.name, one.phase, plan, has_members, _is_committed(one.sample), one)


def _is_committed(sample: GroupSample) -> bool:
    """Whether the group has members, or may have committed to the plan's target after the copy."""
    if sample.plan is None or any(store.members or store.members_error for store in sample.stores):
        return True
    source, target = sample.side(sample.plan.source), sample.side(sample.plan.target)
    if target is None:
        return True
    old = {} if source is None else source.committed
    copied = {tp for tp, writer in sample.writers.items() if writer.is_unchanged}
    return any(offset > old.get(tp, offset) for tp, offset in target.committed.items() if tp not in copied)


def next_step(now: Situation) -> NextStep:
    """Returns the next step of a group."""
    plan = now.plan
    if plan is not None and plan.stage is Stage.ROLLED_BACK_IN_PART:
        return NextStep(_of_group("migrate rollback", plan), "completes the rollback")
    if now.location is not None and now.phase is Phase.UNKNOWN:
        return _unread(now.location) or (plan and _resumed(plan)) or _determine(now, now.location)
    if now.phase is Phase.MOVED:
        return _after_the_end(now, plan)
    if plan is not None and (found := _by_plan(now, plan)) is not None:
        return found
    if now.location is None:
        return NextStep(None, "the plan has no further step for the group")
    return _without_plan(now.location)


def _after_the_end(now: Situation, plan: MigratedGroup | None) -> NextStep:
    """Returns the next step after the migration was finalized."""
    if plan is not None and now.expires_ms is not None:
        why = f"commits the copied offsets again: without a consumer they expire about {moment(now.expires_ms)} UTC"
        return NextStep(Invocation("migrate apply", (plan.path,), {"refresh": True}), why)
    if plan is None or plan.source_deleted:
        return NextStep(None, "the migration is finalized, and the offsets in the source are deleted")
    if now.location is None:
        return NextStep(None, "the migration is finalized")
    if (unread := _unread(now.location)) is not None:
        return unread  # the source is not deleted while a store cannot be read
    if may_be_dual(now.location, plan):
        why = "writes the steps from dual commit to Kafka, after which the old offsets can be deleted"
        return NextStep(_runbook(now, Phase.KAFKA), why)
    why = "deletes the old offsets in the source, once you do not need a way back"
    return NextStep(_finalize(plan, delete_source=True), why)


def _by_plan(now: Situation, plan: MigratedGroup) -> NextStep | None:
    """Returns the next step of the plan; None if the plan has no step for the phase of the group."""
    phase, of_location = now.phase, now.location is not None
    if of_location and plan.finalized_at is not None and phase == plan.source:
        again = f"the group commits to {TITLES[phase]} again after the plan was finalized"
        return NextStep(_show_members(now.name), f"{again}; find the consumer that still commits there")
    if plan.stage in (Stage.NOT_PLANNED, Stage.ROLLED_BACK):
        return None
    if (resumed := _resumed(plan)) is not None:
        return resumed
    if plan.stage in (Stage.PLANNED, Stage.APPLIED_IN_PART) and (not of_location or phase in (plan.source, Phase.DUAL)):
        return NextStep(_of_group("migrate apply", plan), "copies the offsets of the plan")
    if plan.stage is not Stage.APPLIED and (of_location or plan.stage is not Stage.FINALIZED):
        return None
    if now.is_lost:
        return NextStep(_of_group("migrate rollback", plan), "restores the offsets that apply overwrote")
    if phase is Phase.DUAL or (now.has_members and phase == plan.source):
        return _to_next_phase(now, plan)
    if phase == plan.target or not of_location:
        if not now.verifies:
            return NextStep(_of_group("migrate verify", plan), "shows the partitions that do not verify")
        why = "verifies again, and records the end of the migration"
        return None if plan.stage is Stage.FINALIZED else NextStep(_finalize(plan), why)
    if phase != plan.source or (phase is Phase.ZOOKEEPER and plan.target == Phase.KAFKA):
        return None  # without members that commit, only a new plan copies the offsets that were committed since
    return NextStep(
        None, f"the offsets are copied to {plan.target_uri}, and the group still commits to {TITLES[phase]}"
    )


def _resumed(plan: MigratedGroup) -> NextStep | None:
    """Returns the step that resumes the open bounce of a group; None if there is none."""
    if plan.bounce is None or plan.bounce.state is None or plan.stage in (Stage.NOT_PLANNED, Stage.ROLLED_BACK):
        return None
    state = plan.bounce.state
    workload = next((step.member for step in state.steps if step.workload_members), None)
    call = _bounce(plan, state.change.to.value, workload, state=plan.bounce.path, execute=True)
    return NextStep(call, "resumes the bounce")


def _to_next_phase(now: Situation, plan: MigratedGroup) -> NextStep:
    """Returns the step that restarts old consumers: the bounce, or for a located group the runbook of it."""
    last = Phase.ZOOKEEPER if plan.target == Phase.ZOOKEEPER else Phase.KAFKA
    to = last if now.phase is Phase.DUAL else Phase.DUAL
    if now.location is None:
        return NextStep(_bounce(plan, to), f"restarts the members into phase {to}")
    if to is not Phase.DUAL:
        return NextStep(_runbook(now, to), f"writes the steps from dual commit to {TITLES[to]}")
    why = f"the offsets are copied; writes the steps from {TITLES[now.phase]} to dual commit"
    return NextStep(_runbook(now, to), why)


def _without_plan(one: GroupLocation) -> NextStep:
    zookeeper, kafka = one.sample.store("zookeeper"), one.sample.store("kafka")
    if one.phase is Phase.DUAL:
        call = _runbook(Situation(one.name, one.phase, plan=one.sample.plan), Phase.KAFKA)
        return NextStep(call, "writes the steps from dual commit to Kafka")
    if one.phase is Phase.ZOOKEEPER and kafka is not None and zookeeper is not None:
        # The name differs from that of the plan that the user named, which cannot be replaced.
        label, plan = file_label(one.name), one.sample.plan
        file = f"{label}.json" if plan is None or plan.path != f"{label}.json" else f"{label}-2.json"
        sides = {"from": zookeeper.uri, "to": kafka.uri, "group": one.name, "output": file}
        return NextStep(Invocation("migrate plan", (), sides), "plans the copy of the offsets to Kafka")
    return NextStep(None, f"the group is in phase {one.phase}")


def may_be_dual(one: GroupLocation, plan: MigratedGroup) -> bool:
    """Whether the members of a group that was moved to Kafka may still commit to ZooKeeper too: old consumers are
    registered, and Kafka is ahead on no partition. ``migrate finalize --delete-source`` refuses such a group."""
    zookeeper, kafka = one.sample.store("zookeeper"), one.sample.store("kafka")
    if (plan.source, plan.target) != ("zookeeper", "kafka") or zookeeper is None or kafka is None:
        return False
    ahead = (
        isinstance(old := zookeeper.of(tp), Committed) and offset > old.offset for tp, offset in kafka.committed.items()
    )
    return bool(zookeeper.members) and not any(ahead)


def _unread(one: GroupLocation) -> NextStep | None:
    """Returns the step that makes a store readable; None if all were read."""
    if (unread := next((s for s in one.sample.stores if s.error is not None), None)) is None:
        return None
    why = f"correct the address, the access or the server of {unread.title} first: it cannot be read"
    return NextStep(None, why, is_open=True)


def _determine(now: Situation, one: GroupLocation) -> NextStep:
    """Returns the step that can determine an unknown phase. Without members there is nothing to watch, so a group of a
    plan then has the step that the journal implies."""
    sample = one.sample
    for name, argument, address in (
        ("zookeeper", "zookeeper", "HOST:PORT/CHROOT"),
        ("kafka", "bootstrap_server", "HOST:PORT"),
    ):
        if sample.store(name) is None and sample.store("manager") is None:
            return NextStep(call_of("groups where", (), one.name, **{argument: address}), "also reads the other store")
    if one.confidence is Confidence.SEEN or all(
        any(s.members for s in sample.stores if (s.name == "zookeeper") is old) for old in (True, False)
    ):
        return NextStep(_show_members(one.name), "shows the members that differ")
    has_members = any(store.members or store.members_error for store in sample.stores)
    if now.plan is not None and not has_members and (found := _by_plan(now._replace(location=None), now.plan)):
        return found
    if sample.watched:
        first = "let the consumers read new messages" if has_members else "start the group's consumers"
        why = f"the watched commits do not show the phase: {first}, and watch again"
        return NextStep(None, why, is_open=True)
    return NextStep(call_of("groups where", (), one.name, window=60), "watches commits for at most 60 s")


def file_label(text: str) -> str:
    """Returns the text as a part of a file name."""
    return re.sub(r"^-|[^A-Za-z0-9._-]", "_", text)


def _runbook(now: Situation, to: Phase) -> Invocation:
    """Returns the invocation that writes the runbook to the phase, as a file for offsetmgr and as a page."""
    plan, label = now.plan, f"runbook-{file_label(now.name)}"
    path = plan.path if plan is not None and plan.stage is Stage.APPLIED else None
    files = (f"{label}.json", f"{label}.html")
    return Invocation("runbook write", (), {"group": now.name, "to": str(to), "plan": path, "output": files})


def _bounce(plan: MigratedGroup, to: str, workload: str | None = None, **more: Argument) -> Invocation:
    named = {"plan": plan.path, "group": plan.group, "to_phase": str(to), "state": more.pop("state", None)}
    restart = {"kubernetes": workload, "command": None if workload else RESTART_VARIABLE}
    return Invocation("runbook bounce", (), {**named, **restart, **more})


def _show_members(name: str) -> Invocation:
    return Invocation("groups describe", (), {"members": True, "group": name})


def _of_group(verb: str, plan: MigratedGroup) -> Invocation:
    return Invocation(verb, (plan.path,), {"group": literal_pattern(plan.group)})


def _finalize(plan: MigratedGroup, **more: Argument) -> Invocation:
    return call_of("migrate finalize", (plan.path,), literal_pattern(plan.group), **more)


def call_of(verb: str, positional: tuple[str, ...], name: str, **more: Argument) -> Invocation:
    """Returns an invocation with the name of a group. The command line would parse a name that begins with a dash as an
    option."""
    if name.startswith("-"):
        return Invocation(verb, positional, {"group": name, **more})
    return Invocation(verb, (*positional, name), more)
