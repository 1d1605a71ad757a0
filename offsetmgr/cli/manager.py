"""``offsetmgr manager``: runs the offset manager as a server, and shows its state."""

from __future__ import annotations

from collections import namedtuple
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from offsetmgr.app import manager
from offsetmgr.cli.connect_flags import ConnectFlags, command, print_hangups
from offsetmgr.cli.options import FormatOption, command_group, flag, opt
from offsetmgr.cli.render import FAILED, Column, OutputFormat, fail_if, note, rows_of, write_rows
from offsetmgr.cli.watch import PartitionFlags, PartitionTable
from offsetmgr.config.manager_settings import (
    ENVIRONMENT,
    SettingOption,
    configured_settings,
    setting_options,
    with_options,
)
from offsetmgr.core.advice import for_command_line, option

app = command_group("The offset manager: run it, show its state, print a shard's offsets.")


class LogFormat(StrEnum):
    """The format of the log."""

    TEXT = "text"
    JSON = "json"


class ServeCommand(TyperCommand):
    """A command whose options may be set in ``[manager]`` of the config file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not {"--help", "-h"} & set(args):
            ctx.default_map = configured_settings()
        return super().parse_args(ctx, args)


def _setting_flags() -> Any:
    """Returns a named tuple of the options of the settings."""
    settings = setting_options().values()
    names, defaults = [one.name for one in settings], [one.default for one in settings if not one.required]
    flags: Any = namedtuple("SettingFlags", names, defaults=defaults)  # type: ignore[misc] # not a literal
    flags.__annotations__ = {one.name: _annotation(one) for one in settings}
    return flags


def _annotation(setting: SettingOption) -> Any:
    name = option(setting.name)
    declaration = typer.Option(
        f"{name}/--no-{name[2:]}" if setting.type is bool else name,
        metavar=setting.metavar,
        help=for_command_line(setting.help),
        min=setting.least,
        envvar=f"{ENVIRONMENT}{setting.name.upper()}",
        show_envvar=False,
    )
    kind = setting.type if setting.required or setting.default is not None else setting.type | None
    return Annotated[kind, declaration]


SettingFlags: Any = _setting_flags()


@command(app, "serve", one="a manager serves one cluster", cls=ServeCommand)
def serve(
    connect: ConnectFlags,
    settings: SettingFlags,
    log_format: Annotated[LogFormat, opt("--log-format", None, "How events are logged.")] = LogFormat.TEXT,
) -> None:
    """Run a manager until Ctrl-C or SIGTERM. The manager then hands its shards over to other managers and exits.

    By default, offsets are stored in a topic, which all managers of that topic share. With --store URI, the manager
    serves that store instead: zookeeper: for modern clients, or dual: for dual commit. The store's offsets must belong
    to the Kafka cluster of --bootstrap-server.
    """
    print_hangups()
    # Only the flag --store selects a store. Otherwise the manager could accidentally serve a store from a context, or
    # the offsets in the brokers.
    chosen = with_options(settings._asdict(), store=connect.flags.store)
    manager.serve(connect, chosen, log_format=log_format.value)


MANAGERS: Final = (
    Column("node_id", right=True, title="NODE"),
    Column("address"),
    Column("lease"),
    Column("shard_groups", optional=True),
    Column("active", right=True),
    Column("standby", right=True),
    Column("loading", right=True),
    Column("offsets", right=True),
    Column("since", time=True),
    Column("error", optional=True),
)

SHARDS: Final = (
    Column("partition", right=True, title="SHARD"),
    Column("shard_group", right=True),
    Column("owner"),
    Column("state"),
    Column("since", time=True),
    Column("position", right=True),
    Column("offsets", right=True),
    Column("groups", right=True),
    Column("loaded", right=True, optional=True),
    Column("standbys", right=True),
    Column("standby_lag", right=True, title="STANDBY LAG"),
    Column("unreadable", right=True),
    Column("error", optional=True),
)


@command(app, "status", many=True, watch=True)
def status(
    connect: ConnectFlags,
    managers: Annotated[bool, flag("--managers", "Show a row for each manager instead of one for each shard.")] = False,
    output: FormatOption = OutputFormat.TABLE,
) -> int:
    """Show shards, their owners, loads, and the lag of standbys; exit code 1 if there is a problem.

    --bootstrap-server (or --store manager://...) names any manager. With --watch, CHANGE is the change of the number of
    offsets, and PER-SECOND the rate of records in the shard's log (with --managers, of offsets).
    """
    columns, key, position = (MANAGERS, "node_id", "offsets") if managers else (SHARDS, "partition", "position")
    table = PartitionTable(columns, PartitionFlags(), output, key=[key], value="offsets", position=position)
    found = manager.status(connect)
    table.write(rows_of(columns, found.managers if managers else found.shards))
    for address, store in found.other_stores.items() if not managers else ():
        note(f"manager {address} has no shards: its offsets are in {store}")
    for text in found.alarms:
        note(f"alarm: {text}")
    return FAILED if found.alarms else 0


ENTRIES: Final = (
    Column("group"),
    Column("topic"),
    Column("partition", right=True),
    Column("offset", right=True),
    Column("leader_epoch", right=True, optional=True),
    Column("metadata", optional=True),
    Column("commit_timestamp", time=True),
    Column("expire_timestamp", time=True, optional=True),
)


@command(app, "dump", many=True)
def dump(
    connect: ConnectFlags,
    shard: Annotated[list[int], opt("--shard", "N", "A shard's number; repeatable.", min=0)],
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Print the offsets that the owner of a shard holds in memory; exit code 1 if it cannot decode some."""
    found = manager.dump(connect, shard)
    if not write_rows(ENTRIES, rows_of(ENTRIES, found.offsets), output):
        note("no offset is committed in these shards")
    for number, count in found.unreadable.items():
        note(f"alarm: shard {number} has {count} more records, which its owner cannot read; its log names them")
    fail_if(found.unreadable)
