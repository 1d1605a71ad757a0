"""`ConnectFlags`: the stores, clusters and sessions that the connection options of a command line select.

A command that connects to servers has a parameter ``connect: ConnectFlags``. The decorator `connected` replaces this
parameter with the connection options. If the command also has a parameter ``flags: EditFlags``, the decorator replaces
this parameter with the options of editing commands.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from shlex import quote
from typing import TYPE_CHECKING, Any

from offsetmgr.api.connections import Connections
from offsetmgr.cli.confirm import EditFlags
from offsetmgr.cli.lock_wait import LockWait
from offsetmgr.cli.render import OutputFormat, note, offsets_topic_progress
from offsetmgr.config.connection import ConnectionConfig, SettingsLayer, resolve, with_properties
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OtherCluster

if TYPE_CHECKING:
    from offsetmgr.cli.edit_command import Edit
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.groups.describe import DescribeGroups
    from offsetmgr.groups.running_groups import RunningEdit
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


class ConnectFlags(Connections):
    """The connection options of one command line. Opens the stores and clusters that the options select, and closes
    them at the end of the command."""

    def __init__(self, settings: SettingsLayer, context: str | None) -> None:
        self.flags = settings
        """The values of the flags alone, without the values from environment variables and the config file."""
        given = (("--command-config", settings.command_config), ("--context", context))
        self.followup_options = "".join(f" {option} {quote(value)}" for option, value in given if value is not None)
        """The options of this command line that are repeated in the follow-up commands that offsetmgr prints for the
        user. Each option starts with a space."""
        super().__init__(resolve(settings, context))
        self.on_lock_wait = LockWait()

    def store(self, uri: str | None = None, connection: ConnectionConfig | None = None) -> OffsetStore:
        """Opens the selected store, or the store at ``uri`` if given. Prints progress while a Kafka store reads the
        offsets topic."""
        store = super().store(uri, connection)
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

    def kafka_counterpart(
        self, store: OffsetStore, warn: Callable[[str], None] = lambda text: note(f"warning: {text}")
    ) -> OffsetStore | None:
        """Prints a warning if the brokers do not belong to the cluster of ``store``; see the base class."""
        try:
            return super().kafka_counterpart(store, warn)
        except OtherCluster as error:
            warn(f"{error.what} {error.why}")
            return None

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

    def wait_until_empty(self, groups: Iterable[str], seconds: float) -> None:
        """Waits until the groups have no members, and prints progress; does nothing if ``seconds`` is 0. Raises
        `GroupActive` after ``seconds``."""
        if seconds:
            from offsetmgr.groups.wait_empty import wait_until_empty

            wait_until_empty(self.directory_for_edit(), groups, seconds, SystemClock(), LockWait().for_members)

    def edit_of(
        self, operation: str, flags: EditFlags, store: OffsetStore, running: RunningEdit | None, *, as_csv: bool = False
    ) -> Edit:
        """Returns an edit of ``store``. If ``running`` is given, the edit includes groups whose consumers run.

        Raises `UnsupportedOperation` if the store cannot edit such groups.
        """
        if running is None:
            return self.edit(operation, flags, store, as_csv=as_csv)
        from offsetmgr.cli.running_edit import RunningEditCommand
        from offsetmgr.groups.running_groups import RunningChecks, require_running_store

        require_running_store(store)
        log_ranges = self.cluster(operation).log_ranges
        checks = RunningChecks(self.directory_for_edit(), self.directory(edits=True), log_ranges)
        followups = self.followup_options
        return RunningEditCommand(operation, store, flags, checks, running, followup_options=followups, as_csv=as_csv)


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
