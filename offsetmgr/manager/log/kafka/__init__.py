"""`KafkaLog`: the log on the offsets topic of a Kafka cluster.

The writer of a shard group sends idempotent batches over offsetmgr's own client, and claims fence earlier writers (see
`offsetmgr.manager.log.kafka.writer`). Readers request raw batches over the same kind of client, and ignore batches of
other programs (see `offsetmgr.manager.log.kafka.batch_audit`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client, ClientThread
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.fetch import StableOffsets, topic_id
from offsetmgr.manager.log.base import partitions_of, shard_group_count
from offsetmgr.manager.log.kafka.leader_connections import LeaderConnections
from offsetmgr.manager.log.kafka.log_history import LogHistory
from offsetmgr.manager.log.kafka.raw_reader import RawReader
from offsetmgr.manager.log.kafka.topic_admin import DEFAULT_TIMEOUT_S, existing_topic
from offsetmgr.manager.log.kafka.writer import KafkaShardGroupWriter, WriterOptions
from offsetmgr.manager.log.topic import examine

DEFAULT_MAX_MESSAGE_BYTES: Final = 1_000_000


class KafkaLog:
    """Implements `offsetmgr.manager.log.base.PartitionLog`.

    ``partitions`` is the number of partitions that `offsetmgr.manager.log.kafka.topic_admin.ensure_topic` returned.
    ``properties`` are settings of librdkafka (``security.protocol``, ...). ``max_message_bytes`` is the limit in
    `offsetmgr.manager.log.topic.OffsetsTopicState`. ``client`` is the client of the writers; by default the log
    creates one. Each reader has its own client. Requests for offsets and for the topic id share another client, whose
    loop runs in a thread. ``manager`` names this process in its claims.

    Any thread may call its methods. The writers run on one event loop.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        properties: Mapping[str, str] | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        client: Client | None = None,
        manager: str = "",
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self._properties = dict(properties or {})
        self._max_message_bytes = max_message_bytes
        self._client = client
        self._manager = manager or f"{socket.gethostname()}:{os.getpid()}"
        self._history = LogHistory(topic)
        self.clock, self.deleted = self._history.clock, self._history.deleted
        self._generation = ""
        self._requests = ClientThread(Client(bootstrap, Security.of(self._properties)), DEFAULT_TIMEOUT_S)
        self.close = self._requests.close
        """Closes the connections. The callers of `writer` and `reader` close the writers and readers themselves."""
        self._offsets = StableOffsets(self._requests.client)

    def writer(self, shard_group: int) -> KafkaShardGroupWriter:
        """See `PartitionLog.writer`."""
        if shard_group not in range(shard_group_count(self.partitions)):
            raise ValueError(f"no shard group {shard_group}")
        if self._client is None:
            self._client = Client(self.bootstrap, Security.of(self._properties))
        return KafkaShardGroupWriter(
            shard_group,
            partitions_of(shard_group, self.partitions),
            LeaderConnections(self._client, self.topic, transactional_id_prefix(self.topic)),
            WriterOptions(self.topic, self._manager, self._max_message_bytes),
            self._history,
        )

    def reader(self) -> RawReader:
        """See `PartitionLog.reader`."""
        return RawReader(self.bootstrap, Security.of(self._properties), self.topic, self._history)

    def generation(self, timeout_s: float) -> str:
        """Returns the topic id; empty for brokers before 2.8 (KIP-516).

        If the topic was recreated and the new topic is unsuitable, raises `UnsuitableTopic`, so that no process reads
        or writes an unsuitable topic.
        """
        client = self._requests.client
        found = self._requests.run(lambda deadline: topic_id(client, self.topic, deadline), timeout_s)
        if found and found != self._generation:
            if self._generation:
                successor = existing_topic(self.bootstrap, self._properties, self.topic, timeout_s)
                self._max_message_bytes = examine(self.topic, successor, self.partitions).max_message_bytes
                self._history.forget()
            self._generation = found
        return found

    def start_offsets(self, partitions: Sequence[int], timeout_s: float) -> Mapping[int, int]:
        """See `PartitionLog.start_offsets`."""
        named = self._named(partitions)
        return _numbered(self._requests.run(lambda deadline: self._offsets.starts(named, deadline), timeout_s))

    def end_offsets(self, partitions: Sequence[int], timeout_s: float) -> Mapping[int, int]:
        """Returns the end offsets. The end offset of a partition is always higher than the offset of every record whose
        write the in-sync replicas have confirmed to a writer of this object."""
        named = self._named(partitions)
        return _numbered(
            self._requests.run(
                lambda deadline: self._offsets.ends(named, deadline, lambda tp: self._history.min_end(tp.partition)),
                timeout_s,
            )
        )

    def _named(self, partitions: Sequence[int]) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in partitions]


def _numbered(offsets: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {tp.partition: offset for tp, offset in offsets.items()}


def transactional_id_prefix(topic: str) -> str:
    """Returns the prefix of the transactional ids of all partitions. The number of the partition follows it, and the
    ids never change, because the epoch of an id fences earlier owners. The manager's principal needs ACLs for the
    prefix."""
    return f"{topic}-partition-"
