"""Decodes the data of any of Kafka's nodes in ZooKeeper for display. The path of a node determines which parser is
used. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.zookeeper.nodes import admin, cluster, consumers, topics
from offsetmgr.zookeeper.nodes.fields import Notes
from offsetmgr.zookeeper.nodes.offset_data import parse_decimal

Decoder: TypeAlias = Callable[[str, re.Match[str], bytes, Notes], str]
"""A function that decodes a node. Its arguments are the node's path, the regular expression's match with this path, the
node's data, and the notes. It returns the line that is displayed to users, or raises `CorruptData`."""


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
    for pattern, kind, decode in _patterns(path):
        if match := pattern.fullmatch(path):
            return _describe(kind, decode, path, match, data)
    return NodeDescription(value=_plain(data), data=data.decode("utf-8", "backslashreplace"))


def _describe(kind: str, decode: Decoder, path: str, match: re.Match[str], data: bytes) -> NodeDescription:
    shown = None if kind in _SECRET else data.decode("utf-8", "backslashreplace")
    if not data and kind in _MAY_BE_EMPTY:
        return NodeDescription(kind, data=shown)
    notes: Notes = []
    try:
        value = decode(path, match, data, notes)
    except OffsetMgrError as error:
        return NodeDescription(kind, None, tuple(notes), error, shown)
    return NodeDescription(kind, value, tuple(notes), None, shown)


def _patterns(path: str) -> list[tuple[re.Pattern[str], str, Decoder]]:
    return _BY_ROOT.get(path.split("/", 2)[1], [])


def _plain(data: bytes) -> str | None:
    return data.decode("utf-8", "backslashreplace") or None


def _text(parse: Callable[[str, bytes, Notes], object]) -> Decoder:
    return lambda path, _, data, notes: str(parse(path, data, notes))


def _raw_text(path: str, match: re.Match[str], data: bytes, notes: Notes) -> str:  # noqa: ARG001 - a `Decoder` takes them
    return _plain(data) or ""


def _broker(path: str, match: re.Match[str], data: bytes, notes: Notes) -> str:
    return str(cluster.parse_broker(path, int(match["id"]), data, notes))


def _config(path: str, match: re.Match[str], data: bytes, notes: Notes) -> str:
    return cluster.parse_config(path, match["kind"], data, notes)


def _redacted(path: str, match: re.Match[str], data: bytes, notes: Notes) -> str:  # noqa: ARG001 - a `Decoder` takes them
    return cluster.REDACTED


def _deletion(path: str, match: re.Match[str], data: bytes, notes: Notes) -> str:
    if not data:
        raise CorruptData(f"ZooKeeper node {path}", "is empty")
    return _text(admin.parse_topic_deletions)(path, match, data, notes)


_TABLE: Final[tuple[tuple[str, str, Decoder], ...]] = (
    ("/brokers/ids/(?P<id>[0-9]{1,10})", "broker", _broker),
    ("/brokers/topics/[^/]+", "topic", _text(topics.parse_topic)),
    ("/brokers/topics/[^/]+/partitions/[0-9]+/state", "partition state", _text(topics.parse_partition_state)),
    ("/brokers/topics/[^/]+/[0-9]+", "partition count", _text(topics.parse_partition_count)),
    ("/consumers/[^/]+/ids/[^/]+", "member", _text(consumers.parse_registration)),
    ("/consumers/[^/]+/owners/[^/]+/[^/]+", "owner", _raw_text),
    ("/consumers/[^/]+/offsets?/[^/]+/[^/]+", "offset", _text(parse_decimal)),
    ("/controller", "controller", _text(cluster.parse_controller)),
    ("/controller_epoch", "controller epoch", _text(cluster.parse_controller_epoch)),
    ("/cluster/id", "cluster id", _text(cluster.parse_cluster_id)),
    ("/feature", "features", _text(cluster.parse_features)),
    ("/latest_producer_id_block", "producer ids", _text(cluster.parse_producer_ids)),
    ("/config/changes/[^/]+", "config change", _text(cluster.parse_config_change)),
    ("/config/(?P<kind>users|brokers)/[^/]+(?:/clients/[^/]+)?", "secret config", _config),
    ("/config/(?P<kind>topics|clients|ips)/[^/]+", "config", _config),
    ("/admin/reassign_partitions", "reassignment", _text(admin.parse_reassignments)),
    ("/admin/preferred_replica_election", "preferred election", _text(admin.parse_partitions)),
    ("/admin/delete_topics", "topic deletions", _deletion),
    ("/admin/delete_topics/[^/]+", "topic deletion", _raw_text),
    ("/isr_change_notification/[^/]+", "isr change", _text(admin.parse_partitions)),
    ("/log_dir_event_notification/[^/]+", "log dir event", _text(topics.parse_log_dir_event)),
    ("/delegation_token/tokens/[^/]+", "delegation token", _redacted),
)
_SECRET: Final = frozenset({"secret config", "delegation token"})

# In Kafka 0.7, a topic's node has no data. Since Kafka 0.8.1, the node /admin/delete_topics and its children have no
# data. Brokers create nodes without data for producer ids and for users' configurations.
_MAY_BE_EMPTY: Final = frozenset({"topic", "topic deletions", "topic deletion", "producer ids", "secret config"})

_BY_ROOT: Final[dict[str, list[tuple[re.Pattern[str], str, Decoder]]]] = {}
for _path, _kind, _decode in _TABLE:
    _BY_ROOT.setdefault(_path.split("/", 2)[1], []).append((re.compile(_path, re.DOTALL), _kind, _decode))
