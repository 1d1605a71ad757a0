"""`store_table` reads a store as a DataFrame; `copy` commits a DataFrame to a store and returns each row's outcome.

These functions do the same as ``format("offsetmgr")``, for programs with a `ConnectionConfig`. They send the
`ConnectionConfig` to the executors directly, so that it does not appear in a query plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark import RDD
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.selection import ALL_TOPICS, GroupSelection, TopicSelection
from offsetmgr.spark.store_rows import (
    OUTCOMES,
    RECREATED,
    SCHEMA,
    RowOrigin,
    RowOutcome,
    cross_cluster_check,
    read_rows,
    rejected_rows,
    select_groups,
    write_rows,
)
from offsetmgr.spark.versions import require_supported

TASKS: Final = 8


def store_table(
    spark: SparkSession,
    uri: str,
    *,
    groups: GroupSelection | str | Iterable[str] | None = None,
    topics: TopicSelection = ALL_TOPICS,
    errors: bool = False,
    config: ConnectionConfig | None = None,
    tasks: int = TASKS,
) -> DataFrame:
    """Returns a table (`store_rows.SCHEMA`) of the committed offsets of groups. ``groups`` are names and globs; None
    selects all groups.

    For ``errors`` see `store_rows.read_rows`. Raises `GroupNotFound`, `UnsupportedOperation`, and the errors of listing
    groups. A read error fails the query.
    """
    require_supported("store_table")
    names = select_groups(uri, ConnectionConfig() if config is None else config, GroupSelection.of(groups))
    return table_of(spark, uri, names, topics=topics, errors=errors, config=config, tasks=tasks)


def table_of(
    spark: SparkSession,
    uri: str,
    names: Sequence[str],
    *,
    topics: TopicSelection = ALL_TOPICS,
    errors: bool = False,
    config: ConnectionConfig | None = None,
    tasks: int = TASKS,
) -> DataFrame:
    """Does the same as `store_table` for exactly the groups in ``names``, without a check that they exist."""
    require_supported("table_of")
    settings = ConnectionConfig() if config is None else config

    def read(part: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        return read_rows(part, uri, settings, topics, errors=errors)

    shares = spark.sparkContext.parallelize(names, min(tasks, len(names)) or 1)
    return spark.createDataFrame(shares.mapPartitions(read), SCHEMA)


def copy(
    rows: DataFrame,
    uri: str,
    *,
    config: ConnectionConfig | None = None,
    tasks: int = TASKS,
    origin: RowOrigin | None = None,
) -> DataFrame:
    """Commits the rows of a table to the store at ``uri``; returns the outcome of each row (`store_rows.OUTCOMES`).

    ``rows`` has the columns of `store_rows.SCHEMA`; metadata, leader epoch and time may be missing. A commit never
    lowers an offset, and each commit is conditional on the present offset. All rows of a group are in one task.

    ``origin`` is the store that the rows come from. If this store belongs to another Kafka cluster than the target,
    `copy` raises `OtherCluster` before it reads anything, unless ``origin`` contains a translation. A row gets the
    status ``refuse-recreated`` if its topic was recreated after the offset was committed. Without ``origin``, the
    caller must ensure that the offsets belong to the target's logs. Leader epochs are written only if the origin
    belongs to the same cluster as the target.

    Spark runs the copy again each time the returned table is read. In each later run, the status of the rows that are
    already committed is ``unchanged``. To keep the first outcomes, call ``persist()`` on the table or write it to a
    file. Spark repeats a task whose worker died.
    """
    require_supported("copy")
    return rows.sparkSession.createDataFrame(written(rows, uri, config=config, tasks=tasks, origin=origin), OUTCOMES)


def dry_run(rows: DataFrame, target: DataFrame, *, metadata: bool, recreated: DataFrame) -> DataFrame:
    """Predicts the outcome of `copy` for each of ``rows``.

    ``target`` is a table of the target's offsets of the same groups. ``recreated`` is the result of the function
    `recreated`. In the returned table ``outcome`` is ``write``, ``unchanged``, ``refuse-rewind`` (the offset is below
    the present offset) or ``refuse-recreated`` (the topic was recreated; ``error`` is the reason). ``before`` is the
    present offset.

    ``metadata`` is True if the target stores metadata. In this case `copy` also writes a row that differs only in its
    metadata.
    """
    require_supported("dry_run")
    present = target.select(
        "group", "topic", "partition", sql.col("offset").alias("before"), sql.col("metadata").alias("m")
    )
    same = sql.col("offset") == sql.col("before")
    outcome = (
        sql.when(sql.col("error").isNotNull(), RECREATED)
        .when(sql.col("offset") < sql.col("before"), "refuse-rewind")
        .when(same & sql.col("metadata").eqNullSafe(sql.col("m")) if metadata else same, "unchanged")
        .otherwise("write")
    )
    partition = ["group", "topic", "partition"]
    joined = rows.drop("error").join(recreated, partition, "left").join(present, partition, "left")
    return joined.withColumn("outcome", outcome).select(*partition, "offset", "before", "outcome", "error")


def recreated(rows: DataFrame, uri: str, origin: RowOrigin, *, config: ConnectionConfig | None = None) -> DataFrame:
    """Returns the group, topic and partition of each row that `copy` would reject because its topic was recreated, with
    the reason as ``error``."""
    settings = ConnectionConfig() if config is None else config

    def rejected(part: Iterable[Row]) -> Iterator[tuple[str, str, int, str]]:
        return rejected_rows(part, uri, settings, origin)

    table = "group string, topic string, partition int, error string"
    return rows.sparkSession.createDataFrame(rows.rdd.mapPartitions(rejected), table)


def written(
    rows: DataFrame,
    uri: str,
    *,
    config: ConnectionConfig | None = None,
    tasks: int = TASKS,
    origin: RowOrigin | None = None,
) -> RDD[RowOutcome]:
    """Does what `copy` does, but returns the outcomes as an RDD."""
    settings = ConnectionConfig() if config is None else config
    with cross_cluster_check(origin, uri, settings):
        pass  # raises for another cluster before an executor reads anything

    def write(part: Iterable[Row]) -> Iterator[RowOutcome]:
        return write_rows(part, uri, settings, origin)

    return rows.repartition(tasks, "group").sortWithinPartitions("group").rdd.mapPartitions(write)
