"""``offsetmgr groups list``: lists the groups of a store."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import exit_with, report_and_exit_code
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import FormatOption, GroupFilter, opt
from offsetmgr.cli.read_error_report import empty_note, note_unrecognised
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError, UsageError
from offsetmgr.core.running_store import OtherGroupKind

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
"""Kafka's names of the states of a group (``org.apache.kafka.common.GroupState``)."""
LIST: Final = (Column("group"), Column("state", optional=True))


app = typer.Typer()


class _ListCommand(typer.core.TyperCommand):
    """A command whose option ``--state`` may be given without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        remaining_args: list[str] = []
        for at, argument in enumerate(args):
            remaining_args.append(argument)
            if argument == "--state" and (at + 1 == len(args) or args[at + 1].startswith("-")):
                remaining_args.append("")
        return super().parse_args(ctx, remaining_args)


@app.command("list", cls=_ListCommand)
@connected
@many_clusters
def list_groups(
    connect: ConnectFlags,
    groups: GroupFilter,
    state: Annotated[
        str | None,
        opt(
            "--state", "[STATE,...]", "Also show each group's state; with names, list only the groups in these states."
        ),
    ] = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the groups of a store."""
    from offsetmgr.core.selection import KNOWN_GROUPS
    from offsetmgr.groups.edits import tree_store

    store = connect.store()
    known = set(store.groups())
    selected = {_plain_state(one) for one in (state or "").split(",")} - {""}
    if unknown := selected - {_plain_state(name) for name in STATES}:
        why = f"{', '.join(sorted(unknown))} is not a state of a group"
        raise UsageError(f"--state {state}", why, f"states: {', '.join(STATES)}")
    names = groups.selection().within(known, store.uri, unlisted=True)
    others = {found.group: found.error for found in store.scan(name for name in names if name not in known)}
    errors: list[OffsetMgrError] = [
        kind
        if isinstance(kind := others.get(name), OtherGroupKind)
        else GroupNotFound(f"group {name!r}", f"does not exist in {store.uri}", KNOWN_GROUPS, groups=[name])
        for name in names
        if name not in known
    ]
    names = [name for name in names if name in known]
    if errors and not names:
        raise errors[0]
    states = {} if state is None else connect.group_describer()(names)

    def shown(name: str) -> str | None:
        found = states.get(name)
        if isinstance(found, OtherGroupKind):
            return found.state
        if isinstance(found, OffsetMgrError):
            errors.append(found)
            return None
        # A group with the state DEAD is shown as EMPTY, because the store still has offsets of the group.
        return None if found is None else "EMPTY" if found.state == "DEAD" else found.state

    rows = ((name, shown(name))[: 1 if state is None else 2] for name in names)
    if selected:
        rows = (row for row in rows if _plain_state(str(row[-1])) in selected)
    if not write_rows(LIST[:1] if state is None else LIST, rows, output) and not errors:
        note(empty_note(store, "groups" if not names else f"groups in state {state}"))
    if (trees := tree_store(store)) is not None:
        note_unrecognised(trees.unrecognised(names))
    exit_with(report_and_exit_code(errors))


def _plain_state(name: str) -> str:
    """Returns a state's name in a form that can be compared. Kafka's tool writes PreparingRebalance, and Kafka's
    protocol PREPARING_REBALANCE."""
    return name.strip().replace("_", "").upper()
