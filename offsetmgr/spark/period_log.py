"""`PeriodLog`: the offsets that a period job can scan, and the check that fixed ranges are still readable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.errors import Conflict, OffsetOutOfRange, TimedOut, UnknownTopicOrPartition, value_of
from offsetmgr.core.errors import UnsupportedOperation as Unsupported
from offsetmgr.core.model import Committed, LogRange, Offset, TopicPartition
from offsetmgr.kafka.client.client import Client, ClientThread
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.fetch import StableOffsets
from offsetmgr.kafka.client.topics import TopicDescription, describe_topic, topic_settings
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.period.job_records import Work
from offsetmgr.period.schedule import Period
from offsetmgr.spark.period_ranges import Bounds

_RECREATED_HINT: Final = "if the topic was recreated, its periods need a new root"
_RETENTION_HINT: Final = "raise the topic's retention above the time in which the job processes a period"


class PeriodLog:
    """Requests from the brokers the topic data that a period job needs. Read-only.

    All methods raise the errors of requests to a cluster: `Unreachable`, `TimedOut` and others.
    """

    def __init__(self, bootstrap: str, config: ConnectionConfig) -> None:
        self.bootstrap = bootstrap
        self.config = config
        self._thread = ClientThread(Client(bootstrap, Security.of(config.kafka)), config.timeout_ms / 1000)
        self._cluster = KafkaCluster.with_thread(self._thread)
        self._offsets = StableOffsets(self._thread.client)

    def close(self) -> None:
        self._thread.close()

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """Returns the topic id of each topic; "" on brokers without topic ids. Raises `UnknownTopicOrPartition`."""
        topics = sorted({tp.topic for tp in partitions})

        async def describe(deadline: float) -> dict[str, TopicDescription | None]:
            return {topic: await describe_topic(self._thread.client, topic, deadline) for topic in topics}

        ids = {}
        for topic, found in self._thread.run(describe).items():
            if found is None:
                raise UnknownTopicOrPartition(f"topic {topic}", "the cluster has no such topic")
            ids[topic] = found.topic_id
        return ids

    def compacted(self, topics: Iterable[str]) -> list[str]:
        """Returns the compacted topics among ``topics``. Compaction can remove records between other records."""
        names = sorted(set(topics))

        async def ask(deadline: float) -> list[str]:
            found = {topic: await topic_settings(self._thread.client, topic, deadline) for topic in names}
            return [topic for topic, known in found.items() if known and "compact" in known.get("cleanup.policy", "")]

        return self._thread.run(ask)

    # --- bounds of a scan ----------------------------------------------------------------------------

    def first_bounds(
        self, period: Period, partitions: Sequence[TopicPartition], committed: Mapping[TopicPartition, Offset]
    ) -> dict[TopicPartition, Bounds]:
        """Returns the bounds of the scan for the first period of a job.

        A scan begins at the first record with a time in the period or later, or at the group's offset if the group's
        offset is larger. Raises `OffsetOutOfRange` if the group's offset is not in the log.
        """
        logs = self._logs(partitions, {})
        # The log ends are requested before the offsets for the period's start. A record that arrives between the two
        # requests is therefore after the end of the scan.
        begins = self._cluster.offsets_for_time(partitions, period.start_ms)
        found = {}
        for tp in partitions:
            log, at, commit = logs[tp], value_of(begins[tp]), committed.get(tp)
            start = log.end if at is None else max(at, log.start)
            if isinstance(commit, Committed):
                if not log.start <= commit.offset <= log.end:
                    why = f"the group is at {commit.offset}, but the log has the offsets {log.start} to {log.end}"
                    hint = "set the group's offset, or use a new group"
                    raise OffsetOutOfRange(f"first period of {tp}", why, hint, log_range=log)
                start = max(start, commit.offset)
            found[tp] = Bounds(min(start, log.end), log.end, None)
        return found

    def next_bounds(
        self, period: Period, partitions: Sequence[TopicPartition], before: Work
    ) -> dict[TopicPartition, Bounds]:
        """Returns the bounds of the scan for ``period``. ``before`` is the job's newest work on an earlier period.

        A scan resumes where the scan of ``before`` ended. In a partition that was added after that scan, the new scan
        begins at the start of the log. Raises `OffsetOutOfRange` if the log has lost records that the scan needs, or if
        the topic was recreated. Raises `Conflict` if periods between ``before`` and ``period`` were closed without this
        job, although the job had records for these periods.
        """
        self._check_ids(before, partitions)
        scans = before.scans
        pending = [tp for tp in partitions if tp in scans and scans[tp].resume < scans[tp].end]
        if before.period.end_ms < period.start_ms and pending:
            raise Conflict(
                f"period {period.number}",
                f"is open, but the periods after {before.period.number} were closed without this job, although it had "
                f"records for them, for example in {pending[0]}",
                Advice(
                    "only this job may report its partitions as finished; go back with {}",
                    Invocation("period rerun", named={"instead": True}),
                ),
            )
        logs = self._logs(partitions, {tp: scans[tp].end for tp in partitions if tp in scans})
        found = {}
        for tp in partitions:
            log = logs[tp]
            if tp not in scans:
                found[tp] = Bounds(log.start, log.end, log.start)
                continue
            scan = scans[tp]
            _check_within(tp, scan.resume, scan.end, log)
            found[tp] = Bounds(scan.resume, log.end, scan.end)
        return found

    # --- readability of fixed ranges -----------------------------------------------------------------

    def check(self, work: Work, *, late: bool) -> None:
        """Checks that the records of ``work`` can still be read. With ``late``, also checks its late records.

        Raises `OffsetOutOfRange` if records are gone or the topic was recreated. For a rerun, raises
        `UnsupportedOperation` if a topic is compacted, because the rows of the rerun could differ from the rows of the
        first run.
        """
        ranges = [*work.ranges.items(), *(work.late_ranges().items() if late else ())]
        read = {tp for tp, offsets in ranges if offsets.first < offsets.end}
        self._check_ids(work, read)
        if work.same_as and (compacted := self.compacted(tp.topic for tp in read)):
            raise Unsupported(
                f"rerun of {work.same_as}",
                f"topic {compacted[0]} is compacted, so the same ranges may have other records now",
                "keep the outputs of periods over compacted topics",
            )
        logs = self._logs(read, {tp: work.ranges[tp].end for tp in read})
        for tp, offsets in ranges:
            if tp in read:
                _check_within(tp, offsets.first, offsets.end, logs[tp])

    def _check_ids(self, work: Work, partitions: Iterable[TopicPartition]) -> None:
        now = self.topic_ids(tp for tp in partitions if tp.topic in work.topic_ids)
        for topic, known in now.items():
            if known != work.topic_ids[topic]:
                raise OffsetOutOfRange(
                    f"topic {topic}", f"has another id than when period {work.period.number} was read", _RECREATED_HINT
                )

    def _logs(
        self, partitions: Iterable[TopicPartition], min_ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, LogRange]:
        """Returns the log start and the last stable offset of each partition. Records after the last stable offset may
        belong to transactions that are aborted later. ``min_ends`` are the ends that earlier requests returned."""
        wanted = list(partitions)
        starts = self._thread.run(lambda deadline: self._offsets.starts(wanted, deadline))
        try:
            # After a change of the leader, a broker may briefly return an end that is below an end from an earlier
            # request.
            ends = self._thread.run(
                lambda deadline: self._offsets.ends(wanted, deadline, lambda tp: min_ends.get(tp, 0))
            )
        except TimedOut:
            ends = self._thread.run(lambda deadline: self._offsets.ends(wanted, deadline))
        return {tp: LogRange(starts[tp], ends[tp]) for tp in wanted}


def _check_within(tp: TopicPartition, first: int, end: int, log: LogRange) -> None:
    if first < log.start:
        why = f"the job needs the offsets {first} to {min(end, log.start)}, but the log begins at {log.start}"
        raise OffsetOutOfRange(f"records of {tp} are gone", why, _RETENTION_HINT, log_range=log)
    if log.end < end:
        why = f"it ends at {log.end}, but the job has already read it up to {end}"
        raise OffsetOutOfRange(f"log of {tp}", why, _RECREATED_HINT, log_range=log)
