"""Scans of many groups on a real ZooKeeper: unusual groups among common ones, and lost connections."""

from collections.abc import Iterator
from itertools import islice

import pytest
from cutting_proxy import MULTI_READ, CuttingProxy
from kazoo.client import KazooClient
from kazoo_client import connected

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import CorruptData, UsageError
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = pytest.mark.servers

ORDERS = [TopicPartition("orders", n) for n in range(12)]
MANY = [TopicPartition("many", n) for n in range(1_203)]
MORE_THAN_ARE_IN_FLIGHT = 257


@pytest.fixture
def client(zookeeper: ZooKeeperServer, unique: str) -> Iterator[KazooClient]:
    """A client in the test's own chroot, so that its unusual groups do not affect other tests."""
    with connected(zookeeper.connect) as client:
        client.ensure_path(f"/{unique}/consumers")
        client.chroot = f"/{unique}"
        yield client


@pytest.fixture
def connect(zookeeper: ZooKeeperServer, client: KazooClient) -> str:
    return f"{zookeeper.connect}{client.chroot}"


@pytest.fixture
def store(connect: str) -> Iterator[ZookeeperStore]:
    with ZookeeperStore(connect, config=ConnectionConfig(timeout_ms=20_000)) as store:
        yield store


def fill(store: ZookeeperStore, groups: dict[str, list[TopicPartition]]) -> None:
    edits = (
        GroupEdit(group, {tp: Change(OffsetAndMetadata(n * 1000 + tp.partition)) for tp in partitions})
        for n, (group, partitions) in enumerate(groups.items())
    )
    for result in store.edit(edits):
        assert not result.failures


def test_many_groups_with_topics_of_all_sizes_are_read_in_the_requested_order(store, unique):
    names = [f"{unique}-{'g' * (n % 9)}-{n}" for n in range(MORE_THAN_ARE_IN_FLIGHT)]
    written = {name: ORDERS[: 1 + n % 12] for n, name in enumerate(names)}
    written[names[60]] = [*ORDERS, *MANY, TopicPartition("größe", 3)]
    fill(store, written)
    requested = [*reversed(names), names[7]]
    found = list(store.scan(requested))
    assert [one.name for one in found] == requested
    numbers = {name: n for n, name in enumerate(names)}
    for one in found:
        assert (one.error, one.errors) == (None, {})
        assert {tp: c.offset for tp, c in one.offsets.items()} == {
            tp: numbers[one.name] * 1000 + tp.partition for tp in written[one.name]
        }
        assert {c.version for c in one.offsets.values()} == {0}


def test_every_uncommon_group_among_common_ones_has_its_own_result(store, client, unique):
    names = [f"{unique}-{n}" for n in range(50)]
    junk, no_partition, absent, empty, leaf, huge = names[3], names[4], names[20], names[21], names[22], names[23]
    fill(store, {name: ORDERS for name in names if name not in (absent, empty, leaf)})
    client.set(f"/consumers/{junk}/offsets/orders/5", b"x")
    client.create(f"/consumers/{no_partition}/offsets/orders/five", b"5")
    client.create(f"/consumers/{empty}/offsets/orders", b"", makepath=True)
    client.create(f"/consumers/{leaf}", b"")
    client.set(f"/consumers/{huge}/offsets/orders/6", b"9223372036854775807")
    found = {one.name: one for one in store.scan([*names[:10], "no/group", *names[10:]])}
    assert isinstance(found["no/group"].error, UsageError)
    assert isinstance(found[no_partition].error, CorruptData)
    assert isinstance(found[junk].errors[ORDERS[5]], CorruptData)
    assert set(found[junk].offsets) == {*ORDERS} - {ORDERS[5]}
    assert [(found[g].offsets, found[g].errors, found[g].error) for g in (absent, empty, leaf)] == [({}, {}, None)] * 3
    assert found[huge].offsets[ORDERS[6]].offset == 9223372036854775807
    common = set(names) - {junk, no_partition, absent, empty, leaf}
    assert all(set(found[group].offsets) == {*ORDERS} for group in common)


@pytest.mark.parametrize("delivered", [True, False])
def test_a_connection_lost_in_a_scan_loses_no_group(zookeeper, client, unique, delivered):
    proxy = CuttingProxy(zookeeper.connect)
    with ZookeeperStore(f"{proxy.connect}{client.chroot}", config=ConnectionConfig(timeout_ms=20_000)) as store:
        names = [f"{unique}-{n}" for n in range(MORE_THAN_ARE_IN_FLIGHT)]
        fill(store, dict.fromkeys(names, ORDERS[:2]))
        scanned = store.scan(names)
        found = list(islice(scanned, 1))
        proxy.cut(MULTI_READ, deliver=delivered)
        found += scanned
    cuts = proxy.cuts
    proxy.close()
    assert cuts == 1
    assert [one.name for one in found] == names
    assert all(set(one.offsets) == {*ORDERS[:2]} and not one.errors and one.error is None for one in found)
