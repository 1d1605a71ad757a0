"""The group lock against real consumers and real Admin clients, on brokers of both generations."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from processes import wait_for
from stopwatch import Stopwatch

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import (
    Conflict,
    GroupActive,
    GroupNotFound,
    LockLost,
    PartialFailure,
    UnknownTopicOrPartition,
)
from offsetmgr.core.lockable_store import LockableStore
from offsetmgr.core.model import ABSENT, Committed, GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, Guard
from offsetmgr.kafka.client.background_loop import EventLoopThread
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.kafka.groups import lock_membership
from offsetmgr.kafka.groups.group_lock import GroupLock, acquire_lock
from offsetmgr.stores.kafka import KafkaStore

if TYPE_CHECKING:
    from conftest import MakeTopic

pytestmark = pytest.mark.servers

PARTITIONS = 4


@pytest.fixture(params=["kafka", "kraft"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).bootstrap)


@pytest.fixture
def store(bootstrap: str) -> Iterator[KafkaStore]:
    with KafkaStore(bootstrap, ConnectionConfig(timeout_ms=20_000)) as store:
        yield store


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[KafkaCluster]:
    with KafkaCluster(bootstrap, ConnectionConfig(timeout_ms=20_000)) as cluster:
        yield cluster


@pytest.fixture
def topic(unique: str, bootstrap: str, make_topic: MakeTopic) -> str:
    """A topic with 100 messages in each partition."""
    name = make_topic(unique, PARTITIONS, bootstrap=bootstrap)
    producer = ck.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(100 * PARTITIONS):
        producer.produce(name, str(number), partition=number % PARTITIONS)
    assert producer.flush(20) == 0
    return name


class RunningConsumer:
    """A confluent-kafka consumer that polls in a thread, as an application would."""

    def __init__(self, bootstrap: str, group: str, topic: str, **extra: object) -> None:
        self.first: dict[int, int] = {}
        self.assigned: list[int] = []
        self.revocations = 0
        self.errors: list[str] = []
        self._consumer = ck.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": "the-app",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **extra,
            }
        )
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is None:
                continue
            if message.error():
                self.errors.append(str(message.error()))
            else:
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                self.first.setdefault(partition, offset)
        self._consumer.close()

    def _on_assign(self, _: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self.assigned = sorted(p.partition for p in partitions)

    def _on_revoke(self, *_: object) -> None:
        self.revocations += 1

    def __enter__(self) -> RunningConsumer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class ManualLock:
    """The lock of a single edit, which the test acquires and releases itself."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.runner = EventLoopThread()
        self.client = Client(bootstrap, Security())
        self._group = group

    def __enter__(self) -> ManualLock:
        async def enter() -> tuple[Any, GroupLock]:
            context = acquire_lock(self.client, self._group, self._deadline())
            return context, await context.__aenter__()

        self._context, self.lock = self.runner.run(enter())
        return self

    def _deadline(self) -> float:
        return time.monotonic() + 30

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, Any]:
        async def commit() -> dict[TopicPartition, Any]:
            return dict(await self.lock.commit(offsets, self._deadline()))

        return self.runner.run(commit())

    def leave(self) -> None:
        async def leave() -> None:
            await self._context.__aexit__(None, None, None)

        self.runner.run(leave())

    def __exit__(self, *_: object) -> None:
        self.runner.run(self.client.close())
        self.runner.close()


def state_of(cluster: KafkaCluster, group: str) -> str:
    described = cluster.describe_groups([group])[group]
    assert isinstance(described, GroupDescription)
    return described.state


def at(topic: str, offset: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(topic, p): OffsetAndMetadata(offset) for p in range(PARTITIONS)}


def offsets_of(store: KafkaStore, group: str) -> dict[int, int]:
    return {tp.partition: c.offset for tp, c in store.fetch(group).items() if isinstance(c, Committed)}


# --- single edits ---------------------------------------------------------------------------------


def test_an_existing_idle_group_is_edited_under_the_lock(
    store: KafkaStore, cluster: KafkaCluster, topic: str, unique: str
) -> None:
    store.commit(unique, at(topic, 10))

    result = store.commit(unique, at(topic, 20))

    assert result.atomic is True
    assert {o.before for o in result.outcomes.values()} == {Committed(10)}
    assert offsets_of(store, unique) == {0: 20, 1: 20, 2: 20, 3: 20}
    assert state_of(cluster, unique) == "EMPTY"


def test_a_new_group_is_edited_under_the_lock_too(
    store: KafkaStore, cluster: KafkaCluster, topic: str, unique: str
) -> None:
    """Clients without membership may commit to it at the same moment."""
    assert store.commit(unique, at(topic, 10)).atomic is True
    assert offsets_of(store, unique) == {0: 10, 1: 10, 2: 10, 3: 10}
    assert state_of(cluster, unique) == "EMPTY"
    with pytest.raises(PartialFailure, match="4 of 4"):
        store.commit(unique, at(topic, 9))


def test_a_group_of_old_consumers_is_compared_instead_of_locked(store: KafkaStore, topic: str, unique: str) -> None:
    store.commit(unique, at(topic, 10))

    (result,) = store.edit(
        [GroupEdit(unique, {TopicPartition(topic, 0): Change(OffsetAndMetadata(20), Committed(10))}, Guard.COMPARE)]
    )

    assert (result.atomic, result.how) == (
        False,
        "read and compared just before the write, which was not conditional",
    )
    assert offsets_of(store, unique)[0] == 20


def test_an_active_group_is_rejected_with_its_members_named_and_is_not_disturbed(
    store: KafkaStore, bootstrap: str, topic: str, unique: str
) -> None:
    store.commit(unique, at(topic, 10))
    with RunningConsumer(bootstrap, unique, topic) as consumer:
        wait_for(lambda: consumer.assigned == [0, 1, 2, 3], "the assignment")

        (locked_edit,) = store.edit([GroupEdit(unique, {tp: Change(o) for tp, o in at(topic, 50).items()})])
        (compared,) = store.edit(
            [GroupEdit(unique, {TopicPartition(topic, 0): Change(OffsetAndMetadata(50))}, Guard.COMPARE)]
        )

        for result in (locked_edit, compared):
            for outcome in result.outcomes.values():
                assert outcome.status is EditStatus.FAILED
                assert isinstance(outcome.error, GroupActive)
                (name,) = outcome.error.members
                assert name.startswith("the-app at 127.0.0.1 (the-app-")
        assert offsets_of(store, unique) == {0: 10, 1: 10, 2: 10, 3: 10}
        assert consumer.revocations == 0


def test_a_consumer_that_joins_during_an_edit_reads_all_of_it_and_continues(
    store: KafkaStore, cluster: KafkaCluster, bootstrap: str, topic: str, unique: str
) -> None:
    store.commit(unique, at(topic, 10))
    with ManualLock(bootstrap, unique) as manual, RunningConsumer(bootstrap, unique, topic) as consumer:
        wait_for(lambda: state_of(cluster, unique) == "PREPARING_REBALANCE", "the consumer to join")

        outcomes = manual.commit(at(topic, 60))
        assert consumer.assigned == []
        manual.leave()

        assert set(outcomes.values()) == {None}
        wait_for(lambda: len(consumer.first) == PARTITIONS, "messages of every partition")
        assert consumer.first == {0: 60, 1: 60, 2: 60, 3: 60}
        assert consumer.errors == []


def test_a_consumer_that_joins_during_an_abandoned_edit_reads_the_old_offsets(
    store: KafkaStore, cluster: KafkaCluster, bootstrap: str, topic: str, unique: str
) -> None:
    store.commit(unique, at(topic, 10))
    with ManualLock(bootstrap, unique) as manual, RunningConsumer(bootstrap, unique, topic) as consumer:
        wait_for(lambda: state_of(cluster, unique) == "PREPARING_REBALANCE", "the consumer to join")

        manual.leave()

        wait_for(lambda: len(consumer.first) == PARTITIONS, "messages of every partition")
        assert consumer.first == {0: 10, 1: 10, 2: 10, 3: 10}
        assert consumer.errors == []


def test_consumers_that_start_during_many_edits_read_the_offsets_of_one_edit(
    store: KafkaStore, bootstrap: str, topic: str, unique: str
) -> None:
    """Each edit moves all partitions together, so mixed offsets would come from the middle of an edit."""
    store.commit(unique, at(topic, 1))
    stop = threading.Event()
    refused: list[str] = []

    def edit_repeatedly() -> None:
        for offset in range(2, 95):
            (result,) = store.edit([GroupEdit(unique, {tp: Change(o) for tp, o in at(topic, offset).items()})])
            refused.extend(type(e).__name__ for e in result.failures.values())
            if stop.is_set():
                return

    thread = threading.Thread(target=edit_repeatedly)
    thread.start()
    try:
        for _ in range(3):
            with RunningConsumer(bootstrap, unique, topic) as consumer:
                wait_for(lambda: len(consumer.first) == PARTITIONS, "messages of every partition")
                assert len(set(consumer.first.values())) == 1, consumer.first
                assert consumer.errors == []
    finally:
        stop.set()
        thread.join()
    assert set(refused) <= {"GroupActive"}


def test_an_admin_commit_during_an_edit_is_rejected(store: KafkaStore, bootstrap: str, topic: str, unique: str) -> None:
    store.commit(unique, at(topic, 10))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with ManualLock(bootstrap, unique) as manual:
        theirs = ck.ConsumerGroupTopicPartitions(unique, [ck.TopicPartition(topic, 0, 77)])

        (answered,) = admin.alter_consumer_group_offsets([theirs]).values()
        (partition,) = answered.result(20).topic_partitions
        ours = manual.commit(at(topic, 20))
        manual.leave()

    assert partition.error.name() == "UNKNOWN_MEMBER_ID"
    assert set(ours.values()) == {None}
    assert offsets_of(store, unique) == {0: 20, 1: 20, 2: 20, 3: 20}


def test_two_edits_of_one_group_at_the_same_time_never_interleave(
    store: KafkaStore, bootstrap: str, topic: str, unique: str
) -> None:
    store.commit(unique, at(topic, 10))
    with ManualLock(bootstrap, unique) as manual:
        (result,) = store.edit([GroupEdit(unique, {tp: Change(o) for tp, o in at(topic, 30).items()})])
        manual.leave()

    for error in result.failures.values():
        assert isinstance(error, GroupActive)
        assert "offsetmgr at 127.0.0.1" in error.members[0]
    assert len(result.failures) == PARTITIONS
    assert offsets_of(store, unique) == {0: 10, 1: 10, 2: 10, 3: 10}


def test_edits_of_one_group_in_one_stream_are_executed_in_order(store: KafkaStore, topic: str, unique: str) -> None:
    tp = TopicPartition(topic, 0)
    edits = [GroupEdit(unique, {tp: Change(OffsetAndMetadata(n + 1), Committed(n) if n else ABSENT)}) for n in range(9)]

    results = list(store.edit(edits))

    assert [r.outcomes[tp].status for r in results] == [EditStatus.WRITTEN] * 9
    assert offsets_of(store, unique) == {0: 9}


def test_an_unknown_topic_fails_alone(store: KafkaStore, topic: str, unique: str) -> None:
    good, unknown, beyond = TopicPartition(topic, 0), TopicPartition("no-such-topic", 0), TopicPartition(topic, 99)

    with pytest.raises(PartialFailure) as caught:
        store.commit(unique, {tp: OffsetAndMetadata(5) for tp in (good, unknown, beyond)})

    assert set(caught.value.successes) == {good}
    assert {tp: type(e) for tp, e in caught.value.failures.items()} == {
        unknown: UnknownTopicOrPartition,
        beyond: UnknownTopicOrPartition,
    }
    assert offsets_of(store, unique) == {0: 5}


def test_metadata_that_is_too_long_fails_alone(store: KafkaStore, topic: str, unique: str) -> None:
    fits, too_long, far_too_long = (TopicPartition(topic, p) for p in range(3))

    (result,) = store.edit(
        [
            GroupEdit(
                unique,
                {
                    fits: Change(OffsetAndMetadata(5, "x" * 4096)),
                    too_long: Change(OffsetAndMetadata(5, "x" * 4097)),
                    far_too_long: Change(OffsetAndMetadata(5, "x" * 40_000)),
                },
            )
        ]
    )

    assert {tp: e.name for tp, e in result.failures.items()} == {
        too_long: "OFFSET_METADATA_TOO_LARGE",
        far_too_long: "OFFSET_METADATA_TOO_LARGE",
    }
    assert result.outcomes[fits].status is EditStatus.WRITTEN


def test_partitions_with_an_open_transaction_are_unreadable_not_stale(
    store: KafkaStore, bootstrap: str, topic: str, unique: str
) -> None:
    store.commit(unique, at(topic, 10))
    with KafkaStore(bootstrap, ConnectionConfig(timeout_ms=3000)) as impatient:
        producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": unique})
        producer.init_transactions(20)
        producer.begin_transaction()
        consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": unique})
        producer.send_offsets_to_transaction([ck.TopicPartition(topic, 0, 70)], consumer.consumer_group_metadata(), 20)

        with pytest.raises(PartialFailure) as caught:
            impatient.fetch(unique)
        (scanned,) = impatient.scan([unique])
        producer.abort_transaction(20)
        consumer.close()

        assert set(caught.value.failures) == {TopicPartition(topic, 0)}
        assert set(scanned.errors) == {TopicPartition(topic, 0)}
        assert "UNSTABLE_OFFSET_COMMIT" in str(scanned.errors[TopicPartition(topic, 0)])
        assert TopicPartition(topic, 0) not in scanned.offsets


def test_a_fetch_waits_for_a_transaction_that_ends_soon(
    store: KafkaStore, bootstrap: str, topic: str, unique: str
) -> None:
    store.commit(unique, at(topic, 10))
    producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": unique})
    producer.init_transactions(20)
    producer.begin_transaction()
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": unique})
    producer.send_offsets_to_transaction([ck.TopicPartition(topic, 0, 70)], consumer.consumer_group_metadata(), 20)
    ending = threading.Timer(0.2, producer.commit_transaction, [20])
    ending.start()

    found = offsets_of(store, unique)

    ending.join()
    consumer.close()
    assert found == {0: 70, 1: 10, 2: 10, 3: 10}


def test_a_group_is_deleted_whole(store: KafkaStore, cluster: KafkaCluster, topic: str, unique: str) -> None:
    store.commit(unique, at(topic, 10))

    store.delete_group(unique)

    assert dict(store.fetch(unique)) == {}
    assert unique not in set(store.groups())
    with pytest.raises(GroupNotFound):
        store.delete_group(unique)


def test_an_active_group_is_not_deleted(store: KafkaStore, bootstrap: str, topic: str, unique: str) -> None:
    store.commit(unique, at(topic, 10))
    with RunningConsumer(bootstrap, unique, topic) as consumer:
        wait_for(lambda: consumer.assigned == [0, 1, 2, 3], "the assignment")

        with pytest.raises(GroupActive) as caught:
            store.delete_group(unique)

        assert caught.value.members[0].startswith("the-app at 127.0.0.1")
    assert offsets_of(store, unique) == {0: 10, 1: 10, 2: 10, 3: 10}


# --- locks over many commits ----------------------------------------------------------------------


def test_a_locked_group_accepts_commits_of_its_holder_only(
    store: KafkaStore, bootstrap: str, topic: str, unique: str
) -> None:
    store.commit(unique, at(topic, 10))
    assert isinstance(store, LockableStore)

    with store.lock(unique, holder="mirror") as lock:
        outcomes = lock.commit(at(topic, 20))
        (theirs,) = store.edit([GroupEdit(unique, {tp: Change(o) for tp, o in at(topic, 90).items()})])

        assert {o.status for o in outcomes.values()} == {EditStatus.WRITTEN}
        assert {type(e) for e in theirs.failures.values()} == {GroupActive}
        assert {c.offset for c in lock.fetch().values()} == {20}
        assert lock.lost is None
    assert offsets_of(store, unique) == {0: 20, 1: 20, 2: 20, 3: 20}
    assert store.commit(unique, at(topic, 30)).atomic


def test_a_lock_compares_and_rejects_rewinds(store: KafkaStore, topic: str, unique: str) -> None:
    tp = TopicPartition(topic, 0)
    store.commit(unique, at(topic, 10))

    with store.lock(unique, holder="mirror") as lock:
        back = lock.commit({tp: OffsetAndMetadata(9)})
        wrong = lock.edit({tp: Change(OffsetAndMetadata(11), expected=Committed(9))})
        gone = lock.edit({tp: Change(None)})

    assert back[tp].status is EditStatus.FAILED
    assert isinstance(wrong[tp].error, Conflict)
    assert gone[tp].status is EditStatus.WRITTEN
    assert store.fetch(unique, [tp])[tp] == ABSENT


def test_a_restarted_holder_takes_over_at_once_and_the_earlier_one_is_fenced(
    store: KafkaStore, bootstrap: str, topic: str, unique: str
) -> None:
    store.commit(unique, at(topic, 10))
    with KafkaStore(bootstrap) as other:
        former = store.lock(unique, holder="mirror")
        with Stopwatch() as watch:
            later = other.lock(unique, holder="mirror")

        with pytest.raises(LockLost) as caught:
            former.commit(at(topic, 90))
        assert {o.status for o in later.commit(at(topic, 20)).values()} == {EditStatus.WRITTEN}

        assert watch.seconds < 8  # does not wait for the former holder's session of 10 s to end
        assert "FENCED_INSTANCE_ID" in str(caught.value)
        assert isinstance(former.lost, LockLost)
        former.release()
        assert later.lost is None
        assert {o.status for o in later.commit(at(topic, 21)).values()} == {EditStatus.WRITTEN}
        later.release()
    assert offsets_of(store, unique) == {0: 21, 1: 21, 2: 21, 3: 21}


def test_a_lock_is_lost_to_a_consumer_that_joins_and_continues(
    store: KafkaStore, bootstrap: str, topic: str, unique: str
) -> None:
    store.commit(unique, at(topic, 10))
    lock = store.lock(unique, holder="mirror")
    lock.commit(at(topic, 40))

    with RunningConsumer(bootstrap, unique, topic) as consumer:
        wait_for(lambda: len(consumer.first) == PARTITIONS, "messages of every partition")

        assert consumer.first == {0: 40, 1: 40, 2: 40, 3: 40}
        assert consumer.errors == []
        assert isinstance(lock.lost, GroupActive)
        with pytest.raises(LockLost):
            lock.commit(at(topic, 90))
        lock.release()
        with pytest.raises(GroupActive) as caught:
            store.lock(unique, holder="mirror")
        assert caught.value.members[0].startswith("the-app at 127.0.0.1")
    assert offsets_of(store, unique) == {0: 40, 1: 40, 2: 40, 3: 40}


def test_a_group_stays_locked_longer_than_a_session(store: KafkaStore, topic: str, unique: str) -> None:
    store.commit(unique, at(topic, 10))
    with store.lock(unique, holder="mirror") as lock:
        end = time.monotonic() + 12
        wait_for(lambda: time.monotonic() > end, "more than a session of 10 s")

        assert lock.lost is None
        assert {o.status for o in lock.commit(at(topic, 20)).values()} == {EditStatus.WRITTEN}


def test_many_groups_are_locked_committed_to_and_released_over_few_connections(
    store: KafkaStore, bootstrap: str, topic: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A broker that is slow on a busy machine must not look like one that waits for a rebalance delay.
    monkeypatch.setattr(lock_membership, "_WAITING_AFTER_S", 60.0)
    groups = [f"{unique}-{n:03}" for n in range(150)]
    sockets_before = open_sockets()

    locks: dict[str, Any] = dict(store.lock_many(groups, holder="mirror"))
    sockets = open_sockets() - sockets_before
    outcomes: dict[str, Any] = dict(store.commit_locked((lock, at(topic, 7)) for lock in locks.values()))
    with KafkaStore(bootstrap) as other:
        theirs = list(other.edit(GroupEdit(g, {tp: Change(o) for tp, o in at(topic, 90).items()}) for g in groups))
    store.release_locks(locks.values())

    assert sorted(locks) == groups
    assert sockets < 50
    assert sorted(outcomes) == groups
    assert {o.status for found in outcomes.values() for o in found.values()} == {EditStatus.WRITTEN}
    assert {type(e) for result in theirs for e in result.failures.values()} == {GroupActive}
    assert {g: offsets_of(store, g) for g in groups} == {g: {0: 7, 1: 7, 2: 7, 3: 7} for g in groups}
    assert store.commit(groups[0], at(topic, 30)).atomic


def test_a_group_that_cannot_be_locked_or_lost_its_lock_fails_alone(
    store: KafkaStore, bootstrap: str, topic: str, unique: str
) -> None:
    busy, taken, good = f"{unique}-busy", f"{unique}-taken", f"{unique}-good"
    with RunningConsumer(bootstrap, busy, topic) as consumer, KafkaStore(bootstrap) as other:
        wait_for(lambda: len(consumer.assigned) == PARTITIONS, "the assignment")

        locks: dict[str, Any] = dict(store.lock_many([busy, taken, good], holder="mirror"))
        later = other.lock(taken, holder="mirror")
        outcomes: dict[str, Any] = dict(store.commit_locked((locks[g], at(topic, 7)) for g in (taken, good)))

        assert isinstance(locks[busy], GroupActive)
        assert isinstance(outcomes[taken], LockLost)
        assert {o.status for o in outcomes[good].values()} == {EditStatus.WRITTEN}
        ((_, back),) = store.commit_locked([(locks[good], at(topic, 6))])
        assert isinstance(back, Mapping)
        assert {o.status for o in back.values()} == {EditStatus.FAILED}
        store.release_locks([locks[taken], locks[good]])
        later.release()
    assert offsets_of(store, good) == {0: 7, 1: 7, 2: 7, 3: 7}


def open_sockets() -> int:
    """Sockets of this process."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            count += descriptor.readlink().name.startswith("socket:")
    return count


# --- groups of the new protocol (KIP-848) ---------------------------------------------------------


def test_groups_of_the_new_protocol_are_rejected_while_active_and_edited_when_idle(
    kraft: Any, make_topic: MakeTopic, unique: str
) -> None:
    topic = make_topic(unique, PARTITIONS, bootstrap=kraft.bootstrap)
    with KafkaStore(kraft.bootstrap) as store, KafkaCluster(kraft.bootstrap) as cluster:
        with RunningConsumer(kraft.bootstrap, unique, topic, **{"group.protocol": "consumer"}) as consumer:
            wait_for(lambda: consumer.assigned == [0, 1, 2, 3], "the assignment")
            described = cluster.describe_groups([unique])[unique]
            assert isinstance(described, GroupDescription)
            (member,) = described.members

            (refused,) = store.edit([GroupEdit(unique, {tp: Change(o) for tp, o in at(topic, 5).items()})])

            assert member.client_id == "the-app"
            assert {type(e) for e in refused.failures.values()} == {GroupActive}
            (error, *_) = refused.failures.values()
            assert isinstance(error, GroupActive)
            assert error.members[0].startswith("the-app at 127.0.0.1")
        wait_for(lambda: state_of(cluster, unique) == "EMPTY", "the consumer to be gone")

        first = store.commit(unique, at(topic, 5))
        second = store.commit(unique, at(topic, 6))

        assert (first.atomic, second.atomic) == (True, True)
        assert offsets_of(store, unique) == {0: 6, 1: 6, 2: 6, 3: 6}
