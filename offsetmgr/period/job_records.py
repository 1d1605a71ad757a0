"""`Work`: the content of a `History` node, which describes one job's work on one period, and the encoding of the node.
Pure.

The format is that of `records`. Missing fields for scans, counts or the origin of the ranges count as empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from offsetmgr.core.batches import by_topic
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.records import NodeReader, OffsetRange, node_bytes, period_fields, ranges_of
from offsetmgr.period.schedule import Period

ATTEMPTS_KEPT: Final = 100
IN_PERIOD: Final = "records"
LATE: Final = "late"
SET_ASIDE: Final = "set_aside"
"""Kinds of records in `Work.counts`: records with a time within the period (`IN_PERIOD`), records with a time before it
(`LATE`), and records with a time so far after it that they are set aside (`SET_ASIDE`)."""


@dataclass(frozen=True, slots=True)
class RangeScan:
    """The result of a scan of one partition for the records of a period. All fields are offsets; ``end`` is
    exclusive."""

    start: int
    """The offset at which the scan started. Earlier periods have processed all records below this offset."""
    late_from: int
    """Earlier scans read only records below this offset. If a record at this offset or a higher offset has a time
    before the period, the record is late: the scan of its own period did not include it."""
    end: int
    resume: int
    """The offset at which the next period's scan starts: the offset of the first record of a later period, or ``end``.
    If a record below this offset has a time in a later period, the record is set aside, because its time is too far
    after this period."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a process at the job's work. Attempts are numbered from 0."""

    member: str
    epoch: int
    started_ms: int


@dataclass(frozen=True, slots=True)
class PublishedOutput:
    """The published output of a job's work on a period, and the attempt that published it. Output of other attempts is
    not valid."""

    attempt: int
    output: str
    """The location of the output, as the job names it."""
    published_ms: int
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of records by kind. The job chooses the names of the kinds."""


@dataclass(frozen=True, slots=True)
class Work:
    """One job's work on one period."""

    job: str
    period: Period
    ranges: Mapping[TopicPartition, OffsetRange]
    fixed_ms: int
    attempts: tuple[Attempt, ...] = ()
    """The newest `ATTEMPTS_KEPT` attempts, in the order in which they began."""
    published: PublishedOutput | None = None
    scans: Mapping[TopicPartition, RangeScan] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of records that the scans found, by kind. The number of records of a kind without an entry is
    unknown."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The id of each topic (KIP-516). If a topic's id has changed, the topic was recreated, and the ranges refer to
    records that no longer exist."""
    dropped_attempts: int = 0
    """The number of older attempts that are no longer stored in ``attempts``. Dropping them keeps the node small if a
    job fails repeatedly."""
    same_as: str = ""
    """The name of the earlier work whose ranges this work reuses. Empty if this work has its own ranges."""

    @property
    def attempt_count(self) -> int:
        """The number of all attempts so far."""
        return self.dropped_attempts + len(self.attempts)

    def with_attempt(self, attempt: Attempt) -> Work:
        """Returns the work with one more attempt."""
        kept = self.attempts[-(ATTEMPTS_KEPT - 1) :]
        return replace(self, attempts=(*kept, attempt), dropped_attempts=self.attempt_count - len(kept))

    def late_ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Returns ranges that contain all late records (with times before the period), among other records. Returns an
        empty dict if there are no late records."""
        if self.counts.get(LATE) == 0:
            return {}
        return {tp: OffsetRange(scan.late_from, scan.end) for tp, scan in self.scans.items()}

    def set_aside_ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Returns ranges that contain all records that were set aside (with times after the period), among other
        records. Returns an empty dict if no record was set aside."""
        if self.counts.get(SET_ASIDE) == 0:
            return {}
        return {tp: OffsetRange(scan.start, scan.resume) for tp, scan in self.scans.items()}

    def restricted_to(self, period: Period, origin: str) -> Work:
        """Returns the work of a rerun on ``period``, which must lie within the period of this work. The returned work
        has the same ranges as this work, and its `same_as` is ``origin``.

        If a rerun divides the period of this work into several periods, the first period of the rerun gets the late
        records, and the last period gets the records that were set aside.
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
    return node_bytes(
        {
            "job": work.job,
            **period_fields(work.period),
            "ranges": ranges_of(work.ranges),
            "fixed_ms": work.fixed_ms,
            "scans": by_topic({tp: [s.start, s.late_from, s.end, s.resume] for tp, s in work.scans.items()}),
            "counts": dict(work.counts),
            "topic_ids": dict(work.topic_ids),
            "same_as": work.same_as,
            "forgotten": work.dropped_attempts,
            "attempts": [asdict(attempt) for attempt in work.attempts],
            "published": [asdict(published) for published in (work.published,) if published is not None],
        }
    )


def decode_work(path: str, data: bytes) -> Work:
    """Decodes the node. Raises `CorruptData`, `UnknownVersion` with ``path`` in the message."""
    node = NodeReader.of(path, data)
    period = Period(node.integer("period"), node.integer("start_ms"), node.integer("end_ms"))
    attempts = tuple(
        Attempt(a.text("member"), a.integer("epoch"), a.integer("started_ms")) for a in node.objects("attempts")
    )
    published = [
        PublishedOutput(p.integer("attempt"), p.text("output"), p.integer("published_ms"), p.integers("counts"))
        for p in node.objects("published")
    ]
    stored = node.texts("topic_ids") if "topic_ids" in node else {}
    # librdkafka, with which offsetmgr once read the ids, has + and / in place of - and _.
    topic_ids = {topic: topic_id.replace("+", "-").replace("/", "_") for topic, topic_id in stored.items()}
    if len(published) > 1:
        raise node.error("contains the published output twice")
    return Work(
        node.text("job"),
        period,
        node.ranges("ranges"),
        node.integer("fixed_ms"),
        attempts,
        published[0] if published else None,
        {tp: RangeScan(*row) for tp, row in node.offsets("scans", ("START", "LATE", "END", "RESUME")).items()},
        node.integers("counts") if "counts" in node else {},
        topic_ids,
        node.optional_integer("forgotten") or 0,
        node.text("same_as") if "same_as" in node else "",
    )
