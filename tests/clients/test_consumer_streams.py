"""Streams of a consumer: delivered and finished messages, and the stop of a partition."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from offsetmgr.consumer.streams import MessageStream, PartitionProgress, StreamMessage, StreamState
from offsetmgr.core.model import ABSENT, TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def message(offset: int, partition: int = 0) -> StreamMessage:
    return StreamMessage("t", partition, offset, None, b"v", None)


def one_stream(*partitions: TopicPartition) -> tuple[StreamState, MessageStream]:
    """A stream that owns these partitions from offset 10 on, and may deliver messages."""
    state = StreamState()
    stream = state.stream("t")
    state.set_delivery_check(lambda: True)
    for partition in partitions:
        state.add(PartitionProgress(partition, stream, 10, 10, ABSENT))
    return state, stream


def positions(state: StreamState) -> dict[TopicPartition, int]:
    return state.positions(state.owned().values())


@pytest.mark.parametrize(
    "steps",
    [
        # a message is finished when the next one is requested
        [("put", 10, 11), ("take", 10, 10), ("take", 11, 11), ("take", None, 12)],
        # gaps are skipped, and repeated messages are dropped
        [("put", 9, 12, 12, 15), ("take", 12), ("take", 15), ("take", None, 16)],
        # fetched messages are delivered after the log's start moved beyond them; nothing is left between 11 and 500
        [
            *[("put", 10, 11), ("take", 10), ("move", 500, 10), ("put", 500)],
            *[("take", 11, 11), ("take", 500, 500), ("take", None, 501)],
        ],
        # the second of two moves counts
        [("put", 10), ("move", 500), ("move", 700), ("take", 10, 10), ("take", None, 700)],
        # the new start is committable at once if no message is queued
        [("move", 500, 500)],
        # a lower start: queued messages are dropped
        [("put", 10), ("move", 3), ("put", 3), ("take", 3, 3)],
        # a delivered message of the old log does not advance a recreated log
        [("put", 10), ("take", 10), ("move", 0), ("put", 0, 1), ("take", 0, 0), ("take", 1, 1)],
    ],
)
def test_messages_are_delivered_and_finished_in_the_order_of_the_log(steps: list[Any]) -> None:
    """Steps: messages that arrive; the next message or None; the new start of the log. The last number of the other two
    is the position that a commit would have."""
    state, stream = one_stream(P0)
    progress = state.owned()[P0]
    for step, *numbers in steps:
        if step == "put":
            state.enqueue(progress, [message(offset) for offset in numbers if offset is not None])
            continue
        offset, *position = numbers
        if step == "take":
            assert stream.get(0) == (None if offset is None else message(offset))
        elif offset is not None:
            state.move_position(progress, offset)
        assert not position or positions(state) == {P0: position[0]}


def test_a_commit_finishes_only_the_message_of_the_calling_thread() -> None:
    state, mine = one_stream(P0)
    theirs = state.stream("t")
    state.add(PartitionProgress(P1, theirs, 10, 10, ABSENT))
    state.enqueue(state.owned()[P0], [message(10)])
    state.enqueue(state.owned()[P1], [message(10, 1)])
    reader = threading.Thread(target=lambda: theirs.get(0))
    reader.start()
    reader.join()
    assert mine.get(0) == message(10)

    state.finish_current_of_caller()

    assert positions(state) == {P0: 11, P1: 10}


def test_a_stopped_partition_delivers_nothing_and_the_others_continue() -> None:
    state, stream = one_stream(P0, P1)
    state.enqueue(state.owned()[P0], [message(10)])
    state.enqueue(state.owned()[P1], [message(10, 1)])

    (stopped,) = state.stop([P0], 0)
    state.enqueue(stopped, [message(11)])

    assert [stream.get(0), stream.get(0)] == [message(10, 1), None]
    assert state.committable().keys() == {P1}


def test_a_stop_waits_for_the_delivered_message() -> None:
    state, stream = one_stream(P0)
    state.enqueue(state.owned()[P0], [message(10), message(11)])
    assert stream.get(0) == message(10)
    done: list[dict[TopicPartition, int]] = []
    stopping = threading.Thread(target=lambda: done.append(state.positions(state.stop([P0], 30))))
    stopping.start()
    while not state.owned()[P0].stopped:
        time.sleep(0.001)
    assert stopping.is_alive()

    assert stream.get(0) is None  # finishes 10; the stop has dropped 11
    stopping.join(90)

    assert done == [{P0: 11}]


def test_a_stop_that_times_out_leaves_the_delivered_message_to_the_next_owner() -> None:
    state, stream = one_stream(P0)
    state.enqueue(state.owned()[P0], [message(10)])
    assert stream.get(0) == message(10)
    assert state.positions(state.stop([P0], 0.01)) == {P0: 10}


def test_a_message_of_a_lost_partition_is_not_finished_later() -> None:
    state, stream = one_stream(P0)
    lost = state.owned()[P0]
    state.enqueue(lost, [message(10), message(11)])
    assert stream.get(0) == message(10)

    assert state.remove(None) == [lost]

    assert stream.get(0) is None
    assert (lost.finished, state.owned()) == (10, {})


def test_a_thread_with_the_reused_id_of_a_dead_reader_does_not_finish_its_message() -> None:
    """The system frees a thread's id a moment after `join`, so the test repeats until an id is reused."""
    idents: list[int] = []

    def in_a_thread(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=lambda: (idents.append(threading.get_ident()), work()))
        thread.start()
        thread.join()

    deadline = time.monotonic() + 120
    while len(idents) < 2 or idents[-1] != idents[-2]:
        assert time.monotonic() < deadline, "the platform never reused a thread id, so nothing was tested"
        state, stream = one_stream(P0)
        state.enqueue(state.owned()[P0], [message(10)])
        in_a_thread(partial(stream.get, 0))
        in_a_thread(state.finish_current_of_caller)
        assert len(idents) % 2 == 0 and positions(state) == {P0: 10}


def test_an_iterator_ends_with_the_consumer_and_can_continue_after_a_timeout() -> None:
    state, stream = one_stream(P0)
    stream.timeout_s = 0.01
    assert list(stream) == []
    state.enqueue(state.owned()[P0], [message(10)])
    assert list(stream) == [message(10)]

    stream.timeout_s = None
    state.close()

    assert (list(stream), stream.closed) == ([], True)
