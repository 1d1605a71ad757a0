"""Writes to brokers 0.8.2, which have no group lock: offsetmgr compares offsets before a write and reads them after
it."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from processes import fails, wait_for
from release_environment import has_leaders
from release_fixtures import ReleaseCluster

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import Conflict, OffsetMgrError, RewindRefused, TimedOut
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.kafka.client.client import Client
from offsetmgr.sandbox import KafkaBroker, create_topic
from offsetmgr.stores import protocol_edits as conditional_edit
from offsetmgr.stores.kafka import KafkaStore

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

Requested = Mapping[str, Sequence[TopicPartition] | None]
Found = dict[str, Any]
UNREADABLE = TimedOut("broker", "it does not answer")


@pytest.fixture(scope="module")
def release_cluster(start_release: Callable[[str], ReleaseCluster]) -> ReleaseCluster:
    return start_release("0.8.2.2")


@pytest.fixture
def store(release_cluster: ReleaseCluster) -> Iterator[KafkaStore]:
    with KafkaStore(release_cluster.bootstrap, ConnectionConfig(timeout_ms=20_000)) as store:
        yield store


@pytest.fixture
def tp(release_cluster: ReleaseCluster, unique: str) -> TopicPartition:
    return TopicPartition(release_cluster.make_topic(unique), 0)


def offset(store: KafkaStore, group: str, tp: TopicPartition) -> int:
    lock = store.fetch(group, [tp])[tp]
    assert isinstance(lock, Committed)
    return lock.offset


def consumer_commits(release_cluster: ReleaseCluster, group: str, tp: TopicPartition, number: int) -> None:
    with KafkaStore(release_cluster.bootstrap) as consumer:
        consumer.commit(group, {tp: OffsetAndMetadata(number)})


class Interference:
    """Injects a commit or a failure once, after a read or a write of the store under test."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, release_cluster: ReleaseCluster, group: str, tp: TopicPartition
    ) -> None:
        self._patch, self._era, self._group, self._tp = monkeypatch, release_cluster, group, tp

    def stopped_before(self, owner: object, name: str, number: int) -> None:
        """Delays the first call of a function; meanwhile a consumer commits ``number``."""
        real = getattr(owner, name)
        done = False

        def stopped(*arguments: object, **options: object) -> object:
            nonlocal done
            if not done:
                done = True
                with ThreadPoolExecutor() as consumer:
                    consumer.submit(consumer_commits, self._era, self._group, self._tp, number).result()
                time.sleep(0.1)  # the duration of the stop
            return real(*arguments, **options)

        self._patch.setattr(owner, name, stopped)

    def stopped_after(self, method: str, number: int, seconds: float) -> None:
        """Delays the response to the first call of the client's ``method``; meanwhile a consumer commits ``number``."""
        real = getattr(Client, method)
        done = False

        async def stopped(client: Client, *arguments: object) -> object:
            nonlocal done
            answer = await real(client, *arguments)
            if not done:
                done = True
                await asyncio.to_thread(consumer_commits, self._era, self._group, self._tp, number)
                await asyncio.sleep(seconds)  # the delay of the response
            return answer

        self._patch.setattr(Client, method, stopped)

    def no_read_after_commit(self, *, whole: bool) -> None:
        """Makes the reads after the first commit fail, for the ``whole`` group or only for the partition."""
        commit, fetch = Client.commit, Client.fetch
        committed = False

        async def commit_and_record(client: Client, *arguments: object) -> object:
            nonlocal committed
            committed = True
            return await commit(client, *arguments)  # type: ignore[arg-type]

        async def failing(client: Client, requested: Requested, deadline: float) -> Found:
            found: Found = await fetch(client, requested, deadline)
            if committed:
                partly = {
                    group: one._replace(offsets={}, errors={self._tp: UNREADABLE}) for group, one in found.items()
                }
                return dict.fromkeys(found, UNREADABLE) if whole else partly
            return found

        self._patch.setattr(Client, "commit", commit_and_record)
        self._patch.setattr(Client, "fetch", failing)


@pytest.fixture
def interference(monkeypatch, release_cluster, unique, tp):
    return Interference(monkeypatch, release_cluster, unique, tp)


@pytest.mark.parametrize("stopped", ["waiting for the answer", "before the comparison"])
def test_a_mirror_does_not_rewind_a_consumer_that_commits_after_the_reading(store, unique, tp, interference, stopped):
    store.commit(unique, {tp: OffsetAndMetadata(50)})
    ((_, lock),) = store.lock_many([unique], holder="mirror")
    if stopped == "waiting for the answer":
        interference.stopped_after("fetch", 90, seconds=1.1)
    else:
        interference.stopped_before(conditional_edit, "decide", 90)
    ((_, outcomes),) = store.commit_locked([(lock, {tp: OffsetAndMetadata(70)})])
    assert isinstance(outcomes, Mapping)
    assert isinstance(outcomes[tp].error, RewindRefused)
    assert offset(store, unique, tp) == 90


def test_a_refresh_does_not_rewind_a_consumer_that_commits_after_the_reading(store, unique, tp, interference):
    store.commit(unique, {tp: OffsetAndMetadata(50)})
    ((_, lock),) = store.lock_many([unique], holder="mirror")
    interference.stopped_before(Committed, "value", 90)
    assert list(store.refresh_locked([lock])) == [(unique, None)]
    assert offset(store, unique, tp) == 90


def test_a_mirror_reads_after_its_write_and_reports_another_clients_commit(store, unique, tp, interference):
    store.commit(unique, {tp: OffsetAndMetadata(50)})
    ((_, lock),) = store.lock_many([unique], holder="mirror")
    interference.stopped_after("commit", 90, seconds=0)
    ((_, outcomes),) = store.commit_locked([(lock, {tp: OffsetAndMetadata(70)})])
    assert isinstance(outcomes, Mapping)
    assert isinstance(outcomes[tp].error, Conflict)
    assert "wrote 70 and then found offset 90: another client commits to the group" in str(outcomes[tp].error)


@pytest.mark.parametrize("whole", [True, False], ids=["group", "partition"])
def test_a_write_that_cannot_be_read_again_is_reported_as_written_and_not_confirmed(
    store: KafkaStore, unique: str, tp: TopicPartition, interference: Interference, whole: bool
) -> None:
    store.commit(unique, {tp: OffsetAndMetadata(50)})
    interference.no_read_after_commit(whole=whole)
    (result,) = store.edit([GroupEdit(unique, {tp: Change(OffsetAndMetadata(70))})])
    assert result.outcomes[tp].status is EditStatus.WRITTEN
    assert result.outcomes[tp].error is None
    assert not result.atomic
    assert "written, but not confirmed: offsetmgr could not read" in result.how
    assert "it does not answer" in result.how


def test_the_offsets_on_a_broker_that_has_just_started_are_read_or_an_error(zookeeper, unique, tmp_path):
    # At first such a broker has no metadata of the topics, and then it is not their leader yet.
    where = f"{zookeeper.connect}/{unique}"
    with KafkaBroker(tmp_path / "broker", zookeeper=where, version="0.8.2.2") as broker:
        create_topic(unique, 1, zookeeper=where, bootstrap=broker.bootstrap, version="0.8.2.2")
        wait_for(lambda: has_leaders(broker.bootstrap, unique, 1), "the topic has a leader")
        with KafkaStore(broker.bootstrap, ConnectionConfig(timeout_ms=500)) as store:
            offset_at = TopicPartition(unique, 0)
            seven = {offset_at: OffsetAndMetadata(7)}
            wait_for(lambda: not fails(OffsetMgrError, store.commit, "g", seven), "it is committed")
            broker.kill()

            async def read() -> None:
                at_once = asyncio.get_running_loop().time() + 0.05
                offsets_topic = store.store_thread().client.offsets_topic
                assert offsets_topic is not None
                partitions_read.append((await offsets_topic().partitions(["g"], at_once))["g"])

            partitions_read: list[Sequence[TopicPartition]] = []
            with ThreadPoolExecutor(1) as pool:
                starting = pool.submit(broker.start)
                wait_for(
                    lambda: not fails(OffsetMgrError, lambda: store.store_thread().runner.run(read())),
                    "the broker returns the offsets",
                )
                starting.result()
    assert partitions_read == [[offset_at]]
