"""Fetches messages of the owned partitions through confluent-kafka with manual assignment.

One thread uses librdkafka's consumer and executes the requests of other threads: so after a partition was removed and
added again, messages fetched before cannot be confused with later ones.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Final

import confluent_kafka as ck

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer.streams import PartitionProgress, StreamMessage, StreamState
from offsetmgr.core.errors import AuthenticationFailed, ConfigError, NotAuthorized, OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.cluster.librdkafka import error_of

_LOG: Final = logging.getLogger("offsetmgr.consumer")
_SILENT: Final = logging.getLogger("offsetmgr.librdkafka")
_BATCH: Final = 500
_WAIT_S: Final = 0.05
_ASK_S: Final = 5.0
_NO_TIMESTAMP: Final = ck.TIMESTAMP_NOT_AVAILABLE


class Fetcher:
    """Puts messages of the given partitions into the streams. No I/O before `start`."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        config: ConnectionConfig,
        desk: StreamState,
        *,
        from_smallest: bool,
        queued_max: int,
        failed: Callable[[OffsetMgrError], None],
    ) -> None:
        """``queued_max``: the number of messages waiting in one stream at which its partitions are paused. ``failed``
        is called in the fetcher's thread, as its last act, with the reason for which it stops."""
        self._settings: dict[str, Any] = {
            "fetch.message.max.bytes": "1048576",
            "queued.max.messages.kbytes": "16384",
            # The group's topics grow, and a claim may come before librdkafka's own refresh.
            "topic.metadata.refresh.interval.ms": "3000",
            "reconnect.backoff.max.ms": "1000",
            # As in old members, which know no transactions: a group reads the same whatever member owns a partition.
            "isolation.level": "read_uncommitted",
            **config.kafka,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "allow.auto.create.topics": "false",
            "auto.offset.reset": "error",
        }
        self._desk = desk
        self._from_smallest = from_smallest
        self._queued_max = queued_max
        self._failed = failed
        self._orders: SimpleQueue[tuple[tuple[PartitionProgress, ...], tuple[PartitionProgress, ...]]] = SimpleQueue()
        self._current: dict[TopicPartition, PartitionProgress] = {}
        self._paused: set[TopicPartition] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread. Raises `ConfigError`."""
        try:
            consumer = ck.Consumer(self._settings, logger=_SILENT)
        except ck.KafkaException as error:
            raise ConfigError("Kafka connection settings", error.args[0].str()) from None
        self._thread = threading.Thread(target=self._run, args=(consumer,), name="offsetmgr-fetcher", daemon=True)
        self._thread.start()

    def add(self, holdings: Collection[PartitionProgress]) -> None:
        """Fetches these partitions too, each from its ``fetched`` on."""
        self._orders.put((tuple(holdings), ()))

    def remove(self, holdings: Collection[PartitionProgress]) -> None:
        """Stops fetching these; later states of the same partitions stay."""
        self._orders.put(((), tuple(holdings)))

    def stop(self) -> None:
        """Stops the thread, and returns when it has ended."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self, consumer: Any) -> None:
        try:
            while not self._stopping.is_set():
                self._obey(consumer)
                self._balance(consumer)
                if not self._current:
                    self._stopping.wait(_WAIT_S)
                    continue
                self._deal_out(consumer, consumer.consume(_BATCH, _WAIT_S))
        except OffsetMgrError as error:
            self._failed(error)
        except ck.KafkaException as error:
            self._failed(error_of(error.args[0], "fetching"))
        except BaseException:
            self._failed(OffsetMgrError("fetching", "has ended by a defect of offsetmgr", "see the traceback"))
            raise
        finally:
            consumer.close()

    def _deal_out(self, consumer: Any, batch: Iterable[Any]) -> None:
        """Puts a batch into the streams. Messages before an error of a partition are delivered first, and later ones in
        the batch are dropped, because the position has been set again."""
        for_holdings: dict[PartitionProgress, list[StreamMessage]] = {}
        troubled: set[PartitionProgress] = set()
        for found in batch:
            holding = self._current.get(TopicPartition(found.topic(), found.partition()))
            if found.error() is not None:
                if holding is not None:
                    self._desk.feed(holding, for_holdings.pop(holding, ()))
                if self._trouble(consumer, found.error(), holding) and holding is not None:
                    troubled.add(holding)
            elif holding is not None and holding not in troubled:
                for_holdings.setdefault(holding, []).append(_message(found))
        for holding, messages in for_holdings.items():
            self._desk.feed(holding, messages)

    def _obey(self, consumer: Any) -> None:
        """Executes the requests since the last call."""
        while True:
            try:
                added, removed = self._orders.get_nowait()
            except Empty:
                return
            # A later state of the same partition may be there already, which is not the removed one.
            if gone := [one.partition for one in removed if self._current.get(one.partition) is one]:
                self._let_go(consumer, gone)
                for tp in gone:
                    del self._current[tp]
            if new := [holding for holding in added if not holding.stopped]:
                self._know_topics(consumer, {holding.partition.topic for holding in new})
                consumer.incremental_assign([ck.TopicPartition(*one.partition, one.fetched) for one in new])
                self._current.update((holding.partition, holding) for holding in new)

    def _let_go(self, consumer: Any, partitions: Collection[TopicPartition]) -> None:
        """librdkafka keeps a pause beyond the assignment: the next owner would receive nothing."""
        if paused := self._paused.intersection(partitions):
            consumer.resume([ck.TopicPartition(*tp) for tp in paused])
            self._paused -= paused
        consumer.incremental_unassign([ck.TopicPartition(*tp) for tp in partitions])

    def _know_topics(self, consumer: Any, topics: set[str]) -> None:
        """Makes librdkafka refresh these topics' partitions now, because it finds a new one late otherwise."""
        for topic in topics:
            try:
                consumer.list_topics(topic, timeout=_ASK_S)
            except ck.KafkaException as error:
                _LOG.info("topic %s: %s", topic, error.args[0].str())  # librdkafka finds out by itself

    def _balance(self, consumer: Any) -> None:
        """Pauses the partitions of full streams, and resumes those of half-empty streams."""
        for tp, holding in self._current.items():
            waiting = len(holding.stream.buffer)
            if waiting >= self._queued_max and tp not in self._paused:
                consumer.pause([ck.TopicPartition(*tp)])
                self._paused.add(tp)
            elif waiting <= self._queued_max // 2 and tp in self._paused:
                consumer.resume([ck.TopicPartition(*tp)])
                self._paused.discard(tp)

    def _trouble(self, consumer: Any, error: ck.KafkaError, holding: PartitionProgress | None) -> bool:
        """Returns whether the partition's position has been, or will be, set again. Raises permanent errors."""
        if error.code() == ck.KafkaError._AUTO_OFFSET_RESET:
            if holding is not None:
                self._reset(consumer, holding)
            return True
        found = error_of(error, "fetching" if holding is None else f"fetching {holding.partition}")
        if isinstance(found, AuthenticationFailed | NotAuthorized):
            raise found
        _LOG.warning("%s", found)
        return False

    def _reset(self, consumer: Any, holding: PartitionProgress) -> None:
        """The log does not contain the position: continues according to the settings."""
        place = ck.TopicPartition(*holding.partition)
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=_ASK_S)
        except ck.KafkaException as error:
            _LOG.warning("%s", error_of(error.args[0], f"log of {holding.partition}"))
            self._orders.put(((holding,), (holding,)))  # which leads here again
            return
        offset = low if self._from_smallest else high
        _LOG.warning(
            "%s: offset %d is not in the log (%d to %d); going on at %d",
            holding.partition,
            holding.fetched,
            low,
            high,
            offset,
        )
        self._desk.relocate(holding, offset)
        self._let_go(consumer, [holding.partition])
        consumer.incremental_assign([ck.TopicPartition(*holding.partition, offset)])


def _message(found: Any) -> StreamMessage:
    kind, timestamp = found.timestamp()
    return StreamMessage(
        found.topic(),
        found.partition(),
        found.offset(),
        found.key(),
        found.value(),
        None if kind == _NO_TIMESTAMP else timestamp,
        tuple(found.headers() or ()),
    )
