"""Access lists of the nodes that we create: what the configuration says, and what follows from it for each node.

ZooKeeper's ACLs are not inherited, so each new node is given one. No I/O here. Source: ZooDefs.Perms and Ids, and
kafka.utils.ZkUtils.defaultAcls for what a secured broker gives to its own nodes.
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
"""All to everybody, as Kafka has it under ``/consumers``."""


@dataclass(frozen=True, slots=True)
class AclPolicy:
    """Which ACL a node that we create is given.

    ``configured`` is what the configuration asks for. A node that is ours alone (it goes with our session) gets it, and
    everybody may read it: other members must. A persistent node lies where others write too, old consumers above all,
    which know nothing of our credentials: see `shared`.
    """

    configured: Acl

    def ours(self) -> Acl:
        return _with(self.configured, _READ)

    def shared(self, parent: Acl) -> Acl:
        """The list of a persistent node below a node with this list.

        Where not everybody may write to the parent, the new node takes over the parent's list: whoever could write
        there can write here, and nobody else. Where everybody may, the configured list holds, and besides everybody may
        do all but change the list: an old consumer can write the node, and cannot lock anybody out of it.
        """
        if not any(entry.scheme == "world" and entry.permissions & _WRITE for entry in parent):
            return parent
        return _with(self.configured, _ALL_BUT_ADMIN)


def parse_acl(text: str, authenticated: bool) -> AclPolicy | None:
    """``zookeeper.acl``: ``open`` (None: every node as Kafka has them), ``creator``, or a list as
    ``sasl:app:cdrw,digest:USER:HASH:r``. Raises `ConfigError`, without quoting what may be a password."""
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
        raise ConfigError(where, "auth names nobody in a list", "write zookeeper.acl=creator")
    return AclEntry(sum(_PERMISSIONS[letter] for letter in set(letters)), scheme, who)


def lists_for(
    policy: AclPolicy,
    ours: Iterable[str],
    shared: Iterable[str],
    read: Callable[[Sequence[str]], Sequence[Acl | OffsetMgrError]],
) -> dict[str, Acl | OffsetMgrError]:
    """The list of each node to be created: ``ours`` go with our session, ``shared`` are persistent. ``read`` gives the
    lists of nodes that exist. Where a parent's list is not known, its error stands for what lies below it."""
    lists: dict[str, Acl | OffsetMgrError] = {path: policy.ours() for path in ours}
    outermost_first = sorted(shared, key=lambda path: path.count("/"))
    new = set(outermost_first)
    parents = list(dict.fromkeys(above for path in outermost_first if (above := _parent(path)) not in new))
    held = dict(zip(parents, read(parents), strict=True)) if parents else {}
    for path in outermost_first:
        above = _parent(path)
        parent = held.get(above)
        if parent is None:  # created along with this one, and from the same parent on
            lists[path] = lists[above]
        else:
            lists[path] = parent if isinstance(parent, OffsetMgrError) else policy.shared(parent)
    return lists


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_masked(acl: Acl) -> bool:
    """Whether a server has left out the digests' hashes, as it does for those without the permission admin since 3.5:
    such a list cannot be given to another node."""
    return any(entry.scheme == "digest" and entry.id.endswith(":x") for entry in acl)


def _with(configured: Acl, everybody: int) -> Acl:
    """The list with at least these permissions for everybody."""
    others = tuple(entry for entry in configured if (entry.scheme, entry.id) != ("world", "anyone"))
    already = sum(entry.permissions for entry in configured if entry not in others)
    return (*others, AclEntry(already | everybody, "world", "anyone"))


def encode(acl: Acl) -> bytes:
    """An ACL as requests carry it."""
    parts = [_INT.pack(len(acl))]
    for permissions, scheme, who in acl:
        parts += [_INT.pack(permissions), *(part for text in (scheme, who) for part in _string(text))]
    return b"".join(parts)


def _string(text: str) -> tuple[bytes, bytes]:
    raw = text.encode()
    return _INT.pack(len(raw)), raw
