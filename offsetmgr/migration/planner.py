"""Makes a plan: reads both sides, checks the cluster's logs, and decides each step. It changes neither side."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, UsageError
from offsetmgr.core.log_origin import LogOrigin, TranslationChoice
from offsetmgr.core.model import (
    ABSENT,
    BrokerPartition,
    Committed,
    GroupDescription,
    LogRange,
    Offset,
    OffsetAndMetadata,
    TopicPartition,
    dropped_text,
    with_drop,
)
from offsetmgr.core.offset_store import (
    AheadPolicy,
    Capabilities,
    GroupOffsets,
    Guard,
    OffsetStore,
    OtherGroupKind,
    PartitionKinds,
)
from offsetmgr.core.plurals import SHOWN, count_of
from offsetmgr.groups.last_writes import GroupPair, LastWrites
from offsetmgr.groups.scan import scan_in_order
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.migration.cluster_logs import ClusterLogs
from offsetmgr.migration.copied_offsets import last_writes
from offsetmgr.migration.journaled_writer import read_pairs
from offsetmgr.migration.observation import ObservationWindow
from offsetmgr.migration.partition_map import PartitionMap, Translator
from offsetmgr.migration.plan import (
    PLAN_VERSION,
    PLAN_VERSION_KAFKA_0_7,
    PLAN_VERSION_SHIFTED,
    PLAN_VERSION_TRANSLATED,
    Action,
    GroupPlan,
    PlanFile,
    PlanHeader,
    PlanOptions,
    PlanSource,
    PlanStep,
    PlanSummary,
    StoreEndpoint,
    check_renames,
    comparison_lines,
    count_lines,
    decide,
    expire_in_use,
    expiry_line,
    scope_line,
)
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.translated_groups import TranslatedGroups
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.translation.translator import Translations

_BY_TOPIC_IDS: Final = "unknown before this plan; apply compares the topic ids of both clusters with the plan's"

LegacyMembers: TypeAlias = Mapping[str, tuple[str, ...] | OffsetMgrError]
"""The ids of live members in ZooKeeper's registry by group, or the error if the members of a group cannot be read.
Groups without members may be missing. A plan lists these members as the old consumers that still run."""
ReadLegacyMembers: TypeAlias = Callable[[Iterable[str]], LegacyMembers]
"""Reads the live members of groups from ZooKeeper's registry."""


def registered_members(found: LegacyMembers, *names: str) -> tuple[str, ...] | OffsetMgrError:
    """Returns the members of these groups in the result of `ReadLegacyMembers`, sorted; the first error if the members
    of a group are unknown."""
    members: set[str] = set()
    for one in (found.get(name, ()) for name in names):
        if isinstance(one, OffsetMgrError):
            return one
        members.update(one)
    return tuple(sorted(members))


def endpoint(store: OffsetStore) -> StoreEndpoint:
    """Returns the current identity of a store. Raises `Unreachable`, `TimedOut`."""
    identity = store.identity()
    return StoreEndpoint(store.uri, identity.kind, identity.id, identity.how)


def unfit_name(store: OffsetStore, group: str) -> UsageError | None:
    """Returns the reason why a store cannot hold a group of this name; None if it can."""
    try:
        store.check_group(group)
    except UsageError as error:
        return error
    return None


def no_groups_hint(store: OffsetStore) -> str:
    """Returns the hint for a store in which no group exists."""
    if doubt := store.address_doubt():
        return f"{doubt} it is the path in zookeeper.connect of the brokers, as in zookeeper://HOST:2181/kafka"
    return "check the address, or the name of the file"


def _check_target(target: StoreEndpoint, store: OffsetStore) -> None:
    """Raises `UsageError` for a target that a plan cannot describe. A dual store has two before-images for each offset,
    but a plan records one. A text file is identified by its content, and apply would change the content."""
    if target.kind == "dual":
        raise UsageError(
            f"target {store.uri}",
            "a dual store has two before-images for each offset, and a plan keeps one",
            "make a plan for each of its two stores",
        )
    if target.kind == "file" and not store.capabilities.commit_timestamp:
        raise UsageError(
            f"target {store.uri}",
            "the identity of a text file is its content, which apply would change",
            "use an .avro snapshot, or: offsetmgr offsets import",
        )


@dataclass(frozen=True)
class Planner:
    """Plans a migration.

    ``cluster`` is the Kafka cluster to whose logs the offsets belong. If ``cluster`` is None, topics and log ranges are
    not checked, and the plan's ``cluster_id`` is None.
    """

    source: OffsetStore
    target: OffsetStore
    options: PlanOptions
    clock: Clock
    cluster: KafkaCluster | None = None
    old_members: ReadLegacyMembers | None = None
    running: Callable[[Iterable[str]], Mapping[str, tuple[str, ...]]] = lambda _: {}
    """Returns the members of groups that still run in the source, if that is another cluster."""
    tool: str = "offsetmgr"
    partition_map: PartitionMap | None = None
    """The map that translates byte positions of Kafka 0.7 for a target that cannot hold them."""
    translate: TranslationChoice | None = None
    """How the user wants offsets of another cluster to be treated."""
    translations: Translations | None = None
    """The translations by the records, if these are the user's choice."""
    window: ObservationWindow = field(default_factory=lambda: ObservationWindow(0))
    """The time for which the stores are watched if the target is ahead and nothing shows which was written last."""
    known: tuple[tuple[PlanFile, MigrationState], ...] = ()
    """Plans of earlier copies between the two stores, in addition to those in the operation log."""
    rewinds_stale: bool = False
    """Whether the target is rewound where evidence shows that the source was written last."""
    tails: Counter[bool] = field(default_factory=Counter, repr=False)
    """The number of planned partitions by whether the source is exactly one behind its log's end."""

    def header(self) -> PlanHeader:
        source, target = endpoint(self.source), endpoint(self.target)
        if (source.kind, source.id) == (target.kind, target.id) and not self.options.rename:
            raise UsageError(
                "plan", f"source and target are the same place ({source.id})", Advice("give {rename} OLD=NEW")
            )
        _check_target(target, self.target)
        self._check_translation()
        kinds = {self.source.capabilities.partitions, self.target.capabilities.partitions}
        old_layout = self.partition_map is not None or PartitionKinds.OF_BROKERS in kinds
        if self.options.shift and old_layout:
            raise UsageError(
                Advice("{shift}"), "a byte position of Kafka 0.7 cannot be shifted by a number of messages"
            )
        if kinds != {PartitionKinds.OF_BROKERS, PartitionKinds.NUMBERED}:  # a partition map translates those
            self.crossing.check("plan", by_records=True)
        retention = self.cluster.offsets_retention_ms() if self.cluster and target.kind == "kafka" else None
        return PlanHeader(
            str(uuid.uuid4()),
            self.clock.now_ms(),
            source,
            target,
            self.options,
            LogOrigin(self.cluster.cluster_id(), "", self.cluster.brokers()).name if self.cluster else None,
            retention,
            self.tool,
            self.crossing.comparison,
            self.translate,
            self.crossing.recreation_detection() if self.translations is None else _BY_TOPIC_IDS,
            None if self.partition_map is None else self.partition_map.origin,
            tuple(weakness.text for weakness in self.target.weaknesses()),
            self.cluster.clock_difference(self.clock) if self.cluster and retention is not None else None,
            self._version(old_layout),
        )

    def _version(self, old_layout: bool) -> int:
        if self.translations is not None:
            return PLAN_VERSION_TRANSLATED
        return PLAN_VERSION_KAFKA_0_7 if old_layout else PLAN_VERSION_SHIFTED if self.options.shift else PLAN_VERSION

    def _check_translation(self) -> None:
        """Raises `UsageError` for an option that does not go with a translation by the records."""
        if self.translations is None:
            return
        given = {
            "{clamp}": (self.options.clamp, "the records at the offsets decide"),
            "{shift}": (self.options.shift, "the records at the offsets decide"),
            "{partition_map}": (self.partition_map is not None, "it is for byte positions of Kafka 0.7"),
        }
        for option, (is_given, why) in given.items():
            if is_given:
                raise UsageError(Advice(f"{option} and {{translate=auto}}"), f"cannot be combined: {why}")

    def complete(self, summary: PlanSummary) -> None:
        """Adds the ids of the topics to the summary of a plan, and the digests of the logs that were read."""
        if self.translations is None:
            summary.topic_ids |= self.target.topic_ids(list(summary.topic_ids))
        else:
            for topic in summary.source_topic_ids:
                here, there = self.translations.topic_ids.get(topic, ("", ""))
                summary.source_topic_ids[topic] = here or ""
                summary.topic_ids[self.translations.rename(topic)] = there or ""
            read = self.translations.partitions
            summary.digests |= {str(tp): found.digest for tp, found in read.items() if found.digest}

    @cached_property
    def crossing(self) -> CrossClusterCheck:
        """Whether the offsets of both sides refer to the same logs. Raises any error from `OffsetStore.log_origin`."""
        return CrossClusterCheck(self.source, self.target, self.translate)

    @cached_property
    def _translator(self) -> Translator | None:
        return None if self.partition_map is None else Translator(self.partition_map, self.cluster)

    def selected_groups(self) -> list[str]:
        """Returns the source's groups that the options select, sorted.

        Raises `GroupNotFound` if no group is selected, or if the source does not list a named group; `UsageError` for
        invalid renames.
        """
        every = list(self.source.groups())
        hint = None if every else no_groups_hint(self.source)
        try:
            groups = self.options.group_selection.within(every, self.source.uri, hint=hint)
        except GroupNotFound as missing:
            missing.groups = tuple(sorted(self.options.group_selection.names.difference(every)))
            raise
        if unused := sorted(set(self.options.rename).difference(groups)):
            raise UsageError(Advice("{rename} {}", unused[0]), "this group is not part of the plan")
        check_renames(self.options.rename, groups)
        return groups

    def plan(self, groups: Iterable[str]) -> Iterator[GroupPlan]:
        """Yields the plan of each group, lazily."""
        existing = set(self.target.groups())
        log = ClusterLogs(self.cluster)
        if self._translated is not None:
            groups = list(groups)
            self._translated.load_all(scan_in_order(self.source, groups))
        named = ((group, group, self.options.target_group(group)) for group in groups)
        for batch in read_pairs(self.source, self.target, existing, named):
            yield from self._plan_batch([pair for _, pair in batch], existing, log)

    def _plan_batch(self, read: list[GroupPair], existing: set[str], log: ClusterLogs) -> Iterator[GroupPlan]:
        names = {pair.source.name: pair.target.name for pair in read}
        described = self.cluster.describe_groups(names.values()) if self.cluster and self._to_kafka else {}
        # The list of groups does not contain all kinds of groups that a new group would meet.
        described = {n: d for n, d in described.items() if n in existing or isinstance(d, OtherGroupKind)}
        old = self.old_members({*names, *names.values()}) if self.old_members else {}
        running = self.running(names)
        # Offsets and times of different clusters do not show which store was written last.
        pairs = self._last_writes.find(read) if self._translated is None else read
        self._load_logs([pair.source for pair in pairs], log)
        pending = self._pending(pairs)
        for source, target, writers in pairs:
            errors = {**target.errors, **pending.get(target.name, {})}
            pair = GroupPair(source, replace(target, errors=errors), writers)
            planned = self._plan_group(pair, described.get(target.name), old, log)
            if self._translated is not None:
                planned = replace(planned, source_members=(*running.get(source.name, ()), *planned.old_members))
            yield planned

    def _pending(self, pairs: Iterable[GroupPair]) -> dict[str, Mapping[TopicPartition, OffsetMgrError]]:
        """Finds partitions whose offset in the target is still unknown, although the scan returned no offset. An
        example is a partition whose offset an open transaction has not committed yet. Returns the errors of these
        partitions by target group."""
        selected: dict[str, list[TopicPartition]] = {}
        for source, target, _ in pairs:
            partitions = [tp for tp in source.offsets if tp.partition >= 0 and self.options.selects(tp)]
            if self.translations is not None:
                partitions = list(map(self.translations.target, partitions))
            if partitions := [tp for tp in partitions if tp not in target.offsets]:
                selected[target.name] = partitions
        return {found.name: found.errors for found in self.target.scan_partitions(selected) if found.errors}

    def _load_logs(self, sources: list[GroupOffsets], log: ClusterLogs) -> None:
        """Loads from the cluster, in bulk, the log ranges and starting points that the steps of these groups need."""
        if (translated := self._translated) is not None:
            translated.load(sources)
            places = [place for found in sources for place in translated.places(found)]
            log.load((tp for tp, _ in places), places)
            return
        partitions = {tp for found in sources for tp in found.offsets if self.options.selects(tp)}
        if foreign := {tp for tp in partitions if not self.target.capabilities.partitions.includes(tp)}:
            partitions -= foreign
            if self._translator is not None:
                self._translator.load_starts(foreign)
                entries = ((tp, self._translator.map.entries.get(tp)) for tp in foreign)
                partitions |= {TopicPartition(tp.topic, entry.partition) for tp, entry in entries if entry is not None}
        offsets = ((tp, read.offset) for found in sources for tp, read in found.offsets.items())
        log.load(partitions, ((tp, offset) for tp, offset in offsets if tp in partitions))
        self.crossing.load_topics({tp.topic for tp in partitions})

    @cached_property
    def _translated(self) -> TranslatedGroups | None:
        return None if self.translations is None else TranslatedGroups(self.translations, self.options.selects)

    @cached_property
    def _last_writes(self) -> LastWrites:
        return last_writes(
            self.source,
            self.target,
            *self.known,
            window_s=self.window.duration_s,
            waiting=self.window.waiting,
            selects=self.options.selects,
        )

    @cached_property
    def _of_another_cluster(self) -> bool:
        """Whether the source's ZooKeeper belongs to another Kafka cluster than the target. In this case, the source's
        old consumers cannot commit to the target."""
        source, target = self.source.identity(), self.target.identity()
        named = source.kind == "zookeeper" and source.how.startswith("cluster id")
        return named and target.kind == "kafka" and source.id != target.id

    @property
    def _to_kafka(self) -> bool:
        return self.target.capabilities.conditional == "group-lock"

    def _plan_group(
        self,
        pair: GroupPair,
        described: GroupDescription | OffsetMgrError | None,
        old: LegacyMembers,
        log: ClusterLogs,
    ) -> GroupPlan:
        source, target = pair.source, pair.target
        group, name = source.name, target.name
        if (unfit := unfit_name(self.target, name)) is not None:
            return GroupPlan(group, name, (), error=Advice("target: {}", unfit.text))
        unread = source.error or source.hidden
        undescribed = described if isinstance(described, OffsetMgrError) else None
        if failed := unread or target.error or target.hidden or undescribed:
            side = "source" if unread else "target"
            return GroupPlan(group, name, (), error=Advice("{}: {}", side, failed.text))
        registered = registered_members(old, name, group)
        if isinstance(registered, OffsetMgrError):
            return GroupPlan(group, name, (), error=Advice("its old consumers are unknown: {}", registered.text))
        assert not isinstance(described, OffsetMgrError)
        if name != group and target.offsets and not self.options.onto_existing:
            text = "target: group {} exists, and a rename would mix the offsets of both; {onto_existing} allows it"
            return GroupPlan(group, name, (), error=Advice(text, name))
        if self._translated is not None:
            steps = tuple(self._translated.steps(source, target, log.get, self.options, self.target.capabilities))
        else:
            steps = tuple(self._steps(pair, log, self.target.capabilities))
        guard, note = self._guard(registered)
        members = tuple(str(m) for m in described.members) if described and not described.idle else ()
        state = described.state if described else ""
        unknown = "; ".join(f"{one}, so it is not copied" for one in source.unrecognised)
        return GroupPlan(group, name, steps, guard, note, registered, members, state, note=unknown)

    def _steps(self, pair: GroupPair, log: ClusterLogs, capabilities: Capabilities) -> list[PlanStep]:
        source, target, _ = pair
        holds = capabilities.partitions.includes
        seen = {*source.offsets, *source.errors, *target.offsets, *target.errors}
        partitions = [tp for tp in seen if self.options.selects(tp)]
        foreign = (self._foreign_step(tp, source, target, log) for tp in partitions if not holds(tp))
        steps = {step.tp: step for step in foreign}
        steps |= {tp: self._step(tp, pair, log, capabilities) for tp in partitions if holds(tp) and tp not in steps}
        return [steps[tp] for tp in sorted(steps)]

    def _foreign_step(
        self, tp: TopicPartition, source: GroupOffsets, target: GroupOffsets, log: ClusterLogs
    ) -> PlanStep:
        """Returns the step of a partition that the target cannot hold unchanged, because one side is a store of Kafka
        0.7."""
        if tp in source.errors:
            return decide(tp, source.errors[tp], ABSENT, None, self.options)
        position = OffsetAndMetadata(source.offsets[tp].offset)
        refusal = PlanStep(tp, Action.REFUSE_BYTE_POSITION, position, None, None)
        if not isinstance(tp.partition, BrokerPartition):
            why = f"{self.target.uri} keeps byte positions of Kafka 0.7, and this is an offset"
            return refusal._replace(action=Action.REFUSE_UNSUPPORTED_TARGET, note=why)
        if self._translator is None:
            why = Advice("a byte position of Kafka 0.7 is not an offset: {partition_map} defines its replacement")
            return refusal._replace(note=why)
        new, found = self._translator.translate(tp, position.offset)
        if isinstance(found, str):
            return refusal._replace(note=found)
        if new in source.offsets or new in source.errors:
            why = f"the map translates it to {new}, for which the source holds an offset too"
            return refusal._replace(note=why)
        target_offset: Offset | OffsetMgrError = target.errors.get(new) or target.offsets.get(new) or ABSENT
        step = decide(new, OffsetAndMetadata(found.offset), target_offset, log.get(new), self.options)
        note = Advice.joined(filter(None, (f"from {tp.partition}: {found.how}", step.note)))
        return step._replace(source=position, note=note, origin=PlanSource(tp.partition, found.how))

    def _step(self, tp: TopicPartition, pair: GroupPair, log: ClusterLogs, capabilities: Capabilities) -> PlanStep:
        source, target, writers = pair
        found: Committed | OffsetMgrError | None = source.errors.get(tp) or source.offsets.get(tp)
        target_offset: Offset | OffsetMgrError = target.errors.get(tp) or target.offsets.get(tp) or ABSENT
        if isinstance(found, Committed):
            options, writer, log_range = self.options, writers.get(tp), log.get(tp)
            if self.rewinds_stale and writer is not None and writer.is_offset(found.offset):
                options = replace(options, if_ahead=AheadPolicy.REWIND)
            if isinstance(log_range, LogRange):
                self.tails[log_range.end - found.offset == 1] += 1
            if (rejected := self.crossing.recreation_error(tp, found)) is not None:
                held = target_offset.value() if isinstance(target_offset, Committed) else None
                return PlanStep(tp, Action.REFUSE_RECREATED, found.value(), held, None, rejected.why)
            keeps_epoch = capabilities.leader_epoch and self.crossing.comparison.keeps_epochs
            carried = _carried(found, capabilities, keeps_epoch=keeps_epoch)
            step = decide(tp, carried, target_offset, log_range, options, writer)
            moves = step.action.writes or step.action is Action.SKIP_EQUAL
            unfit = found.metadata if moves and not capabilities.metadata else ""
            return step._replace(note=with_drop(step.note, unfit)) if unfit else step
        return decide(tp, found, target_offset, None, self.options)

    def _guard(self, registered: tuple[str, ...]) -> tuple[Guard, str]:
        if registered and self._to_kafka and not self._of_another_cluster:
            return Guard.COMPARE, (
                "not atomic: old consumers are registered in ZooKeeper and may commit to this group in Kafka, which a"
                " group lock would prevent; the copy is safe because these consumers use the larger of the two stores'"
                " offsets while dual commit is on"
            )
        return Guard.LOCK, ""


def _carried(found: Committed, capabilities: Capabilities, *, keeps_epoch: bool) -> OffsetAndMetadata:
    """Returns the fields of a commit that the target store can keep. Therefore a read after the write returns the value
    that is in the plan. A leader epoch is valid only in its own cluster.
    """
    offset, metadata, epoch, timestamp, _ = found
    carried = (
        offset,
        metadata if capabilities.metadata else "",
        epoch if keeps_epoch else None,
        timestamp if capabilities.commit_timestamp else None,
    )
    return tuple.__new__(OffsetAndMetadata, carried)  # `OffsetAndMetadata(*carried)` without its argument handling


class WrittenPlan(NamedTuple):
    """A plan that was written to a file. ``one_behind`` tells whether the source is exactly one behind its log's end in
    every planned partition. ``renewed`` and ``kept`` are the numbers of groups that were planned again and that keep
    the steps of an earlier plan. Of the kept groups ``tried``, apply wrote nothing."""

    file: PlanFile
    one_behind: bool = False
    renewed: int = 0
    kept: int = 0
    tried: tuple[str, ...] = ()

    def lines(self, *, whole: bool = True) -> Iterator[str]:
        """Describes the plan. With ``whole``, also yields its waves and the parts that need attention, in at most
        `SHOWN` lines."""
        plan, header, summary = self.file, self.file.header, self.file.summary
        yield scope_line(plan, summary)
        yield from _header_lines(header)
        if header.rules is not None:
            yield from _translation_lines(summary)
        yield from _expiry_lines(header, summary)
        yield from count_lines(summary)
        if summary.dropped:
            yield f"warning the plan drops {dropped_text(summary.dropped)}"
        if not whole:
            return
        waves, lines = Counter[int | None](), list[str]()
        for group in plan.groups():
            waves[group.wave] += 1
            lines += islice(_attention(group), SHOWN + 1 - len(lines))
        yield from (f"wave {w}: {count_of(waves[w], 'group')}" for w in sorted(w for w in waves if w is not None))
        if len(waves) > 1 and waves[None]:
            yield f"no wave: {count_of(waves[None], 'group')}, which the waves file does not name"
        yield from lines[:SHOWN]
        if len(lines) > SHOWN:
            listed = Invocation("migrate plan", (), {"format": "json"})
            yield Advice("  ... and more: {} (or csv) lists every step", listed)


def _attention(group: GroupPlan) -> Iterator[str]:
    """Yields the error, the members, the rejected steps, the rewinds and the notes of a group."""
    if group.error:
        yield f"  ! {group.name}: {group.error}"
    if group.note:
        yield f"  {group.name}: {group.note}"
    if group.members:
        yield f"  ! {group.target_group} is active ({group.state}): {'; '.join(group.members)}"
    if group.source_members:
        yield f"  ! {group.name} still runs in the source: {'; '.join(group.source_members)}"
    for step in group.steps:
        if step.action.rejects or step.action is Action.REWIND or (step.note and step.action.writes):
            yield f"  ! {group.name} {step.tp}: {step.action}: {step.note}"


def _header_lines(header: PlanHeader) -> Iterator[str]:
    """Yields what the planner checked, and the warnings that concern the whole plan."""
    yield from comparison_lines(header)
    if header.cluster_id is None:
        yield Advice("logs    not checked: no {bootstrap_server}, so topics and log ranges are unknown")
    else:
        yield f"logs    checked against Kafka cluster {header.cluster_id}"
    if header.options.shift:
        yield f"shift   {header.options.shift} is added to each copied offset"
    if (used := header.partition_map) is not None:
        confirmed = f"as {used.confirmed_by} confirmed (sha256 {used.sha256[:16]}...)"
        yield f"map     byte positions mapped to offsets, {confirmed}"


def _translation_lines(summary: PlanSummary) -> Iterator[str]:
    """Yields what a plan between two clusters rests on."""
    kinds = ", ".join(
        f"{number:,} {verdict or 'without a translation'}" for verdict, number in summary.verdicts.items()
    )
    logs = count_of(len(summary.digests), "partition")
    yield f"records {kinds or 'no position to translate'}; read {logs} in both clusters (digest {summary.digest[:16]})"
    if summary.unsure:
        repeats = f"groups repeat up to {count_of(summary.repeats, 'record')} there"
        lacks = f", and skip {count_of(summary.skips, 'record')} that the target lacks" if summary.skips else ""
        places = f"{count_of(summary.unsure, 'place')} {'is' if summary.unsure == 1 else 'are'}"
        yield f"warning {places} not sure, which the user accepts; {repeats}{lacks}"


def _expiry_lines(header: PlanHeader, summary: PlanSummary) -> Iterator[str]:
    """Yields what a plan must say about the expiry of offsets."""
    if header.retention_ms is None:
        if header.target.kind == "kafka" and summary.writes:
            why = "the brokers do not report offsets.retention.minutes (offsetmgr doctor: DescribeConfigs)"
            yield f"expiry  unknown for offsets that no consumer commits again, because {why}"
        return
    if summary.writes:
        yield expiry_line(header, header.created_at, header.clock)
    if summary.writes and header.clock is not None and header.clock.exceeds():
        yield f"warning the brokers' clock is {header.clock}: synchronise the clocks (offsetmgr doctor)"
    held = sum(summary.actions[action] for action in (Action.SKIP_EQUAL, Action.KEEP_NEWER, Action.TARGET_ONLY))
    if held:
        yield Advice(
            "expiry  unknown for {} already in the target, because Kafka counts from the commit time, which it does not"
            " expose; migrate apply PLAN {refresh} renews them",
            count_of(held, "offset"),
        )
        if summary.writes and not expire_in_use(header):
            yield (
                "expiry  the group lock of a write restarts the retention of all offsets of the group, except of those"
                " that a client committed with its own retention time"
            )
