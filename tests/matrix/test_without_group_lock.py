"""Writes to brokers 0.8.2, which have no group lock: what offsetmgr compares before a write and reads after it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from matrix_worlds import has_leaders
from processes import wait_for

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import Conflict, OffsetMgrError, RewindRefused, TimedOut
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.protocol.requests import FetchedGroup
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, create_topic
from offsetmgr.stores import conditional_edit
from offsetmgr.stores.kafka import KafkaStore

if TYPE_CHECKING:
    from matrix.conftest import Era

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

Asked = Mapping[str, Sequence[TopicPartition] | None]
Found = dict[str, FetchedGroup | OffsetMgrError]
UNREADABLE = TimedOut("broker", "it does not answer")


@pytest.fixture(scope="module")
def era(start_era: Callable[[str], Era]) -> Era:
    return start_era("0.8.2.2")


@pytest.fixture
def store(era: Era) -> Iterator[KafkaStore]:
    with KafkaStore(era.bootstrap, ConnectionConfig(timeout_ms=20_000)) as store:
        yield store


@pytest.fixture
def tp(era: Era, unique: str) -> TopicPartition:
    return TopicPartition(era.make_topic(unique), 0)


def offset(store: KafkaStore, group: str, tp: TopicPartition) -> int:
    held = store.fetch(group, [tp])[tp]
    assert isinstance(held, Committed)
    return held.offset


def consumer_commits(era: Era, group: str, tp: TopicPartition, number: int) -> None:
    with KafkaStore(era.bootstrap) as consumer:
        consumer.commit(group, {tp: OffsetAndMetadata(number)})


class Interfered:
    """Does something once, between a read or write of the store under test and what follows it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, era: Era, group: str, tp: TopicPartition) -> None:
        self._patch, self._era, self._group, self._tp = monkeypatch, era, group, tp

    def stopped_before(self, owner: object, name: str, number: int) -> None:
        """The process is stopped before the first call of a function, and a consumer commits ``number`` meanwhile."""
        real = getattr(owner, name)
        done = False

        def stopped(*arguments: object) -> object:
            nonlocal done
            if not done:
                done = True
                with ThreadPoolExecutor() as consumer:
                    consumer.submit(consumer_commits, self._era, self._group, self._tp, number).result()
                time.sleep(0.1)  # how long it is stopped
            return real(*arguments)

        self._patch.setattr(owner, name, stopped)

    def stopped_after(self, method: str, number: int, seconds: float) -> None:
        """A consumer commits ``number`` after the broker answered the first call of the client's ``method``, and the
        answer arrives later."""
        real = getattr(Client, method)
        done = False

        async def stopped(client: Client, *arguments: object) -> object:
            nonlocal done
            answer = await real(client, *arguments)
            if not done:
                done = True
                await asyncio.to_thread(consumer_commits, self._era, self._group, self._tp, number)
                await asyncio.sleep(seconds)  # how long the process is stopped
            return answer

        self._patch.setattr(Client, method, stopped)

    def no_read_after_commit(self, *, whole: bool) -> None:
        """The reads after the first commit fail: that of the ``whole`` group, or that of the partition."""
        commit, fetch = Client.commit, Client.fetch
        committed = False

        async def noted(client: Client, *arguments: object) -> object:
            nonlocal committed
            committed = True
            return await commit(client, *arguments)  # type: ignore[arg-type]

        async def failing(client: Client, asked: Asked, deadline: float) -> Found:
            found = await fetch(client, asked, deadline)
            if committed:
                return dict.fromkeys(found, UNREADABLE if whole else FetchedGroup({}, {self._tp: UNREADABLE}))
            return found

        self._patch.setattr(Client, "commit", noted)
        self._patch.setattr(Client, "fetch", failing)


@pytest.fixture
def interfered(monkeypatch: pytest.MonkeyPatch, era: Era, unique: str, tp: TopicPartition) -> Interfered:
    return Interfered(monkeypatch, era, unique, tp)


@pytest.mark.parametrize("stopped", ["waiting for the answer", "before the comparison"])
def test_a_mirror_does_not_rewind_a_consumer_that_commits_after_the_reading(
    store: KafkaStore, unique: str, tp: TopicPartition, interfered: Interfered, stopped: str
) -> None:
    store.commit(unique, {tp: OffsetAndMetadata(50)})
    held = store.lock(unique, holder="mirror")
    if stopped == "waiting for the answer":
        interfered.stopped_after("fetch", 90, seconds=1.1)
    else:
        interfered.stopped_before(conditional_edit, "decide", 90)
    ((_, outcomes),) = store.commit_locked([(held, {tp: OffsetAndMetadata(70)})])
    assert isinstance(outcomes, Mapping)
    assert isinstance(outcomes[tp].error, RewindRefused)
    assert offset(store, unique, tp) == 90


def test_a_refresh_does_not_rewind_a_consumer_that_commits_after_the_reading(
    store: KafkaStore, unique: str, tp: TopicPartition, interfered: Interfered
) -> None:
    store.commit(unique, {tp: OffsetAndMetadata(50)})
    held = store.lock(unique, holder="mirror")
    interfered.stopped_before(Committed, "value", 90)
    assert list(store.refresh_locked([held])) == [(unique, None)]
    assert offset(store, unique, tp) == 90


def test_a_mirror_reads_after_its_write_and_reports_another_clients_commit(
    store: KafkaStore, unique: str, tp: TopicPartition, interfered: Interfered
) -> None:
    store.commit(unique, {tp: OffsetAndMetadata(50)})
    held = store.lock(unique, holder="mirror")
    interfered.stopped_after("commit", 90, seconds=0)
    ((_, outcomes),) = store.commit_locked([(held, {tp: OffsetAndMetadata(70)})])
    assert isinstance(outcomes, Mapping)
    assert isinstance(outcomes[tp].error, Conflict)
    assert "wrote 70 and then found offset 90: another client commits to the group" in str(outcomes[tp].error)


@pytest.mark.parametrize("whole", [True, False], ids=["group", "partition"])
def test_a_write_that_cannot_be_read_again_is_reported_as_written_and_not_confirmed(
    store: KafkaStore, unique: str, tp: TopicPartition, interfered: Interfered, whole: bool
) -> None:
    store.commit(unique, {tp: OffsetAndMetadata(50)})
    interfered.no_read_after_commit(whole=whole)
    (result,) = store.edit([GroupEdit(unique, {tp: Change(OffsetAndMetadata(70))})])
    assert result.outcomes[tp].status is EditStatus.WRITTEN
    assert result.outcomes[tp].error is None
    assert not result.atomic
    assert "written, but not confirmed: offsetmgr could not read" in result.how
    assert "it does not answer" in result.how


def test_the_offsets_on_a_broker_that_has_just_started_are_read_or_an_error(
    zookeeper: ZooKeeperServer, unique: str, tmp_path: Path
) -> None:
    # Until the controller has told it, such a broker names no topics, and then it does not lead them yet.
    where = f"{zookeeper.connect}/{unique}"
    with KafkaBroker(tmp_path / "broker", zookeeper=where, version="0.8.2.2") as broker:
        create_topic(unique, 1, zookeeper=where, bootstrap=broker.bootstrap, version="0.8.2.2")
        wait_for(lambda: has_leaders(broker.bootstrap, unique, 1), "the topic has a leader")
        with KafkaStore(broker.bootstrap, ConnectionConfig(timeout_ms=500)) as store:
            offset_at = TopicPartition(unique, 0)
            wait_for(lambda: succeeds(lambda: store.commit("g", {offset_at: OffsetAndMetadata(7)})), "it is committed")
            broker.kill()

            async def read() -> None:
                at_once = asyncio.get_running_loop().time() + 0.05
                said.append((await store.wire().client.offsets_topic.partitions(["g"], at_once))["g"])

            said: list[Sequence[TopicPartition]] = []
            with ThreadPoolExecutor(1) as pool:
                starting = pool.submit(broker.start)
                wait_for(lambda: succeeds(lambda: store.wire().runner.run(read())), "the broker gives the offsets")
                starting.result()
    assert said == [[offset_at]]


def succeeds(call: Callable[[], object]) -> bool:
    """Whether the call raised no error."""
    try:
        call()
    except OffsetMgrError:
        return False
    return True
