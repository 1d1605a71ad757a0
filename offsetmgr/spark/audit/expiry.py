"""Forecasts when committed offsets expire (KIP-211). The forecast for a group assumes that the group does not commit or
change its members before its offsets expire."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from offsetmgr.spark.audit.commits import committed


def expiry(newest: DataFrame, groups: DataFrame, *, retention_ms: int | None, now_ms: int) -> DataFrame:
    """Returns one row for each committed offset. ``newest`` and ``groups`` are the results of `commits.latest` and
    `commits.groups`.

    ``expires_at`` is null if the offset does not expire, or if its expiry time is unknown. ``how`` is the basis of the
    forecast:

    - ``members``: no expiry, because a group with members keeps the offsets of the topics that it subscribes to.
    - ``own``: the client set the expiry time.
    - ``left``: one retention time after the last member left, or after the commit if the commit is later.
    - ``commit``: the group never had members; one retention time after the commit.
    - ``new-protocol``: unknown, because this table does not contain the members of a KIP-848 group.
    - ``retention-unknown``: the broker's retention time is unknown.

    ``overdue`` means that ``expires_at`` has passed, so the broker deletes the offset at its next check.
    ``retention_ms`` is the broker's ``offsets.retention.minutes`` in milliseconds, None if unknown.
    """
    retention = sql.lit(retention_ms).cast("bigint")
    members, own = sql.col("members"), sql.col("expire_timestamp")
    how = (
        sql.when(sql.col("new_protocol"), "new-protocol")
        .when(members > 0, "members")
        .when(own.isNotNull(), "own")
        .when(retention.isNull(), "retention-unknown")
        .when(sql.col("group_timestamp").isNotNull(), "left")
        .otherwise("commit")
    )
    since = sql.greatest("commit_timestamp", "group_timestamp")  # ignores null
    expires = sql.when(sql.col("how") == "own", own).when(sql.col("how").isin("left", "commit"), since + retention)
    return (
        committed(newest)
        .join(groups, "group", "left")
        .withColumn("how", how)
        .withColumn("expires_at", expires)
        .withColumn("overdue", sql.coalesce(sql.col("expires_at") <= now_ms, sql.lit(False)))
        .select("group", "topic", "partition", "offset", "commit_timestamp", "expires_at", "how", "overdue")
    )
