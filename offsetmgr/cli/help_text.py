"""The help of commands: examples, and connection options that are described once, by ``offsetmgr help connection``."""

from __future__ import annotations

from typing import Any, Final

import typer

from offsetmgr.cli.examples import example_lines
from offsetmgr.cli.options import (
    BootstrapServer,
    CommandConfig,
    ContextName,
    IgnorePersistentMembers,
    Store,
    Timeout,
    Zookeeper,
)

_ADDRESSES: Final = ("bootstrap_server", "zookeeper", "store", "context")
CONNECTION_PARAMETERS: Final = (*_ADDRESSES, "command_config", "timeout", "ignore_persistent_members")
_CONNECTION: Final = """\b
Connection options (see offsetmgr help connection): --bootstrap-server,
--zookeeper, --store, --context, --command-config, --timeout,
--ignore-persistent-members"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Help on a subject.")


@app.callback()
def _group() -> None:
    """Makes Typer treat ``connection`` as a subcommand, although the app has only one command."""


@app.command("connection")
def connection(
    context: typer.Context,
    bootstrap_server: BootstrapServer = None,  # noqa: ARG001 - only their help is used
    zookeeper: Zookeeper = None,  # noqa: ARG001
    store: Store = None,  # noqa: ARG001
    context_name: ContextName = None,  # noqa: ARG001
    command_config: CommandConfig = None,  # noqa: ARG001
    timeout: Timeout = None,  # noqa: ARG001
    ignore_persistent_members: IgnorePersistentMembers = None,  # noqa: ARG001
) -> None:
    """Print the connection options, which most commands accept.

    A value comes from the option, else from the variable OFFSETMGR_BOOTSTRAP_SERVER, OFFSETMGR_ZOOKEEPER,
    OFFSETMGR_STORE, OFFSETMGR_COMMAND_CONFIG or OFFSETMGR_TIMEOUT, else from a context of the config file.
    OFFSETMGR_CONTEXT selects a context, like --context.
    """
    print(context.get_help())


def complete_help(command: Any, path: str) -> None:
    """Adds the examples of the command ``path`` to its help. Replaces the description of the connection options by one
    line."""
    parameters = {parameter.name: parameter for parameter in command.params}
    paragraphs = []
    if parameters.keys() >= set(CONNECTION_PARAMETERS):
        for name in CONNECTION_PARAMETERS:
            parameters[name].get_help_record = lambda ctx: None  # noqa: ARG005 - click passes it by name
        paragraphs.append(_CONNECTION)
    if lines := example_lines(path):
        title = "Example:" if len(lines) == 1 else "Examples:"
        paragraphs.append("\n".join(["\b", title, *(f"  {line}" for line in lines)]))
    if command.epilog:
        paragraphs.insert(0, command.epilog)
    command.epilog = "\n\n".join(paragraphs) or None
