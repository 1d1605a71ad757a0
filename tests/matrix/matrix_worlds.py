"""What the tests of older releases share."""

from __future__ import annotations

from typing import Final

from offsetmgr.cluster.kafka import KafkaCluster
from offsetmgr.model import LogRange, TopicPartition

RELEASES: Final = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "1.1.1", "2.8.2")


def has_leaders(bootstrap: str, topic: str, partitions: int) -> bool:
    """Whether every partition of a topic can be used."""
    with KafkaCluster(bootstrap) as cluster:
        found = cluster.log_ranges([TopicPartition(topic, number) for number in range(partitions)])
    return all(isinstance(log, LogRange) for log in found.values())


def librdkafka_settings(release: str) -> dict[str, str]:
    """What librdkafka must be told of brokers that it cannot ask."""
    if not release.startswith(("0.8", "0.9")):
        return {}
    return {"api.version.request": "false", "broker.version.fallback": "0.8.2.2"}
