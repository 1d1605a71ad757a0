"""`ManagerNode`: opened it follows the log, joined it owns its share of the shard groups, closed it has handed them
over.

Order of the start: the topic is there, fit, and of our record format; standbys follow the log; only then the managers'
group is joined, so that who is given shard groups has little to read. Order of the end: the group is left (others have
the shard groups at once), commits in flight end, connections go.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from offsetmgr.core.errors import NotCoordinator, OffsetMgrError, TimedOut
from offsetmgr.core.model import GroupDescription
from offsetmgr.manager.assignment import NodeAddress, SharedConfig
from offsetmgr.manager.lease import boottime
from offsetmgr.manager.log.base import slot_count
from offsetmgr.manager.node.node_config import NodeConfig
from offsetmgr.manager.node.topic_monitor import OffsetsTopicMonitor
from offsetmgr.manager.ownership import PROTOCOL, PROTOCOL_TYPE, RULES, ManagerMember, OwnershipManager, managers_group
from offsetmgr.manager.runtime.manager import ManagerRuntime

if TYPE_CHECKING:
    from offsetmgr.kafka.client.client import Client
    from offsetmgr.manager.log.topic import OffsetsTopicState

_log = logging.getLogger(__name__)

_CATCH_UP: Final = 30.0
"""Seconds that a manager reads the log before it joins others all the same."""
_ASK_OTHERS: Final = 2.0
_LOOK: Final = 0.05


class ManagerNode:
    """Of one process, at the address ``host`` and ``port`` (0: nobody listens, and ``host`` is only a name).

    Everything belongs to one event loop.  `topic`, `runtime` and `ownership` are there once it is open.
    """

    def __init__(self, settings: NodeConfig, host: str, port: int) -> None:
        self.settings = settings
        self.group: Final = managers_group(settings.topic)
        """By which the managers of this topic share its shard groups."""
        self.topic: OffsetsTopicState
        self.runtime: ManagerRuntime
        self.ownership: OwnershipManager
        self._address = (host, port)
        self._open = AsyncExitStack()
        self._watch: OffsetsTopicMonitor | None = None
        self._client: Client

    async def open(self) -> None:
        """Makes or examines the topic, and begins to follow its log; owns nothing yet. Raises `OffsetMgrError`
        (`UnsuitableTopic`, `FormatMismatch`, ...); then, too, `close` has to be called."""
        from offsetmgr.kafka.client.client import Client
        from offsetmgr.kafka.client.security import Security
        from offsetmgr.manager.log.format_check import check_format
        from offsetmgr.manager.log.kafka import KafkaLog
        from offsetmgr.manager.log.kafka.topic_admin import check_topic, ensure_topic
        from offsetmgr.records.registry import record_format

        settings, kafka = self.settings, self.settings.connection.kafka
        form = record_format(settings.record_format)
        topic = self.topic = await asyncio.to_thread(
            ensure_topic,
            settings.bootstrap,
            kafka,
            settings.topic,
            partitions=settings.partitions,
            replication_factor=settings.replication_factor,
            min_insync_replicas=settings.min_insync_replicas,
            timeout=settings.timeout,
        )
        for warning in topic.warnings:
            _log.warning("the offsets topic is unusual", extra={"topic": topic.name, "why": warning})
        log = KafkaLog(
            settings.bootstrap,
            topic.name,
            topic.partitions,
            properties=kafka,
            max_message_bytes=topic.max_message_bytes,
            group=self.group,
        )
        self._open.callback(log.close)
        await asyncio.to_thread(check_format, log, settings.record_format, topic.name, settings.timeout)
        self._client = Client(settings.bootstrap, Security.of(kafka))
        self._open.push_async_callback(self._client.close)
        self.ownership = self._make_ownership(topic)
        self.runtime = ManagerRuntime(log, form, self.ownership, settings.manager)
        await self.runtime.start()
        self._open.push_async_callback(self.runtime.close)
        self._open.push_async_callback(self.ownership.stop)
        check = partial(check_topic, settings.bootstrap, kafka, timeout=settings.timeout)
        self._watch = OffsetsTopicMonitor(topic, check, self.runtime.note_generation, settings.watch_interval)
        self._watch.start()
        self._open.push_async_callback(self._watch.close)

    async def join(self, timeout: float | None = None) -> NodeAddress:
        """Joins the managers' group, once the log is read if others serve meanwhile; gives what the group knows this
        process as.

        ``timeout`` in seconds, None: however long the coordinator is away. Raises `TimedOut`, `NotCoordinator` where
        the others leave this one out, and what the coordinator refuses.
        """
        what = f"group {self.group}"
        try:
            async with asyncio.timeout(timeout):
                await self._catch_up(_CATCH_UP if timeout is None else min(_CATCH_UP, timeout / 2))
                await self.ownership.start(self.runtime)
        except TimeoutError:
            raise TimedOut(what, f"not joined within {timeout:g} s") from None
        for node in self.ownership.nodes():
            if (node.host, node.port) == self._address:
                return node
        why = self.ownership.refusal or "it does not know this manager"
        raise NotCoordinator(what, why, "give it the options that the others have")

    async def close(self) -> None:
        """Leaves the group, ends what is in flight, lets the connections go. In whatever state it is."""
        await self._open.aclose()

    @property
    def unfit(self) -> str | None:
        """Why the topic cannot be used as it is now; None where it can, as far as could be seen."""
        return None if self._watch is None else self._watch.alarm

    @property
    def alarms(self) -> list[str]:
        """What somebody should look after, in words for people."""
        if self._watch is None:
            return []
        left_out = self.ownership.refusal and f"the other managers leave this one out: {self.ownership.refusal}"
        return [alarm for alarm in (left_out, self._watch.loss, self._watch.alarm) if alarm]

    def _make_ownership(self, topic: OffsetsTopicState) -> OwnershipManager:
        from offsetmgr.kafka.groups.group_member import KafkaGroupMember

        settings = self.settings

        def member(events: OwnershipManager) -> ManagerMember:
            return KafkaGroupMember(
                self._client,
                self.group,
                events,
                protocol_type=PROTOCOL_TYPE,
                protocol=PROTOCOL,
                session=settings.session,
                rebalance=settings.rebalance,
                clock=boottime,
            )

        parameters = SharedConfig(
            topic.name,
            topic.partitions,
            slot_count(topic.partitions),
            settings.record_format,
            RULES,
            settings.manager.limits.retention_ms,
            settings.manager.members is not None,
        )
        return OwnershipManager(
            *self._address, parameters, member, session=settings.session, rebalance=settings.rebalance
        )

    async def _catch_up(self, most: float) -> None:
        """Waits until the log was read, if other managers serve meanwhile: who joined before would be given shard
        groups, and their clients would wait for it to load them. ``most`` in seconds."""
        if self.runtime.caught_up:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + most
        try:
            found = (await self._client.describe([self.group], loop.time() + min(_ASK_OTHERS, most)))[self.group]
        except OffsetMgrError:
            return
        if not isinstance(found, GroupDescription) or not found.members:
            return
        if not self.runtime.caught_up:
            _log.info("reading the log before asking for shards", extra={"managers": len(found.members)})
        while not self.runtime.caught_up and loop.time() < until:
            await asyncio.sleep(_LOOK)
