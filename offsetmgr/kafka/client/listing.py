"""All groups of a cluster, or an error: never some of them.

A broker lists the groups of those partitions of ``__consumer_offsets`` that it has loaded. While a coordinator moves,
the old broker does not list its groups any more and the new one not yet, and neither says so (seen on 3.9.1: 100 of
300 groups, without an error). So a list counts only if before it and after it every partition had the same leader in
the same epoch, and that leader answered for a group of the partition, as only a coordinator that has loaded it does.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import lru_cache
from typing import Final, NamedTuple

from kio.schema.describe_groups.v4.response import DescribeGroupsResponse
from kio.schema.list_groups.v4.response import ListGroupsResponse
from kio.schema.metadata.v8.response import MetadataResponse, MetadataResponseTopic

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import CoordinatorNotAvailable, OffsetMgrError
from offsetmgr.kafka.client.client import Client, backoff, remaining
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.releases import DESCRIBES_MEMBERS, LISTS_GROUPS
from offsetmgr.kafka.protocol.requests import OFFSETS_TOPIC

_OFFSET_HOLDERS: Final = frozenset({"consumer", "streams", ""})
"""Protocol types of groups that commit offsets (simple consumers have none); Connect's workers, say, do not."""
_NOT_ALLOWED: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED})
"""Who may not look at the offsets topic or describe any group must do without the proof."""


class _Layout(NamedTuple):
    """Which brokers there are, and which partition of the offsets topic is led by whom, in which leader epoch."""

    brokers: tuple[Address, ...]
    leaders: dict[int, tuple[Address, int]]


async def list_groups(client: Client, deadline: float) -> list[str]:
    """Ids of all groups that may hold offsets, whatever their state. Where a broker lists only groups with members, or
    none at all, the offsets topic is read for the others.

    Raises `OffsetMgrError` if a broker could not be asked, or a coordinator was on its way until the deadline.
    """
    for pause in backoff():
        try:
            _, brokers = await client.cluster(deadline)
            spoken = {at: known for at, known in (await client.spoken(brokers, deadline)).items() if known is not None}
            if client.offsets_topic is not None and not all(map(LISTS_GROUPS.on, spoken.values())):
                active = [at for at, versions in spoken.items() if DESCRIBES_MEMBERS.on(versions)]
                listed = await asyncio.gather(*(_listed(client, broker, deadline) for broker in active))
                return sorted({*itertools.chain.from_iterable(listed), *await client.offsets_topic.groups(deadline)})
            before = await _layout(client, deadline)
            listed = await asyncio.gather(*(_listed(client, broker, deadline) for broker in before.brokers))
            if before != await _layout(client, deadline):
                raise CoordinatorNotAvailable("list of groups", "coordinators moved while they were asked")
            return list(dict.fromkeys(itertools.chain.from_iterable(listed)))
        except OffsetMgrError as error:
            late = asyncio.get_running_loop().time() + pause >= deadline
            if late or not error.retriable or not client.reached:
                raise
        await asyncio.sleep(pause)
    raise AssertionError("back-off has no end")


async def _listed(client: Client, broker: Address, deadline: float) -> list[str]:
    connection = await client.node(broker).connection(deadline)
    answer = await connection.call(requests.list_groups(), ListGroupsResponse, remaining(deadline))
    if answer.error_code:
        raise kafka_error(int(answer.error_code), f"groups of broker {broker}")
    return [str(group.group_id) for group in answer.groups if group.protocol_type in _OFFSET_HOLDERS]


async def _layout(client: Client, deadline: float) -> _Layout:
    """Who leads what, once every leader has proved that it has loaded its partitions. Raises `OffsetMgrError`."""
    connection = await client.any_connection(deadline)
    answer = await connection.call(requests.metadata([OFFSETS_TOPIC]), MetadataResponse, remaining(deadline))
    brokers = {int(b.node_id): Address(b.host, int(b.port)) for b in answer.brokers}
    if not brokers:
        raise CoordinatorNotAvailable("list of groups", f"broker {connection.address} knows no brokers yet")
    leaders = _leaders(answer.topics, brokers)
    led: dict[Address, list[int]] = {}
    for partition, (leader, _) in leaders.items():
        led.setdefault(leader, []).append(partition)
    probes = probe_groups(len(leaders))
    await asyncio.gather(
        *(_probe(client, leader, [probes[p] for p in partitions], deadline) for leader, partitions in led.items())
    )
    return _Layout(tuple(brokers.values()), leaders)


def _leaders(topics: tuple[MetadataResponseTopic, ...], brokers: dict[int, Address]) -> dict[int, tuple[Address, int]]:
    """The leaders of the offsets topic's partitions; none where it does not exist yet, or may not be looked at."""
    leaders: dict[int, tuple[Address, int]] = {}
    for topic in topics:
        code = int(topic.error_code)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or code in _NOT_ALLOWED:
            continue
        if code:
            raise kafka_error(code, OFFSETS_TOPIC)
        for part in topic.partitions:
            leader = brokers.get(int(part.leader_id))
            if leader is None:
                raise CoordinatorNotAvailable(
                    "list of groups",
                    f"{OFFSETS_TOPIC}-{part.partition_index} has no leader, so its groups cannot be listed",
                    "are all brokers up?",
                )
            leaders[int(part.partition_index)] = (leader, int(part.leader_epoch))
    return leaders


async def _probe(client: Client, leader: Address, groups: list[str], deadline: float) -> None:
    """Raises a retriable error unless the broker is the coordinator of these groups and has loaded their partitions."""
    connection = await client.node(leader).connection(deadline)
    answer = await connection.call(requests.describe_groups(groups), DescribeGroupsResponse, remaining(deadline))
    for group in answer.groups:
        code = int(group.error_code)
        if code and code not in _NOT_ALLOWED:
            raise kafka_error(code, "list of groups")


@lru_cache(maxsize=4)
def probe_groups(partitions: int) -> list[str]:
    """A group id for every partition of an offsets topic of so many.

    Only ids with a hash that is not negative, for which all versions of Kafka's ``Utils.abs`` agree.
    """
    found: dict[int, str] = {}
    for number in itertools.count():
        if len(found) == partitions:
            return [found[partition] for partition in range(partitions)]
        name = f"offsetmgr-probe-{number}"
        hashed = java_hash(name)
        if hashed < 2**31:
            found.setdefault(hashed % partitions, name)
    raise AssertionError("counting has no end")


def java_hash(ascii_text: str) -> int:
    """Java's ``String.hashCode`` of ASCII text, as an unsigned number of 32 bits."""
    value = 0
    for byte in ascii_text.encode("ascii"):
        value = (31 * value + byte) & 0xFFFFFFFF
    return value
