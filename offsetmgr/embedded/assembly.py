"""`Assembly`: topic, membership of the managers' group and runtime put together, without a listener. On the loop."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from contextlib import AsyncExitStack
from typing import NamedTuple

from offsetmgr.config import ConnectionConfig
from offsetmgr.embedded.requests import Requests
from offsetmgr.errors import NotCoordinator, TimedOut
from offsetmgr.log.base import PartitionLog, slot_count, slot_of
from offsetmgr.log.topic import ensure_topic
from offsetmgr.manager.assignment import Parameters
from offsetmgr.manager.lease import boottime
from offsetmgr.manager.ownership import (
    PROTOCOL,
    PROTOCOL_TYPE,
    REBALANCE,
    RULES,
    SESSION,
    SlotOwnership,
    managers_group,
)
from offsetmgr.manager.runtime import ManagerConfig, ManagerRuntime
from offsetmgr.records.choose import record_format
from offsetmgr.wire.client import Client
from offsetmgr.wire.groupmember import GroupMember
from offsetmgr.wire.security import Security


class Settings(NamedTuple):
    """What a program says; ``timeout`` in seconds."""

    bootstrap: str
    connection: ConnectionConfig
    topic: str
    partitions: int
    record_format: str
    manager: ManagerConfig
    timeout: float


class Assembly:
    """Opened and closed once."""

    def __init__(self, settings: Settings) -> None:
        self.requests: Requests | None = None
        """Once it is open."""
        self._settings = settings
        self._open = AsyncExitStack()
        # Instead of an address, since nobody listens: what people recognise, and no other manager is called.
        self._name = f"embedded-{uuid.uuid4().hex[:6]}-in-process-{os.getpid()}-of-{socket.gethostname()}"

    async def open(self) -> None:
        """Raises `OffsetMgrError`; then, too, `close` has to be called."""
        settings = self._settings
        log = await asyncio.to_thread(self._open_log)
        self._open.callback(log.close)
        client = Client(settings.bootstrap, Security.of(settings.connection.kafka))
        self._open.push_async_callback(client.close)
        ownership = self._ownership(client, log.partitions)
        runtime = ManagerRuntime(log, record_format(settings.record_format), ownership, settings.manager)
        await runtime.start()
        self._open.push_async_callback(runtime.close)
        self._open.push_async_callback(ownership.stop)
        group = f"group {managers_group(settings.topic)}"
        try:
            async with asyncio.timeout(settings.timeout):
                await ownership.start(runtime)
        except TimeoutError:
            raise TimedOut(group, f"not joined within {settings.timeout:g} s") from None
        if ownership.refusal is not None:
            raise NotCoordinator(group, ownership.refusal)

        def elsewhere(group: str) -> str | None:
            slot = slot_of(runtime.partition_of(group), log.partitions)
            node = ownership.owner_of(slot)
            if node is None or node.host == self._name or slot in ownership.owned():
                return None
            return f"{node.host}:{node.port}" if node.port else node.host

        self.requests = Requests(runtime, elsewhere, settings.timeout)

    async def close(self) -> None:
        """Leaves the group, ends what is in flight, lets the connections go."""
        self.requests = None
        await self._open.aclose()

    def _open_log(self) -> PartitionLog:
        from offsetmgr.log.kafka import KafkaLog

        wanted, kafka = self._settings, self._settings.connection.kafka
        topic = ensure_topic(
            wanted.bootstrap, kafka, wanted.topic, partitions=wanted.partitions, timeout=wanted.timeout
        )
        most = topic.max_message_bytes
        return KafkaLog(wanted.bootstrap, topic.name, topic.partitions, properties=kafka, max_message_bytes=most)

    def _ownership(self, client: Client, partitions: int) -> SlotOwnership:
        settings = self._settings
        parameters = Parameters(
            settings.topic,
            partitions,
            slot_count(partitions),
            settings.record_format,
            RULES,
            settings.manager.limits.retention_ms,
            settings.manager.members is not None,
        )

        def member(events: SlotOwnership) -> GroupMember:
            return GroupMember(
                client,
                managers_group(settings.topic),
                events,
                protocol_type=PROTOCOL_TYPE,
                protocol=PROTOCOL,
                session=SESSION,
                rebalance=REBALANCE,
                clock=boottime,
            )

        return SlotOwnership(self._name, 0, parameters, member)
