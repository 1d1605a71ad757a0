"""`store_table` reads a store as a DataFrame; `copied` commits a DataFrame to a store.

These functions do the same as ``format("offsetmgr")``, for programs with a `ConnectionConfig`. They send the
`ConnectionConfig` to the executors directly, so that it does not appear in a query plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.model import TopicPartition, dropped_text, form_of
from offsetmgr.core.selection import ALL_TOPICS, TopicSelection
from offsetmgr.groups.scan import TopicMatches
from offsetmgr.spark.audit.commits import KEY
from offsetmgr.spark.store_rows import (
    OUTCOMES,
    RECREATED,
    SCHEMA,
    RowOrigin,
    RowOutcome,
    read_rows,
    rejected_rows,
    write_rows,
)

TASKS: Final = 8


def store_table(
    spark: SparkSession,
    uri: str,
    groups: Sequence[str],
    config: ConnectionConfig,
    topics: TopicSelection = ALL_TOPICS,
    *,
    errors: bool = False,
) -> DataFrame:
    """Returns a table (`store_rows.SCHEMA`) of the committed offsets of these groups, for example those of
    `store_rows.select_groups`. For ``errors`` see `store_rows.read_rows`. A read error fails the query."""
    read = partial(read_rows, uri=uri, config=config, topics=topics, errors=errors)
    shares = spark.sparkContext.parallelize(groups, min(TASKS, len(groups)) or 1)
    return spark.createDataFrame(shares.mapPartitions(read), SCHEMA)


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """The outcome of a copy or of its dry run. ``counts`` has the number of rows of each status.

    The statuses of a dry run are ``write``, ``unchanged``, ``refuse-rewind`` (the target's offset is larger) and
    ``refuse-recreated`` (the topic was recreated after the commit). Those of a copy are ``written``, ``unchanged``,
    ``failed`` and ``refuse-recreated``. ``not_atomic`` counts the writes before which another client could have
    committed.
    """

    outcomes: DataFrame
    counts: Mapping[str, int]
    not_atomic: int = 0
    shown: str = "true"

    @classmethod
    def of(cls, outcomes: DataFrame, *, dry: bool = False) -> Self:
        """Computes the outcomes once."""
        found = outcomes.persist()
        counts = {row["status"]: row["count"] for row in found.groupBy("status").count().collect()}
        if dry:
            return cls(found, counts)
        return cls(found, counts, found.where("not atomic").count(), f"status in ('failed', '{RECREATED}')")

    @property
    def recreated(self) -> int:
        """The number of rows that are refused because their topic was recreated."""
        return self.counts.get(RECREATED, 0)

    def rows(self) -> Iterator[RowOutcome]:
        """Yields the outcomes of a dry run, or the rows that were not copied, in sorted order."""
        return map(RowOutcome._make, sorted_rows(self.outcomes.where(self.shown)))


def copied(rows: DataFrame, uri: str, config: ConnectionConfig, origin: RowOrigin) -> CopyOutcome:
    """Commits the rows of a table to the store at ``uri``.

    ``rows`` has the columns of `store_rows.SCHEMA`; metadata, leader epoch and time may be missing. A commit never
    lowers an offset, and each commit is conditional on the present offset. All rows of a group are in one task. Spark
    repeats a task whose worker died. ``origin`` is the store that the rows come from; see `store_rows.write_rows`.
    """
    return CopyOutcome.of(rows.sparkSession.createDataFrame(written(rows, uri, config, origin), OUTCOMES))


def written(
    rows: DataFrame, uri: str, config: ConnectionConfig, origin: RowOrigin | None = None, *, tasks: int = TASKS
) -> RDD[RowOutcome]:
    """Does what `copied` does, but returns the outcomes as an RDD. Spark runs the copy again each time the RDD is read;
    in each later run, the status of the rows that are already committed is ``unchanged``."""
    write = partial(write_rows, uri=uri, config=config, origin=origin)
    return rows.repartition(tasks, "group").sortWithinPartitions("group").rdd.mapPartitions(write)


def dry_run(
    rows: DataFrame, target: DataFrame, uri: str, config: ConnectionConfig, origin: RowOrigin, *, metadata: bool
) -> CopyOutcome:
    """Predicts the outcome of `copied`. ``target`` is a table of the present offsets of the same groups in the store at
    ``uri``. ``metadata`` is True if the target stores metadata. In this case `copied` also writes a row that differs
    only in its metadata."""
    rejected = partial(rejected_rows, uri=uri, config=config, origin=origin)
    table = "group string, topic string, partition int, error string"
    recreated = rows.sparkSession.createDataFrame(rows.rdd.mapPartitions(rejected), table)
    present = target.select(*KEY, sql.col("offset").alias("before"), sql.col("metadata").alias("m"))
    same = sql.col("offset") == sql.col("before")
    status = (
        sql.when(sql.col("error").isNotNull(), RECREATED)
        .when(sql.col("offset") < sql.col("before"), "refuse-rewind")
        .when(same & sql.col("metadata").eqNullSafe(sql.col("m")) if metadata else same, "unchanged")
        .otherwise("write")
    )
    on = [*KEY]
    joined = rows.drop("error").join(recreated, on, "left").join(present, on, "left")
    outcomes = joined.withColumns({"status": status, "atomic": sql.lit(True)})
    return CopyOutcome.of(outcomes.select(*RowOutcome._fields), dry=True)


def sorted_rows(table: DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of a table in sorted order. Spark returns one partition of the table at a time, so that memory
    does not grow with the number of rows."""
    return map(tuple, table.orderBy(*KEY).toLocalIterator())


def require_topics(topics: TopicSelection, found: CopyOutcome, source: str) -> None:
    """Raises `UnknownTopicOrPartition` if a pattern of ``topics`` matches no partition of the copied rows."""
    matched = TopicMatches(topics)
    if not topics.everything:
        for row in found.outcomes.select("topic", "partition").distinct().toLocalIterator():
            matched.matches(TopicPartition(*row))
    matched.require_all(source)


def metadata_text(table: DataFrame) -> str:
    """Returns a text for messages about the metadata of a table's rows; empty if no row has metadata."""
    forms = Counter(form_of(row[0]) for row in table.where("metadata != ''").select("metadata").toLocalIterator())
    return dropped_text(forms) if forms else ""
