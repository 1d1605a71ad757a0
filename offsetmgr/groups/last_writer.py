"""Decides which of two stores was written last for a partition (data rule "larger is not newer"). Pure.

The size of an offset proves nothing: after a rewind, the store that the group uses has the smaller offset.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

from offsetmgr.core.clock_difference import duration
from offsetmgr.core.plurals import count_of

CLOCK_MARGIN_MS: Final = 1_000
"""Two times decide only if they differ by more than this margin and the difference of the stores' clocks."""


class KnownWrite(NamedTuple):
    """The offset of a partition in one store, and the evidence about its last write.

    ``title`` names the store. ``written_ms`` is the time of the commit, in milliseconds since 1970 by the clock of the
    store's servers; None if it is unknown. ``changed`` is the change that was observed, as text; empty if none was
    observed. ``copied`` is the offset that the store held after the last copy between the two stores, according to a
    journal of offsetmgr; None if there is no such journal. ``copied_ms`` is the latest time of
    this copy; None if the copy kept a store that was ahead.
    """

    title: str
    offset: int
    written_ms: int | None = None
    changed: str = ""
    copied: int | None = None
    copied_ms: int | None = None


class LastWriter(NamedTuple):
    """The store that was written last, and the evidence as text. ``store`` is None if the evidence does not decide.
    ``is_unchanged`` tells whether both stores still hold what offsetmgr's last copy left there."""

    store: KnownWrite | None
    why: str
    is_unchanged: bool = False

    def is_offset(self, offset: int) -> bool:
        """Returns whether the store that holds ``offset`` was written last."""
        return self.store is not None and self.store.offset == offset


def last_writer(one: KnownWrite, other: KnownWrite, clocks_ms: int | None, unknown: str = "") -> LastWriter:
    """Returns the store that was written last, from two stores with different offsets.

    Evidence, the strongest first: a change that was observed; the offsets that the last copy left behind; the times of
    the commits. ``clocks_ms`` is the largest measured difference between the clocks of the two stores, None if it was
    not measured. ``unknown`` is the reason for which a time is unknown.
    """
    pair = (one, other)
    if changed := [write for write in pair if write.changed]:
        seen = " and ".join(f"{write.title} changed while it was watched ({write.changed})" for write in changed)
        if len(changed) == 1:
            (still,) = (write for write in pair if not write.changed)
            return LastWriter(changed[0], f"{seen}, and {still.title} stayed at {still.offset}")
        return LastWriter(max(pair, key=_offset), f"{seen}: members that commit to both use the larger offset")
    if one.copied is not None and other.copied is not None:
        unchanged = [write for write in pair if write.offset == write.copied]
        again = [write for write in unchanged if _is_committed_again(write, clocks_ms or 0)]
        if len(unchanged) == 1:
            (newer,) = (write for write in pair if write.offset != write.copied)
            left = f"{unchanged[0].title} still holds the {unchanged[0].offset} of offsetmgr's last copy"
            if not again:
                return LastWriter(newer, f"{left}, and {newer.title} has changed since")
            since = f"{_time(unchanged[0])}, later than the copy, and {newer.title} has changed too"
            return LastWriter(None, f"{left}, but its last commit is of {since}")
        if unchanged and not again and one.copied_ms is not None:
            return LastWriter(None, "both still hold the offsets of offsetmgr's last copy", is_unchanged=True)
    if one.written_ms is None or other.written_ms is None:
        missing = next(write.title for write in pair if write.written_ms is None)
        return LastWriter(None, unknown or f"the time of the commit in {missing} is unknown")
    first, last = sorted(pair, key=_written_ms)
    times = f"{first.title} wrote {first.offset} at {_time(first)}, {last.title} wrote {last.offset} at {_time(last)}"
    if clocks_ms is None:
        return LastWriter(None, f"{times}, but the difference of their clocks could not be measured")
    clocks = f"their clocks differ by at most {duration(clocks_ms)}"
    if _written_ms(last) - _written_ms(first) <= clocks_ms + CLOCK_MARGIN_MS:
        return LastWriter(None, f"{times}, which is too close to decide: {clocks}, and offsetmgr adds 1 s")
    return LastWriter(last, f"{times}; {clocks}")


def skip_text(start: int, used: int) -> str:
    """Returns, as text, the messages that consumers at ``used`` skip if they start at the larger offset ``start``."""
    return f"{start}; a start there skips {count_of(start - used, 'message')} if the consumers are at {used}"


def _is_committed_again(write: KnownWrite, clocks_ms: int) -> bool:
    """Whether a store was written after the last copy, although it holds the offset of this copy."""
    if write.written_ms is None or write.copied_ms is None:
        return False
    return write.written_ms > write.copied_ms + clocks_ms + CLOCK_MARGIN_MS


def _offset(write: KnownWrite) -> int:
    return write.offset


def _written_ms(write: KnownWrite) -> int:
    return write.written_ms or 0


def _time(write: KnownWrite) -> str:
    moment = datetime.fromtimestamp(_written_ms(write) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
