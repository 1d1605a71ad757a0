"""Parses the nodes with dynamic configuration (``/config/topics|clients|users|brokers|ips``) and the notifications
about configuration changes.

Sources: kafka.admin.AdminUtils of Kafka 0.8.1 to 1.1, and kafka.zk.ZkData and AdminZkClient of later releases.
"""

from __future__ import annotations

import re
from typing import Final

from offsetmgr.zookeeper.nodes.fields import Fields, Notes, corrupt, parsed

REDACTED: Final = "(hidden)"

# A user's configuration holds quotas and SCRAM credentials. A broker's configuration may hold passwords, keys and JAAS
# lines, also in settings whose name begins with a listener prefix. Settings that may be secret are not shown.
_QUOTAS: Final = re.compile("(producer|consumer)_byte_rate|request_percentage|controller_mutation_rate")
_SECRET: Final = re.compile("password|secret|credential|jaas|key|certificate|token", re.IGNORECASE)


def parse_config(path: str, kind: str, data: bytes, notes: Notes | None = None) -> str:
    """Parses the overrides of one entity: ``name=value ...``, with `REDACTED` in place of values that may be secret.
    ``kind`` is the name of a directory below ``/config``.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both errors name ``path`` and quote no value.
    """
    with Fields.versioned(path, data, notes, 1) as node:
        if "config" not in node:
            raise corrupt(path, "has no 'config'")
        values = node.texts("config")
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
