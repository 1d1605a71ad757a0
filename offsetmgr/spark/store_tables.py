"""`store_table` and `copy`: a store as a table, and a table into a store, by the executors; every outcome is a row.

Like ``format("offsetmgr")``, for programs that have a `ConnectionConfig`: it goes to the executors directly, and into
no query plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark import RDD
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.groups.selection import ALL_TOPICS, TopicSelection
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
    groups: Sequence[str] = (),
    topics: TopicSelection = ALL_TOPICS,
    errors: bool = False,
    config: ConnectionConfig | None = None,
    tasks: int = TASKS,
) -> DataFrame:
    """The committed offsets of these groups (names and globs; empty: all) as `store_rows.SCHEMA`.

    ``errors``: see `store_rows.read_rows`. Raises `GroupNotFound`, `UnsupportedOperation`, and what listing raises; a
    read error fails the query.
    """
    require_supported("store_table")
    names = select_groups(uri, ConnectionConfig() if config is None else config, groups)
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
    """Like `store_table`, for exactly these groups, whether the store has them or not."""
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
    """Commits the rows of ``rows`` (as `store_rows.SCHEMA`, of which metadata, epoch and time may be missing) to the
    store at ``uri``, and returns `store_rows.OUTCOMES`, one per row.

    ``origin`` names the store that the rows come from. If that belongs to another Kafka cluster than the target,
    `OtherCluster` is raised before anything is read, unless ``origin`` contains a translation; rows of topics that were
    recreated after their commit have the status ``refuse-recreated``. Without it the caller vouches that the offsets
    belong to the target's logs. Leader epochs are written only if the origin belongs to the same cluster.

    Forward only, each write conditional on the present value. All rows of a group are one task's. The copy happens
    while the outcomes are read, and again whenever they are read again (rows that are already there are ``unchanged``
    then): keep them with ``persist()`` or write them to a file. A task whose worker died is repeated.
    """
    require_supported("copy")
    return rows.sparkSession.createDataFrame(written(rows, uri, config=config, tasks=tasks, origin=origin), OUTCOMES)


def dry_run(rows: DataFrame, target: DataFrame, *, metadata: bool, recreated: DataFrame) -> DataFrame:
    """Predicts what `copy` would do with ``rows``; ``target`` is the target's content for their groups. ``outcome`` is
    ``write``, ``unchanged``, ``refuse-rewind`` (it would rewind the group) or ``refuse-recreated`` (it is among
    `recreated`, and ``error`` is the reason), ``before`` the present offset.

    ``metadata``: whether the target supports it, so that different metadata is a reason to write.
    """
    require_supported("foreseen")
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
    """Those of ``rows`` (group, topic, partition) that `copy` would reject, each with its ``error``."""
    settings = ConnectionConfig() if config is None else config

    def refused(part: Iterable[Row]) -> Iterator[tuple[str, str, int, str]]:
        return rejected_rows(part, uri, settings, origin)

    table = "group string, topic string, partition int, error string"
    return rows.sparkSession.createDataFrame(rows.rdd.mapPartitions(refused), table)


def written(
    rows: DataFrame,
    uri: str,
    *,
    config: ConnectionConfig | None = None,
    tasks: int = TASKS,
    origin: RowOrigin | None = None,
) -> RDD[RowOutcome]:
    """Does what `copy` does; returns its outcomes before they become a table."""
    settings = ConnectionConfig() if config is None else config
    with cross_cluster_check(origin, uri, settings):
        pass  # another cluster is rejected here, before an executor reads anything

    def write(part: Iterable[Row]) -> Iterator[RowOutcome]:
        return write_rows(part, uri, settings, origin)

    return rows.repartition(tasks, "group").sortWithinPartitions("group").rdd.mapPartitions(write)
