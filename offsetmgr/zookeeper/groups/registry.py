"""Reads the live members of groups: old consumers of all releases, registered in ``/consumers/GROUP/ids``. Writes
nothing.

A registration that cannot be decoded still belongs to a live member. The results include this member together with the
error, because a caller that checks for live members before a write must not miss a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from offsetmgr.core.batches import batched
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
    """One live consumer of a group, decoded from the consumer's registration.

    ``host`` and ``started_at_ms`` are parsed from a generated id, which has the form ``group_host-millis-8hex`` or
    ``host:uuid``; the second form contains no start time. Both fields are None for a configured ``consumer.id``.
    ``registered_at_ms`` is the creation time of the registration's node, and ``czxid`` is the node's creation zxid. A
    consumer registers again after its session has expired, so its registration may be newer than the consumer.
    ``session_id`` is 0 for a persistent node; consumers never create persistent registrations. If the registration
    cannot be decoded, ``error`` is the reason, and ``subscription`` is empty; if the version of the registration is
    unknown (`UnknownVersion`), ``subscription`` instead contains the part that could be decoded. ``version`` is the
    version of the format, or None for the format of Kafka 0.7. ``notes`` describe unknown fields and values.
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
    """Returns the live members of one group, sorted by id. The list is empty if the group does not exist in ZooKeeper.

    Raises `UsageError` if ZooKeeper cannot contain the group id, and any error of the session.
    """
    (found,) = members_many(session, [group])
    if found.error is not None:
        raise found.error
    return list(found.members)


def members_many(session: ZookeeperSession, groups: Iterable[str]) -> Iterator[GroupMembers]:
    """Yields the live members of many groups, one result per group. Raises if the session fails."""
    for batch in batched(groups, GROUPS_AT_ONCE):
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
        elif registration is not None:  # None if the member left after the children were listed
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
    """Decodes as much of a registration as possible. Also returns the error if the registration cannot be decoded
    completely, or None."""
    error: OffsetMgrError | None = None
    try:
        parse_registration(path, data)
    except OffsetMgrError as strict:
        error = strict
    try:
        return parse_registration(path, data, notes), error
    except OffsetMgrError as unreadable:
        return None, error or unreadable
