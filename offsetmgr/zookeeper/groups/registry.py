"""Who is alive: the old consumers registered under ``/consumers/GROUP/ids``, of 0.7 and of 0.8 and later. Reads only.

A registration that cannot be understood is still a live member: it is listed, with the error beside it, because
whoever counts members to decide on a write must not miss one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.consumers import ConsumerRegistration, parse_registration
from offsetmgr.zookeeper.nodes.fields import Notes
from offsetmgr.zookeeper.nodes.member_id import parse_member_id

GROUPS_AT_ONCE: Final = 2000


@dataclass(frozen=True, slots=True)
class RegistryMember:
    """One live consumer of a group, as it registered itself.

    ``host`` and ``started_at_ms`` are read from a generated id (``group_host-millis-8hex``; ``host:uuid`` tells the
    host alone), else None: with a configured ``consumer.id`` nothing can be told from it.  ``registered_at_ms`` and
    ``czxid`` are those of the node: a session that expired registers the same id again, so they tell the last
    registration, not the start.  ``session_id`` is 0 where the node is persistent, as no consumer makes it.
    ``error`` says why the registration could not be read; ``subscription`` is empty then, unless it is only of an
    unknown version (`UnknownVersion`): then it holds what could be read all the same.  ``version`` is that of the
    format, None for 0.7's; ``notes`` says what is odd about it.
    """

    member_id: str
    host: str | None
    subscription: Mapping[str, int]
    pattern: str
    registered_at_ms: int
    czxid: int
    session_id: int
    started_at_ms: int | None = None
    error: OffsetMgrError | None = None
    version: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The live members of one group, sorted by id. With ``error`` set, who lives is not known."""

    group: str
    members: tuple[RegistryMember, ...] = field(default=())
    error: OffsetMgrError | None = None


def members(session: ZookeeperSession, group: str) -> list[RegistryMember]:
    """Live members of one group, sorted by id; none for a group that ZooKeeper does not know.

    Raises `UsageError` for an impossible group id, and what reading raises.
    """
    (found,) = members_many(session, [group])
    if found.error is not None:
        raise found.error
    return list(found.members)


def members_many(session: ZookeeperSession, groups: Iterable[str]) -> Iterator[GroupMembers]:
    """Live members of many groups, one result for each group, lazily. Raises where the session fails as a whole."""
    remaining = iter(groups)
    while batch := list(islice(remaining, GROUPS_AT_ONCE)):
        yield from _members_of(session, batch)


def _members_of(session: ZookeeperSession, groups: list[str]) -> Iterator[GroupMembers]:
    possible: list[str] = []
    for group in groups:
        try:
            paths.check_group(group)
            possible.append(group)
        except OffsetMgrError as error:
            yield GroupMembers(group, error=error)
    listed = session.children_many([paths.ids(group) for group in possible])
    named = [
        (group, name)
        for group, names in zip(possible, listed, strict=True)
        if isinstance(names, list)
        for name in sorted(names)
    ]
    registrations = session.get_many([f"{paths.ids(group)}/{name}" for group, name in named])
    found: dict[str, list[RegistryMember]] = {group: [] for group in possible}
    failed: dict[str, OffsetMgrError] = {}
    for (group, name), registration in zip(named, registrations, strict=True):
        if isinstance(registration, OffsetMgrError):
            failed[group] = registration
        elif registration is not None:  # None: it has gone since the children were listed
            found[group].append(_member(group, name, registration))
    for group, names in zip(possible, listed, strict=True):
        unknown = names if isinstance(names, OffsetMgrError) else failed.get(group)
        yield GroupMembers(group, () if unknown else tuple(found[group]), unknown)


def _member(group: str, name: str, node: NodeData) -> RegistryMember:
    origin = parse_member_id(group, name)
    notes: Notes = []
    registration, error = _registration(f"{paths.ids(group)}/{name}", node.data, notes)
    return RegistryMember(
        member_id=name,
        host=origin.host if origin else None,
        subscription=registration.subscription if registration else {},
        pattern=registration.pattern if registration else "",
        registered_at_ms=node.ctime_ms,
        czxid=node.czxid,
        session_id=node.ephemeral_owner,
        started_at_ms=origin.started_at_ms if origin else None,
        error=error,
        version=registration.version if registration else None,
        notes=tuple(notes),
    )


def _registration(path: str, data: bytes, notes: Notes) -> tuple[ConsumerRegistration | None, OffsetMgrError | None]:
    """What could be read, and why not all of it could."""
    error: OffsetMgrError | None = None
    try:
        parse_registration(path, data)
    except OffsetMgrError as strict:
        error = strict
    try:
        return parse_registration(path, data, notes), error
    except OffsetMgrError as unreadable:
        return None, error or unreadable
