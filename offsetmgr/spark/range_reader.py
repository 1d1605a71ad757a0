"""Reads ranges of offsets of one topic with librdkafka, which decodes records faster than Python.

The consumer assigns partitions and never subscribes or commits. It has a group id only because the client library
requires a group id. The position in a partition also advances past transaction markers and aborted records, because the
client's end-of-partition event reports the offset after them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

import confluent_kafka as ck

from offsetmgr.core.errors import OffsetMgrError, TimedOut
from offsetmgr.kafka.librdkafka import SILENT, error_of, librdkafka_settings
from offsetmgr.manager.log.base import CorruptRecords, truncated

ConfluentMessage: TypeAlias = Any
"""A `ck.Message`. The declared types make partition, offset and key optional, although only events have no partition,
offset or key."""

Run: TypeAlias = tuple[int, list[ConfluentMessage]]
"""A partition and consecutive records from it."""

_MAX_POLL_RECORDS: Final = 500
"""The number of records that are taken at a time. Larger batches do not fit into the processor's caches."""
_POLL_TIMEOUT_S: Final = 0.1
_REQUEST_TIMEOUT_S: Final = 5.0
_TRANSIENT_CODES: Final = frozenset(
    {
        ck.KafkaError._ALL_BROKERS_DOWN,
        ck.KafkaError._TRANSPORT,
        ck.KafkaError._RESOLVE,
        ck.KafkaError._TIMED_OUT,
        ck.KafkaError._MAX_POLL_EXCEEDED,
    }
)
"""After these errors the client continues by itself. The timeout of the caller limits the wait."""

_CORRUPT_CODES: Final = frozenset({ck.KafkaError._BAD_MSG, ck.KafkaError._BAD_COMPRESSION})
"""After these errors the client repeats the same fetch without end."""

_error: Final[Callable[[ConfluentMessage], ck.KafkaError | None]] = ck.Message.error
_partition: Final[Callable[[ConfluentMessage], Any]] = ck.Message.partition


class Range(NamedTuple):
    """Offsets of one partition: ``start`` inclusive, ``end`` exclusive."""

    partition: int
    start: int
    end: int


def loader_settings(bootstrap: str, properties: Mapping[str, str], group: str) -> dict[str, Any]:
    """Returns the settings of a consumer that reads whole partitions and therefore prefetches a large amount of data.

    ``properties`` are the user's settings (addresses, TLS, SASL, sockets) under librdkafka's names. They cannot
    override the settings on which the guarantees of the reader depend.
    """
    return {
        "reconnect.backoff.ms": "50",
        "reconnect.backoff.max.ms": "500",
        "socket.nagle.disable": "true",
        **librdkafka_settings(properties),
        "log_level": 0,
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "isolation.level": "read_committed",
        # Markers and aborted records may follow the last record. Only the end-of-partition event reports the offset
        # after them.
        "enable.partition.eof": "true",
        # If the log no longer contains the start offset, the consumer checks the reason; librdkafka must not choose an
        # offset.
        "auto.offset.reset": "error",
        "allow.auto.create.topics": "false",
        # A record that is damaged on a broker's disk must not be returned.
        "check.crcs": "true",
        # The end-of-partition event comes with the first empty fetch, which a broker answers after this time.
        "fetch.wait.max.ms": 50,
        "fetch.error.backoff.ms": 50,
        "max.poll.interval.ms": 86_400_000,
        "fetch.message.max.bytes": 4 << 20,
        "fetch.max.bytes": 64 << 20,
        "receive.message.max.bytes": 128 << 20,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 128 << 10,
        "fetch.queue.backoff.ms": 5,
    }


def read_ranges(
    topic: str,
    settings: Mapping[str, Any],
    ranges: Sequence[Range],
    wait_s: float,
    is_done: Callable[[int], bool] = lambda _: False,
) -> Iterator[Run]:
    """Yields the records of these ranges in groups; each group contains records of one partition. The function skips
    records after the end of a range, and stops reading a partition when ``is_done`` returns True for that partition.

    Raises `TimedOut` if the consumer makes no progress for ``wait_s`` seconds, `CorruptRecords` if a batch is damaged,
    and the errors of the brokers.
    """
    ends = {partition: end for partition, _, end in ranges}
    with closing(_AssignedConsumer(topic, settings)) as consumer:
        consumer.assign({partition: start for partition, start, _ in ranges})
        positions, unread = consumer.positions, set(ends)
        progress, progress_at = sum(positions.values()), time.monotonic()
        while unread:
            for partition, messages in consumer.take():
                end = ends[partition]
                if messages[-1].offset() >= end:
                    inside = [message for message in messages if message.offset() < end]
                    if inside:
                        yield partition, inside
                else:
                    yield partition, messages
            now_progress = sum(positions[partition] for partition in unread)
            if now_progress != progress:
                progress_at = time.monotonic()
            elif time.monotonic() > progress_at + wait_s:
                what = f"reading {topic}"
                if consumer.last_error is not None:
                    raise error_of(consumer.last_error, what)
                raise TimedOut(what, f"no record arrived for {wait_s:g} s")
            finished = {one for one in unread if positions[one] >= ends[one] or is_done(one)}
            if finished:
                consumer.unassign(finished)
                unread -= finished
            progress = sum(positions[partition] for partition in unread)


class _AssignedConsumer:
    """Consumes assigned partitions, and reports exact positions."""

    def __init__(self, topic: str, settings: Mapping[str, Any]) -> None:
        self.positions: dict[int, int] = {}
        self.last_error: ck.KafkaError | None = None
        self._failures: list[OffsetMgrError] = []
        self._topic = topic
        self._client = ck.Consumer({**settings, "error_cb": self._on_client_error}, logger=SILENT)
        self.close = self._client.close

    def assign(self, starts: Mapping[int, int]) -> None:
        """Adds these partitions and reads them from these offsets on."""
        self._client.incremental_assign([ck.TopicPartition(self._topic, p, at) for p, at in starts.items()])
        self.positions.update(starts)

    def unassign(self, partitions: Iterable[int]) -> None:
        """Removes these partitions."""
        self._client.incremental_unassign([ck.TopicPartition(self._topic, p) for p in partitions])
        for partition in partitions:
            del self.positions[partition]

    def take(self) -> list[Run]:
        """Returns records that have arrived. If no record has arrived, waits for a short time. Returns nothing if only
        a position advanced.

        If a partition is unreadable, raises its error after the records before the error have been returned. Raises
        `CorruptRecords` at once, so that a damaged batch never counts as read.
        """
        if self._failures:
            raise self._failures[0]
        messages: list[ConfluentMessage] = self._client.consume(_MAX_POLL_RECORDS, 0)
        if not messages:
            first = self._client.poll(
                _POLL_TIMEOUT_S
            )  # `consume` would wait until it has the maximum number of records
            messages = [] if first is None else [first, *self._client.consume(_MAX_POLL_RECORDS - 1, 0)]
        events: list[ConfluentMessage] = []
        if any(map(_error, messages)):
            events = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        runs: list[Run] = []
        begin = 0
        for partition, same in groupby(map(_partition, messages)):
            end = begin + len(list(same))
            runs.append((partition, messages[begin:end]))
            self.positions[partition] = messages[end - 1].offset() + 1
            begin = end
        for event in events:
            self._handle_event(event)
        if self._failures and not runs:
            raise self._failures[0]
        return runs

    def _handle_event(self, event: ConfluentMessage) -> None:
        error, partition = event.error(), event.partition()
        assert error is not None
        code = error.code()
        if code == ck.KafkaError._PARTITION_EOF:
            if partition in self.positions:
                self.positions[partition] = max(self.positions[partition], event.offset())
        elif code == ck.KafkaError._AUTO_OFFSET_RESET and partition in self.positions:
            self._handle_out_of_range(partition)
        elif code in _CORRUPT_CODES and partition is not None and partition >= 0:
            offset = event.offset()
            raise CorruptRecords(self._topic, partition, -1 if offset is None else offset, error.str())
        elif code not in _TRANSIENT_CODES:
            where = f"topic {self._topic}" if partition is None or partition < 0 else f"{self._topic}-{partition}"
            self._failures.append(error_of(error, where))

    def _handle_out_of_range(self, partition: int) -> None:
        """Handles a position outside the log. If the log's start has advanced past the position, the consumer continues
        at the start. If the log is shorter than before, that is an error."""
        position, name = self.positions[partition], f"{self._topic}-{partition}"
        try:
            start, end = self._client.get_watermark_offsets(
                ck.TopicPartition(self._topic, partition), timeout=_REQUEST_TIMEOUT_S, cached=False
            )
        except ck.KafkaException as raised:
            self._failures.append(error_of(raised.args[0], name))
            return
        if position < start:
            self.unassign([partition])
            self.assign({partition: start})
        else:
            self._failures.append(truncated(name, end, position))

    def _on_client_error(self, error: ck.KafkaError) -> None:
        self.last_error = error
