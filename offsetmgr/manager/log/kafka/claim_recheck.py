"""`ClaimRecheck`: a second read of a claim, to find out whether the log cleaner has removed it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from offsetmgr.manager.log.kafka.batch_audit import PartitionAudit
from offsetmgr.segments.raw_batches import raw_batches


class _PostponedBatches(NamedTuple):
    """Batches of the log that wait for the second read of the claim at offset ``claimed_at``."""

    claimed_at: int
    data: bytes
    position: int


class ClaimRecheck:
    """The second reads of the owner's claim by the reader of one partition.

    If the audit returns `Outcome.RECHECK`, the reader calls `begin`. The reader passes all bytes that it reads through
    `resume`, which reports the result of a second read to the audit.
    """

    def __init__(self, audit: PartitionAudit) -> None:
        self._audit = audit
        self._postponed: _PostponedBatches | None = None

    @property
    def in_progress(self) -> bool:
        """Whether the reader reads the claim again."""
        return self._postponed is not None

    def begin(self, data: bytes, position: int) -> int:
        """Postpones the batches of ``data`` from offset ``position`` on. Returns the offset of the claim, at which the
        reader continues."""
        claimed_at = self._audit.state.claimed_at
        self._postponed = _PostponedBatches(claimed_at, data, position)
        return claimed_at

    def resume(self, data: bytes, position: int) -> tuple[bytes, int] | None:
        """Returns the bytes and the offset at which the reader continues. These are the postponed ones if ``data``
        completes a second read, and the arguments if no second read is in progress. Returns None if the second read
        needs more bytes. Raises `DamagedBatch`."""
        postponed = self._postponed
        if postponed is None:
            return data, position
        for batch in raw_batches(data):
            if batch.last_offset >= postponed.claimed_at:
                present = batch.base_offset == postponed.claimed_at and batch.record_count > 0
                self._audit.on_rechecked(present=present)
                self._postponed = None
                return postponed.data, postponed.position
        return None
