"""Rows of ``period history``. A job has one row for each partition for which it has an offset range. A closed period
has one row for each partition for which no job has an offset range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offsetmgr.period.job_records import Work
    from offsetmgr.period.records import ClosedPeriod


def history_rows(
    closed: Mapping[int, ClosedPeriod], works: Mapping[tuple[int, str], Work]
) -> Iterator[tuple[Any, ...]]:
    """Yields rows with the columns that `offsetmgr.cli.period` defines. A period that is not closed yet has only the
    rows of its jobs."""
    for number in sorted({*closed, *(number for number, _ in works)}):
        period = closed.get(number)
        jobs = [work for (of, _), work in sorted(works.items()) if of == number]
        begin = _period_cells(number, period, jobs)
        by = {tp: member for member, tps in period.by.items() for tp in tps} if period else {}
        ranges = dict(period.ranges) if period else {}
        of_jobs = {tp for work in jobs for tp in work.ranges}
        for partition in sorted({*by, *ranges} - of_jobs):
            offsets = ranges.get(partition)
            idle = period is not None and partition in period.idle
            yield (
                *begin,
                partition.topic,
                partition.partition,
                "idle" if idle else "finished",
                by.get(partition),
                None,
                offsets.first if offsets else None,
                offsets.end if offsets else None,
                None,
                None,
                None,
            )
        for work in jobs:
            done = work.published
            state = "published" if done else "under way" if work.attempts else "fixed"
            for partition, offsets in sorted(work.ranges.items()):
                who = work.attempts[-1].member if work.attempts else None
                yield (
                    *begin,
                    partition.topic,
                    partition.partition,
                    state,
                    by.get(partition, who),
                    work.job,
                    offsets.first,
                    offsets.end,
                    work.attempt_count,
                    done.output if done else None,
                    None,
                )
        if period is not None and period.abandoned:
            yield (*begin, None, None, "abandoned", None, None, None, None, None, None, period.abandoned)


def _period_cells(number: int, period: ClosedPeriod | None, jobs: list[Work]) -> tuple[Any, ...]:
    if period is None:
        return number, jobs[0].period.start_ms, jobs[0].period.end_ms, None, None, None
    duration_ms = period.closed_ms - period.opened_ms
    return number, period.period.start_ms, period.period.end_ms, period.closed_ms, max(0, duration_ms), period.leader
