"""The events that the owners of a shard group record, and the check against the raw log that no acknowledged record is
lost or acknowledged to two owners.

Times are CLOCK_MONOTONIC in nanoseconds; all processes run on one machine, so their times can be compared. The value of
each record names its owner and has a number, so it identifies the record.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from raw_log import PartitionHistory

KEYS: Final = 8
"""The number of keys of each partition."""


def record_of(owner: str, number: int) -> tuple[bytes, bytes]:
    """The key and the value of an owner's record."""
    return b"key-%d" % (number % KEYS), b"%s/%d" % (owner.encode(), number)


class Claimed(NamedTuple):
    """An owner has claimed a partition, and has read it up to the claim."""

    owner: str
    partition: int
    begin: int
    """The time at which the owner started the claim."""
    end: int
    """The time at which the owner had read the partition."""
    loaded_ms: int
    """The same time in milliseconds since 1970."""
    claim_end: int
    """The offset after the claim."""
    reached: int
    """The offset up to which the owner has read."""
    state: dict[str, str]
    """The value of each key that the owner has read."""


class Acknowledged(NamedTuple):
    """A batch was acknowledged. The records have consecutive numbers and offsets."""

    owner: str
    partition: int
    begin: int
    end: int
    claim_offset: int
    first_offset: int
    first_number: int
    records: int


class Rejected(NamedTuple):
    """A batch certainly was not written."""

    owner: str
    partition: int
    first_number: int
    records: int


class Unknown(NamedTuple):
    """The outcome of a batch is unknown, so the owner claims the shard group again."""

    owner: str
    partition: int


class WasFenced(NamedTuple):
    """A batch or a claim of the owner failed because another owner has claimed the shard group."""

    owner: str
    time: int


Event: TypeAlias = Claimed | Acknowledged | Rejected | Unknown | WasFenced
_TYPES: Final[tuple[type[Event], ...]] = (Claimed, Acknowledged, Rejected, Unknown, WasFenced)
_BY_NAME: Final = {one.__name__: one for one in _TYPES}


def line_of(event: Event) -> str:
    return json.dumps([type(event).__name__, *event]) + "\n"


def read_events(files: Iterable[Path]) -> Iterator[Event]:
    """All events of all files. An incomplete last line, which a kill can leave, is skipped."""
    for file in files:
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                name, *fields = json.loads(line)
                yield _BY_NAME[name](*fields)


class StoredRecord(NamedTuple):
    """A record of the compacted log."""

    offset: int
    key: bytes | None
    value: bytes | None


class Report(NamedTuple):
    """The result of a check."""

    violations: list[str]
    takeovers: int
    """The claims after which a shard group had another owner."""
    batches: int
    """The acknowledged batches."""
    late_batches: int
    """The batches that were acknowledged to an owner after another owner had started its claim."""
    fenced: int
    rejected: int
    unknown: int
    lost: int
    doubled: int
    """The offsets that were acknowledged to two owners."""

    def __str__(self) -> str:
        return (
            f"{self.takeovers} takeovers, {self.batches} acknowledged batches, {self.late_batches} of them to an "
            f"owner whose successor was already claiming; owners fenced {self.fenced} times, {self.rejected} batches "
            f"rejected, {self.unknown} unknown; {self.lost} lost, {self.doubled} acknowledged to two owners, "
            f"{len(self.violations)} violations"
        )


def check(
    histories: Mapping[int, PartitionHistory], events: Iterable[Event], compacted: Mapping[int, list[StoredRecord]]
) -> Report:
    """Checks all events of a shard group. ``histories`` contains every record that was ever in its partitions, and
    ``compacted`` the records that the log cleaner has left."""
    found = list(events)
    violations = [one for history in histories.values() for one in history.violations]
    lost, doubled, late, takeovers = 0, 0, 0, 0
    for partition, history in histories.items():
        claims = [e for e in found if isinstance(e, Claimed) and e.partition == partition]
        acknowledged = [e for e in found if isinstance(e, Acknowledged) and e.partition == partition]
        rejected = [e for e in found if isinstance(e, Rejected) and e.partition == partition]
        missing = list(_missing(history, acknowledged))
        twice = list(_acknowledged_twice(history, acknowledged))
        lost, doubled = lost + len(missing), doubled + len(twice)
        violations += missing + twice
        violations += _wrong_records(history, rejected)
        violations += _wrong_loads(history, claims, acknowledged)
        violations += _wrong_compaction(history, acknowledged, compacted[partition])
        late += _late(claims, acknowledged)
        takeovers = max(takeovers, _changes(claims))
    counts = Counter(type(event) for event in found)
    return Report(
        violations, takeovers, counts[Acknowledged], late, counts[WasFenced], counts[Rejected], counts[Unknown],
        lost, doubled,
    )  # fmt: skip


def _missing(history: PartitionHistory, acknowledged: Iterable[Acknowledged]) -> Iterator[str]:
    """Batches that are not at their acknowledged offset, or not under the claim of their owner."""
    for batch in acknowledged:
        for index in range(batch.records):
            offset = batch.first_offset + index
            record = record_of(batch.owner, batch.first_number + index)
            found = (history.keys[offset], history.values[offset]) if offset < history.end else None
            if found != record:
                yield f"lost: {record} at offset {offset}, where the log has {found}: {batch}"
        claim, own = history.claim_at(batch.first_offset), history.claim_at(batch.claim_offset)
        if claim is None or own is None or claim[1:3] != own[1:3]:
            yield f"acknowledged behind the claim of another owner, {claim}: {batch}"


def _acknowledged_twice(history: PartitionHistory, acknowledged: Iterable[Acknowledged]) -> Iterator[str]:
    owners: dict[int, str] = {}
    for batch in acknowledged:
        for offset in range(batch.first_offset, batch.first_offset + batch.records):
            if owners.setdefault(offset, batch.owner) != batch.owner:
                yield f"offset {offset} was acknowledged to {owners[offset]}, too: {batch}"


def _wrong_records(history: PartitionHistory, rejected: Iterable[Rejected]) -> Iterator[str]:
    """Records that are in the log twice, and records that are in the log although they were rejected."""
    offsets: dict[bytes, int] = {}
    for offset, (key, value) in enumerate(zip(history.keys, history.values, strict=True)):
        if key is not None and value is not None and key.startswith(b"key-"):
            if value in offsets:
                yield f"{value!r} is at the offsets {offsets[value]} and {offset}"
            offsets[value] = offset
    for batch in rejected:
        for number in range(batch.first_number, batch.first_number + batch.records):
            value = record_of(batch.owner, number)[1]
            if value in offsets:
                yield f"{value!r} is at offset {offsets[value]}: {batch}"


def _wrong_loads(
    history: PartitionHistory, claims: Iterable[Claimed], acknowledged: Iterable[Acknowledged]
) -> Iterator[str]:
    """Claims whose owner has not read what was acknowledged before, or has not read the newest value of each key."""
    by_end = sorted(acknowledged, key=lambda batch: batch.end)
    ends = [batch.end for batch in by_end]
    largest: list[int] = []
    for batch in by_end:
        largest.append(max(batch.first_offset + batch.records - 1, largest[-1] if largest else -1))
    state: dict[bytes, bytes | None] = {}
    position = 0
    for claim in sorted(claims, key=lambda claim: claim.reached):
        known = bisect_right(ends, claim.begin)
        if known and largest[known - 1] >= claim.claim_end:
            yield f"offset {largest[known - 1]} was acknowledged before, but the claim's end is lower: {claim}"
        for offset in range(position, claim.reached):
            if (key := history.keys[offset] or b"").startswith(b"key-"):
                state[key] = history.values[offset]
        position = max(position, claim.reached)
        for key in state.keys() | {key.encode() for key in claim.state}:
            text = claim.state.get(key.decode())
            read = None if text is None else text.encode()
            if read != state.get(key) and not _was_overwritten(history, key, claim):
                yield f"{key!r} has the value {state.get(key)!r}, but the owner has read {read!r}: {claim}"


def _was_overwritten(history: PartitionHistory, key: bytes, claim: Claimed) -> bool:
    """Whether another owner has overwritten the key while this one was reading. The log cleaner may then have removed
    the value, and the owner that was reading is fenced."""
    for offset in range(claim.reached, history.end):
        if history.times_ms[offset] > claim.loaded_ms:
            return False
        if history.keys[offset] == key:
            return True
    return False


def _wrong_compaction(
    history: PartitionHistory, acknowledged: Iterable[Acknowledged], compacted: list[StoredRecord]
) -> Iterator[str]:
    """Records that the log cleaner has changed, and keys whose newest acknowledged value is neither in the compacted
    log nor overwritten by a later one."""
    newest: dict[bytes, int] = {}
    for record in compacted:
        if (history.keys[record.offset], history.values[record.offset]) != (record.key, record.value):
            yield f"the log cleaner has changed {record}"
        if record.key is not None:
            newest[record.key] = max(newest.get(record.key, -1), record.offset)
    for batch in acknowledged:
        for index in range(batch.records):
            key, _ = record_of(batch.owner, batch.first_number + index)
            if newest.get(key, -1) < batch.first_offset + index:
                yield f"the compacted log has no value of {key!r} from offset {batch.first_offset + index} on: {batch}"


def _late(claims: Iterable[Claimed], acknowledged: Iterable[Acknowledged]) -> int:
    """The number of batches that ended after the begin of a later claim by another owner."""
    in_order = sorted(claims, key=lambda claim: claim.claim_end)
    ends = [claim.claim_end for claim in in_order]
    late = 0
    for batch in acknowledged:
        later = in_order[bisect_right(ends, batch.claim_offset + 1) :]
        late += any(claim.owner != batch.owner and claim.begin < batch.end for claim in later[:1])
    return late


def _changes(claims: Iterable[Claimed]) -> int:
    """The number of claims by another owner than the claim before."""
    owners = [claim.owner for claim in sorted(claims, key=lambda claim: claim.claim_end)]
    return sum(before != after for before, after in pairwise(owners))
