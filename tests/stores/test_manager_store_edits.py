"""Conditional edits through ``manager://``: the manager compares offsets itself. The store relies on this only if the
server announces it."""

import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from backend_listeners import ManagerListener, StoreListener
from conftest import MakeTopic
from processes import Commands
from repeated import repeated

from offsetmgr import ConnectionConfig, open_store
from offsetmgr.core.errors import Conflict, CoordinatorNotAvailable, GroupActive
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, GroupEditResult, OffsetStore
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.testing.memory import MemoryStore

CONFIG = ConnectionConfig(timeout_ms=20_000)
TP = TopicPartition("t", 0)
COMPARED = "read and compared just before the write, which was not conditional"


def opened(bootstrap: str) -> OffsetStore:
    return open_store(f"manager://{bootstrap}", CONFIG)


class FailingStore(MemoryStore):
    """A store that fails once: before an edit, or after the edit was written."""

    fails: bool = False
    after: bool = False
    meanwhile: Committed | None = None
    """The offset that another client commits before the failure."""

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        if not self.fails:
            yield from super().edit(edits)
            return
        self.fails = False
        if self.after:
            list(super().edit(edits))
        if self.meanwhile is not None:
            self.data["g"][TP] = self.meanwhile
        raise CoordinatorNotAvailable("injected failure")


@pytest.fixture(scope="module")
def offsets_topic() -> str:
    return f"offsets-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def manager(kafka: KafkaBroker, offsets_topic: str) -> Iterator[ManagerListener]:
    with ManagerListener(kafka.bootstrap, offsets_topic) as listener:
        yield listener


@pytest.fixture
def store(manager: ManagerListener) -> Iterator[OffsetStore]:
    with opened(manager.bootstrap) as store:
        yield store


def edit(store: OffsetStore, group: str, change: Change) -> GroupEditResult:
    (result,) = store.edit([GroupEdit(group, {TP: change})])
    return result


def increment(store: OffsetStore, group: str) -> None:
    """Adds one to an offset, and tries again after a conflict."""
    while True:
        current = store.fetch(group, [TP])[TP]
        after = current.offset + 1 if isinstance(current, Committed) else 1
        error = edit(store, group, Change(OffsetAndMetadata(after), current)).outcomes[TP].error
        if error is None:
            return
        assert isinstance(error, Conflict), error


# --- an offset manager ----------------------------------------------------------------------------


@pytest.mark.servers
def test_conditional_edits_exclude_each_other(manager: ManagerListener, unique: str) -> None:
    """Four clients increment one offset. A lost update would make the sum too small."""

    def count(_: int) -> None:
        with opened(manager.bootstrap) as mine:
            for _ in range(25):
                increment(mine, unique)

    with ThreadPoolExecutor(4) as programs:
        list(programs.map(count, range(4)))
    with opened(manager.bootstrap) as store:
        assert store.fetch(unique) == {TP: Committed(100)}
        result = edit(store, unique, Change(OffsetAndMetadata(101), Committed(100)))
        assert (result.atomic, result.how) == (True, "the manager compared")


@pytest.mark.servers
def test_an_edit_never_removes_a_concurrent_commit(manager: ManagerListener, store: OffsetStore, unique: str) -> None:
    """A deletion removes the offset that the edit has read, never a commit in between.

    Some pauses between the commits are long, because otherwise every edit would conflict with a commit."""
    committed: list[int] = []
    consumer = ck.Consumer({"bootstrap.servers": manager.bootstrap, "group.id": unique})

    def consume() -> None:
        offset = 1001 + len(committed)
        consumer.commit(offsets=[ck.TopicPartition("t", 0, offset)], asynchronous=False)
        committed.append(offset)
        time.sleep(0.02 * 2 ** (offset % 6))

    with closing(consumer), repeated(consume):
        deleted: list[int] = []
        while len(deleted) < 20:
            outcome = edit(store, unique, Change(None)).outcomes[TP]
            assert outcome.error is None or isinstance(outcome.error, Conflict)
            if outcome.status is EditStatus.WRITTEN:
                assert isinstance(outcome.before, Committed)
                deleted.append(outcome.before.offset)
    assert deleted == sorted(set(deleted))
    assert set(deleted) <= set(committed)
    assert store.fetch(unique, [TP])[TP] in (ABSENT, Committed(committed[-1]))


@pytest.mark.servers
def test_the_identity_names_the_cluster_and_the_offsets_topic(store, kafka, offsets_topic):
    with KafkaStore(kafka.bootstrap, CONFIG) as real:
        cluster_id = real.identity().id
    identity = store.identity()
    assert (identity.kind, identity.id) == ("manager", f"{cluster_id}/{offsets_topic}")
    assert identity.how == "cluster id and offsets topic, as the server reports"


@pytest.mark.servers
def test_commands_accept_a_manager_as_a_store_and_groups_migrate_to_it(
    manager: ManagerListener, zookeeper: ZooKeeperServer, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    topic = make_topic(unique, 2)
    source, target = f"zookeeper://{zookeeper.connect}/kafka", f"manager://{manager.bootstrap}"
    with ZookeeperStore(f"{zookeeper.connect}/kafka", config=CONFIG) as store:
        store.commit(unique, {TopicPartition(topic, 1): OffsetAndMetadata(0)})
    run = Commands(tmp_path).run
    run("migrate", "plan", "--from", source, "--to", target, "--group", unique, "-o", "plan.json")
    run("migrate", "apply", "plan.json", "--yes")
    run("migrate", "verify", "plan.json")
    finalized = run("migrate", "finalize", "plan.json", "--yes").stderr
    assert "no old consumer is registered in ZooKeeper (seen)" in finalized
    assert unique in run("groups", "list", "--store", target, "--format", "csv").stdout
    assert '"lag": 0' in run("offsets", "lag", "--group", unique, "--store", target, "--format", "json").stdout


# --- servers that do not compare --------------------------------------------------------------------


@pytest.mark.servers
def test_edits_on_a_broker_are_not_conditional_and_are_rejected_for_a_group_with_members(kafka, make_topic, unique):
    tp = TopicPartition(make_topic(unique, 1), 0)
    with opened(kafka.bootstrap) as store:
        assert store.capabilities.conditional == "none"
        store.commit(unique, {tp: OffsetAndMetadata(5)})
        (done,) = store.edit([GroupEdit(unique, {tp: Change(OffsetAndMetadata(6), Committed(5))})])
        (conflict,) = store.edit([GroupEdit(unique, {tp: Change(OffsetAndMetadata(7), Committed(5))})])
        assert (done.atomic, done.how) == (False, COMPARED)
        assert isinstance(conflict.failures[tp], Conflict)
        assert store.fetch(unique) == {tp: Committed(6)}
        assert unique in set(store.groups())
        consumer = ck.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": unique})
        try:
            consumer.subscribe([tp.topic])
            while not consumer.assignment():
                consumer.poll(0.1)
            (result,) = store.edit([GroupEdit(unique, {tp: Change(OffsetAndMetadata(7))})])
        finally:
            consumer.close()
    assert [type(error) for error in result.failures.values()] == [GroupActive]


def test_an_older_version_at_the_same_address_is_not_trusted_to_compare() -> None:
    memory = MemoryStore()
    with StoreListener(memory) as newer:
        port = newer.port
        store = opened(newer.bootstrap)
        assert edit(store, "g", Change(OffsetAndMetadata(5), ABSENT)).atomic
    with StoreListener(memory, announce=False, port=port) as older:
        result = edit(store, "g", Change(OffsetAndMetadata(6), Committed(5)))
        store.close()
        with opened(older.bootstrap) as store:
            assert store.capabilities.conditional == "none"
    assert result.outcomes[TP].status is EditStatus.WRITTEN
    assert (result.atomic, result.how) == (False, COMPARED)


@pytest.mark.parametrize(
    ("change", "remaining"),
    [
        (Change(OffsetAndMetadata(6), Committed(5)), {TP: 6}),
        (Change(OffsetAndMetadata(6)), {TP: 6}),
        (Change(None, Committed(5)), {}),
    ],
)
def test_an_edit_with_a_lost_response_recognizes_its_own_write(change: Change, remaining: dict[Any, int]) -> None:
    memory = FailingStore()
    memory.after = True
    with StoreListener(memory) as listener, opened(listener.bootstrap) as store:
        edit(store, "g", Change(OffsetAndMetadata(5)))
        memory.fails = True
        outcome = edit(store, "g", change).outcomes[TP]
    assert outcome.status is EditStatus.WRITTEN
    assert isinstance(outcome.before, Committed) and outcome.before.offset == 5
    assert {tp: found.offset for tp, found in memory.data["g"].items()} == remaining


def test_a_commit_between_two_attempts_is_not_overwritten() -> None:
    memory = FailingStore()
    memory.meanwhile = Committed(50)
    with StoreListener(memory) as listener, opened(listener.bootstrap) as store:
        edit(store, "g", Change(OffsetAndMetadata(5)))
        memory.fails = True
        outcome = edit(store, "g", Change(OffsetAndMetadata(6), Committed(5))).outcomes[TP]
    assert isinstance(outcome.error, Conflict)
    assert outcome.error.actual == Committed(50)
    assert memory.data["g"][TP].offset == 50
