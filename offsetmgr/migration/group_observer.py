"""Looking at a live group of old consumers: registry, owners, both stores and the logs, read in the order that the
judgement needs (see `group_snapshot`), once or over a window.

The only module of the runbooks that reads servers; it writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import GroupNotFound, InvalidPattern, OffsetMgrError, PartialFailure, UnsupportedOperation
from offsetmgr.core.model import ABSENT, Committed, LogRange, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.kafka.cluster.base import Cluster
from offsetmgr.migration.group_snapshot import Observation, PartitionOwner, Reading, RegisteredMember
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups import ownership, registry
from offsetmgr.zookeeper.groups.topic_filter import BLACK_LIST, WHITE_LIST, topics_of
from offsetmgr.zookeeper.nodes import paths


@dataclass(frozen=True, slots=True)
class RegistryView:
    """A group's registry at one moment: live members by id, owners, and nodes that could not be understood."""

    members: Mapping[str, RegisteredMember]
    owners: Mapping[TopicPartition, PartitionOwner]
    unreadable: tuple[str, ...] = ()


class Registry(Protocol):
    """Where live members and owners are read from (`ZookeeperRegistry`)."""

    def members(self, group: str, existing: Callable[[], Iterable[str]]) -> RegistryView:
        """Members with the topics that they subscribe to; ``existing`` gives the topics to match patterns against, and
        is asked only where somebody has a pattern."""
        ...

    def owners(self, group: str) -> RegistryView:
        """Owners alone; ``members`` is empty."""
        ...


@dataclass(frozen=True, slots=True)
class ZookeeperRegistry:
    """The registry as ZooKeeper holds it, under ``/consumers/GROUP/ids`` and ``/owners``."""

    session: ZookeeperSession

    def members(self, group: str, existing: Callable[[], Iterable[str]]) -> RegistryView:
        self.session.sync()  # whoever registered before this look is seen by it, whichever server we are connected to
        live = registry.members(self.session, group)
        topics = list(existing()) if any(m.pattern in (WHITE_LIST, BLACK_LIST) for m in live) else []
        found: dict[str, RegisteredMember] = {}
        unreadable: list[str] = []
        for m in live:
            error = m.error
            selected: tuple[str, ...] = ()
            try:
                selected = tuple(sorted(topics_of(dict(m.subscription), m.pattern, topics)))
            except (InvalidPattern, UnsupportedOperation) as refused:
                error = refused
            if error is not None:
                unreadable.append(f"{paths.member(group, m.member_id)} ({error})")
            found[m.member_id] = RegisteredMember(
                m.member_id, m.host, m.registered_at_ms, m.czxid, m.session_id, selected
            )
        return RegistryView(found, {}, tuple(unreadable))

    def owners(self, group: str) -> RegistryView:
        (found,) = ownership.owners_many(self.session, [group])
        if found.error is not None:
            raise found.error
        known: dict[TopicPartition, PartitionOwner] = {}
        unreadable = [f"{path} ({error})" for path, error in found.errors.items()]
        for tp, owner in found.owners.items():
            if owner.member_id is None:
                unreadable.append(f"{paths.owner(group, tp.topic, tp.partition)} ({owner.error})")
            else:
                known[tp] = PartitionOwner(owner.member_id, owner.czxid)
        return RegistryView({}, known, tuple(unreadable))


@dataclass(frozen=True, slots=True)
class GroupView:
    """Everything that a look at a group needs: the registry, both stores, the cluster and a clock."""

    registry: Registry
    zookeeper: OffsetStore
    kafka: OffsetStore
    cluster: Cluster
    clock: Clock = field(default_factory=SystemClock)

    def observe(self, group: str, *, tolerant: bool = False) -> Observation:
        """One look. ``tolerant``: a store that fails as a whole for a moment (a coordinator that moves or loads) gives
        that error for each of its partitions instead of raising it; ZooKeeper's registry must answer in any case.

        Raises `Unreachable`, `TimedOut` and what else the stores raise.
        """
        view = self.registry.members(group, self.cluster.topics)
        before = self.registry.owners(group)
        zookeeper = _read(self.zookeeper, group, tolerant)
        kafka = _read(self.kafka, group, tolerant)
        after = self.registry.owners(group)
        steady = {tp: owned for tp, owned in before.owners.items() if after.owners.get(tp) == owned}
        subscribed = {topic for member in view.members.values() for topic in member.topics}
        existing = self.cluster.topics(subscribed) if subscribed else {}
        consumed = {
            TopicPartition(topic, number) for topic in subscribed for number in range(existing.get(topic, 0))
        } | set(before.owners)
        held = set(zookeeper.found) | set(kafka.found)
        every = sorted(consumed | held)
        return Observation(
            group=group,
            members=view.members,
            owners=steady,
            partitions=tuple(sorted(consumed)),
            zookeeper={tp: zookeeper.of(tp) for tp in every},
            kafka={tp: kafka.of(tp) for tp in every},
            logs=self._logs(consumed, tolerant),
            unconsumed=tuple(sorted(held - consumed)),
            unreadable=tuple(sorted({*view.unreadable, *before.unreadable})),
            at_ms=self.clock.now_ms(),
        )

    def _logs(
        self, partitions: Iterable[TopicPartition], tolerant: bool
    ) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        wanted = sorted(partitions)
        try:
            return self.cluster.log_ranges(wanted) if wanted else {}
        except OffsetMgrError as error:
            if tolerant and error.retriable:
                return dict.fromkeys(wanted, error)
            raise


@dataclass(frozen=True, slots=True)
class _StoreSample:
    found: Mapping[TopicPartition, Reading]
    error: OffsetMgrError | None = None

    def of(self, tp: TopicPartition) -> Reading:
        """What the store said of one partition: all commits were asked for, so one that is not there is absent."""
        return self.error if self.error is not None else self.found.get(tp, ABSENT)


def _read(store: OffsetStore, group: str, tolerant: bool) -> _StoreSample:
    try:
        return _StoreSample({tp: found for tp, found in store.fetch(group).items() if isinstance(found, Committed)})
    except PartialFailure as partly:
        known = {tp: found for tp, found in partly.successes.items() if isinstance(found, Committed)}
        return _StoreSample({**known, **partly.failures})
    except GroupNotFound:
        return _StoreSample({})
    except OffsetMgrError as error:
        if tolerant and error.retriable:
            return _StoreSample({}, error)
        raise


@dataclass(frozen=True, slots=True)
class ObservationWindow:
    """How long to watch, and how often to look (seconds)."""

    seconds: float = 180.0
    poll_seconds: float = 0.5


def watch_group(
    view: GroupView,
    group: str,
    window: ObservationWindow,
    *,
    enough: Callable[[GroupHistory], bool],
    stop: Callable[[], bool] = lambda: False,
    tolerant: bool = False,
) -> GroupHistory:
    """Looks at the group again and again until ``enough`` says so, ``stop`` says so, or the window is over.

    The first look raises what the servers raise, unless ``tolerant``; later ones tolerate a store that fails for a
    moment.
    """
    watch = GroupHistory([view.observe(group, tolerant=tolerant)])
    deadline = view.clock.monotonic() + window.seconds
    while not enough(watch) and not stop() and view.clock.monotonic() < deadline:
        view.clock.sleep(window.poll_seconds)
        watch.add(view.observe(group, tolerant=True))
    return watch
