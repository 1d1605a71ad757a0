"""The audit of batches: rules by example, and loads and follows of random logs against a simple oracle."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import UnknownVersion
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.manager.log.base import CorruptRecords, LogRecord
from offsetmgr.manager.log.kafka.claim_history import ClaimHistory
from offsetmgr.manager.log.kafka.partition_follow import PartitionFollow
from offsetmgr.manager.log.kafka.partition_load import PartitionLoad
from offsetmgr.manager.log.topic import UnsuitableTopic
from offsetmgr.records.claim import CLAIM_KEY, FENCE_EPOCH, FENCE_KEY, Claim, encode_claim
from offsetmgr.segments.batch_builder import Producer, batch, end_of_transaction, message
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.compression import GZIP

NOW = 1_700_000_000_000
PARTITION = 3
Pairs = tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True)
class Written:
    """A batch of the log. ``claimed`` is None for a data batch, otherwise the producer ids that the claim lists."""

    id: int
    epoch: int
    records: Pairs = ()
    claimed: tuple[int, ...] | None = None
    fence: bool = False
    codec: int = 0
    gap: int = 0
    """The number of offsets before the batch without records."""

    def pairs(self) -> Pairs:
        if self.claimed is not None:
            return (encode_claim(Claim(f"{self.id}-{self.epoch}", "m", NOW, self.claimed)), *self.records)
        return ((FENCE_KEY, None),) if self.fence else self.records


def data(id: int, epoch: int, *keys: bytes, value: bytes = b"v") -> Written:
    return Written(id, epoch, tuple((key, value) for key in keys or (b"k",)))


def claim(id: int, epoch: int, *listed: int) -> Written:
    return Written(id, epoch, claimed=tuple(sorted({*listed, id})))


def encoded_claim(*listed: int) -> Pairs:
    return (encode_claim(Claim("token", "m", NOW, listed)),)


@dataclass
class Log:
    """An encoded log, with the offset of each batch."""

    chunks: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else 0

    @classmethod
    def of(cls, written: Sequence[Written]) -> Log:
        log = cls()
        for one in written:
            pairs = one.pairs()
            base = log.end + one.gap
            records = [Record(base + n, NOW, key, value, (), True) for n, (key, value) in enumerate(pairs)]
            last = base + max(len(pairs), 1) - 1
            producer = Producer(one.id, one.epoch, 0)
            log.chunks.append(batch(records, one.codec, base_offset=base, last_offset=last, producer=producer))
            log.starts.append(base)
            log.ends.append(last + 1)
        return log

    def read(self, offset: int, batches: int) -> bytes:
        """Returns complete batches from the one that contains ``offset`` on, as a broker does."""
        first = next((n for n, end in enumerate(self.ends) if end > offset), len(self.chunks))
        return b"".join(self.chunks[first : first + batches])


def load(
    log: Log,
    start: int = 0,
    end: int | None = None,
    history: ClaimHistory | None = None,
    *,
    log_start: int = 0,
    batches: int = 2,
) -> tuple[dict[bytes, bytes | None], PartitionLoad]:
    newest: dict[bytes, bytes | None] = {}
    loading = PartitionLoad("offsets", PARTITION, start, newest, history or ClaimHistory("offsets"))
    loading.note_log_start(log_start)
    end = log.end if end is None else end
    while True:
        while loading.position < end:
            loading.add(log.read(loading.position, batches))
        if loading.finish():
            return newest, loading


def follow(
    log: Log, history: ClaimHistory, start: int = 0, *, log_start: int = 0, batches: int = 2, most: int = 1000
) -> list[LogRecord]:
    """Returns all records that a reader returns before it waits at the end of the log."""
    following = PartitionFollow("offsets", PARTITION, start, history)
    following.note_log_start(log_start)
    taken: list[LogRecord] = []
    while following.fetch_offset < log.end or following.buffered:
        following.add(log.read(following.fetch_offset, batches))
        taken += following.take(most)
    return taken


def alarms(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int, int, str]]:
    return [
        (found["offset"], found["producer_id"], found["producer_epoch"], found["why"])
        for found in (record.__dict__ for record in caplog.records)
        if record_is_alarm(found)
    ]


def record_is_alarm(found: dict[str, object]) -> bool:
    return found["levelno"] == logging.ERROR and found["partition"] == PARTITION


# --- rules by example ---------------------------------------------------------------------------------


def test_data_of_the_owner_is_loaded_and_the_claim_is_returned() -> None:
    newest, loading = load(Log.of([claim(5, 0), data(5, 0, b"a", b"b"), data(5, 0, b"a", value=b"w")]))

    assert newest == {b"a": b"w", b"b": b"v"}
    state = loading.audit.state
    assert state.claim is not None
    assert (state.claim.token, state.owner, set(state.producer_ids)) == ("5-0", (5, 0), {5})
    assert state.invalid_keys == frozenset()


@pytest.mark.parametrize("intruder", [ProducerEpoch(5, 0), ProducerEpoch(5, 2), ProducerEpoch(6, 1), (-1, -1)])
def test_another_producer_after_a_claim_is_invalid(intruder: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    log = Log.of([claim(5, 1), data(5, 1, b"a"), data(*intruder, b"a", b"new", value=b"x"), data(5, 1, b"b")])

    newest, loading = load(log)

    assert newest == {b"a": b"v", b"b": b"v"}
    assert loading.audit.state.invalid_keys == {b"a", b"new"}
    assert alarms(caplog) == [(2, *intruder, "the owner's producer id is 5 with epoch 1")]
    assert "another program wrote to the offsets topic" in caplog.text


def test_a_key_that_was_written_again_is_valid() -> None:
    _, loading = load(Log.of([claim(5, 1), data(5, 0, b"a", b"b"), data(5, 1, b"a")]))

    assert loading.audit.state.invalid_keys == {b"b"}


def test_data_before_the_first_claim_is_valid_if_a_later_claim_lists_its_producer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    written = [data(4, 9, b"a"), data(5, 0, b"b"), data(6, 0, b"c"), claim(5, 1, 3), data(5, 1, b"d"), claim(7, 0, 4)]

    newest, loading = load(Log.of(written))

    assert newest == {b"a": b"v", b"b": b"v", b"d": b"v"}
    assert loading.audit.state.invalid_keys == {b"c"}
    assert alarms(caplog) == [(2, 6, 0, "no claim lists its producer id")]


def test_a_log_without_claims_is_invalid(caplog: pytest.LogCaptureFixture) -> None:
    newest, loading = load(Log.of([data(4, 9, b"a"), data(-1, -1, b"b")]))

    assert newest == {}
    assert loading.audit.state.invalid_keys == {b"a", b"b"}
    assert len(alarms(caplog)) == 2


@pytest.mark.parametrize(("start", "log_start"), [(1, 0), (0, 1), (1, 1)])
def test_a_part_of_a_log_whose_claims_are_unknown_is_accepted(
    start: int, log_start: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Log.of([claim(4, 9), data(4, 9, b"a"), data(4, 9, b"b")])
    log = Log(whole.chunks[1:], whole.starts[1:], whole.ends[1:])

    newest, loading = load(log, start, log_start=log_start)
    followed = follow(log, ClaimHistory("offsets"), start, log_start=log_start)

    assert newest == {b"a": b"v", b"b": b"v"}
    assert [record.key for record in followed] == [b"a", b"b"]
    assert loading.audit.state.producer_ids == frozenset()
    assert alarms(caplog) == []


def test_a_part_of_a_log_with_a_later_claim_is_checked() -> None:
    newest, loading = load(Log.of([data(4, 9, b"a"), data(5, 0, b"b"), claim(4, 10)]), log_start=1)

    assert newest == {b"a": b"v"}
    assert loading.audit.state.invalid_keys == {b"b"}


@pytest.mark.parametrize(
    "late",
    [
        claim(5, 1, 4),
        claim(4, 7),
        Written(6, 0, ((CLAIM_KEY, b"{}"),)),
        Written(6, 0, ((CLAIM_KEY, None),)),
        Written(-1, -1, encoded_claim(5)),
    ],
)
def test_an_invalid_claim_changes_nothing_and_has_to_be_written_again(
    late: Written, caplog: pytest.LogCaptureFixture
) -> None:
    written = [claim(5, 2, 4), late, data(5, 2, b"a"), data(late.id, late.epoch, b"b")]

    newest, loading = load(Log.of(written))

    assert newest == {b"a": b"v"}
    assert loading.audit.state.owner == (5, 2)
    assert loading.audit.state.invalid_keys == {CLAIM_KEY, b"b"}
    assert [offset for offset, *_ in alarms(caplog)] == [1, 3]


def test_an_invalid_claim_before_a_newer_claim_need_not_be_written_again() -> None:
    _, loading = load(Log.of([claim(5, 2), claim(5, 1), claim(5, 3)]))

    assert loading.audit.state.invalid_keys == frozenset()


def test_a_refreshed_claim_and_a_new_producer_id_are_claims() -> None:
    written = [claim(5, 0), data(5, 0, b"a"), claim(5, 3), data(5, 3, b"b"), claim(8, 0, 5), data(8, 0, b"c")]

    newest, loading = load(Log.of(written))

    assert set(newest) == {b"a", b"b", b"c"}
    assert loading.audit.state.owner == (8, 0)
    assert loading.audit.state.producer_ids == {5, 8}


def test_fences_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    fence = Written(4, FENCE_EPOCH, fence=True)
    empty_fence = Written(4, FENCE_EPOCH, ((FENCE_KEY, b""),))

    newest, loading = load(Log.of([fence, claim(5, 0), fence, data(5, 0, b"a"), empty_fence, data(5, 0, b"b")]))

    assert newest == {b"a": b"v", b"b": b"v"}
    assert loading.audit.state.owner == (5, 0)
    assert alarms(caplog) == []


def test_a_batch_with_the_epoch_of_a_fence_and_other_keys_is_invalid() -> None:
    newest, loading = load(Log.of([claim(5, 0), Written(4, FENCE_EPOCH, ((FENCE_KEY, None), (b"a", b"1")))]))

    assert newest == {}
    assert loading.audit.state.invalid_keys == {b"a"}


def test_batches_without_records_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    newest, loading = load(Log.of([Written(9, 0), claim(5, 0), Written(5, 9), Written(7, 0), data(5, 0, b"a")]))

    assert newest == {b"a": b"v"}
    assert alarms(caplog) == []
    assert loading.position == 5


def test_a_claim_in_a_batch_with_data_and_a_compressed_claim_are_claims() -> None:
    with_data = replace(claim(5, 1), records=((b"a", b"1"),))
    compressed = replace(claim(5, 2), codec=GZIP)

    newest, loading = load(Log.of([with_data, data(5, 1, b"b"), compressed, data(5, 2, b"c")]))

    assert set(newest) == {b"a", b"b", b"c"}
    assert loading.audit.state.owner == (5, 2)


def test_a_claim_of_an_unknown_version_is_an_error() -> None:
    with pytest.raises(UnknownVersion, match="claim"):
        load(Log.of([Written(5, 0, ((CLAIM_KEY, b'{"version": 2}'),))]))


@pytest.mark.parametrize(
    "chunk",
    [
        batch([Record(0, NOW, b"k", b"v")], producer=Producer(5, 0, 0, transactional=True)),
        batch([], base_offset=0, last_offset=3, producer=Producer(5, 0, 0, transactional=True)),
        end_of_transaction(0, Producer(5, 0, 0), commit=True, timestamp=NOW),
    ],
)
def test_a_transactional_batch_means_that_the_topic_is_unsuitable(chunk: bytes) -> None:
    log = Log([chunk], [0], [1])
    expected = "topic offsets: partition 3 has a batch of a transaction at offset 0"

    with pytest.raises(UnsuitableTopic, match=expected) as raised:
        load(log)
    with pytest.raises(UnsuitableTopic, match=expected):
        follow(log, ClaimHistory("offsets"))

    assert "export the offsets" in raised.value.hint


def test_messages_of_an_old_format_are_invalid() -> None:
    log = Log.of([claim(5, 0)])
    log.chunks.append(message(Record(log.end, NOW, b"a", b"1"), 1))
    log.starts.append(log.end)
    log.ends.append(log.end + 1)

    newest, loading = load(log)

    assert newest == {}
    assert loading.audit.state.invalid_keys == {b"a"}


def test_a_damaged_batch_is_an_error_after_the_records_before_it() -> None:
    log = Log.of([claim(5, 0), data(5, 0, b"a"), data(5, 0, b"b")])
    log.chunks[2] = log.chunks[2][:-1] + b"x"
    newest: dict[bytes, bytes | None] = {}
    loading = PartitionLoad("offsets", PARTITION, 0, newest, ClaimHistory("offsets"))
    following = PartitionFollow("offsets", PARTITION, 0, ClaimHistory("offsets"))

    for one in (loading, following):
        with pytest.raises(CorruptRecords, match="offsets-3: the record batch at offset 2 is damaged") as raised:
            one.add(log.read(0, 3))
        assert (raised.value.partition, raised.value.offset) == (PARTITION, 2)

    assert newest[b"a"] == b"v"
    assert b"b" not in newest
    assert [record.key for record in following.take(10)] == [b"a"]


def test_a_load_keeps_values_from_before_even_if_it_needs_a_second_pass() -> None:
    newest: dict[bytes, bytes | None] = {b"old": b"1", b"a": b"1"}
    log = Log.of([data(4, 9, b"a", b"b"), claim(5, 0), data(5, 0, b"c")])
    loading = PartitionLoad("offsets", PARTITION, 0, newest, ClaimHistory("offsets"))

    loading.add(log.read(0, 9))
    assert not loading.finish()
    loading.add(log.read(0, 9))

    assert loading.finish()
    assert newest == {b"old": b"1", b"a": b"1", b"c": b"v"}


# --- the knowledge of earlier readers ------------------------------------------------------------------


def test_a_second_load_knows_the_claim_before_its_start(caplog: pytest.LogCaptureFixture) -> None:
    history = ClaimHistory("offsets")
    log = Log.of([claim(5, 1, 4), data(5, 1, b"a"), data(5, 1, b"b"), data(5, 0, b"c"), data(6, 0, b"d")])
    load(log, 0, 2, history, batches=1)

    newest, loading = load(log, 2, None, history)

    assert newest == {b"b": b"v"}
    assert loading.audit.state.invalid_keys == {b"c", b"d"}
    assert loading.audit.state.claim is not None
    assert loading.audit.state.producer_ids == {4, 5}
    load(log, 0, None, history)
    assert [offset for offset, *_ in alarms(caplog)] == [3, 4], "each batch is logged once"


def test_a_load_after_a_gap_in_the_knowledge_accepts_later_epochs_of_the_owner() -> None:
    """The owner refreshed its claim, and its process did not read the claim."""
    history = ClaimHistory("offsets")
    log = Log.of(
        [claim(5, 1, 4), claim(5, 2, 4), data(5, 2, b"a"), data(5, 0, b"b"), data(4, 9, b"c"), data(6, 0, b"d")]
    )
    load(log, 0, 1, history, batches=1)

    newest, loading = load(log, 2, None, history)

    assert newest == {b"a": b"v"}
    assert loading.audit.state.invalid_keys == {b"b", b"c", b"d"}


def test_invalid_keys_are_known_to_the_next_load() -> None:
    history = ClaimHistory("offsets")
    log = Log.of([claim(5, 1), data(5, 0, b"a", b"b"), data(5, 1, b"c"), data(5, 1, b"b")])
    follow(Log(log.chunks[:2], log.starts[:2], log.ends[:2]), history)

    _, loading = load(log, 3, None, history)

    assert loading.audit.state.invalid_keys == {b"a"}


def test_a_recreated_topic_has_no_known_claims() -> None:
    history = ClaimHistory("offsets")
    load(Log.of([claim(5, 1), data(5, 0, b"a")]), history=history)
    history.forget()

    newest, _ = load(Log.of([claim(6, 0), data(6, 0, b"a")]), history=history)

    assert newest == {b"a": b"v"}


# --- a log that the cleaner cleans while it is read ------------------------------------------------------

_BEFORE_CLEANING = [
    claim(5, 0), data(5, 0, b"a"), claim(5, 1), data(5, 1, b"b"), claim(6, 0, 5), data(6, 0, b"c"), claim(6, 1, 5),
    data(6, 1, b"d"),
]  # fmt: skip
_CLEANED = [data(5, 0, b"a"), data(5, 1, b"b"), data(6, 0, b"c"), claim(6, 1, 5), data(6, 1, b"d")]


def cleaned_log() -> Log:
    """The log of `_BEFORE_CLEANING` without all claims but the last one."""
    return Log.of([replace(one, gap=int(number < 3)) for number, one in enumerate(_CLEANED)])


def emptied_log() -> Log:
    """The log of `_BEFORE_CLEANING` with all claims but the last one emptied."""
    return Log.of([replace(one, claimed=None) if one.claimed is not None else one for one in _BEFORE_CLEANING[:-2]]
                  + _BEFORE_CLEANING[-2:])  # fmt: skip


@pytest.mark.parametrize("cleaned", [cleaned_log(), emptied_log()], ids=["removed", "emptied"])
@pytest.mark.parametrize("read_before", range(9))
def test_a_batch_whose_claim_was_removed_during_a_load_is_valid(
    cleaned: Log, read_before: int, caplog: pytest.LogCaptureFixture
) -> None:
    before = Log.of(_BEFORE_CLEANING)
    assert before.end == cleaned.end
    newest: dict[bytes, bytes | None] = {}
    loading = PartitionLoad("offsets", PARTITION, 0, newest, ClaimHistory("offsets"))
    if read_before:
        loading.add(before.read(0, read_before))
    while loading.position < before.end or not loading.finish():
        loading.add(cleaned.read(loading.position, 2))

    assert newest == dict.fromkeys((b"a", b"b", b"c", b"d"), b"v")
    assert loading.audit.state.invalid_keys == set()
    assert alarms(caplog) == []


@pytest.mark.parametrize("cleaned", [cleaned_log(), emptied_log()], ids=["removed", "emptied"])
@pytest.mark.parametrize("read_before", range(9))
def test_a_follower_returns_a_batch_whose_claim_was_removed_before_it_came_there(
    cleaned: Log, read_before: int, caplog: pytest.LogCaptureFixture
) -> None:
    following = PartitionFollow("offsets", PARTITION, 0, ClaimHistory("offsets"))
    if read_before:
        following.add(Log.of(_BEFORE_CLEANING).read(0, read_before))
    while following.fetch_offset < cleaned.end:
        following.add(cleaned.read(following.fetch_offset, 2))

    assert [record.key for record in following.take(10)] == [b"a", b"b", b"c", b"d"]
    assert alarms(caplog) == []


@pytest.mark.parametrize("batches", [1, 9])
def test_a_foreign_batch_behind_a_gap_is_invalid_although_a_later_claim_lists_its_producer(
    batches: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log.of([
        claim(5, 0), replace(data(5, 0, b"a"), gap=1), data(7, 0, b"x"), data(5, 0, b"b"), data(7, 0, b"y"),
        claim(5, 1, 7),
    ])  # fmt: skip
    newest, loading = load(log, batches=batches)
    following = PartitionFollow("offsets", PARTITION, 0, ClaimHistory("offsets"))
    while following.fetch_offset < log.end:
        following.add(log.read(following.fetch_offset, batches))

    assert newest == {b"a": b"v", b"b": b"v"}
    assert loading.audit.state.invalid_keys == {b"x", b"y"}
    assert [record.key for record in following.take(10)] == [b"a", b"b"]
    assert [offset for offset, *_ in alarms(caplog)] == [3, 5, 3, 5]


# --- following ---------------------------------------------------------------------------------------


def test_a_follower_waits_at_an_undecided_batch_until_it_finds_a_claim(caplog: pytest.LogCaptureFixture) -> None:
    log = Log.of([data(4, 0, b"a"), data(6, 0, b"b"), data(4, 1, b"c")])
    following = PartitionFollow("offsets", PARTITION, 0, ClaimHistory("offsets"))
    following.add(log.read(0, 9))
    assert following.take(10) == []
    assert (following.position, following.fetch_offset) == (0, 3)

    log = Log.of([data(4, 0, b"a"), data(6, 0, b"b"), data(4, 1, b"c"), claim(4, 2), data(4, 2, b"d")])
    following.add(log.read(3, 9))
    assert following.fetch_offset == 0
    following.add(log.read(0, 9))

    assert [record.key for record in following.take(10)] == [b"a", b"c", b"d"]
    assert following.position == 5
    assert [offset for offset, *_ in alarms(caplog)] == [1]


def test_a_follower_returns_records_in_parts() -> None:
    history = ClaimHistory("offsets")
    log = Log.of([claim(5, 0), data(5, 0, b"a", b"b", b"c"), data(5, 0, b"d")])
    following = PartitionFollow("offsets", PARTITION, 0, history)
    following.add(log.read(0, 9))

    assert [record.key for record in following.take(2)] == [b"a", b"b"]
    assert (following.position, following.buffered) == (3, 2)
    assert [(record.offset, record.value, record.timestamp) for record in following.take(2)] == [
        (3, b"v", NOW),
        (4, b"v", NOW),
    ]
    assert (following.position, following.buffered) == (5, 0)
    assert history.audit(PARTITION, 5).is_owner(5, 0)


# --- random logs against an oracle -----------------------------------------------------------------------

_IDS = st.integers(1, 3)
_EPOCHS = st.integers(0, 2)
_KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
_VALUES = st.none() | st.sampled_from([b"", b"1", b"2"])
_DATA = st.builds(
    Written,
    _IDS | st.just(-1),
    _EPOCHS,
    st.lists(st.tuples(_KEYS, _VALUES), max_size=3).map(tuple),
    codec=st.sampled_from([0, 0, GZIP]),
    gap=st.integers(0, 2),
)
_CLAIM = st.builds(Written, _IDS, _EPOCHS, claimed=st.lists(_IDS, max_size=2).map(tuple))
_FENCE = st.builds(Written, _IDS, st.just(FENCE_EPOCH), fence=st.just(True))
_LOGS = st.lists(_DATA | _DATA | _CLAIM | _FENCE, max_size=12)


def oracle(written: Sequence[Written], *, next_claim_only: bool = False) -> list[bool]:
    """Whether each batch is valid, by the rules alone."""
    valid: dict[int, bool] = {}
    owner: tuple[int, int] | None = None
    known: set[int] = set()
    undecided: list[int] = []
    lists: list[set[int]] = []
    for number, one in enumerate(written):
        producer = (one.id, one.epoch)
        if one.claimed is not None:
            older = owner is not None and (
                (one.id == owner[0] and one.epoch < owner[1]) or (one.id != owner[0] and one.id in known)
            )
            valid[number] = not older
            if not older:
                owner = producer
                lists.append({*one.claimed, one.id})
                known |= lists[-1]
        elif one.fence or not one.records:
            valid[number] = True
        elif owner is None:
            undecided.append(number)
        else:
            valid[number] = producer == owner
    listed = set().union(*lists[:1] if next_claim_only else lists)
    valid |= {number: written[number].id in listed for number in undecided}
    return [valid[number] for number in range(len(written))]


def expected(written: Sequence[Written], valid: Sequence[bool]) -> tuple[dict[bytes, bytes | None], set[bytes]]:
    """The values and the invalid keys of a load."""
    newest: dict[bytes, bytes | None] = {}
    invalid: set[bytes] = set()
    for one, good in zip(written, valid, strict=True):
        for key, value in one.pairs():
            if good:
                newest[key] = value
                invalid.discard(key)
            else:
                invalid.add(key)
    return {key: value for key, value in newest.items() if key not in (CLAIM_KEY, FENCE_KEY)}, invalid


@given(_LOGS, st.integers(1, 5))
def test_a_load_finds_the_values_and_the_invalid_batches_of_the_oracle(written: list[Written], batches: int) -> None:
    log = Log.of(written)

    newest, loading = load(log, batches=batches)

    assert (newest, loading.audit.state.invalid_keys) == expected(written, oracle(written))
    assert loading.position == log.end


@given(_LOGS, st.integers(1, 5), st.data())
def test_two_loads_with_a_common_history_find_what_one_load_finds(
    written: list[Written], batches: int, draw: st.DataObject
) -> None:
    """The second load begins after the first claim, as every load of a manager that has loaded a shard does."""
    written = [claim(1, 0), *written]
    log, history = Log.of(written), ClaimHistory("offsets")
    cut = draw.draw(st.integers(1, len(written)))
    middle = log.ends[cut - 1]

    first, loaded = load(log, 0, middle, history, batches=1)
    start = draw.draw(st.integers(loaded.position - 1, loaded.position)) if cut > 1 else loaded.position
    second, _ = load(log, start, None, history, batches=batches)

    values, _ = expected(written, oracle(written))
    assert {**first, **second} == values


@given(_LOGS, st.integers(1, 5), st.integers(1, 5))
def test_a_follower_returns_the_valid_records_in_order(written: list[Written], batches: int, most: int) -> None:
    log = Log.of(written)
    valid = oracle(written, next_claim_only=True)
    right = [
        (start + number, key, value)
        for one, start, good in zip(written, log.starts, valid, strict=True)
        for number, (key, value) in enumerate(one.pairs())
        if good and key not in (CLAIM_KEY, FENCE_KEY)
    ]

    found = follow(log, ClaimHistory("offsets"), batches=batches, most=most)

    assert [(record.offset, record.key, record.value) for record in found] == right
