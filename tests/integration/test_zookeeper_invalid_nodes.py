"""`ZookeeperStore` on a real server: invalid, unreadable and deleted nodes are errors of their partition or group."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from offset_values import offsets

from offsetmgr.core.errors import CorruptData, NotAuthorized, PartialFailure, UsageError
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.bulk_requests import BulkGet, BulkRead

pytest_plugins = ["zookeeper_store_fixtures"]

pytestmark = pytest.mark.servers

T0, T1, T2 = (TopicPartition("orders", n) for n in range(3))


@pytest.mark.parametrize("junk", [b"", b"-1", b"seven", b"\xff\xfe", b"9223372036854775808", b"7 "])
def test_junk_in_an_offset_node_is_an_error_of_its_partition(
    zk_store: ZookeeperStore, kazoo: KazooClient, unique: str, junk: bytes
) -> None:
    zk_store.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    kazoo.set(f"/consumers/{unique}/offsets/orders/1", junk)

    (scanned,) = zk_store.scan([unique])
    with pytest.raises(PartialFailure) as caught:
        zk_store.fetch(unique)

    assert offsets(dict(scanned.offsets)) == {T0: 5}
    assert isinstance(scanned.errors[T1], CorruptData)
    assert f"/consumers/{unique}/offsets/orders/1" in str(scanned.errors[T1])
    assert offsets(caught.value.successes) == {T0: 5}
    assert set(caught.value.failures) == {T1}
    assert offsets(dict(zk_store.fetch(unique, [T0]))) == {T0: 5}


def test_junk_is_not_overwritten_and_does_not_stop_the_others(
    zk_store: ZookeeperStore, kazoo: KazooClient, unique: str
) -> None:
    zk_store.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    kazoo.set(f"/consumers/{unique}/offsets/orders/1", b"junk")

    with pytest.raises(PartialFailure) as caught:
        zk_store.commit(unique, {T0: OffsetAndMetadata(50), T1: OffsetAndMetadata(60)}, allow_rewind=True)

    assert isinstance(caught.value.failures[T1], CorruptData)
    assert kazoo.get(f"/consumers/{unique}/offsets/orders/1")[0] == b"junk"
    assert kazoo.get(f"/consumers/{unique}/offsets/orders/0")[0] == b"50"


def test_an_invalid_partition_node_fails_reads_of_the_group_but_not_of_named_partitions(
    zk_store: ZookeeperStore, kazoo: KazooClient, unique: str
) -> None:
    zk_store.commit(unique, {T0: OffsetAndMetadata(5)})
    kazoo.create(f"/consumers/{unique}/offsets/orders/0-1", b"7")

    (scanned,) = zk_store.scan([unique])

    assert isinstance(scanned.error, CorruptData)
    assert f"/consumers/{unique}/offsets/orders/0-1" in str(scanned.error)
    assert (dict(scanned.offsets), dict(scanned.errors)) == ({}, {})
    with pytest.raises(CorruptData, match="0-1"):
        zk_store.fetch(unique)
    assert offsets(dict(zk_store.fetch(unique, [T0]))) == {T0: 5}
    kazoo.delete(f"/consumers/{unique}", recursive=True)  # other tests read all groups of this server


def test_an_offsets_node_of_the_wrong_kind(zk_store: ZookeeperStore, kazoo: KazooClient, unique: str) -> None:
    kazoo.create(f"/consumers/{unique}-leaf/offsets", b"42", makepath=True)
    kazoo.create(f"/consumers/{unique}-deep/offsets/orders/0/below", b"", makepath=True)
    kazoo.create(f"/consumers/{unique}-bare", b"")

    leaf, deep, bare = zk_store.scan([f"{unique}-leaf", f"{unique}-deep", f"{unique}-bare"])

    assert (dict(leaf.offsets), leaf.error) == ({}, None)
    assert isinstance(deep.errors[T0], CorruptData) and "is empty" in str(deep.errors[T0])
    assert (dict(bare.offsets), dict(bare.errors), bare.error) == ({}, {}, None)
    assert {f"{unique}-leaf", f"{unique}-deep", f"{unique}-bare"} <= set(zk_store.groups())


def test_a_node_without_read_or_write_permission_is_an_error_of_its_partition(
    zk_store: ZookeeperStore, kazoo: KazooClient, unique: str
) -> None:
    zk_store.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    kazoo.add_auth("digest", "boss:sesame")
    kazoo.set_acls(f"/consumers/{unique}/offsets/orders/1", [make_digest_acl("boss", "sesame", all=True)])
    read_only = make_digest_acl("boss", "sesame", all=True), *kazoo.get_acls("/consumers")[0]
    kazoo.create(f"/consumers/{unique}/offsets/orders/2", b"7", acl=[read_only[0]._replace(perms=31)])
    kazoo.set_acls(
        f"/consumers/{unique}/offsets/orders/2", [read_only[0], read_only[1]._replace(perms=1)]
    )  # all clients may read

    (scanned,) = zk_store.scan([unique])
    with pytest.raises(PartialFailure) as caught:
        zk_store.commit(unique, {tp: OffsetAndMetadata(70) for tp in (T0, T1, T2)})

    assert offsets(dict(scanned.offsets)) == {T0: 5, T2: 7}
    assert isinstance(scanned.errors[T1], NotAuthorized)
    assert {tp: type(error) for tp, error in caught.value.failures.items()} == {T1: NotAuthorized, T2: NotAuthorized}
    assert caught.value.successes[T0].status is EditStatus.WRITTEN


def test_only_the_group_with_an_invalid_name_is_rejected(zk_store: ZookeeperStore, unique: str) -> None:
    bad = f"{unique}/child"
    zk_store.commit(unique, {T0: OffsetAndMetadata(5)})

    scanned = {found.group: found for found in zk_store.scan([bad, unique])}
    edited = {
        result.group: result
        for result in zk_store.edit(GroupEdit(g, {T0: Change(OffsetAndMetadata(9))}) for g in (bad, unique))
    }

    assert isinstance(scanned[bad].error, UsageError)
    assert offsets(dict(scanned[unique].offsets)) == {T0: 5}
    assert isinstance(edited[bad].failures[T0], UsageError)
    assert edited[unique].outcomes[T0].status is EditStatus.WRITTEN
    with pytest.raises(UsageError, match="cannot exist in ZooKeeper"):
        zk_store.fetch(bad)


@pytest.mark.parametrize("in_bulk", [True, False])
def test_a_group_deleted_between_list_and_read_has_no_commits(
    zk_store: ZookeeperStore, kazoo: KazooClient, unique: str, monkeypatch: pytest.MonkeyPatch, in_bulk: bool
) -> None:
    kept = f"{unique}-kept"
    for group in (unique, kept):
        zk_store.commit(group, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    read, begin_reads = zk_store.session.get_many, zk_store.session.begin_reads

    def delete() -> None:
        if kazoo.exists(f"/consumers/{unique}"):
            kazoo.delete(f"/consumers/{unique}", recursive=True)

    def delete_first(paths: list[str]) -> object:
        delete()
        return read(paths)

    def delete_before_gets(reads: list[BulkRead[Any]]) -> object:
        if any(isinstance(read, BulkGet) for read in reads):
            delete()
        return begin_reads(reads)

    monkeypatch.setattr(zk_store.session, "supports_bulk_reads", lambda: in_bulk)
    monkeypatch.setattr(zk_store.session, "get_many", delete_first)
    monkeypatch.setattr(zk_store.session, "begin_reads", delete_before_gets)
    scanned = {found.group: found for found in zk_store.scan([unique, kept])}

    assert (dict(scanned[unique].offsets), dict(scanned[unique].errors), scanned[unique].error) == ({}, {}, None)
    assert offsets(dict(scanned[kept].offsets)) == {T0: 5, T1: 6}


def test_the_timestamp_and_version_are_those_of_the_node(
    zk_store: ZookeeperStore, kazoo: KazooClient, unique: str
) -> None:
    zk_store.commit(unique, {T0: OffsetAndMetadata(5)})
    stat = kazoo.set(f"/consumers/{unique}/offsets/orders/0", b"6")

    assert zk_store.fetch(unique) == {T0: Committed(6, "", None, stat.mtime, 1)}
