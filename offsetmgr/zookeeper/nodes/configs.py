"""Parses the nodes with dynamic configuration (``/config/topics|clients|users|brokers|ips``) and the notifications
about configuration changes.

Sources: kafka.admin.AdminUtils of Kafka 0.8.1 to 1.1, and kafka.zk.ZkData and AdminZkClient of later releases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from offsetmgr.zookeeper.nodes.fields import Fields, Notes, corrupt, parsed

REDACTED: Final = "(hidden)"

# A user's configuration holds quotas and SCRAM credentials. A broker's configuration may hold passwords, keys and JAAS
# lines, also in settings whose name begins with a listener prefix. Settings that may be secret are not shown.
_QUOTAS: Final = re.compile("(producer|consumer)_byte_rate|request_percentage|controller_mutation_rate")
_SECRET: Final = re.compile("password|secret|credential|jaas|key|certificate|token", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EntityConfig:
    """The overrides of one topic, client, user, broker or IP address. The values may include secrets; `redacted` hides
    these values."""

    values: Mapping[str, str]

    def redacted(self, kind: str) -> str:
        """Formats the overrides as ``name=value ...``, and replaces values that may be secret with `REDACTED`.

        ``kind`` is the kind of the entity: the name of a directory below ``/config``.
        """
        pairs = (f"{name}={REDACTED if _is_secret(kind, name) else value}" for name, value in self.values.items())
        return " ".join(pairs) or "no overrides"

    def __repr__(self) -> str:
        return f"EntityConfig({', '.join(self.values)})"

    def __str__(self) -> str:
        return self.redacted("users")


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """``/config/changes/config_change_N``: tells the brokers to read an entity's configuration again."""

    entity: str
    """The entity's path below ``/config``: ``topics/NAME``, ``users/NAME/clients/ID``."""

    def __str__(self) -> str:
        return self.entity


def parse_config(path: str, data: bytes, notes: Notes | None = None) -> EntityConfig:
    """Parses the overrides of one entity.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both errors name ``path`` and quote no value.
    """
    node = Fields.of(path, data, notes)
    node.version((1,))
    if "config" not in node:
        raise corrupt(path, "has no 'config'")
    values = node.texts("config")
    node.close()
    return EntityConfig(values)


def parse_config_change(path: str, data: bytes, notes: Notes | None = None) -> ConfigChange:
    """Parses a change notification.

    In Kafka 0.8.1 and 0.8.2, a notification contains only the topic's name. A notification of version 1 (Kafka 0.9)
    contains the entity's kind and name. A notification of version 2 contains the entity's path below ``/config``.

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
