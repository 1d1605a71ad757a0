"""The fetcher's handling of messages and errors from librdkafka, in their order."""

from __future__ import annotations

import threading
from typing import Any

import confluent_kafka as ck
import pytest

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer.fetch import Fetcher
from offsetmgr.consumer.streams import MessageStream, PartitionProgress, StreamState
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import ABSENT, TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
OUT_OF_RANGE = ck.KafkaError(ck.KafkaError._AUTO_OFFSET_RESET)
FORBIDDEN = ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)


def found(offset: int, partition: int = 0) -> ck.Message:
    return ck.Message(
        topic="t", partition=partition, offset=offset, value=b"v", timestamp=(ck.TIMESTAMP_CREATE_TIME, 1)
    )


def trouble(error: ck.KafkaError, partition: int = 0) -> ck.Message:
    return ck.Message(topic="t", partition=partition, offset=-1001, error=error)


class Client:
    """Stands where the client library does: knows a log's ends, and remembers what it is told to fetch."""

    def __init__(self, *ends: tuple[int, int] | ck.KafkaError, batches: list[list[ck.Message]] | None = None) -> None:
        self.ends = list(ends)
        self.batches = batches or []
        self.fetched: dict[TopicPartition, int] = {}

    def list_topics(self, topic: str, timeout: float) -> None:
        pass

    def consume(self, count: int, timeout: float) -> list[ck.Message]:
        return self.batches.pop(0) if self.batches else []

    def get_watermark_offsets(self, place: ck.TopicPartition, timeout: float) -> tuple[int, int]:
        end = self.ends.pop(0)
        if isinstance(end, ck.KafkaError):
            raise ck.KafkaException(end)
        return end

    def incremental_assign(self, places: list[ck.TopicPartition]) -> None:
        self.fetched |= {TopicPartition(place.topic, place.partition): place.offset for place in places}

    def incremental_unassign(self, places: list[ck.TopicPartition]) -> None:
        for place in places:
            del self.fetched[TopicPartition(place.topic, place.partition)]

    def close(self) -> None:
        self.fetched = {}


class World:
    def __init__(self, *, from_smallest: bool = True) -> None:
        self.state = StreamState()
        self.state.set_delivery_check(lambda: True)
        self.failures: list[OffsetMgrError] = []
        self.fetcher = Fetcher(
            "localhost:1",
            "g",
            ConnectionConfig(),
            self.state,
            from_smallest=from_smallest,
            queued_max=100,
            on_failure=self.failures.append,
        )

    def hold(self, client: Client, partition: TopicPartition, position: int) -> tuple[PartitionProgress, MessageStream]:
        stream = self.state.stream("t")
        progress = PartitionProgress(partition, stream, position, position, position, ABSENT)
        self.state.add(progress)
        self.fetcher.add([progress])
        self.fetcher._execute_requests(client)
        return progress, stream


def delivered(stream: MessageStream) -> list[int]:
    offsets = []
    while (message := stream.get(0)) is not None:
        offsets.append(message.offset)
    return offsets


def test_everything_is_read_whether_its_transaction_was_committed_or_not_as_old_members_do() -> None:
    assert World().fetcher._settings["isolation.level"] == "read_uncommitted"


def test_a_log_that_has_begun_again_is_read_from_its_beginning_though_the_batch_had_messages_of_the_old_one() -> None:
    world, client = World(), Client((0, 5))
    _, stream = world.hold(client, P0, 990)
    _, other = world.hold(client, P1, 7)

    world.fetcher._deliver(client, [found(990), found(991), found(7, 1), trouble(OUT_OF_RANGE), found(992)])
    world.fetcher._deliver(client, [found(offset) for offset in range(5)])

    assert client.fetched == {P0: 0, P1: 7}
    assert (delivered(stream), delivered(other)) == ([0, 1, 2, 3, 4], [7])


def test_messages_before_a_gap_are_delivered_before_those_after_it() -> None:
    world, client = World(), Client((500, 600))
    _, stream = world.hold(client, P0, 10)

    world.fetcher._deliver(client, [found(10), found(11), trouble(OUT_OF_RANGE)])
    world.fetcher._deliver(client, [found(500)])

    assert (client.fetched, delivered(stream)) == ({P0: 500}, [10, 11, 500])


@pytest.mark.parametrize(("from_smallest", "position"), [(True, 100), (False, 105)])
def test_where_a_position_that_is_not_in_the_log_is_left_for(from_smallest: bool, position: int) -> None:
    world, client = World(from_smallest=from_smallest), Client((100, 105))
    world.hold(client, P0, 10)

    world.fetcher._deliver(client, [trouble(OUT_OF_RANGE)])

    assert client.fetched == {P0: position}


def test_a_reset_that_has_to_be_tried_again_leaves_a_later_holding_of_the_partition_alone() -> None:
    world, client = World(), Client(ck.KafkaError(ck.KafkaError._TRANSPORT))
    world.hold(client, P0, 990)
    world.fetcher._deliver(client, [trouble(OUT_OF_RANGE)])  # the log's ends are not known: to be tried again

    # The order to try again waits behind these: given up, and gained again.
    again = world.fetcher._requests.get_nowait()
    world.fetcher.remove(world.state.remove([P0]))
    later, stream = world.hold(client, P0, 3)
    world.fetcher._requests.put(again)
    world.fetcher._execute_requests(client)

    assert (client.fetched, world.fetcher._current) == ({P0: 3}, {P0: later})
    world.fetcher._deliver(client, [found(3)])
    assert delivered(stream) == [3]


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        ([trouble(FORBIDDEN)], "fetching t-0: not authorized for this topic"),
        (None, "fetching: stopped because of a defect"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fetcher_that_ends_says_so(batch: Any, why: str) -> None:
    world, client = World(), Client(batches=[batch])
    world.hold(client, P0, 10)

    thread = threading.Thread(target=world.fetcher._run, args=(client,))
    thread.start()
    thread.join(10)

    (failure,) = world.failures
    assert str(failure).startswith(why)
