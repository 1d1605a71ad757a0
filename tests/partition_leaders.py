"""The leaders of a topic's partitions, without offsetmgr's own search for them."""

from __future__ import annotations

import asyncio

from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.protocol.frames import Address, Request

METADATA = 3


async def leaders(client: Client, topic: str, deadline: float) -> dict[int, Address]:
    """Returns the leader of each partition that has one. Raises `OffsetMgrError`."""
    connection = await client.any_connection(deadline)
    message = {
        "topics": [{"name": topic}],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    answer = await connection.call(Request(METADATA, 8, message), deadline - asyncio.get_running_loop().time())
    brokers = {one["node_id"]: Address(one["host"], one["port"]) for one in answer["brokers"]}
    (found,) = answer["topics"]
    return {
        part["partition_index"]: brokers[part["leader_id"]]
        for part in found["partitions"]
        if part["leader_id"] in brokers
    }
