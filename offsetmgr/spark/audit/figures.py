"""From an audit's tables to what its page shows: a few hundred numbers, collected on the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from offsetmgr.cluster.base import Cluster
from offsetmgr.model import TopicPartition
from offsetmgr.spark.audit import run
from offsetmgr.spark.audit.page import PageData
from offsetmgr.spark.audit.plots import COLOURS, Point
from offsetmgr.spark.logrows import OFFSET

SHOWN: Final = 20
"""Rows of each table of the page."""
_MOMENTS: Final = 24


def page_data(tables: Mapping[str, DataFrame], cluster: Cluster, title: str, now_ms: int) -> PageData:
    """What the page shows of an audit's tables (`run.TABLES`); asks the cluster where logs ended at earlier times."""
    lags, silent, expiry = tables[run.LAG], tables[run.SILENT], tables[run.EXPIRY]
    by_group = (
        lags.groupBy("group")
        .agg(sql.count("*").alias("n"), sql.sum("lag").alias("lag"), sql.count_if(sql.col("lag").isNull()).alias("bad"))
        .orderBy(sql.desc_nulls_last("lag"), "group")
        .limit(SHOWN)
        .collect()
    )
    top = [(row["group"], float(row["lag"])) for row in by_group if row["lag"]][:COLOURS]
    total = lags.agg(sql.sum("lag"), sql.count_distinct("group"), sql.count("*")).first()
    assert total is not None  # an aggregate always has a row
    expiring = (
        expiry.where("expires_at is not null")
        .groupBy("group")
        .agg(sql.count("*"), sql.min("expires_at").alias("first"), sql.min_by("how", "expires_at"))
        .orderBy("first", "group")
        .limit(SHOWN)
    )
    quiet = silent.select("group", "last_commit", "silent_days").orderBy("last_commit", "group").limit(SHOWN)
    commits = tables[run.RECORDS].where(f"kind = '{OFFSET}' and error is null")
    return PageData(
        title=title,
        made_at=now_ms,
        facts=[
            ("groups", total[1]),
            ("committed offsets", total[2]),
            ("lag", total[0]),
            ("offsets of unknown lag", lags.where("lag is null").count()),
            ("records in the log", tables[run.RECORDS].count()),
            ("tombstones", commits.where("tombstone").count()),
            ("silent groups", silent.count()),
            ("overdue offsets", expiry.where("overdue").count()),
            ("unreadable records", tables[run.UNREADABLE].count()),
        ],
        lag_over_time=_lag_over_time(commits, cluster, [group for group, _ in top]),
        commits_over_time={"all groups": _commits_over_time(commits)},
        top=top,
        lag=[(row["group"], row["n"], row["lag"], row["bad"]) for row in by_group],
        silent=[tuple(row) for row in quiet.collect()],
        expiring=[tuple(row) for row in expiring.collect()],
    )


def _moments(commits: DataFrame) -> list[int]:
    """Times from the first to the last commit, the last one included; none without a commit."""
    ends = commits.agg(sql.min("commit_timestamp"), sql.max("commit_timestamp")).first()
    if ends is None or ends[0] is None:
        return []
    first, last = ends
    return sorted({last - (last - first) * n // (_MOMENTS - 1) for n in range(_MOMENTS)})


def _commits_over_time(commits: DataFrame) -> list[Point]:
    """How many commits lie between one moment and the next."""
    moments = _moments(commits)
    if len(moments) < 2:
        return [(moments[0], float(commits.where("not tombstone").count()))] if moments else []
    width = (moments[-1] - moments[0]) / (len(moments) - 1)
    slot = sql.floor((sql.col("commit_timestamp") - moments[0]) / width)
    counted = commits.where("not tombstone").groupBy(sql.least(slot, sql.lit(len(moments) - 2)).alias("slot")).count()
    found = {row["slot"]: float(row["count"]) for row in counted.collect()}
    return [(moments[n + 1], found.get(n, 0.0)) for n in range(len(moments) - 1)]


def _lag_over_time(commits: DataFrame, cluster: Cluster, groups: list[str]) -> dict[str, list[Point]]:
    """The lag of each group at each moment, of partitions that had a commit by then and whose log is known."""
    of_groups = commits.where(sql.col("group").isin(groups))
    moments = _moments(of_groups) if groups else []
    if not moments:
        return {}
    at = of_groups.sparkSession.createDataFrame([(moment,) for moment in moments], "moment bigint")
    when = sql.coalesce("commit_timestamp", "log_timestamp")  # a tombstone has the broker's time alone
    newest = (
        of_groups.crossJoin(sql.broadcast(at))
        .where(when <= sql.col("moment"))
        .groupBy("moment", "group", "topic", "partition")
        .agg(sql.max_by("offset", "log_offset").alias("offset"))
        .where("offset is not null")
        .collect()
    )
    partitions = sorted({TopicPartition(row["topic"], row["partition"]) for row in newest})
    ends = cluster.log_ranges(partitions)
    then = {moment: cluster.offsets_for_time(partitions, moment + 1) for moment in moments}
    sums: dict[str, dict[int, float]] = {group: defaultdict(float) for group in groups}
    for row in newest:
        tp = TopicPartition(row["topic"], row["partition"])
        end = then[row["moment"]][tp]
        if end is None:  # no record is later: the log ends where it ends now
            end = getattr(ends[tp], "end", None)
        if isinstance(end, int):
            sums[row["group"]][row["moment"]] += max(0, end - row["offset"])
    return {group: sorted(points.items()) for group, points in sums.items()}
