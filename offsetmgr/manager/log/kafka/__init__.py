"""`KafkaLog`: the log on the offsets topic of a Kafka cluster, through confluent-kafka.

One transactional producer writes each shard group. Consumers with the isolation level ``read_committed`` read the
partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from offsetmgr.manager.log.base import partitions_of, shard_group_count
from offsetmgr.manager.log.kafka.known_log_ends import KnownLogEnds
from offsetmgr.manager.log.kafka.offsets import PartitionOffsets
from offsetmgr.manager.log.kafka.reader import KafkaReader
from offsetmgr.manager.log.kafka.settings import follower_settings, loader_settings, producer_settings
from offsetmgr.manager.log.kafka.topic_admin import check_successor
from offsetmgr.manager.log.kafka.writer import KafkaShardGroupWriter

DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 10_000
DEFAULT_MAX_MESSAGE_BYTES: Final = 1_000_000


class KafkaLog:
    """Implements `offsetmgr.manager.log.base.PartitionLog`.

    ``partitions`` is the number of partitions that `offsetmgr.manager.log.kafka.topic_admin.ensure_topic` returned.
    ``properties`` are settings of librdkafka (``security.protocol``, ...). ``transaction_timeout_ms`` limits how long
    the open transaction of a dead writer delays readers if no other writer claims the shard group.
    ``max_message_bytes`` is the limit in `offsetmgr.manager.log.topic.OffsetsTopicState`. ``group`` is the group id of
    the readers, because librdkafka requires a group id. The readers commit nothing.

    Any thread may call its methods.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        properties: Mapping[str, str] | None = None,
        transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        group: str = "offsetmgr",
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self._partitions = partitions
        self._properties = dict(properties or {})
        self._transaction_timeout_ms = transaction_timeout_ms
        self._max_message_bytes = max_message_bytes
        self._group = group
        self._known_ends = KnownLogEnds()
        self._generation = ""
        self._offsets = PartitionOffsets(bootstrap, self._properties, topic)

    @property
    def partitions(self) -> int:
        return self._partitions

    def writer(self, shard_group: int) -> KafkaShardGroupWriter:
        """See `PartitionLog.writer`."""
        if shard_group not in range(shard_group_count(self._partitions)):
            raise ValueError(f"no shard group {shard_group}")
        settings = producer_settings(
            self.bootstrap,
            self._properties,
            transactional_id=transactional_id(self.topic, shard_group),
            transaction_timeout_ms=self._transaction_timeout_ms,
            max_message_bytes=self._max_message_bytes,
        )
        return KafkaShardGroupWriter(
            self.topic, shard_group, partitions_of(shard_group, self._partitions), settings, self._known_ends
        )

    def reader(self) -> KafkaReader:
        """See `PartitionLog.reader`."""
        return KafkaReader(
            self.topic,
            follower_settings(self.bootstrap, self._properties, self._group),
            loader_settings(self.bootstrap, self._properties, self._group),
        )

    def generation(self, timeout_s: float) -> str:
        """Returns the topic id; empty for brokers before 2.8 (KIP-516).

        If the topic was recreated and the new topic is unsuitable, raises `UnsuitableTopic`, so that no process reads
        or writes an unsuitable topic.
        """
        found = self._offsets.topic_id(timeout_s)
        if found and found != self._generation:
            if self._generation:
                state = check_successor(
                    self.bootstrap, self._properties, self.topic, self._partitions, timeout_s=timeout_s
                )
                self._max_message_bytes = state.max_message_bytes
                self._known_ends.forget()
            self._generation = found
        return found

    def start_offsets(self, partitions: Sequence[int], timeout_s: float) -> Mapping[int, int]:
        """See `PartitionLog.start_offsets`."""
        return self._offsets.starts(partitions, timeout_s)

    def end_offsets(self, partitions: Sequence[int], timeout_s: float) -> Mapping[int, int]:
        """Returns the end offsets. The end offset of a partition is always higher than the offset of every record whose
        write the in-sync replicas have confirmed to a writer of this object."""
        return self._offsets.ends(partitions, timeout_s, self._known_ends.lower_bound)

    def close(self) -> None:
        """Closes the connections. The callers of `writer` and `reader` close the writers and readers themselves."""
        self._offsets.close()


def transactional_id(topic: str, shard_group: int) -> str:
    """Returns the transactional id that every writer of a shard group uses. The manager's principal needs ACLs for the
    prefix ``{topic}-shard-group-``."""
    return f"{transactional_id_prefix(topic)}{shard_group}"


def transactional_id_prefix(topic: str) -> str:
    """Returns the prefix of the transactional ids of all shard groups."""
    return f"{topic}-shard-group-"
