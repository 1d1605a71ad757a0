"""Computes the ACL of each node that offsetmgr creates, from ``zookeeper.acl`` and the ACL of the node's parent.

In ZooKeeper a node does not inherit its parent's ACL. Therefore the client sends an ACL for each node that it creates.
This module performs no I/O. Source: ZooDefs.Perms and ZooDefs.Ids of ZooKeeper; kafka.utils.ZkUtils.defaultAcls for the
ACLs that a secured broker sets.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from offsetmgr.core.errors import ConfigError, OffsetMgrError
from offsetmgr.zookeeper.client.jute import ustring

_PERMISSIONS: Final = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}
_ALL: Final = 31
_ALL_BUT_ADMIN: Final = 15
_READ: Final = 1
_WRITE: Final = 2
_DIGEST: Final = re.compile("[^:]+:[A-Za-z0-9+/]{27}=")
_INT: Final = struct.Struct("!i")


class AclEntry(NamedTuple):
    """One entry of an ACL; ``permissions`` is a sum of read 1, write 2, create 4, delete 8, admin 16."""

    permissions: int
    scheme: str
    id: str


Acl = tuple[AclEntry, ...]

OPEN: Final[Acl] = (AclEntry(_ALL, "world", "anyone"),)
"""All permissions for every client. Kafka sets this ACL on the nodes under ``/consumers``."""


@dataclass(frozen=True, slots=True)
class AclPolicy:
    """Decides the ACL of each node that offsetmgr creates.

    ``configured`` is the ACL from ``zookeeper.acl``. An ephemeral node gets this ACL and an entry that permits every
    client to read the node, because other members need to read it. The ACL of a persistent node also depends on the ACL
    of its parent (see `persistent`), because old consumers that do not have offsetmgr's credentials may have to write
    the node.
    """

    configured: Acl

    def ephemeral(self) -> Acl:
        return _grant_to_everybody(self.configured, _READ)

    def persistent(self, parent: Acl) -> Acl:
        """Returns the ACL of a persistent node below a node with the ACL ``parent``.

        If only some clients may write the parent, the new node gets the parent's ACL, so that the same clients may
        write both nodes. If every client may write the parent, the new node gets the configured ACL and an entry that
        gives every client all permissions except admin. With these permissions, an old consumer can write the node but
        cannot change the node's ACL.
        """
        if not any(entry.scheme == "world" and entry.permissions & _WRITE for entry in parent):
            return parent
        return _grant_to_everybody(self.configured, _ALL_BUT_ADMIN)


def parse_acl(text: str, authenticated: bool) -> AclPolicy | None:
    """Parses ``zookeeper.acl``: ``open``, ``creator``, or a list such as ``sasl:app:cdrw,digest:USER:HASH:r``.

    Returns None for ``open``, which means that new nodes get the ACL `OPEN`, as in Kafka. Raises `ConfigError`, which
    never quotes text that may be a password.
    """
    text = text.strip()
    if text in ("", "open"):
        return None
    if text == "creator":
        if not authenticated:
            raise ConfigError(
                "zookeeper.acl=creator",
                "a session without credentials cannot own a node",
                "also set zookeeper.auth=digest:USER:PASSWORD or sasl:USER:PASSWORD",
            )
        return AclPolicy((AclEntry(_ALL, "auth", ""),))
    return AclPolicy(tuple(_parse_entry(number, part.strip()) for number, part in enumerate(text.split(","), 1)))


def _parse_entry(number: int, text: str) -> AclEntry:
    where = f"zookeeper.acl: entry {number}"
    scheme, _, rest = text.partition(":")
    who, _, letters = rest.rpartition(":")
    if not (scheme and who and letters) or not set(letters) <= _PERMISSIONS.keys():
        raise ConfigError(
            where,
            "is not SCHEME:ID:PERMISSIONS, where PERMISSIONS are letters of cdrwa",
            "for example: zookeeper.acl=sasl:app:cdrwa,world:anyone:r; or open; or creator",
        )
    if scheme == "digest" and not _DIGEST.fullmatch(who):
        raise ConfigError(
            where,
            "needs the hash that ZooKeeper stores instead of the password",
            "use the output of ZooKeeper's DigestAuthenticationProvider: USER:BASE64",
        )
    if scheme == "auth":
        raise ConfigError(where, "the scheme auth cannot be part of a list", "write zookeeper.acl=creator")
    return AclEntry(sum(_PERMISSIONS[letter] for letter in set(letters)), scheme, who)


def acls_for(
    policy: AclPolicy,
    ephemeral: Iterable[str],
    persistent: Iterable[str],
    read: Callable[[Sequence[str]], Sequence[Acl | OffsetMgrError]],
) -> dict[str, Acl | OffsetMgrError]:
    """Returns the ACL of each new node, keyed by path. ``ephemeral`` and ``persistent`` are the paths of the new nodes.

    ``read`` returns the ACLs of existing nodes. If ``read`` returns an error for a parent, this error is the result for
    each new node below the parent.
    """
    acls: dict[str, Acl | OffsetMgrError] = {path: policy.ephemeral() for path in ephemeral}
    parents_first = sorted(persistent, key=lambda path: path.count("/"))
    new = set(parents_first)
    parents = list(dict.fromkeys(parent_path for path in parents_first if (parent_path := _parent(path)) not in new))
    parent_acls = dict(zip(parents, read(parents), strict=True)) if parents else {}
    for path in parents_first:
        parent_path = _parent(path)
        parent = parent_acls.get(parent_path)
        if parent is None:  # the same transaction creates the parent; both get the same ACL
            acls[path] = acls[parent_path]
        else:
            acls[path] = parent if isinstance(parent, OffsetMgrError) else policy.persistent(parent)
    return acls


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_masked(acl: Acl) -> bool:
    """Whether the server has masked the hashes of digest entries. A masked ACL cannot be copied to another node.
    Servers of ZooKeeper 3.5 and later mask the hashes if the client does not have the admin permission.
    """
    return any(entry.scheme == "digest" and entry.id.endswith(":x") for entry in acl)


def _grant_to_everybody(configured: Acl, permissions: int) -> Acl:
    """Returns ``configured`` with an entry that gives every client at least ``permissions``."""
    others = tuple(entry for entry in configured if (entry.scheme, entry.id) != ("world", "anyone"))
    already = sum(entry.permissions for entry in configured if entry not in others)
    return (*others, AclEntry(already | permissions, "world", "anyone"))


def encode(acl: Acl) -> bytes:
    """Encodes an ACL for a request."""
    parts = [_INT.pack(len(acl))]
    for permissions, scheme, who in acl:
        parts += [_INT.pack(permissions), ustring(scheme.encode()), ustring(who.encode())]
    return b"".join(parts)
