"""`ZookeeperStore` on a real server: the chroot, and the identity of the store."""

import pytest

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import CorruptData, ServerError
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = pytest.mark.servers

T0 = TopicPartition("orders", 0)


def test_a_missing_chroot_is_an_error_and_an_empty_one_has_no_groups_and_accepts_commits(zookeeper, kazoo, unique):
    def commit() -> None:
        store.commit("g", {T0: OffsetAndMetadata(1)})

    with ZookeeperStore(f"{zookeeper.connect}/{unique}", config=ConnectionConfig(timeout_ms=20_000)) as store:
        reads = (lambda: list(store.groups()), lambda: store.fetch("g"), lambda: list(store.scan(["g"])))
        for call in (*reads, commit, store.identity):
            with pytest.raises(ServerError, match=f"chroot /{unique} does not exist"):
                call()
    kazoo.create(f"/{unique}")
    with ZookeeperStore(f"{zookeeper.connect}/{unique}", config=ConnectionConfig(timeout_ms=20_000)) as store:
        assert list(store.groups()) == []
        commit()
        assert list(store.groups()) == ["g"]
    assert kazoo.get(f"/{unique}/consumers/g/offsets/orders/0")[0] == b"1"


def test_the_identity_is_the_cluster_id_or_else_the_creation_of_brokers(zookeeper, kazoo, unique):
    kazoo.create(f"/{unique}/brokers", makepath=True)
    created = kazoo.exists(f"/{unique}/brokers")
    connect = f"{zookeeper.connect}/{unique}"
    with ZookeeperStore(connect, config=ConnectionConfig(timeout_ms=20_000)) as store:
        without = store.identity()
        kazoo.create(f"/{unique}/cluster/id", b'{"version":"1","id":"Xyz-123"}', makepath=True)
        with_id = store.identity()
        kazoo.set(f"/{unique}/cluster/id", b"junk")
        with pytest.raises(CorruptData, match="/cluster/id"):
            store.identity()
    assert without.id == f"{connect}#brokers:{created.czxid}:{created.ctime}"
    assert "/brokers" in without.how
    assert (with_id.kind, with_id.id) == ("zookeeper", "Xyz-123")
    assert f"/{unique}/cluster/id" in with_id.how
