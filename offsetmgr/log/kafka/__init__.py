"""`KafkaLog`: the offsets topic on a real cluster, through confluent-kafka.

One transactional producer a slot writes, consumers with ``read_committed`` read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import admin as ck_admin

from offsetmgr.cluster.kafka import Admin
from offsetmgr.config import ConnectionConfig
from offsetmgr.errors import OffsetMgrError
from offsetmgr.log.base import slot_count
from offsetmgr.log.kafka.reader import KafkaReader
from offsetmgr.log.kafka.settings import follower_settings, loader_settings, producer_settings
from offsetmgr.log.kafka.writer import KafkaSlotWriter

DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 10_000
DEFAULT_MAX_MESSAGE_BYTES: Final = 1_000_000

# The package does not say the types of these.
_OffsetSpec: Final[Any] = ck_admin.OffsetSpec  # type: ignore[attr-defined]
_COMMITTED: Final[Any] = ck.IsolationLevel.READ_COMMITTED


class KafkaLog:
    """See `offsetmgr.log.base.PartitionLog`.

    ``partitions`` is what `offsetmgr.log.topic.ensure_topic` found; ``properties`` are librdkafka's
    (``security.protocol``, ...).  ``transaction_timeout_ms`` bounds how long a writer that vanished holds up readers
    if nobody claims its slot.  ``max_message_bytes`` is the topic's ``max.message.bytes`` or less.  ``group`` is the
    group id that readers give, of which nothing else is ever seen.

    Threads: its own methods may be called from any thread.
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
        self._admin = Admin(bootstrap, ConnectionConfig(kafka=self._properties))

    @property
    def partitions(self) -> int:
        return self._partitions

    def writer(self, slot: int) -> KafkaSlotWriter:
        """See `PartitionLog.writer`."""
        if slot not in range(slot_count(self._partitions)):
            raise ValueError(f"no slot {slot}")
        settings = producer_settings(
            self.bootstrap,
            self._properties,
            transactional_id=transactional_id(self.topic, slot),
            transaction_timeout_ms=self._transaction_timeout_ms,
            max_message_bytes=self._max_message_bytes,
        )
        return KafkaSlotWriter(self.topic, slot, settings)

    def reader(self) -> KafkaReader:
        """See `PartitionLog.reader`."""
        return KafkaReader(
            self.topic,
            follower_settings(self.bootstrap, self._properties, self._group),
            loader_settings(self.bootstrap, self._properties, self._group),
        )

    def start_offsets(self, partitions: Sequence[int], timeout: float) -> Mapping[int, int]:
        """See `PartitionLog.start_offsets`."""
        return self._offsets(partitions, _OffsetSpec.earliest(), timeout)

    def end_offsets(self, partitions: Sequence[int], timeout: float) -> Mapping[int, int]:
        """See `PartitionLog.end_offsets`."""
        return self._offsets(partitions, _OffsetSpec.latest(), timeout)

    def close(self) -> None:
        """See `PartitionLog.close`. Writers and readers are closed by who made them."""
        self._admin.close()

    def _offsets(self, partitions: Sequence[int], which: Any, timeout: float) -> Mapping[int, int]:
        def ask(client: ck_admin.AdminClient, keys: list[int], left: float) -> Mapping[int, Any]:
            asked = {ck.TopicPartition(self.topic, partition): which for partition in keys}
            answers = client.list_offsets(asked, isolation_level=_COMMITTED, request_timeout=left)
            return {found.partition: future for found, future in answers.items()}

        if not partitions:
            return {}
        found = self._admin.ask_each(partitions, ask, f"{self.topic}-", timeout)
        for value in found.values():
            if isinstance(value, OffsetMgrError):
                raise value
        return {partition: int(value.offset) for partition, value in found.items()}


def transactional_id(topic: str, slot: int) -> str:
    """The id that every claimant of a slot uses: principals need rights for the prefix ``{topic}-slot-``."""
    return f"{topic}-slot-{slot}"
