"""`AheadPolicy`: the word of a user for offsets whose copy would be a rewind."""

from __future__ import annotations

from enum import StrEnum


class AheadPolicy(StrEnum):
    """The action for a partition whose target is ahead of the source: keep the target's offset, refuse the partition,
    or rewind the target to the source's offset.

    >>> AheadPolicy.REFUSE.value
    'refuse'
    """

    KEEP = "keep"
    REFUSE = "refuse"
    REWIND = "rewind"
