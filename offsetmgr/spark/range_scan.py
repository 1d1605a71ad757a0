"""The scan for a period's ranges: every executor reads some partitions, record by record (`period_ranges`).

Kafka's offsets for a time cannot replace it: they name the first record that is late enough, and one whose time is
ahead hides the records of the period after it. They help only at the start of a run, because no record before the first
one with a time in the first period or later belongs to any period.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import OffsetMgrError, PartialFailure
from offsetmgr.core.model import TopicPartition
from offsetmgr.spark.period_ranges import Bounds, Scanner, ScanResult, ScanRule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLIENT_GROUP: Final = "offsetmgr-periods"
"""The client library's group id; nothing is committed to it."""


class _RangeShare(NamedTuple):
    """One task: some partitions of one topic."""

    topic: str
    bounds: dict[int, Bounds]


def scan(
    spark: SparkSession,
    bootstrap: str,
    config: ConnectionConfig,
    bounds: Mapping[TopicPartition, Bounds],
    rule: ScanRule,
) -> dict[TopicPartition, ScanResult]:
    """Scans each partition for the period. Raises `PartialFailure` with those that could not be read."""
    found: dict[TopicPartition, ScanResult] = {}
    failed: dict[TopicPartition, OffsetMgrError] = {}
    unread = {}
    for tp, wanted in bounds.items():
        if wanted.start < wanted.end:
            unread[tp] = wanted
        else:
            found[tp] = Scanner(wanted, rule).result()
    shares = _shares(unread, spark.sparkContext.defaultParallelism)
    if shares:

        def scan_shares(part: Iterable[_RangeShare]) -> Iterator[tuple[TopicPartition, ScanResult | OffsetMgrError]]:
            for split_ranges in part:
                yield from _scan_share(split_ranges, bootstrap, config, rule)

        outcomes = spark.sparkContext.parallelize(shares, len(shares)).mapPartitions(scan_shares).collect()
        for tp, outcome in outcomes:
            if isinstance(outcome, ScanResult):
                found[tp] = outcome
            else:
                failed[tp] = outcome
    if failed:
        what = f"looking for the records from {rule.period.start_ms} to {rule.period.end_ms}"
        raise PartialFailure(what, successes=found, failures=failed)
    return found


def _shares(bounds: Mapping[TopicPartition, Bounds], tasks: int) -> list[_RangeShare]:
    """At least one task per topic, at most ``tasks`` per topic."""
    topics: dict[str, list[tuple[int, Bounds]]] = {}
    for (topic, partition), wanted in sorted(bounds.items()):
        topics.setdefault(topic, []).append((partition, wanted))
    return [
        _RangeShare(topic, dict(partitions[at::tasks]))
        for topic, partitions in topics.items()
        for at in range(min(tasks, len(partitions)))
    ]


def _scan_share(
    split_ranges: _RangeShare, bootstrap: str, config: ConnectionConfig, rule: ScanRule
) -> Iterator[tuple[TopicPartition, ScanResult | OffsetMgrError]]:
    """Runs on an executor. Returns its errors as outcomes: of an exception Spark would pass only the text to the
    driver."""
    from offsetmgr.manager.log.kafka.settings import loader_settings
    from offsetmgr.spark.log_source import Range, read_ranges

    scanners = {partition: Scanner(bounds, rule) for partition, bounds in split_ranges.bounds.items()}
    wanted = [Range(partition, bounds.start, bounds.end) for partition, bounds in split_ranges.bounds.items()]
    settings = loader_settings(bootstrap, config.kafka, _CLIENT_GROUP)
    try:
        wait_s = config.timeout_ms / 1000
        for partition, messages in read_ranges(
            split_ranges.topic, settings, wanted, wait_s, lambda p: scanners[p].done
        ):
            see = scanners[partition].add
            for message in messages:
                see(message.offset(), message.timestamp()[1])
    except OffsetMgrError as error:
        for partition in scanners:
            yield TopicPartition(split_ranges.topic, partition), error
        return
    for partition, scanner in scanners.items():
        yield TopicPartition(split_ranges.topic, partition), scanner.result()
