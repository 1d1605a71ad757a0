"""A lock over many commits, with a holder: takeover, loss, duration, and the locks of many groups."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from committed_offsets import PARTITIONS, at, edit_of, offsets_of
from polling_consumer import PollingConsumer
from processes import wait_for
from stopwatch import Stopwatch

from offsetmgr.core.errors import GroupActive, LockLost, value_of
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import EditStatus, HeldLock
from offsetmgr.kafka.groups import group_lock as lock_membership
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers


def test_a_locked_group_accepts_commits_of_its_holder_only(kafka_store, bootstrap, filled_topic, unique):
    kafka_store.commit(unique, at(filled_topic, 10))
    with locked(kafka_store, unique) as lock:
        outcomes = commit(kafka_store, lock, at(filled_topic, 20))
        (theirs,) = kafka_store.edit([edit_of(unique, filled_topic, 90)])
        assert {o.status for o in outcomes.values()} == {EditStatus.WRITTEN}
        assert {type(e) for e in theirs.failures.values()} == {GroupActive}
        assert lock.lost is None
    assert offsets_of(kafka_store, unique) == {0: 20, 1: 20, 2: 20, 3: 20}
    assert kafka_store.commit(unique, at(filled_topic, 30)).atomic


def test_a_restarted_holder_takes_over_at_once_and_the_earlier_one_is_fenced(
    kafka_store: KafkaStore, bootstrap: str, filled_topic: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_membership, "SESSION_MS", 120_000)
    kafka_store.commit(unique, at(filled_topic, 10))
    with KafkaStore(bootstrap) as other:
        former = lock_of(kafka_store, unique)
        with Stopwatch() as watch:
            later = lock_of(other, unique)
        with pytest.raises(LockLost) as caught:
            commit(kafka_store, former, at(filled_topic, 90))
        assert {o.status for o in commit(other, later, at(filled_topic, 20)).values()} == {EditStatus.WRITTEN}
        assert watch.seconds < 60  # does not wait for the former holder's session of 120 s to end
        assert "FENCED_INSTANCE_ID" in str(caught.value)
        assert isinstance(former.lost, LockLost)
        kafka_store.release_locks([former])
        assert later.lost is None
        assert {o.status for o in commit(other, later, at(filled_topic, 21)).values()} == {EditStatus.WRITTEN}
        other.release_locks([later])
    assert offsets_of(kafka_store, unique) == {0: 21, 1: 21, 2: 21, 3: 21}


def test_a_lock_is_lost_to_a_consumer_that_joins_and_continues(kafka_store, bootstrap, filled_topic, unique):
    kafka_store.commit(unique, at(filled_topic, 10))
    lock = lock_of(kafka_store, unique)
    commit(kafka_store, lock, at(filled_topic, 40))
    with PollingConsumer(bootstrap, unique, filled_topic) as consumer:
        wait_for(lambda: len(consumer.first) == PARTITIONS, "messages of every partition")
        assert consumer.first == {0: 40, 1: 40, 2: 40, 3: 40}
        assert consumer.errors == []
        assert isinstance(lock.lost, GroupActive)
        with pytest.raises(LockLost):
            commit(kafka_store, lock, at(filled_topic, 90))
        kafka_store.release_locks([lock])
        with pytest.raises(GroupActive) as caught:
            lock_of(kafka_store, unique)
        assert caught.value.members[0].startswith("the-app at 127.0.0.1")
    assert offsets_of(kafka_store, unique) == {0: 40, 1: 40, 2: 40, 3: 40}


def test_a_group_stays_locked_longer_than_a_session(kafka_store: KafkaStore, filled_topic: str, unique: str) -> None:
    kafka_store.commit(unique, at(filled_topic, 10))
    with locked(kafka_store, unique) as lock:
        end = time.monotonic() + 12
        wait_for(lambda: time.monotonic() > end, "more than a session of 10 s")
        assert lock.lost is None
        assert {o.status for o in commit(kafka_store, lock, at(filled_topic, 20)).values()} == {EditStatus.WRITTEN}


def test_many_groups_are_locked_committed_to_and_released_over_few_connections(
    kafka_store: KafkaStore, bootstrap: str, filled_topic: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A broker that is slow on a busy machine must not look like one that waits for a rebalance delay.
    monkeypatch.setattr(lock_membership, "_WAITING_AFTER_S", 60.0)
    groups = [f"{unique}-{n:03}" for n in range(150)]
    sockets_before = open_sockets()
    locks: dict[str, Any] = dict(kafka_store.lock_many(groups, holder="mirror"))
    sockets = open_sockets() - sockets_before
    outcomes: dict[str, Any] = dict(kafka_store.commit_locked((lock, at(filled_topic, 7)) for lock in locks.values()))
    with KafkaStore(bootstrap) as other:
        theirs = list(other.edit(edit_of(g, filled_topic, 90) for g in groups))
    kafka_store.release_locks(locks.values())
    assert sorted(locks) == groups
    assert sockets < 50
    assert sorted(outcomes) == groups
    assert {o.status for found in outcomes.values() for o in found.values()} == {EditStatus.WRITTEN}
    assert {type(e) for result in theirs for e in result.failures.values()} == {GroupActive}
    assert {g: offsets_of(kafka_store, g) for g in groups} == {g: {0: 7, 1: 7, 2: 7, 3: 7} for g in groups}
    assert kafka_store.commit(groups[0], at(filled_topic, 30)).atomic


def test_a_group_that_cannot_be_locked_or_lost_its_lock_fails_alone(kafka_store, bootstrap, filled_topic, unique):
    busy, taken, good = f"{unique}-busy", f"{unique}-taken", f"{unique}-good"
    with PollingConsumer(bootstrap, busy, filled_topic) as consumer, KafkaStore(bootstrap) as other:
        wait_for(lambda: len(consumer.assigned) == PARTITIONS, "the assignment")
        locks: dict[str, Any] = dict(kafka_store.lock_many([busy, taken, good], holder="mirror"))
        later = lock_of(other, taken)
        outcomes: dict[str, Any] = dict(
            kafka_store.commit_locked((locks[g], at(filled_topic, 7)) for g in (taken, good))
        )
        assert isinstance(locks[busy], GroupActive)
        assert isinstance(outcomes[taken], LockLost)
        assert {o.status for o in outcomes[good].values()} == {EditStatus.WRITTEN}
        ((_, back),) = kafka_store.commit_locked([(locks[good], at(filled_topic, 6))])
        assert isinstance(back, Mapping)
        assert {o.status for o in back.values()} == {EditStatus.FAILED}
        kafka_store.release_locks([locks[taken], locks[good]])
        other.release_locks([later])
    assert offsets_of(kafka_store, good) == {0: 7, 1: 7, 2: 7, 3: 7}


def lock_of(store: KafkaStore, group: str) -> HeldLock:
    ((_, lock),) = store.lock_many([group], holder="mirror")
    return value_of(lock)


@contextlib.contextmanager
def locked(store: KafkaStore, group: str) -> Iterator[HeldLock]:
    lock = lock_of(store, group)
    yield lock
    store.release_locks([lock])


def commit(store: KafkaStore, lock: HeldLock, offsets: dict[TopicPartition, OffsetAndMetadata]) -> Any:
    ((_, outcomes),) = store.commit_locked([(lock, offsets)])
    return value_of(outcomes)


def open_sockets() -> int:
    """Sockets of this process."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            count += descriptor.readlink().name.startswith("socket:")
    return count
