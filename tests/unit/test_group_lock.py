"""The requests of a locked group: retries at a new coordinator, the loss of the lock, and writes in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import (
    CoordinatorNotAvailable,
    GroupActive,
    LockLost,
    NotAuthorized,
    NotCoordinator,
    OffsetMgrError,
    Superseded,
    TimedOut,
    Unreachable,
)
from offsetmgr.core.model import GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.groups import lock_membership, static_membership
from offsetmgr.kafka.groups.group_lock import GroupLock
from offsetmgr.kafka.groups.lock_membership import LockMembership
from offsetmgr.kafka.groups.static_membership import StaticMemberLock
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import kafka_error

A = TopicPartition("t", 0)
OFFSETS = {A: OffsetAndMetadata(5)}
MEMBER = LockMembership("g", "member-1", 1)
OLD, NEW = Address("old", 1), Address("new", 1)
NO_ANSWER = TimedOut("broker old:1", "no answer")
BROKEN = Unreachable("broker old:1", "the connection broke")
MOVED = NotCoordinator("commit of group g", "another broker coordinates the group")
ENDED = kafka_error(ErrorCode.ILLEGAL_GENERATION, "commit of group g")
UNKNOWN = "the outcome of the write is unknown"


class Cluster:
    """Two brokers. It scripts the outcome of each request, and records the requests with their connections."""

    def __init__(self, **scripts: Sequence[object]) -> None:
        self.scripts = {name: list(outcomes) for name, outcomes in scripts.items()}
        self.sent: list[tuple[str, str]] = []
        self.members: Sequence[Any] = ()

    def outcome(self, name: str, default: object = None) -> Any:
        outcome = self.scripts[name].pop(0) if self.scripts.get(name) else default
        if isinstance(outcome, OffsetMgrError):
            raise outcome
        return outcome

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Cluster:
        def request(name: str, default: object) -> Callable[..., Awaitable[Any]]:
            async def send(connection: object, *_: object, **__: object) -> Any:
                self.sent.append((name, str(connection)))
                return self.outcome(name, default)

            return send

        for name, default in (("commit", {A: None}), ("delete", {A: None}), ("heartbeat", 0)):
            monkeypatch.setattr(lock_membership, name, request(name, default))

        async def leave(*_: object, **__: object) -> None:
            self.sent.append(("leave", ""))

        monkeypatch.setattr(lock_membership, "leave", leave)
        return self

    # The methods of `Client` that a lock calls.

    async def coordinator(self, group: str, deadline: float) -> Address:
        return cast(Address, self.outcome("coordinator", NEW))

    async def describe(self, groups: Sequence[str], deadline: float) -> dict[str, object]:
        described = GroupDescription("g", "STABLE", coordinator="new:1", members=tuple(self.members))
        return {"g": self.outcome("describe", described)}

    def node(self, address: Address) -> Any:
        cluster = self

        class Node:
            async def connection(self, deadline: float) -> str:
                cluster.outcome("connect")
                return f"shared {address.host}"

            @asynccontextmanager
            async def dedicated_connection(self, deadline: float) -> AsyncIterator[Any]:
                cluster.outcome("connect")

                class Dedicated:
                    connection = f"dedicated {address.host}"

                yield Dedicated

        return Node()


def short(cluster: Cluster) -> GroupLock:
    return GroupLock(cast(Client, cluster), OLD, MEMBER, cast(BrokerConnection, "joined"))


def static(cluster: Cluster, *, member: LockMembership = MEMBER) -> StaticMemberLock:
    return StaticMemberLock(cast(Client, cluster), OLD, member, replaced=False, keeps_epochs=True)


both_locks = pytest.mark.parametrize("lock", [short, static])
Lock = Callable[[Cluster], GroupLock]


def run(work: Callable[[float], Awaitable[Any]], *, seconds: float = 120) -> Any:
    async def with_deadline() -> Any:
        return await work(asyncio.get_running_loop().time() + seconds)

    return asyncio.run(with_deadline())


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    return lambda **scripts: Cluster(**scripts).install(monkeypatch)


Install = Callable[..., Cluster]


@pytest.mark.parametrize(
    ("lock", "connections"),
    [(short, ["joined", "shared new"]), (static, ["dedicated old", "dedicated new"])],
)
def test_a_commit_follows_the_coordinator(install: Install, lock: Lock, connections: list[str]) -> None:
    cluster = install(commit=[MOVED])

    async def commit(deadline: float) -> Any:
        return await lock(cluster).commit(OFFSETS, deadline)

    assert run(commit) == {A: None}
    assert cluster.sent == [("commit", connection) for connection in connections]


@both_locks
def test_a_lost_lock_writes_nothing_and_is_remembered(install: Install, lock: Lock) -> None:
    cluster = install(commit=[ENDED])

    async def commit_twice(deadline: float) -> list[str]:
        group_lock = lock(cluster)
        messages = []
        for _ in range(2):
            with pytest.raises(LockLost) as caught:
                await group_lock.commit(OFFSETS, deadline)
            messages.append(str(caught.value))
        return messages

    first, second = run(commit_twice)

    assert first == second
    assert first.startswith("lock of group g: was lost before the write; nothing was written: this member's generation")
    assert len(cluster.sent) == 1


@both_locks
@pytest.mark.parametrize(
    "failure", [NO_ANSWER, BROKEN, CoordinatorNotAvailable("commit of group g", "too few replicas")]
)
def test_a_write_without_a_response_is_in_doubt_if_the_lock_is_lost_then(
    install: Install, lock: Lock, failure: OffsetMgrError
) -> None:
    cluster = install(commit=[failure, ENDED])

    async def commit(deadline: float) -> None:
        with pytest.raises(type(failure), match=UNKNOWN):
            await lock(cluster).commit(OFFSETS, deadline)

    run(commit)
    assert len(cluster.sent) == 2


@both_locks
def test_a_write_without_a_response_is_in_doubt_if_no_coordinator_is_found_then(install: Install, lock: Lock) -> None:
    cluster = install(commit=[BROKEN], coordinator=[NotAuthorized("group g", "not authorized")])

    async def commit(deadline: float) -> None:
        with pytest.raises(Unreachable, match=UNKNOWN):
            await lock(cluster).commit(OFFSETS, deadline)

    run(commit)


def test_a_write_that_was_never_sent_is_not_in_doubt(install: Install) -> None:
    cluster = install(connect=[BROKEN] * 100)

    async def commit(deadline: float) -> str:
        with pytest.raises(Unreachable) as caught:
            await static(cluster).commit(OFFSETS, deadline)
        return str(caught.value)

    assert UNKNOWN not in run(commit, seconds=0.1)
    assert cluster.sent == []


@both_locks
def test_a_deletion_follows_the_coordinator(install: Install, lock: Lock) -> None:
    """The heartbeat before the deletion may meet the former coordinator. The lock is not lost then."""
    cluster = install(heartbeat=[ErrorCode.NOT_COORDINATOR, ErrorCode.REBALANCE_IN_PROGRESS])

    async def delete(deadline: float) -> Any:
        return await lock(cluster).delete([A], deadline)

    assert run(delete) == {A: None}
    assert [name for name, _ in cluster.sent] == ["heartbeat", "heartbeat", "delete"]


@both_locks
def test_nothing_is_deleted_without_the_lock(install: Install, lock: Lock) -> None:
    cluster = install(heartbeat=[ErrorCode.FENCED_INSTANCE_ID])

    async def delete(deadline: float) -> None:
        with pytest.raises(Superseded, match="FENCED_INSTANCE_ID"):
            await lock(cluster).delete([A], deadline)

    run(delete)
    assert [name for name, _ in cluster.sent] == ["heartbeat"]


def test_a_group_on_a_broker_without_locks_is_deleted_without_a_heartbeat(install: Install) -> None:
    cluster = install()

    async def delete(deadline: float) -> Any:
        return await static(cluster, member=lock_membership.non_member("g")).delete([A], deadline)

    assert run(delete) == {A: None}
    assert cluster.sent == [("delete", "dedicated old")]


# --- heartbeats of the static member ---------------------------------------------------------------


def after_heartbeats(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *, count: int
) -> tuple[OffsetMgrError | None, list[str]]:
    """Returns `StaticMemberLock.lost` after this number of heartbeats, and the requests."""
    monkeypatch.setattr(static_membership, "_HEARTBEAT_INTERVAL_S", 0.001)

    async def hold(_: float) -> OffsetMgrError | None:
        group_lock = static(cluster)
        while group_lock.lost is None and sum(name == "heartbeat" for name, _ in cluster.sent) < count:
            await asyncio.sleep(0.001)
        return group_lock.lost

    return run(hold), [name for name, _ in cluster.sent]


@pytest.mark.parametrize(
    "outcome",
    [BROKEN, NO_ANSWER, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
)
def test_a_heartbeat_without_success_is_repeated(
    install: Install, monkeypatch: pytest.MonkeyPatch, outcome: object
) -> None:
    lost, _ = after_heartbeats(install(heartbeat=[outcome] * 3), monkeypatch, count=5)
    assert lost is None


def test_a_heartbeat_shows_that_another_process_has_replaced_this_one(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, sent = after_heartbeats(install(heartbeat=[0, ErrorCode.FENCED_INSTANCE_ID]), monkeypatch, count=100)
    assert isinstance(lost, Superseded)
    assert "leave" not in sent


def test_a_permanent_error_of_a_heartbeat_ends_the_lock(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = install(heartbeat=[ErrorCode.GROUP_AUTHORIZATION_FAILED])
    lost, _ = after_heartbeats(cluster, monkeypatch, count=100)
    assert isinstance(lost, NotAuthorized)


@pytest.mark.parametrize("describe", [[], [BROKEN]])
def test_the_lock_leaves_the_group_to_a_consumer_that_joins(
    install: Install, monkeypatch: pytest.MonkeyPatch, describe: list[object]
) -> None:
    cluster = install(heartbeat=[ErrorCode.REBALANCE_IN_PROGRESS], describe=describe)
    lost, sent = after_heartbeats(cluster, monkeypatch, count=100)
    assert isinstance(lost, GroupActive)
    assert sent == ["heartbeat", "leave"]
