"""Checks the chroot of a ZooKeeper ensemble and the permissions of the session, for ``offsetmgr doctor``."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha1
from typing import Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.check_result import CheckResult, CheckStatus, failed_check
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.zookeeper.client.connection import Acl
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes import paths

MAX_GROUPS: Final = 50
"""The number of groups whose permissions are checked if the caller names no groups."""
_NEEDED: Final = {"read": 1, "write": 2, "create": 4, "delete": 8}
_ADMIN: Final = 16
_FIX: Final = "set zookeeper.auth=digest:USER:PASSWORD (or sasl:...) for a user that the ACL names, or change the ACL"


def check_access(session: ZookeeperSession, config: ConnectionConfig, groups: Iterable[str]) -> list[CheckResult]:
    """Returns the results for the chroot and for the directories of consumers. ``groups`` are the groups whose
    directories are checked (some existing groups if empty)."""
    at = session.connect
    try:
        known, brokers = session.children(paths.CONSUMERS), session.children(paths.BROKER_IDS)
    except OffsetMgrError as error:
        return [failed_check("chroot", at, error)]
    rows = [_chroot_row(at, brokers)]
    if known is None:
        why = f"{paths.CONSUMERS} does not exist, so no old consumer has used this ZooKeeper"
        return [*rows, CheckResult("permissions in ZooKeeper", at, CheckStatus.WARNING, why, "check the chroot")]
    chosen = list(groups) or sorted(known)[:MAX_GROUPS]
    nodes = [paths.CONSUMERS]
    for group in chosen:
        nodes += [f"{paths.CONSUMERS}/{group}", f"{paths.CONSUMERS}/{group}/offsets"]
    return [*rows, *_permission_rows(session, config, nodes, len(chosen))]


def _chroot_row(at: str, brokers: list[str] | None) -> CheckResult:
    if brokers is None:
        why = f"exists, but {paths.BROKER_IDS} does not: no broker has used this ZooKeeper and chroot"
        return CheckResult("chroot", at, CheckStatus.WARNING, why, "check the path after the host names")
    if not brokers:
        why = "exists; no broker is registered"
        return CheckResult("chroot", at, CheckStatus.WARNING, why, "start the brokers, or check the chroot")
    return CheckResult("chroot", at, CheckStatus.OK, f"exists; {count_of(len(brokers), 'registered broker')}")


def _permission_rows(
    session: ZookeeperSession, config: ConnectionConfig, nodes: list[str], groups: int
) -> list[CheckResult]:
    """Returns one row for each permission that is missing or not known, or a single row if there is none."""
    check, at = "permissions in ZooKeeper", session.connect
    try:
        acls = session.acls(nodes)
    except OffsetMgrError as error:
        return [failed_check(check, at, error)]
    missing: dict[str, list[str]] = {}
    unknown: list[str] = []
    for node, acl in zip(nodes, acls, strict=True):
        if acl is None:
            continue
        if isinstance(acl, OffsetMgrError):
            missing.setdefault("read", []).append(node)
            continue
        allowed, undecided = _permissions(acl, config)
        lacking = [name for name, bit in _NEEDED.items() if not allowed & bit]
        if lacking and undecided:
            unknown.append(node)
        elif lacking:
            missing.setdefault(", ".join(lacking), []).append(node)
    rows = [
        CheckResult(check, at, CheckStatus.FAILED, f"not allowed to {what}: {list_of(where, 3)}", _FIX)
        for what, where in missing.items()
    ]
    if unknown:
        why = f"an ACL has an entry that only the server can evaluate: {list_of(unknown, 3)}"
        rows.append(CheckResult(check, at, CheckStatus.UNKNOWN, why))
    if not rows:
        detail = f"{', '.join(_NEEDED)} allowed in {paths.CONSUMERS} and {count_of(groups, 'group')}"
        rows.append(CheckResult(check, at, CheckStatus.OK, detail))
    return rows


def _permissions(acl: Acl, config: ConnectionConfig) -> tuple[int, bool]:
    """Returns the permissions of the session by its credentials, and whether the ACL has further entries that only the
    server can evaluate."""
    ids = {scheme: _acl_id(scheme, secret) for scheme, secret in config.zookeeper_auth}
    allowed, undecided = 0, False
    for entry in acl:
        if (entry.scheme, entry.id) in (("world", "anyone"), *ids.items()):
            allowed |= entry.permissions
        elif entry.scheme == "digest":
            # A server masks the hash for clients without the permission admin. A masked entry with this permission is
            # not of this session: its password is another one.
            masked = ids.get("digest", "").partition(":")[0] + ":x"
            undecided |= entry.id == masked and not entry.permissions & _ADMIN
        elif entry.scheme != "sasl" or "kerberos" in ids:
            undecided = True
    return allowed, undecided


def _acl_id(scheme: str, secret: str) -> str:
    """Returns the id of a credential in ACLs (DigestAuthenticationProvider.generateDigest)."""
    user = secret.partition(":")[0]
    if scheme != "digest":
        return user
    return f"{user}:{b64encode(sha1(secret.encode(), usedforsecurity=False).digest()).decode()}"
