"""The leaders of a topic's partitions, without offsetmgr's own search for them, and their epochs."""

from __future__ import annotations

import asyncio
import json

from kazoo_client import connected

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


def raise_epochs(zookeeper: str, *topics: str) -> None:
    """Raises the leader epochs of topics by ten. ``zookeeper`` is the connect string of their only broker, which
    becomes the controller again, and reads the epochs then."""
    with connected(zookeeper) as client:
        directories = [f"/brokers/topics/{topic}/partitions" for topic in topics]
        for path in (f"{one}/{number}/state" for one in directories for number in client.get_children(one)):
            state = json.loads(client.get(path)[0])
            state["leader_epoch"] += 10
            client.set(path, json.dumps(state).encode())
        client.delete("/controller")
