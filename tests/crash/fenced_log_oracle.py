"""The oracle of the fenced log: it knows every batch that a writer has sent, the outcome of each, and the claims.

A *life* is one writer from its first claim to its end. The name of a life is the ``manager`` of its claims, and each
record contains it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from simulated_cluster import Cluster
from simulated_log import Batch

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.manager.log.base import AppendRejected, TooLarge
from offsetmgr.records.base import EncodedRecord
from offsetmgr.records.claim import CLAIM_KEY, FENCE_KEY, decode_claim

FOREIGN_VALUE: Final = b"foreign"
"""The value of the records of clients that are no managers."""


class Violation(Exception):
    """The log has broken one of its guarantees."""


class AcknowledgedClaim(NamedTuple):
    """A claim of one partition that a writer has returned: the offset after it."""

    life: str
    end: int


@dataclass
class Sent:
    """A batch that a writer has sent, and its outcome; None until the writer has returned it."""

    life: str
    partition: int
    records: tuple[EncodedRecord, ...]
    outcome: int | OffsetMgrError | None = None
    copies: int = 0
    """The number of times that the batch is in the log."""


@dataclass
class Counts:
    """The number of outcomes of each kind, which shows that a run has tested something."""

    acknowledged: int = 0
    rejected: int = 0
    unknown: int = 0
    claims: int = 0
    fenced: int = 0


class Oracle:
    """Records what the writers return, and compares it with the log."""

    def __init__(self, cluster: Cluster) -> None:
        self.counts = Counts()
        self.check_repeated_claims = True
        self._cluster = cluster
        self._sent: dict[bytes, Sent] = {}
        self._claims: dict[int, list[AcknowledgedClaim]] = {number: [] for number in cluster.partitions}

    # --- reports of the writers -----------------------------------------------------------------------

    def on_claimed(self, life: str, ends: Mapping[int, int]) -> None:
        self.counts.claims += 1
        for number, end in ends.items():
            self._claims[number].append(AcknowledgedClaim(life, end))

    def on_append(self, life: str, batches: Mapping[int, Sequence[EncodedRecord]]) -> None:
        """A writer begins to append. Each record of the whole run has another value, or another key if it has no
        value."""
        for number, records in batches.items():
            self._sent[_identity(records[0])] = Sent(life, number, tuple(records))

    def on_outcome(self, records: Sequence[EncodedRecord], outcome: int | OffsetMgrError) -> None:
        sent = self._sent[_identity(records[0])]
        sent.outcome = outcome
        if not isinstance(outcome, int):
            certain = isinstance(outcome, AppendRejected | TooLarge)
            self.counts.rejected += certain
            self.counts.unknown += not certain
            return
        self.counts.acknowledged += 1
        first = outcome - len(records) + 1
        found = next((b for b in self._cluster.partitions[sent.partition].committed if b.base == first), None)
        if found is None or found.records != sent.records:
            raise Violation(f"{sent} is acknowledged, but the replicas have {found}")

    # --- comparison with the log ----------------------------------------------------------------------

    def check_cache(self, partition: int, cache: Mapping[bytes, bytes | None], end: int) -> None:
        """Compares the newest values that a manager knows with the log before ``end``."""
        expected: dict[bytes, bytes | None] = {}
        for batch in self._cluster.partitions[partition].committed:
            if batch.last < end and not _is_internal(batch):
                expected.update(batch.records)
        known = {key: value for key, value in cache.items() if value is not None}
        wanted = {key: value for key, value in expected.items() if value is not None}
        if known != wanted:
            raise Violation(f"partition {partition} up to {end}: a manager has {known}, the log has {wanted}")

    def check(self) -> None:
        """Compares every outcome with the log, after the last request has arrived."""
        for sent in self._sent.values():
            sent.copies = 0
        for number, partition in self._cluster.partitions.items():
            self._check_owners(number, partition.committed)
            if self.check_repeated_claims:
                self._check_claims(number)
        for sent in self._sent.values():
            if isinstance(sent.outcome, int):
                allowed = [1]
            else:
                allowed = [0] if isinstance(sent.outcome, AppendRejected | TooLarge) else [0, 1]
            if sent.copies not in allowed:
                raise Violation(f"{sent.copies} copies of {sent} are in the log")

    def _check_owners(self, number: int, committed: Sequence[Batch]) -> None:
        """Every batch of a life comes before each acknowledged claim of another life, or after a later claim of its
        own."""
        newest_claims: dict[str, int] = {}
        for batch in committed:
            if _is_internal(batch):
                if batch.records[0][0] == CLAIM_KEY:
                    claim = decode_claim(batch.records[0][1] or b"")
                    if batch.producer is None or batch.producer.id not in claim.producer_ids:
                        raise Violation(f"{batch} in partition {number} does not list its own producer id")
                    newest_claims[claim.manager] = batch.base
                continue
            if batch.records[0][1] == FOREIGN_VALUE:
                continue
            sent = self._sent.get(_identity(batch.records[0]))
            if sent is None or sent.records != batch.records or sent.partition != number:
                raise Violation(f"{batch} in partition {number} is not what was sent: {sent}")
            sent.copies += 1
            for later in self._claims[number]:
                if later.life != sent.life and newest_claims.get(sent.life, -1) < later.end <= batch.base:
                    raise Violation(f"{sent} at offset {batch.base} of partition {number} is behind {later}")

    def _check_claims(self, number: int) -> None:
        """A further claim of a life succeeds only if no other life has claimed the partition since."""
        newest: dict[str, int] = {}
        for claim in self._claims[number]:
            start = newest.get(claim.life)
            for other in self._claims[number]:
                if start is not None and other.life != claim.life and start < other.end < claim.end:
                    raise Violation(f"partition {number}: {claim} follows {other}, after a claim that ended at {start}")
            newest[claim.life] = claim.end


def _identity(record: EncodedRecord) -> bytes:
    key, value = record
    return key if value is None else value


def _is_internal(batch: Batch) -> bool:
    return batch.records[0][0] in (CLAIM_KEY, FENCE_KEY)
