"""The live members of groups: old consumers registered under ``/consumers/GROUP/ids``, of 0.7 and of 0.8 and later.
Reads only.

A registration that cannot be decoded still belongs to a live member. It is listed with its error, because code that
counts members before a write must not miss one.
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
    """One live consumer of a group, from its own registration.

    ``host`` and ``started_at_ms`` come from a generated id (``group_host-millis-8hex``; ``host:uuid`` contains only the
    host). They are None for a configured ``consumer.id``. ``registered_at_ms`` and ``czxid`` are those of the node; a
    session that expired registers the same id again, so they describe the last registration, not the start.
    ``session_id`` is 0 for a persistent node, which consumers never create. ``error`` is the reason why the
    registration could not be decoded. ``subscription`` is then empty, except for an unknown version (`UnknownVersion`),
    where it holds the readable part. ``version`` is the format's, None for 0.7; ``notes`` lists oddities.
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
    """The live members of one group, sorted by id. If ``error`` is set, the members are unknown."""

    group: str
    members: tuple[RegistryMember, ...] = field(default=())
    error: OffsetMgrError | None = None


def members(session: ZookeeperSession, group: str) -> list[RegistryMember]:
    """Live members of one group, sorted by id; empty for a group that ZooKeeper does not have.

    Raises `UsageError` for an impossible group id, and what reading raises.
    """
    (found,) = members_many(session, [group])
    if found.error is not None:
        raise found.error
    return list(found.members)


def members_many(session: ZookeeperSession, groups: Iterable[str]) -> Iterator[GroupMembers]:
    """Yields the live members of many groups, one result for each group. Raises if the session fails as a whole."""
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
        elif registration is not None:  # has left since the children were listed
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
    """The readable part of the registration, and the error if not all of it is readable."""
    error: OffsetMgrError | None = None
    try:
        parse_registration(path, data)
    except OffsetMgrError as strict:
        error = strict
    try:
        return parse_registration(path, data, notes), error
    except OffsetMgrError as unreadable:
        return None, error or unreadable
