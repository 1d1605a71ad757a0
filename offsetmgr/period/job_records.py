"""`Work`: the content of a `History` node, one job's work on one period, and its encoding. Pure.

The format is that of `node_codec`. The fields with scans, counts and the origin of ranges may be missing; they are
empty then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from offsetmgr.core.model import TopicPartition
from offsetmgr.period.node_codec import NodeReader, OffsetRange, node_bytes, ranges_of, rows_of
from offsetmgr.period.schedule import Period

ATTEMPTS_KEPT: Final = 100
IN_PERIOD: Final = "records"
LATE: Final = "late"
SET_ASIDE: Final = "set_aside"
"""Kinds of records in `Work.counts`: within the period, before it, and after it by too much."""


@dataclass(frozen=True, slots=True)
class RangeScan:
    """The result of a scan of one partition for the records of a period. All fields are offsets; ``end`` is
    exclusive."""

    start: int
    """The start of the scan; all records below it were counted in earlier periods."""
    late_from: int
    """No earlier scan has read records at or after this offset, so such a record with a time before the period is
    late."""
    end: int
    resume: int
    """The start of the next period's scan: the first record of a later period, or ``end``. Records below it with the
    time of a later period are set aside, because their time is too far ahead."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a process to do the work; the first attempt has number 0."""

    member: str
    epoch: int
    started_ms: int


@dataclass(frozen=True, slots=True)
class PublishedOutput:
    """The output of the attempt that was published. Only this output is valid."""

    attempt: int
    output: str
    """The location of the output, as the job names it."""
    published_ms: int
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of records by kind, with the job's own names of the kinds."""


@dataclass(frozen=True, slots=True)
class Work:
    """One job's work on one period."""

    job: str
    period: Period
    ranges: Mapping[TopicPartition, OffsetRange]
    fixed_ms: int
    attempts: tuple[Attempt, ...] = ()
    """The newest `ATTEMPTS_KEPT` attempts, the oldest of them first."""
    published: PublishedOutput | None = None
    scans: Mapping[TopicPartition, RangeScan] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of records that the scans found, by kind; a missing kind is unknown."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The id of each topic (KIP-516), which shows whether a topic was recreated and has other records now."""
    dropped_attempts: int = 0
    """Number of attempts before those in ``attempts``. They are not stored, so that the node of a job that fails
    repeatedly stays small."""
    same_as: str = ""
    """A text that names the work whose ranges this work reuses; empty if a scan found the ranges."""

    @property
    def attempt_count(self) -> int:
        """The number of all attempts so far."""
        return self.dropped_attempts + len(self.attempts)

    def with_attempt(self, attempt: Attempt) -> Work:
        """Returns the work with one more attempt."""
        kept = self.attempts[-(ATTEMPTS_KEPT - 1) :]
        return replace(self, attempts=(*kept, attempt), dropped_attempts=self.attempt_count - len(kept))

    def late_ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Returns ranges that contain all late records (with times before the period); empty if there are none."""
        if self.counts.get(LATE) == 0:
            return {}
        return {tp: OffsetRange(scan.late_from, scan.end) for tp, scan in self.scans.items()}

    def set_aside_ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Returns ranges that contain all records set aside (with times after the period); empty if there are none."""
        if self.counts.get(SET_ASIDE) == 0:
            return {}
        return {tp: OffsetRange(scan.start, scan.resume) for tp, scan in self.scans.items()}

    def restricted_to(self, period: Period, origin: str) -> Work:
        """Returns work with the same ranges for a period within this one, for a rerun. ``origin`` becomes `same_as`.

        Of the periods into which this one is divided, the first gets the late records, the last those set aside.
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
            self,
            period=period,
            attempts=(),
            dropped_attempts=0,
            published=None,
            scans=scans,
            counts=counts,
            same_as=origin,
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
            "forgotten": work.dropped_attempts,
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
    """Decodes the node. Raises `CorruptData`, `UnknownVersion` with ``path`` in the message."""
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
