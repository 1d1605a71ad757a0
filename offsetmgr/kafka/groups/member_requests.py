"""Builds the requests of the group lock and of ordinary group members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and
OffsetDelete. Pure.

This module is separate from `requests`, because most commands only read offsets and need not import this module.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Final

from kio.schema.heartbeat.v3.request import HeartbeatRequest
from kio.schema.join_group.v3.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.join_group.v5.request import JoinGroupRequest as StaticJoinGroupRequest
from kio.schema.join_group.v5.request import JoinGroupRequestProtocol as StaticJoinGroupRequestProtocol
from kio.schema.leave_group.v3.request import LeaveGroupRequest, MemberIdentity
from kio.schema.offset_delete.v0.request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kio.schema.sync_group.v3.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i32Timedelta

from offsetmgr.core.model import LOCK_PROTOCOL, TopicPartition
from offsetmgr.kafka.protocol.consumer_protocol import PROTOCOL_TYPE, encode_subscription
from offsetmgr.kafka.protocol.requests import by_topic

PROTOCOLS: Final = (LOCK_PROTOCOL, "range", "roundrobin", "cooperative-sticky", "sticky")
"""The assignment protocols in the JoinGroup request of the group lock: offsetmgr's own protocol and the usual protocols
of consumers. A consumer may join while the lock is held. If the consumer and the lock had no protocol in common, the
coordinator would reject the consumer with INCONSISTENT_GROUP_PROTOCOL. With a common protocol, the consumer waits until
the lock is released."""

_LOCK_PROTOCOLS: Final = dict.fromkeys(PROTOCOLS, encode_subscription())


def milliseconds(value: int) -> i32Timedelta:
    """Converts a duration in milliseconds into kio's type."""
    return i32Timedelta.parse(datetime.timedelta(milliseconds=value))


def offset_delete(group: str, partitions: Iterable[TopicPartition]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id=GroupId(group),
        topics=tuple(
            OffsetDeleteRequestTopic(
                name=TopicName(topic),
                partitions=tuple(OffsetDeleteRequestPartition(partition_index=i32(n)) for n in numbers),
            )
            for topic, numbers in by_topic(partitions).items()
        ),
    )


def join_lock(
    group: str, instance_id: str | None, session_timeout_ms: int
) -> JoinGroupRequest | StaticJoinGroupRequest:
    """Returns the JoinGroup request of a group lock, with an empty subscription.

    If ``instance_id`` is None, the member is dynamic and uses version 3, because later versions need a second round
    trip for dynamic members (KIP-394). Static membership needs version 5 (KIP-345).
    """
    if instance_id is not None:
        return join_as(group, "", PROTOCOL_TYPE, _LOCK_PROTOCOLS, session_timeout_ms, session_timeout_ms, instance_id)
    timeout = milliseconds(session_timeout_ms)
    return JoinGroupRequest(
        group_id=GroupId(group),
        session_timeout=timeout,
        rebalance_timeout=timeout,
        member_id="",
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple(JoinGroupRequestProtocol(name=n, metadata=data) for n, data in _LOCK_PROTOCOLS.items()),
    )


def heartbeat(group: str, generation: int, member_id: str, instance_id: str | None) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=GroupId(group), generation_id=i32(generation), member_id=member_id, group_instance_id=instance_id
    )


def leave_group(group: str, member_id: str, instance_id: str | None) -> LeaveGroupRequest:
    return LeaveGroupRequest(
        group_id=GroupId(group), members=(MemberIdentity(member_id=member_id, group_instance_id=instance_id),)
    )


def join_as(
    group: str,
    member_id: str,
    protocol_type: str,
    protocols: Mapping[str, bytes],
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    instance_id: str | None = None,
) -> StaticJoinGroupRequest:
    """Returns a JoinGroup request. ``member_id`` is empty in the first request of a member. ``protocols`` maps the name
    of each assignment protocol to the metadata of the member."""
    return StaticJoinGroupRequest(
        group_id=GroupId(group),
        session_timeout=milliseconds(session_timeout_ms),
        rebalance_timeout=milliseconds(rebalance_timeout_ms),
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=protocol_type,
        protocols=tuple(StaticJoinGroupRequestProtocol(name=n, metadata=data) for n, data in protocols.items()),
    )


def sync_group(
    group: str, generation: int, member_id: str, assignments: Mapping[str, bytes], instance_id: str | None = None
) -> SyncGroupRequest:
    """Returns the SyncGroup request of a member. The leader sends the assignments of all members; a follower sends
    none."""
    return SyncGroupRequest(
        group_id=GroupId(group),
        generation_id=i32(generation),
        member_id=member_id,
        group_instance_id=instance_id,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=member, assignment=data) for member, data in assignments.items()
        ),
    )
