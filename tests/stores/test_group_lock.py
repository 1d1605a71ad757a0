"""The requests of a locked group: retries at a new coordinator, the loss of the lock, and writes in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from offsetmgr.core import errors
from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.core.model import GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.groups import group_lock as lock_membership
from offsetmgr.kafka.groups import group_lock as static_membership
from offsetmgr.kafka.groups.group_lock import GroupLock, StaticMemberLock
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.kafka.protocol.requests import LockMembership

A = TopicPartition("t", 0)
OFFSETS = {A: OffsetAndMetadata(5)}
MEMBER = LockMembership("g", "member-1", 1)
OLD, NEW = Address("old", 1), Address("new", 1)
NO_ANSWER = errors.TimedOut("broker old:1", "no answer")
BROKEN = errors.Unreachable("broker old:1", "the connection broke")
FEW_REPLICAS = errors.CoordinatorNotAvailable("commit of group g", "too few replicas")
MOVED = errors.NotCoordinator("commit of group g", "another broker coordinates the group")
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
        if isinstance(outcome, errors.OffsetMgrError):
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

    def rotate_after(self, errors: Iterable[OffsetMgrError]) -> None: ...

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
    return GroupLock(cast(Client, cluster), OLD, MEMBER, cast(Any, "joined"))


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


def commit(lock: GroupLock, deadline: float) -> Any:
    return lock.commit(OFFSETS, deadline)


def delete(lock: GroupLock, deadline: float) -> Any:
    return lock.delete([A], deadline)


@pytest.mark.parametrize(
    ("lock", "connections"), [(short, ["joined", "shared new"]), (static, ["dedicated old", "dedicated new"])]
)
def test_a_commit_follows_the_coordinator(install: Install, lock: Lock, connections: list[str]) -> None:
    cluster = install(commit=[MOVED])
    assert run(lambda deadline: commit(lock(cluster), deadline)) == {A: None}
    assert cluster.sent == [("commit", connection) for connection in connections]


@both_locks
def test_a_lost_lock_writes_nothing_and_is_remembered(install: Install, lock: Lock) -> None:
    cluster = install(commit=[ENDED])

    async def commit_twice(deadline: float) -> list[str]:
        group_lock = lock(cluster)
        found = [*await asyncio.gather(commit(group_lock, deadline), return_exceptions=True)]
        found += await asyncio.gather(commit(group_lock, deadline), return_exceptions=True)
        assert all(isinstance(one, errors.LockLost) for one in found)
        return [str(one) for one in found]

    first, second = run(commit_twice)
    assert first == second
    assert first.startswith("lock of group g: was lost before the write; nothing was written: this member's generation")
    assert len(cluster.sent) == 1


@both_locks
@pytest.mark.parametrize(
    ("failure", "then"),
    [
        (NO_ANSWER, {"commit": [NO_ANSWER, ENDED]}),
        (BROKEN, {"commit": [BROKEN, ENDED]}),
        (FEW_REPLICAS, {"commit": [FEW_REPLICAS, ENDED]}),
        (BROKEN, {"commit": [BROKEN], "coordinator": [errors.NotAuthorized("group g", "not authorized")]}),
    ],
)
def test_a_write_without_a_response_is_in_doubt_if_the_lock_is_lost_or_no_coordinator_is_found_then(
    install: Install, lock: Lock, failure: errors.OffsetMgrError, then: dict[str, list[errors.OffsetMgrError]]
) -> None:
    cluster = install(**then)
    with pytest.raises(type(failure), match=UNKNOWN):
        run(lambda deadline: commit(lock(cluster), deadline))
    assert len(cluster.sent) == len(then["commit"])


def test_a_write_that_was_never_sent_is_not_in_doubt(install: Install) -> None:
    cluster = install(connect=[BROKEN] * 100)
    with pytest.raises(errors.Unreachable) as caught:
        run(lambda deadline: commit(static(cluster), deadline), seconds=0.1)
    assert UNKNOWN not in str(caught.value)
    assert cluster.sent == []


@both_locks
def test_a_deletion_follows_the_coordinator(install: Install, lock: Lock) -> None:
    """The heartbeat before the deletion may meet the former coordinator. The lock is not lost then."""
    cluster = install(heartbeat=[ErrorCode.NOT_COORDINATOR, ErrorCode.REBALANCE_IN_PROGRESS])
    assert run(lambda deadline: delete(lock(cluster), deadline)) == {A: None}
    assert [name for name, _ in cluster.sent] == ["heartbeat", "heartbeat", "delete"]


@both_locks
def test_nothing_is_deleted_without_the_lock(install: Install, lock: Lock) -> None:
    cluster = install(heartbeat=[ErrorCode.FENCED_INSTANCE_ID])
    with pytest.raises(errors.Superseded, match="FENCED_INSTANCE_ID"):
        run(lambda deadline: delete(lock(cluster), deadline))
    assert [name for name, _ in cluster.sent] == ["heartbeat"]


def test_a_group_on_a_broker_without_locks_is_deleted_without_a_heartbeat(install: Install) -> None:
    cluster = install()
    unlocked = lock_membership.non_member("g")
    assert run(lambda deadline: delete(static(cluster, member=unlocked), deadline)) == {A: None}
    assert cluster.sent == [("delete", "dedicated old")]


# --- heartbeats of the static member ---------------------------------------------------------------


def after_heartbeats(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *, count: int
) -> tuple[errors.OffsetMgrError | None, list[str]]:
    """Returns `StaticMemberLock.lost` after this number of heartbeats, and the requests."""
    monkeypatch.setattr(static_membership, "_HEARTBEAT_INTERVAL_S", 0.001)

    async def hold(_: float) -> errors.OffsetMgrError | None:
        group_lock = static(cluster)
        while group_lock.lost is None and sum(name == "heartbeat" for name, _ in cluster.sent) < count:
            await asyncio.sleep(0.001)
        return group_lock.lost

    return run(hold), [name for name, _ in cluster.sent]


@pytest.mark.parametrize(
    "outcome", [BROKEN, NO_ANSWER, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
)
def test_a_heartbeat_without_success_is_repeated(install, monkeypatch, outcome):
    lost, _ = after_heartbeats(install(heartbeat=[outcome] * 3), monkeypatch, count=5)
    assert lost is None


@pytest.mark.parametrize(
    ("heartbeats", "error"),
    [
        ([0, ErrorCode.FENCED_INSTANCE_ID], errors.Superseded),
        ([ErrorCode.GROUP_AUTHORIZATION_FAILED], errors.NotAuthorized),
    ],
    ids=["another process has replaced this one", "not authorized"],
)
def test_a_permanent_error_of_a_heartbeat_ends_the_lock(install, monkeypatch, heartbeats, error):
    lost, sent = after_heartbeats(install(heartbeat=heartbeats), monkeypatch, count=100)
    assert isinstance(lost, error)
    assert error is errors.NotAuthorized or "leave" not in sent


@pytest.mark.parametrize("describe", [[], [BROKEN]])
def test_the_lock_leaves_the_group_to_a_consumer_that_joins(install, monkeypatch, describe):
    cluster = install(heartbeat=[ErrorCode.REBALANCE_IN_PROGRESS], describe=describe)
    lost, sent = after_heartbeats(cluster, monkeypatch, count=100)
    assert isinstance(lost, errors.GroupActive)
    assert sent == ["heartbeat", "leave"]
