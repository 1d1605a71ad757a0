"""`AssignedConsumer`: a consumer of assigned partitions of one topic that reports exact positions.

The consumer assigns partitions and never subscribes or commits. It has a group id only because the client library
requires a group id. The position in a partition also advances past transaction markers and aborted records, because the
client's end-of-partition event reports the offset after them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, Final, TypeAlias

import confluent_kafka as ck

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.librdkafka import error_of
from offsetmgr.manager.log.base import CorruptRecords, truncated
from offsetmgr.manager.log.kafka.settings import SILENT

ConfluentMessage: TypeAlias = Any
"""A `ck.Message`. The declared types make partition, offset and key optional, although only events have no partition,
offset or key."""

Run: TypeAlias = tuple[int, list[ConfluentMessage]]
"""A partition and consecutive records from it."""

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
"""After these errors the client continues by itself. The timeouts of the callers limit the wait."""

_CORRUPT_CODES: Final = frozenset({ck.KafkaError._BAD_MSG, ck.KafkaError._BAD_COMPRESSION})
"""After these errors the client repeats the same fetch without end."""

_error: Final[Callable[[ConfluentMessage], ck.KafkaError | None]] = ck.Message.error
_partition: Final[Callable[[ConfluentMessage], Any]] = ck.Message.partition


class AssignedConsumer:
    """Consumes assigned partitions. Only one thread at a time may call the methods, including `close`; otherwise the
    client library crashes."""

    def __init__(self, topic: str, settings: Mapping[str, Any]) -> None:
        self.positions: dict[int, int] = {}
        self.last_error: ck.KafkaError | None = None
        self._corrupt: CorruptRecords | None = None
        self._topic = topic
        self._failures: deque[OffsetMgrError] = deque()
        self._client = ck.Consumer({**settings, "error_cb": self._on_client_error}, logger=SILENT)

    def assign(self, starts: Mapping[int, int]) -> None:
        """Adds these partitions and reads them from these offsets on."""
        if starts:
            self._client.incremental_assign([ck.TopicPartition(self._topic, p, at) for p, at in starts.items()])
            self.positions.update(starts)

    def unassign(self, partitions: Iterable[int]) -> None:
        """Removes these partitions."""
        removed = list(partitions)
        if removed:
            self._client.incremental_unassign([ck.TopicPartition(self._topic, p) for p in removed])
            for partition in removed:
                del self.positions[partition]

    def take(self, max_records: int, timeout_s: float) -> list[Run]:
        """Returns up to ``max_records`` records that have arrived. If no record has arrived, waits up to ``timeout_s``
        seconds. Returns nothing if only a position advanced.

        If a partition is unreadable, `OffsetMgrError` is raised only after the records before the error have been
        returned. If a batch is damaged, this call and every later call raise `CorruptRecords`, so that the batch never
        counts as read.
        """
        self._raise_failures()
        messages: list[ConfluentMessage] = self._client.consume(max_records, 0)
        if not messages:
            first = self._client.poll(timeout_s)  # `consume` would wait until it has the maximum number of records
            if first is None:
                return []
            messages = [first, *self._client.consume(max_records - 1, 0)] if max_records > 1 else [first]
        events: list[ConfluentMessage] = []
        if any(map(_error, messages)):
            events = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        runs = self._runs(messages)
        for event in events:
            self._handle_event(event)
        if self._corrupt is not None or not runs:
            self._raise_failures()
        return runs

    def close(self) -> None:
        """Closes the connections; commits nothing."""
        self._client.close()

    def _raise_failures(self) -> None:
        if self._corrupt is not None:
            raise self._corrupt
        if self._failures:
            raise self._failures.popleft()

    def _runs(self, messages: list[ConfluentMessage]) -> list[Run]:
        runs: list[Run] = []
        begin = 0
        for partition, same in groupby(map(_partition, messages)):
            end = begin + len(list(same))
            run = messages[begin:end]
            begin = end
            runs.append((partition, run))
            self.positions[partition] = run[-1].offset() + 1
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
            self._corrupt = CorruptRecords(self._topic, partition, -1 if offset is None else offset, error.str())
        elif code not in _TRANSIENT_CODES:
            where = f"topic {self._topic}" if partition is None or partition < 0 else self._partition_name(partition)
            self._failures.append(error_of(error, where))

    def _handle_out_of_range(self, partition: int) -> None:
        """Handles a position outside the log. If the log's start has advanced past the position, the consumer continues
        at the start. If the log is shorter than before, the error is reported."""
        position = self.positions[partition]
        try:
            start, end = self._client.get_watermark_offsets(
                ck.TopicPartition(self._topic, partition), timeout=_REQUEST_TIMEOUT_S, cached=False
            )
        except ck.KafkaException as raised:
            self._failures.append(error_of(raised.args[0], self._partition_name(partition)))
            return
        if position < start:
            self.unassign([partition])
            self.assign({partition: start})
            return
        self._failures.append(truncated(self._partition_name(partition), end, position))

    def _partition_name(self, partition: int) -> str:
        return f"{self._topic}-{partition}"

    def _on_client_error(self, error: ck.KafkaError) -> None:
        self.last_error = error
