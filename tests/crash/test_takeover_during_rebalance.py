"""`take_over` of a group whose rebalance is not complete: every request of its members is answered."""

import asyncio
import struct

import pytest
from conftest import MakeTopic

from offsetmgr.core.model import GroupDescription
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.groups.group_takeover import take_over
from offsetmgr.kafka.protocol.frames import Request
from offsetmgr.kafka.protocol.schema_codec import Message
from offsetmgr.sandbox import KafkaBroker, KraftBroker

pytestmark = pytest.mark.servers

TIMEOUT_S = 120.0
JOIN_GROUP, SYNC_GROUP = 11, 14
NO_PARTITIONS = struct.pack(">hii", 0, 0, -1)


class Member:
    """A member of the group that sends only the requests of the test, on a connection of its own."""

    def __init__(self, connection: BrokerConnection, group: str, topic: str) -> None:
        self.connection, self.group = connection, group
        self.id = ""
        subscription = struct.pack(f">hih{len(topic)}si", 0, 1, len(topic), topic.encode(), -1)
        self._protocols = [{"name": "range", "metadata": subscription}]

    async def join(self) -> Message:
        while True:
            message = {
                "group_id": self.group, "session_timeout": 300_000, "rebalance_timeout": 300_000, "member_id": self.id,
                "group_instance_id": None, "protocol_type": "consumer", "protocols": self._protocols,
            }  # fmt: skip
            answer = await self.connection.call(Request(JOIN_GROUP, 5, message), TIMEOUT_S)
            if not answer["error_code"]:
                return answer
            self.id = answer["member_id"]
            await asyncio.sleep(0.1)  # a new broker creates its offsets topic

    async def sync(self, generation: int, assigned: list[str]) -> int:
        assignments = [{"member_id": member, "assignment": NO_PARTITIONS} for member in assigned]
        member = {"group_id": self.group, "generation_id": generation, "member_id": self.id, "group_instance_id": None}
        request = Request(SYNC_GROUP, 3, {**member, "assignments": assignments})
        return int((await self.connection.call(request, TIMEOUT_S))["error_code"])


async def take_over_between_join_and_sync(bootstrap: str, group: str) -> int:
    """Takes the group over while the SyncGroup of a follower waits for the leader. Returns the code of the answer to
    the follower, which the broker must send long before the session and the rebalance time out."""
    client = Client(bootstrap, Security.of({}))
    now = asyncio.get_running_loop().time
    deadline = now() + TIMEOUT_S
    try:
        node = client.node(await client.coordinator(group, deadline))
        first, second = [Member(await node.open(deadline), group, group) for _ in range(2)]
        joined = await first.join()
        await first.sync(joined["generation_id"], [first.id])  # brokers 4.x describe a group from then on
        joining = asyncio.ensure_future(second.join())
        await asyncio.sleep(0.5)  # the second JoinGroup waits in the broker by then, which shows no sign of it
        while len((joined := await first.join())["members"]) == 1:
            pass  # the broker had not received the second JoinGroup
        followed = await joining
        leader, follower = (first, second) if joined["leader"] == first.id else (second, first)
        generation = followed["generation_id"]
        following = asyncio.ensure_future(follower.sync(generation, []))
        found = (await client.describe([group], deadline))[group]
        assert isinstance(found, GroupDescription)
        assert found.state == "COMPLETING_REBALANCE"

        async def edit() -> None:
            async with take_over(client, found, deadline) as takeover:
                assert len(takeover.evicted) == 2

        editing = asyncio.ensure_future(edit())
        await asyncio.sleep(1)  # the leader computes its assignment
        await leader.sync(generation, [leader.id, follower.id])
        code = await asyncio.wait_for(following, 90)
        await editing
        return code
    finally:
        await client.close()


@pytest.mark.parametrize("broker", ["kafka", "kraft"])
def test_a_waiting_sync_is_answered(broker: str, request, unique: str, make_topic: MakeTopic) -> None:
    server: KafkaBroker | KraftBroker = request.getfixturevalue(broker)
    group = make_topic(unique, 1, bootstrap=server.bootstrap)
    assert asyncio.run(take_over_between_join_and_sync(server.bootstrap, group)) == 0
