"""``offsetmgr zk members|owners``: lists the old consumers that are registered in ZooKeeper, and the owners of
partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import typer

from offsetmgr.cli.columns import GROUP_PARTITION
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import exit_with, report_and_exit_code
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import FormatOption, GroupFlags, TopicsOption
from offsetmgr.cli.read_error_report import empty_note
from offsetmgr.cli.render import Column, OutputFormat, note, progress, write_rows
from offsetmgr.cli.table_fit import NAME_RANK
from offsetmgr.cli.watch import Count, Watch, WatchCommand, watch_command
from offsetmgr.cli.zk_tree import session_of
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import BrokerPartition
from offsetmgr.core.selection import GroupSelection

if TYPE_CHECKING:
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.zookeeper.client.session import ZookeeperSession
    from offsetmgr.zookeeper.groups.ownership import GroupOwners, Owner
    from offsetmgr.zookeeper.groups.registry import GroupMembers, RegistryMember

app = typer.Typer()

MEMBERS: Final = (
    Column("group"),
    Column("member_id", rank=1),
    Column("host", optional=True, rank=2),
    Column("pattern"),
    Column("subscription", rank=NAME_RANK),
    Column("partitions", right=True),
    Column("registered_at", time=True, rank=11),
    Column("started_at", detail=True),
    Column("ephemeral_owner", rank=12),
    Column("format_version", detail=True),
    Column("notes", optional=True),
    Column("error", optional=True),
)
OWNERS: Final = (
    *GROUP_PARTITION,
    Column("member_id", rank=1),
    Column("thread", right=True),
    Column("claimed_at", time=True, rank=11),
    Column("ephemeral_owner", rank=12),
    Column("notes", optional=True),
    Column("error", optional=True),
)


@app.command("members", cls=WatchCommand)
@connected
@many_clusters
def members(
    connect: ConnectFlags,
    groups: GroupFlags,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the members of groups registered in ZooKeeper, with their subscriptions.

    SUBSCRIPTION is topic=streams; with a pattern (white_list, black_list) it is expression=streams.
    """
    from offsetmgr.zookeeper.groups.ownership import owners_many
    from offsetmgr.zookeeper.groups.registry import members_many

    selected = groups.selection()
    session = connect.zookeeper("zk members")

    def once() -> int:
        errors: list[OffsetMgrError] = []
        chosen = _chosen(connect, session, selected)
        found = zip(members_many(session, chosen), owners_many(session, chosen), strict=True)
        listed = progress(found, "groups", len(chosen))
        if not write_rows(MEMBERS, _member_rows(listed, errors), output) and not errors:
            note("no live members")
        return report_and_exit_code(errors)

    exit_with(watch_command(once, watch, count))


@app.command("owners", cls=WatchCommand)
@connected
@many_clusters
def owners(
    connect: ConnectFlags,
    groups: GroupFlags,
    topic: TopicsOption = None,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the owned partitions, each with the consumer thread that owns it."""
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.zookeeper.groups.ownership import owners_many
    from offsetmgr.zookeeper.groups.registry import members_many

    selected = groups.selection()
    selection = TopicSelection.parse(topic or [])
    session = connect.zookeeper("zk owners")

    def once() -> int:
        errors: list[OffsetMgrError] = []
        chosen = _chosen(connect, session, selected)
        # The owners are read before the members. If the members were read first, the partitions of a member that joins
        # between the two reads would appear to have an owner that is not a member.
        found = zip(owners_many(session, chosen), members_many(session, chosen), strict=True)
        listed = progress(found, "groups", len(chosen))
        if not write_rows(OWNERS, _owner_rows(listed, selection, errors), output) and not errors:
            note("no partition has an owner")
        return report_and_exit_code(errors)

    exit_with(watch_command(once, watch, count))


def _chosen(connect: ConnectFlags, session: ZookeeperSession, selected: GroupSelection) -> list[str]:
    """Returns the selected groups of the registry."""
    from offsetmgr.zookeeper.nodes.paths import CONSUMERS

    known = session.children(CONSUMERS) or []
    if not known and selected.patterns is None:
        note(empty_note(connect.store(f"zookeeper://{session.connect}"), "groups"))
    return selected.within(known, f"ZooKeeper at {session.connect}")


def _member_rows(
    found: Iterable[tuple[GroupMembers, GroupOwners]], errors: list[OffsetMgrError]
) -> Iterator[tuple[Any, ...]]:
    for listed, owned in found:
        if listed.error is not None:
            errors.append(listed.error)
            continue
        held: dict[str | None, int] | None = None  # unknown
        if owned.error is None and not owned.errors:
            held = {}
            for owner in owned.owners.values():
                held[owner.member_id] = held.get(owner.member_id, 0) + 1
        errors += [*([owned.error] if owned.error is not None else ()), *owned.errors.values()]
        for member in listed.members:
            if member.error is not None:
                errors.append(member.error)
            yield (
                listed.group,
                member.member_id,
                member.host,
                member.pattern or None,
                " ".join(f"{topic}={n}" for topic, n in member.subscription.items()) or None,
                None if held is None else held.get(member.member_id, 0),
                member.registered_at_ms,
                member.started_at_ms,
                session_of(member.session_id),
                member.version,
                "; ".join([*member.notes, *_persistent(member.session_id)]) or None,
                member.error.why if member.error is not None else None,
            )


def _owner_rows(
    found: Iterable[tuple[GroupOwners, GroupMembers]], selection: TopicSelection, errors: list[OffsetMgrError]
) -> Iterator[tuple[Any, ...]]:
    for owned, listed in found:
        if owned.error is not None:
            errors.append(owned.error)
            continue
        live = None if listed.error is not None else {member.member_id: member for member in listed.members}
        errors += [*([listed.error] if listed.error is not None else ()), *owned.errors.values()]
        for tp, owner in owned.owners.items():
            if not selection.matches(tp):
                continue
            if owner.error is not None:
                errors.append(owner.error)
            yield (
                owned.group,
                tp.topic,
                str(tp.partition) if isinstance(tp.partition, BrokerPartition) else tp.partition,
                owner.member_id,
                owner.thread,
                owner.claimed_at_ms,
                session_of(owner.session_id),
                "; ".join([*_persistent(owner.session_id), *_inconsistencies(owner, live)]) or None,
                owner.error.why if owner.error is not None else None,
            )


def _persistent(session_id: int) -> list[str]:
    return [] if session_id else ["persistent: does not show whether its consumer runs"]


def _inconsistencies(owner: Owner, live: Mapping[str, RegistryMember] | None) -> list[str]:
    """Returns the inconsistencies between an owner and the live members. Returns an empty list if the live members are
    unknown."""
    if owner.member_id is None or live is None:
        return []
    member = live.get(owner.member_id)
    if member is None:
        return ["no live member"]
    if owner.session_id and member.session_id != owner.session_id:
        return [f"its member has another session, {session_of(member.session_id) or 'none'}"]
    return []
