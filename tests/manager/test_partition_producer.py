"""The meaning of each response to a batch, and the sequence numbers of the batches."""

from collections.abc import Sequence
from itertools import product
from typing import Final, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import ErrorCode, OffsetMgrError, Unreachable
from offsetmgr.kafka.client.fetch import ProduceResult
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.manager.log.base import AppendRejected, Fenced, OutcomeUnknown, TooLarge
from offsetmgr.manager.log.kafka.partition_producer import PartitionProducer, Step
from offsetmgr.segments.batch_builder import Producer, batch
from offsetmgr.segments.batch_reader import BATCH_HEADER, LOG_OVERHEAD, Record

EXPECTED: Final = 100
OWN: Final = ProducerEpoch(7, 3)
LOST: Final = Unreachable("broker", "the connection broke")
NO_RESPONSE, NOT_SENT, DEADLINE, WRITTEN, ELSEWHERE = "no response", "not sent", "deadline", "written", "elsewhere"
Event: TypeAlias = str | ErrorCode
TEMPORARY: Final = [ErrorCode.NOT_ENOUGH_REPLICAS]
"""Rejections before the append, which a later send may not meet."""
MOVED: Final = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
]
"""Responses of a broker that does not lead the partition any more."""
UNCERTAIN: Final = [
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    *MOVED,
]
"""Responses after which the batch may be in the log."""
STATE: Final = [
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
]
FENCED: Final = [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED]
TOO_LARGE: Final = [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE]
REJECTED: Final = [ErrorCode.CORRUPT_MESSAGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
"""Rejections that every later send meets, too."""


def started(records: int = 2, next_offset: int | None = EXPECTED) -> PartitionProducer:
    producer = PartitionProducer("topic-0", OWN, next_offset)
    producer.begin([(b"k%d" % number, b"v") for number in range(records)])
    return producer


def apply(producer: PartitionProducer, event: Event) -> Step | None:
    if event == NO_RESPONSE:
        producer.on_no_response(LOST)
    elif event == NOT_SENT:
        producer.on_not_sent(LOST)
    elif event == DEADLINE:
        producer.on_deadline()
    elif event in (WRITTEN, ELSEWHERE):
        return producer.on_result(ProduceResult(ErrorCode.NONE, EXPECTED + (event == ELSEWHERE)))
    else:
        assert isinstance(event, ErrorCode)
        return producer.on_result(ProduceResult(event, -1))
    return None


def sequence_of(producer: PartitionProducer) -> int:
    sequence: int = BATCH_HEADER.unpack_from(producer.batch, LOG_OVERHEAD)[9]
    return sequence


Row: TypeAlias = tuple[Sequence[Event], type[OffsetMgrError] | None]


def rows(*events: Sequence[Event], outcome: type[OffsetMgrError] | None) -> list[Row]:
    """Returns the rows with each combination of an event of each sequence."""
    return [(combination, outcome) for combination in product(*events)]


OUTCOMES: Final[list[Row]] = [
    *rows([WRITTEN], outcome=None),
    *rows([ELSEWHERE], outcome=OutcomeUnknown),
    *rows([DEADLINE], outcome=AppendRejected),
    *rows([NOT_SENT, *TEMPORARY], [DEADLINE], outcome=AppendRejected),
    *rows([NO_RESPONSE, *UNCERTAIN], [DEADLINE], outcome=OutcomeUnknown),
    *rows([NO_RESPONSE, *UNCERTAIN], [NOT_SENT, *TEMPORARY], [DEADLINE], outcome=OutcomeUnknown),
    *rows(TEMPORARY, [NO_RESPONSE, *UNCERTAIN], [DEADLINE], outcome=OutcomeUnknown),
    *rows([NO_RESPONSE, *UNCERTAIN, *TEMPORARY], [WRITTEN], outcome=None),
    *rows([NO_RESPONSE, *UNCERTAIN, *TEMPORARY], [ELSEWHERE], outcome=OutcomeUnknown),
    *rows(TOO_LARGE, outcome=TooLarge),
    *rows(TEMPORARY, TOO_LARGE, outcome=TooLarge),
    *rows(REJECTED, outcome=AppendRejected),
    *rows([NO_RESPONSE, *UNCERTAIN], TOO_LARGE + REJECTED, outcome=OutcomeUnknown),
    *rows(STATE, outcome=OutcomeUnknown),
    *rows(FENCED, outcome=Fenced),
    *rows([NO_RESPONSE, *UNCERTAIN, *TEMPORARY], FENCED, outcome=Fenced),
]


@pytest.mark.parametrize(("events", "outcome"), OUTCOMES, ids=lambda found: str(found).replace("ErrorCode.", ""))
def test_the_outcome_of_a_batch(events: Sequence[Event], outcome: type[OffsetMgrError] | None) -> None:
    producer = started()
    sent = producer.batch

    for event in events[:-1]:
        assert apply(producer, event) in (None, Step.RESEND, Step.RESEND_TO_LEADER)
        assert producer.batch == sent and producer.usable and producer.failure is None
    assert apply(producer, events[-1]) in (None, Step.DONE)

    assert not producer.batch
    assert type(producer.failure) is (type(None) if outcome is None else outcome)
    assert producer.usable is (outcome not in (OutcomeUnknown, Fenced))
    if producer.usable:
        producer.begin([(b"next", b"v")])
        assert sequence_of(producer) == (2 if outcome is None else 0)
        assert producer.next_offset == EXPECTED + (2 if outcome is None else 0)
        producer.on_deadline()
        assert isinstance(producer.failure, AppendRejected)  # the outcome of the earlier batch does not matter


@pytest.mark.parametrize("code", TEMPORARY + UNCERTAIN)
def test_after_some_errors_the_leader_is_looked_up_again(code: ErrorCode) -> None:
    step = apply(started(), code)

    assert step is (Step.RESEND_TO_LEADER if code in MOVED else Step.RESEND)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from([WRITTEN, *TEMPORARY, *TOO_LARGE, *REJECTED])), max_size=20)
)
def test_only_written_batches_advance_the_sequence_and_the_offset(batches: list[tuple[int, Event]]) -> None:
    producer = PartitionProducer("topic-0", OWN)
    written = 0
    for records, event in batches:
        producer.begin([(b"k", b"v")] * records)
        assert sequence_of(producer) == written
        if event == WRITTEN:
            producer.on_result(ProduceResult(ErrorCode.NONE, EXPECTED + written))
            written += records
            assert producer.next_offset == EXPECTED + written
        else:
            apply(producer, event)
            if event in TEMPORARY:
                producer.on_deadline()
            assert isinstance(producer.failure, AppendRejected | TooLarge)


LARGE: Final = st.integers(60, 20_000).map(lambda size: bytes((size % 251,)) * size)
KEYS: Final = st.binary(max_size=100) | LARGE
EDGES: Final = (0, 1, 63, 64, 4_095, 4_096, 4_097, 8_191, 8_192, 1_000_000)
"""Sizes around those at which an encoded number has one byte more."""


def encoded(records: Sequence[tuple[bytes, bytes | None]], epoch: ProducerEpoch = OWN) -> tuple[bytes, bytes]:
    """The batch of the producer, and that of the general encoder."""
    producer = PartitionProducer("topic-0", epoch)
    producer.begin(records)
    general = [Record(offset, None, key, value) for offset, (key, value) in enumerate(records)]
    return producer.batch, batch(general, producer=Producer(epoch.id, epoch.epoch, 0))


@given(
    st.lists(st.tuples(KEYS, st.none() | KEYS), min_size=1, max_size=20),
    st.builds(ProducerEpoch, st.integers(0, 2**60), st.integers(0, 2**15 - 1)),
)
def test_a_batch_has_the_bytes_of_the_general_encoder(records, epoch: ProducerEpoch) -> None:
    quick, general = encoded(records, epoch)
    assert quick == general


@pytest.mark.parametrize("size", EDGES)
def test_a_batch_may_have_keys_and_values_of_any_size_and_any_number_of_them(size: int) -> None:
    sized: list[tuple[bytes, bytes | None]] = [(b"k" * size, b"v" * size), (b"", None), (b"k", b"")]
    counted: list[tuple[bytes, bytes | None]] = [(b"%d" % number, None) for number in range(min(size, 10_000) or 1)]
    for records in (sized, counted):
        quick, general = encoded(records)
        assert quick == general


def test_the_sequence_0_follows_the_largest_one() -> None:
    producer = PartitionProducer("topic-0", OWN)
    producer._sequence = (1 << 31) - 2
    producer.begin([(b"k", b"v")] * 3)
    assert sequence_of(producer) == (1 << 31) - 2

    producer.on_result(ProduceResult(ErrorCode.NONE, 0))

    producer.begin([(b"k", b"v")])
    assert sequence_of(producer) == 1


def test_a_first_claim_may_be_at_any_offset() -> None:
    producer = started(1, None)

    assert producer.on_result(ProduceResult(ErrorCode.NONE, 42)) is Step.DONE
    assert (producer.failure, producer.next_offset) == (None, 43)


OLDER: Final = frozenset({5, 6})


@pytest.mark.parametrize(
    ("epochs", "written", "listed", "outcome"),
    [
        ({}, False, False, None),
        ({5: 9, 6: 32_767}, False, False, None),
        ({OWN.id: 2}, False, True, None),
        ({OWN.id: 3}, False, True, None),
        ({OWN.id: 3}, True, True, None),
        ({OWN.id: 4}, False, True, Fenced),
        ({OWN.id: 4}, True, True, Fenced),
        ({OWN.id: 3, 8: 0}, True, True, Fenced),
        ({8: 0}, False, False, Fenced),
        ({}, True, True, OutcomeUnknown),
        ({OWN.id: 2}, True, True, OutcomeUnknown),
        ({5: 9}, True, False, OutcomeUnknown),
        ({}, False, True, OutcomeUnknown),
        ({5: 9}, False, True, OutcomeUnknown),
    ],
)
def test_the_producers_that_a_new_connection_shows(epochs, written: bool, listed: bool, outcome) -> None:
    producer = PartitionProducer("topic-0", OWN, None, OLDER, listed=listed)
    if written:
        producer.begin([(b"claim", b"v")])
        producer.on_result(ProduceResult(ErrorCode.NONE, 0))
    producer.begin([(b"k", b"v")])

    producer.on_owners(epochs)

    assert type(producer.failure) is (type(None) if outcome is None else outcome)
    assert bool(producer.batch) is producer.usable is (outcome is None)
