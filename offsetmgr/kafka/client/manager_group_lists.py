"""Lists all groups of a cluster of offset managers. If the list may be incomplete, raises an error instead.

Each manager lists the groups of the shards that it owns, and returns an error if one of these shards is not loaded.
While a shard group moves from one manager to another, neither of the two managers lists the groups in it. Therefore the
client accepts a list only if two conditions are true. First, every shard group has the same owner before and after the
ListGroups requests. Second, before and after these requests, the owner returns no error for a fetch of a group that
belongs to the shard group. The client fetches 200 groups with fixed names, whose hashes are distributed over the shard
groups. There are at most 8 shard groups (`offsetmgr.manager.log.base`), so the probability that a shard group contains
none of these names is below 1 in 10 to the power of 10.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from offsetmgr.core.errors import CoordinatorNotAvailable
from offsetmgr.core.outcome import value_of
from offsetmgr.kafka.client.client import Client, with_retries
from offsetmgr.kafka.client.deadline import remaining
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import kafka_error

PROBES: Final = tuple(f"offsetmgr-probe-{number}" for number in range(200))


async def list_manager_groups(client: Client, deadline: float) -> list[str]:
    """Returns the ids of all groups with offsets. Raises `OffsetMgrError` if a manager does not respond, or if shard
    groups move until the deadline."""

    async def attempt() -> list[str]:
        before = await _owners(client, deadline)
        probes = [(at, [p for p, owner in before.items() if owner == at]) for at in dict.fromkeys(before.values())]
        await asyncio.gather(*(_check_ownership(client, at, groups, deadline) for at, groups in probes))
        listed = await asyncio.gather(*(_list_of_manager(client, at, deadline) for at, _ in probes))
        await asyncio.gather(*(_check_ownership(client, at, groups, deadline) for at, groups in probes))
        if before != await _owners(client, deadline):
            raise CoordinatorNotAvailable("list of groups", "shard groups moved during the request")
        return list(dict.fromkeys(itertools.chain.from_iterable(listed)))

    return await with_retries(client, attempt, deadline)


async def _owners(client: Client, deadline: float) -> Mapping[str, Address]:
    """Returns the owner of the shard group of each name in `PROBES`."""
    return {probe: value_of(owner) for probe, owner in (await client.find_coordinators(PROBES, deadline)).items()}


async def _check_ownership(client: Client, manager: Address, probes: Sequence[str], deadline: float) -> None:
    """Raises an error unless the manager owns the shard groups of these group names."""
    connection = await client.node(manager).connection(deadline)
    request = requests.offset_fetch(dict.fromkeys(probes, ()))
    for group in (await connection.call(request, remaining(deadline)))["groups"]:
        if group["error_code"]:
            raise kafka_error(group["error_code"], "list of groups")


async def _list_of_manager(client: Client, manager: Address, deadline: float) -> list[str]:
    connection = await client.node(manager).connection(deadline)
    answer = await connection.call(requests.list_groups(), remaining(deadline))
    if answer["error_code"]:
        raise kafka_error(answer["error_code"], f"groups of the manager {manager}")
    return [group["group_id"] for group in answer["groups"]]
