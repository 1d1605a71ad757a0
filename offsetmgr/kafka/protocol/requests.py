"""Builds the requests of the Kafka client, and converts responses into values of `offsetmgr.core.model`. Pure.

The module builds each request in one version only, the lowest version that has all needed fields. Brokers from 3.0 to
4.x support these versions: 3.0 introduced requests for many groups (FindCoordinator v4 and OffsetFetch v8, KIP-699 and
KIP-709), and 4.0 removed only older versions (KIP-896). For brokers before 3.0, `old_versions` translates the requests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_describe.v0.response import DescribedGroup as NewDescribedGroup
from kio.schema.delete_groups.v1.request import DeleteGroupsRequest
from kio.schema.describe_groups.v4.request import DescribeGroupsRequest
from kio.schema.describe_groups.v4.response import DescribedGroup
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.list_groups.v4.request import ListGroupsRequest
from kio.schema.metadata.v8.request import MetadataRequest, MetadataRequestTopic
from kio.schema.offset_fetch.v8.request import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kio.schema.offset_fetch.v8.response import OffsetFetchResponseGroup
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import (
    Committed,
    GroupDescription,
    GroupMember,
    OffsetAndMetadata,
    TopicPartition,
    is_deleted,
)
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import EncodedRequest
from offsetmgr.kafka.protocol.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from offsetmgr.kafka.protocol.errors import kafka_error

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""The topic in which brokers store committed offsets."""

OFFSET_COMMIT: Final = (ApiKey.OFFSET_COMMIT, 7)

MANAGER_API_VERSIONS: Final[Mapping[int, tuple[str, int]]] = {
    ApiKey.METADATA: ("Metadata", 8),
    ApiKey.OFFSET_FETCH: ("OffsetFetch", 8),
    ApiKey.OFFSET_COMMIT: ("OffsetCommit", 7),
    ApiKey.FIND_COORDINATOR: ("FindCoordinator", 4),
    ApiKey.DESCRIBE_GROUPS: ("DescribeGroups", 4),
    ApiKey.LIST_GROUPS: ("ListGroups", 4),
    ApiKey.DELETE_GROUPS: ("DeleteGroups", 1),
    ApiKey.OFFSET_DELETE: ("OffsetDelete", 0),
}
"""The name and version of each API that an offset manager must support, by API key."""

_PARTITION: Final = struct.Struct(">iqih")
_STRING: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class FetchedGroup(NamedTuple):
    """The OffsetFetch response for one group. ``offsets`` omits partitions without a committed offset; ``errors``
    contains partitions that could not be read."""

    offsets: dict[TopicPartition, Committed]
    errors: dict[TopicPartition, OffsetMgrError]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns the partition numbers of each topic."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def find_coordinator(groups: Sequence[str]) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key_type=i8(0), coordinator_keys=tuple(groups))


def metadata(topics: Sequence[str] | None = ()) -> MetadataRequest:
    """Requests the brokers and the given topics; all topics if None."""
    return MetadataRequest(
        topics=None if topics is None else tuple(MetadataRequestTopic(name=TopicName(name)) for name in topics),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def list_groups() -> ListGroupsRequest:
    return ListGroupsRequest(states_filter=())


def delete_groups(groups: Sequence[str]) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(groups_names=tuple(map(GroupId, groups)))


def describe_groups(groups: Sequence[str]) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=tuple(map(GroupId, groups)), include_authorized_operations=False)


def consumer_group_describe(groups: Sequence[str]) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(group_ids=tuple(map(GroupId, groups)), include_authorized_operations=False)


def offset_fetch(partitions_by_group: Mapping[str, Sequence[TopicPartition] | None]) -> OffsetFetchRequest:
    """Requests the offsets of many groups; None requests all partitions of a group.

    The request sets ``require_stable`` (KIP-447): if an open transaction has a pending commit for a partition, the
    broker returns an error for the partition instead of the previously committed offset.
    """
    return OffsetFetchRequest(
        groups=tuple(
            OffsetFetchRequestGroup(
                group_id=GroupId(group),
                topics=None
                if partitions is None
                else tuple(
                    OffsetFetchRequestTopics(name=TopicName(topic), partition_indexes=tuple(map(i32, numbers)))
                    for topic, numbers in by_topic(partitions).items()
                ),
            )
            for group, partitions in partitions_by_group.items()
        ),
        require_stable=True,
    )


def parse_offset_fetch(answer: OffsetFetchResponseGroup) -> FetchedGroup | OffsetMgrError:
    """Converts one group of an OffsetFetch response."""
    if answer.error_code:
        return kafka_error(int(answer.error_code), f"group {answer.group_id}")
    offsets: dict[TopicPartition, Committed] = {}
    errors: dict[TopicPartition, OffsetMgrError] = {}
    new = tuple.__new__  # skips the argument handling of named tuples
    for topic in answer.topics:
        name = str(topic.name)
        for part in topic.partitions:
            tp = new(TopicPartition, (name, part.partition_index))
            if part.error_code:
                errors[tp] = kafka_error(int(part.error_code), f"group {answer.group_id}, {tp}")
            elif part.committed_offset >= 0 and not is_deleted(part.committed_offset, part.metadata):
                epoch = part.committed_leader_epoch
                known = epoch if epoch >= 0 else None
                offsets[tp] = new(Committed, (part.committed_offset, part.metadata or "", known, None, None))
    return FetchedGroup(offsets, errors)


def offset_commit(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
) -> EncodedRequest:
    """Encodes OffsetCommit v7 by hand, because kio's writer takes 20 times as long and bulk edits consist of these
    requests."""
    body = bytearray(_string(group))
    body += _INT32.pack(generation)
    body += _string(member_id)
    body += _STRING.pack(-1) if instance_id is None else _string(instance_id)
    topics: dict[str, list[tuple[int, OffsetAndMetadata]]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append((partition, offset))
    body += _INT32.pack(len(topics))
    for topic, parts in topics.items():
        body += _string(topic)
        body += _INT32.pack(len(parts))
        for partition, new in parts:
            epoch = -1 if new.leader_epoch is None else new.leader_epoch
            metadata = new.metadata.encode()
            body += _PARTITION.pack(partition, new.offset, epoch, len(metadata))
            body += metadata
    return EncodedRequest(*OFFSET_COMMIT, bytes(body))


def parse_described_group(answer: DescribedGroup, coordinator: str) -> GroupDescription | OffsetMgrError:
    """Converts one group of a DescribeGroups response. Its state ``PreparingRebalance`` becomes PREPARING_REBALANCE."""
    group = str(answer.group_id)
    if answer.error_code:
        return kafka_error(int(answer.error_code), f"group {group}")
    consumer = answer.protocol_type == PROTOCOL_TYPE
    return GroupDescription(
        group=group,
        state=_upper(answer.group_state),
        protocol_type=answer.protocol_type,
        partition_assignor=answer.protocol_data,
        coordinator=coordinator,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                client_id=member.client_id,
                host=member.client_host.removeprefix("/"),
                instance_id=member.group_instance_id,
                partitions=decode_assignment(member.member_assignment) if consumer else (),
            )
            for member in answer.members
        ),
    )


def group_without_membership(group: str, coordinator: str) -> GroupDescription:
    """Returns the description of a group on a broker that does not support group membership (0.8.2)."""
    return GroupDescription(group, "UNKNOWN", coordinator=coordinator, membership=False)


def parse_consumer_group(answer: NewDescribedGroup, coordinator: str) -> GroupDescription | OffsetMgrError:
    """Converts one group of a ConsumerGroupDescribe response, for groups of the new consumer protocol (KIP-848)."""
    group = str(answer.group_id)
    if answer.error_code:
        return kafka_error(int(answer.error_code), f"group {group}", detail=answer.error_message or "")
    return GroupDescription(
        group=group,
        state=_upper(answer.group_state),
        protocol_type=PROTOCOL_TYPE,
        partition_assignor=answer.assignor_name,
        coordinator=coordinator,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                client_id=member.client_id,
                host=member.client_host.removeprefix("/"),
                instance_id=member.instance_id,
                partitions=tuple(
                    sorted(
                        TopicPartition(str(topic.topic_name), int(number))
                        for topic in member.assignment.topic_partitions
                        for number in topic.partitions
                    )
                ),
            )
            for member in answer.members
        ),
    )


def _upper(state: str) -> str:
    words = "".join(f"_{c}" if c.isupper() else c for c in state).lstrip("_")
    return words.upper() or "UNKNOWN"


def _string(text: str) -> bytes:
    data = text.encode()
    return _STRING.pack(len(data)) + data
