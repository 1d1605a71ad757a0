"""Measures the clocks of brokers without a write: from DescribeQuorum (Kafka 3.3 and later, without ZooKeeper) and from
the timestamps in ``__consumer_offsets``."""

from __future__ import annotations

import asyncio
from typing import Final

from offsetmgr.core.clock import Clock, ClockDifference, best_difference
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.retry import Backoff, Retries
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.client.fetch import MAX_TIMESTAMP_VERSION, newest_timestamp
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, Request
from offsetmgr.kafka.protocol.requests import METADATA_OPTIONS, OFFSETS_TOPIC

QUORUM_SOURCE: Final = "DescribeQuorum"
NEWEST_RECORD_SOURCE: Final = "newest timestamp in __consumer_offsets"
NEW_RECORD_SOURCE: Final = "a commit during the check"
_WAIT_S: Final = 1.0
"""The time for which the check waits for a commit, whose timestamp is exact."""
_POLLS: Final = Backoff.fixed(0.05)


async def controller_clock(
    connection: BrokerConnection, clock: Clock, deadline: float
) -> tuple[int, ClockDifference] | None:
    """Returns the id of the controller and the difference of its clock. Returns None if the cluster uses ZooKeeper, the
    brokers are older than 3.3, or the client may not describe the cluster."""
    if not connection.supports(ApiKey.DESCRIBE_QUORUM, 1):
        return None
    topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    sent = clock.now_ms()
    answer = await connection.call(Request(ApiKey.DESCRIBE_QUORUM, 1, {"topics": [topic]}), remaining(deadline))
    received = clock.now_ms()
    if answer["error_code"] or not answer["topics"]:
        return None
    quorum = answer["topics"][0]["partitions"][0]
    # The leader reports its own present time as the time at which it was last caught up.
    now = next(
        (v["last_caught_up_timestamp"] for v in quorum["current_voters"] if v["replica_id"] == quorum["leader_id"]), -1
    )
    if quorum["error_code"] or now <= 0:
        return None
    return quorum["leader_id"], ClockDifference.measured(now, sent, received, QUORUM_SOURCE)


async def leader_clocks(
    client: Client, connection: BrokerConnection, clock: Clock, deadline: float, *, precise: bool = True
) -> dict[Address, ClockDifference]:
    """Returns the difference of the clock of each broker that leads partitions of ``__consumer_offsets``.

    The brokers (3.0 and later) report the newest timestamp, which a broker has written with its own clock. If a client
    commits within `_WAIT_S` seconds, the difference is measured; otherwise it is a lower bound. Without ``precise``,
    the function does not wait if this bound agrees with this machine's clock. Leaves out brokers that report no
    timestamp.
    """
    leaders = await _offsets_leaders(connection, deadline)
    found = await asyncio.gather(
        *(_leader_clock(client, at, numbers, clock, deadline, precise=precise) for at, numbers in leaders.items())
    )
    return {at: one for at, one in zip(leaders, found, strict=True) if one is not None}


async def _offsets_leaders(connection: BrokerConnection, deadline: float) -> dict[Address, list[TopicPartition]]:
    """Returns the partitions of ``__consumer_offsets`` by the address of their leader."""
    message = {"topics": [{"name": OFFSETS_TOPIC}], **METADATA_OPTIONS}
    answer = await connection.call(Request(ApiKey.METADATA, 8, message), remaining(deadline))
    brokers = {b["node_id"]: Address(b["host"], b["port"]) for b in answer["brokers"]}
    found: dict[Address, list[TopicPartition]] = {}
    for topic in answer["topics"]:
        for part in topic["partitions"]:
            if part["leader_id"] in brokers:
                found.setdefault(brokers[part["leader_id"]], []).append(
                    TopicPartition(OFFSETS_TOPIC, part["partition_index"])
                )
    return found


async def _leader_clock(
    client: Client, at: Address, partitions: list[TopicPartition], clock: Clock, deadline: float, *, precise: bool
) -> ClockDifference | None:
    """Reads the newest timestamp of a broker's partitions until it changes, at most for `_WAIT_S` seconds."""
    polls = Retries(min(deadline, asyncio.get_running_loop().time() + _WAIT_S), _POLLS)
    largest: int | None = None
    since_ms = 0  # when the broker was asked for the first time after it had written `largest`
    try:
        connection = await client.node(at).connection(deadline)
        if not connection.supports(ApiKey.LIST_OFFSETS, MAX_TIMESTAMP_VERSION):
            return None
        while True:
            sent_ms = clock.now_ms()
            # Brokers leave out a partition whose newest record is not replicated yet.
            newest = await newest_timestamp(connection, partitions, remaining(deadline))
            now_ms = clock.now_ms()
            if newest is not None and largest is not None and newest > largest:
                return ClockDifference.measured(newest, since_ms, now_ms, NEW_RECORD_SOURCE)
            if newest is not None and largest is None:
                largest, since_ms = newest, sent_ms
            bound = None if largest is None else ClockDifference.at_least(largest, now_ms, NEWEST_RECORD_SOURCE)
            if (bound is not None and bound.agrees and not precise) or not await polls.pause():
                return bound
    except OffsetMgrError:
        return None


async def cluster_clock(client: Client, clock: Clock, deadline: float) -> ClockDifference | None:
    """Returns the best known difference between the clocks of the brokers and of this machine. Returns None if no
    broker reports a time. Raises the errors of `Client.any_connection`."""
    connection = await client.any_connection(deadline)
    if (found := await controller_clock(connection, clock, deadline)) is not None:
        return found[1]
    return best_difference((await leader_clocks(client, connection, clock, deadline, precise=False)).values())
