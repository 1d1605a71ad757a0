"""``offsetmgr groups``: lists, describes, locates and edits groups."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from offsetmgr.app import groups
from offsetmgr.cli.connect_flags import ConnectFlags, EditFlags, command
from offsetmgr.cli.options import (
    AcceptUnseen,
    AllowRewind,
    FormatOption,
    GroupFilter,
    GroupFlags,
    MetricsOption,
    OnlyWithLag,
    SavePlan,
    TopicFlags,
    TranslateOption,
    WatchedWindow,
    arg,
    command_group,
    flag,
    opt,
)
from offsetmgr.cli.render import (
    GROUP_PARTITION,
    PARTITION,
    PROMETHEUS,
    Column,
    MetricsFormat,
    OutputFormat,
    report_and_exit_code,
    rows_of,
    separate_tables,
    write_rows,
    write_samples,
)
from offsetmgr.cli.watch import PartitionFlags, PartitionTable, WatchCommand, total_row
from offsetmgr.core import TITLES
from offsetmgr.core.advice import Invocation
from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import Committed
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.app.groups import DescribedGroup, GroupLocation, LocatedPartition


app = command_group("Consumer groups.")


LIST: Final = (Column("group", get="name"), Column("state", optional=True))
KINDS: Final = (
    LIST[0],
    Column("type"),
    Column("state"),
    Column("protocol"),
    Column("members", right=True),
)


class _ListCommand(WatchCommand):
    """A command whose options ``--state`` and ``--type`` may be given without a value."""

    defaults: ClassVar = {"--state": "", "--type": ""}

    @staticmethod
    def is_value(text: str) -> bool:
        return not text.startswith("-")


@command(app, "list", many=True, cls=_ListCommand)
def list_groups(
    connect: ConnectFlags,
    selected: GroupFilter,
    state: Annotated[
        str | None,
        opt(
            "--state", "[STATE,...]", f"Show the states; with names, only groups in these: {', '.join(groups.STATES)}."
        ),
    ] = None,
    of_type: Annotated[
        str | None,
        opt(
            "--type",
            "[TYPE,...]",
            "List the groups of every kind, with type, state, protocol and members; with names, only these types:"
            f" {', '.join(groups.TYPES)}.",
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        opt("--protocol", "NAME,...", "As --type, but list only the groups of these protocol types, such as connect."),
    ] = None,
    output: FormatOption = OutputFormat.TABLE,
) -> int:
    """List the groups of a store. --type or --protocol also lists share groups and the groups of Connect workers.

    These have no committed offsets. Their names list them, too.
    """
    given = {"in state": state, "of type": of_type, "of protocol": protocol}
    states, types, protocols = ([one for one in (text or "").split(",") if one.strip()] for text in given.values())
    options: dict[str, Any] = {"with_kind": of_type is not None, "types": types, "protocols": protocols}
    found = groups.list_(connect, selected.selection(), with_state=state is not None, states=states, **options)
    columns = KINDS if of_type is not None or protocols else LIST[:1] if state is None else LIST
    if not write_rows(columns, rows_of(columns, found), output) and not found.errors:
        chosen = "".join(f" {how} {text}" for how, text in given.items() if text)
        selected_only = "selected " if chosen and selected.selection().patterns is not None else ""
        connect.tell_empty(f"{selected_only}groups{chosen}")
    return report_and_exit_code(found.errors)


DESCRIBE: Final = (
    Column("group"),
    Column("state"),
    *PARTITION,
    Column("offset", right=True),
    Column("log_end_offset", right=True, title="LOG-END"),
    Column("lag", right=True, attention=True),
    Column("client_id", optional=True, rank=2),
    Column("host", optional=True, rank=3),
    Column("member_id", optional=True, rank=1),
    Column("note", optional=True),
)
MEMBERS: Final = (
    Column("group"),
    Column("state"),
    Column("member_id", rank=1),
    Column("client_id", optional=True, rank=2),
    Column("host", optional=True, rank=3),
    Column("partitions", right=True),
    Column("assignment", optional=True),
    Column("tasks", optional=True),
)
STATE: Final = (
    Column("group"),
    Column("coordinator", rank=1),
    Column("assignor", rank=1),
    Column("state"),
    Column("members", right=True),
)


@command(app, "describe", many=True, watch=True)
def describe(
    connect: ConnectFlags,
    selected: GroupFlags,
    topics: TopicFlags,
    members: Annotated[bool, flag("--members", "Show members instead of partitions.")] = False,
    state: Annotated[bool, flag("--state", "Show coordinator, assignor, state and number of members instead.")] = False,
    verbose: Annotated[  # noqa: ARG001 - the output is always complete
        bool, flag("--verbose", "Accepted for compatibility with kafka-consumer-groups; has no effect.")
    ] = False,
    only_with_lag: OnlyWithLag = False,
    *,
    flags: PartitionFlags,
    output: FormatOption = OutputFormat.TABLE,
) -> int:
    """Show the state, members, committed offsets, log ends, lag and owners of groups."""
    selection = selected.selection()
    if members and state:
        raise UsageError("groups describe", "both --members and --state are given", "only one of them")
    chosen = topics.selection()
    of_partitions = {"--topic": topics.topic, "--totals": flags.show_totals, "--sort": flags.sort, "--top": flags.top}
    if (members or state) and (given := next((name for name, value in of_partitions.items() if value), None)):
        option = "--members" if members else "--state"
        why = f"selects partitions, but {option} shows no partitions"
        raise UsageError(given, why, f"leave out {given} or {option}")
    table = PartitionTable(DESCRIBE, flags, output)
    found = groups.describe(connect, selection, chosen, only_with_lag=only_with_lag, members_only=members or state)
    described = (one for one in found if one.error is None)
    if state:
        shown = write_rows(STATE, map(_state_row, described), output)
    elif members:
        shown = write_rows(MEMBERS, (row for one in described for row in _member_rows(one)), output)
    elif flags.show_totals:
        with_rows = (one for one in described if one.partitions or not only_with_lag)
        shown = table.write(total_row(one.name, [row.lag for row, _ in one.partitions]) for one in with_rows)
    else:
        where = None if only_with_lag else "" if chosen.everything else " in these topics"
        shown = table.write(row for one in described for row in _partition_rows(one, where))
    code = report_and_exit_code(found.errors)
    found.tell_newer()
    if not shown and not code:
        connect.tell_empty("partitions that need attention" if found.groups else "groups")
    return code


def _partition_rows(one: DescribedGroup, where: str | None) -> Iterator[tuple[Any, ...]]:
    """Rows of `DESCRIBE`. ``where``, such as " in these topics", is appended to the note of a group without offsets,
    which is left out if it is None."""
    state = one.description.state
    for row, owner in one.partitions:
        who = (owner.client_id or None, owner.host or None, owner.member_id) if owner else (None, None, None)
        offset = row.committed.offset if isinstance(row.committed, Committed) else None
        yield (one.name, state, *row.partition, offset, row.log_end, row.lag, *who, row.note or None)
    if not one.partitions and where is not None:
        nothing = "offsets unknown" if one.read is not None and one.read.hidden else f"nothing committed{where}"
        text = f"{count_of(len(one.description.members), 'member')}, {nothing}"
        yield (one.name, state, *(None,) * 8, text)


def _state_row(one: DescribedGroup) -> tuple[Any, ...]:
    found = one.description
    return (one.name, found.coordinator or None, found.partition_assignor or None, found.state, len(found.members))


def _member_rows(one: DescribedGroup) -> Iterator[tuple[Any, ...]]:
    group, state = one.name, one.description.state
    for member in one.description.members:
        assignment = ",".join(map(str, member.partitions))
        who = (member.member_id, member.client_id or None, member.host or None)
        tasks = ", ".join(member.tasks)
        yield (group, state, *who, len(member.partitions), assignment or None, tasks or None)
    if not one.description.members:
        yield (group, state, None, None, None, 0, None, None)


WHERE: Final = (
    Column("group", get="name"),
    Column("phase"),
    Column("confidence"),
    Column("lag", right=True),
    Column("members"),
    Column("evidence"),
)
PARTITIONS: Final = (
    *GROUP_PARTITION,
    *(Column(scheme, right=True, optional=True) for scheme in TITLES),
    Column("log_end_offset", right=True, title="LOG-END"),
    Column("lag", right=True),
    Column("note", optional=True),
)
NEXT: Final = (Column("group"), Column("next", command=True))
OBJECT: Final = tuple(
    Column(name, nested=True)
    for name in ("group", "phase", "confidence", "evidence", "lag", "stores", "partitions", "next")
)


@command(app, "where", many=True)
def where(
    connect: ConnectFlags,
    group_flags: GroupFlags,
    window_s: WatchedWindow = None,
    plan: Annotated[
        list[Path] | None,
        opt("--plan", "PLAN", "Use this migration's journal as evidence; repeatable."),
    ] = None,
    partitions: Annotated[bool, flag("--partitions", "Also show the offset of each partition in every store.")] = False,
    output: MetricsOption = MetricsFormat(OutputFormat.TABLE),
) -> int:
    """Show where groups commit: the phase with its evidence, the lag, the members, and the next command.

    The configured stores are those that --zookeeper, --bootstrap-server and --store (or a context) name. Formats
    for programs have the offset of each partition in every store.
    """
    read = partial(groups.where, connect, group_flags.selection(), window_s=window_s, plans=plan or ())
    if output == PROMETHEUS:
        from offsetmgr.app.metrics import location_samples

        located, _ = write_samples("groups where", read, location_samples)
        return report_and_exit_code([*located.unlisted, *located.missing])
    located = read()
    found, options = list(located), Invocation("", (), connect.given).options()
    if not output.for_people:
        write_rows(OBJECT, (tuple(located.document(one, options).values()) for one in found), output)
    else:
        write_rows(WHERE, map(_group_row, found), output)
        if found and partitions:
            separate_tables()
            write_rows(PARTITIONS, (_located_row(one, p) for one in found for p in one.partitions), output)
        if found:
            separate_tables()
            write_rows(NEXT, ((one.name, one.next.text(options)) for one in found), output)
    for text in {one.next.note for one in found} - {""}:
        connect.ui.note(text)
    for text in located.expiry_texts(found, connect.repeated()):
        connect.ui.note(text, warning=True)
    errors = [*located.unlisted, *located.missing]
    if not found and not errors:
        connect.tell_empty("groups")
    return report_and_exit_code(errors)


def _group_row(one: GroupLocation) -> tuple[Any, ...]:
    why = one.why
    if one.below_start:
        why = f"{why}; the lag lacks the deleted records of {count_of(one.below_start, 'partition')} (see --partitions)"
    return (one.name, one.phase.value, one.confidence.value, one.lag, one.members_text, why)


def _located_row(one: GroupLocation, p: LocatedPartition) -> tuple[Any, ...]:
    return (one.name, *p.partition, *map(p.offset_or_state, TITLES), p.log_end, p.lag, p.note or None)


ExistingGroup = Annotated[str, arg("GROUP", "Existing group.")]
NewName = Annotated[str, arg("NEW", "New group name.")]
Lose = Annotated[
    list[str] | None,
    opt("--lose", "ZNODE", "Accept that the data of this znode is lost; repeatable."),
]


@command(app, "delete")
def delete(
    connect: ConnectFlags,
    selected: GroupFlags,
    lose: Lose = None,
    accept_unseen: AcceptUnseen = False,
    *,
    flags: EditFlags,
) -> int:
    """Delete groups with all their committed offsets. Groups with members are refused.

    A group is also refused if it may have offsets that the before-images cannot hold: an offset of a topic that this
    login may not describe, an offset that is pending in a transaction, or one that cannot be read. In ZooKeeper the
    before-image holds all znodes of a group, also those that offsetmgr does not understand.
    """
    return flags.run(groups.delete(connect, selected.selection(), lose=lose or (), accept_unseen=accept_unseen))


@command(app, "copy")
def copy(
    connect: ConnectFlags,
    source: ExistingGroup,
    target: NewName,
    topics: TopicFlags,
    to: Annotated[str | None, opt("--to", "URI", "Another store: a URI, or zookeeper, kafka or manager.")] = None,
    translate: TranslateOption = None,
    allow_rewind: AllowRewind = False,
    plan: SavePlan = None,
    *,
    flags: EditFlags,
) -> int:
    """Copy a group's committed offsets to another group."""
    chosen = topics.selection()
    edit = groups.copy(connect, source, target, chosen, to=to, translate=translate, allow_rewind=allow_rewind)
    return flags.run(edit, plan=plan or "")


@command(app, "rename")
def rename(
    connect: ConnectFlags,
    source: ExistingGroup,
    target: NewName,
    lose: Lose = None,
    accept_unseen: AcceptUnseen = False,
    *,
    flags: EditFlags,
) -> int:
    """Rename a group: copy, verify by a fresh read, then delete the old one. A group is refused as by groups delete.

    A znode with data that offsetmgr does not understand is not copied, so --lose must name it.
    """
    edit = groups.rename(connect, source, target, lose=lose or (), accept_unseen=accept_unseen)
    return flags.run(edit, numbers_undo=True)
