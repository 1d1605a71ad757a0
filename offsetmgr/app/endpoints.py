"""`SourceAndTarget`: opens the stores, Kafka clusters and ZooKeeper registries of a migration's source and target. The
two sides have separate credentials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import UsageError

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.core.clock import ClockDifference
    from offsetmgr.core.errors import OffsetMgrError
    from offsetmgr.core.log_origin import OffsetTranslation
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.kafka.cluster.base import Cluster, Logs
    from offsetmgr.migration.change_notifier import ChangeNotifier
    from offsetmgr.migration.evidence import EvidenceThresholds
    from offsetmgr.migration.finalize import FinalizeGate
    from offsetmgr.migration.fleet_view import FleetView
    from offsetmgr.migration.group_observer import GroupView, ObservationWindow
    from offsetmgr.migration.mirror_safety import ReadLegacyGroups
    from offsetmgr.migration.partition_map import PartitionMap
    from offsetmgr.migration.plan import PlanHeader, PlanOptions
    from offsetmgr.migration.plan_file import PlanFile
    from offsetmgr.migration.planner import Planner, ReadLegacyMembers
    from offsetmgr.migration.progress import MigrationState
    from offsetmgr.migration.verify import MigrationVerifier

_COORDINATED: Final = frozenset({"kafka", "manager"})
"""The kinds of stores that have group coordinators, which report the members of a group."""


class SourceAndTarget:
    """The source and the target of one migration. ``connections`` opens their stores and clusters on first use, and
    closes them."""

    def __init__(
        self,
        connections: Connections,
        source: str,
        target: str,
        source_config: ConnectionConfig,
        target_config: ConnectionConfig,
    ) -> None:
        self._connections = connections
        self._uris = {"source": source, "target": target}
        self._configs = {"source": source_config, "target": target_config}

    @classmethod
    def of_plan(
        cls,
        connections: Connections,
        header: PlanHeader,
        source_config: ConnectionConfig,
        target_config: ConnectionConfig,
    ) -> SourceAndTarget:
        """Returns the source and the target that a plan's header names. Raises the errors of
        `Connections.check_plan`."""
        connections.check_plan(header)
        return cls(connections, header.source.uri, header.target.uri, source_config, target_config)

    def reversed(self) -> SourceAndTarget:
        """Returns the source and the target of the reverse migration."""
        (source, target), (source_config, target_config) = self._uris.values(), self._configs.values()
        return SourceAndTarget(self._connections, target, source, target_config, source_config)

    @cached_property
    def source(self) -> OffsetStore:
        """The store from which the migration reads. The first use opens it."""
        return self._open("source")

    @cached_property
    def target(self) -> OffsetStore:
        """The store to which the migration writes. The first use opens it."""
        return self._open("target")

    def _open(self, side: str) -> OffsetStore:
        return self._connections.store_of_side(side, self._uris[side], self._configs[side])

    def cluster(self) -> Cluster | None:
        """Returns the Kafka cluster whose logs the offsets belong to: the cluster of the target, else the cluster of
        the source, else the cluster of the selected bootstrap server. Returns None if no brokers are known."""
        return self._cluster_of("target") or self._cluster_of("source") or self._cluster_of(None)

    def _cluster_of(self, side: str | None) -> Cluster | None:
        """Returns the brokers that the URI of a side names, or the selected brokers; None if there are none."""
        from offsetmgr.stores.uri import bootstrap_of

        resolved = self._connections.resolved
        bootstrap, connection = resolved.bootstrap_server, resolved.connection
        if side is not None:
            connection = self._configs[side]
            bootstrap = bootstrap_of(self._uris[side], connection)
        if bootstrap is None:
            return None
        return self._connections.lock_waiting(self._connections.cluster_at(bootstrap, connection))

    def logs(self) -> Logs | None:
        """Like `cluster`, but the returned object can only read logs. If the target or the source is a Kafka store, the
        object uses the connections of this store."""
        from offsetmgr.stores.kafka import KafkaStore
        from offsetmgr.stores.uri import parse_uri

        for side in ("target", "source"):
            if parse_uri(self._uris[side]).kind == "kafka":
                store = self.target if side == "target" else self.source
                assert isinstance(store, KafkaStore)
                return store.logs()
        return self.cluster()

    @contextmanager
    def legacy_members(self) -> Iterator[ReadLegacyMembers | None]:
        """Yields a function that reads live old consumers from ZooKeeper's registry. Yields None if neither the source
        nor the target uses ZooKeeper."""
        from offsetmgr.stores.uri import zookeeper_of

        address = None
        for side in ("target", "source"):
            connection = self._configs[side]
            if address := zookeeper_of(self._uris[side], connection):
                break
        if address is None:
            yield None
            return
        from offsetmgr.zookeeper.client.session import ZookeeperSession
        from offsetmgr.zookeeper.groups.registry import members_many
        from offsetmgr.zookeeper.nodes.paths import can_be_group

        with ZookeeperSession(address, connection) as session:

            def read_members(groups: Iterable[str]) -> Mapping[str, tuple[str, ...] | OffsetMgrError]:
                # A group whose name is not allowed as a znode name cannot have registered old consumers.
                return {
                    group.group: group.error or tuple(member.member_id for member in group.members)
                    for group in members_many(session, filter(can_be_group, groups))
                    if group.members or group.error
                }

            yield read_members

    @contextmanager
    def planner(
        self,
        options: PlanOptions,
        *,
        partition_map: PartitionMap | None = None,
        translate: OffsetTranslation | None = None,
        window: ObservationWindow | None = None,
    ) -> Iterator[Planner]:
        """Yields the planner of this migration. The arguments are those of `Planner`."""
        from offsetmgr.migration.group_observer import ObservationWindow
        from offsetmgr.migration.planner import Planner

        with self.legacy_members() as members:
            yield Planner(
                self.source,
                self.target,
                options,
                SystemClock(),
                self.cluster(),
                members,
                partition_map=partition_map,
                translate=translate,
                window=window or ObservationWindow(0),
            )

    @contextmanager
    def changes(
        self, options: PlanOptions, interval_ms: int
    ) -> Iterator[tuple[ChangeNotifier, ReadLegacyGroups | None]]:
        """Yields an object that reports changes of the source, and a function that reads old consumers and their
        partitions from the source's registry. For old consumers in ZooKeeper, the object sets watches under
        ``/consumers``. For all other sources, the object polls, and the function is None."""
        from offsetmgr.migration.change_notifier import PollingNotifier
        from offsetmgr.stores.uri import parse_uri

        parsed = parse_uri(self._uris["source"])
        if parsed.kind != "zookeeper" or parsed.options.get("layout") == "storm":
            yield PollingNotifier(SystemClock(), interval_ms / 1000), None
            return
        from offsetmgr.migration.legacy_group_lookup import legacy_groups
        from offsetmgr.zookeeper.client.session import ZookeeperSession
        from offsetmgr.zookeeper.offsets.offset_watcher import OffsetWatcher

        address, config = parsed.address + parsed.path, self._configs["source"]
        with ZookeeperSession(address, config) as watched, ZookeeperSession(address, config) as registry:
            yield OffsetWatcher(watched, options.selects_group), legacy_groups(registry)

    def _target_cluster(self) -> Cluster | None:
        """Returns the brokers of the target; None if the target is no Kafka store."""
        from offsetmgr.stores.uri import parse_uri

        return self.cluster() if parse_uri(self._uris["target"]).kind == "kafka" else None

    def retention_ms(self) -> int | None:
        """Returns the time in milliseconds for which the target keeps offsets. Returns `None` if the time is unknown or
        unlimited."""
        return None if (cluster := self._target_cluster()) is None else cluster.offsets_retention_ms()

    def clock_difference(self) -> ClockDifference | None:
        """Returns the difference between the clocks of the target's brokers and of this machine; None if it is unknown
        or the target is no Kafka store."""
        return None if (cluster := self._target_cluster()) is None else cluster.clock_difference(SystemClock())

    def verifier(self, plan: PlanFile, state: MigrationState) -> MigrationVerifier:
        """Returns the object that compares both stores with the plan."""
        from offsetmgr.migration.verify import MigrationVerifier

        return MigrationVerifier(plan, self.source, self.target, self.logs, state)

    def member_gate(
        self, plan: PlanFile, exclusive: bool, rules: EvidenceThresholds, window: ObservationWindow
    ) -> FinalizeGate:
        """Returns the gate that checks whether a member still commits only to the source. With ``exclusive``, members
        in the dual phase do not pass either, because the source's offsets will be deleted. Raises `UsageError` if
        offsetmgr has no gate for this combination of source and target."""
        from offsetmgr.migration.finalize_gates import CoordinatorGate, InactivityGate, NoMembersGate, OldConsumerGate
        from offsetmgr.stores.zookeeper import ZookeeperStore
        from offsetmgr.zookeeper.groups.registry import members_many

        source, target = plan.header.source, plan.header.target
        kinds = {source.kind, target.kind}
        if isinstance(self.source, ZookeeperStore) and self.source.layout != "0.8":
            read_members = partial(members_many, self.source.session) if self.source.registered else None
            return InactivityGate(self.source, read_members, window, SystemClock())
        if "zookeeper" in kinds and kinds & _COORDINATED:
            return OldConsumerGate(self.old_consumer_view(plan.header), plan.header.end, exclusive, rules, window)
        if source.kind in _COORDINATED and (cluster := self._cluster_of("source")) is not None:
            return CoordinatorGate(self.source, cluster, window, SystemClock())
        if source.kind == "file":
            return NoMembersGate()
        raise UsageError(
            f"finalize of {plan.path}",
            f"offsetmgr cannot find out which live members still commit to {source.kind} {source.uri}",
        )

    def fleet_view(self, plan: PlanFile, state: MigrationState, window: ObservationWindow) -> FleetView:
        """Returns the object that reads the present state of the plan's groups from the servers. ``window`` limits the
        observation of their commits."""
        from offsetmgr.migration.fleet_view import FleetView

        kinds = {plan.header.source.kind, plan.header.target.kind}
        has_phases = "zookeeper" in kinds and bool(kinds & _COORDINATED)
        view = self.old_consumer_view(plan.header) if has_phases else None
        return FleetView(self.verifier(plan, state), state, view, plan.header.end, window)

    def old_consumer_view(self, header: PlanHeader) -> GroupView:
        """Returns the object that observes the commits of old consumers, for a plan between ZooKeeper and Kafka or an
        offset manager. Raises `UsageError` for other plans."""
        from offsetmgr.migration.group_observer import GroupView, ZookeeperRegistry
        from offsetmgr.stores.zookeeper import ZookeeperStore

        kinds = {header.source.kind, header.target.kind}
        if not ("zookeeper" in kinds and kinds & _COORDINATED):
            raise UsageError("phases of old consumers", "the plan is not between ZooKeeper and Kafka")
        to_kafka = header.target.kind != "zookeeper"
        old, new = (self.source, self.target) if to_kafka else (self.target, self.source)
        cluster = self.cluster()
        assert isinstance(old, ZookeeperStore)
        assert cluster is not None  # the source or the target names brokers
        return GroupView(ZookeeperRegistry(old.session), old, new, cluster)
