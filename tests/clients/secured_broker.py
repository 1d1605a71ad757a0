"""A real broker with a login (SASL PLAIN) and an authorizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AclBinding, AclBindingFilter, AdminClient


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


def acl_filter(acl: AclBinding) -> Any:
    return AclBindingFilter(
        acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type
    )
