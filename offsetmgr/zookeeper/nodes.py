"""What the JSON nodes of Kafka in ZooKeeper say: consumer registrations, brokers, the cluster's id. No I/O.

Formats are versioned by their own field; an unknown version is `UnknownVersion`, anything else that cannot be
understood is `Unreadable`, and both name the node.  Source: kafka.zk.ZkData (and kafka.utils.ZkUtils before it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from offsetmgr.errors import UnknownVersion, Unreadable

_REGISTRATION_VERSIONS: Final = (1,)
_BROKER_VERSIONS: Final = (1, 2, 3, 4, 5)
_CLUSTER_ID_VERSIONS: Final = (1,)
_ENDPOINT: Final = re.compile(r"(?P<listener>[A-Za-z0-9_]+)://(?P<host>\[[^\]]*\]|[^:]*):(?P<port>\d+)")


@dataclass(frozen=True, slots=True)
class ConsumerRegistration:
    """``/consumers/GROUP/ids/ID``: what one old high-level consumer subscribed to."""

    subscription: Mapping[str, int]
    """Topic (or, with a pattern, the regular expression) -> number of streams."""
    pattern: str
    """``static``, ``white_list`` or ``black_list``."""
    timestamp_ms: int | None
    """When it registered, by the consumer's clock."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address that a broker listens at."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Broker:
    """``/brokers/ids/ID``: a live broker."""

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    security: Mapping[str, str] = field(default_factory=dict)
    """Listener -> security protocol; brokers before 0.10.2 do not say, there the listener is the protocol."""


def parse_registration(path: str, data: bytes) -> ConsumerRegistration:
    """Raises `Unreadable`, `UnknownVersion`, which name ``path``."""
    node = _object(path, data)
    _version(path, node, _REGISTRATION_VERSIONS)
    subscription = node.get("subscription")
    if not isinstance(subscription, dict) or not all(type(n) is int for n in subscription.values()):
        raise Unreadable(f"ZooKeeper node {path}", "its 'subscription' is not a map from topics to numbers of streams")
    pattern = node.get("pattern", "static")
    if not isinstance(pattern, str):
        raise Unreadable(f"ZooKeeper node {path}", "its 'pattern' is not a text")
    return ConsumerRegistration(subscription, pattern, _integer(path, node, "timestamp"))


def parse_broker(path: str, broker_id: int, data: bytes) -> Broker:
    """Raises `Unreadable`, `UnknownVersion`, which name ``path``."""
    node = _object(path, data)
    version = _version(path, node, _BROKER_VERSIONS)
    rack = node.get("rack")
    security = node.get("listener_security_protocol_map", {})
    if not (rack is None or isinstance(rack, str)) or not isinstance(security, dict):
        raise Unreadable(f"ZooKeeper node {path}", "its 'rack' or 'listener_security_protocol_map' is malformed")
    if version == 1:  # 0.8: one address, no listeners
        host, port = node.get("host"), _integer(path, node, "port")
        if not isinstance(host, str) or port is None:
            raise Unreadable(f"ZooKeeper node {path}", "has no 'host' and 'port'")
        return Broker(broker_id, (Endpoint("PLAINTEXT", host, port),))
    endpoints = []
    for text in node.get("endpoints") or ():
        match = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise Unreadable(f"ZooKeeper node {path}", f"the endpoint {text!r} is not LISTENER://HOST:PORT")
        endpoints.append(Endpoint(match["listener"], match["host"].strip("[]"), int(match["port"])))
    if not endpoints:
        raise Unreadable(f"ZooKeeper node {path}", "has no 'endpoints'")
    return Broker(broker_id, tuple(endpoints), rack, security)


def parse_cluster_id(path: str, data: bytes) -> str:
    """The id in ``/cluster/id`` (brokers since 0.10.1). Raises `Unreadable`, `UnknownVersion`, which name ``path``."""
    node = _object(path, data)
    _version(path, node, _CLUSTER_ID_VERSIONS)
    cluster_id = node.get("id")
    if not isinstance(cluster_id, str) or not cluster_id:
        raise Unreadable(f"ZooKeeper node {path}", "has no 'id'")
    return cluster_id


def _object(path: str, data: bytes) -> dict[str, Any]:
    try:
        node = json.loads(data)
    except ValueError as broken:
        reason = broken.msg if isinstance(broken, json.JSONDecodeError) else "not UTF-8"
        raise Unreadable(f"ZooKeeper node {path}", f"is not JSON: {reason}" if data else "is empty") from broken
    except RecursionError as broken:
        raise Unreadable(f"ZooKeeper node {path}", "is JSON nested too deeply") from broken
    if not isinstance(node, dict):
        raise Unreadable(f"ZooKeeper node {path}", "is JSON, but not an object")
    return node


def _version(path: str, node: Mapping[str, Any], known: tuple[int, ...]) -> int:
    version = _integer(path, node, "version")
    if version is None:
        raise Unreadable(f"ZooKeeper node {path}", "has no 'version'")
    if version not in known:
        raise UnknownVersion(f"ZooKeeper node {path}", f"is of version {version}; known: {', '.join(map(str, known))}")
    return version


def _integer(path: str, node: Mapping[str, Any], name: str) -> int | None:
    """A number, which Kafka writes as one or as a text of digits, depending on the field and the version."""
    found = node.get(name)
    if found is None or type(found) is int:
        return found
    if isinstance(found, str) and re.fullmatch(r"-?[0-9]{1,19}", found, re.ASCII):
        return int(found)
    raise Unreadable(f"ZooKeeper node {path}", f"its {name!r} is not a number")
