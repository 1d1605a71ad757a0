"""`Fetcher`: fetches the messages of the owned partitions through confluent-kafka, with manual assignment.

Only the fetcher's thread uses librdkafka's consumer. Between two fetches, this thread executes the requests of other
threads to add or remove partitions. Therefore messages that were fetched before a partition was removed are never
delivered after the removal, even if the partition is added again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Final

import confluent_kafka as ck

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.consumer.settings import ConsumerSettings
from offsetmgr.consumer.streams import PartitionProgress, StreamMessage, StreamState
from offsetmgr.core.errors import AuthenticationFailed, ConfigError, NotAuthorized, OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.librdkafka import SILENT, error_of, librdkafka_settings

_LOG: Final = logging.getLogger("offsetmgr.consumer")
_BATCH: Final = 500
_POLL_S: Final = 0.05
_REQUEST_TIMEOUT_S: Final = 5.0


class Fetcher:
    """Fetches messages and puts them into the streams. No I/O before `start`."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        config: ConnectionConfig,
        state: StreamState,
        consumer_settings: ConsumerSettings,
        on_failure: Callable[[OffsetMgrError], None],
    ) -> None:
        """While ``queued_max_messages`` or more messages wait in a stream, the fetcher pauses the stream's partitions.
        If the fetcher's thread fails, the thread calls ``on_failure`` with the error before it ends."""
        self._settings: dict[str, Any] = {
            "fetch.message.max.bytes": "1048576",
            "queued.max.messages.kbytes": "16384",
            # The interval is short, because this consumer may claim a new partition of a topic before librdkafka's
            # regular metadata refresh detects the new partition.
            "topic.metadata.refresh.interval.ms": "3000",
            "reconnect.backoff.max.ms": "1000",
            # All members of a group must read the same messages, and old consumers also read the messages of open and
            # aborted transactions.
            "isolation.level": "read_uncommitted",
            **config.kafka,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "allow.auto.create.topics": "false",
            "auto.offset.reset": "error",
        }
        self._state = state
        self._from_smallest = consumer_settings.from_smallest
        self._queued_max = consumer_settings.queued_max_messages
        self._on_failure = on_failure
        self._requests: SimpleQueue[tuple[tuple[PartitionProgress, ...], tuple[PartitionProgress, ...]]] = SimpleQueue()
        self._current: dict[TopicPartition, PartitionProgress] = {}
        self._paused: set[TopicPartition] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread. Raises `ConfigError`, and the errors of `librdkafka_settings`."""
        try:
            consumer = ck.Consumer(librdkafka_settings(self._settings), logger=SILENT)
        except ck.KafkaException as error:
            raise ConfigError("Kafka connection settings", error.args[0].str()) from None
        self._thread = threading.Thread(target=self._run, args=(consumer,), name="offsetmgr-fetcher", daemon=True)
        self._thread.start()

    def add(self, owned: Collection[PartitionProgress]) -> None:
        """Starts to fetch each of these partitions at the position ``fetched`` of its `PartitionProgress`."""
        self._requests.put((tuple(owned), ()))

    def remove(self, owned: Collection[PartitionProgress]) -> None:
        """Stops fetching these partitions. If a partition has been added again with a new `PartitionProgress`, the
        fetcher continues to fetch this partition."""
        self._requests.put(((), tuple(owned)))

    def stop(self) -> None:
        """Stops the thread. Returns when it has ended."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self, consumer: Any) -> None:
        try:
            while not self._stopping.is_set():
                self._execute_requests(consumer)
                # A full stream pauses its partition. The partition resumes when the stream is at most half full.
                for tp, progress in self._current.items():
                    waiting = len(progress.stream.buffer)
                    if waiting >= self._queued_max and tp not in self._paused:
                        consumer.pause([ck.TopicPartition(*tp)])
                        self._paused.add(tp)
                    elif waiting <= self._queued_max // 2 and tp in self._paused:
                        consumer.resume([ck.TopicPartition(*tp)])
                        self._paused.discard(tp)
                if not self._current:
                    self._stopping.wait(_POLL_S)
                    continue
                self._deliver(consumer, consumer.consume(_BATCH, _POLL_S))
        except OffsetMgrError as error:
            self._on_failure(error)
        except ck.KafkaException as error:
            self._on_failure(error_of(error.args[0], "fetching"))
        except BaseException:
            self._on_failure(
                OffsetMgrError("fetching", "stopped because of a defect of offsetmgr", "see the traceback")
            )
            raise
        finally:
            consumer.close()

    def _deliver(self, consumer: Any, batch: Iterable[Any]) -> None:
        """Puts a batch into the streams. Messages that precede a partition's error event are delivered before the error
        is handled. If handling the error changes the partition's position, the partition's remaining messages in this
        batch are dropped."""
        by_partition: dict[PartitionProgress, list[StreamMessage]] = {}
        repositioned: set[PartitionProgress] = set()
        for found in batch:
            progress = self._current.get(TopicPartition(found.topic(), found.partition()))
            if found.error() is not None:
                if progress is not None:
                    self._state.enqueue(progress, by_partition.pop(progress, ()))
                if self._handle_error(consumer, found.error(), progress) and progress is not None:
                    repositioned.add(progress)
            elif progress is not None and progress not in repositioned:
                by_partition.setdefault(progress, []).append(_stream_message(found))
        for progress, messages in by_partition.items():
            self._state.enqueue(progress, messages)

    def _execute_requests(self, consumer: Any) -> None:
        """Executes the requests that were queued since the last call."""
        while True:
            try:
                added, removed = self._requests.get_nowait()
            except Empty:
                return
            # If a partition was removed and added again, its current `PartitionProgress` is not the object in this
            # request, and the partition must stay assigned.
            if to_unassign := [one.partition for one in removed if self._current.get(one.partition) is one]:
                self._unassign(consumer, to_unassign)
                for tp in to_unassign:
                    del self._current[tp]
            if new := [progress for progress in added if not progress.stopped]:
                # librdkafka refreshes the metadata of these topics now, so that it detects new partitions at once.
                for topic in {progress.partition.topic for progress in new}:
                    try:
                        consumer.list_topics(topic, timeout=_REQUEST_TIMEOUT_S)
                    except ck.KafkaException as error:
                        _LOG.info("topic %s: %s", topic, error.args[0].str())  # librdkafka's regular refresh follows
                consumer.incremental_assign([ck.TopicPartition(*one.partition, one.fetched) for one in new])
                self._current.update((progress.partition, progress) for progress in new)

    def _unassign(self, consumer: Any, partitions: Collection[TopicPartition]) -> None:
        """Unassigns partitions. Paused partitions are resumed before they are unassigned. Otherwise librdkafka would
        keep them paused, and would fetch no messages from them after they are assigned again."""
        if paused := self._paused.intersection(partitions):
            consumer.resume([ck.TopicPartition(*tp) for tp in paused])
            self._paused -= paused
        consumer.incremental_unassign([ck.TopicPartition(*tp) for tp in partitions])

    def _handle_error(self, consumer: Any, error: ck.KafkaError, progress: PartitionProgress | None) -> bool:
        """Handles an error event. Returns True if the partition's position is outside of the log. In this case, the
        method moves the position; if the log's range cannot be read, a retry moves the position later. Raises
        `AuthenticationFailed` and `NotAuthorized`; logs other errors."""
        if error.code() == ck.KafkaError._AUTO_OFFSET_RESET:
            if progress is not None:
                self._reset_position(consumer, progress)
            return True
        found = error_of(error, "fetching" if progress is None else f"fetching {progress.partition}")
        if isinstance(found, AuthenticationFailed | NotAuthorized):
            raise found
        _LOG.warning("%s", found)
        return False

    def _reset_position(self, consumer: Any, progress: PartitionProgress) -> None:
        """Moves a position that is outside of the log to the log's start or end, according to the settings."""
        partition = ck.TopicPartition(*progress.partition)
        try:
            low, high = consumer.get_watermark_offsets(partition, timeout=_REQUEST_TIMEOUT_S)
        except ck.KafkaException as error:
            _LOG.warning("%s", error_of(error.args[0], f"log of {progress.partition}"))
            self._requests.put(((progress,), (progress,)))  # librdkafka then repeats the error event
            return
        offset = low if self._from_smallest else high
        _LOG.warning(
            "%s: offset %d is not in the log (%d to %d); continuing at %d",
            progress.partition,
            progress.fetched,
            low,
            high,
            offset,
        )
        self._state.move_position(progress, offset)
        self._unassign(consumer, [progress.partition])
        consumer.incremental_assign([ck.TopicPartition(*progress.partition, offset)])


def _stream_message(found: Any) -> StreamMessage:
    kind, timestamp = found.timestamp()
    return StreamMessage(
        found.topic(),
        found.partition(),
        found.offset(),
        found.key(),
        found.value(),
        None if kind == ck.TIMESTAMP_NOT_AVAILABLE else timestamp,
        tuple(found.headers() or ()),
    )
