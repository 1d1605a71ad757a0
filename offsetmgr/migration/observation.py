"""An observation of a group of old consumers at one moment, as a value and as JSON.

`GroupView` makes observations, `GroupHistory` combines them, and `evidence` draws conclusions from them. A runbook
stores one observation as the baseline.

Ordering contract, on which the evidence relies: an observation reads the owners first, then the offsets in ZooKeeper,
then the offsets in Kafka, then the owners again. If the two reads of the owners differ for a partition, the observation
has no owner for this partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import (
    GroupNotFound,
    InvalidPattern,
    MalformedData,
    OffsetMgrError,
    OtherCluster,
    UnsupportedOperation,
    UsageError,
    value_of,
)
from offsetmgr.core.field_reader import MAX_LONG, FieldReader
from offsetmgr.core.model import ABSENT, Absent, Committed, LogRange, Offset, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore, fetch_group, has_identity
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.migration.plan import PlanHeader
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.stores.dual_policy import outcome_of
from offsetmgr.stores.uri import scheme_of
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups import registry
from offsetmgr.zookeeper.groups.subscription import topics_of
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.consumers import BLACK_LIST, WHITE_LIST

if TYPE_CHECKING:
    from offsetmgr.groups.describe import Descriptions
    from offsetmgr.stores.zookeeper import ZookeeperStore

OffsetReadResult: TypeAlias = Offset | OffsetMgrError
"""The result of one read of one partition: a commit, its absence, or the error. An error never counts as absence."""


@dataclass(frozen=True, slots=True)
class RegisteredMember:
    """A member as registered in ``/consumers/GROUP/ids/ID``.

    ``host`` is part of a generated id (``GROUP_HOST-MILLISECONDS-8 hex digits``). ``host`` is None if the id was
    configured (``consumer.id``). A configured id stays the same after a restart. ``registered_at_ms`` (since 1970) and
    ``czxid`` describe the *last* registration: a process registers again after its session has expired. ``session`` is
    the id of the ZooKeeper session.
    """

    id: str
    host: str | None
    registered_at_ms: int | None
    czxid: int
    session: int
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionOwner:
    """One ownership of a partition: the member, and the transaction (czxid) that created the partition's owner znode.
    If the znode is deleted and created again, a new ownership begins, even if the member is the same."""

    member: str
    czxid: int


def partition_owners(found: registry.GroupOwners) -> dict[TopicPartition, PartitionOwner]:
    """Returns the owners of a group's partitions."""
    named = ((tp, owner.member_id or "an owner that cannot be read", owner.node) for tp, owner in found.owners.items())
    return {tp: PartitionOwner(member, node.czxid) for tp, member, node in named}


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation of a group: its members and owners, its offsets in both stores, and the log ranges. ``at_ms`` is
    the time at which the observation was complete.

    ``partitions`` are the partitions of all topics to which live members subscribe, and all partitions with an owner. A
    partition that is not in ``owners`` had no owner, or its owner changed during the observation. ``unconsumed`` are
    partitions that have offsets, but are not in ``partitions``. ``unreadable`` names the znodes that could not be
    decoded. ``stores`` has the identity of each store, if the observation is the baseline of a file.
    """

    group: str
    at_ms: int
    members: Mapping[str, RegisteredMember]
    owners: Mapping[TopicPartition, PartitionOwner]
    partitions: tuple[TopicPartition, ...]
    zookeeper: Mapping[TopicPartition, OffsetReadResult]
    kafka: Mapping[TopicPartition, OffsetReadResult]
    logs: Mapping[TopicPartition, LogRange | OffsetMgrError]
    unconsumed: tuple[TopicPartition, ...] = ()
    unreadable: tuple[str, ...] = ()
    stores: Mapping[str, str] = field(default_factory=dict)

    def owned_by(self, member: str) -> tuple[TopicPartition, ...]:
        return tuple(sorted(tp for tp, owned in self.owners.items() if owned.member == member))

    def lag(self, tp: TopicPartition) -> int | None:
        """Returns the number of messages between the larger committed offset and the log's end; None if unknown."""
        log = self.logs.get(tp)
        known = [r.offset for r in (self.zookeeper.get(tp), self.kafka.get(tp)) if isinstance(r, Committed)]
        if not isinstance(log, LogRange) or not known:
            return None
        return max(0, log.end - max(*known, log.start))


def at(ms: int | None) -> str:
    """Returns a time in ISO 8601, UTC, to the second."""
    if ms is None:
        return "an unknown time"
    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clock_time(ms: int) -> str:
    """Returns the time of day (UTC) of an event within an observation."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%H:%M:%S.%f")[:-3]


def reading_text(reading: OffsetReadResult | None) -> str:
    """Returns an offset as text."""
    if isinstance(reading, Committed):
        return str(reading.offset)
    if isinstance(reading, OffsetMgrError):
        return "unreadable"
    return "unknown" if reading is None else "no offset"


# --- JSON ----------------------------------------------------------------------------------------


def to_json(observation: Observation) -> dict[str, Any]:
    """Returns the observation as plain JSON values. Errors become text, and unknown numbers null."""
    everything = sorted({*observation.partitions, *observation.unconsumed, *observation.zookeeper, *observation.kafka})
    return {
        "group": observation.group,
        "stores": dict(observation.stores),
        "at_ms": observation.at_ms,
        "at": at(observation.at_ms),
        "members": [{**asdict(m), "topics": list(m.topics)} for _, m in sorted(observation.members.items())],
        "partitions": [_partition_to_json(observation, tp) for tp in everything],
        "unreadable": list(observation.unreadable),
    }


def _partition_to_json(observation: Observation, tp: TopicPartition) -> dict[str, Any]:
    owned, log = observation.owners.get(tp), observation.logs.get(tp)
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "consumed": tp in set(observation.partitions),
        "owner": None if owned is None else owned.member,
        "owner_czxid": None if owned is None else owned.czxid,
        "zookeeper": _reading_to_json(observation.zookeeper.get(tp)),
        "kafka": _reading_to_json(observation.kafka.get(tp)),
        "log_start_offset": log.start if isinstance(log, LogRange) else None,
        "log_end_offset": log.end if isinstance(log, LogRange) else None,
        "lag": observation.lag(tp),
    }


def _reading_to_json(reading: OffsetReadResult | None) -> dict[str, Any]:
    if isinstance(reading, Committed):
        return {"state": "committed", "offset": reading.offset, "version": reading.version}
    if isinstance(reading, OffsetMgrError):
        return {"state": "unreadable", "error": str(reading)}
    return {"state": "unknown" if reading is None else "absent"}


def from_json(data: Any, *, where: str) -> Observation:
    """Returns the observation that `to_json` encoded. Raises `MalformedData` with ``where`` and the invalid field."""
    if not isinstance(data, dict):
        raise MalformedData(where, "is not an observation of a group")
    found = FieldReader(data, where)
    rows = {TopicPartition(row.text("topic"), row.integer("partition")): row for row in found.objects("partitions")}
    consumed = {tp: row.boolean("consumed") for tp, row in rows.items()}
    owners = {tp: row.optional_text("owner") for tp, row in rows.items()}
    logs = {
        tp: (row.optional_integer("log_start_offset"), row.optional_integer("log_end_offset"))
        for tp, row in rows.items()
    }
    return Observation(
        group=found.text("group"),
        at_ms=found.integer("at_ms"),
        members={m.text("id"): _member(m) for m in found.objects("members")},
        owners={
            tp: PartitionOwner(owner, rows[tp].integer("owner_czxid", -MAX_LONG))
            for tp, owner in owners.items()
            if owner is not None
        },
        partitions=tuple(tp for tp in rows if consumed[tp]),
        zookeeper=_readings(rows, "zookeeper"),
        kafka=_readings(rows, "kafka"),
        logs={tp: LogRange(start, end) for tp, (start, end) in logs.items() if start is not None and end is not None},
        unconsumed=tuple(tp for tp in rows if not consumed[tp]),
        unreadable=tuple(found.text_list("unreadable")),
        stores=stores_from_json(found.values),
    )


def stores_from_json(data: Mapping[str, Any]) -> dict[str, str]:
    """Returns the identities of the stores; empty if an older release wrote the file without them."""
    found = data.get("stores")
    return {str(role): str(name) for role, name in found.items()} if isinstance(found, dict) else {}


def _member(m: FieldReader) -> RegisteredMember:
    return RegisteredMember(
        m.text("id"),
        m.optional_text("host"),
        m.optional_integer("registered_at_ms"),
        m.integer("czxid", -MAX_LONG),
        m.integer("session", -MAX_LONG - 1),  # ZooKeeper's session ids may be negative
        tuple(m.text_list("topics")),
    )


def _readings(rows: Mapping[TopicPartition, FieldReader], store: str) -> dict[TopicPartition, OffsetReadResult]:
    found: dict[TopicPartition, OffsetReadResult] = {}
    for tp, row in rows.items():
        one = row.object(store)
        match one.text("state"):
            case "committed":
                found[tp] = Committed(one.integer("offset"), version=one.optional_integer("version"))
            case "absent":
                found[tp] = ABSENT
            case "unreadable":
                found[tp] = OffsetMgrError(f"offset of {tp}", one.text("error"))
            case "unknown":
                pass
            case _:
                raise one.invalid("state", "committed, absent, unreadable or unknown")
    return found


# Combines observations of a group into the history of each partition, which shows where the owner of the partition
# commits. Pure. A change of an offset is attributed to a member only if the same ownership (the czxid of the owner's
# znode) was observed before and after the change. Therefore a change of the owner begins a new history. The
# conclusions rely on two orders: a dual member writes Kafka before ZooKeeper and finishes one commit before it begins
# the next (ZookeeperConsumerConnector.commitOffsets), and an observation reads ZooKeeper before Kafka. * *ZooKeeper
# alone*: the offset in ZooKeeper changed to X, and the offset in Kafka, read afterwards, is below X. A dual member
# would have written X to Kafka first. * *Kafka alone*: the offset in Kafka changed to X and then to Y, and the offset
# in ZooKeeper, read after Y was observed, has not changed. A dual member finishes the commit of X in ZooKeeper before
# it begins the commit of Y. X must be larger than both stores' offsets at the start of the history, because a dual
# member does not write its starting offset again. * *both*: the offsets in both stores changed.


class OffsetChange(NamedTuple):
    """A change of a committed offset between two observations."""

    at_ms: int
    before: Offset
    after: Committed

    def __str__(self) -> str:
        text = f"{reading_text(self.before)} -> {self.after.offset}"
        if self.after.version is not None:
            before = self.before.version if isinstance(self.before, Committed) else "none"
            text += f" (version {before} -> {self.after.version})"
        return f"{text} at {clock_time(self.at_ms)}"


def offset_or(reading: OffsetReadResult | None) -> int:
    """Returns the offset of a read result, for comparisons with other offsets; -1 if it has no offset."""
    return reading.offset if isinstance(reading, Committed) else -1


@dataclass(slots=True)
class StoreHistory:
    """The offsets of one partition in one store under one ownership."""

    first: Offset | None = None
    last: Offset | None = None
    changes: list[OffsetChange] = field(default_factory=list)
    error: OffsetMgrError | None = None
    """The error of the latest read; None if the read succeeded."""
    lowered: str | None = None
    """The change, as text, if the offset was deleted or decreased. No consumer makes such a change."""

    def add(self, at_ms: int, reading: OffsetReadResult | None) -> bool:
        """Records one read; returns True if the offset has changed."""
        if reading is None or isinstance(reading, OffsetMgrError):
            self.error = reading if reading is not None else OffsetMgrError("offset", "it was not read")
            return False
        self.error = None
        before, self.last = self.last, reading
        if before is None:
            self.first = reading
            return False
        if _value(before) == _value(reading):
            return False
        if isinstance(reading, Absent) or offset_or(reading) < offset_or(before):
            self.lowered = f"{reading_text(before)} -> {reading_text(reading)} at {clock_time(at_ms)}"
        else:
            self.changes.append(OffsetChange(at_ms, before, reading))
        return True


def _value(reading: Offset) -> tuple[int, int | None] | None:
    return (reading.offset, reading.version) if isinstance(reading, Committed) else None


@dataclass(slots=True)
class PartitionHistory:
    """All observations of one partition under one ownership."""

    partition: TopicPartition
    owned: PartitionOwner
    until_ms: int
    zookeeper: StoreHistory = field(default_factory=StoreHistory)
    kafka: StoreHistory = field(default_factory=StoreHistory)
    log: LogRange | None = None
    changed_ms: int = 0
    """The time at which an offset or the log's end last changed, initially the start of the history."""
    zookeeper_alone: str | None = None
    """The proof, as text, that a commit went to ZooKeeper and not to Kafka."""
    kafka_alone: str | None = None
    """The proof, as text, that a commit went to Kafka and not to ZooKeeper."""

    @property
    def unchanged_ms(self) -> int:
        """The milliseconds since an offset or the log's end last changed."""
        return self.until_ms - self.changed_ms

    @property
    def new_kafka_changes(self) -> list[OffsetChange]:
        """The changes in Kafka to an offset that is larger than both stores' offsets at the start of the history."""
        start = max(offset_or(self.kafka.first), offset_or(self.zookeeper.first))
        return [m for m in self.kafka.changes if m.after.offset > start]

    @property
    def lag(self) -> int | None:
        """The number of messages between the larger of both stores' offsets and the log's end. None if the log's end or
        an offset is unknown."""
        if self.log is None or self.zookeeper.error or self.kafka.error:
            return None
        committed = max(offset_or(self.zookeeper.last), offset_or(self.kafka.last))
        return max(0, self.log.end - max(committed, self.log.start))

    def add(self, observation: Observation) -> None:
        tp = self.partition
        two_kafka_changes_before = len(self.new_kafka_changes) >= 2
        changed = self.zookeeper.add(observation.at_ms, observation.zookeeper.get(tp))
        changed |= self.kafka.add(observation.at_ms, observation.kafka.get(tp))
        log = observation.logs.get(tp)
        if isinstance(log, LogRange):
            changed |= self.log is not None and self.log.end != log.end
            self.log = log
        self.until_ms = observation.at_ms
        if changed:
            self.changed_ms = observation.at_ms
        if self.zookeeper.changes and not self.zookeeper_alone and self.kafka.error is None:
            change = self.zookeeper.changes[-1]
            if change.at_ms == self.until_ms and offset_or(self.kafka.last) < change.after.offset:
                self.zookeeper_alone = f"ZooKeeper {change}, Kafka read afterwards: {reading_text(self.kafka.last)}"
        zookeeper_unchanged = not (self.zookeeper.changes or self.zookeeper.error or self.zookeeper.lowered)
        if two_kafka_changes_before and zookeeper_unchanged and not self.kafka_alone:
            one, two = self.new_kafka_changes[:2]
            self.kafka_alone = (
                f"Kafka {one}, then {two}, ZooKeeper read afterwards: still {reading_text(self.zookeeper.last)}"
            )


class GroupHistory:
    """The history of a group: its observations, combined as they arrive. ``began_ms`` is the time of the first one.
    ``partitions`` has the history of each partition under its current ownership. Partitions without an owner have no
    history."""

    def __init__(self, observations: Iterable[Observation] = ()) -> None:
        self.partitions: dict[TopicPartition, PartitionHistory] = {}
        self.began_ms = 0
        self._latest: Observation | None = None
        self._last_rebalance_ms = 0
        self._registered: dict[str, int] = {}
        for observation in observations:
            self.add(observation)

    @property
    def latest(self) -> Observation:
        """The last observation; every watch has one. Raises `ValueError` before the first."""
        if self._latest is None:
            raise ValueError("nothing has been observed")
        return self._latest

    @property
    def steady_ms(self) -> int:
        """The milliseconds since a registration or an owner last changed."""
        return self.latest.at_ms - self._last_rebalance_ms

    def add(self, observation: Observation) -> None:
        """Records one observation. Observations must be added in the order of their times."""
        before, self._latest = self._latest, observation
        if before is None:
            self.began_ms = observation.at_ms
        registered = {member.id: member.czxid for member in observation.members.values()}
        if before is None or registered != self._registered or before.owners != observation.owners:
            self._last_rebalance_ms = observation.at_ms
        self._registered = registered
        known, self.partitions = self.partitions, {}
        for tp, owned in observation.owners.items():
            partition = known.get(tp)
            if partition is None or partition.owned != owned:
                partition = PartitionHistory(tp, owned, observation.at_ms, changed_ms=observation.at_ms)
            partition.add(observation)
            self.partitions[tp] = partition


# Observes a live group of old consumers once or repeatedly: reads its registered members, its partition owners, both
# stores and the logs. The evidence relies on the order of the reads (see above). Of the modules that write and check
# runbooks, only this module reads from servers. It writes nothing.


@dataclass(frozen=True, slots=True)
class ZookeeperRegistry:
    """The live members and owners in ZooKeeper at one moment, under ``/consumers/GROUP/ids`` and ``/owners``. The
    second value of both methods names the znodes that could not be decoded."""

    session: ZookeeperSession

    def members(
        self, group: str, existing: Callable[[], Iterable[str]]
    ) -> tuple[Mapping[str, RegisteredMember], tuple[str, ...]]:
        """Returns the members with their subscribed topics, by id. ``existing`` returns the topics that a pattern can
        match; it is called only if a member subscribes with a pattern."""
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
        return found, tuple(unreadable)

    def describe(self, groups: Iterable[str]) -> Descriptions:
        """Describes groups by their registrations; see `registered_members`."""
        from offsetmgr.groups.describe import registered_members

        return registered_members(self.session, groups)

    def owners(self, group: str) -> tuple[Mapping[TopicPartition, PartitionOwner], tuple[str, ...]]:
        """Returns the owners."""
        (found,) = registry.owners_many(self.session, [group])
        if found.error is not None:
            raise found.error
        known: dict[TopicPartition, PartitionOwner] = {}
        unreadable = [f"{path} ({error})" for path, error in found.errors.items()]
        for tp, owner in found.owners.items():
            if owner.member_id is None:
                unreadable.append(f"{paths.owners_of_topic(group, tp.topic)}/{owner.name} ({owner.error})")
            else:
                known[tp] = PartitionOwner(owner.member_id, owner.node.czxid)
        return known, tuple(unreadable)


def has_phases(header: PlanHeader) -> bool:
    """Returns whether old consumers migrate in phases: between ZooKeeper and a store with group coordinators."""
    sides = header.source, header.target
    return any(one.kind == "zookeeper" for one in sides) and any(scheme_of(one.uri).coordinators for one in sides)


@dataclass(frozen=True, slots=True)
class GroupView:
    """The sources of an observation: the registry, both stores, the cluster and a clock."""

    registry: ZookeeperRegistry
    zookeeper: OffsetStore
    kafka: OffsetStore
    cluster: KafkaCluster
    clock: Clock = field(default_factory=SystemClock)

    def members(self, group: str) -> Mapping[str, RegisteredMember]:
        """Returns the live members that are registered now, by id."""
        return self.registry.members(group, self.cluster.topics)[0]

    @classmethod
    def of_stores(cls, zookeeper: ZookeeperStore, kafka: OffsetStore, cluster: KafkaCluster) -> GroupView:
        """Returns the view of the groups in two stores. Raises `OtherCluster` if they hold offsets of different Kafka
        clusters."""
        crossing = CrossClusterCheck(zookeeper, kafka, roles=("ZooKeeper", "Kafka side"))
        if crossing.other_cluster:
            why = f"ZooKeeper and brokers hold offsets of different Kafka clusters: {crossing.comparison.how}"
            raise OtherCluster("runbook", why, "name the ZooKeeper and the brokers that the group's members use")
        # The registry uses the session of the store, so that one sync serves both.
        return cls(ZookeeperRegistry(zookeeper.session), zookeeper, kafka, cluster)

    @classmethod
    def of_plan(
        cls, header: PlanHeader, source: OffsetStore, target: OffsetStore, cluster: Callable[[], KafkaCluster | None]
    ) -> GroupView:
        """Returns the view of the groups of a plan between ZooKeeper and Kafka or an offset manager. Raises
        `UsageError` for other plans."""
        from offsetmgr.stores.zookeeper import ZookeeperStore

        if not has_phases(header):
            raise UsageError("phases of old consumers", "the plan is not between ZooKeeper and Kafka")
        old, new = (target, source) if header.target.kind == "zookeeper" else (source, target)
        assert isinstance(old, ZookeeperStore)
        known = cluster()
        assert known is not None  # the source or the target names brokers
        return cls(ZookeeperRegistry(old.session), old, new, known)

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
        members, unreadable_members = self.registry.members(group, self.cluster.topics)
        before, unreadable_owners = self.registry.owners(group)
        zookeeper = _read(self.zookeeper, group, tolerant)
        kafka = _read(self.kafka, group, tolerant)
        after, _ = self.registry.owners(group)
        unchanged = {tp: owned for tp, owned in before.items() if after.get(tp) == owned}
        subscribed = {topic for member in members.values() for topic in member.topics}
        existing = self.cluster.topics(subscribed) if subscribed else {}
        consumed = {
            TopicPartition(topic, number) for topic in subscribed for number in range(existing.get(topic, 0))
        } | set(before)
        held = {*zookeeper.offsets, *zookeeper.errors, *kafka.offsets, *kafka.errors}
        every = sorted(consumed | held)
        return Observation(
            group=group,
            members=members,
            owners=unchanged,
            partitions=tuple(sorted(consumed)),
            zookeeper={tp: outcome_of(zookeeper, tp) for tp in every},
            kafka={tp: outcome_of(kafka, tp) for tp in every},
            logs=self._logs(consumed, tolerant),
            unconsumed=tuple(sorted(held - consumed)),
            unreadable=tuple(sorted({*unreadable_members, *unreadable_owners})),
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


def _read(store: OffsetStore, group: str, tolerant: bool) -> GroupOffsets:
    found = fetch_group(store, group, None)
    if found.error is None or (tolerant and found.error.retriable):
        return found
    if isinstance(found.error, GroupNotFound):
        return GroupOffsets(group, {})
    raise found.error


def ignored_wait(_seconds: float) -> None:
    """Does nothing: the caller of an observation does not ask for the time that remains."""


@dataclass(frozen=True, slots=True)
class ObservationWindow:
    """The maximum duration of the observation, and the interval between two observations, in seconds.

    ``waiting`` is called before each further observation, with the seconds that remain. The first observation raises
    any error of the servers. All later observations tolerate retriable errors of a store. If ``tolerant`` is True, an
    observation that fails with a retriable error is repeated until the window is over; ``failed`` is called with the
    error. The observation ends before the end of the window once ``stop`` returns True.

    >>> ObservationWindow(duration_s=30).poll_s
    0.5
    """

    duration_s: float = 180.0
    poll_s: float = 0.5
    waiting: Callable[[float], None] = field(default=ignored_wait, compare=False, repr=False)
    failed: Callable[[OffsetMgrError], None] = field(default=lambda _error: None, compare=False, repr=False)
    stop: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    tolerant: bool = False


def watch_group(
    view: GroupView, group: str, window: ObservationWindow, *, enough: Callable[[GroupHistory], bool]
) -> GroupHistory:
    """Observes the group repeatedly until ``enough`` returns True, or until the window is over."""
    return value_of(watch_groups(view, [group], window, enough=enough)[group])


def watch_groups(
    view: GroupView, groups: Iterable[str], window: ObservationWindow, *, enough: Callable[[GroupHistory], bool]
) -> dict[str, GroupHistory | OffsetMgrError]:
    """Observes the groups in turn, as `watch_group` does, all within one window. A group is observed until ``enough``
    returns True for it.

    Returns the error instead of the history for a group that cannot be observed. Retriable errors, such as an
    unreachable server, concern all groups and are raised, as `ObservationWindow` describes.
    """
    clock = view.clock
    deadline = clock.monotonic() + window.duration_s

    def observe(group: str, accept: bool) -> Observation | OffsetMgrError:
        """Returns an observation, or an error that concerns only this group. Raises retriable errors."""
        while True:
            try:
                return view.observe(group, tolerant=accept)
            except OffsetMgrError as error:
                if not error.retriable:
                    return error
                if not window.tolerant or window.stop() or clock.monotonic() >= deadline:
                    raise
                window.failed(error)
                clock.sleep(window.poll_s)

    def observe_each(names: Sequence[str], is_first: bool) -> dict[str, Observation | OffsetMgrError]:
        return {name: observe(name, window.tolerant or not is_first) for name in names}

    return watch(observe_each, list(groups), window, clock, enough=enough)


def watch(
    observe: Callable[[Sequence[str], bool], Mapping[str, Observation | OffsetMgrError]],
    groups: Sequence[str],
    window: ObservationWindow,
    clock: Clock,
    *,
    enough: Callable[[GroupHistory], bool],
) -> dict[str, GroupHistory | OffsetMgrError]:
    """Observes the groups repeatedly, all within one window, and each until ``enough`` returns True for it. ``observe``
    returns one observation of each group, or the error that ends the watch of the group; its second argument is whether
    these observations are the first ones."""
    histories = {name: GroupHistory() for name in groups}
    failed: dict[str, OffsetMgrError] = {}
    deadline, pending, is_first = clock.monotonic() + window.duration_s, list(groups), True
    while True:
        for name, observed in observe(pending, is_first).items():
            if isinstance(observed, OffsetMgrError):
                failed[name] = observed
            else:
                histories[name].add(observed)
        pending = [name for name in pending if name not in failed and not enough(histories[name])]
        if not pending or window.stop() or clock.monotonic() >= deadline:
            return {**histories, **failed}
        is_first = False
        window.waiting(deadline - clock.monotonic())
        clock.sleep(window.poll_s)
