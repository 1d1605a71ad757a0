"""The options that commands share, named as in Kafka's own tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from offsetmgr.cli.durations import seconds_option
from offsetmgr.cli.render import OutputFormat
from offsetmgr.core.durations import parse_milliseconds
from offsetmgr.core.errors import UsageError
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.selection import GroupSelection

if TYPE_CHECKING:
    from offsetmgr.groups.running_groups import RunningEdit


def file_to_write(param: typer.CallbackParam, value: Path | str | None) -> Path | str | None:
    """Checks the value of an option that names an output file. Raises `UsageError` if the value is ``-``."""
    from offsetmgr.stores.uri import reject_dash

    reject_dash(f"{param.opts[0]} -", str(value), "name a file that does not exist yet")
    return value


BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        help="Kafka brokers. They are also the store, unless --store or --zookeeper names another store.",
        show_default=False,
    ),
]
Zookeeper = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        metavar="HOST:PORT/CHROOT",
        help="ZooKeeper as the store (old consumers); add --bootstrap-server for commands that read logs.",
        show_default=False,
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URI",
        help="The store: kafka://H:P, zookeeper://H:P/chroot, manager://H:P, dual:NAME, file:PATH.",
        show_default=False,
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", help="Settings of [context.NAME] of the config file.", show_default=False
    ),
]
ContextNames = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME,...",
        help="Settings of [context.NAME] of the config file; a list or a glob reads several clusters at once.",
        show_default=False,
    ),
]
CommandConfig = Annotated[
    str | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Client .properties, as for kafka-consumer-groups; also zookeeper.auth=digest:USER:PASSWORD.",
        show_default=False,
    ),
]
Timeout = Annotated[
    int | None,
    typer.Option(
        "--timeout",
        metavar="MS",
        parser=lambda value: parse_milliseconds(str(value), "--timeout"),
        help="Maximum wait for one response of a server: milliseconds (30000), or a duration such as 30s.",
        show_default=False,
    ),
]
IgnorePersistentMembers = Annotated[
    bool | None,
    typer.Option(
        "--ignore-persistent-members",
        help="Consumers with persistent member nodes in ZooKeeper have stopped: ignore them unless a commit is seen.",
        show_default=False,
    ),
]
GroupsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        "-g",
        metavar="NAME",
        help="A group, or a glob (a literal star: [*]); repeatable.",
        show_default=False,
    ),
]
OneGroup = Annotated[str, typer.Option("--group", "-g", metavar="NAME", help="The group.")]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups of the store.")]
ExcludeGroup = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude-group",
        metavar="NAME",
        help="Leave out this selected group, or those that match a glob; repeatable.",
        show_default=False,
    ),
]
OnlyWithLag = Annotated[
    bool, typer.Option("--only-with-lag", help="Show only partitions with lag, an error or an unknown lag.")
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="NAME[:0,1]",
        help="A topic, a glob, or some partitions of it; repeatable.",
        show_default=False,
    ),
]
AllTopics = Annotated[bool, typer.Option("--all-topics", help="All topics in which the group has committed.")]
Execute = Annotated[
    bool, typer.Option("--execute/--dry-run", help="Make the changes; without it the command only shows them.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before acting.")]
BeforeImage = Annotated[
    str | None,
    typer.Option(
        "--before-image",
        metavar="FILE",
        callback=file_to_write,
        help="File for the before-images, which undo the edit (default: a new file in the state directory).",
        show_default=False,
    ),
]
Reason = Annotated[
    str | None,
    typer.Option(
        "--reason", metavar="TEXT", help="Why, for the operation log (offsetmgr edits list).", show_default=False
    ),
]
FormatOption = Annotated[
    OutputFormat, typer.Option("--format", help="Output format of stdout; --wide shows a table in full.")
]
UnterminatedOption = Annotated[
    bool,
    typer.Option(
        "--accept-unterminated", help="Accept a text file whose last line has no line end: the file is complete."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]
TranslateOption = Annotated[
    OffsetTranslation | None,
    typer.Option(
        "--translate",
        help="Allow another Kafka cluster as the target. none: equal topics, so offsets stay the same.",
        show_default=False,
    ),
]
AcceptUnseen = Annotated[
    bool, typer.Option("--accept-unseen", help="Also delete offsets that this login cannot read, or may not see.")
]
AllowRewind = Annotated[bool, typer.Option("--allow-rewind", help="Allow offsets to go backwards.")]


RunningFlag = Annotated[
    bool,
    typer.Option(
        "--running",
        help="Edit groups while their consumers run: the members leave for some seconds and continue at the edit.",
    ),
]


WaitEmpty = Annotated[
    float,
    seconds_option("--wait-empty", "Wait this long for active groups to become empty."),
]


def running_edit(running: bool, wait_empty_s: float, *, conditional: bool = False) -> RunningEdit | None:
    """Returns the options of an edit with --running; None without it. Raises `UsageError` if --wait-empty is given,
    too."""
    if not running:
        return None
    if wait_empty_s:
        why = "the first edits groups with members, the second waits until they have none"
        raise UsageError("--running and --wait-empty", why, "give one of them")
    from offsetmgr.groups.running_groups import RunningEdit

    return RunningEdit(conditional=conditional)


class GroupFlags(NamedTuple):
    """The options that select groups."""

    group: GroupsOption = None
    all_groups: AllGroups = False
    exclude_group: ExcludeGroup = None

    def selection(self) -> GroupSelection:
        """Returns the selected groups. Raises `UsageError` unless exactly one of --group and --all-groups is given."""
        if bool(self.group) == self.all_groups:
            why = "both --group and --all-groups are given" if self.all_groups else "no group is named"
            raise UsageError("--group", why, "as in --group NAME (repeatable, globs), or --all-groups")
        return GroupSelection(self.group or None, exclude=self.exclude_group or ())


class GroupFilter(NamedTuple):
    """The options that select groups, of a command that takes all groups without them."""

    group: GroupsOption = None
    exclude_group: ExcludeGroup = None

    def selection(self) -> GroupSelection:
        """Returns the selected groups."""
        return GroupSelection(self.group or None, exclude=self.exclude_group or ())


def check_topics(topics: list[str] | None, all_topics: bool) -> None:
    """Raises `UsageError` unless exactly one of --topic and --all-topics is given."""
    if bool(topics) == all_topics:
        why = "both --topic and --all-topics are given" if all_topics else "no topic is named"
        raise UsageError("--topic", why, "as in --topic NAME (repeatable, globs), or --all-topics")
