"""Scans partitions for a period's ranges: each executor reads some partitions record by record (`period_ranges`).

Kafka's lookup of an offset by time cannot replace the scan. The lookup returns the first record whose time is the given
time or later. If the time of a single record is wrong and too late, the lookup of the period's end returns this record,
although records of the period may follow it. The lookup helps only at the start of a run: it finds the first record
with a time in the first period or later, and no record before this record belongs to any period.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import OffsetMgrError, PartialFailure
from offsetmgr.core.model import TopicPartition
from offsetmgr.spark.period_ranges import Bounds, Scanner, ScanResult, ScanRule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLIENT_GROUP: Final = "offsetmgr-periods"
"""The group id that the Kafka client requires. The scan never commits to it."""


_Share: TypeAlias = tuple[str, dict[int, Bounds]]
"""One task: a topic, and the bounds of some of its partitions."""


def scan(
    spark: SparkSession,
    bootstrap: str,
    config: ConnectionConfig,
    bounds: Mapping[TopicPartition, Bounds],
    rule: ScanRule,
) -> dict[TopicPartition, ScanResult]:
    """Scans each partition for the period. Raises `PartialFailure` if partitions could not be read."""
    pending = {tp: limits for tp, limits in bounds.items() if limits.start < limits.end}
    found = {tp: Scanner(limits, rule).result() for tp, limits in bounds.items() if tp not in pending}
    failed: dict[TopicPartition, OffsetMgrError] = {}
    tasks = spark.sparkContext.defaultParallelism
    topics = by_key((topic, (partition, limits)) for (topic, partition), limits in sorted(pending.items()))
    shares = [
        (topic, dict(partitions[at::tasks]))
        for topic, partitions in topics.items()
        for at in range(min(tasks, len(partitions)))
    ]
    if shares:

        def scan_shares(part: Iterable[_Share]) -> Iterator[tuple[TopicPartition, ScanResult | OffsetMgrError]]:
            for topic, shared in part:
                yield from _scan_share(topic, shared, bootstrap, config, rule)

        outcomes = spark.sparkContext.parallelize(shares, len(shares)).mapPartitions(scan_shares).collect()
        for tp, outcome in outcomes:
            if isinstance(outcome, ScanResult):
                found[tp] = outcome
            else:
                failed[tp] = outcome
    if failed:
        what = f"scan for the records from {rule.period.start_ms} to {rule.period.end_ms}"
        raise PartialFailure(what, successes=found, failures=failed)
    return found


def _scan_share(
    topic: str, shared: Mapping[int, Bounds], bootstrap: str, config: ConnectionConfig, rule: ScanRule
) -> Iterator[tuple[TopicPartition, ScanResult | OffsetMgrError]]:
    """Scans the partitions of one task on an executor.

    Errors are results too, because Spark passes only the text of an exception to the driver.
    """
    from offsetmgr.spark.range_reader import Range, loader_settings, read_ranges

    scanners = {partition: Scanner(bounds, rule) for partition, bounds in shared.items()}
    ranges = [Range(partition, bounds.start, bounds.end) for partition, bounds in shared.items()]
    settings = loader_settings(bootstrap, config.kafka, _CLIENT_GROUP)
    try:
        wait_s = config.timeout_ms / 1000
        for partition, messages in read_ranges(topic, settings, ranges, wait_s, lambda p: scanners[p].done):
            see = scanners[partition].add
            for message in messages:
                see(message.offset(), message.timestamp()[1])
    except OffsetMgrError as error:
        for partition in scanners:
            yield TopicPartition(topic, partition), error
        return
    for partition, scanner in scanners.items():
        yield TopicPartition(topic, partition), scanner.result()
