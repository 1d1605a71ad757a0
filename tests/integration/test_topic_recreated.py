"""A manager whose offsets topic is deleted and recreated on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.error_code import ErrorCode
from offsetmgr.manager.lease import MAX_LEASE_S
from offsetmgr.manager.log.kafka.topic_admin import ensure_topic
from offsetmgr.manager.node.manager_node import ManagerNode
from offsetmgr.manager.node.node_config import NodeConfig
from offsetmgr.manager.protocol_values import CommitRequest, CommitResponse, FetchRequest
from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers

PARTITIONS = 8
RETRIABLE = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}


@asynccontextmanager
async def serving(kafka: KafkaBroker, topic: str) -> AsyncIterator[ManagerNode]:
    settings = NodeConfig(
        kafka.bootstrap,
        ConnectionConfig(),
        topic=topic,
        partitions=PARTITIONS,
        topic_check_interval_s=0.1,
        timeout_s=90,
    )
    node = ManagerNode(settings, "127.0.0.1", 1)
    try:
        await node.open()
        await node.join(90)
        await until(lambda: {status.state for status in node.runtime.status()} == {"active"})
        yield node
    finally:
        await node.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not condition():
            await asyncio.sleep(0.01)


def commit(group: str, offset: int) -> CommitRequest:
    return CommitRequest(group, [("t", [(0, offset, -1, "")])])


def fetched(node: ManagerNode, group: str) -> tuple[int, int | None]:
    """The error code, and the offset if there is no error (-1 without a commit)."""
    response = node.runtime.fetch(FetchRequest(group, [("t", [0])]))
    return response.error, None if response.error else response.topics[0][1][0][1]


async def delete_topic(admin: AdminClient, topic: str) -> None:
    await asyncio.to_thread(admin.delete_topics([topic])[topic].result, 30)
    await until(lambda: topic not in admin.list_topics(timeout=60).topics)


async def create_topic_with_defaults(admin: AdminClient, topic: str) -> None:
    while True:
        try:
            await asyncio.to_thread(admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result, 30)
            return
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS  # the deletion is still in progress
            await asyncio.sleep(0.05)


def test_offsets_of_a_deleted_topic_are_no_longer_served_and_new_commits_are(kafka: KafkaBroker, unique: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    async def work() -> None:
        async with serving(kafka, unique) as node:
            assert await node.runtime.commit(commit("g", 5)) == CommitResponse()
            await delete_topic(admin, unique)
            # As the guide states, acknowledged offsets can be read and saved until the topic is recreated.
            await until(lambda: node.topic_fault is not None)
            assert fetched(node, "g") == (ErrorCode.NONE, 5)
            await asyncio.sleep(2 * MAX_LEASE_S)  # the lease is extended although its proof cannot be committed
            assert fetched(node, "g") == (ErrorCode.NONE, 5)
            await asyncio.to_thread(ensure_topic, kafka.bootstrap, {}, unique, partitions=PARTITIONS)
            responses = [fetched(node, "g")]
            while responses[-1] != (ErrorCode.NONE, -1):
                await asyncio.sleep(0.002)
                responses.append(fetched(node, "g"))
            stale = responses.count((ErrorCode.NONE, 5))
            assert responses[:stale] == [(ErrorCode.NONE, 5)] * stale  # the old offset never returns
            assert {error for error, _ in responses[stale:-1]} <= RETRIABLE
            await until(lambda: node.topic_fault is None)  # the next check clears the fault
            assert ["recreated" in alarm for alarm in node.alarms] == [True]
            await until(lambda: {status.state for status in node.runtime.status()} == {"active"})
            assert await node.runtime.commit(commit("g", 6)) == CommitResponse()
            assert fetched(node, "g") == (ErrorCode.NONE, 6)

    asyncio.run(asyncio.wait_for(work(), 600))


def test_an_unsuitable_new_topic_is_not_served_until_it_is_fixed(kafka: KafkaBroker, unique: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    async def work() -> None:
        async with serving(kafka, unique) as node:
            assert await node.runtime.commit(commit("g", 5)) == CommitResponse()
            await delete_topic(admin, unique)
            # With retention instead of compaction, as a broker creates topics by default.
            await create_topic_with_defaults(admin, unique)
            await until(lambda: fetched(node, "g")[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE)
            await until(lambda: "cleanup.policy is delete" in str(node.topic_fault))
            assert await node.runtime.commit(commit("g", 6)) == CommitResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            set_topic(admin, unique, "cleanup.policy", "compact")
            await until(lambda: "message.timestamp.type is CreateTime" in str(node.topic_fault))
            set_topic(admin, unique, "message.timestamp.type", "LogAppendTime")
            await until(lambda: fetched(node, "g") == (ErrorCode.NONE, -1))
            await until(lambda: node.topic_fault is None)

    asyncio.run(asyncio.wait_for(work(), 600))


def set_topic(admin: AdminClient, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(90)
