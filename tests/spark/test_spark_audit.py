"""An audit of a handwritten log, with every expected row written out. Real Spark, no server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.core.offset_store import Capabilities
from offsetmgr.spark.audit.page_data import page_data
from offsetmgr.spark.audit.run import add_comparison, run_audit

pytestmark = pytest.mark.servers  # the connector is downloaded, as servers are

NOW = 1_700_000_000_000
HOUR, DAY = 3_600_000, 86_400_000
LOG = (
    "log_partition int, log_offset bigint, log_timestamp bigint, format string, kind string, key_version int, "
    "group string, topic string, partition int, tombstone boolean, offset bigint, leader_epoch int, metadata string, "
    "commit_timestamp bigint, expire_timestamp bigint, members int, group_timestamp bigint, error string"
)
STORE = (
    "group string, topic string, partition int, offset bigint, metadata string, leader_epoch int, "
    "commit_timestamp bigint, error string"
)


class Log:
    """Records in the order in which they are appended, all in one partition of the log."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, kind: str, group: str, **values: Any) -> Log:
        names = [column.split()[0] for column in LOG.split(", ")]
        row = dict.fromkeys(names) | {"log_partition": 0, "log_offset": len(self.rows), "log_timestamp": NOW}
        row |= {"kind": kind, "group": group, "tombstone": False, "key_version": {"offset": 1, "group": 2}.get(kind, 3)}
        self.rows.append(Row(**(row | values)))
        return self

    def commit(self, group: str, offset: int, at: int, partition: int = 0, **values: Any) -> Log:
        row = {"topic": "t", "partition": partition, "offset": offset, "commit_timestamp": at}
        return self.add("offset", group, **(row | values))

    def delete(self, group: str, partition: int = 0, **values: Any) -> Log:
        return self.add("offset", group, **({"topic": "t", "partition": partition, "tombstone": True} | values))


class Logs:
    """The logs of topic t (10 to 100, but an error for partition 3 and none from partition 4) and of topic p. In
    partition 0 of topic p, the first record of the last 7 hours has the offset 50."""

    def __init__(self, retention_ms: int | None) -> None:
        self.retention_ms = retention_ms
        self.ranges: dict[TopicPartition, LogRange | OffsetMgrError] = {
            TopicPartition("t", p): LogRange(10, 100) for p in range(3)
        }
        self.ranges[TopicPartition("t", 3)] = UnknownTopicOrPartition("partition t-3", "does not exist")
        self.ranges |= {TopicPartition("p", 0): LogRange(20, 100), TopicPartition("p", 1): LogRange(0, 6)}

    def offsets_retention_ms(self) -> int | None:
        return self.retention_ms

    def log_ranges(self, partitions: list[TopicPartition]) -> dict[TopicPartition, LogRange | OffsetMgrError]:
        return {tp: self.ranges[tp] for tp in partitions if tp in self.ranges}

    def offsets_for_time(self, partitions: list[TopicPartition], at: int) -> dict[TopicPartition, int | None]:
        return {tp: 50 if tp == ("p", 0) and at <= NOW - 7 * HOUR else None for tp in partitions}


def log() -> Log:
    log = Log().commit("newest", 5, NOW).commit("newest", 3, NOW - DAY)  # appended later, with an older time
    log.commit("gone", 7, NOW).delete("gone").commit("back", 7, NOW).delete("back").commit("back", 8, NOW)
    log.commit("broken", 7, NOW).add("offset", "broken", topic="t", partition=0, error="version 99")
    # rates, rewinds, gaps
    log.commit("rates", 100, NOW).commit("rates", 700, NOW + HOUR // 2).commit("rates", 400, NOW + 3 * HOUR)
    log.commit("rates", 3_700, NOW + 4 * HOUR).delete("rates", 1)
    # silent groups
    log.commit("busy", 1, NOW - 9 * DAY).commit("busy", 2, NOW - DAY, 1)
    log.commit("silent", 1, NOW - 9 * DAY).commit("silent", 2, NOW - 8 * DAY, 1)
    log.commit("edge", 1, NOW - 7 * DAY).commit("deleted", 1, NOW - 9 * DAY).delete("deleted")
    # expiry
    for group in ("simple", "left", "left-before", "living", "own", "new", "old"):
        log.commit(group, 1, NOW - DAY, expire_timestamp=NOW + 5 if group == "own" else None)
    log.commit("old", 1, NOW - 8 * DAY, 1)
    log.add("group", "left", members=0, group_timestamp=NOW - HOUR)
    log.add("group", "left-before", members=0, group_timestamp=NOW - 3 * DAY)
    log.add("group", "living", members=0, group_timestamp=NOW - HOUR).add("group", "living", members=2)
    log.add("state", "new")
    # lag
    for partition, offset in enumerate((90, 5, 101, 7, 9)):
        log.commit("lags", offset, NOW, partition)
    # another store
    for partition in range(5):
        log.commit("both", 10, NOW, partition, topic="c", metadata="m", leader_epoch=1)
    # commits of a week
    log.commit("week-old", 1, NOW - 30 * DAY).commit("week-a", 1, NOW - 7 * DAY).commit("week-a", 2, NOW - 7 * DAY + 1)
    log.commit("week-a", 3, NOW, 1).delete("week-b")
    # lag over time
    log.commit("past", 10, NOW - 28 * HOUR, topic="p").commit("past", 5, NOW - 28 * HOUR, 1, topic="p")
    log.commit("past", 40, NOW - 14 * HOUR, topic="p").delete("past", 1, topic="p", log_timestamp=NOW - 10 * HOUR)
    return log


def audited(spark: SparkSession, log: DataFrame, directory: Path, retention_ms: int | None) -> dict[str, DataFrame]:
    cluster: Any = Logs(retention_ms)
    return run_audit(spark, log, cluster, directory, NOW)


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, DataFrame]:
    table = spark.createDataFrame(log().rows, LOG)
    return audited(spark, table, tmp_path_factory.mktemp("audit") / "tables", 7 * DAY)


def rows_of(table: DataFrame, groups: str, *columns: str) -> set[tuple[Any, ...]]:
    """The rows of some groups, whose names are separated by spaces."""
    chosen = table.where(table["group"].isin(groups.split()))
    rows = [tuple(row) for row in chosen.select(*columns).collect()]
    assert len(set(rows)) == len(rows)
    return set(rows)


def test_the_newest_record_of_a_key_counts_even_if_it_is_a_tombstone_or_unreadable(tables: Any) -> None:
    groups = "newest gone back broken"
    assert rows_of(tables["latest"], groups, "group", "offset", "tombstone", "error") == {
        ("newest", 3, False, None),
        ("gone", None, True, None),
        ("back", 8, False, None),
        ("broken", None, False, "version 99"),
    }
    assert rows_of(tables["lag"], groups, "group", "offset") == {("newest", 3), ("back", 8)}
    assert [row.group for row in tables["unreadable"].collect()] == ["broken"]


def test_rates_rewinds_gaps_and_silence(tables: Any) -> None:
    counters = ("commits", "tombstones", "commits_per_hour", "consumed_per_s", "rewinds", "largest_rewind", "gaps")
    assert rows_of(tables["history"], "rates", "partition", *counters, "longest_silence_ms") == {
        (0, 4, 0, 0.75, 0.25, 1, 300, 1, 5 * HOUR // 2),
        (1, 0, 1, None, None, 0, None, 0, None),
    }


def test_silent_groups_are_reported_by_their_newest_commit(tables: Any) -> None:
    groups = "busy silent edge deleted"
    assert rows_of(tables["silent"], groups, "group", "last_commit", "partitions", "silent_days") == {
        ("silent", NOW - 8 * DAY, 2, 8.0)
    }


def test_expiry_times_of_offsets_and_their_reasons(spark: SparkSession, tables: Any, tmp_path: Path) -> None:
    groups = "simple left left-before living own new old"
    few = tables["records"].where("group in ('simple', 'living', 'own')")
    unknown = audited(spark, few, tmp_path / "unknown", None)["expiry"]

    assert rows_of(tables["expiry"], groups, "group", "partition", "expires_at", "how", "overdue") == {
        ("simple", 0, NOW + 6 * DAY, "commit", False),
        ("left", 0, NOW + 7 * DAY - HOUR, "left", False),
        ("left-before", 0, NOW + 6 * DAY, "left", False),
        ("living", 0, None, "members", False),
        ("own", 0, NOW + 5, "own", False),
        ("new", 0, None, "new-protocol", False),
        ("old", 0, NOW + 6 * DAY, "commit", False),
        ("old", 1, NOW - DAY, "commit", True),
    }
    assert rows_of(unknown, "simple living own", "group", "expires_at", "how") == {
        ("simple", None, "retention-unknown"),
        ("living", None, "members"),
        ("own", NOW + 5, "own"),
    }


def test_lag_counts_from_the_logs_start_and_is_unknown_beyond_its_end(tables: Any) -> None:
    assert rows_of(tables["lag"], "lags", "partition", "offset", "log_end_offset", "lag", "note") == {
        (0, 90, 100, 10, ""),
        (1, 5, 100, 90, "below the log's start"),
        (2, 101, 100, None, "beyond the log's end"),
        (3, 7, None, None, "partition t-3: does not exist"),
        (4, 9, None, None, "log unknown"),
    }


def test_differences_over_the_union_of_both_stores(spark: SparkSession, tables: Any, tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [("both", "c", 0, 10, "m", 1, NOW, None), ("both", "c", 1, 11, "m", 1, None, None)]
    rows += [("both", "c", 2, 10, "other", 1, None, None), ("both", "c", 4, 10, "m", 2, None, None)]
    rows += [("there", "c", 0, 10, "", None, None, None), ("lost", None, None, None, None, None, None, "unreachable")]
    store = spark.createDataFrame(rows, STORE)

    def differences(capable: bool) -> set[tuple[Any, ...]]:
        able = Capabilities(metadata=capable, leader_epoch=capable, commit_timestamp=True, conditional="version")
        found = add_comparison(tables, store, able, tmp_path / str(capable))["differences"]
        columns = ("group", "partition", "kind", "left_offset", "right_offset", "error")
        return rows_of(found, "both there lost broken", *columns)

    same = {
        ("both", 1, "offset", 10, 11, None),
        ("both", 3, "only-left", 10, None, None),
        ("there", 0, "only-right", None, 10, None),
        ("lost", None, "unreadable", None, None, "unreachable"),
        ("broken", 0, "unreadable", None, None, "version 99"),
    }
    assert differences(True) == same | {
        ("both", 2, "metadata", 10, 10, None),
        ("both", 4, "leader-epoch", 10, 10, None),
    }
    assert differences(False) == same


def shown(tables: Any, groups: str) -> Any:
    """The content of the page for some groups."""
    cluster: Any = Logs(None)
    found = {name: table.where(f"group like '{groups}'") for name, table in tables.items()}
    return page_data(found, cluster, NOW, title="__consumer_offsets", source="host:9092")


def test_commits_are_counted_per_minute_over_at_most_the_last_week(tables: Any) -> None:
    (points,) = shown(tables, "week-%").commit_rate.values()

    times = [NOW - 7 * DAY + n * 6 * HOUR for n in range(29)]  # the oldest commit is before the plot begins
    assert points == [(times[1], 2 / 360), *((at, 0) for at in times[2:28]), (NOW, 1 / 360)]


def test_a_log_without_commits_has_no_moments_and_one_commit_no_rate(tables: Any) -> None:
    assert (shown(tables, "week-b").commit_rate, shown(tables, "week-b").lag_over_time) == ({}, {})
    lags = shown(tables, "lags")
    assert (lags.commit_rate, lags.lag_over_time) == ({}, {"lags": [(NOW, 100.0)]})


def test_the_lag_of_a_group_is_shown_over_time(tables: Any) -> None:
    page = shown(tables, "past")

    times = [NOW - hours * HOUR for hours in range(28, -1, -1)]
    # Partition 0: from the log's start, then from the second commit, then with the records of the last hours.
    expected = [30 + 1] * 14 + [10 + 1] * 4 + [10] * 3 + [60] * 8
    assert page.lag_over_time == {"past": list(zip(times, expected, strict=True))}
    facts = {"groups": 1, "committed offsets": 1, "lag": 60, "records in the log": 4, "tombstones": 1}
    assert {name: value for name, value in page.facts if value} == facts
