"""``offsetmgr edits``: the operation log of edits and migrations, and the undo of an edit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from offsetmgr.cli.errors import exit_with, fail_if
from offsetmgr.cli.options import Execute, FormatOption, Group, Reason, Yes, flag, one_group, opt
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.core.errors import UsageError
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.groups.operation_log import OperationLog, RecordedOperation

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Edits and migrations that were made from this account: list, show, undo.",
)

_SWITCH: Final = "migrate switch"
_SWITCH_NOTE: Final = "recorded the group's storage mode; this version does not use it"

OperationId = Annotated[str, typer.Argument(metavar="ID", help="The id in `offsetmgr edits list`.")]

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
    from offsetmgr.groups.operation_log import OperationLog

    group = one_group(named, group)
    log = OperationLog()
    found = [
        one for one in log.operations() if group is None or group in one.start.groups or not one.start.names_all_groups
    ]
    _warn_of_lines_left_out(log)
    shown = found[-last:] if last is not None else found
    rows = [
        (
            one.id,
            one.at_ms,
            one.start.name,
            f"{one.outcome}, undone" if one.undone_by and output is OutputFormat.TABLE else one.outcome,
            one.written,
            one.start.group_count,
            one.start.groups[0] if one.start.group_count == 1 == len(one.start.groups) else None,
            ", ".join(one.start.stores),
            one.user,
            one.undone_by or None,
            one.start.reason or None,
            "; ".join(_notes(one, group)) or None,
        )
        for one in shown
    ]
    if not write_rows(LIST, rows, output):
        of_group = "" if group is None else f" of group {group!r}"
        note(f"no edit or migration{of_group} is recorded in {log.path}; another XDG_STATE_HOME has a log of its own")
        fail_if(group is not None)


@app.command("show")
def show_command(operation_id: OperationId, output: FormatOption = OutputFormat.TABLE) -> None:
    """Show one edit or migration: who, when, why, the command, the stores, and the undo."""
    one = _find(operation_id)
    rest = one.start.group_count - len(one.start.groups)
    fields: list[tuple[str, str | int | None]] = [
        ("id", one.id),
        ("operation", one.start.name),
        ("outcome", one.outcome),
        ("at_ms", one.at_ms),
        ("ended_ms", one.ended_ms),
        ("user", one.user),
        ("host", one.host),
        ("reason", one.start.reason or None),
        ("command", one.command),
        ("stores", ", ".join(one.start.stores)),
        ("groups", ", ".join(one.start.groups) + (f", and {rest:,} more" if rest > 0 else "")),
        ("changes", one.start.changes),
        ("written", one.written),
        ("failed", one.failed),
        ("files", ", ".join(one.start.files) or None),
        ("undo", "; ".join(one.start.undo) or None),
        ("undoes", one.undoes or None),
        ("undone_by", one.undone_by or None),
    ]
    if output is OutputFormat.TABLE:
        times = {"at_ms": _moment(one.at_ms), "ended_ms": _moment(one.ended_ms)}
        shown = [(name.removesuffix("_ms"), times.get(name, value)) for name, value in fields if value is not None]
        write_rows((Column("what"), Column("value", command=True)), shown, output)
    else:
        write_rows([Column(name) for name, _ in fields], [tuple(value for _, value in fields)], output)
    if _is_switch(one):
        note(f"{one.start.name}: {_SWITCH_NOTE}")


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
    one = _find(operation_id)
    if _is_switch(one):
        hint = "a rolling bounce moves a group between ZooKeeper and Kafka: offsetmgr runbook write"
        if one.start.files and one.start.changes:
            undo = shlex.join(("offsetmgr", "offsets", "import", *one.start.files))
            hint += f"; the undo of the offsets that it copied: {undo} --store STORE"
        raise UsageError(f"undo of {one.id}", f"{one.start.name} {_SWITCH_NOTE}", hint)
    if not one.start.undo:
        raise UsageError(f"undo of {one.id}", f"{one.start.name} has no undo", _hint(one))
    if one.undone_by:
        raise UsageError(
            f"undo of {one.id}", f"{one.undone_by} undid it already", f"offsetmgr edits show {one.undone_by}"
        )
    commands = [shlex.split(command) for command in one.start.undo]
    if allow_rewind:
        commands = [_with_rewind(words) for words in commands]
    _check_ended(one, execute=execute)
    note(f"{one.start.name} of {_moment(one.at_ms)} by {one.user}: {count_of(one.start.changes, 'offset')}")
    failed = 0
    reason = reason or f"undo of {one.id}"
    for words in commands:
        failed = max(failed, _run(one, words, execute=execute, yes=yes, reason=reason))
    exit_with(failed)


def _is_switch(one: RecordedOperation) -> bool:
    """Whether an earlier offsetmgr recorded a live switch, or the declaration of a storage mode."""
    return one.start.name in (_SWITCH, f"{_SWITCH} --declare")


def _notes(one: RecordedOperation, group: str | None) -> Iterator[str]:
    """Yields the notes of an operation in the list of a group."""
    if group is not None and group not in one.start.groups:
        yield "may include it"
    if _is_switch(one):
        yield _SWITCH_NOTE


def _with_rewind(words: list[str]) -> list[str]:
    """Returns the command of an undo with --allow-rewind. Raises `UsageError` if the command does not have it."""
    if words[1:3] != ["offsets", "import"]:
        command = " ".join(words[1:3])
        raise UsageError("--allow-rewind", f"the undo is a {command}", f"run it yourself: {shlex.join(words)}")
    return words if "--allow-rewind" in words else [*words, "--allow-rewind"]


def _find(operation_id: str) -> RecordedOperation:
    from offsetmgr.groups.operation_log import OperationLog

    log = OperationLog()
    one = log.find(operation_id)
    _warn_of_lines_left_out(log)
    return one


def _warn_of_lines_left_out(log: OperationLog) -> None:
    """Prints one warning if the log has records of a newer offsetmgr, and one if it has damaged lines."""
    if log.damaged:
        note(f"warning: {count_of(len(log.damaged), 'damaged line')} of the log left out: {log.damaged[0]}")
    if log.newer:
        first = next(iter(log.newer.values()))
        left = f"{count_of(len(log.newer), 'operation')} of a newer offsetmgr"
        note(f"warning: {left} left out, because this version cannot read the records: {first}")


def _check_ended(one: RecordedOperation, *, execute: bool) -> None:
    """Prints a warning if the outcome of the operation is unknown. Raises `UsageError` if the operation still runs and
    ``execute`` is true, because it would write again what the undo restores."""
    if one.is_running and execute:
        what, why = f"undo of {one.id}", f"{one.start.name} still runs, as process {one.pid}"
        raise UsageError(what, why, "wait until it ends, or stop it with Ctrl-C, and run the undo then")
    if one.is_running:
        note(f"warning: {one.start.name} still runs, as process {one.pid}; --execute works only after its end")
    elif one.ended_ms is None:
        note(f"warning: the log has no end of {one.start.name}: check that it does not run on {one.host} any more")


def _run(one: RecordedOperation, words: list[str], *, execute: bool, yes: bool, reason: str) -> int:
    from offsetmgr.cli.app import run
    from offsetmgr.groups.operation_log import undoing

    preview, writes = ("--dry-run", None) if words[1:3] == ["migrate", "rollback"] else (None, "--execute")
    flags = [flag for flag in (writes if execute else preview, "--yes" if yes and execute else None) if flag]
    note(f"$ {shlex.join((*words, *flags))}")
    with undoing(one.id):
        return run([*words[1:], *flags, "--reason", reason])


def _hint(one: RecordedOperation) -> str:
    if one.start.name == "migrate rollback":
        return "make a new plan, and apply it"
    return f"offsetmgr edits show {one.id}"


def _moment(ms: int | None) -> str | None:
    from offsetmgr.app.plan_text import time_text as moment

    return None if ms is None else moment(ms)
