"""``offsetmgr groups delete|copy|rename``: edits whole groups."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from offsetmgr.cli.confirm import EditFlags, confirm
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED
from offsetmgr.cli.options import AllGroups, AllowRewind, GroupsOption, TopicsOption, TranslateOption, require_groups
from offsetmgr.cli.render import OutputFormat, note
from offsetmgr.core.errors import Conflict, UsageError
from offsetmgr.core.plurals import count_of

app = typer.Typer()

ExistingGroup = Annotated[str, typer.Argument(metavar="GROUP", help="Existing group.", show_default=False)]
NewName = Annotated[str, typer.Argument(metavar="NEW", help="New group name.", show_default=False)]


@app.command("delete")
@connected
def delete(
    connect: ConnectFlags,
    group: GroupsOption = None,
    all_groups: AllGroups = False,
    *,
    flags: EditFlags,
) -> None:
    """Delete groups with all their committed offsets. Groups with members are refused."""
    from offsetmgr.cli.edit_command import exit_edit
    from offsetmgr.groups.edits import plan_delete
    from offsetmgr.groups.selection import ALL_TOPICS, choose_groups

    names = require_groups(group, all_groups)
    store = connect.store()
    chosen = choose_groups(store, names, all_groups=all_groups)
    edit = connect.edit("groups delete", flags, store)
    code = edit.run(plan_delete(store, chosen, ALL_TOPICS))
    left = [name for name in chosen if name not in edit.failed]
    if flags.execute and left:
        if not edit.confirmed:
            confirm(f"groups delete: remove {count_of(len(left), 'group')} without offsets?", yes=flags.yes)
        code = _remove(connect, left, empty=not edit.confirmed, reason=flags.reason) or code
    exit_edit(code)


def _remove(connect: ConnectFlags, groups: list[str], *, empty: bool = False, reason: str | None = None) -> int:
    """Deletes groups that have no offsets. Does nothing in stores in which a group consists only of its offsets.
    Returns the exit code.

    ``empty``: whether the groups had no offsets from the start. Then no edit is in the operation log, and this function
    records the deletion there."""
    from offsetmgr.groups.edits import remove_groups
    from offsetmgr.groups.operation_log import OperationLog, OperationProgress, OperationStart, first_groups
    from offsetmgr.stores.pair_uri import inner_uris
    from offsetmgr.stores.uri import parse_uri

    dual = parse_uri(connect.uri).kind == "dual"
    uris = inner_uris(connect.uri, connect.resolved.connection) if dual else (connect.uri,)
    code = 0
    for uri in uris:
        store = connect.store(uri)
        start = OperationStart("groups delete", (store.uri,), first_groups(groups), len(groups), 0, reason=reason or "")
        # The edit of the groups' offsets is recorded already.
        with OperationLog().recorded(start) if empty else nullcontext(OperationProgress("")) as recorded:
            for name, error in remove_groups(store, groups):
                if error is not None:
                    note(f"error: {error}")
                    recorded.failed += 1
                    code = FAILED
                else:
                    note(f"removed {'empty ' if empty else ''}group {name!r} from {store.uri}")
    return code


@app.command("copy")
@connected
def copy(
    connect: ConnectFlags,
    source: ExistingGroup,
    target: NewName,
    topic: TopicsOption = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="URI", help="Another store for the copy.", show_default=False)
    ] = None,
    translate: TranslateOption = None,
    allow_rewind: AllowRewind = False,
    *,
    flags: EditFlags,
) -> None:
    """Copy a group's committed offsets to another group."""
    from offsetmgr.cli.edit_command import cross_cluster_check, exit_edit
    from offsetmgr.groups.copy import plan_copy
    from offsetmgr.groups.selection import TopicSelection
    from offsetmgr.groups.topic_matches import require_topics

    if source == target and to is None:
        raise UsageError("groups copy", "both names are the same")
    store = connect.store()
    into = connect.store(to) if to else store
    crossing = cross_cluster_check("groups copy", store, into, translate)
    edit = connect.edit("groups copy", flags, into, connect.group_describer_for_edit(to))
    topics = TopicSelection.parse(topic or []).within(store.capabilities.partitions)
    proposals = plan_copy(store, source, into, target, topics, allow_rewind=allow_rewind, crossing=crossing)
    exit_edit(edit.run(require_topics(proposals, topics, store.uri)))


@app.command("rename")
@connected
def rename(
    connect: ConnectFlags,
    source: ExistingGroup,
    target: NewName,
    *,
    flags: EditFlags,
) -> None:
    """Rename a group: copy, verify by a fresh read, then delete the old one. Groups with members are refused."""
    from offsetmgr.cli.edit_command import cross_cluster_check, exit_edit
    from offsetmgr.groups.copy import plan_copy, verify_copy
    from offsetmgr.groups.describe import require_idle
    from offsetmgr.groups.edits import plan_delete
    from offsetmgr.groups.selection import ALL_TOPICS

    if source == target:
        raise UsageError("groups rename", "both names are the same")
    store, describer = connect.store(), connect.group_describer_for_edit()
    require_idle(describer, [source, target], "renaming")
    if store.fetch(target):
        raise Conflict(f"group {target!r}", "exists already and has committed offsets", "choose another name")
    first = connect.edit("groups rename", flags, store, describer, print_undo=False)
    image = f"{flags.before_image}.deleted" if flags.before_image else None
    agreed = EditFlags(True, True, image, OutputFormat.TABLE, flags.reason)  # the user has agreed to the whole rename
    second = connect.edit("groups rename delete", agreed, store, describer, print_undo=False)
    try:
        crossing = cross_cluster_check("groups rename", store, store, None)
        code = first.run(plan_copy(store, source, store, target, ALL_TOPICS, crossing=crossing))
        if flags.execute and not code:
            verify_copy(store, source, store, target)
            note(f"verified: group {target!r} has all offsets of {source!r}")
            require_idle(describer, [source], "deletion")
            code = second.run(plan_delete(store, [source], ALL_TOPICS)) or _remove(connect, [source])
    finally:
        for at, line in enumerate([*second.undo, *first.undo], 1):
            note(f"undo {at}: {line}")
    exit_edit(code)
    if not flags.execute:
        note(f"then: verify the copy, and delete group {source!r}")
