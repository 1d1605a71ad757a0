"""``offsetmgr groups delete|copy|rename``: edits whole groups."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from offsetmgr.cli.confirm import EditFlags, confirm
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED
from offsetmgr.cli.options import (
    AcceptUnseen,
    AllowRewind,
    GroupFlags,
    TopicsOption,
    TranslateOption,
    opt,
)
from offsetmgr.cli.render import OutputFormat, note, progress
from offsetmgr.core.errors import Conflict, UsageError
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import OffsetStore

app = typer.Typer()

ExistingGroup = Annotated[str, typer.Argument(metavar="GROUP", help="Existing group.")]
NewName = Annotated[str, typer.Argument(metavar="NEW", help="New group name.")]
Lose = Annotated[
    list[str] | None,
    opt("--lose", "ZNODE", "Accept that the data of this znode is lost; repeatable."),
]


@app.command("delete")
@connected
def delete(
    connect: ConnectFlags,
    groups: GroupFlags,
    lose: Lose = None,
    accept_unseen: AcceptUnseen = False,
    *,
    flags: EditFlags,
) -> None:
    """Delete groups with all their committed offsets. Groups with members are refused.

    A group is also refused if it may have offsets that the before-images cannot hold: an offset of a topic that this
    login may not describe, an offset that is pending in a transaction, or one that cannot be read. In ZooKeeper the
    before-image holds all znodes of a group, also those that offsetmgr does not understand.
    """
    from offsetmgr.cli.edit_command import exit_edit
    from offsetmgr.cli.group_deletion import GroupDeletion
    from offsetmgr.groups.edits import plan_removal
    from offsetmgr.groups.scan import choose_groups

    selection = groups.selection()
    store = connect.store()
    chosen = choose_groups(store, selection)
    options, describer = connect.undo_options(store), connect.group_describer_for_edit()
    edit = GroupDeletion("groups delete", store, describer, flags, undo_options=options, lose=frozenset(lose or ()))
    code = edit.run(plan_removal(store, chosen, accept_unseen=accept_unseen))
    left = [name for name in chosen if name not in edit.failed]
    if flags.execute and left:
        if not edit.confirmed:
            confirm(f"groups delete: remove {count_of(len(left), 'group')} without offsets?", yes=flags.yes)
        empty = not edit.confirmed
        code = _remove(store, left, empty=empty, reason=flags.reason, accept_unseen=accept_unseen) or code
    exit_edit(code)


def _remove(
    store: OffsetStore,
    groups: list[str],
    *,
    empty: bool = False,
    reason: str | None = None,
    accept_unseen: bool = False,
) -> int:
    """Deletes groups that have no offsets. Does nothing in stores in which a group consists only of its offsets.
    Returns the exit code.

    ``empty``: whether the groups had no offsets from the start. Then no edit is in the operation log, and this function
    records the deletion there."""
    from offsetmgr.core.group_tree import GroupTreeStore
    from offsetmgr.groups.edits import inner_stores, remove_groups
    from offsetmgr.groups.operation_log import OperationLog, OperationProgress, OperationStart, first_groups

    code = 0
    for inner in inner_stores(store):
        if isinstance(inner, GroupTreeStore):
            continue  # `GroupDeletion` has deleted the trees
        start = OperationStart("groups delete", (inner.uri,), first_groups(groups), len(groups), 0, reason=reason or "")
        # The edit of the groups' offsets is recorded already.
        with OperationLog().recorded(start) if empty else nullcontext(OperationProgress("")) as recorded:
            removed = remove_groups(inner, groups, accept_unseen=accept_unseen)
            for name, error in progress(removed, "removing", len(groups)):
                if error is not None:
                    note(f"error: {error}")
                    if error.hint:
                        note(f"hint: {error.hint}")
                    recorded.failed += 1
                    code = FAILED
                else:
                    note(f"removed {'empty ' if empty else ''}group {name!r} from {inner.uri}")
    return code


@app.command("copy")
@connected
def copy(
    connect: ConnectFlags,
    source: ExistingGroup,
    target: NewName,
    topic: TopicsOption = None,
    to: Annotated[str | None, opt("--to", "URI", "Another store for the copy.")] = None,
    translate: TranslateOption = None,
    allow_rewind: AllowRewind = False,
    *,
    flags: EditFlags,
) -> None:
    """Copy a group's committed offsets to another group."""
    from offsetmgr.cli.edit_command import cross_cluster_check, exit_edit
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.copy import plan_copy
    from offsetmgr.groups.topic_matches import require_topics

    if source == target and to is None:
        raise UsageError("groups copy", "both names are the same")
    store = connect.store()
    connect.require_home([source])
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
    lose: Lose = None,
    accept_unseen: AcceptUnseen = False,
    *,
    flags: EditFlags,
) -> None:
    """Rename a group: copy, verify by a fresh read, then delete the old one. A group is refused as by groups delete.

    A znode with data that offsetmgr does not understand is not copied, so --lose must name it.
    """
    from offsetmgr.cli.edit_command import cross_cluster_check, exit_edit
    from offsetmgr.cli.group_deletion import GroupDeletion
    from offsetmgr.groups.copy import plan_copy, verify_copy
    from offsetmgr.groups.describe import require_idle
    from offsetmgr.groups.edits import plan_removal

    if source == target:
        raise UsageError("groups rename", "both names are the same")
    store, describer = connect.store(), connect.group_describer_for_edit()
    require_idle(describer, [source, target], "renaming")
    (there,) = store.scan([target])
    if there.offsets or there.errors:
        raise Conflict(f"group {target!r}", "exists already and has committed offsets", "choose another name")
    if (unknown := there.error or there.hidden) is not None:
        raise unknown
    first = connect.edit("groups rename", flags, store, describer, print_undo=False)
    image = f"{flags.before_image}.deleted" if flags.before_image else None
    agreed = EditFlags(True, True, image, OutputFormat.TABLE, flags.reason)  # the user has agreed to the whole rename
    lost, options = frozenset(lose or ()), connect.undo_options(store)
    second = GroupDeletion(
        "groups rename delete", store, describer, agreed, undo_options=options, print_undo=False, lose=lost
    )
    removal = plan_removal(store, [source], accept_unseen=accept_unseen)
    second.require_complete(next(removal))  # before the first write
    try:
        crossing = cross_cluster_check("groups rename", store, store, None)
        copied = plan_copy(store, source, store, target, crossing=crossing, accept_unseen=accept_unseen)
        code = first.run(copied)
        if flags.execute and not code:
            count = verify_copy(store, source, store, target, accept_unseen=accept_unseen)
            note(f"verified: group {target!r} has the {count_of(count, 'offset')} that were read from {source!r}")
            require_idle(describer, [source], "deletion")
            code = second.run(plan_removal(store, [source], accept_unseen=accept_unseen))
            code = code or _remove(store, [source], accept_unseen=accept_unseen)
    finally:
        for at, line in enumerate([*second.undo, *first.undo], 1):
            note(f"undo {at}: {line}")
    exit_edit(code)
    if not flags.execute:
        note(f"then: verify the copy, and delete group {source!r}")
