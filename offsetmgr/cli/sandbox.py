"""``offsetmgr sandbox``: runs real ZooKeeper and Kafka servers on this machine, for experiments."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

from offsetmgr.app.ui import interrupted_as
from offsetmgr.cli.options import arg, command_group, flag, opt
from offsetmgr.cli.render import Column, OutputFormat, fail_if, note, write_rows
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import UsageError

if TYPE_CHECKING:
    from offsetmgr.sandbox import Sandbox

app = command_group("Real ZooKeeper and Kafka servers on this machine, for experiments.")

StateDirectory = Annotated[
    str | None,
    opt(
        "--state",
        "DIR",
        "Directory of the sandbox's state and data (default: OFFSETMGR_SANDBOX, else a user directory).",
    ),
]


class OffsetsStorage(StrEnum):
    """Kafka's ``offsets.storage``."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"


COLUMNS = (
    Column("name"),
    Column("kind", rank=13),
    Column("version", rank=12),
    Column("running"),
    Column("pid", right=True, rank=11),
    Column("address", optional=True),
    Column("group", optional=True),
    Column("member_id", optional=True, rank=1),
    Column("topic", optional=True),
    Column("offsets_storage", optional=True),
    Column("dual_commit", optional=True, rank=14),
    Column("directory", rank=15),
)


def _sandbox(state: str | None) -> Sandbox:
    from offsetmgr.sandbox import Sandbox

    return Sandbox(state)


@app.command()
def up(
    state: StateDirectory = None,
    brokers: Annotated[int, opt("--brokers", "N", "Number of brokers; with 3, topics are replicated.")] = 1,
    broker_version: Annotated[
        str,
        opt("--broker-version", "X.Y.Z", "The brokers' release: 0.8.2.2, 0.9.0.1, 0.10.2.2, 1.1.1, 2.8.2 or 3.9.1."),
    ] = "3.9.1",
    kraft: Annotated[bool, flag("--kraft", "Start one Kafka 4.4 broker without ZooKeeper instead.")] = False,
    clusters: Annotated[int, opt("--clusters", "N", "With 2: also start cluster B, one Kafka 4.4 broker.")] = 1,
    mirror: Annotated[
        bool, flag("--mirror", "Also start MirrorMaker 2, which copies topics and groups from A to B.")
    ] = False,
    mirror_config: Annotated[
        list[str] | None,
        opt("--mirror-config", "NAME=VALUE", "A setting of MirrorMaker: sync.group.offsets.enabled=false; repeatable."),
    ] = None,
    old_consumers: Annotated[
        int,
        opt("--old-consumers", "N", "Also start N real old consumers of --group.", min=0),
    ] = 0,
    group: Annotated[str | None, opt("--group", "NAME", "The old consumers' group.")] = None,
    topic: Annotated[
        str | None,
        opt("--topic", "NAME", "The old consumers' topic; it is created if it does not exist."),
    ] = None,
    partitions: Annotated[int, opt("--partitions", "N", "Number of partitions of a new topic.", min=1)] = 8,
    offsets_storage: Annotated[
        OffsetsStorage, opt("--offsets-storage", None, "Offset storage of the old consumers.")
    ] = OffsetsStorage.ZOOKEEPER,
    dual_commit: Annotated[
        bool, flag("--dual-commit/--no-dual-commit", "With kafka: also commit to ZooKeeper.")
    ] = False,
) -> None:
    """Start servers, and print the variables to export.

    ZooKeeper and Kafka get free ports of this machine; the command returns when they respond. While they run, a second
    call starts only the old consumers that it names, and MirrorMaker if it has ended. After a crash the command first
    removes all servers and data.
    """
    if old_consumers and (group is None or topic is None):
        raise UsageError("--old-consumers", "needs a group and a topic", "add --group NAME --topic NAME")
    if old_consumers and kraft:
        raise UsageError("--old-consumers", "need ZooKeeper, and brokers before 4.0", "leave --kraft out")
    if mirror and clusters < 2:
        raise UsageError("--mirror", "needs two clusters", "add --clusters 2")
    if mirror and not kraft and broker_version < "2":
        raise UsageError("--mirror", "needs brokers from 2.1 on", "add --broker-version 2.8.2 or leave it out")
    config = _settings(mirror_config or ())
    if config and not mirror:
        raise UsageError("--mirror-config", "needs a MirrorMaker", "add --clusters 2 --mirror")
    from offsetmgr.sandbox import SampleGroup

    sandbox = _sandbox(state)
    with interrupted_as("all started servers have been stopped"):
        fresh = sandbox.up(brokers=brokers, kraft=kraft, version=broker_version, clusters=clusters, progress=note)
    note("the sandbox is up" if fresh else "the sandbox was up already")
    if old_consumers and group is not None and topic is not None:
        sample = SampleGroup(old_consumers, group, topic, offsets_storage.value, dual_commit, partitions)
        with interrupted_as("the sandbox is up; not all old consumers are running"):
            sandbox.start_old_consumers(sample, note)
    if mirror:
        with interrupted_as("the sandbox is up; MirrorMaker is not running"):
            sandbox.start_mirror(note, config)
    _print_env(sandbox)


def _settings(words: Collection[str]) -> dict[str, str]:
    """Returns settings by name. Raises `UsageError`."""
    for word in words:
        if "=" not in word:
            raise UsageError(word, "is not a setting", "write NAME=VALUE")
    return {name: value for name, _, value in (word.partition("=") for word in words)}


@app.command()
def restart(
    member: Annotated[str, arg("MEMBER", "The member's id in ZooKeeper, or its name in the sandbox.")],
    settings: Annotated[list[str], arg("SETTINGS", "Settings such as offsets.storage=kafka dual.commit.enabled=true.")],
    state: StateDirectory = None,
) -> None:
    """Stop one old consumer, and start it with other settings.

    The settings can be one argument, as in: offsetmgr runbook bounce --command 'offsetmgr sandbox restart {member}
    {settings}'.
    """
    restarted = _sandbox(state).restart_old_consumer(member, _settings(" ".join(settings).split()), note)
    note(f"{restarted.name} is now {restarted.details['member_id']}")


@app.command()
def down(state: StateDirectory = None) -> None:
    """Stop all servers, and remove their data.

    The command returns when every process has ended.
    """
    stopped = _sandbox(state).down(note)
    note(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


@app.command()
def status(
    state: StateDirectory = None,
    output: Annotated[OutputFormat, opt("--format", None, "Output format of stdout.")] = OutputFormat.TABLE,
) -> None:
    """List the servers, and whether they run.

    The exit code is 0 if all of them run, and 1 if one does not or there is no sandbox.
    """
    sandbox = _sandbox(state)
    found = sandbox.status()
    servers = found.servers if found else ()
    details = ("group", "member_id", "topic", "offsets_storage", "dual_commit")
    process = attrgetter("name", "kind", "version")
    rows = [
        (*process(one), one.running(), one.pid, one.address or None, *map(one.details.get, details), one.directory)
        for one in servers
    ]
    write_rows(COLUMNS, rows, output)
    if found is None:
        note(f"no sandbox is up in {sandbox.directory}")
    elif not found.complete:
        note(Advice("the sandbox did not come up fully; {} removes it and starts again", sandbox.command("up")))
    elif ended := [server for server in servers if not server.running()]:
        again = "; the same offsetmgr sandbox up starts it again"
        for server in ended:
            note(f"{server.name} is not running{again if server is found.mirror else ''}")
    fail_if(found is None or not found.complete or not all(server.running() for server in servers))


@app.command()
def env(state: StateDirectory = None) -> None:
    """Print the variables to export.

    For a shell: eval "$(offsetmgr sandbox env)".
    """
    _print_env(_sandbox(state))


def _print_env(sandbox: Sandbox) -> None:
    for name, value in sandbox.env().items():
        print(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
