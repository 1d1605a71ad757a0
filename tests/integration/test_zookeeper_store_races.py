"""`ZookeeperStore` on a real server: changes of other clients at the same time, and several changes of a partition."""

from __future__ import annotations

import itertools
import threading

import pytest
from kazoo.client import KazooClient
from offset_values import offsets

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import Conflict, RewindRefused
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.stores.zookeeper import ZookeeperStore

pytest_plugins = ["zookeeper_store_fixtures"]

pytestmark = pytest.mark.servers

T0 = TopicPartition("orders", 0)


def test_a_partition_that_others_keep_changing_does_not_stop_the_rest(
    zk_store: ZookeeperStore, kazoo: KazooClient, unique: str
) -> None:
    partitions = [TopicPartition("orders", n) for n in range(200)]
    zk_store.commit(unique, {tp: OffsetAndMetadata(1) for tp in partitions})
    stop = threading.Event()

    def hammer() -> None:
        for value in itertools.count(10):
            kazoo.set(f"/consumers/{unique}/offsets/orders/7", b"%d" % value)
            if stop.is_set():
                return

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for offset in range(2, 12):
            changes = {tp: Change(OffsetAndMetadata(offset)) for tp in partitions}
            (result,) = zk_store.edit([GroupEdit(unique, changes)])
            hot = result.outcomes.pop(partitions[7])  # type: ignore[attr-defined]
            assert {outcome.status for outcome in result.outcomes.values()} == {EditStatus.WRITTEN}
            assert hot.status is not EditStatus.FAILED or isinstance(hot.error, Conflict | RewindRefused)
    finally:
        stop.set()
        thread.join()


def test_compare_and_set_loses_no_update(zookeeper: ZooKeeperServer, unique: str) -> None:
    def count_up() -> None:
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
        threads = [threading.Thread(target=count_up) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

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
