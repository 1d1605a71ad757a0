"""`ClientProperties`: the translated settings of a ``.properties`` file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of clients that a ``.properties`` file may have, and that each connection has. A setting that is not
    given is empty or None."""

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    zookeeper_auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    zookeeper_acl: str = ""
    zookeeper_tls: Mapping[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ClientProperties(ClientSettings):
    """The translated content of a ``.properties`` file. ``timeout_ms`` is ``default.api.timeout.ms``."""

    bootstrap_servers: str | None = None
    timeout_ms: int | None = None
