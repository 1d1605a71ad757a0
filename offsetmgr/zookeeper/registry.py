"""Who is alive: the old consumers registered under ``/consumers/GROUP/ids``. Reads only.

A registration that cannot be understood is still a live member: it is listed, with the error beside it, because
whoever counts members to decide on a write must not miss one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from offsetmgr.errors import OffsetMgrError
from offsetmgr.zookeeper import paths
from offsetmgr.zookeeper.jute import NodeData
from offsetmgr.zookeeper.nodes import parse_registration
from offsetmgr.zookeeper.session import ZookeeperSession

GROUPS_AT_ONCE: Final = 2000

# kafka.consumer.ZookeeperConsumerConnector: host, start in milliseconds, 8 hex digits of a random UUID.
_GENERATED_ID: Final = re.compile(r"(?P<host>.+)-(?P<millis>[0-9]{10,16})-[0-9a-f]{1,8}")


@dataclass(frozen=True, slots=True)
class RegistryMember:
    """One live consumer of a group, as it registered itself.

    ``host`` and ``started_at_ms`` are read from a generated id (``group_host-millis-8hex``), else None: with a
    configured ``consumer.id`` nothing can be told from it.  ``registered_at_ms`` and ``czxid`` are those of the
    node: a session that expired registers the same id again, so they tell the last registration, not the start.
    ``error`` says why the registration could not be read; ``subscription`` is empty then.
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


def parse_member_id(group: str, member_id: str) -> tuple[str, int] | None:
    """Host and start (ms) from a generated consumer id; None where the id is not of that form."""
    prefix = f"{group}_"
    match = _GENERATED_ID.fullmatch(member_id.removeprefix(prefix)) if member_id.startswith(prefix) else None
    return (match["host"], int(match["millis"])) if match is not None else None


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
    subscription: Mapping[str, int] = {}
    pattern, unreadable = "", None
    try:
        registration = parse_registration(f"{paths.ids(group)}/{name}", node.data)
        subscription, pattern = registration.subscription, registration.pattern
    except OffsetMgrError as error:
        unreadable = error
    return RegistryMember(
        member_id=name,
        host=origin[0] if origin else None,
        subscription=subscription,
        pattern=pattern,
        registered_at_ms=node.ctime_ms,
        czxid=node.czxid,
        session_id=node.ephemeral_owner,
        started_at_ms=origin[1] if origin else None,
        error=unreadable,
    )
