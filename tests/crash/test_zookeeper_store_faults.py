"""`ZookeeperStore` on a real server: lost connections, lost responses, killed servers, and other clients."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from committed_offsets import offsets
from cutting_proxy import TRANSACTION, CuttingProxy
from repeated import repeated

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import Conflict, PartialFailure, RewindRefused, TimedOut, Unreachable
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = pytest.mark.servers

T0, T1, T2 = (TopicPartition("orders", n) for n in range(3))


def test_a_transaction_whose_response_was_lost_is_recognized_as_committed(proxy, through_proxy, kazoo, unique) -> None:
    through_proxy.commit(unique, {T0: OffsetAndMetadata(5), T2: OffsetAndMetadata(5)})

    proxy.cut(TRANSACTION, deliver=True)
    (result,) = through_proxy.edit(
        [GroupEdit(unique, {T0: Change(OffsetAndMetadata(6)), T1: Change(OffsetAndMetadata(1)), T2: Change(None)})]
    )

    assert proxy.cuts == 1
    assert {o.status for o in result.outcomes.values()} == {EditStatus.WRITTEN}
    before = result.outcomes[T0].before
    assert isinstance(before, Committed) and before.offset == 5
    assert result.outcomes[T1].before == ABSENT
    data, stat = kazoo.get(f"/consumers/{unique}/offsets/orders/0")
    assert (data, stat.version) == (b"6", 1)
    assert offsets(dict(through_proxy.fetch(unique))) == {T0: 6, T1: 1}


def test_one_unchanged_node_proves_the_whole_transaction(proxy, through_proxy, kazoo, unique) -> None:
    through_proxy.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(5)})

    # Another client changes T0 before the store can check. T1 still shows that the transaction happened.
    proxy.cut(TRANSACTION, deliver=True, between=lambda: kazoo.set(f"/consumers/{unique}/offsets/orders/0", b"99"))
    result = through_proxy.commit(unique, {T0: OffsetAndMetadata(6), T1: OffsetAndMetadata(6)})

    assert {o.status for o in result.outcomes.values()} == {EditStatus.WRITTEN}
    assert offsets(dict(through_proxy.fetch(unique))) == {T0: 99, T1: 6}


def test_a_server_lost_during_a_write_gives_each_partition_an_unknown_outcome(zookeeper, unique) -> None:
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


# --- other clients at the same time -------------------------------------------------------------------


def test_a_partition_that_others_keep_changing_does_not_stop_the_rest(zk_store, kazoo, unique) -> None:
    partitions = [TopicPartition("orders", n) for n in range(200)]
    zk_store.commit(unique, {tp: OffsetAndMetadata(1) for tp in partitions})
    values = itertools.count(10)

    with repeated(lambda: kazoo.set(f"/consumers/{unique}/offsets/orders/7", b"%d" % next(values))):
        for offset in range(2, 12):
            changes = {tp: Change(OffsetAndMetadata(offset)) for tp in partitions}
            (result,) = zk_store.edit([GroupEdit(unique, changes)])
            hot = result.outcomes.pop(partitions[7])
            assert {outcome.status for outcome in result.outcomes.values()} == {EditStatus.WRITTEN}
            assert hot.status is not EditStatus.FAILED or isinstance(hot.error, Conflict | RewindRefused)


def test_compare_and_set_loses_no_update(zookeeper: ZooKeeperServer, unique: str) -> None:
    def count_up(_client: int) -> None:
        with ZookeeperStore(zookeeper.connect, config=ConnectionConfig(timeout_ms=20_000)) as mine:
            done = 0
            while done < 25:
                current = mine.fetch(unique, [T0])[T0]
                assert isinstance(current, Committed)
                change = Change(OffsetAndMetadata(current.offset + 1), expected=current)
                (result,) = mine.edit([GroupEdit(unique, {T0: change})])
                done += result.outcomes[T0].status is EditStatus.WRITTEN

    with ZookeeperStore(zookeeper.connect, config=ConnectionConfig(timeout_ms=20_000)) as store:
        store.commit(unique, {T0: OffsetAndMetadata(0)})
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(count_up, range(4)))

        assert offsets(dict(store.fetch(unique))) == {T0: 100}


def test_edits_of_the_same_partition_in_one_stream_are_applied_in_order(zk_store: ZookeeperStore, unique: str) -> None:
    edits = [GroupEdit(unique, {T0: Change(OffsetAndMetadata(n))}) for n in (1, 2, 2, 1, 3)]

    results = list(zk_store.edit(edits))

    assert [result.outcomes[T0].status for result in results] == [
        EditStatus.WRITTEN,
        EditStatus.WRITTEN,
        EditStatus.UNCHANGED,
        EditStatus.FAILED,
        EditStatus.WRITTEN,
    ]
    assert isinstance(results[3].failures[T0], RewindRefused)
    assert offsets(dict(zk_store.fetch(unique))) == {T0: 3}
