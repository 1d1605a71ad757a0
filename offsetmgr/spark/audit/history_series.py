"""Computes the time series for the report page's plots: the commit rate, and the lag of groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.spark.audit.commits import DAY_MS
from offsetmgr.spark.audit.plots import Point

LONGEST_MS: Final = 7 * DAY_MS
"""Maximum time span of a plot. Without this limit, a single old commit would compress the plot of all other commits."""
_STEPS: Final = 28


def moments(commits: DataFrame, now_ms: int) -> list[int]:
    """Returns evenly spaced times until now. The first of them is the time of the first commit, or `LONGEST_MS` ago if
    the first commit is older. Returns none without a commit."""
    ends = commits.agg(sql.min("commit_timestamp"), sql.max("commit_timestamp")).first()
    if ends is None or ends[0] is None:
        return []
    last = max(ends[1], now_ms)  # groups commit while the log is being read
    first = max(ends[0], last - LONGEST_MS)
    return sorted({first + (last - first) * n // _STEPS for n in range(_STEPS + 1)})


def commit_rate(commits: DataFrame, times: Sequence[int]) -> dict[str, list[Point]]:
    """Returns the number of commits per minute between each two successive times, as a point at the later time."""
    if len(times) < 2:
        return {}
    intervals = len(times) - 1
    width = (times[-1] - times[0]) / intervals
    interval = sql.least(sql.floor((sql.col("commit_timestamp") - times[0]) / width), sql.lit(intervals - 1))
    within = commits.where("not tombstone").where(sql.col("commit_timestamp") >= times[0])
    found = {row["interval"]: row["count"] for row in within.groupBy(interval.alias("interval")).count().collect()}
    return {"all groups": [(times[n + 1], found.get(n, 0) * 60_000 / width) for n in range(intervals)]}


def lag_over_time(
    commits: DataFrame, cluster: KafkaCluster, groups: Sequence[str], times: Sequence[int]
) -> dict[str, list[Point]]:
    """Returns the lag of each group at each moment.

    The lag at a moment is the sum over the partitions that had a commit at or before this moment and whose log can be
    read. The timestamps of a log's records show where the log ended at that moment. At the last moment the lag agrees
    with the lag table.
    """
    if not groups or not times:
        return {}
    of_groups = commits.where(sql.col("group").isin(list(groups)))
    at = of_groups.sparkSession.createDataFrame([(moment,) for moment in times], "moment bigint")
    when = sql.coalesce("commit_timestamp", "log_timestamp")  # a tombstone has only the broker's time
    newest = (
        of_groups.crossJoin(sql.broadcast(at))
        .where(when <= sql.col("moment"))
        .groupBy("moment", "group", "topic", "partition")
        .agg(sql.max_by(sql.struct("tombstone", "offset"), "log_offset").alias("newest"))
        .where("not newest.tombstone")
        .select("moment", "group", "topic", "partition", "newest.offset")
        .collect()
    )
    partitions = sorted({TopicPartition(row["topic"], row["partition"]) for row in newest})
    logs = cluster.log_ranges(partitions) if partitions else {}
    then = {moment: cluster.offsets_for_time(partitions, moment + 1) for moment in times} if partitions else {}
    sums: dict[str, dict[int, float]] = {group: defaultdict(float) for group in groups}
    for row in newest:
        tp = TopicPartition(row["topic"], row["partition"])
        behind = _behind(row["offset"], logs.get(tp), then[row["moment"]].get(tp))
        if behind is not None:
            sums[row["group"]][row["moment"]] += behind
    return {group: sorted(points.items()) for group, points in sums.items()}


def _behind(offset: int, log: LogRange | OffsetMgrError | None, end_then: int | OffsetMgrError | None) -> int | None:
    """Returns the number of records between an offset and the log's end at an earlier time, without the records that
    the log no longer has. Returns None if the number is unknown.

    ``end_then`` is the log's end at the earlier time. If ``end_then`` is None, the log has no record after that time,
    so the log's present end counts.
    """
    if not isinstance(log, LogRange) or isinstance(end_then, OffsetMgrError) or offset > log.end:
        return None
    return max(0, (log.end if end_then is None else end_then) - max(offset, log.start))
