"""`ZookeeperStore` on a real server: invalid, unreadable and deleted nodes are errors of their partition or group, and
a group is deleted only if it can be saved."""

from typing import Any

import pytest
from committed_offsets import offsets
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from offsetmgr.core.errors import CorruptData, GroupActive, GroupNotFound, NotAuthorized, PartialFailure, UsageError
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = pytest.mark.servers


T0, T1, T2 = (TopicPartition("orders", n) for n in range(3))


@pytest.mark.parametrize("junk", [b"", b"-1", b"seven", b"\xff\xfe", b"9223372036854775808", b"7 "])
def test_junk_in_an_offset_node_is_an_error_of_its_partition(zk_store, kazoo, unique, junk):
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


def test_an_invalid_partition_node_fails_reads_of_the_group_but_not_of_named_partitions(zk_store, kazoo, unique):
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


def test_a_node_without_read_or_write_permission_is_an_error_of_its_partition(zk_store, kazoo, unique):
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
    scanned = {found.name: found for found in zk_store.scan([bad, unique])}
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
def test_a_group_deleted_between_list_and_read_has_no_commits(zk_store, kazoo, unique, monkeypatch, in_bulk):
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

    def delete_before_gets(reads: list[Any]) -> object:
        if any(b"/offsets/orders/0" in read.serialize() for read in reads):
            delete()
        return begin_reads(reads)

    monkeypatch.setattr(zk_store.session, "supports_bulk_reads", lambda: in_bulk)
    monkeypatch.setattr(zk_store.session, "get_many", delete_first)
    monkeypatch.setattr(zk_store.session, "begin_reads", delete_before_gets)
    scanned = {found.name: found for found in zk_store.scan([unique, kept])}
    assert (dict(scanned[unique].offsets), dict(scanned[unique].errors), scanned[unique].error) == ({}, {}, None)
    assert offsets(dict(scanned[kept].offsets)) == {T0: 5, T1: 6}


def test_the_timestamp_and_version_are_those_of_the_node(zk_store, kazoo, unique):
    zk_store.commit(unique, {T0: OffsetAndMetadata(5)})
    stat = kazoo.set(f"/consumers/{unique}/offsets/orders/0", b"6")
    assert zk_store.fetch(unique) == {T0: Committed(6, "", None, stat.mtime, 1)}


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


def test_junk_is_not_overwritten_does_not_stop_the_others_and_prevents_the_deletion_of_its_group(
    zk_store: ZookeeperStore, kazoo: KazooClient, unique: str
) -> None:
    node = f"/consumers/{unique}/offsets/orders/"
    zk_store.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    kazoo.set(f"{node}1", b"junk")
    with pytest.raises(PartialFailure) as caught:
        zk_store.commit(unique, {T0: OffsetAndMetadata(50), T1: OffsetAndMetadata(60)}, allow_rewind=True)
    assert isinstance(caught.value.failures[T1], CorruptData)
    with pytest.raises(PartialFailure, match="orders-1"):
        zk_store.delete_group(unique)
    assert [kazoo.get(f"{node}{n}")[0] for n in (0, 1)] == [b"50", b"junk"]


def test_a_group_too_large_for_one_transaction_is_deleted_too(zk_store, kazoo, unique):
    topic = "long-topic-name-".ljust(240, "x")
    zk_store.commit(unique, {TopicPartition(topic, n): OffsetAndMetadata(n) for n in range(3000)})
    result = zk_store.delete_group(unique)
    assert len(result.outcomes) == 3000
    assert kazoo.exists(f"/consumers/{unique}") is None
