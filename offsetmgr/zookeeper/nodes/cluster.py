"""Parses the nodes that describe the cluster: its id, controller, features and producer id blocks.

Sources: kafka.controller.KafkaController of Kafka 0.8 to 1.1, and kafka.zk.ZkData of later releases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from offsetmgr.core.errors import CorruptData
from offsetmgr.core.field_reader import MAX_LONG
from offsetmgr.zookeeper.nodes.fields import Fields, Notes, corrupt, decoded, format_pairs, parse_number, parsed

_BARE_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_CLUSTER_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,22}", re.ASCII)
"""A UUID in the URL-safe Base64 alphabet without padding."""


@dataclass(frozen=True, slots=True)
class Controller:
    """``/controller``: the broker that is the controller. The node is ephemeral and belongs to the ZooKeeper session of
    this broker."""

    broker_id: int
    timestamp_ms: int | None = None
    """The time of the election, by the broker's clock; None before Kafka 0.8.1."""
    kraft_epoch: int | None = None
    """The epoch of the KRaft controller, if a KRaft controller has taken over (only in version 2 of the format);
    otherwise None."""

    def __str__(self) -> str:
        kraft = "" if self.kraft_epoch is None else f" (KRaft epoch {self.kraft_epoch})"
        return f"broker {self.broker_id}{kraft}"


def parse_controller(path: str, data: bytes, notes: Notes | None = None) -> Controller:
    """Parses ``/controller``: a JSON object, or, as written by the first brokers of Kafka 0.8, only the broker id.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``.
    """
    if _BARE_ID.fullmatch(decoded(path, data)):
        return Controller(parse_number(path, data, "a broker's id"))
    with Fields.versioned(path, data, notes, 1, 2) as node:
        kraft_epoch = node.optional_integer("kraftControllerEpoch", -1)
        return Controller(
            node.integer("brokerid"), node.optional_integer("timestamp"), None if kraft_epoch == -1 else kraft_epoch
        )


def parse_controller_epoch(path: str, data: bytes, notes: Notes | None = None) -> int:  # noqa: ARG001
    """Parses ``/controller_epoch``, the number of controller elections so far. Raises `CorruptData`, which names
    ``path``."""
    return parse_number(path, data, "the controller's epoch")


def parse_cluster_id(path: str, data: bytes, notes: Notes | None = None) -> str:
    """Parses ``/cluster/id``, which brokers since Kafka 0.10.1 write. A cluster id has 1 to 22 characters of
    ``[a-zA-Z0-9_-]``.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``.
    """
    with Fields.versioned(path, data, notes, 1) as node:
        cluster_id = node.text("id")
        if not _CLUSTER_ID.fullmatch(cluster_id):
            why = f"its 'id' {cluster_id!a:.60} is not a cluster id (1 to 22 characters of a-z, A-Z, 0-9, _ and -)"
            raise corrupt(path, why)
        return cluster_id


def parse_features(path: str, data: bytes, notes: Notes | None = None) -> str:
    """Parses ``/feature``, the finalized features of the cluster (KIP-584). Raises `CorruptData` and, without
    ``notes``, `UnknownVersion`; both name ``path``."""
    with Fields.versioned(path, data, notes, 1, 2) as node:
        status, versions = node.integer("status", 0, 1), node.versions_of_features()
        if versions is None:
            raise node.invalid("features", "an object")
        features = " ".join(f"{name}({format_pairs(labels)})" for name, labels in versions.items())
        return f"{'enabled' if status else 'disabled'} {features or 'none'}"


def parse_producer_ids(path: str, data: bytes, notes: Notes | None = None) -> str:
    """Parses ``/latest_producer_id_block``: the last allocated block of producer ids, and the broker to which it was
    allocated. Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``."""
    with Fields.versioned(path, data, notes, 1) as node:
        first, last = (node.integer(name, 0, MAX_LONG) for name in ("block_start", "block_end"))
        return f"{first} to {last} for broker {node.integer('broker')}"


# Parses ``/brokers/ids/ID``, the registration of a live broker, in the formats of all Kafka releases. Sources:
# kafka.cluster.Broker of Kafka 0.7.2 and 0.8 to 1.1, and kafka.zk.BrokerIdZNode of later releases.

# kafka.cluster.EndPoint: the listener may have any name; the host may be an IPv6 address in brackets.
_ENDPOINT: Final = re.compile(r"(?P<listener>[^:/]+)://(?P<host>\[[^\]]*\]|[^:]*):(?P<port>[0-9]{1,5})")
_OF_0_7: Final = re.compile(r"(?:(?P<creator>[^:{}\"\s]+):)?(?P<host>[^:{}\"\s]+):(?P<port>[0-9]{1,5})")
_MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """One address on which a broker listens."""

    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """``/brokers/ids/ID``: a live broker."""

    broker_id: int
    endpoints: tuple[BrokerEndpoint, ...]
    """Brokers of Kafka 0.7 and 0.8 have one address and no listeners. For these brokers, this field contains the
    address with the listener name ``PLAINTEXT``."""
    rack: str | None = None
    security: Mapping[str, str] = field(default_factory=dict)
    """Listener -> security protocol. Empty for brokers of releases before Kafka 0.10.2. In these releases, the name of
    a listener is the listener's security protocol."""
    version: int | None = None
    """Version of the format; None for the format of Kafka 0.7, which is the text ``[CREATOR:]HOST:PORT``."""
    timestamp_ms: int | None = None
    """Registration time, by the broker's clock."""
    jmx_port: int | None = None
    features: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Feature -> label (``min_version``, ``max_version``) -> supported version (KIP-584)."""

    @property
    def addresses(self) -> str:
        """The endpoints in one line."""
        return " ".join(map(str, self.endpoints))

    def __str__(self) -> str:
        return self.addresses if self.rack is None else f"{self.addresses} rack={self.rack}"


def parse_broker(path: str, data: bytes, notes: Notes | None = None) -> RegisteredBroker:
    """Parses a broker's registration. The last name of ``path`` is the broker's id.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``.
    """
    broker_id, text = int(path.rpartition("/")[2]), decoded(path, data)
    if of_0_7 := _OF_0_7.fullmatch(text):
        return RegisteredBroker(broker_id, (_endpoint(path, "PLAINTEXT", of_0_7["host"], of_0_7["port"]),))
    with Fields.versioned(path, data, notes, 1, 2, 3, 4, 5) as node:
        host, port = node.optional_text("host"), node.optional_integer("port", -1, _MAX_PORT)
        listed = node.get("endpoints")
        if node.format_version > 1:
            endpoints = _endpoints(node, listed)
        elif host is None or port is None:
            raise corrupt(path, "has no 'host' and 'port'")
        else:  # 0.8: one address, no listeners
            endpoints = (BrokerEndpoint("PLAINTEXT", host, port),)
        jmx_port = node.optional_integer("jmx_port", -1, _MAX_PORT)
        return RegisteredBroker(
            broker_id,
            endpoints,
            node.optional_text("rack"),
            node.texts("listener_security_protocol_map"),
            node.format_version,
            node.optional_integer("timestamp"),
            None if jmx_port == -1 else jmx_port,
            node.versions_of_features() or {},
        )


def _endpoints(node: Fields, listed: Any) -> tuple[BrokerEndpoint, ...]:
    if not isinstance(listed, list) or not listed:
        raise corrupt(node.path, "has no 'endpoints'")
    found = []
    for text in listed:
        match = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise _no_endpoint(node.path, text)
        found.append(_endpoint(node.path, match["listener"], match["host"].strip("[]"), match["port"]))
    return tuple(found)


def _endpoint(path: str, listener: str, host: str, port: str) -> BrokerEndpoint:
    if int(port) > _MAX_PORT:
        raise _no_endpoint(path, f"{host}:{port}")
    return BrokerEndpoint(listener, host, int(port))


def _no_endpoint(path: str, text: object) -> CorruptData:
    return corrupt(path, f"the endpoint {text!a:.100} is not LISTENER://HOST:PORT")


# Parses the nodes with dynamic configuration (``/config/topics|clients|users|brokers|ips``) and the notifications
# about configuration changes. Sources: kafka.admin.AdminUtils of Kafka 0.8.1 to 1.1, and kafka.zk.ZkData and
# AdminZkClient of later releases.

REDACTED: Final = "(hidden)"

# A user's configuration holds quotas and SCRAM credentials. A broker's configuration may hold passwords, keys and JAAS
# lines, also in settings whose name begins with a listener prefix. Settings that may be secret are not shown.
_QUOTAS: Final = re.compile("(producer|consumer)_byte_rate|request_percentage|controller_mutation_rate")
_SECRET: Final = re.compile("password|secret|credential|jaas|key|certificate|token", re.IGNORECASE)


def parse_config(path: str, data: bytes, notes: Notes | None = None) -> str:
    """Parses the overrides of one entity: ``name=value ...``, with `REDACTED` in place of values that may be secret.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both errors name ``path`` and quote no value.
    """
    with Fields.versioned(path, data, notes, 1) as node:
        if "config" not in node:
            raise corrupt(path, "has no 'config'")
        values, kind = node.texts("config"), path.split("/")[2]
        pairs = (f"{name}={REDACTED if _is_secret(kind, name) else value}" for name, value in values.items())
        return " ".join(pairs) or "no overrides"


def parse_config_change(path: str, data: bytes, notes: Notes | None = None) -> str:
    """Parses a notification that tells the brokers to read an entity's configuration again. Returns the entity's path
    below ``/config``: ``topics/NAME``, ``users/NAME/clients/ID``.

    In Kafka 0.8.1 and 0.8.2, a notification contains only the topic's name. A notification of version 1 (Kafka 0.9)
    contains the entity's kind and name. A notification of version 2 contains the entity's path below ``/config``.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``.
    """
    value = parsed(path, data)
    if isinstance(value, str):
        return f"topics/{value}"
    with Fields.versioned(path, data, notes, 1, 2) as node:
        if node.format_version == 1:
            return f"{node.text('entity_type')}/{node.text('entity_name')}"
        return node.text("entity_path")


def _is_secret(kind: str, name: str) -> bool:
    if kind == "users":
        return not _QUOTAS.fullmatch(name)
    return kind == "brokers" and _SECRET.search(name) is not None
