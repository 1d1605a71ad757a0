"""`ZookeeperStore` on a real server: the deletion of a whole group."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from offset_values import offsets

from offsetmgr.core.errors import GroupActive, GroupNotFound, PartialFailure
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.stores.zookeeper import ZookeeperStore

pytest_plugins = ["zookeeper_store_fixtures"]

pytestmark = pytest.mark.servers

T0, T1 = (TopicPartition("orders", n) for n in range(2))


def test_a_group_is_deleted_with_its_before_images(zk_store: ZookeeperStore, kazoo: KazooClient, unique: str) -> None:
    zk_store.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    kazoo.create(f"/consumers/{unique}/ids")
    kazoo.create(f"/consumers/{unique}/owners/orders", makepath=True)

    result = zk_store.delete_group(unique)

    assert {tp: o.before.offset for tp, o in result.outcomes.items() if isinstance(o.before, Committed)} == {
        T0: 5,
        T1: 6,
    }
    assert kazoo.exists(f"/consumers/{unique}") is None
    with pytest.raises(GroupNotFound):
        zk_store.delete_group(unique)


def test_a_group_with_live_consumers_is_not_deleted(zk_store: ZookeeperStore, kazoo: KazooClient, unique: str) -> None:
    zk_store.commit(unique, {T0: OffsetAndMetadata(5)})
    kazoo.create(f"/consumers/{unique}/ids/{unique}_h-1700000000123-aabbccdd", b"{", ephemeral=True, makepath=True)

    with pytest.raises(GroupActive) as caught:
        zk_store.delete_group(unique)

    assert caught.value.members == (f"{unique}_h-1700000000123-aabbccdd",)
    assert offsets(dict(zk_store.fetch(unique))) == {T0: 5}


def test_a_group_with_an_unreadable_offset_is_not_deleted(
    zk_store: ZookeeperStore, kazoo: KazooClient, unique: str
) -> None:
    zk_store.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    kazoo.set(f"/consumers/{unique}/offsets/orders/1", b"junk")

    with pytest.raises(PartialFailure, match="orders-1"):
        zk_store.delete_group(unique)

    assert kazoo.get(f"/consumers/{unique}/offsets/orders/0")[0] == b"5"


def test_a_group_too_large_for_one_transaction_is_deleted_too(
    zk_store: ZookeeperStore, kazoo: KazooClient, unique: str
) -> None:
    topic = "long-topic-name-".ljust(240, "x")
    zk_store.commit(unique, {TopicPartition(topic, n): OffsetAndMetadata(n) for n in range(3000)})

    result = zk_store.delete_group(unique)

    assert len(result.outcomes) == 3000
    assert kazoo.exists(f"/consumers/{unique}") is None
