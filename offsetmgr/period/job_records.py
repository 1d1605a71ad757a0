"""The content and encoding of a `History` node: one job's work on one period. Pure.

The format is that of `node_codec`. Optional fields (scans, counts, the origin of ranges) may be missing, and are then
empty.
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
    """The scan of one partition for a period's range. Offsets; each ``end`` is exclusive."""

    start: int
    """The start of the scan: earlier periods have counted every record below it."""
    late_from: int
    """No earlier scan has seen records from here on: an earlier period's record at or after it is late."""
    end: int
    resume: int
    """The start of the next period's scan: the first record of a later period, or ``end``. Records below it with a
    later period's time were set aside, because their time was too far ahead."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process that worked on the period; the first has number 0."""

    member: str
    epoch: int
    started_ms: int


@dataclass(frozen=True, slots=True)
class PublishedOutput:
    """The published attempt, whose output counts."""

    attempt: int
    output: str
    """The location of the output, as the job names it."""
    published_ms: int
    counts: Mapping[str, int] = field(default_factory=dict)
    """Records by kind: taken, late, set aside, with the job's names."""


@dataclass(frozen=True, slots=True)
class Work:
    """One job's work on one period."""

    job: str
    period: Period
    ranges: Mapping[TopicPartition, OffsetRange]
    fixed_ms: int
    attempts: tuple[Attempt, ...] = ()
    """The newest of them, the oldest first."""
    published: PublishedOutput | None = None
    scans: Mapping[TopicPartition, RangeScan] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    """The scans' counts, by kind; a missing kind is unknown."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Each topic's id (KIP-516): a recreated topic has another id, and other records."""
    forgotten: int = 0
    """Number of attempts before those in ``attempts``, which bounds the node's size for a job that fails repeatedly."""
    same_as: str = ""
    """Describes the work whose ranges were reused instead of a scan; empty if they were found for this one."""

    @property
    def begun(self) -> int:
        """Number of attempts so far."""
        return self.forgotten + len(self.attempts)

    def begin(self, attempt: Attempt) -> Work:
        """Returns the work with one more attempt."""
        kept = self.attempts[-(ATTEMPTS_KEPT - 1) :]
        return replace(self, attempts=(*kept, attempt), forgotten=self.begun - len(kept))

    def late_ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Ranges that contain the late records, with times before the period; empty if there are none."""
        if self.counts.get(LATE) == 0:
            return {}
        return {tp: OffsetRange(scan.late_from, scan.end) for tp, scan in self.scans.items()}

    def set_aside_ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Ranges that contain the records set aside, with times after the period; empty if there are none."""
        if self.counts.get(SET_ASIDE) == 0:
            return {}
        return {tp: OffsetRange(scan.start, scan.resume) for tp, scan in self.scans.items()}

    def part(self, period: Period, said: str) -> Work:
        """The same ranges for a period within this one, for a rerun. ``said`` describes their origin.

        Late records belong to the first part, records set aside to the last.
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
        raise node.broken("contains the published output twice")
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
