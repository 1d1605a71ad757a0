"""`ManagerNode`: the lifecycle of one manager. `open` starts to follow the log, `join` lets the node own its part of
the shard groups, and `close` revokes these shard groups.

At the start the node checks the brokers, creates or checks the topic, checks the record format, and lets standbys
follow the log. The node joins the managers' group after these steps, so that the node has to read only the end of the
log when shard groups are assigned to it. At the end the node completes the commits in flight, leaves the group and
closes the connections. Because it leaves the group, other managers own the shard groups at once.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from offsetmgr.config.manager_settings import ManagerSettings, Members
from offsetmgr.core.errors import NotCoordinator, OffsetMgrError, TimedOut
from offsetmgr.core.model import GroupDescription, TopicPartition
from offsetmgr.manager.assignment import NodeAddress, SharedConfig
from offsetmgr.manager.group_secret import GroupSecret, load_group_secret
from offsetmgr.manager.lease import boottime
from offsetmgr.manager.log.base import shard_group_count
from offsetmgr.manager.log.topic import CLEANUP_POLICY, TIMESTAMP_TYPE
from offsetmgr.manager.node.peer_monitor import PeerMonitor
from offsetmgr.manager.node.topic_monitor import OffsetsTopicMonitor
from offsetmgr.manager.ownership import (
    ASSIGNMENT_RULES,
    PROTOCOL,
    PROTOCOL_TYPE,
    REBALANCE_TIMEOUT_S,
    OwnershipManager,
    managers_group,
)
from offsetmgr.manager.runtime.manager import ManagerRuntime

if TYPE_CHECKING:
    from offsetmgr.kafka.client.client import Client
    from offsetmgr.manager.log.topic import FenceSettings, OffsetsTopicState

_log = logging.getLogger(__name__)

_CATCH_UP_TIMEOUT_S: Final = 30.0
"""The longest time for which a node reads the log before it joins other managers."""
_DESCRIBE_TIMEOUT_S: Final = 2.0
_CATCH_UP_CHECK_S: Final = 0.05


class ManagerNode:
    """The manager of one process, with the address ``host`` and ``port`` for clients. If ``port`` is 0, the node has no
    listener and ``host`` is only a name. A relay gives ``members``; the default is that of the settings (see
    `ManagerRuntime`).

    Use it within one event loop. `open` sets `fence`, `topic`, `runtime` and `ownership`.
    """

    def __init__(self, settings: ManagerSettings, host: str, port: int, *, members: Members | None = None) -> None:
        self.settings = settings
        self.group: Final = managers_group(settings.offsets_topic)
        """The group through which the managers of this topic divide the topic's shard groups among themselves."""
        self.fence: FenceSettings
        self.topic: OffsetsTopicState
        self.runtime: ManagerRuntime
        self.ownership: OwnershipManager
        self._address = (host, port)
        self._members = members or settings.members
        self._resources = AsyncExitStack()
        self._topic_monitor: OffsetsTopicMonitor | None = None
        self._peers = PeerMonitor(self._remove)
        self._client: Client

    async def open(self, secret: GroupSecret | None = None) -> None:
        """Checks the brokers, creates or checks the topic, and starts to follow its log. The node owns nothing yet.
        Without ``secret``, loads the managers' secret. Raises `OffsetMgrError` (`UnsuitableBroker`, `UnsuitableTopic`,
        `FormatMismatch`, ...); the caller must call `close` even after an error."""
        from offsetmgr.kafka.client.client import Client
        from offsetmgr.kafka.client.connection import Security
        from offsetmgr.manager.log.format_check import check_format
        from offsetmgr.manager.log.kafka import KafkaLog
        from offsetmgr.manager.log.kafka.broker_checks import check_brokers
        from offsetmgr.manager.log.kafka.topic_admin import check_topic
        from offsetmgr.records.registry import record_format

        settings, kafka = self.settings, self.settings.connection.kafka
        secret = secret or load_group_secret(self.group, settings.managers_secret)
        format_ = record_format(settings.record_format)
        self._client = Client(settings.bootstrap, Security.of(kafka))
        self._resources.push_async_callback(self._client.close)
        deadline = asyncio.get_running_loop().time() + settings.timeout_s
        self.fence = await check_brokers(self._client, deadline, min_expiration_s=settings.min_expiration_s)
        topic = self.topic = await self._ensure_topic()
        log = KafkaLog(
            settings.bootstrap,
            topic.name,
            topic.partitions,
            properties=kafka,
            max_message_bytes=topic.max_message_bytes,
            client=self._client,
            manager="{}:{}".format(*self._address),
        )
        self._resources.callback(log.close)
        await asyncio.to_thread(check_format, log, settings.record_format, topic.name, settings.timeout_s)
        self.ownership = self._make_ownership(topic, secret)
        self._resources.push_async_callback(self._peers.close)
        refresh_s = min(settings.claim_refresh_s, self.fence.refresh_interval_s)
        self.runtime = ManagerRuntime(
            log, format_, self.ownership, replace(settings, claim_refresh_s=refresh_s), self._members
        )
        await self.runtime.start()
        self._resources.push_async_callback(self.runtime.close)
        self._resources.push_async_callback(self.ownership.stop)
        check = partial(check_topic, settings.bootstrap, kafka, timeout_s=settings.timeout_s)
        self._topic_monitor = OffsetsTopicMonitor(
            topic, check, self.runtime.note_generation, self.runtime.check_starts, settings.topic_check_interval_s
        )
        self._topic_monitor.start()
        self._resources.push_async_callback(self._topic_monitor.close)

    async def join(self, timeout_s: float | None = None) -> NodeAddress:
        """Joins the managers' group and returns the address of this node in it. If other managers serve the groups, the
        node reads the log before it joins.

        ``timeout_s`` is in seconds. If it is None, the call waits for as long as the coordinator is unavailable. Raises
        `TimedOut`, `NotCoordinator` if the other managers exclude this manager, and errors of the coordinator.
        """
        what = f"group {self.group}"
        try:
            async with asyncio.timeout(timeout_s):
                await self._catch_up(
                    _CATCH_UP_TIMEOUT_S if timeout_s is None else min(_CATCH_UP_TIMEOUT_S, timeout_s / 2)
                )
                await self.ownership.start(self.runtime)
        except OffsetMgrError:
            raise
        except TimeoutError:
            raise TimedOut(what, f"not joined within {timeout_s:g} s") from None
        for node in self.ownership.nodes():
            if (node.host, node.port) == self._address:
                return node
        why = self.ownership.exclusion_reason or "the group's assignment does not include this manager"
        hint = "start it with the options and the secrets file of the other managers, or remove a foreign member"
        raise NotCoordinator(what, why, hint)

    async def close(self) -> None:
        """Completes the commits in flight, leaves the group and closes the connections. The method may be called in
        every state."""
        await self._resources.aclose()

    @property
    def topic_fault(self) -> str | None:
        """Why the topic cannot be used now; None if the last check found no fault."""
        return None if self._topic_monitor is None else self._topic_monitor.alarm

    @property
    def alarms(self) -> list[str]:
        """The conditions that an operator must fix, as text."""
        if self._topic_monitor is None:
            return []
        excluded = self.ownership.exclusion_reason
        unproven = [text for text in self.ownership.secret.unproven if text not in (excluded or "")]
        found = (excluded, *unproven, self._topic_monitor.recreated, self._topic_monitor.alarm)
        return [*filter(None, found), *(f"topic {self.topic.name}: {alarm}" for alarm in self.runtime.alarms)]

    async def _ensure_topic(self) -> OffsetsTopicState:
        """Creates or checks the topic, and logs the result of the checks of the topic and the brokers."""
        from offsetmgr.manager.log.kafka.topic_admin import ensure_topic

        settings = self.settings
        topic = await asyncio.to_thread(
            ensure_topic,
            settings.bootstrap,
            settings.connection.kafka,
            settings.offsets_topic,
            partitions=settings.partitions,
            replication_factor=settings.replication_factor,
            min_insync_replicas=settings.min_insync_replicas,
            timeout_s=settings.timeout_s,
        )
        for warning in topic.warnings:
            _log.warning(
                "the offsets topic has a setting that may do harm", extra={"topic": topic.name, "why": warning}
            )
        checked = {
            "topic": topic.name,
            "cleanup_policy": CLEANUP_POLICY,
            "timestamps": TIMESTAMP_TYPE,
            "replicas": topic.replication_factor,
            "min_insync_replicas": topic.min_insync_replicas,
            "brokers": ", ".join(self.fence.brokers),
            "expiration_s": self.fence.expiration_s,
            "max_idle_s": self.fence.max_idle_s,
            "refresh_interval_s": self.fence.refresh_interval_s,
        }
        _log.info("checked the offsets topic and the brokers", extra=checked)
        return topic

    async def _remove(self, member_id: str) -> None:
        await self.ownership.remove(member_id)

    def _make_ownership(self, topic: OffsetsTopicState, secret: GroupSecret) -> OwnershipManager:
        from offsetmgr.kafka.groups.group_member import GroupMemberConfig, KafkaGroupMember

        settings = self.settings
        rebalance_timeout_s = max(REBALANCE_TIMEOUT_S, 2 * settings.session_timeout_s)
        config = GroupMemberConfig(
            self.group,
            PROTOCOL_TYPE,
            PROTOCOL,
            settings.session_timeout_s,
            rebalance_timeout_s,
            proof=TopicPartition(topic.name, 0),
        )

        parameters = shared_config(settings, topic.name, topic.partitions, relay=self._members is not None)
        return OwnershipManager(
            *self._address,
            parameters,
            lambda events: KafkaGroupMember(self._client, config, events, clock=boottime),
            on_peers=self._peers.update,
            rebalance_timeout_s=rebalance_timeout_s,
            secret=secret,
        )

    async def _catch_up(self, max_wait_s: float) -> None:
        """If other managers serve the groups, waits until this node has read the log, but at most ``max_wait_s``
        seconds. If the node did not wait, clients would have to wait after the join until the node has loaded its shard
        groups."""
        if self.runtime.caught_up:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max_wait_s
        try:
            described = await self._client.describe([self.group], loop.time() + min(_DESCRIBE_TIMEOUT_S, max_wait_s))
        except OffsetMgrError:
            return
        found = described[self.group]
        if not isinstance(found, GroupDescription) or not found.members:
            return
        if not self.runtime.caught_up:
            _log.info("reading the log before joining the managers' group", extra={"managers": len(found.members)})
        while not self.runtime.caught_up and loop.time() < deadline:
            await asyncio.sleep(_CATCH_UP_CHECK_S)


def shared_config(settings: ManagerSettings, topic: str, partitions: int, *, relay: bool) -> SharedConfig:
    """Returns the settings that the managers of a topic compare."""
    return SharedConfig(
        topic,
        partitions,
        shard_group_count(partitions),
        settings.record_format,
        ASSIGNMENT_RULES,
        settings.retention_ms,
        relay,
    )
