"""Compares the tables (`offsetmgr.spark.store_rows.SCHEMA`) of two stores, by the rules of `offsetmgr.groups.diff`."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from offsetmgr.core.offset_store import Capabilities

LOG: Final = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=True, conditional="none")
"""The capabilities of an offsets topic's records."""


def differences(left: DataFrame, right: DataFrame, capabilities: tuple[Capabilities, Capabilities]) -> DataFrame:
    """Returns the partitions that differ between the tables ``left`` and ``right``, with the values of both tables.

    ``kind`` is ``only-left``, ``only-right``, ``offset``, ``metadata``, ``leader-epoch`` or ``unreadable``; an
    unreadable row has an ``error``. If a whole group is unreadable, its row has no topic. Metadata and leader epochs
    are compared only if both stores support them.
    """
    left_side, right_side = _side(left, "left"), _side(right, "right")
    on = (
        (left_side["left_group"] == right_side["right_group"])
        & left_side["left_topic"].eqNullSafe(right_side["right_topic"])
        & left_side["left_partition"].eqNullSafe(right_side["right_partition"])
    )
    joined = left_side.join(right_side, on, "full")
    error = sql.coalesce("left_error", "right_error")
    kind = (
        sql.when(error.isNotNull(), "unreadable")
        .when(sql.col("right_group").isNull(), "only-left")
        .when(sql.col("left_group").isNull(), "only-right")
        .when(sql.col("left_offset") != sql.col("right_offset"), "offset")
    )
    if all(one.metadata for one in capabilities):
        kind = kind.when(_differ("metadata"), "metadata")
    if all(one.leader_epoch for one in capabilities):
        kind = kind.when(_differ("leader_epoch"), "leader-epoch")
    key = [sql.coalesce(f"left_{name}", f"right_{name}").alias(name) for name in ("group", "topic", "partition")]
    sides = [sql.col(f"{side}_{name}") for name in ("offset", "metadata") for side in ("left", "right")]
    found = joined.withColumn("kind", kind).where("kind is not null")
    return found.select(*key, "kind", *sides, error.alias("error"))


def _side(table: DataFrame, name: str) -> DataFrame:
    return table.select(*(sql.col(column).alias(f"{name}_{column}") for column in table.columns))


def _differ(name: str) -> Column:
    return ~sql.col(f"left_{name}").eqNullSafe(sql.col(f"right_{name}"))
