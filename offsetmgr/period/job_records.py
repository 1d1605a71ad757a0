"""What a node of `History` holds, and its bytes: one job's work on one period. Pure.

The form is that of `node_codec`. Fields that a job need not tell (scans, counts, where ranges were taken from) may be
missing, and are then empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from offsetmgr.core.model import TopicPartition
from offsetmgr.period.node_codec import NodeReader, OffsetRange, node_bytes, ranges_of, rows_of
from offsetmgr.period.schedule import Period

ATTEMPTS_KEPT: Final = 100
TAKEN: Final = "records"
LATE: Final = "late"
SET_ASIDE: Final = "set_aside"
"""Kinds of `Work.counts`."""


@dataclass(frozen=True, slots=True)
class RangeScan:
    """What was looked at in one partition to find a period's range. Offsets; each ``end`` does not belong to it."""

    start: int
    """Where it began: everything below was accounted for in earlier periods."""
    late_from: int
    """From here on no earlier scan had looked: an earlier period's record at or behind it has come late."""
    end: int
    resume: int
    """Where the next period's begins: the first record of a later period, or ``end``. Whatever lies below it and is
    dated in a later period was set aside, for it was dated too far ahead."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process that worked on the period; the first has number 0."""

    member: str
    epoch: int
    started_ms: int


@dataclass(frozen=True, slots=True)
class PublishedOutput:
    """The attempt whose output counts."""

    attempt: int
    output: str
    """Where it is, in the job's words."""
    published_ms: int
    counts: Mapping[str, int] = field(default_factory=dict)
    """Records by kind: taken, late, set aside; the job's words."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one job does with one period."""

    job: str
    period: Period
    ranges: Mapping[TopicPartition, OffsetRange]
    fixed_ms: int
    attempts: tuple[Attempt, ...] = ()
    """The newest of them, the oldest first."""
    published: PublishedOutput | None = None
    scans: Mapping[TopicPartition, RangeScan] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    """What the scans counted, by kind; a kind that is not there is not known."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """What Kafka called each topic (KIP-516): a topic that was recreated has another id, and other records."""
    forgotten: int = 0
    """Attempts before those in ``attempts``: of a job that fails again and again the node must not grow for ever."""
    same_as: str = ""
    """The work whose ranges were taken instead of looking again, in words; empty where they were found for this one."""

    @property
    def begun(self) -> int:
        """How many attempts there were."""
        return self.forgotten + len(self.attempts)

    def begin(self, attempt: Attempt) -> Work:
        """With one attempt more."""
        kept = self.attempts[-(ATTEMPTS_KEPT - 1) :]
        return replace(self, attempts=(*kept, attempt), forgotten=self.begun - len(kept))

    def late_ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Where the records that came late lie: those dated before the period. Empty where none did."""
        if self.counts.get(LATE) == 0:
            return {}
        return {tp: OffsetRange(scan.late_from, scan.end) for tp, scan in self.scans.items()}

    def set_aside_ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Where the records that were set aside lie: those dated after the period. Empty where none were."""
        if self.counts.get(SET_ASIDE) == 0:
            return {}
        return {tp: OffsetRange(scan.start, scan.resume) for tp, scan in self.scans.items()}

    def part(self, period: Period, said: str) -> Work:
        """The same ranges for a period within this one: a rerun's. ``said`` says where they come from.

        What came late goes with the first of its parts, what was set aside with the last.
        """
        first, last = period.start_ms == self.period.start_ms, period.end_ms == self.period.end_ms
        scans = {
            tp: replace(
                scan, late_from=scan.late_from if first else scan.end, start=scan.start if last else scan.resume
            )
            for tp, scan in self.scans.items()
        }
        counts = {kind: n for kind, n in self.counts.items() if (first and last) or kind in (LATE, SET_ASIDE)}
        if LATE in counts and not first:
            counts[LATE] = 0
        if SET_ASIDE in counts and not last:
            counts[SET_ASIDE] = 0
        return replace(
            self, period=period, attempts=(), forgotten=0, published=None, scans=scans, counts=counts, same_as=said
        )


def encode_work(work: Work) -> bytes:
    published = work.published
    return node_bytes(
        {
            "job": work.job,
            "period": work.period.number,
            "start_ms": work.period.start_ms,
            "end_ms": work.period.end_ms,
            "ranges": ranges_of(work.ranges),
            "fixed_ms": work.fixed_ms,
            "scans": rows_of({tp: [s.start, s.late_from, s.end, s.resume] for tp, s in work.scans.items()}),
            "counts": dict(work.counts),
            "topic_ids": dict(work.topic_ids),
            "same_as": work.same_as,
            "forgotten": work.forgotten,
            "attempts": [{"member": a.member, "epoch": a.epoch, "started_ms": a.started_ms} for a in work.attempts],
            "published": []
            if published is None
            else [
                {
                    "attempt": published.attempt,
                    "output": published.output,
                    "published_ms": published.published_ms,
                    "counts": dict(published.counts),
                }
            ],
        }
    )


def decode_work(path: str, data: bytes) -> Work:
    """Raises `CorruptData`, `UnknownVersion`, which name ``path``."""
    node = NodeReader(path, data)
    period = Period(node.number("period"), node.number("start_ms"), node.number("end_ms"))
    attempts = tuple(
        Attempt(a.text("member"), a.number("epoch"), a.number("started_ms")) for a in node.items("attempts")
    )
    published = [
        PublishedOutput(p.number("attempt"), p.text("output"), p.number("published_ms"), p.numbers("counts"))
        for p in node.items("published")
    ]
    if len(published) > 1:
        raise node.broken("says twice what was published")
    return Work(
        node.text("job"),
        period,
        node.ranges("ranges"),
        node.number("fixed_ms"),
        attempts,
        published[0] if published else None,
        {tp: RangeScan(*row) for tp, row in node.offsets("scans", ("START", "LATE", "END", "RESUME")).items()},
        node.numbers("counts") if node.has("counts") else {},
        node.texts("topic_ids") if node.has("topic_ids") else {},
        node.optional_number("forgotten") or 0,
        node.text("same_as") if node.has("same_as") else "",
    )
