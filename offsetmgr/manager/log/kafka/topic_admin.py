"""Creates and checks the offsets topic on the brokers.

`offsetmgr.manager.log.topic` determines and checks the topic's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.manager.log.kafka.topics import Topics
from offsetmgr.manager.log.topic import (
    BROKER_TOPICS,
    DEFAULT_PARTITIONS,
    DEFAULT_TOPIC,
    TRANSACTIONS_TOPIC,
    ExistingTopic,
    OffsetsTopicState,
    UnsuitableTopic,
    durability_warnings,
    examine,
    replicas_for,
    settings_for,
)

DEFAULT_TIMEOUT_S: Final = 30.0


def ensure_topic(
    bootstrap: str,
    properties: Mapping[str, str],
    topic: str = DEFAULT_TOPIC,
    *,
    partitions: int = DEFAULT_PARTITIONS,
    replication_factor: int | None = None,
    min_insync_replicas: int | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> OffsetsTopicState:
    """Creates the topic, or checks the existing one. Waits up to ``timeout_s`` seconds until every partition has a
    leader.

    ``properties`` are settings of librdkafka. Any number of managers may call this function at the same time. Raises
    `UnsuitableTopic`, `PartitionCountChanged`, `TooFewBrokers`, `TimedOut`, and errors of the brokers.
    """
    if topic in BROKER_TOPICS:
        raise UnsuitableTopic(f"topic {topic}", "it is an internal topic of the brokers", "choose another topic name")

    with Topics(bootstrap, properties, timeout_s) as topics:

        def create() -> None:
            broker_default = topics.broker_replication_factor() if replication_factor is None else None
            replicas = replicas_for(topic, topics.brokers(), broker_default, replication_factor)
            topics.create(topic, partitions, replicas, settings_for(replicas, min_insync_replicas))

        state = examine(topic, topics.wait_for_leaders(topic, create), partitions)
        try:
            transactions = topics.find(TRANSACTIONS_TOPIC)
        except OffsetMgrError:  # the warnings are optional, and the principal may lack the authorization
            transactions = None
        return (
            state
            if transactions is None
            else replace(state, warnings=state.warnings + durability_warnings(transactions, state))
        )


def check_topic(
    bootstrap: str, properties: Mapping[str, str], known: OffsetsTopicState, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> OffsetsTopicState:
    """Checks the topic of a running manager again.

    Raises `UnsuitableTopic` (also for a deleted topic), `TopicRecreated`, `PartitionCountChanged`, and retriable errors
    if no broker responds.
    """
    return examine(known.name, _found(bootstrap, properties, known.name, timeout_s), known.partitions, known.topic_id)


def check_successor(
    bootstrap: str, properties: Mapping[str, str], topic: str, partitions: int, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> OffsetsTopicState:
    """Checks a topic that was recreated while the manager ran. The check is the same as the check of an existing topic
    at startup. Raises the errors of `check_topic` except `TopicRecreated`."""
    return examine(topic, _found(bootstrap, properties, topic, timeout_s), partitions)


def _found(bootstrap: str, properties: Mapping[str, str], topic: str, timeout_s: float) -> ExistingTopic:
    with Topics(bootstrap, properties, timeout_s) as topics:
        found = topics.find(topic)
    if found is None:
        raise UnsuitableTopic(f"topic {topic}", "it was deleted", "stop the managers before anything else is lost")
    return found
