"""Dynamic configuration: ``/config/topics|clients|users|brokers|ips`` and the change notifications.

Sources: kafka.admin.AdminUtils of 0.8.1 to 1.1, kafka.zk.ZkData and AdminZkClient since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from offsetmgr.zookeeper.nodes.fields import Fields, Notes, parsed, unreadable

HIDDEN: Final = "(hidden)"

# Users have quotas and SCRAM credentials; brokers have passwords, keys and JAAS lines among their settings, also under
# listener prefixes. Only settings that cannot be secret are shown.
_QUOTAS: Final = re.compile("(producer|consumer)_byte_rate|request_percentage|controller_mutation_rate")
_SECRET: Final = re.compile("password|secret|credential|jaas|key|certificate|token", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EntityConfig:
    """The overrides of one topic, client, user, broker or address. May hold secrets; `shown` hides them."""

    values: Mapping[str, str]

    def shown(self, kind: str) -> str:
        """``name=value ...``; values that may be secret for an entity of this ``kind`` (``users``, ``brokers``) are
        hidden."""
        pairs = (f"{name}={HIDDEN if _is_secret(kind, name) else value}" for name, value in self.values.items())
        return " ".join(pairs) or "no overrides"

    def __repr__(self) -> str:
        return f"EntityConfig({', '.join(self.values)})"

    def __str__(self) -> str:
        return self.shown("users")


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """``/config/changes/config_change_N``: asks brokers to read this entity's configuration again."""

    entity: str
    """Below ``/config``: ``topics/NAME``, ``users/NAME/clients/ID``."""

    def __str__(self) -> str:
        return self.entity


def parse_config(path: str, data: bytes, notes: Notes | None = None) -> EntityConfig:
    """Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path`` and quote no value."""
    node = Fields.of(path, data, notes)
    node.version((1,))
    if "config" not in node:
        raise unreadable(path, "has no 'config'")
    values = node.texts("config")
    node.close()
    return EntityConfig(values)


def parse_config_change(path: str, data: bytes, notes: Notes | None = None) -> ConfigChange:
    """A plain text is a topic (0.8.1, 0.8.2); version 1 names kind and entity (0.9), version 2 the path below
    ``/config``.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``.
    """
    value = parsed(path, data)
    if isinstance(value, str):
        return ConfigChange(f"topics/{value}")
    node = Fields.of(path, data, notes)
    if node.version((1, 2)) == 1:
        entity = f"{node.text('entity_type')}/{node.text('entity_name')}"
    else:
        entity = node.text("entity_path")
    node.close()
    return ConfigChange(entity)


def _is_secret(kind: str, name: str) -> bool:
    if kind == "users":
        return not _QUOTAS.fullmatch(name)
    return kind == "brokers" and _SECRET.search(name) is not None
