"""`ZookeeperConsumer` against real ZooKeeper and a real broker: sharing, committing, watching, losing its session."""

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import Producer
from kazoo_client import connected
from processes import wait_for
from repeated import repeated
from stalling_proxy import StallingProxy
from zookeeper_history import group_history

from offsetmgr.consumer import ConsumerSettings, MessageStream, StreamMessage, ZookeeperConsumer
from offsetmgr.core.errors import Conflict, NotAuthorized, UsageError
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, OperationState

pytestmark = pytest.mark.servers

SESSION_MS = 4000
"""Short enough for the test in which the session expires, and longer than a busy machine pauses in other tests."""
SETTINGS: dict[str, Any] = {
    "auto_offset_reset": "smallest",
    "auto_commit_interval_ms": 200,
    "zookeeper_session_timeout_ms": SESSION_MS,
    "rebalance_backoff_ms": 200,
    "release_delay_ms": 0,
}


Join = Callable[..., ZookeeperConsumer]


@pytest.fixture
def join(kafka: KafkaBroker, unique: str) -> Iterator[Join]:
    """Creates consumers of the test's group, and shuts them down at its end."""
    created: list[ZookeeperConsumer] = []

    def make(**changes: Any) -> ZookeeperConsumer:
        settings = ConsumerSettings(**{**SETTINGS, **changes.pop("settings", {})})
        arguments = {"zookeeper": kafka.zookeeper, "bootstrap_servers": kafka.bootstrap, "group": unique, **changes}
        created.append(ZookeeperConsumer(**arguments, settings=settings))
        return created[-1]

    yield make
    for consumer in created:
        consumer.shutdown()


@pytest.fixture
def session(kafka: KafkaBroker) -> Iterator[ZookeeperSession]:
    with ZookeeperSession(kafka.zookeeper) as session:
        yield session


def produce(kafka: KafkaBroker, topic: str, partitions: int, each: int, start: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all"})
    for number in range(start, start + each):
        for partition in range(partitions):
            producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(30) == 0


def take(stream: MessageStream, count: int) -> list[StreamMessage]:
    """Waits for ``count`` messages of the stream, and returns them."""
    found = []
    for _ in range(count):
        message = stream.get(30)
        assert message is not None, f"only {len(found)} of {count} messages arrived"
        found.append(message)
    return found


class Reader:
    """Reads each stream in a thread, and records the messages with their times of arrival (ms since 1970)."""

    def __init__(self, *streams: MessageStream) -> None:
        self.seen: list[tuple[StreamMessage, int]] = []
        for stream in streams:
            threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: MessageStream) -> None:
        for message in stream:
            self.seen.append((message, time.time_ns() // 1_000_000))

    def offsets(self) -> set[tuple[int, int]]:
        return {(message.partition, message.offset) for message, _ in self.seen}


# --- sharing and starting positions ----------------------------------------------------------------


def test_members_share_the_partitions_and_each_partition_goes_to_one_stream(kafka, join, make_topic, unique) -> None:
    topic = make_topic(unique, 5)
    produce(kafka, topic, 5, 20)
    one, two = join(consumer_id="1"), join(consumer_id="2")
    streams = one.create_message_streams({topic: 2})[topic]
    assert one.owned == {TopicPartition(topic, p): int(p > 2) for p in range(5)}

    others = two.create_message_streams({topic: 1})[topic]
    # Three threads, sorted: 1-0 gets 0 and 1, 1-1 gets 2 and 3, 2-0 gets 4.
    shares = {TopicPartition(topic, p): int(p > 1) for p in range(4)}, {TopicPartition(topic, 4): 0}
    wait_for(lambda: (one.owned, two.owned) == shares, "each owns its share")
    readers = [Reader(stream) for stream in (*streams, *others)]

    wait_for(lambda: sum(len(reader.seen) for reader in readers) == 100, "all messages")
    assert [{message.partition for message, _ in reader.seen} for reader in readers] == [{0, 1}, {2, 3}, {4}]
    assert all(
        [m.offset for m, _ in reader.seen if m.partition == p] == list(range(20))
        for reader in readers
        for p in {m.partition for m, _ in reader.seen}
    )


@pytest.mark.parametrize("where", ["zookeeper", "kafka", "dual"])
def test_the_next_consumer_starts_at_the_committed_offset(where: str, kafka, join, make_topic, unique) -> None:
    topic = make_topic(unique)
    produce(kafka, topic, 1, 10)
    first = join(offsets=where, settings={"auto_commit": False})
    (stream,) = first.create_message_streams({topic: 1})[topic]
    take(stream, 4)
    assert re.fullmatch(rf"{unique}_.+-\d{{13}}-[0-9a-f]{{8}}", first.member_id)  # as the old consumer generates ids
    first.commit_offsets()
    take(stream, 3)  # not committed: automatic commits are off
    first.shutdown()

    second = join(offsets=where)
    (stream,) = second.create_message_streams({topic: 1})[topic]

    assert [message.offset for message in take(stream, 6)] == [4, 5, 6, 7, 8, 9]
    second.shutdown()
    stores = {"zookeeper": ["zookeeper"], "kafka": ["kafka"], "dual": ["zookeeper", "kafka"]}[where]
    for kind in stores:
        store: OffsetStore = ZookeeperStore(kafka.zookeeper) if kind == "zookeeper" else KafkaStore(kafka.bootstrap)
        with store:
            found = store.fetch(unique, [TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
            assert getattr(found, "offset", found) == 10


def test_a_partition_lost_while_its_stream_is_full_is_resumed_when_it_returns(kafka, join, make_topic, unique) -> None:
    topic = make_topic(unique)
    produce(kafka, topic, 1, 1000)
    late = join(consumer_id="b", settings={"queued_max_messages": 20})
    (stream,) = late.create_message_streams({topic: 1})[topic]
    assert [message.offset for message in take(stream, 5)] == [0, 1, 2, 3, 4]
    late.commit_offsets()
    wait_for(lambda: len(stream.buffer) > 20, "its stream is full")

    early = join(consumer_id="a")
    early.create_message_streams({topic: 1})
    wait_for(lambda: len(early.owned) == 1, "the only partition goes to the first by name")
    early.shutdown()

    assert [message.offset for message in take(stream, 995)] == list(range(5, 1000))


def test_without_a_commit_a_consumer_starts_at_the_end_and_keeps_that_position(kafka, join, make_topic, unique) -> None:
    topic = make_topic(unique)
    produce(kafka, topic, 1, 10)
    first = join(settings={"auto_offset_reset": "largest"})
    first.create_message_streams({topic: 1})
    first.shutdown()
    produce(kafka, topic, 1, 1, start=10)

    second = join(settings={"auto_offset_reset": "largest"})
    (stream,) = second.create_message_streams({topic: 1})[topic]

    assert [message.offset for message in take(stream, 1)] == [10]


def test_an_offset_outside_the_log_is_reset(kafka, join, make_topic, unique) -> None:
    topic = make_topic(unique)
    produce(kafka, topic, 1, 3)
    with ZookeeperStore(kafka.zookeeper) as store:
        store.commit(unique, {TopicPartition(topic, 0): OffsetAndMetadata(500)})
    consumer = join()

    (stream,) = consumer.create_message_streams({topic: 1})[topic]

    assert [message.offset for message in take(stream, 3)] == [0, 1, 2]


def test_uncommitted_and_aborted_messages_are_read_as_by_old_members(kafka, join, make_topic, unique) -> None:
    topic = make_topic(unique)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", partition=0)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(30) == 0
    produce(kafka, topic, 1, 1)

    (stream,) = join().create_message_streams({topic: 1})[topic]

    assert [message.value for message in take(stream, 3)] == [b"aborted", b"open", b"0"]
    producer.abort_transaction(30)


# --- watches ----------------------------------------------------------------------------------------


def test_topics_that_match_later_and_partitions_that_are_added_are_consumed_too(kafka, join, make_topic, unique):
    consumer = join()
    (stream,) = consumer.create_message_streams_by_filter(white_list=f"{unique}-a.*,{unique}-b")
    assert consumer.owned == {}

    for name in ("a1", "b", "bb"):
        make_topic(f"{unique}-{name}", 2)

    wait_for(lambda: len(consumer.owned) == 4, "both matching topics")
    assert {tp.topic for tp in consumer.owned} == {f"{unique}-a1", f"{unique}-b"}
    produce(kafka, f"{unique}-b", 2, 3)
    assert {message.topic for message in take(stream, 6)} == {f"{unique}-b"}


def test_several_changes_at_once_lead_to_one_rebalance(join, session, make_topic, unique) -> None:
    topic = make_topic(unique, 6)
    consumer = join(consumer_id="m")
    consumer.create_message_streams({topic: 1})
    before = consumer.rebalances
    registration = b'{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1"}' % topic.encode()

    arrivals = [Create(f"/consumers/{unique}/ids/{unique}_{name}", registration, ephemeral=True) for name in "abx"]
    assert session.transaction(arrivals).state is OperationState.COMMITTED

    # Four threads for six partitions: a and b get two each, m gets one, x gets one.
    wait_for(lambda: consumer.owned == {TopicPartition(topic, 4): 0}, "its share among four")
    wait_for(lambda: consumer.rebalances > before, "the consumer has counted the rebalance")
    assert consumer.rebalances == before + 1


def test_a_claim_waits_for_the_owner_and_follows_at_once(kafka, join, session, make_topic, unique) -> None:
    topic = make_topic(unique, 2)
    path = f"/consumers/{unique}/owners/{topic}/1"
    with connected(kafka.zookeeper) as client:
        client.ensure_path(path.rpartition("/")[0])
    assert session.transaction([Create(path, b"another-0", ephemeral=True)]).state is OperationState.COMMITTED
    consumer = join(settings={"rebalance_backoff_ms": 60_000})
    consumer.create_message_streams({topic: 1})
    assert consumer.owned == {TopicPartition(topic, 0): 0}
    assert consumer.held_by_others == {TopicPartition(topic, 1): "another-0"}

    session.close()

    wait_for(lambda: len(consumer.owned) == 2, "the partition that was released")
    assert consumer.held_by_others == {}


# --- faults ------------------------------------------------------------------------------------------


def test_a_consumer_that_can_no_longer_fetch_commits_and_releases_its_partitions(
    kafka: KafkaBroker, join: Join, make_topic: Callable[..., str], unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(unique)
    produce(kafka, topic, 1, 2)
    first, second = join(consumer_id="a", settings={"auto_commit_interval_ms": 60_000}), join(consumer_id="b")
    (stream,) = first.create_message_streams({topic: 1})[topic]
    (others,) = second.create_message_streams({topic: 1})[topic]
    assert [message.offset for message in take(stream, 2)] == [0, 1]

    def reject(*_: object) -> None:
        raise NotAuthorized(f"fetching {topic}-0", "not any more")

    monkeypatch.setattr(first._state, "enqueue", reject)
    produce(kafka, topic, 1, 1, start=2)

    with pytest.raises(NotAuthorized, match="not any more"):
        stream.get(30)
    assert [message.offset for message in take(others, 1)] == [2]
    assert (second.owned, first.owned) == ({TopicPartition(topic, 0): 0}, {})


def test_a_second_consumer_with_the_same_id_is_rejected_and_the_first_continues(join, make_topic, unique) -> None:
    topic = make_topic(unique)
    first = join(consumer_id="same")
    first.create_message_streams({topic: 1})
    second = join(consumer_id="same", settings={"rebalance_max_retries": 0, "zookeeper_session_timeout_ms": 1000})

    with pytest.raises(Conflict, match=f"{unique}_same: is registered by another session"):
        second.create_message_streams({topic: 1})

    assert first.owned == {TopicPartition(topic, 0): 0}


def test_empty_or_repeated_creation_of_streams_is_rejected(join, make_topic, unique) -> None:
    topic = make_topic(unique)
    consumer = join()
    with pytest.raises(UsageError, match="0 streams"):
        consumer.create_message_streams({topic: 0})
    with pytest.raises(UsageError, match="white list or a black list"):
        consumer.create_message_streams_by_filter()
    consumer.create_message_streams({topic: 1})
    with pytest.raises(UsageError, match="once"):
        consumer.create_message_streams({topic: 1})


# --- cut off from ZooKeeper ----------------------------------------------------------------------------


def test_a_member_cut_off_from_zookeeper_stops_before_the_others_take_over_and_rejoins(
    kafka: KafkaBroker, zookeeper: ZooKeeperServer, join: Join, make_topic: Callable[..., str], unique: str
) -> None:
    topic = make_topic(unique, 4)
    proxy = StallingProxy(zookeeper.connect)
    cut_off, other = join(consumer_id="a", zookeeper=f"{proxy.address}/kafka"), join(consumer_id="b")
    numbers = itertools.count()

    def produce_one() -> None:
        produce(kafka, topic, 4, 1, start=next(numbers))
        time.sleep(0.02)

    with closing(proxy), repeated(produce_one):
        first = Reader(*cut_off.create_message_streams({topic: 1})[topic])
        second = Reader(*other.create_message_streams({topic: 1})[topic])
        wait_for(lambda: len(first.seen) > 20 and len(other.owned) == 2, "both consume")

        proxy.stall()
        wait_for(lambda: len(other.owned) == 4, "the other one has taken over")
        taken_over = len(first.seen)
        wait_for(lambda: len({m.partition for m, _ in second.seen[-40:]}) == 4, "the other one consumes them all")
        assert len(first.seen) == taken_over
        proxy.resume()
        wait_for(lambda: len(cut_off.owned) == 2 and len(other.owned) == 2, "the member has rejoined")
        again = len(first.seen)
        wait_for(lambda: len(first.seen) > again + 20, "the member consumes again")
    reader = ck.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "ends"})
    ends = [reader.get_watermark_offsets(ck.TopicPartition(topic, p), timeout=60)[1] for p in range(4)]
    reader.close()
    everything = {(partition, at) for partition, end in enumerate(ends) for at in range(end)}
    wait_for(lambda: first.offsets() | second.offsets() == everything, "nothing lost")

    history = group_history(zookeeper.directory / "data", "/kafka", unique)
    (lost,) = {life.session: life.ended_ms for life in history.owner_nodes if life.how == "expired"}.values()
    assert lost is not None
    last = max(when for _, when in first.seen[:taken_over])
    assert last <= lost
    assert {commit.session for commit in history.commits if commit.time_ms > lost}.isdisjoint(
        {life.session for life in history.owner_nodes if life.how == "expired"}
    )
