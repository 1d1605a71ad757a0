"""Checks the log that the members of a run of periods wrote: every period is opened, finished and closed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from offsetmgr.period.records import ClosedPeriod


@dataclass
class Violations:
    """The number of periods with each kind of violation."""

    skipped: int = 0
    closed_early: int = 0
    closed_twice: int = 0
    stuck: int = 0


def count_violations(
    lines: Iterable[str], closed: dict[int, ClosedPeriod], advances: int, open_now: int, expected: int, partitions: int
) -> Violations:
    """Counts the violations. ``lines`` are in the order of writing; ``advances`` is how often the open period
    changed."""
    begun: set[int] = set()
    done: Counter[int] = Counter()
    seen: set[tuple[int, int]] = set()
    early: set[int] = set()
    for line in lines:
        event, number_text, *rest = line.split()
        number = int(number_text)
        if event == "done":
            new = {(number, int(text)) for text in rest[0].split(",")} - seen
            seen |= new
            done[number] += len(new)
        elif event == "begin" and number not in begun:
            begun.add(number)
            if number and done[number - 1] < partitions:
                early.add(number - 1)
    skipped = {number for number in range(open_now) if number not in begun or number not in closed}
    return Violations(len(skipped), len(early), max(0, advances - open_now), max(0, expected - open_now))
