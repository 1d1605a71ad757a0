"""Writes a request for the controller if the cluster has not changed, and polls the controller's progress.

Ordering contract: one transaction checks that the brokers and topics have not changed since they were read, and creates
the request's node. The transaction fails if this node exists already. Therefore a request never replaces another
request, and is never based on outdated facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import Conflict, OffsetMgrError
from offsetmgr.zookeeper.admin.state import AdminState, RequestProgress
from offsetmgr.zookeeper.client.conditional_writes import RACES
from offsetmgr.zookeeper.client.jute import ZookeeperError
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import CheckVersion, Create, OperationState, TransactionOperation
from offsetmgr.zookeeper.nodes import paths


def submit(
    session: ZookeeperSession,
    what: str,
    nodes: Iterable[Create],
    state: AdminState,
    topics: Iterable[str],
    brokers: Iterable[int] = (),
) -> None:
    """Creates ``nodes`` in one transaction, if the nodes of ``topics`` and ``brokers`` still have the versions in
    ``state``.

    Raises `Conflict` if a topic or broker has changed or another request is running; nothing has been written in this
    case. If the transaction fails for another reason, raises the transaction's error. If the connection was lost, the
    error states that the outcome is unknown.
    """
    operations: list[TransactionOperation] = [
        CheckVersion(paths.topic(name), state.topic(name).version) for name in sorted(set(topics))
    ]
    operations += [CheckVersion(paths.broker(broker), state.brokers[broker]) for broker in sorted(set(brokers))]
    operations += nodes
    outcome = session.transaction(operations)
    if outcome.error is None:
        return
    if outcome.failed_index is not None and outcome.code in RACES:
        failed_operation = operations[outcome.failed_index]
        why = (
            "exists already: another request is running"
            if outcome.code == ZookeeperError.NODE_EXISTS
            else "changed meanwhile"
        )
        raise Conflict(what, f"{failed_operation.path} {why}; nothing was written", "run the command again")
    if outcome.state is OperationState.UNKNOWN:
        error = outcome.error
        raise type(error)(
            error.what,
            f"{error.why}; whether the request was written is unknown",
            "check whether the request was written before you repeat the command",
        )
    raise outcome.error


def poll_progress(
    read_progress: Callable[[], RequestProgress], clock: Clock, *, wait_s: float, poll_s: float = 0.3
) -> Iterator[RequestProgress | OffsetMgrError]:
    """Reads the progress every ``poll_s`` seconds until the controller has finished or ``wait_s`` seconds have passed.

    Yields each result. If a read fails with a retriable error, yields the error and continues.
    """
    deadline = clock.monotonic() + wait_s
    while True:
        try:
            progress = read_progress()
            yield progress
            if progress.ended:
                return
        except OffsetMgrError as error:
            if not error.retriable:
                raise
            yield error
        if clock.monotonic() >= deadline:
            return
        clock.sleep(min(poll_s, max(0.0, deadline - clock.monotonic())))
