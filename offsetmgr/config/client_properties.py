"""`ClientProperties`: the translated settings of a ``.properties`` file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """The translated content of a ``.properties`` file. A field is empty or None if the file does not have its setting.

    ``kafka`` contains librdkafka's settings. ``zookeeper_auth`` and ``zookeeper_acl`` are as in `ConnectionConfig`.
    ``zookeeper_tls`` contains TLS settings for ZooKeeper under librdkafka's names; None means no TLS. ``timeout_ms`` is
    ``default.api.timeout.ms``.
    """

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    zookeeper_auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    zookeeper_acl: str = ""
    zookeeper_tls: Mapping[str, str] | None = field(default=None, repr=False)
    bootstrap_servers: str | None = None
    timeout_ms: int | None = None
