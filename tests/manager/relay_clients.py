"""Clients for tests of the relay: helpers for confluent-kafka, and `Member`, which sends single group requests."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, Producer
from running_relay import RunningRelay

from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol.frames import Address, Request

FIND_COORDINATOR, METADATA, DESCRIBE_CLUSTER, API_VERSIONS = 10, 3, 60, 18
COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 11, 12, 13, 14
NOT_COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING, FENCED = 16, 22, 25, 27, 82
NO_TOPICS = bytes(6) + b"\xff" * 4
"""An encoded subscription."""


def consumer(relay: RunningRelay, group: str, **config: Any) -> Consumer:
    settings = {"bootstrap.servers": relay.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    return Consumer({**settings, "enable.auto.commit": False, **config})


def produce(relay: RunningRelay, topic: str, partitions: int, each: int, **config: Any) -> None:
    producer = Producer({"bootstrap.servers": relay.bootstrap, "linger.ms": 0, **config})
    for number in range(each):
        for partition in range(partitions):
            producer.produce(topic, f"{partition}-{number}".encode(), partition=partition)
    assert producer.flush(30) == 0


def read(client: Consumer, count: int, seconds: float = 120) -> list[str]:
    values: list[str] = []
    deadline = time.monotonic() + seconds
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count} records after {seconds} s"
        for message in client.consume(count - len(values), 0.1):
            assert message.error() is None, message.error()
            values.append((message.value() or b"").decode())
    return values


def committed(relay: RunningRelay, group: str) -> dict[tuple[str, int], int]:
    """A group's offsets in the manager. Also checks that the real coordinator has received no commits."""
    assert relay.bypassed() == {}
    return relay.call(lambda: relay.kept.committed(group))


async def connect(relay: RunningRelay) -> BrokerConnection:
    return await BrokerConnection.open(Address("127.0.0.1", relay.port), Security(), 60)


NO_EXTRAS = {
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


class Member:
    """A group member on its own connection. Each request method returns the error code of the response."""

    def __init__(self, relay: RunningRelay, group: str, instance_id: str | None = None) -> None:
        self.relay = relay
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.connection: BrokerConnection

    async def open(self) -> Member:
        self.connection = await connect(self.relay)
        return self

    async def join(self) -> int:
        """Sends JoinGroup. In version 3 dynamic members need no second request (KIP-394)."""
        protocols = [{"name": "range", "metadata": NO_TOPICS}]
        message = {
            "group_id": self.group, "session_timeout": 60_000, "rebalance_timeout": 60_000, "protocol_type": "consumer",
            "member_id": self.member_id, "group_instance_id": self.instance_id, "protocols": protocols,
        }  # fmt: skip
        answer = await self.connection.call(Request(JOIN, 3 if self.instance_id is None else 5, message), 60)
        if answer["error_code"] == 0:
            self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        self.leads = answer["leader"] == answer["member_id"]
        return int(answer["error_code"])

    def _me(self) -> dict[str, Any]:
        return {
            "group_id": self.group, "generation_id": self.generation, "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }  # fmt: skip

    async def _code(self, key: int, message: dict[str, Any]) -> int:
        """The error code of the response in version 3."""
        return int((await self.connection.call(Request(key, 3, message), 60))["error_code"])

    async def sync(self) -> int:
        assignments = [{"member_id": self.member_id, "assignment": b""}] if self.leads else []
        return await self._code(SYNC, {**self._me(), "assignments": assignments})

    async def heartbeat(self) -> int:
        return await self._code(HEARTBEAT, self._me())

    async def leave(self) -> int:
        members = [{"member_id": self.member_id, "group_instance_id": self.instance_id}]
        return await self._code(LEAVE, {"group_id": self.group, "members": members})

    async def commit(self, offset: int = 1) -> int:
        part = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1,
                "committed_metadata": ""}  # fmt: skip
        message = {"generation_id_or_member_epoch": self.generation, **self._me(),
                   "topics": [{"name": "t", "partitions": [part]}]}  # fmt: skip
        answer = await self.connection.call(Request(COMMIT, 7, message), 60)
        return int(answer["topics"][0]["partitions"][0]["error_code"])


async def joined(relay: RunningRelay, group: str, instance_id: str | None = None) -> Member:
    """Joins and syncs the only member of a group."""
    member = await Member(relay, group, instance_id).open()
    assert (await member.join(), await member.sync()) == (0, 0)
    return member
