"""The root of the command tree: the command groups, and the options of ``offsetmgr`` itself.

The module of a command group is imported only when a command of the group is used, because the import of all modules
would delay ``--help``.
"""

from __future__ import annotations

from copy import copy
from importlib import import_module
from typing import Any, Final, cast

import typer
from typer.core import TyperGroup

from offsetmgr.cli import sigint
from offsetmgr.core.errors import UnsupportedOperation

REGISTRY: Final[dict[str, tuple[str, str]]] = {
    "groups": ("offsetmgr.cli.groups:app", "Consumer groups: list, describe, delete, copy, rename."),
    "offsets": ("offsetmgr.cli.offsets:app", "Offsets: get, lag, peek, set, reset, export, import, diff, delete."),
    "edits": ("offsetmgr.cli.edits:app", "The operation log: list, show and undo edits and migrations."),
    "migrate": (
        "offsetmgr.cli.migrate:app",
        "Move groups between stores: plan, apply, status, verify, finalize, rollback, mirror.",
    ),
    "cluster": ("offsetmgr.cli.cluster:app", "Kafka clusters: the brokers' releases and capabilities."),
    "doctor": ("offsetmgr.cli.doctor:app", "Check every configured server and this machine; changes nothing."),
    "context": ("offsetmgr.cli.context:app", "Contexts of the config file: list, show, use."),
    "runbook": ("offsetmgr.cli.runbook:app", "Rolling-bounce runbooks: write, check, bounce."),
    "zk": (
        "offsetmgr.cli.zk:app",
        "Kafka in ZooKeeper: tree, brokers, topics, members, owners, check, elect, reassign, delete-topic.",
    ),
    "manager": ("offsetmgr.cli.manager:app", "The offset manager: serve, status, dump."),
    "log": ("offsetmgr.cli.log:app", "Kafka's logs on disk, without a broker: dump, verify, recover, offsets."),
    "spark": ("offsetmgr.cli.spark:app", "Audit, compare and copy offsets with Spark, for very large clusters."),
    "period": ("offsetmgr.cli.period:app", "Runs of the period coordinator: status, history, rerun, abort."),
    "sandbox": ("offsetmgr.cli.sandbox:app", "Real ZooKeeper and Kafka servers on this machine, for experiments."),
    "help": ("offsetmgr.cli.help_text:app", "Help on a subject: connection."),
    "completion": ("offsetmgr.cli.completion:app", "Shell completion: bash, zsh, fish."),
}
"""Command group -> (location of its typer app, one line of help)."""

SINGLE_COMMANDS: Final = ("doctor",)
"""The entries of `REGISTRY` that are commands without subcommands."""

EPILOG: Final = (
    "Exit codes: 0 done; 1 failed, partly failed, or a check found a difference; 2 wrong usage. "
    "--debug, anywhere on the command line, prints the traceback of an error; --wide shows tables in full, even if "
    "they are wider than the terminal. "
    "Settings come from flags, else from OFFSETMGR_* variables, else from a context of the config file "
    "($OFFSETMGR_CONFIG, or offsetmgr/config.toml under $XDG_CONFIG_HOME)."
)


class LazyGroup(TyperGroup):
    """Imports the module of a command group when the group is used. Listing the groups does not import any of these
    modules."""

    _subcommand: str | None = None
    """The name after the name of the command group in the command line."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer hands it over
        return list(REGISTRY)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in REGISTRY:
            return None
        module_name, _, attribute = REGISTRY[cmd_name][0].partition(":")
        try:
            module = import_module(module_name)
        except ModuleNotFoundError as missing:
            if missing.name != module_name:
                raise
            raise UnsupportedOperation(f"offsetmgr {cmd_name}", "this installation does not contain it") from missing
        from offsetmgr.cli.help_text import complete_help

        command: Any
        if cmd_name in SINGLE_COMMANDS:
            command = typer.main.get_command_from_info(
                getattr(module, attribute).registered_commands[0], pretty_exceptions_short=True, rich_markup_mode=None
            )
            complete_help(command, cmd_name)
        else:
            app = _with_one_command(getattr(module, attribute), self._subcommand)
            command = typer.main.get_group(app)  # get_command would add completion options
            for name, subcommand in command.commands.items():  # typer would truncate the first paragraph
                subcommand.short_help = " ".join((subcommand.help or "").split("\n\n")[0].split())
                complete_help(subcommand, f"{cmd_name} {name}")
        command.name = cmd_name
        sigint.uninstall()
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # For a typo, typer suggests names of `commands`, although this class imports each command on use.
        self.commands = cast("dict[str, Any]", dict.fromkeys(REGISTRY))
        self._subcommand = next(iter(args[1:]), None)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in REGISTRY.items()])


def _with_one_command(app: typer.Typer, name: str | None) -> typer.Typer:
    """Returns a copy of a command group's app that has only the command ``name``, because typer inspects the
    parameters of every command of an app. Returns the app itself if it has no such command."""
    parts = [app, *(part.typer_instance for part in app.registered_groups)]
    found = [command for part in parts if part for command in part.registered_commands if command.name == name]
    if len(found) != 1:
        return app
    only = copy(app)
    only.registered_commands, only.registered_groups = found, []
    return only


root = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},  # the contexts of all commands inherit the setting
)


def _print_version(requested: bool) -> None:
    if requested:
        from offsetmgr.core.version import __version__

        print(f"offsetmgr {__version__}")
        raise typer.Exit


@root.callback()
def offsetmgr(
    show_version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Inspect Kafka consumer-group offsets in ZooKeeper and Kafka, and migrate groups between them."""
