"""`AssignedConsumer`: a consumer of chosen partitions of one topic that knows exactly where it stands.

Partitions are assigned, never subscribed to, and nothing is ever committed: the group id is only what the client
library asks for.  A position passes markers and aborted records too: behind the last record the client's
end-of-partition event tells it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, Final, TypeAlias

import confluent_kafka as ck

from offsetmgr.core.errors import OffsetMgrError, ServerError
from offsetmgr.kafka.cluster.librdkafka import error_of
from offsetmgr.manager.log.base import CorruptRecords
from offsetmgr.manager.log.kafka.settings import SILENT

Message: TypeAlias = Any
"""`ck.Message`, whose types allow for what only events lack: a partition, an offset, a key."""

Run: TypeAlias = tuple[int, list[Message]]
"""A partition, and records of it that came one after the other."""

_ASK: Final = 5.0
_PASSING: Final = frozenset(
    {
        ck.KafkaError._ALL_BROKERS_DOWN,
        ck.KafkaError._TRANSPORT,
        ck.KafkaError._RESOLVE,
        ck.KafkaError._TIMED_OUT,
        ck.KafkaError._MAX_POLL_EXCEEDED,
    }
)
"""The client goes on by itself after these, and whoever waits has a timeout of his own."""

_DAMAGED: Final = frozenset({ck.KafkaError._BAD_MSG, ck.KafkaError._BAD_COMPRESSION})
"""The client repeats the fetch after these, and stays where it is."""

_error: Final[Callable[[Message], ck.KafkaError | None]] = ck.Message.error
_partition: Final[Callable[[Message], Any]] = ck.Message.partition


class AssignedConsumer:
    """For one thread at a time, closing included: the client library does not survive anything else."""

    def __init__(self, topic: str, settings: Mapping[str, Any]) -> None:
        self.positions: dict[int, int] = {}
        self.last_error: ck.KafkaError | None = None
        self._corrupt: CorruptRecords | None = None
        self._topic = topic
        self._failures: deque[OffsetMgrError] = deque()
        self._client = ck.Consumer({**settings, "error_cb": self._remember}, logger=SILENT)

    def assign(self, starts: Mapping[int, int]) -> None:
        """Reads these partitions as well, from these offsets on."""
        if starts:
            self._client.incremental_assign([ck.TopicPartition(self._topic, p, at) for p, at in starts.items()])
            self.positions.update(starts)

    def unassign(self, partitions: Iterable[int]) -> None:
        """Reads these partitions no more."""
        gone = list(partitions)
        if gone:
            self._client.incremental_unassign([ck.TopicPartition(self._topic, p) for p in gone])
            for partition in gone:
                del self.positions[partition]

    def take(self, most: int, timeout: float) -> list[Run]:
        """What has come, at most so many records; waits (seconds) where nothing has, and comes back with nothing where
        only a position moved.

        Raises `OffsetMgrError` for a partition that cannot be read, after the records before the error; but
        `CorruptRecords` at once and from then on, so that a damaged batch is never taken for one that was read.
        """
        self._check()
        messages: list[Message] = self._client.consume(most, 0)
        if not messages:
            first = self._client.poll(timeout)  # consume would wait until it has as many as it may bring
            if first is None:
                return []
            messages = [first, *self._client.consume(most - 1, 0)] if most > 1 else [first]
        events: list[Message] = []
        if any(map(_error, messages)):
            events = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        runs = self._runs(messages)
        for event in events:
            self._happened(event)
        if self._corrupt is not None or not runs:
            self._check()
        return runs

    def close(self) -> None:
        """Leaves the brokers alone; nothing is committed."""
        self._client.close()

    def _check(self) -> None:
        if self._corrupt is not None:
            raise self._corrupt
        if self._failures:
            raise self._failures.popleft()

    def _runs(self, messages: list[Message]) -> list[Run]:
        runs: list[Run] = []
        begin = 0
        for partition, same in groupby(map(_partition, messages)):
            end = begin + len(list(same))
            run = messages[begin:end]
            begin = end
            runs.append((partition, run))
            self.positions[partition] = run[-1].offset() + 1
        return runs

    def _happened(self, event: Message) -> None:
        error, partition = event.error(), event.partition()
        assert error is not None
        code = error.code()
        if code == ck.KafkaError._PARTITION_EOF:
            if partition in self.positions:
                self.positions[partition] = max(self.positions[partition], event.offset())
        elif code == ck.KafkaError._AUTO_OFFSET_RESET and partition in self.positions:
            self._look_into_range(partition)
        elif code in _DAMAGED and partition is not None and partition >= 0:
            offset = event.offset()
            self._corrupt = CorruptRecords(self._topic, partition, -1 if offset is None else offset, error.str())
        elif code not in _PASSING:
            where = self._name(partition) if partition is not None and partition >= 0 else f"topic {self._topic}"
            self._failures.append(error_of(error, where))

    def _look_into_range(self, partition: int) -> None:
        """The log has no such offset: its start has moved (then we go on there), or it is shorter than it was."""
        position = self.positions[partition]
        try:
            start, end = self._client.get_watermark_offsets(
                ck.TopicPartition(self._topic, partition), timeout=_ASK, cached=False
            )
        except ck.KafkaException as raised:
            self._failures.append(error_of(raised.args[0], self._name(partition)))
            return
        if position < start:
            self.unassign([partition])
            self.assign({partition: start})
            return
        self._failures.append(
            ServerError(
                self._name(partition),
                f"it ends at {end}, but has been read up to {position}: it was truncated, or the topic was made anew",
                "restart this manager, so that it loads the partition again",
            )
        )

    def _name(self, partition: int) -> str:
        return f"{self._topic}-{partition}"

    def _remember(self, error: ck.KafkaError) -> None:
        self.last_error = error
