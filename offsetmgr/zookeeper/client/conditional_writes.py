"""Conditional writes of callers that read the nodes again after a failed write.

Ordering contract: `commit` returns False only if the caller's next read shows whether the transaction took effect. If
the transaction got no response, `commit` first sends a ``sync``. The server executes the requests of a session in
order, so the transaction takes effect before the response to the ``sync``, or never.

Callers that do not read again interpret the `TransactionResult` themselves: `zookeeper.offsets.edits` decides for each
node of a transaction, and `zookeeper.admin.submit` reports an unknown outcome to the user.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from offsetmgr.core.errors import Conflict
from offsetmgr.zookeeper.client.jute import ZookeeperError
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, OperationState, TransactionOperation, TransactionResult

RACES: Final = frozenset({ZookeeperError.BAD_VERSION, ZookeeperError.NO_NODE, ZookeeperError.NODE_EXISTS})
"""The codes with which the server rejects a write because another client changed the node first."""

_MAX_TRIES: Final = 8


def commit(
    session: ZookeeperSession, operations: Sequence[TransactionOperation], races: Collection[int] = RACES
) -> bool:
    """Sends one transaction, and returns whether the server committed it.

    Returns False if the server rejected the transaction with one of the codes ``races``, or if the outcome is unknown.
    In both cases the caller must read the nodes again. Raises any other error, and `SessionExpired`.
    """
    return committed(session, session.transaction(operations), races)


def committed(session: ZookeeperSession, outcome: TransactionResult, races: Collection[int] = RACES) -> bool:
    """Like `commit`, for a transaction that was already sent."""
    if outcome.error is None:
        return True
    if outcome.state in (OperationState.UNKNOWN, OperationState.NOT_SENT):
        session.sync()
    elif outcome.code not in races:
        raise outcome.error
    return False


def ensure_nodes(session: ZookeeperSession, nodes: Sequence[str], data: bytes = b"") -> None:
    """Creates the missing nodes as persistent nodes with this data. In ``nodes``, parents must precede their children.
    Raises any error of the session."""
    for _ in range(_MAX_TRIES):
        missing = [path for path, node in zip(nodes, session.get_many(nodes), strict=True) if node is None]
        if not missing or commit(session, [Create(path, data) for path in missing]):
            return
    raise Conflict(f"ZooKeeper node {nodes[-1]}", "its parents are missing, or other clients keep changing them")
