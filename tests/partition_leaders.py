"""The leaders of a topic's partitions, without offsetmgr's own search for them, and their epochs."""

from __future__ import annotations

import asyncio
import json

from kazoo_client import connected
from processes import until

from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.schema_codec import Message

METADATA = 3


async def leaders(client: Client, topic: str, deadline: float) -> dict[int, Address]:
    """Returns the leader of each partition that has one. Raises `OffsetMgrError`."""
    answer = await _metadata(client, topic, deadline)
    brokers = {one["node_id"]: Address(one["host"], one["port"]) for one in answer["brokers"]}
    return {
        part["partition_index"]: brokers[part["leader_id"]]
        for part in answer["topics"][0]["partitions"]
        if part["leader_id"] in brokers
    }


async def _metadata(client: Client, topic: str, deadline: float) -> Message:
    connection = await client.any_connection(deadline)
    message = {
        "topics": [{"name": topic}],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    return await connection.call(Request(METADATA, 8, message), deadline - asyncio.get_running_loop().time())


async def _least_epoch(bootstrap: str, topic: str) -> int:
    client = Client(bootstrap, Security())
    try:
        (found,) = (await _metadata(client, topic, asyncio.get_running_loop().time() + 60))["topics"]
        return min(part["leader_epoch"] for part in found["partitions"])
    finally:
        await client.close()


def raise_epochs(zookeeper: str, bootstrap: str, *topics: str) -> None:
    """Raises the leader epochs of topics by ten. ``zookeeper`` is the connect string of their only broker, which
    becomes the controller again, and reads the epochs then."""
    with connected(zookeeper) as client:
        directories = [f"/brokers/topics/{topic}/partitions" for topic in topics]
        for path in (f"{one}/{number}/state" for one in directories for number in client.get_children(one)):
            state = json.loads(client.get(path)[0])
            state["leader_epoch"] += 10
            client.set(path, json.dumps(state).encode())
        client.delete("/controller")
    until(lambda: min(asyncio.run(_least_epoch(bootstrap, topic)) for topic in topics) >= 10)
