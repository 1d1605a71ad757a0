"""``offsetmgr context list|show|use|add``: the contexts of the config file. Contacts no server."""

from __future__ import annotations

import os
import re
from pathlib import Path
from shlex import quote
from typing import Annotated, Final

from offsetmgr.cli.options import (
    BootstrapServer,
    CommandConfig,
    FormatOption,
    Store,
    Timeout,
    Zookeeper,
    arg,
    command_group,
)
from offsetmgr.cli.render import Column, OutputFormat, fail_if, note, write_rows, write_text

app = command_group("Contexts of the config file: names for clusters.")

CONTEXTS: Final = (
    Column("context"),
    Column("default"),
    Column("bootstrap_server", optional=True),
    Column("zookeeper", optional=True),
    Column("store", optional=True),
    Column("command_config", optional=True),
    Column("error", optional=True),
)
SETTINGS: Final = (Column("setting"), Column("value"), Column("source"))


@app.command("list")
def list_contexts(output: FormatOption = OutputFormat.TABLE) -> None:
    """List the contexts of the config file, and which of them is the default.

    A context that is not valid is a row with its error, and the exit code is 1.
    """
    from offsetmgr.config.contexts import Contexts, masked
    from offsetmgr.core.errors import ConfigError

    contexts = Contexts.read()
    rows: list[tuple[object, ...]] = []
    for name, found in sorted(contexts.layers.items()):
        default = "yes" if name == contexts.default else None
        if isinstance(found, ConfigError):
            rows.append((name, default, None, None, None, None, found.why))
        else:
            addresses = {"bootstrap-server": found.bootstrap_server, "zookeeper": found.zookeeper, "store": found.store}
            shown = (value and masked(key, value) for key, value in addresses.items())
            rows.append((name, default, *shown, found.command_config, None))
    if not write_rows(CONTEXTS, rows, output):
        note(f"no context in {contexts.path}")
    fail_if(any(isinstance(found, ConfigError) for found in contexts.layers.values()))


@app.command("show")
def show(
    name: Annotated[str | None, arg("[CONTEXT]", "The context (default: the one in effect).")] = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the settings that commands use, and where each value comes from. Passwords and keys are masked.

    OFFSETMGR_* variables override a context, and the options of a command override both.
    """
    from offsetmgr.config.contexts import settings_in_effect

    write_rows(SETTINGS, settings_in_effect(name), output)


@app.command("use")
def use(name: Annotated[str, arg("CONTEXT", "The new default context.")]) -> None:
    """Make a context the default. Changes only the line default-context of the config file; comments stay."""
    from offsetmgr.config.contexts import Contexts

    contexts = Contexts.read()
    contexts.set_default(name)
    note(f"{name} is the default context in {contexts.path}; it was {contexts.default or 'not set'}")
    if (present := os.environ.get("OFFSETMGR_CONTEXT")) and present != name:
        note(f"warning: the variable OFFSETMGR_CONTEXT is {present}, and overrides the default")


@app.command("add")
def add(
    name: Annotated[str, arg("NAME", "The name of the new context.")],
    bootstrap_server: BootstrapServer = None,
    zookeeper: Zookeeper = None,
    store: Store = None,
    command_config: CommandConfig = None,
    timeout: Timeout = None,
) -> None:
    """Add a context to the end of the config file, and show it. Nothing else in the file changes.

    The command checks the settings as every command does, and contacts no server. A relative path of
    --command-config or --store file:PATH is relative to the present directory.
    """
    from urllib.parse import quote as quote_uri

    from offsetmgr.app.connections import Connections
    from offsetmgr.config.connection import SettingsLayer
    from offsetmgr.config.contexts import Contexts

    command_config = command_config and str(Path(command_config).absolute())
    if store is not None and re.match("file:[^/?]", store):
        store = f"file:{quote_uri(str(Path.cwd()))}/{store.removeprefix('file:')}"
    contexts = Contexts.read(new=True)
    settings = SettingsLayer(bootstrap_server, zookeeper, store, command_config, timeout)
    table = contexts.add(name, settings, lambda resolved: resolved.store and Connections(resolved).configured_stores())
    note(f"added to {contexts.path}:")
    write_text(table)
    note(f"next: offsetmgr doctor --context {quote(name)}")
