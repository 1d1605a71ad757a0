"""ACLs of the nodes that offsetmgr creates: the configured ACL, and the resulting ACL of each node.

ZooKeeper's ACLs are not inherited, so each new node is given one. No I/O here. Source: ZooDefs.Perms and Ids, and
kafka.utils.ZkUtils.defaultAcls for the ACLs that a secured broker sets.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from offsetmgr.core.errors import ConfigError, OffsetMgrError

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
"""All permissions for everybody, as Kafka sets it under ``/consumers``."""


@dataclass(frozen=True, slots=True)
class AclPolicy:
    """Decides the ACL of each node that offsetmgr creates.

    ``configured`` is the configured ACL. An ephemeral node gets it, and everybody may read it, because other members
    must. A persistent node lies in a directory that others write to, above all old consumers, which do not have our
    credentials: see `shared`.
    """

    configured: Acl

    def ours(self) -> Acl:
        return _with(self.configured, _READ)

    def shared(self, parent: Acl) -> Acl:
        """Returns the ACL of a persistent node below a node with the ACL ``parent``.

        If the parent is writable only for some, the new node takes over the parent's ACL: the same clients can write
        both. If the parent is writable for everybody, the configured ACL applies, and everybody also gets all
        permissions except admin. An old consumer can then write the node but cannot lock others out of it.
        """
        if not any(entry.scheme == "world" and entry.permissions & _WRITE for entry in parent):
            return parent
        return _with(self.configured, _ALL_BUT_ADMIN)


def parse_acl(text: str, authenticated: bool) -> AclPolicy | None:
    """Parses ``zookeeper.acl``: ``open`` (returns None: ACLs as Kafka sets them), ``creator``, or a list such as
    ``sasl:app:cdrw,digest:USER:HASH:r``. Raises `ConfigError`, without quoting text that may be a password."""
    text = text.strip()
    if text in ("", "open"):
        return None
    if text == "creator":
        if not authenticated:
            raise ConfigError(
                "zookeeper.acl=creator",
                "a session without credentials cannot own a node",
                "give zookeeper.auth=digest:USER:PASSWORD or sasl:USER:PASSWORD too",
            )
        return AclPolicy((AclEntry(_ALL, "auth", ""),))
    return AclPolicy(tuple(_entry(number, part.strip()) for number, part in enumerate(text.split(","), 1)))


def _entry(number: int, text: str) -> AclEntry:
    where = f"zookeeper.acl: entry {number}"
    scheme, _, rest = text.partition(":")
    who, _, letters = rest.rpartition(":")
    if not (scheme and who and letters) or not set(letters) <= _PERMISSIONS.keys():
        raise ConfigError(
            where,
            "is not SCHEME:ID:PERMISSIONS, with permissions out of cdrwa",
            "as in zookeeper.acl=sasl:app:cdrwa,world:anyone:r; or: open, creator",
        )
    if scheme == "digest" and not _DIGEST.fullmatch(who):
        raise ConfigError(
            where,
            "needs the password's hash as ZooKeeper keeps it, and no password",
            "as DigestAuthenticationProvider prints it: USER:BASE64",
        )
    if scheme == "auth":
        raise ConfigError(where, "auth is not an identity in a list", "write zookeeper.acl=creator")
    return AclEntry(sum(_PERMISSIONS[letter] for letter in set(letters)), scheme, who)


def lists_for(
    policy: AclPolicy,
    ours: Iterable[str],
    shared: Iterable[str],
    read: Callable[[Sequence[str]], Sequence[Acl | OffsetMgrError]],
) -> dict[str, Acl | OffsetMgrError]:
    """Returns the ACL of each node to be created: ``ours`` are ephemeral, ``shared`` are persistent. ``read`` returns
    the ACLs of existing nodes. If a parent's ACL is unknown, its error is the result for the nodes below it."""
    lists: dict[str, Acl | OffsetMgrError] = {path: policy.ours() for path in ours}
    outermost_first = sorted(shared, key=lambda path: path.count("/"))
    new = set(outermost_first)
    parents = list(dict.fromkeys(above for path in outermost_first if (above := _parent(path)) not in new))
    held = dict(zip(parents, read(parents), strict=True)) if parents else {}
    for path in outermost_first:
        above = _parent(path)
        parent = held.get(above)
        if parent is None:  # created together with this node, so this node's parent decides for both
            lists[path] = lists[above]
        else:
            lists[path] = parent if isinstance(parent, OffsetMgrError) else policy.shared(parent)
    return lists


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_masked(acl: Acl) -> bool:
    """Whether the server has omitted the digests' hashes: since 3.5 it does so for clients without the permission
    admin. Such an ACL cannot be copied to another node."""
    return any(entry.scheme == "digest" and entry.id.endswith(":x") for entry in acl)


def _with(configured: Acl, everybody: int) -> Acl:
    """Returns the ACL with at least these permissions for everybody."""
    others = tuple(entry for entry in configured if (entry.scheme, entry.id) != ("world", "anyone"))
    already = sum(entry.permissions for entry in configured if entry not in others)
    return (*others, AclEntry(already | everybody, "world", "anyone"))


def encode(acl: Acl) -> bytes:
    """Encodes an ACL as in requests."""
    parts = [_INT.pack(len(acl))]
    for permissions, scheme, who in acl:
        parts += [_INT.pack(permissions), *(part for text in (scheme, who) for part in _string(text))]
    return b"".join(parts)


def _string(text: str) -> tuple[bytes, bytes]:
    raw = text.encode()
    return _INT.pack(len(raw)), raw
