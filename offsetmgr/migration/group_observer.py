"""Observes a live group of old consumers once or repeatedly: reads its registered members, its partition owners, both
stores and the logs.

The evidence relies on the order of the reads (see `observation`). Of the modules that write and check runbooks, only
this module reads from servers. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import (
    GroupNotFound,
    InvalidPattern,
    OffsetMgrError,
    OtherCluster,
    PartialFailure,
    UnsupportedOperation,
    value_of,
)
from offsetmgr.core.model import ABSENT, Committed, LogRange, TopicPartition
from offsetmgr.core.offset_store import OffsetStore, has_identity
from offsetmgr.kafka.cluster.base import Cluster
from offsetmgr.migration.observation import Observation, OffsetReadResult, PartitionOwner, RegisteredMember
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups import ownership, registry
from offsetmgr.zookeeper.groups.topic_filter import topics_of
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.consumers import BLACK_LIST, WHITE_LIST


@dataclass(frozen=True, slots=True)
class RegistryView:
    """The registry of a group at one moment: live members by id, owners, and the znodes that could not be decoded."""

    members: Mapping[str, RegisteredMember]
    owners: Mapping[TopicPartition, PartitionOwner]
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ZookeeperRegistry:
    """The live members and owners in ZooKeeper, under ``/consumers/GROUP/ids`` and ``/owners``."""

    session: ZookeeperSession

    def members(self, group: str, existing: Callable[[], Iterable[str]]) -> RegistryView:
        """Returns the members with their subscribed topics. ``existing`` returns the topics that a pattern can match;
        it is called only if a member subscribes with a pattern."""
        self.session.sync()  # makes earlier registrations visible on any server of the ensemble
        (listed,) = registry.members_many(self.session, [group])
        if listed.error is not None:
            raise listed.error
        live = listed.members
        topics = list(existing()) if any(m.registration.pattern in (WHITE_LIST, BLACK_LIST) for m in live) else []
        found: dict[str, RegisteredMember] = {}
        unreadable: list[str] = []
        for m in live:
            error, node = m.error, m.node
            selected: tuple[str, ...] = ()
            try:
                selected = tuple(sorted(topics_of(m.registration.subscription, m.registration.pattern, topics)))
            except (InvalidPattern, UnsupportedOperation) as rejected:
                error = rejected
            if error is not None:
                unreadable.append(f"{paths.ids(group)}/{m.member_id} ({error})")
            found[m.member_id] = RegisteredMember(
                m.member_id, m.host, node.ctime_ms, node.czxid, node.ephemeral_owner, selected
            )
        return RegistryView(found, {}, tuple(unreadable))

    def owners(self, group: str) -> RegistryView:
        """Returns the owners only; ``members`` is empty."""
        (found,) = ownership.owners_many(self.session, [group])
        if found.error is not None:
            raise found.error
        known: dict[TopicPartition, PartitionOwner] = {}
        unreadable = [f"{path} ({error})" for path, error in found.errors.items()]
        for tp, owner in found.owners.items():
            if owner.member_id is None:
                unreadable.append(f"{paths.owners_of_topic(group, tp.topic)}/{owner.name} ({owner.error})")
            else:
                known[tp] = PartitionOwner(owner.member_id, owner.node.czxid)
        return RegistryView({}, known, tuple(unreadable))


@dataclass(frozen=True, slots=True)
class GroupView:
    """The sources of an observation: the registry, both stores, the cluster and a clock."""

    registry: ZookeeperRegistry
    zookeeper: OffsetStore
    kafka: OffsetStore
    cluster: Cluster
    clock: Clock = field(default_factory=SystemClock)

    def store_ids(self) -> dict[str, str]:
        """Returns the identity of each store (cluster id, ...)."""
        return {"zookeeper": self.zookeeper.identity().id, "kafka": self.kafka.identity().id}

    def require_stores(self, what: str, baseline: Observation) -> None:
        """Raises `OtherCluster` if the baseline in the file ``what`` belongs to other stores. Files of releases that
        did not save the stores pass."""
        for role, store in (("zookeeper", self.zookeeper), ("kafka", self.kafka)):
            saved = baseline.stores.get(role)
            if saved is not None and not has_identity(store, saved):
                raise OtherCluster(
                    what,
                    f"it was written for {role} {saved}, this is {role} {store.identity().id}",
                    "name the servers of that cluster, or a file of this cluster",
                )

    def observe(self, group: str, *, tolerant: bool = False) -> Observation:
        """Makes one observation.

        With ``tolerant``, a retriable error of a whole store is not raised, but recorded as the read result of every
        partition. An example is the coordinator's error while it moves or loads. An error of the registry is always
        raised. Raises `Unreachable`, `TimedOut` and other errors of the stores.
        """
        view = self.registry.members(group, self.cluster.topics)
        before = self.registry.owners(group)
        zookeeper = _read(self.zookeeper, group, tolerant)
        kafka = _read(self.kafka, group, tolerant)
        after = self.registry.owners(group)
        unchanged = {tp: owned for tp, owned in before.owners.items() if after.owners.get(tp) == owned}
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
            owners=unchanged,
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
        consumed = sorted(partitions)
        try:
            return self.cluster.log_ranges(consumed) if consumed else {}
        except OffsetMgrError as error:
            if tolerant and error.retriable:
                return dict.fromkeys(consumed, error)
            raise


@dataclass(frozen=True, slots=True)
class _StoreSample:
    found: Mapping[TopicPartition, OffsetReadResult]
    error: OffsetMgrError | None = None

    def of(self, tp: TopicPartition) -> OffsetReadResult:
        """Returns the read result of one partition. All commits of the group were read, so a partition that was not
        found has no commit."""
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
    """The maximum duration of the observation, and the interval between two observations, in seconds.

    ``waiting`` is called before each further observation, with the seconds that remain. ``failed`` is called with the
    error of an observation that is repeated.

    >>> ObservationWindow(duration_s=30).poll_s
    0.5
    """

    duration_s: float = 180.0
    poll_s: float = 0.5
    waiting: Callable[[float], None] = field(default=lambda _seconds: None, compare=False, repr=False)
    failed: Callable[[OffsetMgrError], None] = field(default=lambda _error: None, compare=False, repr=False)


def watch_group(
    view: GroupView,
    group: str,
    window: ObservationWindow,
    *,
    enough: Callable[[GroupHistory], bool],
    stop: Callable[[], bool] = lambda: False,
    tolerant: bool = False,
) -> GroupHistory:
    """Observes the group repeatedly until ``enough`` or ``stop`` returns True, or until the window is over.

    Unless ``tolerant`` is True, the first observation raises any error of the servers. All later observations tolerate
    retriable errors of a store. If ``tolerant`` is True, an observation that fails with a retriable error is repeated
    until the window is over.
    """
    return value_of(watch_groups(view, [group], window, enough=enough, stop=stop, tolerant=tolerant)[group])


def watch_groups(
    view: GroupView,
    groups: Iterable[str],
    window: ObservationWindow,
    *,
    enough: Callable[[GroupHistory], bool],
    stop: Callable[[], bool] = lambda: False,
    tolerant: bool = False,
) -> dict[str, GroupHistory | OffsetMgrError]:
    """Observes the groups in turn, as `watch_group` does, all within one window. A group is observed until ``enough``
    returns True for it.

    Returns the error instead of the history for a group that cannot be observed. Retriable errors, such as an
    unreachable server, concern all groups and are raised; see `watch_group` for ``tolerant``.
    """
    found: dict[str, GroupHistory | OffsetMgrError] = {}
    pending: dict[str, GroupHistory] = {}
    deadline = view.clock.monotonic() + window.duration_s

    def observe(group: str, *, accept: bool) -> Observation | OffsetMgrError:
        """Returns an observation, or an error that concerns only this group. Raises retriable errors."""
        while True:
            try:
                return view.observe(group, tolerant=accept)
            except OffsetMgrError as error:
                if not error.retriable:
                    return error
                if not tolerant or stop() or view.clock.monotonic() >= deadline:
                    raise
                window.failed(error)
                view.clock.sleep(window.poll_s)

    for group in groups:
        first = observe(group, accept=tolerant)
        if isinstance(first, OffsetMgrError):
            found[group] = first
        else:
            pending[group] = found[group] = GroupHistory([first])
    while pending := {group: history for group, history in pending.items() if not enough(history)}:
        if stop() or view.clock.monotonic() >= deadline:
            break
        window.waiting(deadline - view.clock.monotonic())
        view.clock.sleep(window.poll_s)
        for group, history in list(pending.items()):
            observation = observe(group, accept=True)
            if isinstance(observation, OffsetMgrError):
                found[group] = observation
                del pending[group]
            else:
                history.add(observation)
    return found
