"""The help of commands: examples, and connection options that are described once, by ``offsetmgr help connection``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import typer

from offsetmgr.cli.options import (
    BootstrapServer,
    CommandConfig,
    ContextName,
    IgnorePersistentMembers,
    Store,
    Timeout,
    Zookeeper,
)

# The examples in the help of each command.

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "groups list": ("--bootstrap-server k1:9092 --state", "'billing-*' --context prod"),
    "groups describe": ("billing --bootstrap-server k1:9092", "--all-groups --top 10", "billing --watch 5"),
    "groups delete": ("old-billing --bootstrap-server k1:9092 --execute",),
    "groups copy": ("billing billing-test --bootstrap-server k1:9092 --execute",),
    "groups rename": ("billing invoices --bootstrap-server k1:9092 --execute",),
    "offsets get": ("billing --bootstrap-server k1:9092", "billing -t orders:0,1 --format json"),
    "offsets lag": ("billing --bootstrap-server k1:9092", "--all-groups --totals --sort lag", "billing --watch"),
    "offsets peek": ("billing --bootstrap-server k1:9092", "billing -t orders:3 --format json"),
    "offsets set": ("billing -t orders:0 --to-offset 4200 --bootstrap-server k1:9092 --execute",),
    "offsets reset": (
        "billing -t orders --to-earliest --bootstrap-server k1:9092",
        "billing -t orders --by-duration 1h30m --execute",
        "billing --all-topics --to-datetime 'yesterday 14:00' --execute",
    ),
    "offsets delete": ("billing -t orders --bootstrap-server k1:9092 --execute",),
    "offsets export": ("saved.avro --all-groups --bootstrap-server k1:9092", "- billing --as csv"),
    "offsets import": ("saved.avro --bootstrap-server k1:9092 --execute", "saved.avro billing"),
    "offsets diff": (
        "--from zookeeper://z1:2181 --to kafka://k1:9092",
        "billing --from file:saved.avro --to kafka://k1:9092",
    ),
    "groups where": ("billing --context prod", "--all-groups --window 30"),
    "edits list": ("--last 10", "--group billing"),
    "edits show": ("20261126-001122-a1b2",),
    "edits undo": ("20261126-001122-a1b2", "20261126-001122-a1b2 --execute"),
    "doctor": ("--context 'prod-*'", "--bootstrap-server k1:9092 --zookeeper z1:2181 -g billing"),
    "context list": ("",),
    "context show": ("prod",),
    "context use": ("prod",),
    "sandbox restart": ("shop-0 offsets.storage=kafka dual.commit.enabled=true",),
    "migrate plan": ("billing --from zookeeper://z1:2181 --to kafka://k1:9092 -o billing.plan",),
    "migrate apply": ("billing.plan",),
    "migrate renew": ("fleet.plan --wave 3 -o fleet-2.plan",),
    "migrate status": ("billing.plan",),
    "migrate verify": ("billing.plan",),
    "migrate rollback": ("billing.plan",),
    "migrate finalize": ("billing.plan",),
    "migrate mirror": ("billing --from zookeeper://z1:2181 --to kafka://k1:9092 --once",),
    "cluster describe": ("--bootstrap-server k1:9092",),
    "runbook write": ("billing --to kafka --zookeeper z1:2181 --bootstrap-server k1:9092 -o billing.json",),
    "runbook check": ("billing --phase dual --baseline billing.json --zookeeper z1:2181 --bootstrap-server k1:9092",),
    "runbook bounce": ("billing --to-phase dual --command './restart {host} {settings}' --baseline billing.json",),
    "zk tree": ("/consumers --zookeeper z1:2181",),
    "zk brokers": ("--zookeeper z1:2181",),
    "zk topics": ("-t 'ord*' --zookeeper z1:2181",),
    "zk members": ("billing --zookeeper z1:2181",),
    "zk owners": ("billing --zookeeper z1:2181",),
    "zk check": ("billing --zookeeper z1:2181", "--all-groups --zookeeper z1:2181"),
    "zk elect": ("-t orders --zookeeper z1:2181 --execute",),
    "zk reassign": ("--reassignment-json-file moves.json --zookeeper z1:2181 --execute",),
    "zk delete-topic": ("--topic old-orders --zookeeper z1:2181 --execute",),
    "manager serve": ("--listen 0.0.0.0:9095 --bootstrap-server k1:9092",),
    "manager status": ("--bootstrap-server k1:9092",),
    "manager dump": ("--shard 3 --bootstrap-server k1:9092",),
    "log dump": ("/var/kafka/orders-0",),
    "log verify": ("/var/kafka",),
    "log recover": ("/var/kafka/orders-0 --to /tmp/repaired --execute",),
    "log offsets": ("/disks/broker1 /disks/broker2 --to file:saved.avro --execute",),
    "spark audit": ("-o audit --bootstrap-server k1:9092",),
    "spark diff": ("--from zookeeper://z1:2181 --to kafka://k1:9092",),
    "spark copy": ("--from zookeeper://z1:2181 --to kafka://k1:9092 --all-groups --execute",),
    "period status": ("--root /offsetmgr/periods/daily --zookeeper z1:2181",),
    "period history": ("--root /offsetmgr/periods/daily --zookeeper z1:2181",),
    "period rerun": (
        "--root /offsetmgr/periods/daily --from 2026-11-21T00:00:00 --length PT1H --name again --zookeeper z1:2181",
    ),
    "period abort": ("--root /offsetmgr/periods/daily --zookeeper z1:2181 --execute",),
    "sandbox up": ("--old-consumers 2",),
    "sandbox down": ("",),
    "sandbox status": ("",),
    "sandbox env": ("",),
    "completion bash": ("",),
    "completion zsh": ("",),
    "completion fish": ("",),
    "help connection": ("",),
}
"""Command -> the arguments of its examples."""


def example_lines(command: str) -> list[str]:
    return [f"offsetmgr {command} {arguments}".rstrip() for arguments in EXAMPLES.get(command, ())]


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
