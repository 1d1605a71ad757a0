"""Conditional writes whose callers read the nodes again after a failure."""

from typing import cast

import pytest

from offsetmgr.core.errors import OffsetMgrError, ServerError, SessionExpired, TimedOut
from offsetmgr.zookeeper.client.conditional_writes import RACES, commit
from offsetmgr.zookeeper.client.jute import ZookeeperError
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, OperationState, TransactionResult

OPERATIONS = [Create("/a")]


class Session:
    """Answers every transaction with one result."""

    def __init__(self, result: TransactionResult, expired: OffsetMgrError | None = None) -> None:
        self.calls: list[str] = []
        self._result = result
        self._expired = expired

    def transaction(self, operations: object) -> TransactionResult:
        assert operations == OPERATIONS
        self.calls.append("transaction")
        return self._result

    def sync(self) -> None:
        self.calls.append("sync")
        if self._expired is not None:
            raise self._expired

    def commit(self, races: frozenset[ZookeeperError] = RACES) -> bool:
        return commit(cast(ZookeeperSession, self), OPERATIONS, races)


def rejection(code: ZookeeperError) -> TransactionResult:
    return TransactionResult(OperationState.REJECTED, 0, code, ServerError("ZooKeeper node /a", code.name))


def test_a_committed_transaction_returns_true() -> None:
    session = Session(TransactionResult(OperationState.COMMITTED))
    assert session.commit()
    assert session.calls == ["transaction"]


@pytest.mark.parametrize("code", sorted(RACES))
def test_a_rejection_because_another_client_was_first_returns_false(code: ZookeeperError) -> None:
    session = Session(rejection(code))
    assert not session.commit()
    assert session.calls == ["transaction"]


def test_any_other_rejection_is_raised() -> None:
    with pytest.raises(ServerError, match="NO_AUTH"):
        Session(rejection(ZookeeperError.NO_AUTH)).commit()
    with pytest.raises(ServerError, match="NO_NODE"):
        Session(rejection(ZookeeperError.NO_NODE)).commit(races=frozenset({ZookeeperError.NODE_EXISTS}))


@pytest.mark.parametrize("state", [OperationState.UNKNOWN, OperationState.NOT_SENT])
def test_without_a_response_a_sync_precedes_the_callers_next_read(state: OperationState) -> None:
    result = TransactionResult(state, error=TimedOut("ZooKeeper", "no response"))
    session = Session(result)
    assert not session.commit()
    assert session.calls == ["transaction", "sync"]
    with pytest.raises(SessionExpired):
        Session(result, SessionExpired("ZooKeeper", "the session has expired")).commit()
