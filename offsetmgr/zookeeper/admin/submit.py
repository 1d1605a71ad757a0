"""Writes a request for the controller if the cluster has not changed, and polls the controller's progress.

Ordering contract: one transaction checks that the brokers and topics have not changed since they were read, and creates
the request's node. The transaction fails if this node exists already. Therefore a request never replaces another
request, and is never based on outdated facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import Conflict, OffsetMgrError
from offsetmgr.core.retry import Backoff, BlockingRetries
from offsetmgr.zookeeper.admin.admin_reader import read_state
from offsetmgr.zookeeper.admin.plan import RequestProgress, RequestStep, progress_of
from offsetmgr.zookeeper.admin.state import AdminState
from offsetmgr.zookeeper.client.jute import ZookeeperError
from offsetmgr.zookeeper.client.session import RACES, ZookeeperSession
from offsetmgr.zookeeper.client.transactions import CheckVersion, Create, OperationState, TransactionOperation
from offsetmgr.zookeeper.nodes import paths

_POLL_S: Final = 0.3


def submit(
    session: ZookeeperSession,
    state: AdminState,
    steps: Sequence[RequestStep],
    save: Callable[[], object] | None = None,
) -> None:
    """Creates the nodes of the request in one transaction, if the nodes of its topics and brokers still have the
    versions in ``state``. First calls ``save``, which writes the before-image.

    Raises `Conflict` if a topic or broker has changed or another request is running; nothing has been written in this
    case. If the transaction fails for another reason, raises the transaction's error. If the connection was lost, the
    error states that the outcome is unknown. Raises `UsageError` if the request is too large.
    """
    what, nodes = steps[0].what, type(steps[0]).nodes(steps)
    if save is not None:
        save()
    topics = {step.topic for step in steps if step.checks_topics}
    brokers = {broker for step in steps for broker in step.brokers}
    operations: list[TransactionOperation] = [
        CheckVersion(paths.topic(name), state.topic(name).version) for name in sorted(topics)
    ]
    operations += [CheckVersion(paths.broker(broker), state.brokers[broker]) for broker in sorted(brokers)]
    operations += [Create(path, data) for path, data in nodes.items()]
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
    session: ZookeeperSession, steps: Sequence[RequestStep], clock: Clock, *, wait_s: float
) -> Iterator[RequestProgress | OffsetMgrError]:
    """Reads the progress of submitted steps every `_POLL_S` seconds until the controller has finished or ``wait_s``
    seconds have passed.

    Yields each result. If a read fails with a retriable error, yields the error and continues.
    """
    retries = BlockingRetries(clock.monotonic() + wait_s, Backoff.fixed(_POLL_S), clock)
    while True:
        try:
            progress = progress_of(read_state(session, {step.topic for step in steps}), steps)
            yield progress
            if progress.ended:
                return
        except OffsetMgrError as error:
            if not error.retriable:
                raise
            yield error
        if not retries.pause():
            return
