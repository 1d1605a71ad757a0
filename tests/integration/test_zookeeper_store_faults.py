"""`ZookeeperStore` on a real server: lost connections, lost responses, and killed servers."""

from __future__ import annotations

import pytest
from cutting_proxy import MULTI_READ, TRANSACTION, CuttingProxy
from kazoo.client import KazooClient
from offset_values import offsets

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import PartialFailure, TimedOut, Unreachable
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.stores.zookeeper import ZookeeperStore

pytest_plugins = ["zookeeper_store_fixtures"]

pytestmark = pytest.mark.servers

T0, T1, T2 = (TopicPartition("orders", n) for n in range(3))


def test_a_scan_continues_after_its_connection_is_cut(
    proxy: CuttingProxy, through_proxy: ZookeeperStore, zk_store: ZookeeperStore, unique: str
) -> None:
    names = [f"{unique}-{n}" for n in range(500)]
    list(zk_store.edit(GroupEdit(name, {T0: Change(OffsetAndMetadata(n))}) for n, name in enumerate(names)))
    scanned = through_proxy.scan(names)
    first = next(scanned)

    proxy.cut(MULTI_READ, deliver=True)
    rest = list(scanned)

    assert proxy.cuts == 1
    assert {found.group: offsets(dict(found.offsets)) for found in [first, *rest]} == {
        name: {T0: n} for n, name in enumerate(names)
    }


def test_a_transaction_that_never_arrived_is_sent_again(
    proxy: CuttingProxy, through_proxy: ZookeeperStore, kazoo: KazooClient, unique: str
) -> None:
    through_proxy.commit(unique, {T0: OffsetAndMetadata(5)})

    proxy.cut(TRANSACTION, deliver=False)
    result = through_proxy.commit(unique, {T0: OffsetAndMetadata(6), T1: OffsetAndMetadata(1)})

    assert proxy.cuts == 1
    assert {o.status for o in result.outcomes.values()} == {EditStatus.WRITTEN}
    data, stat = kazoo.get(f"/consumers/{unique}/offsets/orders/0")
    assert (data, stat.version) == (b"6", 1)


def test_a_transaction_whose_response_was_lost_is_recognized_as_committed(
    proxy: CuttingProxy, through_proxy: ZookeeperStore, kazoo: KazooClient, unique: str
) -> None:
    through_proxy.commit(unique, {T0: OffsetAndMetadata(5), T2: OffsetAndMetadata(5)})

    proxy.cut(TRANSACTION, deliver=True)
    (result,) = through_proxy.edit(
        [
            GroupEdit(
                unique,
                {T0: Change(OffsetAndMetadata(6)), T1: Change(OffsetAndMetadata(1)), T2: Change(None)},
            )
        ]
    )

    assert proxy.cuts == 1
    assert {o.status for o in result.outcomes.values()} == {EditStatus.WRITTEN}
    before = result.outcomes[T0].before
    assert isinstance(before, Committed) and before.offset == 5
    assert result.outcomes[T1].before == ABSENT
    data, stat = kazoo.get(f"/consumers/{unique}/offsets/orders/0")
    assert (data, stat.version) == (b"6", 1)
    assert offsets(dict(through_proxy.fetch(unique))) == {T0: 6, T1: 1}


def test_one_unchanged_node_proves_the_whole_transaction(
    proxy: CuttingProxy, through_proxy: ZookeeperStore, kazoo: KazooClient, unique: str
) -> None:
    through_proxy.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(5)})

    # Another client changes T0 before the store can check. T1 still shows that the transaction happened.
    proxy.cut(TRANSACTION, deliver=True, between=lambda: kazoo.set(f"/consumers/{unique}/offsets/orders/0", b"99"))
    result = through_proxy.commit(unique, {T0: OffsetAndMetadata(6), T1: OffsetAndMetadata(6)})

    assert {o.status for o in result.outcomes.values()} == {EditStatus.WRITTEN}
    assert offsets(dict(through_proxy.fetch(unique))) == {T0: 99, T1: 6}


def test_the_outcome_is_unknown_if_no_node_shows_it(
    proxy: CuttingProxy, through_proxy: ZookeeperStore, kazoo: KazooClient, unique: str
) -> None:
    through_proxy.commit(unique, {T0: OffsetAndMetadata(5)})

    proxy.cut(TRANSACTION, deliver=True, between=lambda: kazoo.set(f"/consumers/{unique}/offsets/orders/0", b"99"))
    with pytest.raises(PartialFailure) as caught:
        through_proxy.commit(unique, {T0: OffsetAndMetadata(6)})

    error = caught.value.failures[T0]
    assert isinstance(error, Unreachable)
    assert "outcome is unknown" in str(error)
    assert offsets(dict(through_proxy.fetch(unique))) == {T0: 99}


def test_a_server_lost_during_a_write_gives_each_partition_an_unknown_outcome(
    zookeeper: ZooKeeperServer, unique: str
) -> None:
    proxy = CuttingProxy(zookeeper.connect)
    with ZookeeperStore(proxy.connect, config=ConnectionConfig(timeout_ms=3000)) as store:
        store.commit(unique, {T0: OffsetAndMetadata(5)})
        proxy.cut(TRANSACTION, deliver=True, between=proxy.close)

        with pytest.raises(PartialFailure) as caught:
            store.commit(unique, {T0: OffsetAndMetadata(6), T1: OffsetAndMetadata(1)})
        with pytest.raises(Unreachable):
            store.commit(unique, {T0: OffsetAndMetadata(7)})

    assert set(caught.value.failures) == {T0, T1}
    assert {type(error) for error in caught.value.failures.values()} == {Unreachable}
    assert all("outcome is unknown" in str(error) for error in caught.value.failures.values())


def test_a_server_killed_during_a_scan_is_an_error_and_not_the_end(own_server: ZooKeeperServer) -> None:
    names = [f"g{n}" for n in range(1000)]
    with ZookeeperStore(own_server.connect, config=ConnectionConfig(timeout_ms=20_000)) as store:
        assert not any(r.failures for r in store.edit(GroupEdit(n, {T0: Change(OffsetAndMetadata(1))}) for n in names))
    with ZookeeperStore(own_server.connect, config=ConnectionConfig(timeout_ms=3000)) as store:
        scanned = store.scan(names)
        assert offsets(dict(next(scanned).offsets)) == {T0: 1}

        own_server.kill()

        with pytest.raises((Unreachable, TimedOut)):
            list(scanned)
        with pytest.raises((Unreachable, TimedOut)):
            list(store.groups())
