"""The fetcher's handling of messages and errors from librdkafka, in their order."""

import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
import pytest

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer.fetch import Fetcher
from offsetmgr.consumer.settings import ConsumerSettings
from offsetmgr.consumer.streams import MessageStream, PartitionProgress, StreamState
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import ABSENT, TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
OUT_OF_RANGE = ck.KafkaError(ck.KafkaError._AUTO_OFFSET_RESET)
FORBIDDEN = ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)
UNREACHABLE = ck.KafkaException(ck.KafkaError(ck.KafkaError._TRANSPORT))


def message(offset: int, partition: int = 0) -> ck.Message:
    return ck.Message(
        topic="t", partition=partition, offset=offset, value=b"v", timestamp=(ck.TIMESTAMP_CREATE_TIME, 1)
    )


def error_message(error: ck.KafkaError, partition: int = 0) -> ck.Message:
    return ck.Message(topic="t", partition=partition, offset=-1001, error=error)


class Client:
    """A fake of librdkafka's consumer: returns batches and the range of each log, and records the positions to fetch
    from. ``settings`` are those with which the fetcher created it."""

    def __init__(self, *batches: Any, log: tuple[int, int] | Callable[[], tuple[int, int]] = (0, 0)) -> None:
        self.batches = list(batches)
        self.log = log
        self.fetched: dict[TopicPartition, int] = {}
        self.settings: dict[str, Any] = {}
        self.idle = threading.Event()

    def list_topics(self, topic: str, timeout: float) -> None:
        pass

    def consume(self, count: int, timeout: float) -> Any:
        if self.batches:
            return self.batches.pop(0)
        self.idle.set()  # all batches have been delivered
        time.sleep(0.001)
        return []

    def get_watermark_offsets(self, place: ck.TopicPartition, timeout: float) -> tuple[int, int]:
        return self.log() if callable(self.log) else self.log

    def incremental_assign(self, places: list[ck.TopicPartition]) -> None:
        self.fetched |= {TopicPartition(place.topic, place.partition): place.offset for place in places}

    def incremental_unassign(self, places: list[ck.TopicPartition]) -> None:
        for place in places:
            del self.fetched[TopicPartition(place.topic, place.partition)]

    def close(self) -> None:
        pass


class World:
    """A fetcher of a consumer that owns partitions. `run` lets it fetch all batches of the client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, client: Client, *, from_smallest: bool = True) -> None:
        def connect(settings: dict[str, Any], **_: object) -> Client:
            client.settings = settings
            return client

        monkeypatch.setattr(ck, "Consumer", connect)
        self.client = client
        self.state = StreamState()
        self.state.set_delivery_check(lambda: True)
        self.failures: list[OffsetMgrError] = []
        reset = "smallest" if from_smallest else "largest"
        settings = ConsumerSettings(auto_offset_reset=reset, queued_max_messages=100)
        self.fetcher = Fetcher("localhost:1", "g", ConnectionConfig(), self.state, settings, self.fail)

    def fail(self, error: OffsetMgrError) -> None:
        self.failures.append(error)
        self.client.idle.set()

    def add(self, partition: TopicPartition, position: int) -> MessageStream:
        stream = self.state.stream("t")
        progress = PartitionProgress(partition, stream, position, position, ABSENT)
        self.state.add(progress)
        self.fetcher.add([progress])
        return stream

    def run(self) -> None:
        self.fetcher.start()
        assert self.client.idle.wait(90)
        self.fetcher.stop()


def delivered(stream: MessageStream) -> list[int]:
    stream.timeout_s = 0.0
    return [message.offset for message in stream]


def test_a_recreated_log_is_read_from_its_start_even_if_the_batch_had_messages_of_the_old_log(monkeypatch) -> None:
    mixed = [message(990), message(991), message(7, 1), error_message(OUT_OF_RANGE), message(992)]
    world = World(monkeypatch, Client(mixed, [message(offset) for offset in range(5)], log=(0, 5)))
    stream, other = world.add(P0, 990), world.add(P1, 7)

    world.run()

    assert world.client.fetched == {P0: 0, P1: 7}
    assert (delivered(stream), delivered(other)) == ([0, 1, 2, 3, 4], [7])
    # Old members read the messages of open and aborted transactions, too.
    assert world.client.settings["isolation.level"] == "read_uncommitted"


@pytest.mark.parametrize(("from_smallest", "position"), [(True, 100), (False, 105)])
def test_an_out_of_range_position_is_reset_to_the_start_or_the_end(from_smallest, position: int, monkeypatch) -> None:
    client = Client([error_message(OUT_OF_RANGE)], log=(100, 105))
    world = World(monkeypatch, client, from_smallest=from_smallest)
    world.add(P0, 10)

    world.run()

    assert client.fetched == {P0: position}


def test_a_retried_reset_does_not_move_a_partition_that_was_revoked_and_assigned_again(monkeypatch) -> None:
    streams: list[MessageStream] = []

    def reassigned() -> tuple[int, int]:
        """The reset fails, and is retried after a revocation and a new assignment that the member requested first."""
        world.fetcher.remove(world.state.remove([P0]))
        streams.append(world.add(P0, 3))
        raise UNREACHABLE

    world = World(monkeypatch, Client([error_message(OUT_OF_RANGE)], [message(3)], log=reassigned))
    world.add(P0, 990)

    world.run()

    assert world.client.fetched == {P0: 3}
    assert delivered(streams[0]) == [3]


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        ([error_message(FORBIDDEN)], "fetching t-0: not authorized for this topic"),
        (None, "fetching: stopped because of a defect"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fetcher_that_ends_reports_the_reason(batch: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, Client(batch))
    world.add(P0, 10)

    world.run()

    (failure,) = world.failures
    assert str(failure).startswith(why)
