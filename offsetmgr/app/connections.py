"""`Connections`: opens and closes the stores, Kafka clusters and ZooKeeper sessions that the settings select."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from itertools import pairwise
from shlex import quote
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast
from weakref import WeakSet

from offsetmgr.app.ui import Ui, Waits
from offsetmgr.config.connection import ConnectionConfig, ResolvedConnection, SettingsLayer, resolve
from offsetmgr.config.user_directories import lost_with_container
from offsetmgr.core import SCHEMES, TITLES
from offsetmgr.core.advice import Advice, Argument, Invocation
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, OtherCluster, TimedOut, Unreachable, UsageError
from offsetmgr.core.offset_store import OtherGroupKind
from offsetmgr.core.selection import GroupSelection

if TYPE_CHECKING:
    from pathlib import Path

    from offsetmgr.core.clock import ClockDifference
    from offsetmgr.core.log_origin import LogOrigin, OffsetTranslation, TranslationChoice
    from offsetmgr.core.model import GroupKind
    from offsetmgr.core.offset_store import OffsetSource, OffsetStore, UnrecognisedData
    from offsetmgr.groups.describe import DescribeGroups, Descriptions
    from offsetmgr.groups.last_writes import LastWrites
    from offsetmgr.kafka.cluster import KafkaCluster, Logs
    from offsetmgr.migration.evidence import EvidenceThresholds
    from offsetmgr.migration.finalize import FinalizeGate
    from offsetmgr.migration.fleet import FleetView
    from offsetmgr.migration.group_locator import GroupLocator, OtherHome
    from offsetmgr.migration.mirror import ChangeNotifier, ReadLegacyGroups
    from offsetmgr.migration.observation import GroupView, ObservationWindow
    from offsetmgr.migration.plan import PlanFile, PlanHeader, PlanOptions
    from offsetmgr.migration.planner import Planner, ReadLegacyMembers
    from offsetmgr.migration.progress import MigrationState
    from offsetmgr.migration.verify import MigrationVerifier
    from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
    from offsetmgr.translation.translator import Translations
    from offsetmgr.zookeeper.client.session import ZookeeperSession


_MAX_NAMED: Final = 20


class Connections(Closeable):
    """The open stores, clusters and sessions of one program or command. ``close`` closes all of them.

    `store` opens a new store at each call. A cluster is opened once for each bootstrap address, and a session once for
    each ZooKeeper. One thread at a time may call the methods.
    """

    refuses_other_cluster: ClassVar[bool] = True
    """Whether a read fails if the brokers belong to another cluster than the store. The command line warns."""
    given: Mapping[str, Argument] = MappingProxyType({})
    """The connection options that a further command for the same servers needs."""

    def __init__(self, resolved: ResolvedConnection, ui: Ui | None = None) -> None:
        self.resolved = resolved
        self.ui = ui or Ui()
        self.waits = Waits(self.ui)
        self.copied_to: dict[str, OffsetStore] = {}
        """The stores to which groups were copied, by the URI that the caller gave."""
        self.named_context: str | None = None
        """The context that the user named; None if the settings come from elsewhere."""
        self._noted: set[str] = set()
        """The stores of which `store_to_read` has told the user."""
        self._homes: dict[str, OtherHome | None] = {}
        """The results of `homes`, so that a command decides once where a group lives."""
        self._stores: dict[str, OffsetStore] = {}
        """The first store that `store` opened for a URI with the selected settings. A cluster uses the connections of a
        Kafka store, so that a command connects and logs in to a broker once."""
        self._sides: list[tuple[str, str, ConnectionConfig, OffsetStore]] = []
        """The stores that `store_of_side` has opened, with its arguments."""
        self._parts: list[OffsetStore] = []
        """The stores that `store` has opened; a pair counts as two stores."""
        self._open = ExitStack()
        self.plans: WeakSet[Closeable] = WeakSet()
        """The plans that `close` closes too."""
        self._closed = False
        self._clusters: dict[str, KafkaCluster] = {}
        self._sessions: dict[str, ZookeeperSession] = {}
        """ZooKeeper sessions by connect string. If a store has opened a session, requests that do not belong to the
        store use the same session."""

    def close(self) -> None:
        """Closes every store, cluster and session that was opened. A second call does nothing. First calls
        `warn` if a Kafka cluster has left out groups or offsets for this login."""
        for text in sorted({text for store in self._parts if (text := store.filter_note())}):
            self.warn(text)
        self._parts.clear()
        for plan in list(self.plans):
            plan.close()
        self._closed = True
        self._open.close()

    def warn(self, text: str) -> None:
        """Warns the user, for example of a configured store that does not respond."""
        self.ui.note(text, warning=True)

    def warn_of_lost(self, plan: Path) -> None:
        """Warns the user if a written plan would be lost with the container."""
        if error := lost_with_container(plan):
            self.warn(f"{error}; {error.hint}")

    def require_open(self) -> None:
        """Raises `UsageError` if `close` was called."""
        if self._closed:
            raise UsageError(
                f"store {self.resolved.store}" if self.resolved.store else "the stores",
                "the object that opened it was closed",
                "use the object inside its with statement, or open a new one",
            )

    @property
    def uri(self) -> str:
        """The URI of the selected store. Raises `UsageError` if no store is selected."""
        if self.resolved.store is None:
            raise nothing_named("no store given")
        return self.resolved.store

    def store(self, uri: str | None = None, connection: ConnectionConfig | None = None) -> OffsetStore:
        """Opens and returns the selected store, or the store at ``uri`` if given. ``connection`` replaces the selected
        settings. Raises `UsageError` if no store is selected, and `InvalidUri`."""
        from offsetmgr.stores.uri import open_store

        self.require_open()
        store = self._open.enter_context(open_store(uri or self.uri, connection or self.resolved.connection))
        self._parts += store.parts
        if connection is None:
            for name in (uri or self.uri, store.uri):
                self._stores.setdefault(name, store)
        if connection is None and store.uri.startswith("zookeeper:"):
            from offsetmgr.stores.zookeeper import ZookeeperStore

            if isinstance(store, ZookeeperStore):
                self._sessions[store.session.connect] = store.session
        return store

    def store_of_side(self, side: str, uri: str, connection: ConnectionConfig) -> OffsetStore:
        """Returns the store of a ``side`` of a migration, which is "source" or "target". The first call with the same
        arguments opens the store."""
        self.require_open()
        for known in self._sides:
            if known[:3] == (side, uri, connection):
                return known[3]
        store = self.store(uri, connection)
        self._sides.append((side, uri, connection, store))
        return store

    def selected(self) -> OffsetStore:
        """Returns the selected store. The first call opens it."""
        return self.opened(self.uri)

    @cached_property
    def others(self) -> tuple[OffsetStore, ...]:
        """The other configured stores of the cluster of the selected store, to which its groups may commit. The first
        use opens them.

        For a ZooKeeper store, see `kafka_counterpart`. For Kafka and an offset manager, stores of other clusters are
        left out; if a store does not respond, `warn` is called with the reason.
        """
        from offsetmgr.core.log_origin import compare_origins

        store = self.selected()
        kind = store.uri.partition(":")[0]
        if kind == "zookeeper":
            kafka = self.kafka_counterpart(store)
            return () if kafka is None else (kafka,)
        uris = {name: uri for name, uri in self.configured_stores().items() if name != kind}
        if kind not in TITLES or not uris:
            return ()
        origin, found = store.log_origin(), []
        for uri in uris.values():
            other = self.opened(uri)
            try:
                compared = compare_origins(origin, other.log_origin())
            except OffsetMgrError as error:
                self.warn(f"offsets in {other.uri} are not compared: {error}")
                continue
            found += [other] if compared.keeps_epochs else []
        return tuple(found)

    def store_to_read(self, selection: GroupSelection) -> OffsetStore:
        """Returns the store from which to read these groups: the selected store, or the store in which all of them live
        if no option names one. Tells the user which store is read, and the groups that do not live there."""
        from offsetmgr.groups.scan import choose_groups

        store = self.selected()
        groups = choose_groups(store, selection)
        homes = [home for home in self.homes(groups).values() if home.uri is not None or not home.same]
        # A command can read a group only under its own name, in a configured store.
        uris = {home.uri if home.name == home.group and home.uri in home.candidates else None for home in homes}
        moved = uris.pop() if len(uris) == 1 and len(homes) == len(groups) else None
        here = moved or store.uri
        for uri in dict.fromkeys(home.uri for home in homes) if here not in self._noted else ():
            from offsetmgr.migration.group_locator import homes_text

            found = [home for home in homes if home.uri == uri]
            others = [one for one in found[0].candidates if one != here] if uri in (None, here) else [uri]
            self.ui.reads(f"reading {here}: {homes_text(found)}", warning=moved is None)
            hint = " or ".join(["{store} {}"] * len(others))
            self.ui.note(Advice(f"hint: {hint} reads the other store", *map(quote, others)))
        self._noted.add(here)
        return store if moved is None else self.opened(moved)

    def opened(self, uri: str) -> OffsetStore:
        """Returns the store at ``uri``. The first call opens it."""
        self.require_open()
        return self._stores.get(uri) or self.store(uri)

    def share_groups(self, store: OffsetStore, source: str = "") -> OffsetStore:
        """Opens the share groups of the cluster of ``store``. Raises `UsageError` if this is no Kafka store; ``source``
        is the URI of the Kafka store from which before-images were saved."""
        from offsetmgr.stores.share_groups import ShareGroupStore

        if not store.uri.startswith("kafka:"):
            hint = Advice("add {store} {}", quote(source))
            raise UsageError("before-images", "hold start offsets of share groups of Kafka", hint)
        groups = ShareGroupStore(store.uri.removeprefix("kafka://"), self.resolved.connection)
        return self._open.enter_context(groups)

    @contextmanager
    def refusing(self, operation: str, uri: str | None = None) -> Iterator[None]:
        """Within the context, the error of a group of another kind names the command of Kafka's that does
        ``operation``. A missing group may be of another kind, which the store at ``uri`` (default: the selected one)
        does not list."""
        from offsetmgr.groups.describe import refused_kind

        try:
            yield
        except OtherGroupKind as error:
            raise refused_kind(error, operation) or error from None
        except GroupNotFound as missing:
            described: Descriptions = {}
            with suppress(OffsetMgrError):
                described = self.group_describer(uri)(missing.groups)
            for one in described.values():
                if (refused := refused_kind(one, operation)) is not None:
                    raise refused from None
            raise

    def undo_options(self, uri: str) -> Mapping[str, Argument]:  # noqa: ARG002
        """Returns the arguments for the connection that the undo of an edit of the store at ``uri`` needs besides
        ``store``. A program undoes an edit with an object that it has opened itself."""
        return {}

    def check_crossing(
        self, what: str, source: OffsetSource, target: OffsetStore, translate: OffsetTranslation | None, hint: str = ""
    ) -> CrossClusterCheck:
        """Compares the Kafka clusters of ``source`` and ``target`` before the operation ``what`` writes offsets of
        ``source`` to ``target``. Tells the user the result unless both are known to be the same cluster. Returns the
        comparison. Raises `OtherCluster`, with ``hint``, if the clusters differ and ``translate`` is None."""
        from offsetmgr.core.log_origin import Relation
        from offsetmgr.stores.cross_cluster_check import CrossClusterCheck

        crossing = CrossClusterCheck(source, target, translate)
        crossing.check(what, hint)
        if crossing.comparison.relation is not Relation.SAME:
            self.ui.note(Advice("cluster {}", crossing.text()))
        return crossing

    def explained(self, missing: GroupNotFound, *, selected: int = 1) -> GroupNotFound:
        """Returns the error with a hint at the other configured store that has one of the missing groups; without such
        a store, or if a store does not respond, returns the error unchanged. The hint names the group if there are
        several: if several are missing, or if it is one of ``selected`` groups."""
        known = self.configured_stores() if missing.groups and self.resolved.store is not None else {}
        for uri in known.values():
            with suppress(OffsetMgrError):
                if (other := self.opened(uri)) in self.selected().parts:
                    continue
                if found := [*filter(GroupSelection(missing.groups).matches, [*other.groups(), *other.left_out])]:
                    one = "it" if len(missing.groups) == selected == 1 else f"group {found[0]!r}"
                    hint = Advice("{} is in {}: add {store} {}", one, other.uri, quote(other.uri))
                    return GroupNotFound(missing.what, missing.why, hint)
        return missing

    @staticmethod
    def last_writes(here: OffsetStore, there: OffsetStore, **options: Any) -> LastWrites:
        """Returns the evidence which of two stores was written last; see `offsetmgr.migration.copied_offsets`."""
        from offsetmgr.migration import copied_offsets  # only a read of two stores needs it

        return copied_offsets.last_writes(here, there, **options)

    def tell_empty(self, what: str, store: OffsetStore | None = None) -> None:
        """Tells the user that ``store`` (default: the selected one) has no ``what``, and whether its address may be
        wrong."""
        store = store or self.selected()
        doubt = store.address_doubt() if what == "groups" else ""
        self.ui.note(f"no {what} in {store.uri}{'; ' if doubt else ''}{doubt}")

    def warn_of_unrecognised(self, data: Iterable[UnrecognisedData]) -> None:
        """Warns the user of data of groups that offsetmgr does not understand."""
        found = list(data)
        for one in found[:_MAX_NAMED]:
            self.warn(str(one))
        if len(found) > _MAX_NAMED:
            self.warn(Advice("and {} more; {} names them", f"{len(found) - _MAX_NAMED:,}", Invocation("zk check")))

    def warn_of_unread(self, plans: Iterable[OffsetMgrError]) -> None:
        """Warns the user of recorded migrations that could not be read."""
        for error in plans:
            self.warn(Advice("not used as evidence: {}{}{}", error.text, "; " if error.hint else "", error.hint))

    def invocation(self, verb: str, *groups: str, **named: Argument) -> Invocation:
        """Returns a further use case for the same servers. A group whose name begins with a dash is no argument without
        a name, because the command line would parse it as an option."""
        if any(group.startswith("-") for group in groups):
            return Invocation(verb, (), {"group": groups, **named, **self.given})
        return Invocation(verb, groups, {**named, **self.given})

    def bootstrap(self) -> str | None:
        """Returns the brokers in the store's URI, or the selected bootstrap server if the URI names no brokers."""
        from offsetmgr.stores.uri import bootstrap_of

        store = self.resolved.store
        own = bootstrap_of(store, self.resolved.connection) if store else None
        return own or self.resolved.bootstrap_server

    def cluster(self, what: str) -> KafkaCluster:
        """Returns the Kafka cluster. Raises `UsageError` if no brokers are known. ``what`` names the operation that
        needs the cluster."""
        found = self.cluster_or_none()
        if found is None:
            hint = Advice("add {bootstrap_server}")
            raise UsageError(what, "needs to read logs, and no brokers are known", hint)
        return found

    def cluster_for_edit(self, what: str, store: OffsetStore) -> KafkaCluster:
        """Like `cluster`, for operations that compare the offsets of an edit of ``store`` with the logs. Raises
        `OtherCluster` if the brokers belong to another cluster."""
        self.kafka_counterpart(store, strict=True)
        cluster = self.cluster(what)

        def note_wait(left_s: float) -> None:
            end = f"{datetime.now(UTC) + timedelta(seconds=left_s):%H:%M:%S}"
            waiting = "waiting up to {} s, until {} UTC, for brokers {} ({timeout})"
            self.ui.note(Advice(waiting, f"{left_s:.0f}", end, self.bootstrap()))

        cluster.on_slow = note_wait
        return cluster

    def cluster_or_none(self) -> KafkaCluster | None:
        """Returns the Kafka cluster, or None if no brokers are known."""
        bootstrap = self.bootstrap()
        return None if bootstrap is None else self.cluster_at(bootstrap, self.resolved.connection)

    def cluster_at(self, bootstrap: str, connection: ConnectionConfig) -> KafkaCluster:
        """Returns the cluster of these brokers. The first call opens the cluster, or uses the connections of a store
        that is already open."""
        self.require_open()
        if bootstrap not in self._clusters:
            from offsetmgr.kafka.cluster import KafkaCluster
            from offsetmgr.stores.kafka import KafkaStore

            store = self._stores.get(f"kafka://{bootstrap}") if connection is self.resolved.connection else None
            self._clusters[bootstrap] = (
                KafkaCluster.with_thread(store.store_thread())
                if isinstance(store, KafkaStore)
                else self._open.enter_context(KafkaCluster(bootstrap, connection))
            )
        return self._clusters[bootstrap]

    def check_plan(self, header: PlanHeader) -> None:
        """Compares the servers of the named context with those of the plan. Raises `OtherCluster`, and the error of a
        server if no other server shows that the context is right."""
        if self.named_context is None:
            return
        named = (("kafka:", self.resolved.bootstrap_server), ("zookeeper:", self.resolved.zookeeper))
        uris = [*(f"{kind}//{at}" for kind, at in named if at), self.resolved.store or ""]
        found: set[str | None] = set()
        failed: OffsetMgrError | None = None
        for uri in dict.fromkeys(one for one in uris if one.partition(":")[0] in TITLES):
            try:
                store = self.store(uri)
                identity = store.identity()
                found |= {identity.id, *identity.former, store.log_origin().cluster_id}
            except OffsetMgrError as error:
                failed = failed or error
            if found & {header.source.id, header.target.id, header.cluster_id or header.target.id}:
                return
        if failed is not None:
            raise failed
        if found:
            why = f"its servers are those of another cluster than the plan's: {header.source.uri}, {header.target.uri}"
            hint = Advice("name the context with which the plan was made, or leave out {context}")
            raise OtherCluster(Advice("{context} {}", self.named_context), why, hint)

    def zookeeper(self, what: str) -> ZookeeperSession:
        """Returns a session with the selected ZooKeeper. Raises `UsageError` if no ZooKeeper is selected. ``what``
        names the operation that needs the session."""
        from offsetmgr.stores.uri import zookeeper_of

        store = self.resolved.store
        address = zookeeper_of(store, self.resolved.connection) if store else None
        if address is None:
            raise UsageError(what, "needs ZooKeeper, and none is named", Advice("add {zookeeper} HOST:PORT/CHROOT"))
        return self._session(address)

    def group_describer(
        self, uri: str | None = None, *, edits: bool = False, every_kind: bool = False
    ) -> DescribeGroups:
        """Returns a function that describes groups and their live members, from the coordinators and the ZooKeeper
        registry that belong to the store at ``uri``, or to the selected store if ``uri`` is None.

        If ``edits`` is true, the returned function waits until the group locks of other runs of offsetmgr have ended.
        If ``every_kind`` is true, it also describes share groups and groups of the Streams protocol; otherwise their
        result is `OtherGroupKind`.
        """
        from offsetmgr.core.model import GroupDescription
        from offsetmgr.groups.describe import (
            merged_members,
            registered_members,
            without_leftover_locks,
        )
        from offsetmgr.stores.uri import bootstrap_of, zookeeper_of

        uri = uri or self.uri
        found: list[DescribeGroups] = []
        if (bootstrap := bootstrap_of(uri, self.resolved.connection)) is not None:
            cluster = self.cluster_at(bootstrap, self.resolved.connection)
            coordinators: DescribeGroups = partial(cluster.describe_groups, every_kind=every_kind)
            if edits:
                coordinators = partial(without_leftover_locks, coordinators, SystemClock(), self.waits)
            found.append(coordinators)
        if (connect := zookeeper_of(uri, self.resolved.connection)) is not None:
            found.append(partial(registered_members, self._session(connect)))
        if not found:
            return lambda groups: {group: GroupDescription(group, "DEAD") for group in groups}
        return found[0] if len(found) == 1 else partial(merged_members, found[0], found[1])

    def group_describer_for_edit(self, uri: str | None = None) -> DescribeGroups:
        """Like `group_describer` with ``edits``, for operations that edit.

        For a Kafka store, the members include the old consumers that are registered in a configured ZooKeeper, because
        they may commit to both stores. Without ``uri``, the result of a group that `homes` has is the refusal.
        """
        from offsetmgr.groups.describe import with_registered_members
        from offsetmgr.stores.uri import bootstrap_of, zookeeper_of

        selected, connection = uri or self.uri, self.resolved.connection
        describer = self.group_describer(selected, edits=True)
        bootstrap, known = bootstrap_of(selected, connection), self.resolved.zookeeper
        if known is not None and bootstrap is not None and zookeeper_of(selected, connection) is None:
            cluster = self.cluster_at(bootstrap, connection)
            describer = partial(with_registered_members, describer, cluster, self._session(known))
        if uri is not None:
            return describer

        def refused_elsewhere(groups: Iterable[str]) -> Descriptions:
            names = list(groups)
            return {**describer(names), **{name: home.refusal() for name, home in self.homes(names).items()}}

        return refused_elsewhere

    def group_kinds(self) -> Mapping[str, GroupKind]:
        """Returns the kind of each group of the selected store's brokers; empty if the store is not in Kafka."""
        from offsetmgr.stores.uri import bootstrap_of, parse_uri, part_uris

        connection = self.resolved.connection
        for uri in part_uris(self.uri, connection):
            if parse_uri(uri).kind == "kafka" and (bootstrap := bootstrap_of(uri, connection)) is not None:
                return self.cluster_at(bootstrap, connection).group_kinds()
        return {}

    def homes(self, groups: Iterable[str]) -> Mapping[str, OtherHome]:
        """Returns the home of each of the groups that is not known to live in the selected store; none if an option
        names the store, or if the settings name no other store of its cluster."""
        from offsetmgr.stores.uri import parse_uri

        names, kind = list(groups), parse_uri(self.uri).kind
        if self.resolved.store_is_named or kind not in (stores := self.configured_stores()) or len(stores) < 2:
            return {}
        if new := [name for name in dict.fromkeys(names) if name not in self._homes]:
            from offsetmgr.migration.group_locator import other_home

            self._homes.update(dict.fromkeys(new))
            with suppress(OtherCluster):  # then the other store has nothing of these groups
                for one in (locator := self.group_locator()).locate(new):
                    self._homes[one.name] = other_home(one, kind, Invocation("", (), self.given).options())
                self.warn_of_unread(locator.unread_plans)
        return {name: home for name in names if (home := self._homes[name]) is not None}

    def kafka_counterpart(self, store: OffsetStore, *, strict: bool | None = None) -> OffsetStore | None:
        """Returns the Kafka store of the cluster that uses the ZooKeeper of ``store``. A group that no longer commits
        to ZooKeeper may commit to this Kafka store.

        Returns `None` if no brokers are known. Also returns `None`, and calls `warn` with the reason, if
        ZooKeeper does not show to which cluster it belongs, or if the brokers belong to another cluster.
        With ``strict`` (default: `refuses_other_cluster`), raises `OtherCluster` in the last case.
        """
        from offsetmgr.core.log_origin import compare_origins
        from offsetmgr.stores.uri import parse_uri

        parsed, bootstrap = parse_uri(self.uri), self.resolved.bootstrap_server
        if parsed.kind != "zookeeper" or parsed.options.get("layout", "0.8") != "0.8" or bootstrap is None:
            return None
        kafka = self.opened(f"kafka://{bootstrap}")
        origin = store.log_origin()
        compared = compare_origins(origin, kafka.log_origin())
        if compared.keeps_epochs:
            return kafka
        if origin.cluster_id is None and not origin.brokers:
            self.warn(f"cannot verify that {bootstrap} is the cluster of {self.uri}: ZooKeeper lists no live broker")
            return None
        why = f"is another Kafka cluster than that of {self.uri}: {compared.how}"
        if self.refuses_other_cluster if strict is None else strict:
            raise OtherCluster(bootstrap, why, "name the brokers that the ZooKeeper belongs to")
        self.warn(f"{bootstrap} {why}")
        return None

    def group_view(self) -> GroupView:
        """Returns the view of old consumers' groups: ZooKeeper's registry, both stores and the cluster.

        Raises `UsageError` if ZooKeeper or the brokers are unknown, and `OtherCluster` if they are known to hold
        offsets of different Kafka clusters.
        """
        from offsetmgr.migration.observation import GroupView
        from offsetmgr.stores.uri import zookeeper_of
        from offsetmgr.stores.zookeeper import ZookeeperStore

        needs = "a runbook"
        address = zookeeper_of(self.uri, self.resolved.connection)
        if address is None:
            why = "needs ZooKeeper, where old consumers register"
            raise UsageError(needs, why, Advice("add {zookeeper} HOST:PORT/CHROOT"))
        cluster = self.cluster(needs)
        store = self.opened(f"zookeeper://{address}")
        assert isinstance(store, ZookeeperStore)  # a zookeeper: URI always opens a ZookeeperStore
        return GroupView.of_stores(store, self.opened(f"kafka://{self.bootstrap()}"), cluster)

    def configured_stores(self) -> dict[str, str]:
        """Returns the URIs of all stores that the settings name and that groups can live in, by their kind, in the
        order of `TITLES`. The two stores of a dual store count as separate stores."""
        from offsetmgr.stores.uri import parse_uri, part_uris

        known = self.resolved
        uris = [*part_uris(self.uri, known.connection)]
        uris += [f"zookeeper://{known.zookeeper}"] if known.zookeeper else []
        uris += [f"kafka://{known.bootstrap_server}"] if known.bootstrap_server else []
        found: dict[str, str] = {}
        for uri in uris:
            found.setdefault(parse_uri(uri).kind, uri)
        return {kind: found[kind] for kind in TITLES if kind in found}

    def group_locator(self, *, must_respond: bool = True) -> GroupLocator:
        """Returns the object that finds groups in all configured stores.

        If a store does not respond, its `ConfiguredStore` contains the error. Raises `UsageError` if the settings name
        none of ZooKeeper, Kafka and an offset manager, the error of the first store if a store must respond and none
        does, and `OtherCluster` if the stores are known to hold offsets of different Kafka clusters.
        """
        from offsetmgr.core.log_origin import Relation, compare_origins
        from offsetmgr.migration.group_locator import ConfiguredStore, GroupLocator
        from offsetmgr.stores.manager import ManagerStore
        from offsetmgr.stores.uri import bootstrap_of
        from offsetmgr.stores.zookeeper import ZookeeperStore

        uris = self.configured_stores()
        if not uris:
            raise UsageError(self.uri, "has no live groups", "name ZooKeeper, brokers or an offset manager")
        stores: list[ConfiguredStore] = []
        origins: list[tuple[str, LogOrigin]] = []
        for kind, uri in uris.items():
            store, session, failed = self._stores.get(uri) or self.store(uri), None, None
            if isinstance(store, ZookeeperStore) and store.layout == "0.8":
                session = store.session
            try:
                if isinstance(store, ManagerStore) and store.served_store() in uris:
                    continue  # another configured store has these offsets, and is read itself
                origins.append((store.uri, store.log_origin()))
            except OffsetMgrError as error:
                failed = error
            stores.append(ConfiguredStore(kind, store, self.group_describer(uri, every_kind=True), session, failed))
        if must_respond and not origins and stores[0].error is not None:
            raise stores[0].error
        for (first, origin), (second, other) in pairwise(origins):
            compared = compare_origins(origin, other, (first, second))
            if compared.relation is Relation.OTHER:
                raise OtherCluster("groups where", compared.how, "name the stores of one Kafka cluster")
        living = (one.store.uri for one in stores if one.error is None and one.name != "zookeeper")
        bootstrap = next((bootstrap_of(uri, self.resolved.connection) for uri in living), None)
        return GroupLocator(stores, self.cluster_at(bootstrap, self.resolved.connection) if bootstrap else None)

    def uri_of(self, store: str, argument: str) -> str:
        """Returns ``store``, or the URI of the configured store if ``store`` is the name of a kind of `TITLES`, such as
        "zookeeper". Raises `UsageError`, which names the ``argument``, if the settings name no store of the kind."""
        if store not in TITLES:
            return store
        configured = {} if self.resolved.store is None else self.configured_stores()
        if store not in configured:
            hint = Advice(f"name it in the context or by an option, or as in {{{argument}}} {SCHEMES[store].example}")
            raise UsageError(Advice(f"{{{argument}}} {store}"), f"the settings do not name {TITLES[store]}", hint)
        return configured[store]

    def _session(self, connect: str) -> ZookeeperSession:
        """Returns the session with this connect string. Opens a session if neither a store nor an earlier call has
        opened one."""
        self.require_open()
        if (session := self._sessions.get(connect)) is None:
            from offsetmgr.zookeeper.client.session import ZookeeperSession

            session = self._open.enter_context(ZookeeperSession(connect, self.resolved.connection))
            self._sessions[connect] = session
        return session


def create_no_offsets_topic() -> None:
    """From now on, no read of this process makes a broker create ``__consumer_offsets``."""
    from offsetmgr.kafka.client.client import Client

    Client.creates_offsets_topic = False


def nothing_named(what: str) -> UsageError:
    """Returns the error of a use case that needs a server or a store, if no setting names one."""
    return UsageError(
        what,
        Advice("none of {store}, {zookeeper}, {bootstrap_server}, a context or OFFSETMGR_* names one"),
        Advice("as in {bootstrap_server} HOST:9092, or {zookeeper} HOST:2181"),
    )


def connect(
    store: str | None = None,
    *,
    bootstrap_server: str | None = None,
    zookeeper: str | None = None,
    context: str | None = None,
    command_config: str | None = None,
    ui: Ui | None = None,
) -> Connections:
    """Returns the connections that the arguments select, for the functions of `offsetmgr.app`. The arguments are those
    of the command line. The ``OFFSETMGR_*`` variables and the configuration file give the settings that no argument
    gives. ``ui`` receives notes and questions (default: `Ui`, which agrees and logs only warnings). The functions
    contact servers on first use. Raises `ConfigError`.

    Example::

        from offsetmgr import GroupSelection
        from offsetmgr.app import offsets
        from offsetmgr.app.connections import connect

        with connect(bootstrap_server="h1:9092") as connections:
            for group in offsets.lag(connections, GroupSelection("shop*")):
                print(group.name, group.total)
    """
    given = SettingsLayer(
        bootstrap_server=bootstrap_server, zookeeper=zookeeper, store=store, command_config=command_config
    )
    connections = Connections(resolve(given, context), ui)
    connections.named_context = context
    return connections


# `SourceAndTarget`: opens the stores, Kafka clusters and ZooKeeper registries of a migration's source and target. The
# two sides have separate credentials.


class SourceAndTarget:
    """The source and the target of one migration. ``connections`` opens their stores and clusters on first use, and
    closes them. ``sides`` are the settings of the two sides (default: those of the connections)."""

    def __init__(
        self, connections: Connections, source: str, target: str, sides: Sequence[ConnectionConfig] | None = None
    ) -> None:
        connections.require_open()
        self._connections = connections
        self._uris = {"source": source, "target": target}
        own = connections.resolved.connection
        self._configs = dict(zip(self._uris, sides or (own, own), strict=True))
        self.translates = False
        """Whether the two sides are different clusters, and the positions of groups are translated by the records."""
        self.open_translations: Callable[[], Translations | None] = lambda: None
        """Returns the translations by the records, if ``translates`` (see `offsetmgr.app.translation.translating`)."""

    @classmethod
    def of_plan(
        cls, connections: Connections, header: PlanHeader, sides: Sequence[ConnectionConfig] | None = None
    ) -> SourceAndTarget:
        """Returns the source and the target that a plan's header names. Raises the errors of
        `Connections.check_plan`."""
        connections.check_plan(header)
        return cls(connections, header.source.uri, header.target.uri, sides)

    def reversed(self) -> SourceAndTarget:
        """Returns the source and the target of the reverse migration."""
        target, source = self._uris.values()
        return SourceAndTarget(self._connections, source, target, (*self._configs.values(),)[::-1])

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

    def origins(self) -> tuple[dict[str, LogOrigin], OffsetMgrError | None]:
        """Returns the origins of the sides that respond, and the error of the first one that does not."""
        origins: dict[str, LogOrigin] = {}
        silent: OffsetMgrError | None = None
        for side, uri in self._uris.items():
            try:
                origins[side] = self._open(side).log_origin()
            except (Unreachable, TimedOut) as error:
                silent = silent or type(error)(f"the {side} {uri} does not respond", str(error), error.hint)
        return origins, silent

    def cluster(self) -> KafkaCluster | None:
        """Returns the Kafka cluster whose logs the offsets belong to: the cluster of the target, else the cluster of
        the source, else the cluster of the selected bootstrap server. Returns None if no brokers are known."""
        if self.translates:
            return self.waiting(self.clusters()[1])
        return self._cluster_of("target") or self._cluster_of("source") or self._cluster_of(None)

    def _cluster_of(self, side: str | None) -> KafkaCluster | None:
        """Returns the brokers that the URI of a side names, or the selected brokers; None if there are none."""
        from offsetmgr.stores.uri import bootstrap_of

        resolved = self._connections.resolved
        bootstrap, connection = resolved.bootstrap_server, resolved.connection
        if side is not None:
            connection = self._configs[side]
            bootstrap = bootstrap_of(self._uris[side], connection)
        if bootstrap is None:
            return None
        return self.waiting(self._connections.cluster_at(bootstrap, connection))

    def waiting(self, cluster: KafkaCluster) -> KafkaCluster:
        """Returns the cluster, whose description of groups waits until the group locks of other runs have ended."""
        from offsetmgr.groups.describe import LockWaitingCluster

        return cast("KafkaCluster", LockWaitingCluster(cluster, SystemClock(), self._connections.waits))

    def clusters(self) -> tuple[KafkaCluster, KafkaCluster]:
        """Returns the cluster whose logs the source's offsets belong to, and that of the target: the brokers that the
        URI names, or those that ZooKeeper lists. Raises `Unreachable` if it lists none."""
        from offsetmgr.stores.uri import bootstrap_of

        found = []
        for side, store in (("source", self.source), ("target", self.target)):
            config = self._configs[side]
            bootstrap = bootstrap_of(self._uris[side], config) or ",".join(sorted(store.log_origin().brokers))
            if not bootstrap:
                hint = "start the cluster's brokers; a ZooKeeper may need a chroot: zookeeper://HOST:2181/CHROOT"
                raise Unreachable(store.uri, "names no brokers whose logs can be read", hint)
            found.append(self._connections.cluster_at(bootstrap, config))
        return found[0], found[1]

    def logs(self) -> Logs | None:
        """Like `cluster`, but the returned object can only read logs. If the target or the source can read logs itself,
        its connections are used."""
        from offsetmgr.stores.kafka import KafkaStore

        stores = (self.target,) if self.translates else (self.target, self.source)
        found = (store.logs() for store in stores if isinstance(store, KafkaStore))
        return next(found, None) or self.cluster()

    @contextmanager
    def legacy_members(self) -> Iterator[ReadLegacyMembers | None]:
        """Yields a function that reads live old consumers from ZooKeeper's registry. Yields None if neither the source
        nor the target uses ZooKeeper."""
        from offsetmgr.stores.uri import zookeeper_of

        for side in ("target", "source"):
            connection = self._configs[side]
            if address := zookeeper_of(self._uris[side], connection):
                break
        else:
            yield None
            return
        from offsetmgr.zookeeper.client.session import ZookeeperSession
        from offsetmgr.zookeeper.groups.registry import member_ids

        with ZookeeperSession(address, connection) as session:
            yield partial(member_ids, session)

    @contextmanager
    def planner(self, options: PlanOptions, translate: TranslationChoice | None) -> Iterator[Planner]:
        """Yields the planner of this migration. The arguments are those of `Planner`. Raises the errors of
        ``open_translations``."""
        from offsetmgr.migration.planner import Planner

        translations = self.open_translations()
        with self.legacy_members() as members:
            cluster = self.cluster()
            planner = Planner(self.source, self.target, options, SystemClock(), cluster, members, self.running)
            yield replace(planner, translate=translate, translations=translations)

    def running(self, groups: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Returns the members of the groups that still run in the source's cluster, by group, if positions are
        translated; otherwise nothing."""
        if not self.translates:
            return {}
        described = self.waiting(self.clusters()[0]).describe_groups(list(groups))
        found = {
            name: (f"unknown: {one.text}",) if isinstance(one, OffsetMgrError) else tuple(map(str, one.members))
            for name, one in described.items()
        }
        return {name: members for name, members in found.items() if members}

    @contextmanager
    def changes(self, options: PlanOptions) -> Iterator[tuple[ChangeNotifier, ReadLegacyGroups | None]]:
        """Yields an object that reports changes of the source, and a function that reads old consumers and their
        partitions from the source's registry. For old consumers in ZooKeeper, the object sets watches under
        ``/consumers``. For all other sources, the object reports nothing, and the function is None."""
        from offsetmgr.migration.mirror import SilentSource
        from offsetmgr.stores.uri import parse_uri

        parsed = parse_uri(self._uris["source"])
        if parsed.kind != "zookeeper" or parsed.options.get("layout") == "storm":
            yield SilentSource(SystemClock()), None
            return
        from offsetmgr.migration.mirror import legacy_groups
        from offsetmgr.zookeeper.client.session import ZookeeperSession
        from offsetmgr.zookeeper.offsets.offset_watcher import OffsetWatcher

        address, config = parsed.address + parsed.path, self._configs["source"]
        with ZookeeperSession(address, config) as watched, ZookeeperSession(address, config) as registry:
            yield OffsetWatcher(watched, options.selects_group), partial(legacy_groups, registry)

    def _target_cluster(self) -> KafkaCluster | None:
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

        opener = self.open_translations
        return MigrationVerifier(plan, self.source, self.target, self.logs, state, open_translations=opener)

    def member_gate(
        self, plan: PlanFile, exclusive: bool, rules: EvidenceThresholds, window: ObservationWindow
    ) -> FinalizeGate:
        """Returns the gate that checks whether a member still commits only to the source. With ``exclusive``, members
        in the dual phase do not pass either, because the source's offsets will be deleted. Raises `UsageError` if
        offsetmgr has no gate for this combination of source and target."""
        from offsetmgr.migration.finalize import OldConsumerGate, gate_of_source
        from offsetmgr.migration.observation import GroupView, has_phases
        from offsetmgr.stores.zookeeper import ZookeeperStore

        # Consumers of Kafka 0.7 and Storm's spouts commit to ZooKeeper alone.
        one_phase = isinstance(self.source, ZookeeperStore) and self.source.layout != "0.8"
        if has_phases(plan.header) and not one_phase:
            view = GroupView.of_plan(plan.header, self.source, self.target, self.cluster)
            return OldConsumerGate(view, plan.header.end, exclusive, rules, window)
        return gate_of_source(plan, self.source, partial(self._cluster_of, "source"), window)

    def fleet_view(self, plan: PlanFile, state: MigrationState, window: ObservationWindow) -> FleetView:
        """Returns the object that reads the present state of the plan's groups from the servers. ``window`` limits the
        observation of their commits."""
        from offsetmgr.migration.fleet import FleetView
        from offsetmgr.migration.observation import GroupView, has_phases

        has_view = has_phases(plan.header)
        view = GroupView.of_plan(plan.header, self.source, self.target, self.cluster) if has_view else None
        return FleetView(self.verifier(plan, state), view, window)
