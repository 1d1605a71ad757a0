"""When committed offsets expire, if nothing happens until then (KIP-211), and how that is known."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from offsetmgr.spark.audit.commits import committed


def expiry(newest: DataFrame, groups: DataFrame, *, retention_ms: int | None, now_ms: int) -> DataFrame:
    """One row a committed offset, from `commits.latest` and `commits.groups`.

    ``expires_at`` is null where nothing expires, or it cannot be known; ``how`` says which: ``members`` (a group with
    members keeps what it subscribes to), ``own`` (the client set the time), ``left`` (one retention after the last
    member left, or after the commit if that is later), ``commit`` (never had members: one retention after the commit),
    ``new-protocol`` (the log does not tell the members of a KIP-848 group), ``retention-unknown``.
    ``overdue`` says that the time has passed: the broker deletes it at its next look.
    ``retention_ms`` is the broker's ``offsets.retention.minutes`` in milliseconds, None where it is not known.
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
    since = sql.greatest("commit_timestamp", "group_timestamp")  # leaves out what is null
    expires = sql.when(sql.col("how") == "own", own).when(sql.col("how").isin("left", "commit"), since + retention)
    return (
        committed(newest)
        .join(groups, "group", "left")
        .withColumn("how", how)
        .withColumn("expires_at", expires)
        .withColumn("overdue", sql.coalesce(sql.col("expires_at") <= now_ms, sql.lit(False)))
        .select("group", "topic", "partition", "offset", "commit_timestamp", "expires_at", "how", "overdue")
    )
