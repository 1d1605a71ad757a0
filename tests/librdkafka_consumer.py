"""A consumer of librdkafka with offsetmgr's settings, such as Spark's log tables use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import confluent_kafka as ck

from offsetmgr.kafka.librdkafka import SILENT, error_of
from offsetmgr.spark.range_reader import loader_settings


class LibrdkafkaConsumer:
    def __init__(self, client: ck.Consumer) -> None:
        self._client = client

    def partition_count(self, topic: str, timeout_s: float = 60) -> int:
        """Logs in, and returns the number of partitions of an existing topic. Raises `OffsetMgrError`."""
        self._client.poll(0)  # librdkafka requests a new token during a poll
        try:
            found = self._client.list_topics(topic, timeout_s).topics[topic]
        except ck.KafkaException as error:
            raise error_of(error.args[0], f"topic {topic}") from None
        assert found.error is None
        return len(found.partitions)


@contextlib.contextmanager
def librdkafka_consumer(bootstrap: str, kafka: Mapping[str, str]) -> Iterator[LibrdkafkaConsumer]:
    """``kafka`` contains the settings of the connection, as in `ConnectionConfig`. Raises the errors of
    `librdkafka_settings`."""
    client = ck.Consumer(loader_settings(bootstrap, kafka, "offsetmgr-tests"), logger=SILENT)
    try:
        yield LibrdkafkaConsumer(client)
    finally:
        client.close()
