"""Paths of Kafka's nodes in ZooKeeper (0.8 and later), and checks of the names in these paths.

This module performs no I/O. The other modules of this package and `offsetmgr.zookeeper.offsets.layouts` define the
nodes' content. Source: kafka.utils.ZkUtils of Kafka 0.8 to 1.1, and kafka.zk.ZkData of later releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import BrokerPartition

CONSUMERS: Final = "/consumers"
BROKERS: Final = "/brokers"
BROKER_IDS: Final = "/brokers/ids"
BROKER_TOPICS: Final = "/brokers/topics"
CLUSTER_ID: Final = "/cluster/id"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
DELETE_TOPICS: Final = "/admin/delete_topics"
REASSIGN_PARTITIONS: Final = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION: Final = "/admin/preferred_replica_election"
STORAGE_MODES: Final = "/offsetmgr/groups"
"""The node of an earlier offsetmgr with the storage modes of groups, which its ``migrate switch`` changed."""

# The path separator, and the characters that org.apache.zookeeper.common.PathUtils rejects anywhere in a path. Java
# represents a character above U+FFFF by two surrogates, which are among them.
_NOT_IN_A_COMPONENT: Final = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)


@lru_cache(maxsize=65_536)
def check_group(group: str) -> str:
    """Returns the group id if a node can have this name. Raises `UsageError` if the group cannot exist in ZooKeeper."""
    return _component("group", group)


def possible_groups(groups: Iterable[str]) -> tuple[list[str], list[tuple[str, UsageError]]]:
    """Returns the groups that can exist in ZooKeeper, and the other groups with their errors."""
    possible: list[str] = []
    impossible: list[tuple[str, UsageError]] = []
    for group in groups:
        try:
            possible.append(check_group(group))
        except UsageError as error:
            impossible.append((group, error))
    return possible, impossible


def is_directory(data: bytes) -> bool:
    """Whether a node with this data is only a directory: Curator writes the address of the client into directories."""
    try:
        return not data or bool(ip_address(data.decode("ascii")))
    except ValueError:
        return False


@lru_cache(maxsize=65_536)
def check_topic(topic: str) -> str:
    """Returns the topic if a node can have this name. Raises `UsageError` otherwise.

    This function accepts more names than current brokers accept, because offsetmgr must also read and delete the nodes
    of topics that older versions created.
    """
    return _component("topic", topic)


def check_partition(partition: int) -> int:
    """Returns the partition if it is valid in Kafka 0.8 and later. Raises `UsageError` otherwise."""
    if isinstance(partition, BrokerPartition):
        raise UsageError(
            f"partition {partition}",
            "is a partition of Kafka 0.7, whose offsets are byte positions; in later versions they count messages",
            Advice("use {partition_map} of {}", Invocation("migrate plan")),
        )
    if partition < 0:
        raise UsageError(f"partition {partition}", "is negative")
    return partition


def group(group: str) -> str:
    return f"{CONSUMERS}/{check_group(group)}"


def ids(group: str) -> str:
    """The parent of the registrations of the group's live consumers."""
    return f"{CONSUMERS}/{check_group(group)}/ids"


def member(group: str, member_id: str) -> str:
    """The ephemeral node with the registration of one live consumer."""
    return f"{ids(group)}/{_component('consumer id', member_id)}"


def owners(group: str) -> str:
    return f"{CONSUMERS}/{check_group(group)}/owners"


def owners_of_topic(group: str, topic: str) -> str:
    return f"{owners(group)}/{check_topic(topic)}"


def owner(group: str, topic: str, partition: int) -> str:
    """The ephemeral node that names the owner of a partition."""
    return f"{owners_of_topic(group, topic)}/{check_partition(partition)}"


def offsets(group: str) -> str:
    return f"{CONSUMERS}/{check_group(group)}/offsets"


def offsets_of_topic(group: str, topic: str) -> str:
    return f"{offsets(group)}/{check_topic(topic)}"


def offset(group: str, topic: str, partition: int) -> str:
    return f"{offsets_of_topic(group, topic)}/{check_partition(partition)}"


def check_broker_partition(partition: int) -> str:
    """Returns the name of a partition's node in Kafka 0.7. Raises `UsageError` if the partition is not a
    `BrokerPartition`."""
    if not isinstance(partition, BrokerPartition):
        raise UsageError(
            f"partition {partition}", "is not a partition of Kafka 0.7, which is BROKER-PARTITION, for example 0-3"
        )
    return str(partition)


def partition_number(name: str) -> int | None:
    """Returns the partition whose node has this name (Kafka 0.8 and later), or None for other names."""
    return int(name) if _NUMBER.fullmatch(name) else None


@lru_cache(maxsize=4096)
def with_ancestors(directory: str) -> tuple[str, ...]:
    """The paths of a directory and all its ancestors, outermost first. The result is cached, because all partitions of
    a topic have the same directory."""
    parts = directory.split("/")
    return tuple("/".join(parts[:n]) for n in range(2, len(parts) + 1))


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(topic: str) -> str:
    """The node with the topic's replica assignment."""
    return f"{BROKER_TOPICS}/{check_topic(topic)}"


def partition_state(topic_name: str, partition: int) -> str:
    """The node with the leader, in-sync replicas and epochs of one partition."""
    return f"{topic(topic_name)}/partitions/{check_partition(partition)}/state"


def _component(kind: str, name: str) -> str:
    if not name:
        raise UsageError(f"{kind} ''", "an empty name cannot exist in ZooKeeper")
    if name in (".", ".."):
        raise UsageError(f"{kind} {name!r}", "cannot exist in ZooKeeper, where this name is a relative path")
    if found := _NOT_IN_A_COMPONENT.search(name):
        raise UsageError(
            f"{kind} {name!r}",
            f"cannot exist in ZooKeeper, whose node names cannot contain {found.group()!r}",
        )
    return name
