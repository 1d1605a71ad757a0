"""`inspect_group`: whether an edit can take over a running group, and for how long its partitions would pause."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import ErrorCode, OffsetMgrError, UnsupportedOperation, value_of
from offsetmgr.core.model import GroupDescription
from offsetmgr.core.offset_store import RunningGroup
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.client.groups import describe, no_consumers
from offsetmgr.kafka.client.topics import group_setting, reported_settings
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.kafka.protocol.releases import EVICTS_MEMBERS, ApiKey, Versions, release
from offsetmgr.kafka.protocol.requests import PROTOCOL_TYPE

_STREAMS_ASSIGNOR: Final = "stream"
_DEFAULT_HEARTBEAT_S: Final = 5.0
"""The default of ``group.consumer.heartbeat.interval.ms`` in seconds."""
_STOP: Final = Advice("stop its {}, then edit the group without {running}", "consumers")


async def inspect_group(client: Client, group: str, deadline: float) -> RunningGroup:
    """Describes a group before an edit. Raises `UnsupportedOperation` if an edit cannot be exact while its members
    run."""
    described = value_of((await describe(client, [group], deadline))[group])
    if described.state == "EMPTY" and not described.protocol_type:
        why = (
            "has commits, but the coordinator knows no members: its consumers have never joined, or use assign(), and"
            " could overwrite the edit"
        )
        raise UnsupportedOperation(f"group {group}", why, _STOP)
    if described.idle:
        return RunningGroup(0)
    members = len(described.members)

    async def inspect_at(coordinator: Address) -> RunningGroup:
        connection = await client.node(coordinator).connection(deadline)
        check_supported(described, connection.versions)
        if not await is_consumer_group(client, replace(described, coordinator=str(coordinator)), deadline):
            return RunningGroup(members)
        return RunningGroup(members, True, await _heartbeat_s(connection, group, deadline))

    return await client.for_group(group, inspect_at, deadline, Address.parse(described.coordinator))


def check_supported(described: GroupDescription, versions: Versions) -> None:
    """Raises `UnsupportedOperation` if the coordinator, which has these API versions, cannot remove members, or if the
    members are no plain consumers."""
    what = f"edit of the running group {described.group}"
    if not EVICTS_MEMBERS.supported_by(versions):
        why = f"needs brokers from Kafka 2.4 on, which remove members; its coordinator is of Kafka {release(versions)}"
        raise UnsupportedOperation(what, why, _STOP)
    if described.protocol_type != PROTOCOL_TYPE:
        raise UnsupportedOperation(what, no_consumers(described.protocol_type), Advice(_STOP.template, "members"))
    if described.partition_assignor.startswith(_STREAMS_ASSIGNOR):
        why = "its members are Kafka Streams applications, which keep state"
        raise UnsupportedOperation(what, why, "stop the application, then use kafka-streams-application-reset")


async def is_consumer_group(client: Client, described: GroupDescription, deadline: float) -> bool:
    """Returns whether the group uses the consumer protocol (KIP-848)."""
    connection = await client.node(Address.parse(described.coordinator)).connection(deadline)
    if ApiKey.CONSUMER_GROUP_DESCRIBE not in connection.versions:
        return False
    answer = await connection.call(requests.describe_kind([described.group]), remaining(deadline))
    return bool(answer["groups"][0]["error_code"] == ErrorCode.NONE)


async def _heartbeat_s(connection: BrokerConnection, group: str, deadline: float) -> float:
    """Returns the interval in which members of the consumer protocol send heartbeats: a setting of the group, or of the
    broker."""
    try:
        own = await group_setting(connection, group, "consumer.heartbeat.interval.ms", deadline)
        if own is None:
            metadata = await connection.call(requests.metadata(), remaining(deadline))
            brokers = {at: number for number, at in requests.broker_addresses(metadata).items()}
            name = "group.consumer.heartbeat.interval.ms"
            own = (await reported_settings(connection, brokers[connection.address], [name], deadline)).get(name)
    except (OffsetMgrError, KeyError):  # without the ACL DescribeConfigs
        return _DEFAULT_HEARTBEAT_S
    return int(own) / 1000 if own else _DEFAULT_HEARTBEAT_S
