"""Converts a group's committed offsets to the JSON of Spark's option ``startingOffsets``.

Spark uses the option only for a query without a checkpoint. A query with a checkpoint continues from its checkpoint.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.batches import by_topic
from offsetmgr.core.errors import OffsetMgrError, OffsetOutOfRange, PartialFailure, UsageError
from offsetmgr.core.model import Committed, LogRange, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.kafka.client.fetch import EARLIEST, LATEST
from offsetmgr.kafka.cluster import KafkaCluster, all_partitions
from offsetmgr.spark.source_options import dotted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

_CHOICES: Final[Mapping[str, int | None]] = {"earliest": EARLIEST, "latest": LATEST, "refuse": None}


@dataclass(frozen=True, slots=True)
class StartingOffsets:
    """The start offset of each partition of the topics. ``str`` returns the JSON for ``startingOffsets``.

    In ``offsets``, -2 stands for the earliest and -1 for the latest offset of the log. ``new`` are the partitions
    without a committed offset. ``outside_log`` are the partitions whose committed offset is outside the log, with the
    committed offset and the log's range.

    >>> from offsetmgr import TopicPartition
    >>> found = StartingOffsets("shop", {TopicPartition("orders", 0): 42}, default="latest")
    >>> str(found)
    '{"orders": {"0": 42}}'
    """

    group: str
    offsets: Mapping[TopicPartition, int]
    new: tuple[TopicPartition, ...] = ()
    outside_log: Mapping[TopicPartition, tuple[int, LogRange]] = field(default_factory=dict)
    default: str = "earliest"
    out_of_range: str = "earliest"

    @property
    def json(self) -> str:
        """The value of Spark's option ``startingOffsets``: the offset of each partition of each topic, as JSON."""
        return json.dumps(by_topic(self.offsets))

    @property
    def unknown(self) -> bool:
        """Whether the group has no committed offset in any of the topics. A wrong group name may be the cause."""
        return len(self.new) == len(self.offsets)

    def __str__(self) -> str:
        return self.json

    def explain(self) -> list[str]:
        """Returns log lines that describe where the partitions begin."""
        known = len(self.offsets) - len(self.new) - len(self.outside_log)
        lines = [f"group {self.group}: {known} of {len(self.offsets)} partitions begin at their committed offset"]
        if self.unknown:
            lines.append(f"group {self.group} has no committed offsets in these topics; check its name")
        lines += [f"{tp}: no committed offset, begins at the {self.default} offset" for tp in self.new]
        for tp, (offset, log) in sorted(self.outside_log.items()):
            lines.append(
                f"{tp}: {offset} is not in the log ({log.start} to {log.end}), begins at the {self.out_of_range} offset"
            )
        return lines


def starting_offsets(
    store: OffsetStore,
    group: str,
    topics: Iterable[str] | str,
    *,
    cluster: KafkaCluster | str | None = None,
    default: str = "earliest",
    out_of_range: str = "earliest",
    config: ConnectionConfig | None = None,
) -> StartingOffsets:
    """Returns the offsets from which a job must read ``topics`` to continue after ``group``. A text is one topic.

    ``cluster`` is the topics' cluster: a `KafkaCluster` or bootstrap servers. If ``store`` is a ``kafka://`` store, its
    cluster is the default. ``default`` applies to partitions without a committed offset, ``out_of_range`` to committed
    offsets outside the log. Each of these two arguments is ``earliest``, ``latest``, or ``refuse``, which raises an
    error. The result contains every partition of the topics, as Spark requires.

    Raises `PartialFailure` if ``refuse`` applies to a partition or if an offset cannot be read (an unreadable offset
    never counts as absent), `UnknownTopicOrPartition` for topics that do not exist, and `UsageError`.

    Example::

        from offsetmgr.spark import open_store, session, starting_offsets

        spark = session("shop-job", master="local[1]")
        with open_store("kafka://h1:9092") as store:
            begin = starting_offsets(store, "shop", ["orders"], default="latest")
        print(begin.explain())
        source = spark.read.format("kafka").option("kafka.bootstrap.servers", "h1:9092")
        print(source.option("subscribe", "orders").option("startingOffsets", str(begin)).load().count())
    """
    names = topic_names(topics)
    _check_choices(default=default, out_of_range=out_of_range)
    with ExitStack() as stack:
        known = _cluster(store, cluster, config, stack)
        partitions = all_partitions(known, names)
        committed = store.fetch(group, partitions)
        ranges = known.log_ranges(partitions)
    found: dict[TopicPartition, int] = {}
    outside: dict[TopicPartition, tuple[int, LogRange]] = {}
    failures: dict[TopicPartition, OffsetMgrError] = {}
    for tp in partitions:
        offset, log = committed[tp], ranges[tp]
        if isinstance(log, OffsetMgrError):
            failures[tp] = log
        elif isinstance(offset, Committed) and log.start <= offset.offset <= log.end:
            found[tp] = offset.offset
        else:
            choice, why = default, "the group has no committed offset"
            if isinstance(offset, Committed):
                choice, outside[tp] = out_of_range, (offset.offset, log)
                why = f"the committed offset {offset.offset} is not in the log, which has {log.start} to {log.end}"
            if (position := _CHOICES[choice]) is None:
                failures[tp] = OffsetOutOfRange(f"{group} {tp}", why, log_range=log)
            else:
                found[tp] = position
    if failures:
        raise PartialFailure(f"starting offsets of group {group}", successes=found, failures=failures)
    new = tuple(tp for tp in partitions if not isinstance(committed[tp], Committed))
    return StartingOffsets(group, found, new, outside, default, out_of_range)


def topic_names(topics: Iterable[str] | str) -> list[str]:
    """Returns the topics without duplicates. A text is one topic."""
    return [topics] if isinstance(topics, str) else list(dict.fromkeys(topics))


def _check_choices(**choices: str) -> None:
    for name, choice in choices.items():
        if choice not in _CHOICES:
            raise UsageError(f"{name}={choice!r}", f"must be one of {', '.join(_CHOICES)}")


def reader_from_group(
    spark: SparkSession,
    store: OffsetStore,
    group: str,
    topics: Iterable[str] | str,
    *,
    bootstrap: str,
    default: str = "earliest",
    out_of_range: str = "earliest",
    config: ConnectionConfig | None = None,
    **options: object,
) -> DataStreamReader:
    """Returns a stream reader of ``topics`` that continues after ``group``. Add options to it, then call ``load()``.

    ``bootstrap`` are the servers of the topics' cluster. ``options`` are options of Spark's Kafka source, with two
    underscores for each dot. The logger ``offsetmgr.spark`` logs where new partitions and partitions with an offset
    outside the log begin. Raises the errors of `starting_offsets`.

    Example::

        from offsetmgr.spark import open_store, reader_from_group, session

        spark = session("shop-job", master="local[1]")
        reader = reader_from_group(spark, open_store("kafka://h1:9092"), "shop", ["orders"], bootstrap="h1:9092")
        query = reader.load().writeStream.format("noop").trigger(availableNow=True)
        query = query.option("checkpointLocation", "reader")
        query.start().awaitTermination()
    """
    from offsetmgr.spark.group_committer import LOG
    from offsetmgr.spark.versions import require_supported

    require_supported("reader_from_group")
    names = topic_names(topics)
    start = starting_offsets(
        store, group, names, cluster=bootstrap, default=default, out_of_range=out_of_range, config=config
    )
    # The user probably does not expect an offset outside the log, or a group without offsets.
    level = logging.WARNING if start.outside_log or start.unknown else logging.INFO
    for line in start.explain():
        LOG.log(level, "%s", line)
    reader: DataStreamReader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", ",".join(names)).option("startingOffsets", start.json)
    return reader.options(**{name: str(value) for name, value in dotted(options).items()})


def _cluster(
    store: OffsetStore, kafka: KafkaCluster | str | None, config: ConnectionConfig | None, stack: ExitStack
) -> KafkaCluster:
    if kafka is None and store.uri.startswith("kafka://"):
        kafka = store.uri.removeprefix("kafka://")
    if kafka is None:
        raise UsageError(
            f"starting offsets from {store.uri}",
            "the cluster of the topics is unknown",
            "set cluster=BOOTSTRAP_SERVERS",
        )
    if not isinstance(kafka, str):
        return kafka
    return stack.enter_context(KafkaCluster(kafka, config or ConnectionConfig()))
