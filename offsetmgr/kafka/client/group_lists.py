"""Lists all groups of a cluster. If the list may be incomplete, raises an error instead.

A broker lists only the groups of those partitions of ``__consumer_offsets`` that it has loaded. While the coordinator
of a partition moves, neither the old nor the new coordinator lists the groups of the partition, and neither reports an
error (Kafka 3.9.1 listed only 100 of 300 groups). Therefore the client accepts a list only if two conditions are true.
First, every partition of ``__consumer_offsets`` has the same leader and leader epoch before and after the ListGroups
requests. Second, each leader describes one group of each of its partitions without an error. This shows that the leader
has loaded these partitions.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from offsetmgr.core.batches import by_key
from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import CoordinatorNotAvailable
from offsetmgr.core.java_hash import java_hash
from offsetmgr.kafka.client.client import Client, with_retries
from offsetmgr.kafka.client.deadline import remaining
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.releases import DESCRIBES_MEMBERS, LISTS_GROUPS
from offsetmgr.kafka.protocol.requests import OFFSETS_TOPIC
from offsetmgr.kafka.protocol.schema_codec import Message

_OFFSET_PROTOCOL_TYPES: Final = frozenset({"consumer", "streams", ""})
"""The protocol types of groups that commit offsets. Simple consumers have an empty type. The groups of Connect workers,
for example, commit no offsets."""
_NOT_ALLOWED: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED})
"""If the broker returns one of these codes, the client is not authorized for the check and skips the check."""


class _Layout(NamedTuple):
    """The brokers, and the leader and leader epoch of each partition of the offsets topic."""

    brokers: tuple[Address, ...]
    leaders: dict[int, tuple[Address, int]]


async def list_groups(client: Client, deadline: float) -> list[str]:
    """Returns the ids of all groups that may have offsets, in any state.

    Brokers before Kafka 0.10.1 list only groups that have members. Brokers of Kafka 0.8.2 list no groups. If the
    cluster has a broker of such a release, the client also reads the groups in the offsets topic.

    Raises `OffsetMgrError` if a broker does not respond, or if coordinators move until the deadline.
    """

    async def attempt() -> list[str]:
        _, brokers = await client.cluster(deadline)
        broker_versions = {
            at: known for at, known in (await client.broker_versions(brokers, deadline)).items() if known is not None
        }
        if client.offsets_topic is not None and not all(map(LISTS_GROUPS.supported_by, broker_versions.values())):
            active = [at for at, versions in broker_versions.items() if DESCRIBES_MEMBERS.supported_by(versions)]
            listed = await asyncio.gather(*(_list_of_broker(client, broker, deadline) for broker in active))
            return sorted({*itertools.chain.from_iterable(listed), *await client.offsets_topic().groups(deadline)})
        before = await _layout(client, deadline)
        listed = await asyncio.gather(*(_list_of_broker(client, broker, deadline) for broker in before.brokers))
        if before != await _layout(client, deadline):
            raise CoordinatorNotAvailable("list of groups", "coordinators moved during the request")
        return list(dict.fromkeys(itertools.chain.from_iterable(listed)))

    return await with_retries(client, attempt, deadline)


async def _list_of_broker(client: Client, broker: Address, deadline: float) -> list[str]:
    connection = await client.node(broker).connection(deadline)
    answer = await connection.call(requests.list_groups(), remaining(deadline))
    if answer["error_code"]:
        raise kafka_error(answer["error_code"], f"groups of broker {broker}")
    return [group["group_id"] for group in answer["groups"] if group["protocol_type"] in _OFFSET_PROTOCOL_TYPES]


async def _layout(client: Client, deadline: float) -> _Layout:
    """Returns the leaders of the offsets topic, after a check that each leader has loaded its partitions. Raises
    `OffsetMgrError`."""
    connection = await client.any_connection(deadline)
    answer = await connection.call(requests.metadata([OFFSETS_TOPIC]), remaining(deadline))
    brokers = requests.broker_addresses(answer)
    if not brokers:
        raise CoordinatorNotAvailable("list of groups", f"broker {connection.address} knows no brokers yet")
    leaders = _leaders(answer["topics"], brokers)
    led = by_key((leader, partition) for partition, (leader, _) in leaders.items())
    probes = probe_groups(len(leaders))
    await asyncio.gather(
        *(_probe(client, leader, [probes[p] for p in partitions], deadline) for leader, partitions in led.items())
    )
    return _Layout(tuple(brokers.values()), leaders)


def _leaders(topics: Sequence[Message], brokers: dict[int, Address]) -> dict[int, tuple[Address, int]]:
    """Returns the leader and leader epoch of each partition of the offsets topic. The result is empty if the topic does
    not exist or is not visible to this client."""
    leaders: dict[int, tuple[Address, int]] = {}
    for topic in topics:
        code = topic["error_code"]
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or code in _NOT_ALLOWED:
            continue
        if code:
            raise kafka_error(code, OFFSETS_TOPIC)
        for part in topic["partitions"]:
            leader = brokers.get(part["leader_id"])
            if leader is None:
                raise CoordinatorNotAvailable(
                    "list of groups",
                    f"{OFFSETS_TOPIC}-{part['partition_index']} has no leader, so its groups cannot be listed",
                    "check that all brokers are up",
                )
            leaders[part["partition_index"]] = (leader, part.get("leader_epoch", -1))
    return leaders


async def _probe(client: Client, leader: Address, groups: list[str], deadline: float) -> None:
    """Raises an error unless ``leader`` is the coordinator of all ``groups`` and has loaded their partitions of the
    offsets topic. The error is retriable if the coordinator is moving or loading."""
    connection = await client.node(leader).connection(deadline)
    answer = await connection.call(requests.describe_groups(groups), remaining(deadline))
    for group in answer["groups"]:
        code = group["error_code"]
        if code and code not in _NOT_ALLOWED:
            raise kafka_error(code, "list of groups")


@lru_cache(maxsize=4)
def probe_groups(partitions: int) -> list[str]:
    """Returns one group id for each partition of an offsets topic with this number of partitions.

    The function uses only ids whose hash is not negative, because Kafka's ``Utils.abs`` treats negative hashes
    differently in different releases.
    """
    found: dict[int, str] = {}
    for number in itertools.count():
        if len(found) == partitions:
            return [found[partition] for partition in range(partitions)]
        name = f"offsetmgr-probe-{number}"
        hashed = java_hash(name)
        if hashed >= 0:
            found.setdefault(hashed % partitions, name)
    raise AssertionError("counting has no end")
