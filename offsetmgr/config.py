"""How to connect: contexts of the config file, ``.properties`` files and ``OFFSETMGR_*`` variables.

Values here may be secrets, so `ConnectionConfig` never shows them in its ``repr`` (rule 12).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """Everything beside an address that is needed to open a store or a cluster.

    ``kafka`` holds librdkafka properties (``security.protocol``, ``sasl.username``, ...), already translated from
    Java's names. ``zookeeper_auth`` holds (scheme, credential) pairs, as ``("digest", "user:password")``.
    ``timeout_ms`` bounds every single call to a server. ``stores`` maps the names of ``[store.NAME]`` sections to
    their settings.
    """

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    zookeeper_auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_ms: int = 30_000
    stores: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
