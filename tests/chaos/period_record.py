"""What the members of a run of periods wrote down, held against the rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from offsetmgr.period.records import ClosedPeriod


@dataclass
class Counts:
    """Periods that broke the rule; all zero where it held."""

    skipped: int = 0
    closed_early: int = 0
    closed_twice: int = 0
    stuck: int = 0


def count(
    lines: Iterable[str], closed: dict[int, ClosedPeriod], turns: int, open_now: int, wanted: int, partitions: int
) -> Counts:
    """``lines`` in the order in which they were written; ``turns`` is how often the open period was replaced."""
    begun: set[int] = set()
    done: Counter[int] = Counter()
    seen: set[tuple[int, int]] = set()
    early: set[int] = set()
    for line in lines:
        what, number_text, *rest = line.split()
        number = int(number_text)
        if what == "done":
            fresh = {(number, int(text)) for text in rest[0].split(",")} - seen
            seen |= fresh
            done[number] += len(fresh)
        elif what == "begin" and number not in begun:
            begun.add(number)
            if number and done[number - 1] < partitions:
                early.add(number - 1)
    skipped = {number for number in range(open_now) if number not in begun or number not in closed}
    return Counts(len(skipped), len(early), max(0, turns - open_now), max(0, wanted - open_now))
