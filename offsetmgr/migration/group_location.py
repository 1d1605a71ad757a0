"""Infers the location of a group's offsets from one sample of all configured stores: the phase with its evidence, and
the lag from the offset that the phase makes valid.

Pure. `group_locator` reads the stores. A store that could not be read, or that the settings do not name, is never taken
for a store without offsets: the phase is then unknown, and the evidence names the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from offsetmgr.core.errors import OffsetMgrError, UnsupportedOperation
from offsetmgr.core.group_tree import UnrecognisedData
from offsetmgr.core.model import (
    ABSENT,
    BrokerPartition,
    Committed,
    GroupMember,
    LogRange,
    TopicPartition,
)
from offsetmgr.core.phase import Confidence, Phase, Verdict
from offsetmgr.core.plurals import count_of
from offsetmgr.core.running_store import OtherGroupKind
from offsetmgr.groups.lag import BELOW_START, lag_of
from offsetmgr.groups.last_writer import LastWriter
from offsetmgr.groups.last_writes import TITLES
from offsetmgr.migration.observation import OffsetReadResult, at
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.migration.phase_inference import infer_phase
from offsetmgr.migration.progress import Stage


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

    @property
    def title(self) -> str:
        """The name of the store in messages."""
        return TITLES[self.name]

    def of(self, tp: TopicPartition) -> OffsetReadResult:
        """Returns the read result of one partition. All commits of the group were read, so a partition that was not
        found has no commit."""
        return self.error if self.error is not None else self.offsets.get(tp, ABSENT)

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """The committed offsets that could be read."""
        return {tp: found.offset for tp, found in self.offsets.items() if isinstance(found, Committed)}

    @property
    def problem(self) -> OffsetMgrError | None:
        """The error of the store, or of the first partition that could not be read; None if all offsets are known."""
        return self.error or next((e for e in self.offsets.values() if isinstance(e, OffsetMgrError)), None)


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


@dataclass(frozen=True, slots=True)
class GroupSample:
    """One group in all configured stores, read in the order of ``stores``: ZooKeeper, Kafka, manager.

    ``seen`` is the phase that observed commits prove; None without such a proof.
    """

    group: str
    stores: tuple[StoreSample, ...]
    logs: Mapping[TopicPartition, LogRange | OffsetMgrError] = field(default_factory=dict)
    seen: Verdict | None = None
    plan: MigratedGroup | None = None
    writers: Mapping[TopicPartition, LastWriter] = field(default_factory=dict)
    """The last writers where ZooKeeper and Kafka hold different offsets."""
    named: Mapping[str, StoreSample] = field(default_factory=dict)
    """Each store, by its name, under the name that the group has there. A plan may rename the group."""

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


@dataclass(frozen=True, slots=True)
class GroupLocation:
    """The location of one group. ``lag`` is the sum over all partitions; None if the lag of any partition is
    unknown."""

    sample: GroupSample
    phase: Verdict
    partitions: tuple[LocatedPartition, ...]

    @property
    def group(self) -> str:
        """The name of the group."""
        return self.sample.group

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
    def other_kind(self) -> UnsupportedOperation | None:
        """The kind of the group in Kafka if it is a share group or a group of the Streams protocol; otherwise None."""
        errors = (error for store in self.sample.stores for error in (store.members_error, store.error))
        return next((error for error in errors if isinstance(error, OtherGroupKind)), None)

    @property
    def found(self) -> bool:
        """Whether a store has an offset or a member of the group, or could not be read."""
        return any(s.offsets or s.members or s.error or s.members_error for s in self.sample.stores)


def locate(sample: GroupSample) -> GroupLocation:
    """Returns the location of the group."""
    phase = sample.seen or _moved(sample) or _infer(sample)
    valid: str | None = phase.phase
    unread = ""
    if phase.phase is Phase.MOVED and sample.plan is not None:
        valid = sample.plan.target
        if sample.group != sample.plan.target_group:
            unread = f"lag unknown, because the group is {sample.plan.target_group} in {sample.plan.target_uri}"
        if sample.store(valid or "") is None:
            unread = f"lag unknown, because the target {sample.plan.target_uri} was not read"
    every = sorted({tp for store in sample.stores for tp in store.offsets})
    return GroupLocation(sample, phase, tuple(_partition(sample, valid, tp, unread) for tp in every))


# --- the phase ---------------------------------------------------------------------------------------


def _unknown(why: str) -> Verdict:
    return Verdict(Phase.UNKNOWN, Confidence.UNKNOWN, why)


def _inferred(name: str, why: str) -> Verdict:
    return Verdict(Phase(name), Confidence.INFERRED, why)


def seen_phase(history: GroupHistory) -> Verdict | None:
    """Returns the phase that the observed commits prove; None if they prove no phase."""
    for tp, partition in sorted(history.partitions.items()):
        alone = [partition.zookeeper_alone if partition.kafka.changes else None]
        alone += [partition.kafka_alone if partition.zookeeper.changes else None]
        if proof := next(filter(None, alone), None):
            why = f"{tp}: {proof}; then the other store changed too, so another client (a mirror?) writes there"
            return Verdict(Phase.UNKNOWN, Confidence.SEEN, why)
    found = infer_phase(history)
    return found if found.confidence is Confidence.SEEN else None


def _moved(sample: GroupSample) -> Verdict | None:
    """Returns the phase of a group whose migration is finalized; None for any other group."""
    plan = sample.plan
    if plan is None or plan.finalized_at is None:
        return None
    why = f"{plan.path} moved it from {plan.source_uri} to {plan.target_uri}, finalized {at(plan.finalized_at)}"
    source, target = sample.side(plan.source), sample.side(plan.target)
    if target is None or target.error is not None:
        return Verdict(Phase.MOVED, Confidence.INFERRED, f"{why}; the target was not read")
    if source is None or source.error is not None:
        return Verdict(Phase.MOVED, Confidence.INFERRED, f"{why}; the source was not read")
    for store in (source, target):
        if store.problem is not None:
            return _unknown(f"{why}, but offsets in {store.title} cannot be read: {store.problem}")
    undecided = ""
    for tp, offset in sorted(source.committed.items()):
        held, writer = target.committed.get(tp, -1), sample.writers.get(tp)
        last = "" if writer is None or writer.store is None else writer.store.title
        if offset == held or last == target.title or (writer is not None and writer.is_unchanged):
            continue
        if offset > held or last == source.title:
            newer = f"is ahead of {target.title} on {tp}" if offset > held else f"was written last on {tp}"
            evidence = "" if writer is None else f" ({writer.why})"
            return _unknown(f"{why}, but {source.title} {newer}: a client may still commit to the source{evidence}")
        undecided = undecided or f"{why}; whether a client has committed {tp} to {source.title} since is not known"
    if undecided:
        return Verdict(Phase.MOVED, Confidence.INFERRED, undecided)
    return Verdict(Phase.MOVED, Confidence.SEEN, f"{why}; {source.title} has no newer offset")


def _infer(sample: GroupSample) -> Verdict:
    """Infers the phase from offsets and members."""
    for store in sample.stores:
        if store.problem is not None:
            return _unknown(f"offsets in {store.title} cannot be read: {store.problem}")
    holding = [store for store in sample.stores if store.committed]
    old, new = _members(sample, ("zookeeper",)), _members(sample, ("kafka", "manager"))
    if old and new:
        why = f"{count_of(len(old), 'old consumer')} in ZooKeeper and {count_of(len(new), 'member')} in Kafka are live"
        return _unknown(f"{why}; their commits were not watched")
    if new and (where := _only_members(sample)) is not None:
        registry = sample.store("zookeeper")
        checked = "has none" if registry is not None else "was not checked, because the settings do not name it"
        members = (
            f"{where.title} has {count_of(len(new), 'member')} of the group, and members commit to their coordinator"
        )
        return _inferred(where.name, f"{members}; ZooKeeper {checked}")
    if not holding:
        return _unknown("no configured store has an offset of the group")
    if len(sample.stores) == 1:
        missing = "Kafka" if holding[0].name == "zookeeper" else "ZooKeeper"
        return _unknown(f"{_count(holding[0])}; the settings do not name {missing}, so it was not checked")
    if len(holding) == 1:
        empty = " and ".join(store.title for store in sample.stores if store is not holding[0])
        return _inferred(holding[0].name, f"{_count(holding[0])} and none in {empty}")
    return _compare(sample, holding, old)


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


def _compare(sample: GroupSample, holding: list[StoreSample], old: list[GroupMember]) -> Verdict:
    """Infers the phase from the partitions in which the stores hold different offsets: the members commit to the store
    that was written last. ``old`` are the old consumers that are registered in ZooKeeper."""
    every = sorted({tp for store in holding for tp in store.committed})
    differing = [tp for tp in every if len({store.committed.get(tp) for store in holding}) > 1]
    titles = " and ".join(store.title for store in holding)
    if not differing:
        why = f"{titles} hold equal offsets on {count_of(len(every), 'partition')}"
        return _unknown(f"{why}: the members commit to both, or the offsets were copied and no commit followed")
    partitions = f"{len(differing)} of {count_of(len(every), 'partition')}"
    written = {tp: _last_writer(sample, holding, tp) for tp in differing}
    if undecided := next((tp for tp, (name, _) in written.items() if name is None), None):
        why = f"{titles} hold different offsets on {partitions}, and nothing shows which was written last"
        return _unknown(f"{why}: {undecided}: {written[undecided][1]}")
    names = {name: tp for tp, (name, _) in reversed(written.items()) if name is not None}
    if len(names) > 1:
        named = ", ".join(f"{TITLES[name]} on {tp}" for name, tp in sorted(names.items(), key=lambda item: item[1]))
        return _unknown(f"no store was written last everywhere: {named}")
    ((name, first),) = names.items()
    why = f"{TITLES[name]} was written last on {partitions}: {first}: {written[first][1]}"
    registry = sample.store("zookeeper")
    if name == "zookeeper":
        return _inferred(name, f"{why}; a dual member commits to Kafka first")
    if name == "kafka" and old:
        live = count_of(len(old), "old consumer")
        return _unknown(f"{why}, but {live} may commit to both: a dual member does not write its starting offset again")
    if registry is not None and registry.members_error is not None:
        return _unknown(f"{why}, but the old consumers in ZooKeeper could not be read")
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
