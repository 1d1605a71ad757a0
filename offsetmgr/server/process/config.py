"""`ServeOptions`: the configuration of a manager process."""

from __future__ import annotations

from dataclasses import dataclass, field

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import UsageError
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.manager.expiration import DEFAULT_RETENTION_MS
from offsetmgr.server.network.limits import ServerLimits


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of ``manager serve``. Times are in seconds unless the field's name ends with another unit. Files are
    paths as the user gave them."""

    bootstrap: str
    connection: ConnectionConfig
    listen: tuple[str, int]
    advertise: tuple[str, int] | None = None
    relay: bool = False
    relay_ports: range | None = None
    store: str | None = None
    """The URI of the store to serve; None for the offset manager's own topic."""
    translate: OffsetTranslation | None = None
    """How to translate offsets if the store belongs to a Kafka cluster other than ``bootstrap``; None if the user did
    not specify this."""
    topic: str = "__offsetmgr_offsets"
    partitions: int = 50
    replication_factor: int | None = None
    min_insync_replicas: int | None = None
    record_format: str = "avro"
    retention_ms: int = DEFAULT_RETENTION_MS
    commit_timeout_s: float = 5.0
    session_timeout_s: float = 10.0
    standby: bool = True
    metrics_listen: tuple[str, int] | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    credentials: str | None = None
    rules: str | None = None
    limits: ServerLimits = field(default_factory=ServerLimits)


def address(text: str, option: str) -> tuple[str, int]:
    """Parses ``host:port`` or ``[v6]:port``; ``option`` names the option in the error. Raises `UsageError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535 or not host:
        raise UsageError(f"{option} {text}", "is not HOST:PORT", f"as in {option} 127.0.0.1:9192")
    return host.removeprefix("[").removesuffix("]"), int(port)


def port_range(text: str) -> range:
    """Parses ``first-last``, both included. Raises `UsageError`."""
    first, dash, last = text.partition("-")
    if not dash or not first.isdigit() or not last.isdigit() or not 0 < int(first) <= int(last) <= 65_535:
        raise UsageError(f"--relay-ports {text}", "is not FIRST-LAST", "as in --relay-ports 9193-9210")
    return range(int(first), int(last) + 1)
