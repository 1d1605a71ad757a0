"""Streams of a consumer: delivered and finished messages, and the stop of a partition."""

from __future__ import annotations

import threading
import time

import pytest

from offsetmgr.consumer.streams import MessageStream, PartitionProgress, StreamMessage, StreamState
from offsetmgr.core.errors import CorruptData
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
        state.add(PartitionProgress(partition, stream, 10, 10, 10, ABSENT))
    return state, stream


def positions(state: StreamState) -> dict[TopicPartition, int]:
    return state.positions(state.owned().values())


def test_a_message_is_finished_when_the_next_one_is_requested() -> None:
    state, stream = one_stream(P0)
    state.enqueue(state.owned()[P0], [message(10), message(11)])

    assert stream.get(0) == message(10)
    assert positions(state) == {P0: 10}
    assert stream.get(0) == message(11)
    assert positions(state) == {P0: 11}
    assert stream.get(0) is None
    assert positions(state) == {P0: 12}


def test_a_commit_finishes_only_the_message_of_the_calling_thread() -> None:
    state, mine = one_stream(P0)
    theirs = state.stream("t")
    state.add(PartitionProgress(P1, theirs, 10, 10, 10, ABSENT))
    state.enqueue(state.owned()[P0], [message(10)])
    state.enqueue(state.owned()[P1], [message(10, 1)])
    reader = threading.Thread(target=lambda: theirs.get(0))
    reader.start()
    reader.join()
    assert mine.get(0) == message(10)

    state.finish_current_of_caller()

    assert positions(state) == {P0: 11, P1: 10}


def test_gaps_in_the_log_are_skipped_and_repeated_messages_are_dropped() -> None:
    state, stream = one_stream(P0)
    state.enqueue(state.owned()[P0], [message(9), message(12), message(12), message(15)])

    assert [stream.get(0), stream.get(0), stream.get(0)] == [message(12), message(15), None]
    assert positions(state) == {P0: 16}


def test_no_message_is_delivered_without_a_valid_lease_and_none_is_lost() -> None:
    state, stream = one_stream(P0)
    allowed = [False]
    state.set_delivery_check(lambda: allowed[0])
    state.enqueue(state.owned()[P0], [message(10)])
    assert stream.get(0) is None

    allowed[0] = True

    assert stream.get(0) == message(10)


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


def test_a_partition_assigned_again_starts_at_its_new_position() -> None:
    state, stream = one_stream(P0)
    earlier = state.owned()[P0]
    state.remove([P0])
    state.add(PartitionProgress(P0, stream, 20, 20, 20, ABSENT))

    state.enqueue(earlier, [message(11)])
    state.enqueue(state.owned()[P0], [message(20)])

    assert [stream.get(0), stream.get(0)] == [message(20), None]


def test_a_thread_with_the_reused_id_of_a_dead_reader_does_not_finish_its_message() -> None:
    """The system frees a thread's id a moment after `join`, so the test repeats until an id is reused."""
    idents: list[int] = []
    deadline = time.monotonic() + 120
    while len(idents) < 2 or idents[0] != idents[1]:
        assert time.monotonic() < deadline, "the platform never reused a thread id, so nothing was tested"
        state, stream = one_stream(P0)
        state.enqueue(state.owned()[P0], [message(10)])
        idents.clear()

        def read_and_die(stream: MessageStream = stream) -> None:
            idents.append(threading.get_ident())
            assert stream.get(0) == message(10)

        def commit(state: StreamState = state) -> None:
            idents.append(threading.get_ident())
            state.finish_current_of_caller()

        for work in (read_and_die, commit):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

        assert positions(state) == {P0: 10}


def test_fetched_messages_are_delivered_after_the_log_start_moved_beyond_them() -> None:
    state, stream = one_stream(P0)
    progress = state.owned()[P0]
    state.enqueue(progress, [message(10), message(11)])
    assert stream.get(0) == message(10)

    state.move_position(progress, 500)
    assert positions(state) == {P0: 10}
    state.enqueue(progress, [message(500)])

    assert [stream.get(0), positions(state)] == [message(11), {P0: 11}]
    # With 11 done, nothing is left before 500.
    assert [stream.get(0), positions(state)] == [message(500), {P0: 500}]
    assert [stream.get(0), positions(state)] == [None, {P0: 501}]


def test_consumption_continues_at_the_second_of_two_moves_of_the_log_start() -> None:
    state, stream = one_stream(P0)
    progress = state.owned()[P0]
    state.enqueue(progress, [message(10)])

    state.move_position(progress, 500)
    state.move_position(progress, 700)

    assert [stream.get(0), positions(state)] == [message(10), {P0: 10}]
    assert [stream.get(0), positions(state)] == [None, {P0: 700}]


def test_a_new_log_start_is_committable_at_once_if_no_message_is_queued() -> None:
    state, _ = one_stream(P0)

    state.move_position(state.owned()[P0], 500)

    assert positions(state) == {P0: 500}


def test_a_log_with_a_lower_start_is_read_from_there_and_queued_messages_are_dropped() -> None:
    state, stream = one_stream(P0)
    progress = state.owned()[P0]
    state.enqueue(progress, [message(10)])

    state.move_position(progress, 3)
    state.enqueue(progress, [message(3)])

    assert [stream.get(0), positions(state)] == [message(3), {P0: 3}]


def test_a_delivered_message_of_the_old_log_does_not_advance_a_recreated_log() -> None:
    state, stream = one_stream(P0)
    progress = state.owned()[P0]
    state.enqueue(progress, [message(10)])
    assert stream.get(0) == message(10)

    state.move_position(progress, 0)
    state.enqueue(progress, [message(0), message(1)])

    assert [stream.get(0), positions(state)] == [message(0), {P0: 0}]
    assert [stream.get(0), positions(state)] == [message(1), {P0: 1}]


def test_an_iterator_ends_with_the_consumer_and_can_continue_after_a_timeout() -> None:
    state, stream = one_stream(P0)
    stream.timeout_s = 0.01
    assert list(stream) == []
    state.enqueue(state.owned()[P0], [message(10)])
    assert list(stream) == [message(10)]

    stream.timeout_s = None
    state.close()

    assert (list(stream), stream.closed) == ([], True)


def test_a_waiting_reader_gets_the_error_that_stopped_the_consumer() -> None:
    state, stream = one_stream(P0)
    raised: list[BaseException] = []

    def read() -> None:
        with pytest.raises(CorruptData) as error:
            next(stream)
        raised.append(error.value)

    reader = threading.Thread(target=read)
    reader.start()
    why = CorruptData("ZooKeeper node /consumers/g/ids/x", "is not JSON")
    state.fail(why)
    reader.join(90)

    assert raised == [why]
