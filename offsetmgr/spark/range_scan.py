"""The scan for a period's ranges: every executor looks through some partitions, record by record (`ranges`).

Kafka's offsets for a time cannot stand in for it: they name the first record that is late enough, and one that is dated
ahead hides the records of the period behind it.  Only where a run begins they help, for whatever lies before the first
record that is dated in its first period or later is of no period of it.
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

_READER: Final = "offsetmgr-periods"
"""The group id that the client library asks for; nothing is committed to it."""


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
    """What each partition has of the period. Raises `PartialFailure` with those that could not be read."""
    found: dict[TopicPartition, ScanResult] = {}
    failed: dict[TopicPartition, OffsetMgrError] = {}
    unread = {}
    for tp, wanted in bounds.items():
        if wanted.start < wanted.end:
            unread[tp] = wanted
        else:
            found[tp] = Scanner(wanted, rule).found()
    shares = _shares(unread, spark.sparkContext.defaultParallelism)
    if shares:

        def look(part: Iterable[_RangeShare]) -> Iterator[tuple[TopicPartition, ScanResult | OffsetMgrError]]:
            for share in part:
                yield from _look(share, bootstrap, config, rule)

        outcomes = spark.sparkContext.parallelize(shares, len(shares)).mapPartitions(look).collect()
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
    """At least as many tasks as there are topics, at most so many a topic."""
    topics: dict[str, list[tuple[int, Bounds]]] = {}
    for (topic, partition), wanted in sorted(bounds.items()):
        topics.setdefault(topic, []).append((partition, wanted))
    return [
        _RangeShare(topic, dict(partitions[at::tasks]))
        for topic, partitions in topics.items()
        for at in range(min(tasks, len(partitions)))
    ]


def _look(
    share: _RangeShare, bootstrap: str, config: ConnectionConfig, rule: ScanRule
) -> Iterator[tuple[TopicPartition, ScanResult | OffsetMgrError]]:
    """On an executor. Its errors are outcomes: Spark would hand an exception's text to the driver, and no more."""
    from offsetmgr.manager.log.kafka.settings import loader_settings
    from offsetmgr.spark.log_source import Range, runs

    scanners = {partition: Scanner(bounds, rule) for partition, bounds in share.bounds.items()}
    wanted = [Range(partition, bounds.start, bounds.end) for partition, bounds in share.bounds.items()]
    settings = loader_settings(bootstrap, config.kafka, _READER)
    try:
        patience = config.timeout_ms / 1000
        for partition, messages in runs(share.topic, settings, wanted, patience, lambda p: scanners[p].enough):
            see = scanners[partition].see
            for message in messages:
                see(message.offset(), message.timestamp()[1])
    except OffsetMgrError as error:
        for partition in scanners:
            yield TopicPartition(share.topic, partition), error
        return
    for partition, scanner in scanners.items():
        yield TopicPartition(share.topic, partition), scanner.found()
