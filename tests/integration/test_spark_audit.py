"""An audit's tables for handwritten logs, with every expected row written out. Real Spark, no server."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from offsetmgr.core.errors import UnknownTopicOrPartition
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.core.offset_store import Capabilities
from offsetmgr.spark.audit import commits
from offsetmgr.spark.audit.compare import differences
from offsetmgr.spark.audit.expiry import expiry
from offsetmgr.spark.audit.history_series import commit_rate, moments
from offsetmgr.spark.audit.lag import ends_table, lag
from offsetmgr.spark.log_rows import SCHEMA as LOG
from offsetmgr.spark.store_rows import SCHEMA as STORE

pytestmark = pytest.mark.servers  # the connector is downloaded, as servers are

NOW = 1_700_000_000_000
HOUR, DAY = 3_600_000, 86_400_000
FULL = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=True, conditional="version")
BARE = Capabilities(metadata=False, leader_epoch=False, commit_timestamp=False, conditional="version")


class Log:
    """Records in the order in which they are appended, all in one partition of the log."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._rows: list[Row] = []

    def add(self, kind: str, group: str, **values: Any) -> Log:
        names = [column.split()[0] for column in LOG.split(", ")]
        row = dict.fromkeys(names) | {"log_partition": 0, "log_offset": len(self._rows), "log_timestamp": NOW}
        row |= {"kind": kind, "group": group, "tombstone": False, "key_version": {"offset": 1, "group": 2}.get(kind, 3)}
        self._rows.append(Row(**(row | values)))
        return self

    def commit(self, group: str, offset: int, at: int, *, partition: int = 0, **values: Any) -> Log:
        return self.add("offset", group, topic="t", partition=partition, offset=offset, commit_timestamp=at, **values)

    def delete(self, group: str, *, partition: int = 0) -> Log:
        return self.add("offset", group, topic="t", partition=partition, tombstone=True)

    def table(self) -> DataFrame:
        return self._spark.createDataFrame(self._rows, LOG)


def rows_of(table: DataFrame, *columns: str) -> set[tuple[Any, ...]]:
    rows = [tuple(row) for row in table.select(*columns).collect()]
    assert len(set(rows)) == len(rows)
    return set(rows)


def test_the_newest_record_of_a_key_counts_even_if_it_is_a_tombstone_or_unreadable(spark: SparkSession) -> None:
    log = Log(spark).commit("g", 5, NOW).commit("g", 3, NOW - DAY)  # appended later, with an older time
    log.commit("gone", 7, NOW).delete("gone").commit("back", 7, NOW).delete("back").commit("back", 8, NOW)
    log.commit("broken", 7, NOW).add("offset", "broken", topic="t", partition=0, error="version 99")

    newest = commits.latest(log.table())

    assert rows_of(newest, "group", "offset", "tombstone", "error") == {
        ("g", 3, False, None),
        ("gone", None, True, None),
        ("back", 8, False, None),
        ("broken", None, False, "version 99"),
    }
    assert rows_of(commits.committed(newest), "group") == {("g",), ("back",)}


def test_rates_rewinds_gaps_and_silence(spark: SparkSession) -> None:
    log = Log(spark).commit("g", 100, NOW).commit("g", 700, NOW + HOUR // 2).commit("g", 400, NOW + 3 * HOUR)
    log.commit("g", 3_700, NOW + 4 * HOUR).delete("g", partition=1)

    history = commits.history(log.table())

    counters = ("commits", "tombstones", "commits_per_hour", "consumed_per_s", "rewinds", "largest_rewind", "gaps")
    assert rows_of(history, "partition", *counters, "longest_silence_ms") == {
        (0, 4, 0, 0.75, 0.25, 1, 300, 1, 5 * HOUR // 2),
        (1, 0, 1, None, None, 0, None, 0, None),
    }


def test_silent_groups_are_reported_by_their_newest_commit(spark: SparkSession) -> None:
    log = Log(spark).commit("busy", 1, NOW - 9 * DAY).commit("busy", 2, NOW - DAY, partition=1)
    log.commit("silent", 1, NOW - 9 * DAY).commit("silent", 2, NOW - 8 * DAY, partition=1)
    log.commit("edge", 1, NOW - 7 * DAY).commit("gone", 1, NOW - 9 * DAY).delete("gone")

    silent = commits.silent_groups(commits.latest(log.table()), days=7, now_ms=NOW)

    assert rows_of(silent, "group", "last_commit", "partitions", "silent_days") == {("silent", NOW - 8 * DAY, 2, 8.0)}


def test_expiry_times_of_offsets_and_their_reasons(spark: SparkSession) -> None:
    log = Log(spark)
    for group in ("simple", "left", "left-before", "living", "own", "new", "old"):
        log.commit(group, 1, NOW - DAY, expire_timestamp=NOW + 5 if group == "own" else None)
    log.commit("old", 1, NOW - 8 * DAY, partition=1)
    log.add("group", "left", members=0, group_timestamp=NOW - HOUR)
    log.add("group", "left-before", members=0, group_timestamp=NOW - 3 * DAY)
    log.add("group", "living", members=0, group_timestamp=NOW - HOUR).add("group", "living", members=2)
    log.add("state", "new")
    newest, groups = commits.latest(log.table()), commits.groups(log.table())

    forecast = expiry(newest, groups, retention_ms=7 * DAY, now_ms=NOW)
    unknown = expiry(newest, groups, retention_ms=None, now_ms=NOW).where("group in ('simple', 'living', 'own')")

    assert rows_of(forecast, "group", "partition", "expires_at", "how", "overdue") == {
        ("simple", 0, NOW + 6 * DAY, "commit", False),
        ("left", 0, NOW + 7 * DAY - HOUR, "left", False),
        ("left-before", 0, NOW + 6 * DAY, "left", False),
        ("living", 0, None, "members", False),
        ("own", 0, NOW + 5, "own", False),
        ("new", 0, None, "new-protocol", False),
        ("old", 0, NOW + 6 * DAY, "commit", False),
        ("old", 1, NOW - DAY, "commit", True),
    }
    assert rows_of(unknown, "group", "expires_at", "how") == {
        ("simple", None, "retention-unknown"),
        ("living", None, "members"),
        ("own", NOW + 5, "own"),
    }


def test_lag_counts_from_the_logs_start_and_is_unknown_beyond_its_end(spark: SparkSession) -> None:
    log = Log(spark)
    for partition, offset in enumerate((90, 5, 101, 7, 9)):
        log.commit("g", offset, NOW, partition=partition)
    ends = {TopicPartition("t", p): LogRange(10, 100) for p in range(3)}
    missing = UnknownTopicOrPartition("partition t-3", "does not exist")

    lags = lag(
        commits.committed(commits.latest(log.table())), ends_table(spark, {**ends, TopicPartition("t", 3): missing})
    )

    assert rows_of(lags, "partition", "offset", "log_end_offset", "lag", "note") == {
        (0, 90, 100, 10, ""),
        (1, 5, 100, 90, "below the log's start"),
        (2, 101, 100, None, "beyond the log's end"),
        (3, 7, None, None, "partition t-3: does not exist"),
        (4, 9, None, None, "log unknown"),
    }


def test_differences_over_the_union_of_both_stores(spark: SparkSession) -> None:
    left: list[tuple[object, ...]] = [("g", "t", p, 10, "m", 1, None, None) for p in range(4)]
    right: list[tuple[object, ...]] = [("g", "t", 0, 10, "m", 1, NOW, None), ("g", "t", 1, 11, "m", 1, None, None)]
    right += [("g", "t", 2, 10, "other", 1, None, None), ("h", "t", 0, 10, "", None, None, None)]
    left += [("broken", None, None, None, None, None, None, "unreachable")]
    tables = (spark.createDataFrame(left, STORE), spark.createDataFrame(right, STORE))

    full = differences(*tables, (FULL, FULL))
    bare = differences(*tables, (FULL, BARE))

    same = {
        ("g", 1, "offset", 10, 11, None),
        ("g", 3, "only-left", 10, None, None),
        ("h", 0, "only-right", None, 10, None),
        ("broken", None, "unreadable", None, None, "unreachable"),
    }
    columns = ("group", "partition", "kind", "left_offset", "right_offset", "error")
    assert rows_of(full, *columns) == same | {("g", 2, "metadata", 10, 10, None)}
    assert rows_of(bare, *columns) == same


def test_commits_are_counted_per_minute_over_at_most_the_last_week(spark: SparkSession) -> None:
    log = Log(spark).commit("old", 1, NOW - 30 * DAY)  # before the plot begins
    log.commit("a", 1, NOW - 7 * DAY).commit("a", 2, NOW - 7 * DAY + 1).commit("a", 3, NOW, partition=1).delete("b")
    commits_of_all = log.table().where("kind = 'offset'")

    times = moments(commits_of_all, NOW)
    (points,) = commit_rate(commits_of_all, times).values()

    assert times == [NOW - 7 * DAY + n * 6 * HOUR for n in range(29)]
    assert points == [(times[1], 2 / 360), *((moment, 0) for moment in times[2:28]), (NOW, 1 / 360)]


def test_a_log_without_commits_has_no_moments_and_one_commit_no_rate(spark: SparkSession) -> None:
    none = Log(spark).delete("g").table()
    one = Log(spark).commit("g", 1, NOW).table()

    assert moments(none, NOW) == []
    assert (moments(one, NOW), commit_rate(one, [NOW])) == ([NOW], {})
