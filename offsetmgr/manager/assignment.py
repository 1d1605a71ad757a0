"""Who owns which shard group: `assign`, run by the leader of the managers' group in every rebalance; pure.

*Cooperative*: a shard group that a live member claims is given to nobody else. Its owner is asked to let it go, and
once it has rejoined without it, the next rebalance gives it to the one that waits. So a change of the members settles
within two rebalances, and no shard group ever has two owners. *Balanced*: in the end counts differ by one at most.
*Sticky*: no more shard groups move than that takes. Deterministic: the same members give the same assignment, in
whatever order they come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

FIRST_NODE_ID: Final = 1_000_000_000
"""Brokers have small ids, so a manager's never is one of theirs."""

_MINUTE_MS: Final = 60_000
_NODE_IDS: Final = 2**31 - FIRST_NODE_ID


class SharedConfig(NamedTuple):
    """What all managers of one group must agree on."""

    topic: str
    partitions: int
    slots: int
    record_format: str
    protocol: int
    """The version of the rules by which managers share shard groups (this package's)."""
    retention_ms: int
    """How long offsets of groups without members are kept: one with less would delete what the others keep."""
    relay: bool
    """Whether the brokers are asked which groups have members: who does not ask deletes what they committed."""


@dataclass(frozen=True, slots=True)
class ManagerMetadata:
    """What a member tells of itself when it joins."""

    host: str
    port: int
    parameters: SharedConfig
    owned: Mapping[int, int] = field(default_factory=dict)
    """The shard groups that it claims to own, and the generation that gave it each."""
    seen: int = -1
    """The newest generation whose assignment it has received as this member; -1: none."""
    seen_owners: Mapping[int, str] = field(default_factory=dict)
    """Who had which shard group in that assignment, by member id (those asked to let one go included)."""
    relay: Mapping[str, Any] = field(default_factory=dict)
    """For those who relay; not looked at here."""


class NodeAddress(NamedTuple):
    """A manager as clients see it."""

    node_id: int
    host: str
    port: int
    relay: Mapping[str, Any] = {}


class PendingRevocation(NamedTuple):
    """A shard group that changes hands: its owner until it lets go, and who will have it then (None: not known yet)."""

    owner: str
    successor: str | None


@dataclass(frozen=True, slots=True)
class Assignment:
    """One generation's assignment, the same for all members; members by their member id."""

    generation: int
    nodes: Mapping[str, NodeAddress]
    owners: Mapping[int, str]
    """Shard groups that may be held in this generation, and by whom."""
    waiting: Mapping[int, PendingRevocation] = field(default_factory=dict)
    """The other shard groups that somebody still holds, and is asked to let go."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Members that get nothing, and why."""

    def slots_of(self, member: str) -> frozenset[int]:
        """What ``member`` may hold."""
        return frozenset(slot for slot, owner in self.owners.items() if owner == member)

    def to_let_go(self, member: str) -> frozenset[int]:
        """What ``member`` is asked to let go."""
        return frozenset(slot for slot, waiting in self.waiting.items() if waiting.owner == member)

    def holders(self) -> dict[int, str]:
        """Who has each shard group that anybody has."""
        return {**self.owners, **{slot: waiting.owner for slot, waiting in self.waiting.items()}}


def assign(
    generation: int, members: Sequence[tuple[str, ManagerMetadata]], unreadable: Mapping[str, str] | None = None
) -> Assignment:
    """The assignment of ``generation``. ``unreadable`` are members that cannot be understood, and why: never having
    been given a shard group, they have none."""
    infos = dict(sorted(members))
    claims = _claims(infos)
    agreed = _agreed(infos, claims)
    refused = dict(unreadable or {})
    if agreed is None:
        return Assignment(generation, {}, {}, {}, refused)
    refused |= {m: _difference(info.parameters, agreed) for m, info in infos.items() if info.parameters != agreed}
    accepted = sorted((m for m in infos if m not in refused), key=lambda m: (infos[m].host, infos[m].port, m))

    owners, room = _kept(accepted, claims, agreed.slots)
    free = [slot for slot in range(agreed.slots) if slot not in claims]
    owners |= dict(zip(free, _neediest(room, len(free)), strict=True))
    moving = sorted(slot for slot in claims if slot not in owners and slot < agreed.slots)
    waiting = {
        slot: PendingRevocation(claims[slot][1], successor)
        for slot, successor in zip(moving, _neediest(room, len(moving)), strict=True)
    }
    return Assignment(generation, _nodes(accepted, infos), owners, waiting, refused)


def node_ids(addresses: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Ids that follow from the addresses alone; where two are the same, the later address takes the next free one."""
    taken: dict[int, tuple[str, int]] = {}
    for host, port in sorted(set(addresses)):
        digest = hashlib.sha256(f"{host}:{port}".encode()).digest()
        number = int.from_bytes(digest[:8], "big") % _NODE_IDS
        while FIRST_NODE_ID + number in taken:
            number = (number + 1) % _NODE_IDS
        taken[FIRST_NODE_ID + number] = (host, port)
    return {address: node_id for node_id, address in taken.items()}


def _claims(infos: Mapping[str, ManagerMetadata]) -> dict[int, tuple[int, str]]:
    """For each claimed shard group the claim that holds: its generation and its member.

    A member that joins without having seen the newest assignment counts as claiming what that gave it too: its
    JoinGroup may be an old one that arrived late, while the process itself has gone on. Of two claims the younger
    generation's holds: the older one was overtaken by it.
    """
    newest, map_of_newest = max(
        ((info.seen, m) for m, info in infos.items()), default=(-1, ""), key=lambda pair: (pair[0], pair[1])
    )
    given = infos[map_of_newest].seen_owners if map_of_newest else {}
    claims: dict[int, tuple[int, str]] = {}
    for member, info in infos.items():
        owned = dict(info.owned)
        if info.seen < newest:
            owned = {slot: newest for slot, owner in given.items() if owner == member} | owned
        for slot, since in owned.items():
            if slot not in claims or since > claims[slot][0]:
                claims[slot] = (since, member)
    return claims


def _agreed(infos: Mapping[str, ManagerMetadata], claims: Mapping[int, tuple[int, str]]) -> SharedConfig | None:
    """The parameters of those who own most shard groups: a newcomer that was set up wrongly, even one that leads, does
    not turn out those that are at work. Where nobody owns any, what most members have."""
    owned = [infos[member].parameters for _, member in claims.values()]
    told = [info.parameters for info in infos.values()]
    return min(set(told), default=None, key=lambda p: (-owned.count(p), -told.count(p), p))


def _difference(theirs: SharedConfig, agreed: SharedConfig) -> str:
    differing = [
        f"{name.removesuffix('_ms').replace('_', ' ')} is {_said(name, mine)} here "
        f"and {_said(name, other)} at the other managers"
        for name, mine, other in zip(SharedConfig._fields, theirs, agreed, strict=True)
        if mine != other
    ]
    return "; ".join(differing)


def _said(name: str, value: object) -> str:
    """As the options of ``manager serve`` have it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "retention_ms" and isinstance(value, int):
        return f"{value} ms" if value % _MINUTE_MS else f"{value // _MINUTE_MS} minutes"
    return repr(value)


def _kept(
    accepted: Sequence[str], claims: Mapping[int, tuple[int, str]], slots: int
) -> tuple[dict[int, str], dict[str, int]]:
    """What stays where it is, and how many shard groups more each member is to have."""
    held: dict[str, list[int]] = {member: [] for member in accepted}
    for slot, (_, member) in sorted(claims.items(), key=lambda item: (item[1][0], item[0])):
        if member in held and slot < slots:
            held[member].append(slot)
    share, more = divmod(slots, len(accepted)) if accepted else (0, 0)
    richest = sorted(accepted, key=lambda m: -len(held[m]))  # stable: equals stay in the order of their addresses
    quota = {member: share + (1 if n < more else 0) for n, member in enumerate(richest)}
    owners = {slot: member for member in accepted for slot in held[member][: quota[member]]}
    return owners, {member: quota[member] - min(len(held[member]), quota[member]) for member in accepted}


def _neediest(room: dict[str, int], count: int) -> list[str]:
    """Who gets the next ``count`` shard groups: each time the one that lacks most; ``room`` shrinks accordingly."""
    chosen = []
    for _ in range(count):
        member = max(room, key=lambda m: room[m])
        room[member] -= 1
        chosen.append(member)
    return chosen


def _nodes(accepted: Sequence[str], infos: Mapping[str, ManagerMetadata]) -> dict[str, NodeAddress]:
    ids = node_ids((infos[m].host, infos[m].port) for m in accepted)
    return {
        m: NodeAddress(ids[infos[m].host, infos[m].port], infos[m].host, infos[m].port, infos[m].relay)
        for m in accepted
    }
