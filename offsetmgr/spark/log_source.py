"""The Spark data source ``format("offsetmgr-log")``: reads an offsets topic, one row (`log_rows.SCHEMA`) per record.

Spark's own Kafka source returns neither rows nor an error for ``__consumer_offsets``. This source determines the ranges
of offsets when Spark plans the query. Each range ends at the last stable offset of its partition. Tasks split large
partitions and combine small partitions. Together the tasks read every record of the ranges exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import repeat
from typing import Final

import pyarrow as pa

from offsetmgr.core.errors import UnknownTopicOrPartition
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client, ClientThread
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.fetch import StableOffsets, partition_counts
from offsetmgr.kafka.protocol.requests import OFFSETS_TOPIC
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.spark import source_options
from offsetmgr.spark.data_source_api import InputPartition, TableReader, TableSource
from offsetmgr.spark.log_rows import SCHEMA, LogRecords, decode_rows
from offsetmgr.spark.range_reader import Range, Run, loader_settings, read_ranges

NAME: Final = "offsetmgr-log"
_OFFSETS_PER_TASK: Final = 250_000
"""Maximum number of offsets in one task. A task of this size takes a few seconds."""
_CLIENT_GROUP: Final = "offsetmgr-spark"
"""The group id that the Kafka client requires. The source never commits to it."""


class LogSourceReader(TableReader):
    """Plans the tasks on the driver and reads on the executors. The value of a task is the ranges that it reads."""

    NAME = NAME
    OPTIONS = (source_options.BOOTSTRAP, "topic", "group")

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._bootstrap = source_options.required(NAME, self._options, source_options.BOOTSTRAP, "host:9092")
        self._topic = self._options.get("topic", OFFSETS_TOPIC)
        self._groups = source_options.groups(NAME, self._options)

    def partitions(self) -> Sequence[InputPartition]:
        """Raises `UnknownTopicOrPartition`, `Unreachable`, `TimedOut`."""
        config = self._connection()
        client = Client(self._bootstrap, Security.of(config.kafka))
        with closing(ClientThread(client, config.timeout_ms / 1000)) as thread:
            ranges = self._ranges(thread)
        tasks = source_options.number(NAME, self._options, "tasks", 1)
        return [InputPartition(part) for part in split_ranges(ranges, tasks)]

    def _ranges(self, thread: ClientThread) -> list[Range]:
        """Returns the range of each partition to read, without empty ranges."""
        client, topic = thread.client, self._topic
        count = thread.run(lambda deadline: partition_counts(client, [topic], deadline)).get(topic)
        if count is None:
            raise UnknownTopicOrPartition(
                f"topic {topic}",
                "does not exist in this Kafka cluster",
                "Kafka creates __consumer_offsets with the first commit",
            )
        numbers = sorted({shard_for(group, count) for group in self._groups}) if self._groups else range(count)
        partitions = [TopicPartition(topic, number) for number in numbers]
        offsets = StableOffsets(client)
        starts = thread.run(lambda deadline: offsets.starts(partitions, deadline))
        ends = thread.run(lambda deadline: offsets.ends(partitions, deadline))
        return [Range(tp.partition, starts[tp], ends[tp]) for tp in partitions if starts[tp] < ends[tp]]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Raises `TimedOut` if no record arrives within the timeout, and the errors of the brokers."""
        if partition is None:  # Spark's placeholder for "nothing to read"
            return
        config = self._connection()
        settings = loader_settings(self._bootstrap, config.kafka, _CLIENT_GROUP)
        runs = read_ranges(self._topic, settings, partition.value, config.timeout_ms / 1000)
        yield from decode_rows(map(_records_of, runs), self._groups)


class LogSource(TableSource):
    """The data source ``offsetmgr-log``.

    The options are:

    * ``kafka.bootstrap.servers``: the brokers.
    * ``topic``: by default ``__consumer_offsets``.
    * ``group``: names, separated by commas. The source reads only the partitions of these groups.
    * ``tasks``: the minimum number of tasks.
    * ``commandConfig``: the path of a ``.properties`` file with connection settings.
    * ``timeout``: in milliseconds.
    """

    SCHEMA = SCHEMA
    READER = LogSourceReader


def _records_of(run: Run) -> LogRecords:
    partition, messages = run
    return (
        repeat(partition, len(messages)),
        [message.offset() for message in messages],
        [message.timestamp()[1] for message in messages],
        [message.key() for message in messages],
        [message.value() for message in messages],
    )


def split_ranges(ranges: Sequence[Range], tasks: int) -> list[tuple[Range, ...]]:
    """Divides the ranges among tasks of about equal size.

    Returns one list of ranges for each task: at least ``tasks`` lists, if there are enough offsets. No list contains
    more offsets than the maximum of a task. A list contains a partition at most once.
    """
    total = sum(end - start for _, start, end in ranges)
    count = max(tasks, -(-total // _OFFSETS_PER_TASK))
    size = max(1, -(-total // count))
    shares: list[tuple[Range, ...]] = []
    current: list[Range] = []
    remaining = size
    for partition, begin, end in ranges:
        start = begin
        while start < end:
            upper = min(end, start + remaining)
            current.append(Range(partition, start, upper))
            remaining -= upper - start
            start = upper
            if not remaining:
                shares.append(tuple(current))
                current, remaining = [], size
    if current:
        shares.append(tuple(current))
    return shares
