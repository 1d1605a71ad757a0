"""Runs an audit: reads the offsets topic once, computes every table from it, and stores all tables as Parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from offsetmgr.core.errors import UsageError
from offsetmgr.core.offset_store import Capabilities
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.spark.audit import commits
from offsetmgr.spark.audit.compare import LOG, differences
from offsetmgr.spark.audit.expiry import expiry
from offsetmgr.spark.audit.lag import lag, log_ends
from offsetmgr.spark.store_rows import COLUMNS

RECORDS: Final = "records"
LATEST: Final = "latest"
HISTORY: Final = "history"
SILENT: Final = "silent"
TOMBSTONES: Final = "tombstones"
EXPIRY: Final = "expiry"
LAG: Final = "lag"
UNREADABLE: Final = "unreadable"
TABLES: Final = {
    RECORDS: "the log's records, decoded",
    LATEST: "newest record of each group and partition",
    HISTORY: "statistics of the commits of each partition",
    SILENT: "groups without commits",
    TOMBSTONES: "deletions, by group",
    EXPIRY: "when offsets expire",
    LAG: "how far behind each partition is",
    UNREADABLE: "records that could not be read",
}
"""The tables of an audit, in order, with their descriptions."""
DIFFERENCES: Final = "differences"
COMPARED: Final = {**TABLES, DIFFERENCES: "where the log and the other store differ"}
"""`TABLES` and the table that `add_comparison` adds."""


def run_audit(
    spark: SparkSession,
    log: DataFrame,
    cluster: KafkaCluster,
    directory: Path,
    now_ms: int,
    *,
    silent_days: float = 7.0,
    gap_ms: int = commits.GAP_MS,
) -> dict[str, DataFrame]:
    """Reads ``log`` (``format("offsetmgr-log")``) once, writes the tables of `TABLES` to ``directory`` as Parquet
    files, and returns the stored tables. Ages are counted from ``now_ms``, in milliseconds since 1970.

    The function reads the end offsets of the groups' topics after it has read ``log``, because a lag could otherwise be
    negative. Raises `UsageError` if ``directory`` is not empty.
    """
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"directory {directory}", "is not empty", "give a directory that does not exist yet")
    records = _stored(spark, log, directory / RECORDS)
    newest = _stored(spark, commits.latest(records), directory / LATEST)
    committed = commits.committed(newest)
    derived = {
        HISTORY: commits.history(records, gap_ms=gap_ms),
        SILENT: commits.silent_groups(newest, days=silent_days, now_ms=now_ms),
        TOMBSTONES: commits.tombstones(records),
        EXPIRY: expiry(newest, commits.groups(records), retention_ms=cluster.offsets_retention_ms(), now_ms=now_ms),
        LAG: lag(committed, log_ends(spark, cluster, committed)),
        UNREADABLE: records.where(sql.col("error").isNotNull()),
    }
    stored = {name: _stored(spark, table.coalesce(1), directory / name) for name, table in derived.items()}
    return {RECORDS: records, LATEST: newest, **stored}


def add_comparison(
    tables: Mapping[str, DataFrame], store: DataFrame, capabilities: Capabilities, directory: Path
) -> dict[str, DataFrame]:
    """Compares the log (left) with another store's table (right); returns the audit's tables and `DIFFERENCES`.

    Create ``store`` with `store_tables.store_table` after the audit, so that this table contains every group of the
    log.
    """
    log_side = tables[LATEST].where("not tombstone").select(*COLUMNS)
    found = differences(log_side, store, (LOG, capabilities))
    # `repartition` writes one file, as `coalesce` does, but lets all executors take part in the comparison.
    return {**tables, DIFFERENCES: _stored(store.sparkSession, found.repartition(1), directory / DIFFERENCES)}


def _stored(spark: SparkSession, table: DataFrame, path: Path) -> DataFrame:
    table.write.parquet(str(path))
    return spark.read.schema(table.schema).parquet(str(path))
