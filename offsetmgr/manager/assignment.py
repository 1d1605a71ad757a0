"""The assignor of the managers' group: `assign` decides which manager owns which shard group. The leader of the group
calls it in every rebalance. Pure.

A member *claims* a shard group if its metadata lists that shard group as owned. The assignment is *cooperative*: a
shard group that a live member claims is never given to another member. Instead, the assignment asks the owner to revoke
the shard group. After the owner has revoked the shard group, the owner rejoins without it. This causes a second
rebalance, which assigns the shard group to its new owner. A move between live members therefore takes two rebalances,
and no shard group ever has two owners. The assignment is *balanced*: the numbers of shard groups of any two members
differ by at most one. The assignment is *sticky*: as few shard groups move as possible. The assignment is deterministic
and does not depend on the order of the members.

A shard group is *unreleased* if its previous owner may still serve it. To release a shard group, its owner stops to
serve it and then sends a JoinGroup that does not list it. A member that was removed from the group has not done so, and
it may be alive and may not know of its removal. Therefore the next owner waits until the lease of the previous owner
must have ended (`lease`). A shard group counts as released only if the newest assignment that a member reports is the
one of the previous generation. Otherwise a member that has been removed since then may have received the shard group in
a generation of which the leader does not know. Besides, one of these conditions holds:

- a member has received this assignment and lists the shard group as owned, so it needs no release. A claim in older
  metadata proves nothing, because the shard group may have had another owner since then;
- no member claims the shard group, its owner in this assignment is still a member, and no member reports that it is
  still waiting for the lease of an earlier owner.

A member that receives or is asked to revoke an unreleased shard group that it owns already ignores that it is
unreleased.

In the group's first generation there is no previous owner. Kafka deletes a group, and begins with generation 1 again,
only long after its last member has left, because the members have committed offsets (`offsets.retention.minutes`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.manager.group_secret import GroupSecret

FIRST_NODE_ID: Final = 1_000_000_000
"""The lowest node id of a manager. This number is far above the usual ids of brokers, so that the ids of managers and
brokers do not collide."""

_FIRST_GENERATION: Final = 1
_MINUTE_MS: Final = 60_000
_NODE_IDS: Final = 2**31 - FIRST_NODE_ID


class SharedConfig(NamedTuple):
    """The settings that all managers of a group must share."""

    topic: str
    partitions: int
    shard_groups: int
    record_format: str
    protocol: int
    """The version of the assignment rules in this module."""
    retention_ms: int
    """The retention of offsets of groups without members. A manager with a shorter retention would delete offsets that
    the other managers keep."""
    relay: bool
    """Whether the manager asks the brokers which groups have members. A manager that does not ask the brokers would
    delete the offsets of groups with members."""


@dataclass(frozen=True, slots=True)
class ManagerMetadata:
    """The metadata that a manager sends when it joins the managers' group."""

    host: str
    port: int
    parameters: SharedConfig
    owned: Mapping[int, int] = field(default_factory=dict)
    """For each shard group that the member claims to own, the generation that assigned the shard group."""
    seen: int = -1
    """The newest generation whose assignment the member has received; -1 if the member has received no assignment."""
    seen_owners: Mapping[int, str] = field(default_factory=dict)
    """The member id of each shard group's owner in the assignment of the generation ``seen``. If this assignment asks a
    member to revoke a shard group, this member still counts as the owner."""
    waiting_for: frozenset[int] = frozenset()
    """The unreleased shard groups that the member has received, while the lease of an earlier owner may be valid."""
    leaving: bool = False
    """Whether the member has released every shard group and is about to leave the group. It receives none."""


class NodeAddress(NamedTuple):
    """The address at which clients reach a manager."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of one generation. All members receive the same assignment. Members are identified by their member
    id."""

    generation: int
    nodes: Mapping[str, NodeAddress]
    owners: Mapping[int, str]
    """The owner of each shard group that has one in this generation."""
    waiting: Mapping[int, str] = field(default_factory=dict)
    """The present owner of each shard group that moves. The owner is asked to revoke the shard group."""
    rejected: Mapping[str, str] = field(default_factory=dict)
    """The members that receive no shard group, and the reason."""
    unreleased: frozenset[int] = frozenset()
    """The shard groups that another member may still serve. An owner that does not serve such a shard group yet has to
    wait until the lease of the previous owner must have ended."""

    def shard_groups_of(self, member: str) -> frozenset[int]:
        """Returns the shard groups that ``member`` may own."""
        return frozenset(shard_group for shard_group, owner in self.owners.items() if owner == member)

    def to_revoke(self, member: str) -> frozenset[int]:
        """Returns the shard groups that ``member`` is asked to revoke."""
        return frozenset(shard_group for shard_group, owner in self.waiting.items() if owner == member)

    def all_owners(self) -> dict[int, str]:
        """Returns the owner of each shard group. If the assignment asks a member to revoke a shard group, this member
        still counts as the owner."""
        return {**self.owners, **self.waiting}


def assign(generation: int, members: Sequence[tuple[str, ManagerMetadata]]) -> Assignment:
    """Returns the assignment of ``generation``. ``members`` lacks the members whose metadata cannot be verified or
    decoded; their claims do not count. Such a member may own shard groups if the managers' secret was replaced, so the
    next owners wait until its lease must have ended."""
    metadata = dict(sorted(members))
    claims = _claims(metadata)
    # The settings of the members that own the most shard groups prevail, so that a wrongly configured new member, even
    # a leader, does not displace working members. If no member owns a shard group, those that the most members have.
    owned = [metadata[member].parameters for _, member in claims.values()]
    configs = [member_metadata.parameters for member_metadata in metadata.values()]
    prevailing = min(set(configs), default=None, key=lambda p: (-owned.count(p), -configs.count(p), p))
    if prevailing is None:
        return Assignment(generation, {}, {})
    rejected = {
        m: _describe_difference(member_metadata.parameters, prevailing)
        for m, member_metadata in metadata.items()
        if member_metadata.parameters != prevailing
    }
    accepted = sorted(
        (m for m in metadata if m not in rejected and not metadata[m].leaving),
        key=lambda m: (metadata[m].host, metadata[m].port, m),
    )

    owners, capacity = _retained(accepted, claims, prevailing.shard_groups)
    free = [shard_group for shard_group in range(prevailing.shard_groups) if shard_group not in claims]
    owners |= dict(zip(free, _next_owners(capacity, len(free)), strict=bool(accepted)))
    waiting = {
        shard_group: member
        for shard_group, (_, member) in sorted(claims.items())
        if shard_group not in owners and shard_group < prevailing.shard_groups
    }
    unreleased = frozenset[int]()
    if generation != _FIRST_GENERATION:
        unreleased = frozenset(owners).union(waiting) - _released(generation, metadata, claims)
    ids = node_ids((metadata[m].host, metadata[m].port) for m in accepted)
    nodes = {
        m: NodeAddress(ids[metadata[m].host, metadata[m].port], metadata[m].host, metadata[m].port) for m in accepted
    }
    return Assignment(generation, nodes, owners, waiting, rejected, unreleased)


def node_ids(addresses: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Returns a node id for each address, computed from the addresses alone. If two addresses have the same hash, the
    later one in sorted order gets the next free id."""
    addresses_by_id: dict[int, tuple[str, int]] = {}
    for host, port in sorted(set(addresses)):
        digest = hashlib.sha256(f"{host}:{port}".encode()).digest()
        number = int.from_bytes(digest[:8], "big") % _NODE_IDS
        while FIRST_NODE_ID + number in addresses_by_id:
            number = (number + 1) % _NODE_IDS
        addresses_by_id[FIRST_NODE_ID + number] = (host, port)
    return {address: node_id for node_id, address in addresses_by_id.items()}


def _claims(metadata: Mapping[str, ManagerMetadata]) -> dict[int, tuple[int, str]]:
    """Returns the valid claim of each claimed shard group: the generation that assigned the shard group, and the member
    that claims it.

    If a member's metadata is older than the newest assignment, the member also counts as claiming the shard groups that
    the newest assignment gave it. The reason is that the member may have applied this assignment after it had sent the
    metadata. If two members claim the same shard group, the claim with the newer generation is valid.
    """
    newest, newest_owners = _newest_assignment(metadata)
    claims: dict[int, tuple[int, str]] = {}
    for member, member_metadata in metadata.items():
        owned = dict(member_metadata.owned)
        if member_metadata.seen < newest:
            owned = {shard_group: newest for shard_group, owner in newest_owners.items() if owner == member} | owned
        for shard_group, since in owned.items():
            if shard_group not in claims or since > claims[shard_group][0]:
                claims[shard_group] = (since, member)
    return claims


def _newest_assignment(metadata: Mapping[str, ManagerMetadata]) -> tuple[int, Mapping[int, str]]:
    """Returns the newest assignment that a member has received: its generation, and the owner of each shard group."""
    newest = max(metadata, default=None, key=lambda m: (metadata[m].seen, m))
    return (-1, {}) if newest is None else (metadata[newest].seen, metadata[newest].seen_owners)


def _released(
    generation: int, metadata: Mapping[str, ManagerMetadata], claims: Mapping[int, tuple[int, str]]
) -> frozenset[int]:
    """Returns the shard groups that no previous owner can still serve. The module's docstring states the rules."""
    newest, newest_owners = _newest_assignment(metadata)
    if newest != generation - 1:
        return frozenset()
    awaited = frozenset[int]().union(*(member_metadata.waiting_for for member_metadata in metadata.values()))
    released = {shard_group for shard_group, owner in newest_owners.items() if owner in metadata} - awaited
    held = {s for s, (_, member) in claims.items() if metadata[member].seen == newest and s in metadata[member].owned}
    return frozenset(released - claims.keys() | held)


def _describe_difference(config: SharedConfig, prevailing: SharedConfig) -> str:
    differing = [
        f"{name.removesuffix('_ms').replace('_', ' ')} is {_format_setting(name, mine)} here "
        f"and {_format_setting(name, other)} at the other managers"
        for name, mine, other in zip(SharedConfig._fields, config, prevailing, strict=True)
        if mine != other
    ]
    return "; ".join(differing)


def _format_setting(name: str, value: object) -> str:
    """Formats the value as the options of ``manager serve`` do."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "retention_ms" and isinstance(value, int):
        return f"{value} ms" if value % _MINUTE_MS else f"{value // _MINUTE_MS} minutes"
    return repr(value)


def _retained(
    accepted: Sequence[str], claims: Mapping[int, tuple[int, str]], shard_groups: int
) -> tuple[dict[int, str], dict[str, int]]:
    """Returns the owners of the shard groups that do not move, and the number of additional shard groups that each
    member receives."""
    claimed: dict[str, list[int]] = {member: [] for member in accepted}
    for shard_group, (_, member) in sorted(claims.items(), key=lambda item: (item[1][0], item[0])):
        if member in claimed and shard_group < shard_groups:
            claimed[member].append(shard_group)
    share, remainder = divmod(shard_groups, len(accepted)) if accepted else (0, 0)
    by_count = sorted(
        accepted, key=lambda m: -len(claimed[m])
    )  # the sort is stable: equal counts stay sorted by address
    quota = {member: share + (1 if n < remainder else 0) for n, member in enumerate(by_count)}
    owners = {shard_group: member for member in accepted for shard_group in claimed[member][: quota[member]]}
    return owners, {member: quota[member] - min(len(claimed[member]), quota[member]) for member in accepted}


def _next_owners(capacity: dict[str, int], count: int) -> list[str]:
    """Returns the members that receive the next ``count`` shard groups. Each shard group goes to the member with the
    largest remaining ``capacity``. The function then reduces the capacity of this member by one. Without members, the
    result is empty."""
    if not capacity:
        return []
    members = []
    for _ in range(count):
        member = max(capacity, key=lambda m: capacity[m])
        capacity[member] -= 1
        members.append(member)
    return members


# Encodes and decodes the bytes that managers exchange through the group protocol: a member's metadata and an
# assignment. Both are JSON with a version (data rule "versioned formats"). Readers ignore unknown fields. A change of
# a field needs a new version and a new name of the group protocol, because the coordinator admits only members that
# share a protocol name.

T = TypeVar("T")

VERSION: Final = 3
_MAX_SHARD_GROUPS: Final = 1024
"""An upper limit for the number of shard groups in metadata; a larger number is invalid."""
_UNUSED: Final[Mapping[str, object]] = {}
"""The value of a field that only managers of earlier versions require."""
_MIN_LONG: Final = -(2**63)
"""The minimum of all numbers, because the modules that use a number check its range."""


def encode_metadata(metadata: ManagerMetadata, attempt: int) -> bytes:
    """Encodes metadata. ``attempt`` differs in each JoinGroup of a process, because the coordinator answers a JoinGroup
    that is identical to the previous one from its memory, without a rebalance."""
    return _encode(
        {
            "host": metadata.host,
            "port": metadata.port,
            "parameters": metadata.parameters._asdict(),
            "owned": metadata.owned,
            "seen": metadata.seen,
            "seen_owners": metadata.seen_owners,
            "relay": _UNUSED,
            "waiting_for": [str(shard_group) for shard_group in sorted(metadata.waiting_for)],
            "leaving": metadata.leaving,
            "attempt": attempt,
        }
    )


def decode_metadata(data: bytes) -> ManagerMetadata:
    """Decodes metadata. Raises `UnknownVersion`, `MalformedData`."""
    found = _decode(data, "metadata of a manager")
    settings = found.object("parameters")
    parameters = SharedConfig(
        settings.text("topic"),
        settings.integer("partitions", _MIN_LONG),
        settings.integer("shard_groups", _MIN_LONG),
        settings.text("record_format"),
        settings.integer("protocol", _MIN_LONG),
        settings.integer("retention_ms", _MIN_LONG),
        settings.boolean("relay"),
    )
    if not 0 < parameters.shard_groups <= min(parameters.partitions, _MAX_SHARD_GROUPS):
        raise found.error(f"has {parameters.shard_groups} shard groups for {parameters.partitions} partitions")
    return ManagerMetadata(
        found.text("host"),
        found.integer("port", _MIN_LONG),
        parameters,
        _by_shard_group(found, "owned", found.integers("owned", _MIN_LONG)),
        found.integer("seen", _MIN_LONG),
        _by_shard_group(found, "seen_owners", found.texts("seen_owners")),
        _shard_groups(found, "waiting_for"),
        found.boolean("leaving"),
    )


def encode_assignment(assignment: Assignment) -> bytes:
    return _encode(
        {
            "generation": assignment.generation,
            "nodes": {member: {**node._asdict(), "relay": _UNUSED} for member, node in assignment.nodes.items()},
            "owners": assignment.owners,
            "waiting": {shard_group: {"owner": owner} for shard_group, owner in assignment.waiting.items()},
            "rejected": assignment.rejected,
            "unreleased": [str(shard_group) for shard_group in sorted(assignment.unreleased)],
        }
    )


def decode_assignment(data: bytes) -> Assignment:
    """Decodes an assignment. Raises `UnknownVersion`, `MalformedData`."""
    found = _decode(data, "assignment of the managers' group")
    nodes, waiting = found.object("nodes"), found.object("waiting")
    return Assignment(
        found.integer("generation", _MIN_LONG),
        {member: _node(nodes.object(member)) for member in nodes.values},
        _by_shard_group(found, "owners", found.texts("owners")),
        _by_shard_group(found, "waiting", {name: waiting.object(name).text("owner") for name in waiting.values}),
        found.texts("rejected"),
        _shard_groups(found, "unreleased"),
    )


def assign_members(
    generation: int, members: Sequence[tuple[str, bytes]], secret: GroupSecret | None = None
) -> dict[str, bytes]:
    """Returns the encoded assignment of ``generation`` for each member. ``members`` are member ids with encoded
    metadata. The leader of the group calls this function. An assignment names no other member whose metadata cannot be
    verified or decoded, so that many such members with long ids do not fill the memory."""
    secret = secret or GroupSecret()
    readable, unreadable = [], {}
    for member, metadata in members:
        try:
            readable.append((member, decode_metadata(secret.verified(metadata, "member", member))))
        except OffsetMgrError as error:
            unreadable[member] = str(error)

    def encoded(assignment: Assignment) -> bytes:
        return secret.signed(encode_assignment(assignment), "generation", generation)

    found = assign(generation, readable)
    return dict.fromkeys(dict(readable), encoded(found)) | {
        member: encoded(replace(found, rejected={member: why})) for member, why in unreadable.items()
    }


def _encode(content: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **content}, separators=(",", ":")).encode()


def _decode(data: bytes, what: str) -> FieldReader:
    found = FieldReader.parse(data, what)
    found.version((VERSION,), "upgrade this manager if another manager is newer")
    return found


def _node(node: FieldReader) -> NodeAddress:
    return NodeAddress(node.integer("node_id", _MIN_LONG), node.text("host"), node.integer("port", _MIN_LONG))


def _shard_groups(found: FieldReader, name: str) -> frozenset[int]:
    return frozenset(_by_shard_group(found, name, dict.fromkeys(found.text_list(name), None)))


def _by_shard_group(found: FieldReader, name: str, values: Mapping[str, T]) -> dict[int, T]:
    """Converts the keys of a field, which are strings in JSON, to numbers of shard groups."""
    for number in values:
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise found.error(f"has {number!a} where a shard group's number should be", name)
    return {int(number): value for number, value in values.items()}
