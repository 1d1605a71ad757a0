"""Making a plan: reads both sides, asks the cluster, decides. Reads only; writes nothing but the plan file."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from offsetmgr.clock import Clock
from offsetmgr.cluster.base import Cluster
from offsetmgr.errors import OffsetMgrError, UsageError
from offsetmgr.migration.batches import READ_GROUPS, batched, one_ahead
from offsetmgr.migration.plan import (
    Endpoint,
    GroupPlan,
    LogMissing,
    PlanHeader,
    PlanOptions,
    Step,
    check_renames,
    decide,
)
from offsetmgr.model import ABSENT, Committed, GroupDescription, LogRange, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.stores.base import GroupOffsets, Guard, OffsetStore


class OldMembers(Protocol):
    """Who is registered in ZooKeeper: asked for the groups of a plan, so that it knows where old consumers live."""

    def __call__(self, groups: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """Live member ids by group; groups without members may be left out. Raises where it cannot be read."""
        ...


@dataclass(slots=True)
class LogKnowledge:
    """What the Kafka cluster says of topics and log ranges, asked once a partition and remembered.

    Its size grows with the partitions of the cluster, not with the offsets planned.
    """

    cluster: Cluster | None
    _topics: dict[str, int] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)
    _known: dict[TopicPartition, LogRange | OffsetMgrError] = field(default_factory=dict)

    def learn(self, partitions: Iterable[TopicPartition]) -> None:
        """Asks for those that are not known yet, in bulk."""
        if self.cluster is None:
            return
        new = set(partitions) - self._known.keys()
        if names := {tp.topic for tp in new} - self._asked:
            self._topics.update(self.cluster.topics(names))
            self._asked |= names
        if existing := [tp for tp in new if tp.partition < self._topics.get(tp.topic, 0)]:
            self._known.update(self.cluster.log_ranges(existing))

    def of(self, tp: TopicPartition) -> LogRange | LogMissing | OffsetMgrError | None:
        if self.cluster is None:
            return None
        if tp.topic not in self._topics:
            return LogMissing.TOPIC
        if not 0 <= tp.partition < self._topics[tp.topic]:
            return LogMissing.PARTITION
        return self._known[tp]

    def end(self, tp: TopicPartition) -> int | None:
        """The log end offset, where it was learned and is known."""
        found = self._known.get(tp)
        return found.end if isinstance(found, LogRange) else None


def endpoint(store: OffsetStore) -> Endpoint:
    """What a store is seen to be right now. Raises `Unreachable`, `TimedOut`."""
    identity = store.identity()
    return Endpoint(store.uri, identity.kind, identity.id, identity.how)


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans a migration. ``cluster`` is the Kafka cluster whose logs the offsets point into; None leaves topics and
    ranges unchecked, and the plan says so."""

    source: OffsetStore
    target: OffsetStore
    options: PlanOptions
    clock: Clock
    cluster: Cluster | None = None
    old_members: OldMembers | None = None
    tool: str = "offsetmgr"

    def header(self) -> PlanHeader:
        source, target = endpoint(self.source), endpoint(self.target)
        if (source.kind, source.id) == (target.kind, target.id) and not self.options.rename:
            raise UsageError("plan", f"source and target are the same place ({source.id})", "give --rename OLD=NEW")
        retention = self.cluster.offsets_retention_ms() if self.cluster and target.kind == "kafka" else None
        return PlanHeader(
            str(uuid.uuid4()),
            self.clock.now_ms(),
            source,
            target,
            self.options,
            self.cluster.cluster_id() if self.cluster else None,
            retention,
            self.tool,
        )

    def selected_groups(self) -> list[str]:
        """Groups of the source that the options want, sorted. A group asked for by its full name that is not there
        is an error, not an empty plan. Raises `UsageError`."""
        groups = sorted(group for group in self.source.groups() if self.options.wants_group(group))
        wanted = {p for p in self.options.groups if not any(c in p for c in "*?[")}
        if missing := sorted(wanted - set(groups)):
            raise UsageError(f"group {missing[0]}", f"not found in {self.source.uri}", "see: offsetmgr groups list")
        if unused := sorted(set(self.options.rename) - set(groups)):
            raise UsageError(f"--rename {unused[0]}", "this group is not part of the plan")
        check_renames(self.options.rename, groups)
        return groups

    def plan(self, groups: Iterable[str], progress: Callable[[int], None] | None = None) -> Iterator[GroupPlan]:
        """Decides every step, group by group, lazily; ``progress`` is told how many groups were added."""
        existing = set(self.target.groups())
        log = LogKnowledge(self.cluster)
        # The source is read first: what a dual-committing consumer writes in between is then seen in the target.
        for batch, sources in one_ahead(self._read_source, batched(groups, READ_GROUPS)):
            yield from self._plan_batch(batch, sources, existing, log)
            if progress:
                progress(len(batch))

    def _read_source(self, batch: list[str]) -> dict[str, GroupOffsets]:
        return {found.group: found for found in self.source.scan(batch)}

    def _plan_batch(
        self, batch: list[str], sources: Mapping[str, GroupOffsets], existing: set[str], log: LogKnowledge
    ) -> Iterator[GroupPlan]:
        names = {group: self.options.target_group(group) for group in batch}
        known = [name for name in names.values() if name in existing]
        targets = {found.group: found for found in self.target.scan(known)} if known else {}
        described = self.cluster.describe_groups(known) if self.cluster and known and self._to_kafka else {}
        old = self.old_members(names.values()) if self.old_members else {}
        log.learn(tp for found in sources.values() for tp in found.offsets if self.options.wants(tp))
        for group, name in names.items():
            target = targets.get(name, GroupOffsets(name, {}))
            yield self._plan_group(sources[group], target, described.get(name), old, log)

    @property
    def _to_kafka(self) -> bool:
        return self.target.capabilities.conditional == "group-lock"

    def _plan_group(
        self,
        source: GroupOffsets,
        target: GroupOffsets,
        described: GroupDescription | OffsetMgrError | None,
        old: Mapping[str, tuple[str, ...]],
        log: LogKnowledge,
    ) -> GroupPlan:
        group, name = source.group, target.group
        if failed := source.error or target.error or (described if isinstance(described, OffsetMgrError) else None):
            side = "source" if source.error else "target"
            return GroupPlan(group, name, (), error=f"{side}: {failed}")
        assert not isinstance(described, OffsetMgrError)
        steps = tuple(self._step(tp, source, target, log) for tp in self._partitions(source, target))
        registered = tuple(sorted(set(old.get(name, ())) | set(old.get(group, ()))))
        guard, note = self._guard(registered)
        members = tuple(str(m) for m in described.members) if described and not described.idle else ()
        return GroupPlan(group, name, steps, guard, note, registered, members, described.state if described else "")

    def _partitions(self, source: GroupOffsets, target: GroupOffsets) -> list[TopicPartition]:
        seen = {*source.offsets, *source.errors, *target.offsets, *target.errors}
        return sorted(tp for tp in seen if self.options.wants(tp))

    def _step(self, tp: TopicPartition, source: GroupOffsets, target: GroupOffsets, log: LogKnowledge) -> Step:
        found: Committed | OffsetMgrError | None = source.errors.get(tp) or source.offsets.get(tp)
        here: Offset | OffsetMgrError = target.errors.get(tp) or target.offsets.get(tp) or ABSENT
        if isinstance(found, Committed):
            return decide(tp, self._carried(found), here, log.of(tp), self.options)
        return decide(tp, found, here, None, self.options)

    def _carried(self, found: Committed) -> OffsetAndMetadata:
        """What the target can hold of a commit: an offset that would come back different is not a plan."""
        can = self.target.capabilities
        return OffsetAndMetadata(
            found.offset,
            found.metadata if can.metadata else "",
            found.leader_epoch if can.leader_epoch else None,
            found.commit_timestamp if can.commit_timestamp else None,
        )

    def _guard(self, registered: tuple[str, ...]) -> tuple[Guard, str]:
        if not self._to_kafka:
            return Guard.LOCK, ""
        if registered:
            return Guard.COMPARE, (
                "not atomic: old consumers are registered in ZooKeeper and may commit into this group in Kafka, which a"
                " group lock would break; the copy is safe because they read the larger of both stores while dual"
                " commit is on"
            )
        return Guard.LOCK, ""
