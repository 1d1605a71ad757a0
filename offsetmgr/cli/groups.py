"""``offsetmgr groups``: lists and describes groups; deletes, copies and renames them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.confirm import RunFlags, confirm
from offsetmgr.cli.errors import FAILED, report_and_exit_code
from offsetmgr.cli.options import (
    AllGroups,
    AllowRewind,
    BeforeImage,
    ConnectFlags,
    Execute,
    Format,
    Groups,
    OnlyWithLag,
    Topics,
    TranslateOption,
    Yes,
    connected,
    require_groups,
)
from offsetmgr.cli.render import Column, OutputFormat, note, nothing_in, write_rows
from offsetmgr.cli.stale import StaleSnapshot
from offsetmgr.cli.watch import Count, Watch, WatchCommand, watch_command
from offsetmgr.core.errors import Conflict, GroupNotFound, OffsetMgrError, UnknownTopicOrPartition, UsageError
from offsetmgr.core.model import Committed, GroupDescription
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.groups.describe import DescribedGroup
    from offsetmgr.groups.topic_matches import TopicMatches

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Consumer groups.")

STATES: Final = (
    "Stable",
    "Empty",
    "Dead",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Unknown",
)
"""Kafka's names of a group's state (``org.apache.kafka.common.GroupState``)."""
LIST: Final = (Column("group"), Column("state", optional=True))
DESCRIBE: Final = (
    Column("group"),
    Column("state"),
    Column("topic"),
    Column("partition", right=True, title="PART"),
    Column("offset", right=True),
    Column("log_end_offset", right=True, title="LOG-END"),
    Column("lag", right=True),
    Column("client_id", optional=True),
    Column("host", optional=True),
    Column("member_id", optional=True),
    Column("note", optional=True),
)
MEMBERS: Final = (
    Column("group"),
    Column("state"),
    Column("member_id"),
    Column("client_id", optional=True),
    Column("host", optional=True),
    Column("partitions", right=True),
    Column("assignment", optional=True),
)
STATE: Final = (
    Column("group"),
    Column("coordinator"),
    Column("assignor"),
    Column("state"),
    Column("members", right=True),
)


class _ListCommand(typer.core.TyperCommand):
    """A command whose ``--state`` may go without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[str] = []
        for at, argument in enumerate(args):
            given.append(argument)
            if argument == "--state" and (at + 1 == len(args) or args[at + 1].startswith("-")):
                given.append("")
        return super().parse_args(ctx, given)


@app.command("list", cls=_ListCommand)
@connected
def list_groups(
    connect: ConnectFlags,
    group: Groups = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="[STATE,...]",
            help="Show each group's state as well; with names, of these states alone.",
            show_default=False,
        ),
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """List the groups of a store."""
    from offsetmgr.groups.selection import matching_groups

    store = connect.store()
    names = sorted(set(store.groups()))
    wanted = {_plain_state(one) for one in (state or "").split(",")} - {""}
    if unknown := wanted - {_plain_state(name) for name in STATES}:
        why = f"{', '.join(sorted(unknown))} is no state of a group"
        raise UsageError(f"--state {state}", why, f"states: {', '.join(STATES)}")
    if group:
        names = matching_groups(group, names)
        if not names:
            raise GroupNotFound(f"group {group[0]!r}", f"no group of {store.uri} matches")
    states = {} if state is None else connect.directory()(names)
    errors: list[OffsetMgrError] = []

    def shown(name: str) -> str | None:
        found = states.get(name)
        if isinstance(found, OffsetMgrError):
            errors.append(found)
            return None
        # A store with the group's offsets still has the group, so it is not dead.
        return None if found is None else "EMPTY" if found.state == "DEAD" else found.state

    rows = ((name, shown(name))[: 1 if state is None else 2] for name in names)
    if wanted:
        rows = (row for row in rows if _plain_state(str(row[-1])) in wanted)
    if not write_rows(LIST[:1] if state is None else LIST, rows, output) and not errors:
        note(nothing_in(store.uri, "groups" if not names else f"groups in state {state}"))
    for error in errors:
        note(f"error: {error}")
    if errors:
        raise typer.Exit(FAILED)


def _plain_state(name: str) -> str:
    """A state's name for comparison: Kafka's tool writes PreparingRebalance, its protocol PREPARING_REBALANCE."""
    return name.strip().replace("_", "").upper()


@app.command("describe", cls=WatchCommand)
@connected
def describe(
    connect: ConnectFlags,
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    members: Annotated[bool, typer.Option("--members", help="Show members instead of partitions.")] = False,
    state: Annotated[
        bool, typer.Option("--state", help="Show coordinator, assignor, state and number of members instead.")
    ] = False,
    verbose: Annotated[  # noqa: ARG001 - everything is said already
        bool, typer.Option("--verbose", help="Taken as by Kafka's tool; nothing is left out here.")
    ] = False,
    only_with_lag: OnlyWithLag = False,
    watch: Watch = None,
    count: Count = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """State, members, committed offsets, log ends, lag and owners of groups."""
    from offsetmgr.groups.describe import describe as describe_groups
    from offsetmgr.groups.selection import TopicSelection, choose_groups
    from offsetmgr.groups.topic_matches import TopicMatches

    names = require_groups(group, all_groups)
    if members and state:
        raise UsageError("groups describe", "both --members and --state are given", "only one of them")
    if topic and (members or state):
        option = "--members" if members else "--state"
        raise UsageError("--topic", f"chooses partitions, and {option} shows none", f"leave out --topic or {option}")
    topics = TopicSelection.parse(topic or [])
    cluster = connect.cluster("--only-with-lag") if only_with_lag else connect.cluster_or_none()
    store, directory = connect.store(), connect.directory()
    newer = connect.newer_store(store)

    def once() -> int:
        errors: list[OffsetMgrError] = []
        chosen = choose_groups(store, names, all_groups=all_groups)
        found = describe_groups(store, cluster, directory, chosen, topics, newer=newer)
        if state:
            shown = write_rows(STATE, _state_rows(found, errors), output)
        elif members:
            shown = write_rows(MEMBERS, _member_rows(found, errors), output)
        else:
            stale = StaleSnapshot(newer)
            topic_matches = TopicMatches(topics)
            where = " in these topics" if topic else ""
            rows = _partition_rows(found, errors, topic_matches, only_with_lag=only_with_lag, where=where)
            shown = write_rows(DESCRIBE, stale.counted(rows), output)
            stale.finish()
            try:
                topic_matches.require_all(store.uri)
            except UnknownTopicOrPartition as missing:
                errors.append(missing)
        if not shown and not errors:
            note(nothing_in(store.uri, "groups" if not chosen else "partitions that need attention"))
        return report_and_exit_code(errors)

    if code := watch_command(once, watch, count):
        raise typer.Exit(code)


def _partition_rows(
    found: Iterable[DescribedGroup],
    errors: list[OffsetMgrError],
    topic_matches: TopicMatches,
    *,
    only_with_lag: bool,
    where: str,
) -> Iterator[tuple[Any, ...]]:
    """The rows of groups; ``where`` names the selected topics, with a space in front, if there are any."""
    from offsetmgr.groups.lag import needs_log_range

    for one in found:
        topic_matches.see((row.partition for row, _ in one.partitions), unread=one.error is not None)
        if one.error is not None:
            errors.append(one.error)
            continue
        description: GroupDescription = one.description
        for partition, owner in one.partitions:
            group, tp, committed, _, log_end, lag, text, error = partition
            if error is not None:
                errors.append(error)
            if only_with_lag and not needs_log_range(partition):
                continue
            who = (owner.client_id or None, owner.host or None, owner.member_id) if owner else (None, None, None)
            offset = committed.offset if isinstance(committed, Committed) else None
            yield (group, description.state, tp.topic, tp.partition, offset, log_end, lag, *who, text or None)
        if not one.partitions and not only_with_lag:
            text = f"{count_of(len(description.members), 'member')}, nothing committed{where}"
            yield (one.group, description.state, None, None, None, None, None, None, None, None, text)


def _state_rows(found: Iterable[Any], errors: list[OffsetMgrError]) -> Iterator[tuple[Any, ...]]:
    for one in found:
        if one.error is not None:
            errors.append(one.error)
            continue
        a: GroupDescription = one.description
        yield (one.group, a.coordinator or None, a.partition_assignor or None, a.state, len(a.members))


def _member_rows(found: Iterable[Any], errors: list[OffsetMgrError]) -> Iterator[tuple[Any, ...]]:
    for one in found:
        if one.error is not None:
            errors.append(one.error)
            continue
        description: GroupDescription = one.description
        for member in description.members:
            assignment = ",".join(map(str, member.partitions))
            yield (
                one.group,
                description.state,
                member.member_id,
                member.client_id or None,
                member.host or None,
                len(member.partitions),
                assignment or None,
            )
        if not description.members:
            yield (one.group, description.state, None, None, None, 0, None)


@app.command("delete")
@connected
def delete(
    connect: ConnectFlags,
    group: Groups = None,
    all_groups: AllGroups = False,
    execute: Execute = False,
    yes: Yes = False,
    before_image: BeforeImage = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Delete groups with all their committed offsets. Groups with members are refused."""
    from offsetmgr.cli.edit_command import Edit, run_edit
    from offsetmgr.groups.edits import propose_delete
    from offsetmgr.groups.selection import ALL_TOPICS, choose_groups

    names = require_groups(group, all_groups)
    store = connect.store()
    chosen = choose_groups(store, names, all_groups=all_groups)
    edit = Edit(
        "groups delete",
        connect,
        store,
        connect.edited_directory(),
        RunFlags(execute, yes, output),
        before_image,
    )
    code = edit.run(propose_delete(store, chosen, ALL_TOPICS))
    if execute:
        if not edit.asked:
            confirm(f"groups delete: remove {count_of(len(chosen), 'group')} without offsets?", yes=yes)
        code = _remove(connect, [name for name in chosen if name not in edit.failed], empty=not edit.asked) or code
    run_edit(code)


def _remove(connect: ConnectFlags, groups: list[str], *, empty: bool = False) -> int:
    """Removes groups without offsets from stores that keep groups separately."""
    from offsetmgr.groups.edits import remove_groups
    from offsetmgr.stores.pair_uri import inner_uris
    from offsetmgr.stores.uri import parse_uri

    dual = parse_uri(connect.uri).kind == "dual"
    uris = inner_uris(connect.uri, connect.resolved.connection) if dual else (connect.uri,)
    code = 0
    for uri in uris:
        store = connect.store(uri)
        for name, error in remove_groups(store, groups):
            if error is not None:
                note(f"error: {error}")
                code = FAILED
            else:
                note(f"removed {'empty ' if empty else ''}group {name!r} from {store.uri}")
    return code


Source = Annotated[str, typer.Argument(metavar="GROUP", help="Existing group.", show_default=False)]
Target = Annotated[str, typer.Argument(metavar="NEW", help="New group name.", show_default=False)]


@app.command("copy")
@connected
def copy(
    connect: ConnectFlags,
    source: Source,
    target: Target,
    topic: Topics = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="URI", help="Another store for the copy.", show_default=False)
    ] = None,
    translate: TranslateOption = None,
    allow_rewind: AllowRewind = False,
    execute: Execute = False,
    yes: Yes = False,
    before_image: BeforeImage = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Copy a group's committed offsets to another group."""
    from offsetmgr.cli.edit_command import Edit, checked_crossing, run_edit
    from offsetmgr.groups.copy import propose_copy
    from offsetmgr.groups.selection import TopicSelection
    from offsetmgr.groups.topic_matches import require_topics

    if source == target and to is None:
        raise UsageError("groups copy", "both names are the same")
    store = connect.store()
    into = connect.store(to) if to else store
    crossing = checked_crossing("groups copy", store, into, translate)
    edit = Edit(
        "groups copy",
        connect,
        into,
        connect.edited_directory(to),
        RunFlags(execute, yes, output),
        before_image,
    )
    topics = TopicSelection.parse(topic or []).within(store.capabilities.partitions)
    proposals = propose_copy(store, source, into, target, topics, allow_rewind=allow_rewind, crossing=crossing)
    run_edit(edit.run(require_topics(proposals, topics, store.uri)))


@app.command("rename")
@connected
def rename(
    connect: ConnectFlags,
    source: Source,
    target: Target,
    execute: Execute = False,
    yes: Yes = False,
    before_image: BeforeImage = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Rename a group: copy, verify by a fresh read, then delete the old one. Groups with members are refused."""
    from offsetmgr.cli.edit_command import Edit, checked_crossing, run_edit
    from offsetmgr.groups.copy import propose_copy, verify_copy
    from offsetmgr.groups.describe import require_idle
    from offsetmgr.groups.edits import propose_delete
    from offsetmgr.groups.selection import ALL_TOPICS

    if source == target:
        raise UsageError("groups rename", "both names are the same")
    store, directory = connect.store(), connect.edited_directory()
    require_idle(directory, [source, target], "renaming")
    if store.fetch(target):
        raise Conflict(f"group {target!r}", "exists already and has committed offsets", "choose another name")
    first = Edit(
        "groups rename",
        connect,
        store,
        connect.edited_directory(),
        RunFlags(execute, yes, output),
        before_image,
        announce=False,
    )
    image = f"{before_image}.deleted" if before_image else None
    # the user has agreed to the whole rename
    second = Edit(
        "groups rename delete",
        connect,
        store,
        connect.edited_directory(),
        RunFlags(True, True, OutputFormat.TABLE),
        image,
        announce=False,
    )
    try:
        crossing = checked_crossing("groups rename", store, store, None)
        code = first.run(propose_copy(store, source, store, target, ALL_TOPICS, crossing=crossing))
        if execute and not code:
            verify_copy(store, source, store, target)
            note(f"verified: group {target!r} holds all that {source!r} holds")
            require_idle(directory, [source], "deletion")
            code = second.run(propose_delete(store, [source], ALL_TOPICS)) or _remove(connect, [source])
    finally:
        for at, line in enumerate([*second.undo, *first.undo], 1):
            note(f"undo {at}: {line}")
    run_edit(code)
    if not execute:
        note(f"then: verify the copy, and delete group {source!r}")
