"""`ZookeeperStore` under faults on a real server: junk in nodes, lost connections, lost responses, races."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from kazoo_client import connected

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import (
    Conflict,
    CorruptData,
    GroupActive,
    GroupNotFound,
    NotAuthorized,
    PartialFailure,
    RewindRefused,
    ServerError,
    TimedOut,
    Unreachable,
    UsageError,
)
from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.bulk_requests import BulkGet, BulkRead

pytestmark = pytest.mark.servers

T0, T1, T2 = (TopicPartition("orders", n) for n in range(3))
TRANSACTION, MULTI_READ = 14, 22


@pytest.fixture
def store(zookeeper: ZooKeeperServer) -> Iterator[ZookeeperStore]:
    with ZookeeperStore(zookeeper.connect, config=ConnectionConfig(timeout_ms=20_000)) as store:
        yield store


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """Another client, which writes arbitrary data."""
    with connected(zookeeper.connect) as client:
        yield client


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "own") as server:
        yield server


def offsets(found: dict[TopicPartition, Offset] | object) -> dict[TopicPartition, int]:
    assert isinstance(found, dict)
    return {tp: value.offset for tp, value in found.items() if isinstance(value, Committed)}


# --- invalid nodes --------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [b"", b"-1", b"seven", b"\xff\xfe", b"9223372036854775808", b"7 "])
def test_junk_in_an_offset_node_is_an_error_of_its_partition(
    store: ZookeeperStore, client: KazooClient, unique: str, junk: bytes
) -> None:
    store.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    client.set(f"/consumers/{unique}/offsets/orders/1", junk)

    (scanned,) = store.scan([unique])
    with pytest.raises(PartialFailure) as caught:
        store.fetch(unique)

    assert offsets(dict(scanned.offsets)) == {T0: 5}
    assert isinstance(scanned.errors[T1], CorruptData)
    assert f"/consumers/{unique}/offsets/orders/1" in str(scanned.errors[T1])
    assert offsets(caught.value.successes) == {T0: 5}
    assert set(caught.value.failures) == {T1}
    assert offsets(dict(store.fetch(unique, [T0]))) == {T0: 5}


def test_junk_is_not_overwritten_and_does_not_stop_the_others(
    store: ZookeeperStore, client: KazooClient, unique: str
) -> None:
    store.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    client.set(f"/consumers/{unique}/offsets/orders/1", b"junk")

    with pytest.raises(PartialFailure) as caught:
        store.commit(unique, {T0: OffsetAndMetadata(50), T1: OffsetAndMetadata(60)}, allow_rewind=True)

    assert isinstance(caught.value.failures[T1], CorruptData)
    assert client.get(f"/consumers/{unique}/offsets/orders/1")[0] == b"junk"
    assert client.get(f"/consumers/{unique}/offsets/orders/0")[0] == b"50"


def test_an_invalid_partition_node_fails_reads_of_the_group_but_not_of_named_partitions(
    store: ZookeeperStore, client: KazooClient, unique: str
) -> None:
    store.commit(unique, {T0: OffsetAndMetadata(5)})
    client.create(f"/consumers/{unique}/offsets/orders/0-1", b"7")

    (scanned,) = store.scan([unique])

    assert isinstance(scanned.error, CorruptData)
    assert f"/consumers/{unique}/offsets/orders/0-1" in str(scanned.error)
    assert (dict(scanned.offsets), dict(scanned.errors)) == ({}, {})
    with pytest.raises(CorruptData, match="0-1"):
        store.fetch(unique)
    assert offsets(dict(store.fetch(unique, [T0]))) == {T0: 5}
    client.delete(f"/consumers/{unique}", recursive=True)  # other tests read all groups of this server


def test_an_offsets_node_of_the_wrong_kind(store: ZookeeperStore, client: KazooClient, unique: str) -> None:
    client.create(f"/consumers/{unique}-leaf/offsets", b"42", makepath=True)
    client.create(f"/consumers/{unique}-deep/offsets/orders/0/below", b"", makepath=True)
    client.create(f"/consumers/{unique}-bare", b"")

    leaf, deep, bare = store.scan([f"{unique}-leaf", f"{unique}-deep", f"{unique}-bare"])

    assert (dict(leaf.offsets), leaf.error) == ({}, None)
    assert isinstance(deep.errors[T0], CorruptData) and "is empty" in str(deep.errors[T0])
    assert (dict(bare.offsets), dict(bare.errors), bare.error) == ({}, {}, None)
    assert {f"{unique}-leaf", f"{unique}-deep", f"{unique}-bare"} <= set(store.groups())


def test_a_node_without_read_or_write_permission_is_an_error_of_its_partition(
    store: ZookeeperStore, client: KazooClient, unique: str
) -> None:
    store.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    client.add_auth("digest", "boss:sesame")
    client.set_acls(f"/consumers/{unique}/offsets/orders/1", [make_digest_acl("boss", "sesame", all=True)])
    read_only = make_digest_acl("boss", "sesame", all=True), *client.get_acls("/consumers")[0]
    client.create(f"/consumers/{unique}/offsets/orders/2", b"7", acl=[read_only[0]._replace(perms=31)])
    client.set_acls(
        f"/consumers/{unique}/offsets/orders/2", [read_only[0], read_only[1]._replace(perms=1)]
    )  # all clients may read

    (scanned,) = store.scan([unique])
    with pytest.raises(PartialFailure) as caught:
        store.commit(unique, {tp: OffsetAndMetadata(70) for tp in (T0, T1, T2)})

    assert offsets(dict(scanned.offsets)) == {T0: 5, T2: 7}
    assert isinstance(scanned.errors[T1], NotAuthorized)
    assert {tp: type(error) for tp, error in caught.value.failures.items()} == {T1: NotAuthorized, T2: NotAuthorized}
    assert caught.value.successes[T0].status is EditStatus.WRITTEN


def test_only_the_group_with_an_invalid_name_is_rejected(store: ZookeeperStore, unique: str) -> None:
    bad = f"{unique}/child"
    store.commit(unique, {T0: OffsetAndMetadata(5)})

    scanned = {found.group: found for found in store.scan([bad, unique])}
    edited = {
        result.group: result
        for result in store.edit(GroupEdit(g, {T0: Change(OffsetAndMetadata(9))}) for g in (bad, unique))
    }

    assert isinstance(scanned[bad].error, UsageError)
    assert offsets(dict(scanned[unique].offsets)) == {T0: 5}
    assert isinstance(edited[bad].failures[T0], UsageError)
    assert edited[unique].outcomes[T0].status is EditStatus.WRITTEN
    with pytest.raises(UsageError, match="cannot exist in ZooKeeper"):
        store.fetch(bad)


@pytest.mark.parametrize("in_bulk", [True, False])
def test_a_group_deleted_between_list_and_read_has_no_commits(
    store: ZookeeperStore, client: KazooClient, unique: str, monkeypatch: pytest.MonkeyPatch, in_bulk: bool
) -> None:
    kept = f"{unique}-kept"
    for group in (unique, kept):
        store.commit(group, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    read, begin_reads = store.session.get_many, store.session.begin_reads

    def delete() -> None:
        if client.exists(f"/consumers/{unique}"):
            client.delete(f"/consumers/{unique}", recursive=True)

    def delete_first(paths: list[str]) -> object:
        delete()
        return read(paths)

    def delete_before_gets(reads: list[BulkRead[Any]]) -> object:
        if any(isinstance(read, BulkGet) for read in reads):
            delete()
        return begin_reads(reads)

    monkeypatch.setattr(store.session, "supports_bulk_reads", lambda: in_bulk)
    monkeypatch.setattr(store.session, "get_many", delete_first)
    monkeypatch.setattr(store.session, "begin_reads", delete_before_gets)
    scanned = {found.group: found for found in store.scan([unique, kept])}

    assert (dict(scanned[unique].offsets), dict(scanned[unique].errors), scanned[unique].error) == ({}, {}, None)
    assert offsets(dict(scanned[kept].offsets)) == {T0: 5, T1: 6}


def test_the_timestamp_and_version_are_those_of_the_node(
    store: ZookeeperStore, client: KazooClient, unique: str
) -> None:
    store.commit(unique, {T0: OffsetAndMetadata(5)})
    stat = client.set(f"/consumers/{unique}/offsets/orders/0", b"6")

    assert store.fetch(unique) == {T0: Committed(6, "", None, stat.mtime, 1)}


# --- the chroot and the identity of the store -----------------------------------------------------


def test_a_missing_chroot_is_an_error_and_not_a_cluster_without_groups(zookeeper: ZooKeeperServer, unique: str) -> None:
    with ZookeeperStore(f"{zookeeper.connect}/{unique}", config=ConnectionConfig(timeout_ms=20_000)) as store:
        for call in (
            lambda: list(store.groups()),
            lambda: store.fetch("g"),
            lambda: list(store.scan(["g"])),
            lambda: store.commit("g", {T0: OffsetAndMetadata(1)}),
            store.identity,
        ):
            with pytest.raises(ServerError, match=f"chroot /{unique} does not exist"):
                call()


def test_an_empty_chroot_has_no_groups_and_accepts_commits(
    zookeeper: ZooKeeperServer, client: KazooClient, unique: str
) -> None:
    client.create(f"/{unique}")
    with ZookeeperStore(f"{zookeeper.connect}/{unique}", config=ConnectionConfig(timeout_ms=20_000)) as store:
        assert list(store.groups()) == []

        store.commit("g", {T0: OffsetAndMetadata(1)})

        assert list(store.groups()) == ["g"]
    assert client.get(f"/{unique}/consumers/g/offsets/orders/0")[0] == b"1"


def test_the_identity_is_the_cluster_id_or_else_the_creation_of_brokers(
    zookeeper: ZooKeeperServer, client: KazooClient, unique: str
) -> None:
    client.create(f"/{unique}/brokers", makepath=True)
    created = client.exists(f"/{unique}/brokers")
    connect = f"{zookeeper.connect}/{unique}"
    with ZookeeperStore(connect, config=ConnectionConfig(timeout_ms=20_000)) as store:
        without = store.identity()
        client.create(f"/{unique}/cluster/id", b'{"version":"1","id":"Xyz-123"}', makepath=True)
        with_id = store.identity()
        client.set(f"/{unique}/cluster/id", b"junk")
        with pytest.raises(CorruptData, match="/cluster/id"):
            store.identity()

    assert without.id == f"{connect}#brokers:{created.czxid}:{created.ctime}"
    assert "/brokers" in without.how
    assert (with_id.kind, with_id.id) == ("zookeeper", "Xyz-123")
    assert f"/{unique}/cluster/id" in with_id.how


# --- races with other clients ---------------------------------------------------------------------


def test_a_partition_that_others_keep_changing_does_not_stop_the_rest(
    store: ZookeeperStore, client: KazooClient, unique: str
) -> None:
    partitions = [TopicPartition("orders", n) for n in range(200)]
    store.commit(unique, {tp: OffsetAndMetadata(1) for tp in partitions})
    stop = threading.Event()

    def hammer() -> None:
        for value in itertools.count(10):
            client.set(f"/consumers/{unique}/offsets/orders/7", b"%d" % value)
            if stop.is_set():
                return

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for offset in range(2, 12):
            changes = {tp: Change(OffsetAndMetadata(offset)) for tp in partitions}
            (result,) = store.edit([GroupEdit(unique, changes)])
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


def test_edits_of_the_same_partition_in_one_stream_are_applied_in_order(store: ZookeeperStore, unique: str) -> None:
    edits = [GroupEdit(unique, {T0: Change(OffsetAndMetadata(n))}) for n in (1, 2, 2, 1, 3)]

    results = list(store.edit(edits))

    assert [result.outcomes[T0].status for result in results] == [
        EditStatus.WRITTEN,
        EditStatus.WRITTEN,
        EditStatus.UNCHANGED,
        EditStatus.FAILED,
        EditStatus.WRITTEN,
    ]
    assert isinstance(results[3].failures[T0], RewindRefused)
    assert offsets(dict(store.fetch(unique))) == {T0: 3}


# --- lost connections -----------------------------------------------------------------------------


class CuttingProxy:
    """A proxy between client and server that cuts the connection once, at a chosen request."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connect = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._cut_at: int | None = None
        self._deliver = False
        self._between: Callable[[], object] = lambda: None
        self.cuts = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, operation: int, *, deliver: bool, between: Callable[[], object] = lambda: None) -> None:
        """Cuts the connection at the next request of this kind, before the server gets it. With ``deliver`` the proxy
        forwards the request, calls ``between`` after the server's response, and drops the response."""
        self._deliver, self._between, self._cut_at = deliver, between, operation

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(
                socket.SHUT_RDWR
            )  # close alone would let the pending accept take one more connection
        self._listener.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                withheld: list[bytes] = []
                """The xids of the requests whose responses are dropped."""
                threading.Thread(target=self._requests, args=(client, server, withheld), daemon=True).start()
                threading.Thread(target=self._responses, args=(client, server, withheld), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, withheld: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            for frame in self._frames(client):
                if self._cut_at is not None and frame[8:12] == struct.pack("!i", self._cut_at):
                    self._cut_at = None
                    if not self._deliver:
                        self.cuts += 1
                        break
                    withheld.append(frame[4:8])
                server.sendall(frame)
        self._end(client, server)

    def _responses(self, client: socket.socket, server: socket.socket, withheld: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            for frame in self._frames(server):
                if frame[4:8] in withheld:
                    self._between()
                    self.cuts += 1
                    break
                client.sendall(frame)
        self._end(client, server)

    @staticmethod
    def _frames(source: socket.socket) -> Iterator[bytes]:
        """Requests or responses one by one, with their lengths. A received piece may end anywhere in a frame."""
        data = b""
        while received := source.recv(1 << 20):
            data += received
            while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
                yield data[:end]
                data = data[end:]

    @staticmethod
    def _end(*sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(zookeeper: ZooKeeperServer) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(zookeeper.connect)
    yield proxy
    proxy.close()


@pytest.fixture
def through_proxy(proxy: CuttingProxy) -> Iterator[ZookeeperStore]:
    with ZookeeperStore(proxy.connect, config=ConnectionConfig(timeout_ms=5000)) as store:
        yield store


def test_a_scan_continues_after_its_connection_is_cut(
    proxy: CuttingProxy, through_proxy: ZookeeperStore, store: ZookeeperStore, unique: str
) -> None:
    names = [f"{unique}-{n}" for n in range(500)]
    list(store.edit(GroupEdit(name, {T0: Change(OffsetAndMetadata(n))}) for n, name in enumerate(names)))
    scanned = through_proxy.scan(names)
    first = next(scanned)

    proxy.cut(MULTI_READ, deliver=True)
    rest = list(scanned)

    assert proxy.cuts == 1
    assert {found.group: offsets(dict(found.offsets)) for found in [first, *rest]} == {
        name: {T0: n} for n, name in enumerate(names)
    }


def test_a_transaction_that_never_arrived_is_sent_again(
    proxy: CuttingProxy, through_proxy: ZookeeperStore, client: KazooClient, unique: str
) -> None:
    through_proxy.commit(unique, {T0: OffsetAndMetadata(5)})

    proxy.cut(TRANSACTION, deliver=False)
    result = through_proxy.commit(unique, {T0: OffsetAndMetadata(6), T1: OffsetAndMetadata(1)})

    assert proxy.cuts == 1
    assert {o.status for o in result.outcomes.values()} == {EditStatus.WRITTEN}
    data, stat = client.get(f"/consumers/{unique}/offsets/orders/0")
    assert (data, stat.version) == (b"6", 1)


def test_a_transaction_whose_response_was_lost_is_recognized_as_committed(
    proxy: CuttingProxy, through_proxy: ZookeeperStore, client: KazooClient, unique: str
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
    data, stat = client.get(f"/consumers/{unique}/offsets/orders/0")
    assert (data, stat.version) == (b"6", 1)
    assert offsets(dict(through_proxy.fetch(unique))) == {T0: 6, T1: 1}


def test_one_unchanged_node_proves_the_whole_transaction(
    proxy: CuttingProxy, through_proxy: ZookeeperStore, client: KazooClient, unique: str
) -> None:
    through_proxy.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(5)})

    # Another client changes T0 before the store can check. T1 still shows that the transaction happened.
    proxy.cut(TRANSACTION, deliver=True, between=lambda: client.set(f"/consumers/{unique}/offsets/orders/0", b"99"))
    result = through_proxy.commit(unique, {T0: OffsetAndMetadata(6), T1: OffsetAndMetadata(6)})

    assert {o.status for o in result.outcomes.values()} == {EditStatus.WRITTEN}
    assert offsets(dict(through_proxy.fetch(unique))) == {T0: 99, T1: 6}


def test_the_outcome_is_unknown_if_no_node_shows_it(
    proxy: CuttingProxy, through_proxy: ZookeeperStore, client: KazooClient, unique: str
) -> None:
    through_proxy.commit(unique, {T0: OffsetAndMetadata(5)})

    proxy.cut(TRANSACTION, deliver=True, between=lambda: client.set(f"/consumers/{unique}/offsets/orders/0", b"99"))
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


# --- many groups ----------------------------------------------------------------------------------


def test_twenty_thousand_groups(own_server: ZooKeeperServer) -> None:
    with ZookeeperStore(own_server.connect, config=ConnectionConfig(timeout_ms=20_000)) as store:
        edits = (GroupEdit(f"group-{n:05}", {T0: Change(OffsetAndMetadata(n))}) for n in range(20_000))

        statuses = {o.status for result in store.edit(edits) for o in result.outcomes.values()}
        names = list(store.groups())
        found = {s.group: offsets(dict(s.offsets)) for s in store.scan(names)}

    assert statuses == {EditStatus.WRITTEN}
    assert sorted(names) == [f"group-{n:05}" for n in range(20_000)]
    assert found == {f"group-{n:05}": {T0: n} for n in range(20_000)}


# --- deleting a whole group -----------------------------------------------------------------------


def test_a_group_is_deleted_with_its_before_images(store: ZookeeperStore, client: KazooClient, unique: str) -> None:
    store.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    client.create(f"/consumers/{unique}/ids")
    client.create(f"/consumers/{unique}/owners/orders", makepath=True)

    result = store.delete_group(unique)

    assert {tp: o.before.offset for tp, o in result.outcomes.items() if isinstance(o.before, Committed)} == {
        T0: 5,
        T1: 6,
    }
    assert client.exists(f"/consumers/{unique}") is None
    with pytest.raises(GroupNotFound):
        store.delete_group(unique)


def test_a_group_with_live_consumers_is_not_deleted(store: ZookeeperStore, client: KazooClient, unique: str) -> None:
    store.commit(unique, {T0: OffsetAndMetadata(5)})
    client.create(f"/consumers/{unique}/ids/{unique}_h-1700000000123-aabbccdd", b"{", ephemeral=True, makepath=True)

    with pytest.raises(GroupActive) as caught:
        store.delete_group(unique)

    assert caught.value.members == (f"{unique}_h-1700000000123-aabbccdd",)
    assert offsets(dict(store.fetch(unique))) == {T0: 5}


def test_a_group_with_an_unreadable_offset_is_not_deleted(
    store: ZookeeperStore, client: KazooClient, unique: str
) -> None:
    store.commit(unique, {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)})
    client.set(f"/consumers/{unique}/offsets/orders/1", b"junk")

    with pytest.raises(PartialFailure, match="orders-1"):
        store.delete_group(unique)

    assert client.get(f"/consumers/{unique}/offsets/orders/0")[0] == b"5"


def test_a_group_too_large_for_one_transaction_is_deleted_too(
    store: ZookeeperStore, client: KazooClient, unique: str
) -> None:
    topic = "long-topic-name-".ljust(240, "x")
    store.commit(unique, {TopicPartition(topic, n): OffsetAndMetadata(n) for n in range(3000)})

    result = store.delete_group(unique)

    assert len(result.outcomes) == 3000
    assert client.exists(f"/consumers/{unique}") is None
