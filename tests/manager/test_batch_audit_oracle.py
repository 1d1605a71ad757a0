"""Loads and follows of random logs, compared with an oracle that applies only the rules of the audit."""

from collections.abc import Sequence

from audited_logs import Log, Written, claim, data, follow, load
from hypothesis import example, given
from hypothesis import strategies as st

from offsetmgr.manager.log.kafka.log_history import LogHistory
from offsetmgr.records.claim import CLAIM_KEY, FENCE_EPOCH, FENCE_KEY
from offsetmgr.segments.compression import GZIP

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
    assert loading.fetch_offset == log.end


@given(_LOGS, st.integers(1, 5), st.integers(1, 13), st.booleans())
@example([claim(2, 2), claim(1, 0), data(2, 2, b"a")], 1, 2, True)
def test_two_loads_with_a_common_history_find_what_one_load_finds(written, batches: int, cut: int, before) -> None:
    """The second load begins after the first claim, as every load of a manager that has loaded a shard does."""
    written = [claim(1, 0), *written]
    log, history = Log.of(written), LogHistory("offsets")
    cut = min(cut, len(written))
    middle = log.ends[cut - 1]

    first, loaded = load(log, 0, middle, history, batches=1)
    start = loaded.fetch_offset - 1 if before and cut > 1 else loaded.fetch_offset
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

    found = follow(log, LogHistory("offsets"), batches=batches, most=most)

    assert [(record.offset, record.key, record.value) for record in found] == right
