"""Members and owners in nodes of the real old consumer and in invalid nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MakeTopic
from kazoo.client import KazooClient
from kazoo_client import connected

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import CorruptData, UnknownVersion, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.sandbox import KafkaBroker, OldConsumer, ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.ownership import Owner, owners, owners_many
from offsetmgr.zookeeper.groups.registry import members, members_many
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.brokers import parse_broker

pytestmark = pytest.mark.servers

REGISTRATION = b'{"version":1,"subscription":{"orders":2},"pattern":"static","timestamp":"1700000000123"}'


@pytest.fixture(params=["zookeeper", "zookeeper34"])
def server(request: pytest.FixtureRequest) -> ZooKeeperServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, ZooKeeperServer)
    return found


@pytest.fixture
def session(server: ZooKeeperServer) -> Iterator[ZookeeperSession]:
    with ZookeeperSession(server.connect, ConnectionConfig(timeout_ms=20_000)) as session:
        yield session


@pytest.fixture
def client(server: ZooKeeperServer) -> Iterator[KazooClient]:
    """A ZooKeeper client that registers members as consumers do."""
    with connected(server.connect) as client:
        yield client


def register(client: KazooClient, group: str, member: str, data: bytes = REGISTRATION) -> None:
    client.create(f"/consumers/{group}/ids/{member}", data, ephemeral=True, makepath=True)


def own(client: KazooClient, group: str, node: str, data: bytes) -> None:
    client.create(f"/consumers/{group}/owners/{node}", data, ephemeral=True, makepath=True)


def test_members_with_host_start_subscription_and_session(
    session: ZookeeperSession, client: KazooClient, unique: str
) -> None:
    generated, configured = f"{unique}_db-1-1700000000123-1a2b3c4d", f"{unique}_worker"
    register(client, unique, generated)
    register(client, unique, configured)
    stat = client.exists(f"/consumers/{unique}/ids/{generated}")

    first, second = members(session, unique)

    assert (first.member_id, first.host, first.started_at_ms) == (generated, "db-1", 1700000000123)
    assert (dict(first.subscription), first.pattern) == ({"orders": 2}, "static")
    assert (first.registered_at_ms, first.czxid) == (stat.ctime, stat.czxid)
    assert first.session_id == client.client_id[0]
    assert (second.member_id, second.host, second.started_at_ms) == (configured, None, None)


def test_an_unreadable_registration_is_a_live_member_with_an_error(
    session: ZookeeperSession, client: KazooClient, unique: str
) -> None:
    register(client, unique, "a", b"{broken")
    register(client, unique, "b", b'{"version":7}')
    register(client, unique, "c")

    broken, newer, fine = members(session, unique)

    assert isinstance(broken.error, CorruptData) and f"/consumers/{unique}/ids/a" in str(broken.error)
    assert isinstance(newer.error, UnknownVersion) and "version 7" in str(newer.error)
    assert fine.error is None


def test_a_group_without_registrations_has_no_members(
    session: ZookeeperSession, client: KazooClient, unique: str
) -> None:
    client.create(f"/consumers/{unique}/offsets", makepath=True)

    assert members(session, unique) == []
    assert members(session, f"{unique}-unknown") == []
    assert owners(session, unique) == {}
    with pytest.raises(UsageError):
        members(session, "a/b")
    with pytest.raises(UsageError):
        owners(session, "a/b")


def test_owners_by_consumer_and_thread(session: ZookeeperSession, client: KazooClient, unique: str) -> None:
    own(client, unique, "orders/10", f"{unique}_db-1-1700000000123-1a2b3c4d-0".encode())
    own(client, unique, "orders/2", f"{unique}_worker-11".encode())
    stats = {n: client.exists(f"/consumers/{unique}/owners/orders/{n}") for n in (2, 10)}

    found = owners(session, unique)

    assert list(found.items()) == [
        (
            TopicPartition("orders", 2),
            Owner(f"{unique}_worker", 11, stats[2].czxid, client.client_id[0], None, stats[2].ctime),
        ),
        (
            TopicPartition("orders", 10),
            Owner(
                f"{unique}_db-1-1700000000123-1a2b3c4d", 0, stats[10].czxid, client.client_id[0], None, stats[10].ctime
            ),
        ),
    ]


def test_unreadable_owners_are_reported_and_not_dropped(
    session: ZookeeperSession, client: KazooClient, unique: str
) -> None:
    own(client, unique, "orders/0", b"")
    own(client, unique, "orders/0-x", b"c-0")

    (found,) = owners_many(session, [unique])

    owner = found.owners[TopicPartition("orders", 0)]
    assert owner.member_id is None and isinstance(owner.error, CorruptData)
    assert set(found.errors) == {f"/consumers/{unique}/owners/orders/0-x"}
    with pytest.raises(CorruptData, match="0-x"):
        owners(session, unique)


def test_many_groups_get_one_result_each(session: ZookeeperSession, client: KazooClient, unique: str) -> None:
    names = [f"{unique}-{n}" for n in range(30)]
    for name in names[::3]:
        register(client, name, f"{name}_worker")
        own(client, name, "orders/0", f"{name}_worker-0".encode())

    found = {one.group: one for one in members_many(session, iter([*names, "a/b"]))}
    owned = {one.group: one for one in owners_many(session, iter([*names, "a/b"]))}

    assert set(found) == set(owned) == {*names, "a/b"}
    for n, name in enumerate(names):
        expected = [f"{name}_worker"] if n % 3 == 0 else []
        assert [member.member_id for member in found[name].members] == expected
        assert [owner.member_id for owner in owned[name].owners.values()] == expected
    assert isinstance(found["a/b"].error, UsageError)
    assert isinstance(owned["a/b"].error, UsageError)


def test_nodes_of_the_real_old_consumer_and_broker_are_parsed(
    kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    topic = make_topic(unique, 4)
    with (
        ZookeeperSession(kafka.zookeeper, ConnectionConfig(timeout_ms=20_000)) as session,
        OldConsumer(tmp_path / "consumer", zookeeper=kafka.zookeeper, group=unique, topic=topic) as consumer,
    ):
        deadline = time.monotonic() + 120
        while len(found := owners(session, unique)) < 4:
            assert time.monotonic() < deadline, f"owned: {found}"
        (member,) = members(session, unique)
        (broker_id,) = session.children(paths.BROKER_IDS) or []
        node = session.get(paths.broker(int(broker_id)))

    assert member.member_id == consumer.member_id
    assert member.error is None
    assert member.host is not None and member.started_at_ms is not None
    assert abs(member.registered_at_ms - member.started_at_ms) < 60_000
    assert sum(member.subscription.values()) == 1
    assert set(found) == {TopicPartition(topic, n) for n in range(4)}
    assert {(owner.member_id, owner.thread, owner.session_id) for owner in found.values()} == {
        (member.member_id, 0, member.session_id)
    }
    assert node is not None
    (endpoint,) = parse_broker(paths.broker(int(broker_id)), int(broker_id), node.data).endpoints
    assert f"{endpoint.host}:{endpoint.port}" == kafka.bootstrap
