"""`ClaimRecheck`: a second read of a claim, to find out whether the log cleaner has removed it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from offsetmgr.segments.raw_batches import raw_batches


class ClaimRecheck(NamedTuple):
    """The caller reads the log from the offset ``claimed_at`` on until `is_present` returns a result. Then it continues
    with the bytes ``data`` at the offset ``position``."""

    claimed_at: int
    data: bytes
    position: int

    def is_present(self, data: bytes) -> bool | None:
        """Returns whether the claim is in the log; None if ``data`` contains no complete batch. Raises
        `DamagedBatch`."""
        for batch in raw_batches(data):
            if batch.last_offset >= self.claimed_at:
                return batch.base_offset == self.claimed_at and batch.record_count > 0
        return None
