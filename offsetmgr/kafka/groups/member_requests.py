"""Builds the requests of the group lock and of ordinary group members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and
OffsetDelete. Pure.

This module is separate from `requests`, because most commands only read offsets and need not import this module.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.batches import by_key
from offsetmgr.core.model import LOCK_PROTOCOL, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Committer
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Request
from offsetmgr.kafka.protocol.consumer_protocol import PROTOCOL_TYPE, encode_subscription

PROTOCOLS: Final = (LOCK_PROTOCOL, "range", "roundrobin", "cooperative-sticky", "sticky")
"""The assignment protocols in the JoinGroup request of the group lock: offsetmgr's own protocol and the usual protocols
of consumers. A consumer may join while the lock is held. If the consumer and the lock had no protocol in common, the
coordinator would reject the consumer with INCONSISTENT_GROUP_PROTOCOL. With a common protocol, the consumer waits until
the lock is released."""

CONSUMER_REBALANCE_MS: Final = 120_000
"""The rebalance timeout of a member of the consumer protocol: the time for which it may keep partitions that the
coordinator wants to assign to another member."""


@dataclass(frozen=True, slots=True)
class LockMembership:
    """The identity of a member in its requests to the coordinator."""

    group: str
    member_id: str
    generation: int
    instance_id: str | None = None

    @property
    def committer(self) -> Committer:
        """The member as the sender of a commit."""
        return Committer(self.generation, self.member_id, self.instance_id)

    def fields(self) -> dict[str, object]:
        """Returns the fields of a request that identify the member."""
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }


_LOCK_PROTOCOLS: Final = dict.fromkeys(PROTOCOLS, encode_subscription())


def offset_delete(group: str, partitions: Iterable[TopicPartition]) -> Request:
    topics = [
        {"name": topic, "partitions": [{"partition_index": number} for number in numbers]}
        for topic, numbers in by_key(partitions).items()
    ]
    return Request(ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": topics})


def join_lock(group: str, instance_id: str | None, session_timeout_ms: int) -> Request:
    """Returns the JoinGroup request of a group lock, with an empty subscription.

    If ``instance_id`` is None, the member is dynamic and uses version 3, because later versions need a second round
    trip for dynamic members (KIP-394). Static membership needs version 5 (KIP-345).
    """
    request = join_as(group, "", PROTOCOL_TYPE, _LOCK_PROTOCOLS, session_timeout_ms, session_timeout_ms, instance_id)
    return request if instance_id is not None else request._replace(version=3)


def evict(group: str, members: Iterable[tuple[str, str | None]]) -> Request:
    """Returns the LeaveGroup request that removes members (member id and instance id) from the group: the client's own
    member, or on brokers from 2.4 on any members."""
    leaving = [{"member_id": member_id, "group_instance_id": instance_id} for member_id, instance_id in members]
    return Request(ApiKey.LEAVE_GROUP, 3, {"group_id": group, "members": leaving})


def join_as(
    group: str,
    member_id: str,
    protocol_type: str,
    protocols: Mapping[str, bytes],
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    instance_id: str | None = None,
) -> Request:
    """Returns a JoinGroup request. ``member_id`` is empty in the first request of a member. ``protocols`` maps the name
    of each assignment protocol to the metadata of the member."""
    message = {
        "group_id": group,
        "session_timeout": session_timeout_ms,
        "rebalance_timeout": rebalance_timeout_ms,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": protocol_type,
        "protocols": [{"name": name, "metadata": data} for name, data in protocols.items()],
    }
    return Request(ApiKey.JOIN_GROUP, 5, message)


def sync_group(membership: LockMembership, assignments: Mapping[str, bytes]) -> Request:
    """Returns the SyncGroup request of a member. The leader sends the assignments of all members; a follower sends
    none."""
    assigned = [{"member_id": member, "assignment": data} for member, data in assignments.items()]
    return Request(ApiKey.SYNC_GROUP, 3, {**membership.fields(), "assignments": assigned})


def heartbeat(membership: LockMembership) -> Request:
    return Request(ApiKey.HEARTBEAT, 3, membership.fields())


def consumer_heartbeat(
    group: str, member_id: str, epoch: int, topics: Iterable[str], owned: Mapping[uuid.UUID, list[int]] | None
) -> Request:
    """Returns the heartbeat of a member of the consumer protocol (KIP-848). The epoch 0 joins the group, and -1 leaves
    it. ``owned`` are the partitions that the member owns, by the ids of their topics."""
    message = {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": epoch,
        "rebalance_timeout": CONSUMER_REBALANCE_MS,
        "subscribed_topic_names": sorted(topics),
        "topic_partitions": None
        if owned is None
        else [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in owned.items()],
    }
    return Request(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, message)


def commit_in_epoch(
    group: str, member_id: str, epoch: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> Request:
    """Returns the commit of a member of the consumer protocol, which the coordinator accepts from version 9 on."""
    topics: dict[str, list[dict[str, object]]] = {}
    for tp, new in offsets.items():
        part = {
            "partition_index": tp.partition,
            "committed_offset": new.offset,
            "committed_leader_epoch": -1 if new.leader_epoch is None else new.leader_epoch,
            "committed_metadata": new.metadata,
        }
        topics.setdefault(tp.topic, []).append(part)
    message = {
        "group_id": group,
        "generation_id_or_member_epoch": epoch,
        "member_id": member_id,
        "topics": [{"name": topic, "partitions": parts} for topic, parts in topics.items()],
    }
    return Request(ApiKey.OFFSET_COMMIT, 9, message)
