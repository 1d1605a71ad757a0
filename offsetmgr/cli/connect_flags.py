"""`ConnectFlags`: the stores, clusters and sessions that the connection options of a command line select.

A command that connects to servers has a parameter ``connect: ConnectFlags``. The decorator `connected` replaces this
parameter with the connection options. If the command also has a parameter ``flags: EditFlags``, the decorator replaces
this parameter with the options of editing commands.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from shlex import quote
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from offsetmgr.cli.confirm import EditFlags
from offsetmgr.cli.render import OutputFormat, offsets_topic_progress
from offsetmgr.config.connection import ConnectionConfig, ResolvedConnection, SettingsLayer, resolve, with_properties
from offsetmgr.core.errors import UsageError

if TYPE_CHECKING:
    from offsetmgr.cli.edit_command import Edit
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.groups.describe import DescribeGroups
    from offsetmgr.kafka.cluster.base import Cluster
    from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.cli.options import (
    BeforeImage,
    BootstrapServer,
    CommandConfig,
    ContextName,
    Execute,
    FormatOption,
    Store,
    Timeout,
    Yes,
    Zookeeper,
)


class ConnectFlags:
    """The connection options of one command line. Opens the stores and clusters that the options select, and closes
    them at the end of the command."""

    def __init__(self, settings: SettingsLayer, context: str | None) -> None:
        self.flags = settings
        """The values of the flags alone, without the values from environment variables and the config file."""
        given = (("--command-config", settings.command_config), ("--context", context))
        self.followup_options = "".join(f" {option} {quote(value)}" for option, value in given if value is not None)
        """The options of this command line that are repeated in the follow-up commands that offsetmgr prints for the
        user. Each option starts with a space."""
        self.resolved: ResolvedConnection = resolve(settings, context)
        self._open = ExitStack()
        self._clusters: dict[str, Cluster] = {}
        self._sessions: dict[str, ZookeeperSession] = {}
        """ZooKeeper sessions by connect string. If a store has opened a session, requests that do not belong to the
        store use the same session."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def uri(self) -> str:
        """The URI of the selected store. Raises `UsageError` if no store is selected."""
        if self.resolved.store is None:
            raise UsageError(
                "no store given",
                "none of --store, --zookeeper, --bootstrap-server, a context or OFFSETMGR_* names one",
                "as in --bootstrap-server HOST:9092, or --zookeeper HOST:2181",
            )
        return self.resolved.store

    def store(self, uri: str | None = None, connection: ConnectionConfig | None = None) -> OffsetStore:
        """Opens the selected store, or the store at ``uri`` if given. Uses the settings of the command line, or
        ``connection`` if given."""
        from offsetmgr.stores.uri import open_store

        store = self._open.enter_context(open_store(uri or self.uri, connection or self.resolved.connection))
        if connection is None and store.uri.startswith("zookeeper:"):
            from offsetmgr.stores.zookeeper import ZookeeperStore

            if isinstance(store, ZookeeperStore):
                self._sessions[store.session.connect] = store.session
        if store.uri.startswith("kafka:"):
            from offsetmgr.stores.kafka import KafkaStore

            if isinstance(store, KafkaStore):
                store.on_read = offsets_topic_progress()
        return store

    def connection(self, command_config: str | None) -> ConnectionConfig:
        """Returns the settings of the command line. If ``command_config`` is given, the Kafka settings, the ZooKeeper
        credentials and the ZooKeeper ACL come from the ``.properties`` file that it names."""
        if command_config is None:
            return self.resolved.connection
        return with_properties(self.resolved.connection, command_config)

    def bootstrap(self) -> str | None:
        """Returns the brokers in the store's URI. If the URI names no brokers, returns the brokers of
        --bootstrap-server."""
        from offsetmgr.stores.uri import bootstrap_of

        store = self.resolved.store
        own = bootstrap_of(store, self.resolved.connection) if store else None
        return own or self.resolved.bootstrap_server

    def cluster(self, what: str) -> Cluster:
        """Returns the Kafka cluster. Raises `UsageError` if no brokers are known. ``what`` names the operation that
        needs the cluster."""
        found = self.cluster_or_none()
        if found is None:
            raise UsageError(what, "needs to read logs, and no brokers are known", "add --bootstrap-server")
        return found

    def cluster_or_none(self) -> Cluster | None:
        """The Kafka cluster, or None if no brokers are known."""
        bootstrap = self.bootstrap()
        return None if bootstrap is None else self.cluster_at(bootstrap, self.resolved.connection)

    def cluster_at(self, bootstrap: str, connection: ConnectionConfig) -> Cluster:
        """Returns the cluster of these brokers. The first call opens the cluster."""
        if bootstrap not in self._clusters:
            from offsetmgr.kafka.cluster.kafka_cluster import open_cluster

            self._clusters[bootstrap] = self._open.enter_context(open_cluster(bootstrap, connection))
        return self._clusters[bootstrap]

    def kafka_counterpart(self, store: OffsetStore) -> OffsetStore | None:
        """Returns the Kafka store of the cluster that uses the ZooKeeper of ``store``. A group that no longer commits
        to ZooKeeper may commit to this Kafka store.

        Returns `None` if no brokers are known. Also returns `None`, and prints a warning, if offsetmgr cannot verify
        that the brokers belong to the cluster of ``store``.
        """
        from offsetmgr.cli.render import note
        from offsetmgr.core.log_origin import compare_origins
        from offsetmgr.stores.uri import parse_uri

        parsed, bootstrap = parse_uri(self.uri), self.resolved.bootstrap_server
        if parsed.kind != "zookeeper" or parsed.options.get("layout", "0.8") != "0.8" or bootstrap is None:
            return None
        kafka = self.store(f"kafka://{bootstrap}")
        origin = store.log_origin()
        compared = compare_origins(origin, kafka.log_origin())
        if compared.keeps_epochs:
            return kafka
        if origin.cluster_id is None and not origin.brokers:
            note(
                f"warning: cannot verify that {bootstrap} is the cluster of {self.uri}: ZooKeeper lists no live broker"
            )
        else:
            note(f"warning: {bootstrap} is another Kafka cluster than that of {self.uri}: {compared.how}")
        return None

    def zookeeper(self, what: str) -> ZookeeperSession:
        """Opens a session with the selected ZooKeeper. Raises `UsageError` if no ZooKeeper is selected. ``what`` names
        the operation that needs the session."""
        from offsetmgr.stores.uri import zookeeper_of
        from offsetmgr.zookeeper.client.session import ZookeeperSession

        store = self.resolved.store
        address = zookeeper_of(store, self.resolved.connection) if store else None
        if address is None:
            raise UsageError(what, "needs ZooKeeper, and none is named", "add --zookeeper HOST:PORT/CHROOT")
        return self._open.enter_context(ZookeeperSession(address, self.resolved.connection))

    def directory(self, uri: str | None = None, *, edits: bool = False) -> DescribeGroups:
        """Returns a function that describes groups and their live members. The groups are those in the store at
        ``uri``, or in the selected store if ``uri`` is None.

        If ``edits`` is true, the returned function waits until the group locks of other runs of offsetmgr have ended.
        """
        from offsetmgr.cli.members_source import (
            cluster_directory,
            empty_directory,
            merged_directory,
            registry_directory,
        )
        from offsetmgr.stores.uri import bootstrap_of, zookeeper_of

        uri = uri or self.uri
        found: list[DescribeGroups] = []
        if (bootstrap := bootstrap_of(uri, self.resolved.connection)) is not None:
            coordinators = cluster_directory(self.cluster_at(bootstrap, self.resolved.connection))
            if edits:
                from offsetmgr.cli.lock_wait import lock_waiting_source

                coordinators = lock_waiting_source(coordinators)
            found.append(coordinators)
        if (connect := zookeeper_of(uri, self.resolved.connection)) is not None:
            found.append(registry_directory(self._session(connect)))
        if not found:
            return empty_directory
        return found[0] if len(found) == 1 else merged_directory(found[0], found[1])

    def directory_for_edit(self, uri: str | None = None) -> DescribeGroups:
        """Like `directory` with ``edits``, for commands that edit.

        For a Kafka store, the members include the old consumers that are registered in ZooKeeper, if --zookeeper,
        OFFSETMGR_ZOOKEEPER or the context names a ZooKeeper. These old consumers may commit to both ZooKeeper and
        Kafka.
        """
        from offsetmgr.cli.members_source import with_registered_members
        from offsetmgr.stores.uri import bootstrap_of, zookeeper_of

        uri = uri or self.uri
        directory, connection = self.directory(uri, edits=True), self.resolved.connection
        bootstrap, known = bootstrap_of(uri, connection), self.resolved.zookeeper
        if known is None or bootstrap is None or zookeeper_of(uri, connection) is not None:
            return directory
        return with_registered_members(directory, self.cluster_at(bootstrap, connection), self._session(known))

    def edit(
        self,
        operation: str,
        flags: EditFlags,
        store: OffsetStore,
        directory: DescribeGroups | None = None,
        **shown: bool,
    ) -> Edit:
        """Returns an edit of ``store``. ``directory`` describes the members of the store's groups (default:
        `directory_for_edit`). ``shown`` contains further options of `Edit`."""
        from offsetmgr.cli.edit_command import Edit

        directory = directory or self.directory_for_edit()
        return Edit(operation, store, directory, flags, followup_options=self.followup_options, **shown)

    def _session(self, connect: str) -> ZookeeperSession:
        """Returns the session with this connect string. Opens a session if neither a store nor an earlier call has
        opened one."""
        if (session := self._sessions.get(connect)) is None:
            from offsetmgr.zookeeper.client.session import ZookeeperSession

            session = self._open.enter_context(ZookeeperSession(connect, self.resolved.connection))
            self._sessions[connect] = session
        return session


def connected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a command. The wrapper has the connection options as parameters, and passes a `ConnectFlags` to the
    ``connect`` parameter of the command."""
    options: dict[str, Any] = {
        "bootstrap_server": BootstrapServer,
        "zookeeper": Zookeeper,
        "store": Store,
        "context": ContextName,
        "command_config": CommandConfig,
        "timeout": Timeout,
    }
    signature = inspect.signature(command, eval_str=True)

    def parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    edit_options = [
        parameter("execute", Execute, False),
        parameter("yes", Yes, False),
        parameter("before_image", BeforeImage),
        parameter("output", FormatOption, OutputFormat.TABLE),
    ]
    edits = "flags" in signature.parameters
    own = [
        option
        for name, given in signature.parameters.items()
        if name != "connect"
        for option in (edit_options if name == "flags" else [given.replace(kind=inspect.Parameter.KEYWORD_ONLY)])
    ]
    added = [parameter(name, annotation) for name, annotation in options.items()]

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        flag_values = {name: values.pop(name) for name in options}
        settings = SettingsLayer(
            bootstrap_server=flag_values["bootstrap_server"],
            zookeeper=flag_values["zookeeper"],
            store=flag_values["store"],
            command_config=flag_values["command_config"],
            timeout_ms=flag_values["timeout"],
        )
        if edits:
            values["flags"] = EditFlags(**{option.name: values.pop(option.name) for option in edit_options})
        with ConnectFlags(settings, flag_values["context"]) as connect:
            return command(connect=connect, **values)

    shown: Any = run
    shown.__signature__ = signature.replace(parameters=[*own, *added])
    shown.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    del shown.__wrapped__
    return run
