"""Decodes the data of any of Kafka's nodes in ZooKeeper for display. The path of a node determines which parser is
used. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.zookeeper.nodes import admin, cluster, consumers, topics
from offsetmgr.zookeeper.nodes.fields import Notes
from offsetmgr.zookeeper.nodes.offset_data import parse_decimal

Decoder: TypeAlias = Callable[[str, bytes, Notes], object]
"""A function that decodes a node. Its arguments are the node's path, the node's data, and the notes. The text of the
result is displayed to users. Raises `CorruptData`."""


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """The kind and the decoded content of one node."""

    kind: str | None = None
    """``broker``, ``topic``, ``owner`` and so on; None for plain directories and for nodes of other software."""
    value: str | None = None
    """The line that is displayed to users; None if the node is empty or cannot be decoded."""
    notes: tuple[str, ...] = ()
    error: OffsetMgrError | None = None
    data: str | None = None
    """The raw data as text; None if it may contain credentials, or cannot be read."""


def describe(path: str, data: bytes) -> NodeDescription:
    """Decodes the data of the node at ``path``, which is relative to the chroot. If the data cannot be decoded, the
    result contains the error. The function raises no error."""
    text = data.decode("utf-8", "backslashreplace")
    known = _BY_ROOT.get(path.split("/", 2)[1], [])
    found = next(((kind, decode) for pattern, kind, decode in known if pattern.fullmatch(path)), None)
    if found is None:
        return NodeDescription(value=text or None, data=text)
    kind, decode = found
    shown = None if kind in _SECRET else text
    if not data and kind in _MAY_BE_EMPTY:
        return NodeDescription(kind, data=shown)
    notes: Notes = []
    try:
        value = str(decode(path, data, notes))
    except OffsetMgrError as error:
        return NodeDescription(kind, None, tuple(notes), error, shown)
    return NodeDescription(kind, value, tuple(notes), None, shown)


def _raw_text(path: str, data: bytes, notes: Notes) -> str:  # noqa: ARG001 - a `Decoder` takes them
    return data.decode("utf-8", "backslashreplace")


_TABLE: Final[tuple[tuple[str, str, Decoder], ...]] = (
    ("/brokers/ids/[0-9]{1,10}", "broker", cluster.parse_broker),
    ("/brokers/topics/[^/]+", "topic", topics.parse_topic),
    ("/brokers/topics/[^/]+/partitions/[0-9]+/state", "partition state", topics.parse_partition_state),
    ("/brokers/topics/[^/]+/[0-9]+", "partition count", topics.parse_partition_count),
    ("/consumers/[^/]+/ids/[^/]+", "member", consumers.parse_registration),
    ("/consumers/[^/]+/owners/[^/]+/[^/]+", "owner", _raw_text),
    ("/consumers/[^/]+/offsets?/[^/]+/[^/]+", "offset", parse_decimal),
    ("/controller", "controller", cluster.parse_controller),
    ("/controller_epoch", "controller epoch", cluster.parse_controller_epoch),
    ("/cluster/id", "cluster id", cluster.parse_cluster_id),
    ("/feature", "features", cluster.parse_features),
    ("/latest_producer_id_block", "producer ids", cluster.parse_producer_ids),
    ("/config/changes/[^/]+", "config change", cluster.parse_config_change),
    ("/config/(?:users|brokers)/[^/]+(?:/clients/[^/]+)?", "secret config", cluster.parse_config),
    ("/config/(?:topics|clients|ips)/[^/]+", "config", cluster.parse_config),
    ("/admin/reassign_partitions", "reassignment", admin.parse_reassignments),
    ("/admin/preferred_replica_election", "preferred election", admin.parse_partitions),
    ("/admin/delete_topics", "topic deletions", admin.parse_topic_deletions),
    ("/admin/delete_topics/[^/]+", "topic deletion", _raw_text),
    ("/isr_change_notification/[^/]+", "isr change", admin.parse_partitions),
    ("/log_dir_event_notification/[^/]+", "log dir event", topics.parse_log_dir_event),
    ("/delegation_token/tokens/[^/]+", "delegation token", lambda _path, _data, _notes: cluster.REDACTED),
)
_SECRET: Final = frozenset({"secret config", "delegation token"})

# In Kafka 0.7, a topic's node has no data. Since Kafka 0.8.1, the node /admin/delete_topics and its children have no
# data. Brokers create nodes without data for producer ids and for users' configurations.
_MAY_BE_EMPTY: Final = frozenset({"topic", "topic deletions", "topic deletion", "producer ids", "secret config"})

_BY_ROOT: Final[dict[str, list[tuple[re.Pattern[str], str, Decoder]]]] = {}
for _path, _kind, _decode in _TABLE:
    _BY_ROOT.setdefault(_path.split("/", 2)[1], []).append((re.compile(_path, re.DOTALL), _kind, _decode))
