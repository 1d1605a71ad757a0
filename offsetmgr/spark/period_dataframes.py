"""The records of a period as DataFrames, which have the same rows at every read.

A DataFrame reads a fixed range of offsets of each partition and filters the records by their times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Final

from offsetmgr.core.batches import by_key, by_topic
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.job_records import Work
from offsetmgr.period.records import OffsetRange
from offsetmgr.period.schedule import Period

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
"""The schema of Spark's Kafka source, for a DataFrame without records."""
_HEADERS: Final = ", headers array<struct<key: string, value: binary>>"


class LateRecords(Enum):
    """How a job treats late records. A late record belongs to an earlier period, but its offset is after the end of the
    scan for that period.

    >>> LateRecords.COUNT.value
    'count'
    """

    COUNT = "count"
    """The job only counts late records."""
    SIDE = "side"
    """The job gets late records separately, in `PeriodTask.late` (a side output)."""
    NEXT = "next"
    """The job gets late records among the rows of the open period."""


@dataclass(frozen=True)
class RecordSource:
    """The Kafka cluster to read. ``options`` are the options of Spark's Kafka source, such as
    ``kafka.security.protocol``."""

    spark: SparkSession
    bootstrap: str
    options: Mapping[str, str]

    def read(self, ranges: Mapping[TopicPartition, OffsetRange], condition: str) -> DataFrame:
        """Returns the records in these ranges that satisfy the SQL ``condition``, with the columns of Spark's Kafka
        source."""
        selected = {tp: offsets for tp, offsets in ranges.items() if offsets.first < offsets.end}
        if not selected:
            headers = self.options.get("includeHeaders", "").lower() == "true"
            return self.spark.createDataFrame([], _SCHEMA + (_HEADERS if headers else ""))
        first = by_topic({tp: offsets.first for tp, offsets in selected.items()})
        end = by_topic({tp: offsets.end for tp, offsets in selected.items()})
        reader = self.spark.read.format("kafka").options(**{"kafka.isolation.level": "read_committed", **self.options})
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap).option("failOnDataLoss", "true")
        reader = reader.option("assign", json.dumps(by_key(sorted(selected))))
        reader = reader.option("startingOffsets", json.dumps(first)).option("endingOffsets", json.dumps(end))
        return reader.load().where(condition)


@dataclass(frozen=True)
class PeriodTask:
    """One attempt at one period: the argument of the job's function.

    ``output`` is the directory of this attempt; write only there. ``attempt`` counts from 0.

    Example::

        from typing import Any

        from offsetmgr.spark import PeriodTask

        def process(rows: Any, task: PeriodTask) -> None:
            rows.groupBy("key").count().write.parquet(task.output)
            print("period", task.period.number, "attempt", task.attempt)
    """

    period: Period
    attempt: int
    output: str
    """The directory for this attempt's output. No other attempt uses this directory, and readers ignore the directory
    unless the output of this attempt is published."""
    policy: LateRecords
    work: Work
    """The ranges of the period, and the numbers of records that the scans counted."""
    source: RecordSource

    @cached_property
    def rows(self) -> DataFrame:
        """The records of the period. With `LateRecords.NEXT`, the late records are included."""
        start, end = self.period.start_ms, self.period.end_ms
        condition = f"timestamp >= timestamp_millis({start}) and timestamp < timestamp_millis({end})"
        rows = self.source.read(self.work.ranges, condition)
        return rows.union(self._late) if self.policy is LateRecords.NEXT else rows

    @cached_property
    def late(self) -> DataFrame | None:
        """The late records of earlier periods; None unless the job selected `LateRecords.SIDE`."""
        return self._late if self.policy is LateRecords.SIDE else None

    @cached_property
    def set_aside(self) -> DataFrame:
        """The records that belong to no period because their times are too far in the future."""
        ranges = self.work.set_aside_ranges()
        return self.source.read(ranges, f"timestamp >= timestamp_millis({self.period.end_ms})")

    @cached_property
    def _late(self) -> DataFrame:
        return self.source.read(self.work.late_ranges(), f"timestamp < timestamp_millis({self.period.start_ms})")
