"""An offsets topic that is deleted and recreated on a real broker, under the manager that serves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.error_code import ErrorCode
from offsetmgr.manager.log.kafka.topic_admin import ensure_topic
from offsetmgr.manager.node.manager_node import ManagerNode
from offsetmgr.manager.node.node_config import NodeConfig
from offsetmgr.manager.protocol_values import CommitRequest, CommitResponse, FetchRequest
from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers

PARTITIONS = 8
NO_ANSWER = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}


@asynccontextmanager
async def serving(kafka: KafkaBroker, topic: str) -> AsyncIterator[ManagerNode]:
    settings = NodeConfig(
        kafka.bootstrap,
        ConnectionConfig(),
        topic=topic,
        partitions=PARTITIONS,
        topic_check_interval_s=0.1,
        timeout_s=20,
    )
    managing = ManagerNode(settings, "127.0.0.1", 1)
    try:
        await managing.open()
        await managing.join(30)
        await until(lambda: {status.state for status in managing.runtime.status()} == {"active"})
        yield managing
    finally:
        await managing.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.01)


def commit(group: str, offset: int) -> CommitRequest:
    return CommitRequest(group, [("t", [(0, offset, -1, "")])])


def answer(managing: ManagerNode, group: str) -> tuple[int, int | None]:
    """The error, and the offset where there is none (-1: none is committed)."""
    response = managing.runtime.fetch(FetchRequest(group, [("t", [0])]))
    return response.error, None if response.error else response.topics[0][1][0][1]


async def deleted(admin: AdminClient, topic: str) -> None:
    await asyncio.to_thread(admin.delete_topics([topic])[topic].result, 30)
    await until(lambda: topic not in admin.list_topics(timeout=10).topics)


async def made_by_default(admin: AdminClient, topic: str) -> None:
    while True:
        try:
            await asyncio.to_thread(admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result, 30)
            return
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS  # what was deleted is still on its way out
            await asyncio.sleep(0.05)


def test_its_offsets_are_served_no_longer_and_those_of_the_new_one_are(kafka: KafkaBroker, unique: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    async def work() -> None:
        async with serving(kafka, unique) as managing:
            assert await managing.runtime.commit(commit("g", 5)) == CommitResponse()
            await deleted(admin, unique)
            # As the guide says: while there is no other one, what was acknowledged can still be read, and be saved.
            await until(lambda: managing.topic_fault is not None)
            assert answer(managing, "g") == (ErrorCode.NONE, 5)
            await asyncio.to_thread(ensure_topic, kafka.bootstrap, {}, unique, partitions=PARTITIONS)
            answers = [answer(managing, "g")]
            while answers[-1] != (ErrorCode.NONE, -1):
                await asyncio.sleep(0.002)
                answers.append(answer(managing, "g"))
            stale = answers.count((ErrorCode.NONE, 5))
            assert answers[:stale] == [(ErrorCode.NONE, 5)] * stale  # once it has stopped it never comes back
            assert {error for error, _ in answers[stale:-1]} <= NO_ANSWER
            await until(lambda: managing.topic_fault is None)  # which the next look tells
            assert ["recreated" in alarm for alarm in managing.alarms] == [True]
            await until(lambda: {status.state for status in managing.runtime.status()} == {"active"})
            assert await managing.runtime.commit(commit("g", 6)) == CommitResponse()
            assert answer(managing, "g") == (ErrorCode.NONE, 6)

    asyncio.run(asyncio.wait_for(work(), 120))


def test_one_that_is_not_fit_is_not_served_until_it_is(kafka: KafkaBroker, unique: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    async def work() -> None:
        async with serving(kafka, unique) as managing:
            assert await managing.runtime.commit(commit("g", 5)) == CommitResponse()
            await deleted(admin, unique)
            # With retention instead of compaction, as a broker would make it by itself.
            await made_by_default(admin, unique)
            await until(lambda: answer(managing, "g")[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE)
            await until(lambda: "cleanup.policy is delete" in str(managing.topic_fault))
            assert await managing.runtime.commit(commit("g", 6)) == CommitResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, unique, incremental_configs=[entry])
            admin.incremental_alter_configs([resource])[resource].result(30)
            await until(lambda: answer(managing, "g") == (ErrorCode.NONE, -1))
            await until(lambda: managing.topic_fault is None)

    asyncio.run(asyncio.wait_for(work(), 120))
