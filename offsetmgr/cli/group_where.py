"""``offsetmgr groups where``: the phase of groups, with the offsets in all configured stores, lag, members and the next
command."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.columns import GROUP_PARTITION
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import exit_with, report_and_exit_code
from offsetmgr.cli.lock_wait import LockWait
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import FormatOption, GroupFlags, flag, opt, seconds_option
from offsetmgr.cli.read_error_report import empty_note, note_unrecognised
from offsetmgr.cli.render import (
    Column,
    OutputFormat,
    note,
    progress,
    separate_tables,
    write_rows,
    write_structured_rows,
)
from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import GroupNotFound, OffsetMgrError
from offsetmgr.core.model import Committed, LogRange
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.migration.group_location import GroupLocation

app = typer.Typer()

WHERE: Final = (
    Column("group"),
    Column("phase"),
    Column("confidence"),
    Column("lag", right=True),
    Column("members"),
    Column("evidence"),
)
PARTITIONS: Final = (
    *GROUP_PARTITION,
    Column("zookeeper", right=True, optional=True),
    Column("kafka", right=True, optional=True),
    Column("manager", right=True, optional=True),
    Column("log_end_offset", right=True, title="LOG-END"),
    Column("lag", right=True),
    Column("note", optional=True),
)
NEXT: Final = (Column("group"), Column("next", command=True))
OBJECT: Final = tuple(
    Column(name) for name in ("group", "phase", "confidence", "evidence", "lag", "stores", "partitions", "next")
)
_STORES: Final = ("zookeeper", "kafka", "manager")
_SHORT: Final = 20
"""The table of partitions is printed without --partitions for at most this number of groups."""


@app.command("where")
@connected
@many_clusters
def where(
    connect: ConnectFlags,
    groups: GroupFlags,
    window_s: Annotated[
        float | None,
        seconds_option(
            "--window",
            "Watch commits for at most this time, to see the phase instead of inferring it.",
        ),
    ] = None,
    plan: Annotated[
        list[Path] | None,
        opt("--plan", "PLAN", "Use this migration's journal as evidence; repeatable."),
    ] = None,
    partitions: Annotated[bool, flag("--partitions", "Show partitions, also for more than 20 groups.")] = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show where groups commit: the phase with its evidence, the offset in every configured store, the lag, the
    members, and the next command.

    The configured stores are those that --zookeeper, --bootstrap-server and --store (or a context) name.
    """
    from offsetmgr.migration.group_observer import ObservationWindow

    selection = groups.selection()
    locator = connect.group_locator()
    known, errors = locator.groups()
    names = selection.within(known, ", ".join(one.store.uri for one in locator.stores), unlisted=True)
    found: list[GroupLocation] = []
    for file in plan or []:
        locator.add_plan(file)
    watched = None if window_s is None else ObservationWindow(window_s, waiting=LockWait().for_commits)
    for one in progress(locator.locate(names, watched), "groups", len(names)):
        if (missing := _missing(one, known)) is not None:
            errors.append(missing)
        else:
            found.append(one)
    for unread in locator.unread_plans:
        connect.on_warning(f"not used as evidence: {unread}")
    _write(found, output, connect.given_options, partitions=partitions)
    note_unrecognised(data for one in found for store in one.sample.stores for data in store.unrecognised)
    for kind in filter(None, (one.other_kind for one in found)):
        note(str(kind))
    _note_expiry(found, connect.followup_options)
    if not found and not errors:
        note(empty_note(connect.store(), "groups"))
    exit_with(report_and_exit_code(errors))


def _write(found: list[GroupLocation], output: OutputFormat, options: str, *, partitions: bool) -> None:
    if output is not OutputFormat.TABLE:
        write_structured_rows(OBJECT, (_object(one, options) for one in found), output)
        return
    write_rows(WHERE, map(_group_row, found), output)
    if found and (partitions or len(found) <= _SHORT):
        separate_tables()
        write_rows(PARTITIONS, _partition_rows(found), output)
    if found:
        separate_tables()
        write_rows(NEXT, _next_rows(found, options), output)


def _missing(one: GroupLocation, known: Container[str]) -> OffsetMgrError | None:
    """Returns the error of a group without offsets that is of another kind or that no store knows."""
    if one.other_kind is not None and not any(store.offsets for store in one.sample.stores):
        return one.other_kind
    if one.found or one.group in known:
        return None
    stores = ", ".join(store.uri for store in one.sample.stores)
    return GroupNotFound(f"group {one.group!r}", f"does not exist in {stores}")


def _note_expiry(found: Iterable[GroupLocation], options: str) -> None:
    """Prints when the copied offsets of groups without consumers expire, for each plan."""
    from offsetmgr.cli.group_next import expiry_of
    from offsetmgr.cli.plan_execution import note_expiry

    dates = by_key((one.sample.plan.path, expiry_of(one)) for one in found if one.sample.plan is not None)
    for path, expiring in dates.items():
        note_expiry(path, expiring, options, watched=True)


def _members_text(one: GroupLocation) -> str:
    parts = []
    for store in one.sample.stores:
        if store.members_error is not None:
            parts.append(f"{store.name} unknown")
        elif store.members:
            parts.append(f"{store.name} {len(store.members)}")
    return ", ".join(parts) or "0"


def _group_row(one: GroupLocation) -> tuple[Any, ...]:
    phase, why = one.phase, one.phase.why
    if one.below_start:
        why = f"{why}; the lag lacks the deleted records of {count_of(one.below_start, 'partition')} (see --partitions)"
    return (one.group, phase.phase.value, phase.confidence.value, one.lag, _members_text(one), why)


def _offset(found: Any) -> int | str | None:
    from offsetmgr.groups.lag import state_of

    return (
        found.offset if isinstance(found, Committed) else state_of(found) if isinstance(found, OffsetMgrError) else None
    )


def _partition_rows(found: Iterable[GroupLocation]) -> Iterator[tuple[Any, ...]]:
    for one in found:
        for p in one.partitions:
            offsets = (_offset(p.offsets.get(name)) for name in _STORES)
            end = p.log.end if isinstance(p.log, LogRange) else None
            yield (one.group, *p.partition, *offsets, end, p.lag, p.note or None)


def _next_rows(found: Iterable[GroupLocation], options: str) -> Iterator[tuple[Any, ...]]:
    from offsetmgr.cli.group_next import next_command

    for one in found:
        command, why = next_command(one, options)
        yield one.group, command or f"nothing: {why}"


def _object(one: GroupLocation, options: str) -> tuple[Any, ...]:
    from offsetmgr.cli.group_next import next_command

    stores = {
        store.name: {
            "uri": store.uri,
            "offsets": None if store.error else len(store.committed),
            "error": str(store.error) if store.error else None,
            "members": None
            if store.members_error
            else [
                {
                    "member_id": member.member_id,
                    "client_id": member.client_id or None,
                    "host": member.host or None,
                    "partitions": [str(tp) for tp in member.partitions],
                }
                for member in store.members
            ],
            "members_error": str(store.members_error) if store.members_error else None,
        }
        for store in one.sample.stores
    }
    partitions = [
        {
            "topic": p.partition.topic,
            "partition": p.partition.partition if type(p.partition.partition) is int else str(p.partition.partition),
            "offsets": {n: f.offset if isinstance(f, Committed) else None for n, f in p.offsets.items()},
            "errors": {n: str(f) for n, f in p.offsets.items() if isinstance(f, OffsetMgrError)},
            "log_start_offset": p.log.start if isinstance(p.log, LogRange) else None,
            "log_end_offset": p.log.end if isinstance(p.log, LogRange) else None,
            "lag": p.lag,
            "note": p.note or None,
        }
        for p in one.partitions
    ]
    phase = one.phase
    command, reason = next_command(one, options)
    after = {"command": command, "why": reason}
    return (one.group, phase.phase.value, phase.confidence.value, phase.why, one.lag, stores, partitions, after)
