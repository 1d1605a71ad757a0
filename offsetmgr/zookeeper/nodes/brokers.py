"""Parses ``/brokers/ids/ID``, the registration of a live broker, in the formats of all Kafka releases.

Sources: kafka.cluster.Broker of Kafka 0.7.2 and 0.8 to 1.1, and kafka.zk.BrokerIdZNode of later releases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from offsetmgr.core.errors import CorruptData
from offsetmgr.zookeeper.nodes.fields import Fields, Notes, corrupt, decoded

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


def parse_broker(path: str, broker_id: int, data: bytes, notes: Notes | None = None) -> RegisteredBroker:
    """Parses a broker's registration.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``.
    """
    text = decoded(path, data)
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
