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


def message(offset: int, partition: int = 0) -> ck.Message:
    return ck.Message(
        topic="t", partition=partition, offset=offset, value=b"v", timestamp=(ck.TIMESTAMP_CREATE_TIME, 1)
    )


def error_message(error: ck.KafkaError, partition: int = 0) -> ck.Message:
    return ck.Message(topic="t", partition=partition, offset=-1001, error=error)


class Client:
    """A fake of the client library: returns the ends of a log, and records the positions to fetch from."""

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

    def add(self, client: Client, partition: TopicPartition, position: int) -> tuple[PartitionProgress, MessageStream]:
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


def test_messages_of_uncommitted_transactions_are_read_as_by_old_members() -> None:
    assert World().fetcher._settings["isolation.level"] == "read_uncommitted"


def test_a_recreated_log_is_read_from_its_start_even_if_the_batch_had_messages_of_the_old_log() -> None:
    world, client = World(), Client((0, 5))
    _, stream = world.add(client, P0, 990)
    _, other = world.add(client, P1, 7)

    world.fetcher._deliver(
        client, [message(990), message(991), message(7, 1), error_message(OUT_OF_RANGE), message(992)]
    )
    world.fetcher._deliver(client, [message(offset) for offset in range(5)])

    assert client.fetched == {P0: 0, P1: 7}
    assert (delivered(stream), delivered(other)) == ([0, 1, 2, 3, 4], [7])


def test_messages_before_a_gap_are_delivered_before_those_after_it() -> None:
    world, client = World(), Client((500, 600))
    _, stream = world.add(client, P0, 10)

    world.fetcher._deliver(client, [message(10), message(11), error_message(OUT_OF_RANGE)])
    world.fetcher._deliver(client, [message(500)])

    assert (client.fetched, delivered(stream)) == ({P0: 500}, [10, 11, 500])


@pytest.mark.parametrize(("from_smallest", "position"), [(True, 100), (False, 105)])
def test_an_out_of_range_position_is_reset_to_the_start_or_the_end(from_smallest: bool, position: int) -> None:
    world, client = World(from_smallest=from_smallest), Client((100, 105))
    world.add(client, P0, 10)

    world.fetcher._deliver(client, [error_message(OUT_OF_RANGE)])

    assert client.fetched == {P0: position}


def test_a_retried_reset_does_not_move_a_partition_that_was_revoked_and_assigned_again() -> None:
    world, client = World(), Client(ck.KafkaError(ck.KafkaError._TRANSPORT))
    world.add(client, P0, 990)
    world.fetcher._deliver(client, [error_message(OUT_OF_RANGE)])  # the log range is unknown, so the reset is retried

    # The queued reset runs after a revocation and a new assignment.
    again = world.fetcher._requests.get_nowait()
    world.fetcher.remove(world.state.remove([P0]))
    later, stream = world.add(client, P0, 3)
    world.fetcher._requests.put(again)
    world.fetcher._execute_requests(client)

    assert (client.fetched, world.fetcher._current) == ({P0: 3}, {P0: later})
    world.fetcher._deliver(client, [message(3)])
    assert delivered(stream) == [3]


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        ([error_message(FORBIDDEN)], "fetching t-0: not authorized for this topic"),
        (None, "fetching: stopped because of a defect"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fetcher_that_ends_reports_the_reason(batch: Any, why: str) -> None:
    world, client = World(), Client(batches=[batch])
    world.add(client, P0, 10)

    thread = threading.Thread(target=world.fetcher._run, args=(client,))
    thread.start()
    thread.join(90)

    (failure,) = world.failures
    assert str(failure).startswith(why)
