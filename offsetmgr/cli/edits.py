"""``offsetmgr edits``: the operation log of edits and migrations, and the undo of an edit."""

from __future__ import annotations

from typing import Annotated, Final

from offsetmgr.cli.connect_flags import Terminal
from offsetmgr.cli.options import Execute, FormatOption, Group, Reason, Yes, arg, command_group, flag, opt
from offsetmgr.cli.render import Column, OutputFormat, exit_with, fail_if, note, write_rows
from offsetmgr.core.document import time_text
from offsetmgr.core.errors import UsageError
from offsetmgr.core.plurals import count_of

app = command_group("Edits and migrations that were made from this account: list, show, undo.")

OperationId = Annotated[str, arg("ID", "The id in `offsetmgr edits list`.")]

LIST: Final = (
    Column("id"),
    Column("at_ms", title="AT", time=True, rank=13),  # the id contains the time too
    Column("operation"),
    Column("outcome"),
    Column("written", right=True, rank=11),
    Column("groups", right=True, rank=12),
    Column("group", optional=True),
    Column("stores", rank=4),
    Column("user", rank=3),
    Column("undone_by", optional=True, rank=2),
    Column("reason", optional=True, rank=1),
    Column("note", optional=True),
)


@app.command("list")
def list_command(
    named: Group = None,
    group: Annotated[
        str | None,
        opt(
            "--group -g",
            "NAME",
            "Only operations on this group, and those whose record does not name all their groups.",
        ),
    ] = None,
    last: Annotated[int | None, opt("--last", "N", "Only the newest N operations.", min=1)] = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the edits and migrations in the operation log of this account, the oldest first.

    The list has the stores of each operation, and the name of the group if the operation has only one.
    The log is operations.jsonl in the state directory (XDG_STATE_HOME). An operation whose outcome is unknown was
    killed, or still runs. The record of an operation on more than 1,000 groups names the first 1,000; with --group, the
    list has this operation too, and notes that it may include the group. Without any such operation the exit code is 1.
    """
    from offsetmgr.app import edits

    if named is not None and group is not None and named != group:
        raise UsageError("--group", f"both {named} and --group {group} are given")
    group = group if named is None else named
    found = edits.list_(Terminal(), group, last)
    rows = []
    for one in found:
        groups = one.start.groups
        notes = ["may include it"] if group is not None and group not in groups else []
        notes += [edits.SWITCH_NOTE] if one.is_switch else []
        row = one.document() | {
            "groups": one.start.group_count,
            "group": groups[0] if one.start.group_count == 1 == len(groups) else None,
            "note": "; ".join(notes) or None,
        }
        if one.undone_by and output.for_people:
            row["outcome"] = f"{one.outcome}, undone"
        rows.append([row[column.name] for column in LIST])
    if not write_rows(LIST, rows, output):
        fail_if(group is not None)


@app.command("show")
def show_command(operation_id: OperationId, output: FormatOption = OutputFormat.TABLE) -> None:
    """Show one edit or migration: who, when, why, the command, the stores, and the undo."""
    from offsetmgr.app import edits

    one = edits.show(Terminal(), operation_id)
    fields = one.document()
    if output.for_people:
        times = {"at_ms": time_text(one.at_ms), "ended_ms": one.ended_ms and time_text(one.ended_ms)}
        shown = [
            (name.removesuffix("_ms"), times.get(name, value)) for name, value in fields.items() if value is not None
        ]
        write_rows((Column("what"), Column("value", command=True)), shown, output)
    else:
        write_rows([*map(Column, fields)], [tuple(fields.values())], output)
    if one.is_switch:
        note(f"{one.start.name}: {edits.SWITCH_NOTE}")


@app.command("undo")
def undo_command(
    operation_id: OperationId,
    execute: Execute = False,
    yes: Yes = False,
    reason: Reason = None,
    allow_rewind: Annotated[
        bool, flag("--allow-rewind", "Also restore offsets that have changed since the edit.")
    ] = False,
) -> None:
    """Undo an edit or a run of `migrate apply`: run the commands that `offsetmgr edits show` lists under "undo".

    An offset that has changed since the edit is restored only with --allow-rewind; the command reports it. The undo of
    `migrate apply` restores the offsets that this run wrote, and not those of other runs of the plan. The undo of an
    edit with --running also rewinds the offsets that its consumers have committed since, and its rows show how many
    messages the consumers repeat or skip. Without --execute the command shows what it would change.
    """
    from offsetmgr.app import edits
    from offsetmgr.cli.app import run

    one, calls = edits.undo(Terminal(), operation_id, allow_rewind=allow_rewind, execute=execute)
    note(f"{one.start.name} of {time_text(one.at_ms)} by {one.user}: {count_of(one.start.changes, 'offset')}")
    failed = 0
    for call in calls:
        is_rollback = call.verb == "migrate rollback"  # it executes without an option
        options = {"execute": execute and not is_rollback, "dry_run": is_rollback and not execute}
        command = call._replace(named={**call.named, **options, "yes": yes and execute})
        note(f"$ {command.command_line()}")
        with edits.undoing(one.id):
            failed = max(failed, run([*command.words()[1:], "--reason", reason or f"undo of {one.id}"]))
    exit_with(failed)
