"""Creates and checks the offsets topic on the brokers.

`offsetmgr.manager.log.topic` determines and checks the topic's settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final, TypeVar

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import OffsetMgrError, TimedOut
from offsetmgr.core.retry import Retries
from offsetmgr.kafka.client.client import Client, ClientThread, with_retries
from offsetmgr.kafka.client.connection import Security, attempt_deadline, remaining
from offsetmgr.kafka.client.topics import broker_setting, create_topic, describe_topic, topic_settings
from offsetmgr.manager.log.topic import (
    BROKER_TOPICS,
    TRANSACTIONS_TOPIC,
    ExistingTopic,
    OffsetsTopicState,
    UnsuitableTopic,
    durability_warnings,
    examine,
    replicas_for,
    settings_for,
)

T = TypeVar("T")

DEFAULT_TIMEOUT_S: Final = 30.0


def ensure_topic(
    bootstrap: str,
    properties: Mapping[str, str],
    topic: str,
    *,
    partitions: int = ManagerSettings.partitions,
    replication_factor: int | None = None,
    min_insync_replicas: int | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> OffsetsTopicState:
    """Creates the topic, or checks the existing one. Waits up to ``timeout_s`` seconds until every partition has a
    leader.

    ``properties`` are settings of librdkafka. Any number of managers may call this function at the same time. Raises
    `UnsuitableTopic`, `PartitionCountChanged`, `TooFewBrokers`, `TimedOut`, and errors of the brokers.
    """
    if topic in BROKER_TOPICS:
        raise UnsuitableTopic(f"topic {topic}", "it is an internal topic of the brokers", "choose another topic name")

    async def ensure(client: Client, deadline: float) -> OffsetsTopicState:
        async def create() -> None:
            brokers, broker_default = await _brokers(client, deadline, ask_default=replication_factor is None)
            replicas = replicas_for(topic, brokers, broker_default, replication_factor)
            settings = settings_for(replicas, min_insync_replicas)
            await create_topic(client, topic, partitions, replicas, settings, deadline)

        state = examine(topic, await _with_leaders(client, topic, create, timeout_s, deadline), partitions)
        try:
            transactions = await _find(client, TRANSACTIONS_TOPIC, deadline)
        except OffsetMgrError:  # the warnings are optional, and the principal may lack the authorization
            transactions = None
        more = () if transactions is None else durability_warnings(transactions, state)
        return replace(state, warnings=state.warnings + more)

    return _run(bootstrap, properties, timeout_s, ensure)


def check_topic(
    bootstrap: str, properties: Mapping[str, str], known: OffsetsTopicState, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> OffsetsTopicState:
    """Checks the topic of a running manager again.

    Raises `UnsuitableTopic` (also for a deleted topic), `TopicRecreated`, `PartitionCountChanged`, and retriable errors
    if no broker responds.
    """
    found = existing_topic(bootstrap, properties, known.name, timeout_s)
    return examine(known.name, found, known.partitions, known.topic_id)


def existing_topic(bootstrap: str, properties: Mapping[str, str], topic: str, timeout_s: float) -> ExistingTopic:
    """Returns a topic that existed before. Raises `UnsuitableTopic` if it was deleted, and errors of the brokers."""
    found = _run(bootstrap, properties, timeout_s, lambda client, deadline: _find(client, topic, deadline))
    if found is None:
        raise UnsuitableTopic(f"topic {topic}", "it was deleted", "stop the managers before anything else is lost")
    return found


def _run(
    bootstrap: str, properties: Mapping[str, str], timeout_s: float, call: Callable[[Client, float], Awaitable[T]]
) -> T:
    """Runs ``call`` with a client of its own, and waits for its result. All requests together end within about
    ``timeout_s`` seconds."""
    with closing(ClientThread(Client(bootstrap, Security.of(properties)), timeout_s)) as thread:
        return thread.run(lambda deadline: call(thread.client, deadline))


async def _find(client: Client, topic: str, deadline: float) -> ExistingTopic | None:
    """Returns the topic with its settings; None if it does not exist. Raises `OffsetMgrError`."""
    found = await describe_topic(client, topic, deadline)
    settings = None if found is None else await topic_settings(client, topic, deadline)
    if found is None or settings is None:
        return None
    return ExistingTopic(found.topic_id, found.partitions, found.replication_factor, found.leaderless, settings)


async def _with_leaders(
    client: Client, topic: str, create: Callable[[], Awaitable[None]], timeout_s: float, deadline: float
) -> ExistingTopic:
    """Returns the topic once every partition has a leader. Calls ``create`` if the topic does not exist, and again if
    the topic disappears because it was being deleted. Raises `TimedOut`."""
    retries = Retries(deadline)
    while True:
        found = await _find(client, topic, deadline)
        if found is None:
            await create()
            found = await _find(client, topic, deadline)
        if found is not None and not found.leaderless:
            return found
        if not await retries.pause():
            missing = "it does not exist" if found is None else f"{len(found.leaderless)} partitions have no leader"
            raise TimedOut(f"topic {topic}", f"{missing} after {timeout_s:g} s", "check that enough brokers are up")


async def _brokers(client: Client, deadline: float, *, ask_default: bool) -> tuple[int, int | None]:
    """Returns the number of live brokers, and ``offsets.topic.replication.factor`` of one of them; None if it is
    unreadable (for example without authorization), or if ``ask_default`` is False."""
    brokers = await client.brokers(deadline)
    if not brokers or not ask_default:
        return len(brokers), None

    async def ask(attempt: float) -> str | None:
        return await broker_setting(client, min(brokers), "offsets.topic.replication.factor", attempt)

    until = asyncio.get_running_loop().time() + remaining(deadline) / 2
    try:
        factor = await with_retries(client, lambda: ask(attempt_deadline(until)), until)
    except OffsetMgrError:
        factor = None
    return len(brokers), None if factor is None else int(factor)
