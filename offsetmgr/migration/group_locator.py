"""Reads groups from all configured stores in bulk, and locates them (`location`), also if another store is selected.

The number of requests depends on the number of stores and of batches, not on the number of groups. Writes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.core import title_of
from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.batches import batched
from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.commit_mode import Phase, PhaseEvidence
from offsetmgr.core.document import time_text
from offsetmgr.core.errors import GateRefused, OffsetMgrError, OtherCluster, PlanError, UsageError, value_of_each
from offsetmgr.core.model import Committed, GroupDescription, LogRange, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore, OtherGroupKind, scan_store
from offsetmgr.core.plurals import list_of
from offsetmgr.core.selection import literal_pattern
from offsetmgr.groups.describe import DescribeGroups
from offsetmgr.groups.last_writes import VIEW_LIMIT_S, GroupPair, LastWriter
from offsetmgr.groups.operation_log import OperationLog, RecordedOperation
from offsetmgr.groups.scan import with_unlisted, without_impossible
from offsetmgr.migration.copied_offsets import last_writes
from offsetmgr.migration.journaled_writer import OPERATIONS, open_plan, open_renewed
from offsetmgr.migration.location import (
    GroupLocation,
    GroupSample,
    GroupStatus,
    LocatedPartition,
    MigratedGroup,
    StoreSample,
    call_of,
    group_statuses,
    locate,
    migrated_group,
)
from offsetmgr.migration.observation import (
    GroupHistory,
    GroupView,
    Observation,
    ObservationWindow,
    PartitionOwner,
    has_phases,
    partition_owners,
    watch,
)
from offsetmgr.migration.plan import PlanFile, StoreEndpoint
from offsetmgr.migration.progress import MigrationState, Stage
from offsetmgr.stores.dual_policy import outcome_of
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.registry import owners_many

if TYPE_CHECKING:
    from offsetmgr.kafka.cluster import KafkaCluster
    from offsetmgr.migration.bounce_checkpoint import OpenBounce


_NO_OWNER: Final = PartitionOwner("no registered owner", 0)
"""The owner of a partition that no old consumer owns, so that commits of other clients are seen too."""

_Owners = Mapping[str, Mapping[TopicPartition, PartitionOwner] | OffsetMgrError]


def _observe(
    zookeeper: OffsetStore, session: ZookeeperSession, kafka: OffsetStore, clock: Clock, names: Sequence[str], _: bool
) -> dict[str, Observation | OffsetMgrError]:
    """Returns one observation of each group, for `watch`. The order of the reads is the contract of `observation`."""
    read_owners = partial(_owners, session)
    before = value_of_each(read_owners, list(names))
    in_zookeeper, in_kafka = scan_tolerantly(zookeeper, names), scan_tolerantly(kafka, names)
    after = value_of_each(read_owners, list(names))
    now = clock.now_ms()
    found: dict[str, Observation | OffsetMgrError] = {}
    for name in names:
        first, last = before.get(name, {}), after.get(name, {})
        here, there = in_zookeeper[name], in_kafka[name]
        every = sorted({*here.offsets, *here.errors, *there.offsets, *there.errors})
        owners: dict[TopicPartition, PartitionOwner] = {}
        if not isinstance(first, OffsetMgrError) and not isinstance(last, OffsetMgrError):
            pairs = ((tp, first.get(tp, _NO_OWNER), last.get(tp, _NO_OWNER)) for tp in every)
            owners = {tp: owner for tp, owner, later in pairs if owner == later}
        old, new = ({tp: outcome_of(side, tp) for tp in every} for side in (here, there))
        found[name] = Observation(name, now, {}, owners, tuple(every), old, new, {})
    return found


def _owners(session: ZookeeperSession, names: list[str]) -> _Owners:
    owners: dict[str, dict[TopicPartition, PartitionOwner] | OffsetMgrError] = {}
    for one in owners_many(session, names):
        if one.error is not None and not isinstance(one.error, UsageError):
            owners[one.group] = one.error
            continue
        owners[one.group] = partition_owners(one)
    return owners


def scan_tolerantly(store: OffsetStore, names: Sequence[str]) -> Mapping[str, GroupOffsets]:
    """Scans groups. An error of the whole store is the error of each group. A group whose name the store cannot contain
    has no offsets in the store."""
    return {name: without_impossible(one) for name, one in scan_store(store, list(names)).items()}


def _servers(uri: str) -> frozenset[str]:
    """Returns the servers of a store. A URI that is no longer known is one server."""
    from offsetmgr.stores.uri import parse_uri

    try:
        return frozenset(parse_uri(uri).address.lower().split(","))
    except OffsetMgrError:
        return frozenset((uri,))


def _lost_plan(one: RecordedOperation, error: OffsetMgrError) -> PlanError:
    wrote = f"{one.start.name} wrote {', '.join(one.start.stores)} at {time_text(one.at_ms)}"
    hint = Advice(
        "if you moved the plan and its journal, move them back; {} shows the operation",
        Invocation("edits show", (one.id,)),
    )
    return PlanError(error.what, f"{error.why}; {wrote}", hint)


BATCH_GROUPS: Final = 500


@dataclass(frozen=True, slots=True)
class ConfiguredStore:
    """One store that the settings name. ``name`` is zookeeper, kafka or manager; ``describe`` returns the members of
    groups in this store."""

    name: str
    store: OffsetStore
    describe: DescribeGroups
    session: ZookeeperSession | None = None
    """The session of a ZooKeeper in which old consumers register."""
    error: OffsetMgrError | None = None
    """The error of a store that does not respond. No request is sent to the store."""

    def is_endpoint(self, endpoint: StoreEndpoint) -> bool:
        """Whether this store is a side of a plan. A store that does not respond is known by its URI. Returns False if
        the store cannot be identified."""
        if self.error is not None:
            return endpoint.uri == self.store.uri
        try:
            identity = self.store.identity()
        except OffsetMgrError:
            return False
        return endpoint.kind == identity.kind and endpoint.id in (identity.id, *identity.former)


class GroupLocator:
    """Locates groups in ``stores``, which are in the order ZooKeeper, Kafka, manager. Without a ``cluster`` the lag is
    unknown."""

    def __init__(self, stores: Sequence[ConfiguredStore], cluster: KafkaCluster | None) -> None:
        self.stores = tuple(stores)
        self._cluster = cluster
        self._clock = SystemClock()
        self._plans: dict[str, MigratedGroup] = {}
        self._journals: list[tuple[PlanFile, MigrationState]] = []
        self.unread_plans: list[OffsetMgrError] = []
        """The errors of recorded migrations that could not be read, so that they are no evidence."""
        self._recorded: list[RecordedOperation] | None = None
        self._statuses: dict[str, Mapping[str, GroupStatus]] = {}
        self.watched = False
        """Whether commits were watched. That takes a ZooKeeper with old consumers, and Kafka."""

    @cached_property
    def _operations(self) -> list[RecordedOperation]:
        """The operations of this account. If they cannot be read, `unread_plans` has the error."""
        try:
            return OperationLog().operations()
        except OffsetMgrError as error:
            self.unread_plans.append(error)
            return []

    @classmethod
    def of_view(cls, view: GroupView) -> GroupLocator:
        """Returns the locator of the groups of old consumers in the two stores of a view."""
        from offsetmgr.stores.uri import parse_uri

        old = ConfiguredStore("zookeeper", view.zookeeper, view.registry.describe, view.registry.session)
        new = ConfiguredStore(parse_uri(view.kafka.uri).kind, view.kafka, view.cluster.describe_groups)
        return cls((old, new), view.cluster)

    def groups(self) -> tuple[set[str], list[OffsetMgrError]]:
        """Returns the groups of all stores, and the errors of the stores whose groups could not be listed."""
        found: set[str] = set()
        errors: list[OffsetMgrError] = []
        for one in self.stores:
            try:
                if one.error is not None:
                    raise one.error
                found.update(one.store.groups())
            except OffsetMgrError as error:
                errors.append(error)
        return found, errors

    def add_plan(self, path: Path) -> None:
        """Adds a migration as evidence for the groups of its plan. A plan between stores that are not configured is
        not used, because its groups can belong to another cluster. Raises `PlanError`, `JournalError`."""
        known = len(self._journals)
        self._plans.update(self._migrated(*open_plan(path)))
        if len(self._journals) == known:
            self.unread_plans.append(OtherCluster(f"plan {path}", "the settings name neither of its stores"))

    def unfinished(self) -> list[str]:
        """Returns the groups of the recorded migrations that are neither finalized nor rolled back, by their names in
        the source."""
        self._add_recorded()
        ended = (Stage.FINALIZED, Stage.NOT_PLANNED)
        return sorted({one.group for one in self._plans.values() if one.stage not in ended})

    def recorded(self, path: str) -> Mapping[str, GroupStatus]:
        """Returns what a plan and its journal record of each group, by its name in the source; empty for a plan that
        was not added."""
        if path not in self._statuses:
            known = (group_statuses(plan, state) for plan, state in self._journals if str(plan.path) == path)
            self._statuses[path] = {one.name: one for one in next(known, ())}
        return self._statuses[path]

    def _add_recorded(self, names: Iterable[str] | None = None) -> None:
        """Adds the newest migration that the operation log of this account has of each group (default: of all groups),
        unless `add_plan` has added one. A plan that was rolled back is no evidence."""
        if self._recorded is None:
            newest = {one.start.files: one for one in self._operations if one.start.name in OPERATIONS.values()}
            self._recorded = sorted(newest.values(), key=lambda one: one.at_ms, reverse=True)
        wanted = None if names is None else {*names} - self._plans.keys()

        for one in [one for one in self._recorded if wanted is None or one.start.may_include(wanted)]:
            self._recorded.remove(one)
            try:
                found = self._migrated(*open_renewed(Path(*one.start.files)))
            except OffsetMgrError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    self.unread_plans.append(error)
                elif self._may_use(one.start.stores):
                    self.unread_plans.append(_lost_plan(one, error))
                continue
            for group, migrated in found.items():
                if migrated.stage not in (Stage.PLANNED, Stage.ROLLED_BACK):
                    self._plans.setdefault(group, migrated)

    def _may_use(self, recorded: Iterable[str]) -> bool:
        """Returns False if the configured stores have none of the servers of the ``recorded`` stores. Returns True if a
        store does not respond, because the server may have another address there."""
        servers = frozenset[str]().union(*map(_servers, recorded))
        if any(one.error is not None or servers & _servers(one.store.uri) for one in self.stores):
            return True
        try:
            return self._cluster is not None and bool(servers & self._cluster.brokers())
        except OffsetMgrError:
            return True

    def _migrated(self, plan: PlanFile, state: MigrationState) -> dict[str, MigratedGroup]:
        """Returns the migration of each group of a plan, by its names in the source and in the target; empty if neither
        store is configured."""
        migrated: dict[str, MigratedGroup] = {}
        source, target = plan.header.source, plan.header.target
        here, there = (next((o.name for o in self.stores if o.is_endpoint(side)), None) for side in (source, target))
        if here is None and there is None:
            return migrated
        self._journals.append((plan, state))
        bounces: Mapping[str, OpenBounce] = {}
        if has_phases(plan.header):
            from offsetmgr.migration.bounce_checkpoint import open_bounces

            bounces = open_bounces(plan.groups(), plan.header, self._operations)
        for group in plan.groups():
            if not group.error:
                found = migrated_group(plan, state, group, (here, there), bounces.get(group.name))
                migrated.update(dict.fromkeys((group.name, group.target_group), found))
        return migrated

    def locate(
        self,
        groups: Iterable[str],
        window: ObservationWindow | None = None,
        seen: Mapping[str, PhaseEvidence] = MappingProxyType({}),
    ) -> Iterator[GroupLocation]:
        """Yields the location of each group, in the order of ``groups``. ``seen`` are phases that observed commits
        prove. With a ``window``, first watches the commits of each batch of groups for at most this time."""
        for names in batched(groups, BATCH_GROUPS):
            self._add_recorded(names)
            seen = {**seen, **self._watch(names, window)}
            every = list(dict.fromkeys([*names, *(self._name_in(one.name, n) for one in self.stores for n in names)]))
            samples: dict[str, Mapping[str, StoreSample]] = {}
            for one in self.stores:  # ZooKeeper before Kafka
                elsewhere = {self._name_in(one.name, n): self._partitions(samples, n) for n in names}
                samples[one.name] = self._read(one, every, elsewhere)
            logs = self._logs({tp for store in samples.values() for found in store.values() for tp in found.partitions})
            writers = self._writers([name for name in names if name not in seen], samples)
            for name in names:
                read = tuple(store[name] for store in samples.values())
                named = {store: found[self._name_in(store, name)] for store, found in samples.items()}
                plan, written = self._plans.get(name), writers.get(name, {})
                yield locate(GroupSample(name, read, logs, seen.get(name), plan, written, named, self.watched))

    def _partitions(self, samples: Mapping[str, Mapping[str, StoreSample]], name: str) -> list[TopicPartition]:
        return [tp for store, read in samples.items() for tp in read[self._name_in(store, name)].offsets]

    def _name_in(self, store: str, name: str) -> str:
        """Returns the name of a group in a store. A plan may rename the group."""
        plan = self._plans.get(name)
        return name if plan is None else {plan.source: plan.group, plan.target: plan.target_group}.get(store, name)

    def _writers(
        self, names: list[str], samples: Mapping[str, Mapping[str, StoreSample]]
    ) -> Mapping[str, Mapping[TopicPartition, LastWriter]]:
        """Returns the last writers of ZooKeeper and Kafka, if both were read."""
        stores = {one.name: one.store for one in self.stores if one.error is None}
        if not {"zookeeper", "kafka"} <= stores.keys():
            return {}
        old, new = stores["zookeeper"], stores["kafka"]
        writes = last_writes(old, new, *self._journals, limit_s=VIEW_LIMIT_S)

        def offsets(store: str, name: str) -> GroupOffsets:
            read = samples[store][self._name_in(store, name)]
            found = {tp: offset for tp, offset in read.offsets.items() if isinstance(offset, Committed)}
            return GroupOffsets(self._name_in(store, name), found)

        pairs = [GroupPair(offsets("zookeeper", name), offsets("kafka", name)) for name in names]
        try:
            return {name: pair.writers for name, pair in zip(names, writes.find(pairs), strict=True)}
        except OffsetMgrError:  # the differing offsets are shown without evidence
            return {}

    def _watch(self, names: list[str], window: ObservationWindow | None) -> Mapping[str, PhaseEvidence]:
        stores = {one.name: one for one in self.stores if one.error is None}
        zookeeper, kafka = stores.get("zookeeper"), stores.get("kafka")
        if window is None or zookeeper is None or zookeeper.session is None or kafka is None:
            return {}
        from offsetmgr.migration.evidence import seen_phase

        self.watched = True
        observe = partial(_observe, zookeeper.store, zookeeper.session, kafka.store, self._clock)
        watched = watch(observe, names, window, self._clock, enough=lambda history: seen_phase(history) is not None)
        seen = {name: seen_phase(one) for name, one in watched.items() if isinstance(one, GroupHistory)}
        return {name: phase for name, phase in seen.items() if phase is not None}

    def _read(
        self, one: ConfiguredStore, names: list[str], elsewhere: Mapping[str, Iterable[TopicPartition]]
    ) -> Mapping[str, StoreSample]:
        """Reads groups from one store. ``elsewhere`` has the partitions that earlier stores list: the scan of this
        store may omit them, because this login may not see their offsets."""
        if one.error is not None:
            unread = StoreSample(one.name, one.store.uri, error=one.error, members_error=one.error)
            return dict.fromkeys(names, unread)
        scanned = scan_tolerantly(one.store, names)
        offsets = {found.name: found for found in with_unlisted(one.store, [*scanned.values()], elsewhere)}
        members = value_of_each(one.describe, names)
        kinds = {name: found.error for name, found in offsets.items() if isinstance(found.error, OtherGroupKind)}
        shares = [name for name, kind in kinds.items() if kind.type == "share"]
        started = value_of_each(self._cluster.share_offsets, shares) if shares and self._cluster is not None else {}
        samples = {}
        for name in names:  # processes of offsetmgr that hold the group lock are no members
            found, described, share = offsets[name], members[name], started.get(name)
            if isinstance(described, GroupDescription) and any(member.persistent for member in described.members):
                described = OffsetMgrError("members in ZooKeeper", "are persistent nodes, so they may run or not")
            # A streams group may have no commits, and a share group has start offsets.
            error = None if name in kinds and (name not in shares or share is not None) else found.error
            samples[name] = StoreSample(
                one.name,
                one.store.uri,
                {**found.offsets, **found.errors},
                () if isinstance(described, OffsetMgrError) or described.lock_ends_s else described.members,
                share if isinstance(share, OffsetMgrError) else error or found.hidden,
                described if isinstance(described, OffsetMgrError) else None,
                found.unrecognised if found.hidden is None else (),
                unregistered="" if one.session is not None else "clients of its layout do not register",
                share=None if isinstance(share, OffsetMgrError) else share,
            )
        return samples

    def _logs(self, partitions: set[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        numbered = sorted(tp for tp in partitions if type(tp.partition) is int)
        return {} if self._cluster is None or not numbered else value_of_each(self._cluster.log_ranges, numbered)


# --- the store in which a group lives -------------------------------------------------------------------


class OtherHome(NamedTuple):
    """The home of a group that is not known to live in the selected store ``selected``. ``uri`` is the store to which
    its consumers commit, ``name`` the name of the group there, and ``why`` the evidence; if ``uri`` is None, the home
    is unknown. ``candidates`` are the configured stores that may be the home, and ``same`` is whether they hold the
    same offsets. ``options`` are the connection options of a command that `refusal` names."""

    group: str
    name: str
    selected: str
    uri: str | None
    why: str
    candidates: tuple[str, ...]
    same: bool = False
    options: str = ""

    @property
    def text(self) -> str:
        """The home of the group, with the evidence."""
        if self.uri is None:
            return f"the store to which its consumers commit is not known: {self.why}"
        there, here = map(title_of, (self.uri, self.selected))
        name = "" if self.name == self.group else f" as {self.name!r}"
        return f"its consumers commit to {there}{name}, not to {here}: {self.why}"

    def refusal(self) -> GateRefused:
        """Returns the error of an edit in the selected store."""
        if self.uri is None:
            named = " or ".join("{store} {}" for _ in self.candidates)
            watch = call_of("groups where", (), literal_pattern(self.group), window=60)
            uris = map(shlex.quote, self.candidates)
            hint = Advice(f"name the store: add {named}; {{}}{{}} watches commits", *uris, watch, self.options)
        else:
            named, here = shlex.quote(self.uri), shlex.quote(self.selected)
            name = "" if self.name == self.group else f" and name the group {self.name!r}"
            text = "add {store} {}{}; {store} {} edits the offsets that its consumers do not use"
            hint = Advice(text, named, name, here)
        return GateRefused(f"group {self.group!r}", self.text, hint)


def homes_text(homes: Sequence[OtherHome]) -> str:
    """Returns the names of groups, and the home of the first."""
    first = homes[0]
    if len(homes) == 1:
        return f"group {first.group!r}: {first.text}"
    return f"groups {list_of((repr(home.group) for home in homes), 5)}: of {first.group!r}, {first.text}"


def other_home(one: GroupLocation, kind: str, options: str = "") -> OtherHome | None:
    """Returns the home of a group; None if it lives in the selected store, which is of this kind, or if no other store
    has anything of it. See `OtherHome` for ``options``."""
    sample, phase, plan = one.sample, one.phase, one.sample.plan
    selected = sample.store(kind)
    others = [store for store in sample.stores if store.name != kind]
    used = [store for store in others if store.may_have_group]
    if phase == kind or selected is None:
        return None
    name, uri = one.name, None
    if phase is Phase.MOVED and plan is not None:
        if (plan.target, plan.target_group) == (kind, one.name):
            return None
        target = sample.store(plan.target or "")
        name, uri = plan.target_group, plan.target_uri if target is None else target.uri
    elif (there := sample.store(phase)) is not None:
        uri = there.uri
    elif not used:
        return None
    same = all(not store.problem and store.committed == selected.committed for store in (selected, *used))
    candidates = (selected.uri, *(store.uri for store in used))
    return OtherHome(one.name, name, selected.uri, uri, one.why, candidates, same, options)


def document_of(one: GroupLocation, options: str) -> dict[str, Any]:
    """Returns a location as a JSON object. ``options`` are the connection options of the next command."""
    return {
        "group": one.name,
        "phase": one.phase.value,
        "confidence": one.confidence.value,
        "evidence": one.why,
        "lag": one.lag,
        "stores": {store.name: _store_document(store) for store in one.sample.stores},
        "partitions": [*map(_partition_document, one.partitions)],
        "next": one.next.to_json(options),
    }


def _store_document(store: StoreSample) -> dict[str, Any]:
    members = [
        {
            "member_id": member.member_id,
            "client_id": member.client_id or None,
            "host": member.host or None,
            "partitions": [str(tp) for tp in member.partitions],
        }
        for member in store.members
    ]
    return {
        "uri": store.uri,
        "offsets": None if store.error or store.share else len(store.committed),
        "error": str(store.error) if store.error else None,
        "members": None if store.members_error else members,
        "members_error": str(store.members_error) if store.members_error else None,
    }


def _partition_document(p: LocatedPartition) -> dict[str, Any]:
    number = p.partition.partition
    return {
        "topic": p.partition.topic,
        "partition": number if type(number) is int else str(number),
        "offsets": {name: f.offset if isinstance(f, Committed) else None for name, f in p.offsets.items()},
        "errors": {name: str(f) for name, f in p.offsets.items() if isinstance(f, OffsetMgrError)},
        "log_start_offset": p.log.start if isinstance(p.log, LogRange) else None,
        "log_end_offset": p.log_end,
        "lag": p.lag,
        "note": p.note or None,
    }
