"""A real broker with a login (SASL PLAIN) and an authorizer."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from doc_blocks import PROJECT

KINDS: Final = {
    "group": ResourceType.GROUP, "topic": ResourceType.TOPIC, "cluster": ResourceType.BROKER,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}  # fmt: skip


@dataclass
class Secured:
    """A broker with an authorizer. `admin` has all rights, and the principal of `properties` only the granted ones."""

    bootstrap: str
    open: str
    """The address of the listener without a login, whose clients have all rights."""
    admin: AdminClient
    properties: dict[str, str]
    zookeeper: str | None
    """The connect string of the broker's ZooKeeper."""

    def grant(self, acls: list[AclBinding]) -> None:
        for created in self.admin.create_acls(acls).values():
            created.result(90)

    def revoke(self, acls: list[AclBinding]) -> None:
        for deleted in self.admin.delete_acls([acl_filter(acl) for acl in acls]).values():
            deleted.result(90)


def allowed(
    kind: ResourceType, name: str, operation: AclOperation, *, user: str = "offsetmgr", prefixed: bool = False
) -> AclBinding:
    """The ACL that allows an operation to the principal of `Secured.properties`, or to another user."""
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def documented_acls(*pages: str) -> list[AclBinding]:
    """The ACLs of the commands ``acls ...`` in guides."""
    found = []
    for page in pages:
        text = (PROJECT / "docs" / "how-to" / f"{page}.md").read_text("utf-8")
        for line in re.findall(r"^acls (--.*)$", text, re.MULTILINE):
            words = shlex.split(line, comments=True)
            (kind,) = KINDS.keys() & {word.removeprefix("--") for word in words}
            name = words[words.index(f"--{kind}") + 1] if kind != "cluster" else "kafka-cluster"
            for operation in (words[n + 1] for n, word in enumerate(words) if word == "--operation"):
                code = AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", operation).upper()]
                found.append(allowed(KINDS[kind], name, code, prefixed="prefixed" in words))
    return found


def acl_filter(acl: AclBinding) -> Any:
    return AclBindingFilter(
        acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type
    )
