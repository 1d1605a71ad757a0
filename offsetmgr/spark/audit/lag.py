"""Computes the lag of each committed offset, as `offsetmgr.groups.lag` defines it."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.cluster import KafkaCluster

ENDS: Final = "topic string, partition int, log_start_offset bigint, log_end_offset bigint, log_error string"
"""The columns for the start and end of each log, or for the error of the request, as Spark's DDL."""


def log_ends(spark: SparkSession, cluster: KafkaCluster, offsets: DataFrame) -> DataFrame:
    """Returns a table (`ENDS`) of the log ranges of all partitions in ``offsets``. The driver fetches all log ranges at
    once. Call this function after the offsets have been read. If a log end were read before the offsets, a lag could be
    negative."""
    asked = [TopicPartition(*row) for row in offsets.select("topic", "partition").distinct().collect()]
    found = cluster.log_ranges(asked) if asked else {}
    rows: list[tuple[object, ...]] = [
        (*tp, None, None, str(log)) if isinstance(log, OffsetMgrError) else (*tp, log.start, log.end, None)
        for tp, log in found.items()
    ]
    return spark.createDataFrame(rows, ENDS)


def lag(offsets: DataFrame, ends: DataFrame) -> DataFrame:
    """Adds ``log_start_offset``, ``log_end_offset``, ``lag`` and ``note`` to a table of group, topic, partition and
    offset.

    If the offset is below the log's start, the lag counts from the start. The lag is null if the log is unknown or ends
    before the offset, for example because the topic was recreated; ``note`` gives the reason.
    """
    offset, start, end = sql.col("offset"), sql.col("log_start_offset"), sql.col("log_end_offset")
    note = (
        sql.when(sql.col("log_error").isNotNull(), sql.col("log_error"))
        .when(end.isNull(), "log unknown")
        .when(offset > end, "beyond the log's end")
        .when(offset < start, "below the log's start")
        .otherwise("")
    )
    behind = sql.when(offset <= end, end - sql.greatest(offset, start))
    return (
        offsets.select("group", "topic", "partition", "offset")
        .join(ends, ["topic", "partition"], "left")
        .withColumns({"lag": behind, "note": note})
        .select("group", "topic", "partition", "offset", "log_start_offset", "log_end_offset", "lag", "note")
    )
