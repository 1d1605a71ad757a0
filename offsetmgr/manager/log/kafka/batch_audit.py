"""`PartitionAudit`: decides which batches of a partition the partition's owners wrote. Pure.

A *claim* (see `offsetmgr.records.claim`) makes the producer id and epoch of its batch the owner of the partition. The
leader of the partition rejects batches of an older epoch, but it accepts every batch of another producer id. A batch
that does not belong to the owner is *invalid*: its records are not applied. The rules are:

1. A data batch after a claim must have exactly the producer id and epoch of that claim.
2. The log cleaner removes all claims but the newest one. A data batch before the first claim is therefore valid if a
   later claim lists its producer id. If no claim is known, and the reader has not read the log from offset 0, the
   claims may have been before the part that it read, so all batches are valid.
3. A claim must be newer than the claim before it. A claim with the same producer id and a lower epoch is invalid. A
   claim with another producer id is invalid if an earlier claim lists this producer id, because brokers never assign a
   producer id twice.
4. A fence (`FENCE_KEY` with `FENCE_EPOCH`) is valid and changes nothing.
5. A batch without records is ignored. (The log cleaner has removed its records.)
6. The log cleaner may remove claims while the reader reads. If records are missing between the claim of the owner and a
   batch of another producer, the batch is invalid only if the claim of the owner is still in the log: the cleaner
   removes a claim before it removes the claims that follow it.

The caller passes the batches in log order to `check`, and calls `note_gap` if records are missing before a batch. If
`check` returns `Outcome.RECHECK`, the caller (`PartitionRead`) reads the claim again, calls `on_rechecked`,
passes the batch again, and calls `end_chunk` after the batches that it had read before it read the claim again.

If `check` returns `Outcome.UNDECIDED`, the decision depends on
claims that follow. A caller that reads a whole range applies the batch and calls `conclude` after the last batch. If
`conclude` returns True, the caller has to read the range again, and `check` then decides all batches. A caller that
follows the log reads ahead to the next claim, calls `decide_with`, and passes the batch again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from offsetmgr.core.errors import CorruptData
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.records.claim import CLAIM_KEY, FENCE_EPOCH, FENCE_KEY, decode_claim


class Outcome(Enum):
    """The result of `PartitionAudit.check`."""

    VALID = "valid"
    INVALID = "invalid"
    UNDECIDED = "undecided"
    """Valid if a later claim lists the producer id, otherwise invalid."""
    RECHECK = "recheck"
    """Invalid if the claim of the owner is still in the log."""


class AuditState(NamedTuple):
    """The knowledge about a partition at one of its offsets."""

    owner: ProducerEpoch | None = None
    """The producer of the newest claim before the offset; None if no claim was read."""
    exact: bool = False
    """Whether every batch between the claim of ``owner`` and the offset was read. If not, there may be later claims,
    with a higher epoch or a new producer id."""
    claimed_at: int = -1
    """The offset of the batch of the newest claim before the offset."""
    producer_ids: frozenset[int] = frozenset()
    """The producer ids of all claims that were read, and all producer ids that these claims list."""
    invalid_keys: frozenset[bytes] = frozenset()
    """The keys whose newest record is in an invalid batch."""
    gap: bool = False
    """Whether records are missing between the claim of ``owner`` and the offset."""
    complete_from: int = 0
    """The largest `Claim.complete_from` of all claims that were read."""


_NOTHING: Final = AuditState()


class PartitionAudit:
    """Checks the batches of one partition from one offset on. ``state`` is the knowledge at that offset.

    ``later`` is the knowledge at a later offset, if the caller has it: claims up to ``later.claimed_at`` may list its
    producer ids, and later claims may not have them. The caller sets ``whole`` to False if the audit does not see the
    log from offset 0 on.
    """

    def __init__(self, state: AuditState = _NOTHING, later: AuditState = _NOTHING, *, whole: bool = True) -> None:
        self.whole = whole
        self._start = state
        self._later = later
        self._later_ids = later.producer_ids
        self._decided = False
        self.state = state
        self._undecided: set[int] = set()
        self._rechecked = False

    @property
    def decidable(self) -> bool:
        """Whether the audit can decide about batches before the first claim."""
        return self.whole or bool(self.state.producer_ids or self._later_ids)

    def is_owner(self, producer_id: int, epoch: int) -> bool:
        """Returns whether a data batch of this producer is certainly valid at this point."""
        return self.state.exact and self.state.owner == (producer_id, epoch)

    def check(
        self, offset: int, producer: ProducerEpoch, special: Sequence[tuple[bytes, bytes | None]] = ()
    ) -> Outcome:
        """Checks the batch at ``offset``. ``special`` contains the records of the batch if a key among them is
        `CLAIM_KEY` or `FENCE_KEY`; otherwise it is empty.

        Raises `UnknownVersion` for a claim of an unknown version.
        """
        claims = [value for key, value in special if key == CLAIM_KEY]
        if claims:
            return self._check_claim(offset, producer, claims[-1])
        if producer.epoch == FENCE_EPOCH and special and all(key == FENCE_KEY for key, _ in special):
            return Outcome.VALID
        return self._check_data(producer)

    def note_gap(self) -> None:
        """Notes that records are missing before the next batch."""
        if self.state.exact and not self.state.gap:
            self.state = self.state._replace(gap=True)

    def on_rechecked(self, *, present: bool) -> None:
        """Handles the result of a recheck of the owner's claim. It applies to all batches that the caller had read
        before the recheck."""
        self._rechecked = True
        if not present:
            self.state = self.state._replace(exact=False)

    def end_chunk(self) -> None:
        """Ends the batches to which the last recheck applies."""
        self._rechecked = False

    def note_valid(self, keys: Iterable[bytes]) -> None:
        """Notes the keys of the records of a valid batch, which are newer than earlier records of invalid batches."""
        if self.state.invalid_keys:
            self.state = self.state._replace(invalid_keys=self.state.invalid_keys.difference(keys))

    def note_invalid(self, keys: Iterable[bytes]) -> None:
        """Notes the keys of the records of an invalid batch."""
        self.state = self.state._replace(invalid_keys=self.state.invalid_keys.union(keys) - {FENCE_KEY})

    def conclude(self) -> bool:
        """Ends a pass over the batches. Returns whether the caller has to pass them again, because it applied an
        undecided batch that turned out to be invalid."""
        if not self.decidable or self._undecided <= self.state.producer_ids:
            return False
        self._undecided.clear()
        self.decide_with(self.state.producer_ids)
        self.state = self._start
        return True

    def decide_with(self, later_ids: Iterable[int]) -> None:
        """Decides undecided batches from now on: a batch is valid if ``later_ids``, which are the producer ids of
        claims that follow, contain its producer id."""
        self._later_ids |= frozenset(later_ids)
        self._decided = True

    def describe(self) -> str:
        """Returns the reason why a batch is invalid at this point."""
        owner = self.state.owner
        if owner is None:
            return "no claim lists its producer id"
        return f"the owner's producer id is {owner.id} with epoch {owner.epoch}"

    def _check_claim(self, offset: int, producer: ProducerEpoch, value: bytes | None) -> Outcome:
        if value is None or producer.id < 0:
            return Outcome.INVALID
        try:
            claim = decode_claim(value)
        except CorruptData:
            return Outcome.INVALID
        owner, known = self.state.owner, self.state.producer_ids
        if offset > self._later.claimed_at:
            known |= self._later.producer_ids
        outdated = owner is not None and producer.id == owner.id and producer.epoch < owner.epoch
        if outdated or (owner is not None and producer.id != owner.id and producer.id in known):
            return Outcome.INVALID
        self.state = AuditState(
            owner=producer,
            exact=True,
            claimed_at=offset,
            producer_ids=known.union(claim.producer_ids, (producer.id,)),
            invalid_keys=self.state.invalid_keys,
            complete_from=max(self.state.complete_from, claim.complete_from),
        )
        return Outcome.VALID

    def _check_data(self, producer: ProducerEpoch) -> Outcome:
        owner = self.state.owner
        if owner is not None:
            if self.state.exact:
                if producer == owner:
                    return Outcome.VALID
                return Outcome.RECHECK if self.state.gap and not self._rechecked else Outcome.INVALID
            if producer.id == owner.id:
                return Outcome.VALID if producer.epoch >= owner.epoch else Outcome.INVALID
            if producer.id in self.state.producer_ids:
                return Outcome.INVALID
        if producer.id in self._later_ids:
            return Outcome.VALID
        if self._decided:
            return Outcome.INVALID
        self._undecided.add(producer.id)
        return Outcome.UNDECIDED
