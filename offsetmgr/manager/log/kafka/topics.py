"""`Topics`: describes and creates topics. `offsetmgr.manager.log.topic` determines the topics' settings.

A lookup never creates a topic, even if ``auto.create.topics.enable`` is true.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import admin as ck_admin

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import OffsetMgrError, TimedOut, UnknownTopicOrPartition
from offsetmgr.core.retry import BlockingRetries
from offsetmgr.kafka.cluster.librdkafka import RETRY_BACKOFF, Admin, error_of
from offsetmgr.manager.log.topic import ExistingTopic

_TRANSIENT_CODES: Final = frozenset(
    {ck.KafkaError.UNKNOWN, ck.KafkaError.REQUEST_TIMED_OUT, ck.KafkaError.NOT_CONTROLLER, ck.KafkaError._TIMED_OUT}
)
"""Errors that a cluster returns while its controller fails over."""

# confluent-kafka declares no types for these.
_ConfigResource: Final[Any] = ck_admin.ConfigResource
_ResourceType: Final[Any] = ck_admin.ResourceType
_NewTopic: Final[Any] = ck_admin.NewTopic


def id_of(description: Any) -> str:
    """Returns the topic id of a result of ``describe_topics``; empty if the brokers have none."""
    found = description.topic_id
    known = found is not None and (found.get_most_significant_bits() or found.get_least_significant_bits())
    return str(found) if known else ""


class Topics(Closeable):
    """An admin connection for topics. All requests of one connection together end within about ``timeout_s``
    seconds."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str], timeout_s: float) -> None:
        self._admin = Admin(bootstrap, ConnectionConfig(kafka=dict(properties), timeout_ms=round(timeout_s * 1000)))
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def brokers(self) -> int:
        """Returns the number of live brokers."""
        self._admin.client()
        return len(self._admin.brokers)

    def broker_replication_factor(self) -> int | None:
        """Returns ``offsets.topic.replication.factor`` of one broker; None if it is unreadable (for example without
        authorization)."""
        self._admin.client()
        if not self._admin.brokers:
            return None
        settings = self._settings(
            _ConfigResource(_ResourceType.BROKER, str(next(iter(self._admin.brokers)))), self._remaining() / 2
        )
        entry = None if isinstance(settings, OffsetMgrError) else settings.get("offsets.topic.replication.factor")
        return int(entry.value) if entry is not None and entry.value else None

    def find(self, name: str) -> ExistingTopic | None:
        """Returns the topic with its settings; None if it does not exist. Raises `OffsetMgrError`."""
        names = ck.TopicCollection([name])
        found = self._request(
            name,
            lambda client, remaining: client.describe_topics(names, request_timeout=remaining)[name],
            self._remaining(),
        )
        if isinstance(found, UnknownTopicOrPartition):
            return None
        settings = self._settings(_ConfigResource(_ResourceType.TOPIC, name), self._remaining())
        if isinstance(found, OffsetMgrError):
            raise found
        if isinstance(settings, UnknownTopicOrPartition):
            return None
        if isinstance(settings, OffsetMgrError):
            raise settings
        return ExistingTopic(
            topic_id=id_of(found),
            partitions=len(found.partitions),
            replication_factor=min(len(partition.replicas) for partition in found.partitions),
            leaderless=frozenset(p.id for p in found.partitions if p.leader is None or p.leader.id < 0),
            settings={key: entry.value for key, entry in settings.items() if entry.value is not None},
        )

    def create(self, name: str, partitions: int, replication_factor: int, settings: Mapping[str, str]) -> None:
        """Creates the topic, with retries while the controller fails over. The call also succeeds if another process
        has created the topic. Raises `OffsetMgrError`."""
        new = _NewTopic(name, partitions, replication_factor, config=dict(settings))
        retries = BlockingRetries(self._deadline, RETRY_BACKOFF)
        while True:
            created = self._admin.client().create_topics([new], request_timeout=self._remaining())[name]
            try:
                created.result(self._remaining() + 1)
            except ck.KafkaException as raised:
                error = raised.args[0]
                if error.code() == ck.KafkaError.TOPIC_ALREADY_EXISTS:
                    return
                if error.code() not in _TRANSIENT_CODES or not retries.pause():
                    raise error_of(error, f"creation of topic {name}") from None
            else:
                return

    def wait_for_leaders(self, name: str, create: Callable[[], None]) -> ExistingTopic:
        """Returns the topic once every partition has a leader. Calls ``create`` if the topic does not exist, and again
        if the topic disappears because it was being deleted. Raises `TimedOut`."""
        retries = BlockingRetries(self._deadline, RETRY_BACKOFF)
        while True:
            found = self.find(name)
            if found is None:
                create()
                found = self.find(name)
            if found is not None and not found.leaderless:
                return found
            if not retries.pause():
                missing = "it does not exist" if found is None else f"{len(found.leaderless)} partitions have no leader"
                raise TimedOut(
                    f"topic {name}", f"{missing} after {self._timeout_s:g} s", "check that enough brokers are up"
                )

    def close(self) -> None:
        """Closes the connections."""
        self._admin.close()

    def _settings(self, resource: Any, timeout_s: float) -> Any:
        def describe(client: ck_admin.AdminClient, remaining: float) -> Any:
            (future,) = client.describe_configs([resource], request_timeout=remaining).values()
            return future

        return self._request(resource.name, describe, timeout_s)

    def _request(self, name: str, call: Callable[[ck_admin.AdminClient, float], Any], timeout_s: float) -> Any:
        """Sends one request. Returns the result of the request, or the `OffsetMgrError` if the request fails. ``call``
        sends the request and returns its future."""
        answers = self._admin.ask_each(
            [name], lambda client, _, remaining: {name: call(client, remaining)}, "topic ", timeout_s
        )
        return answers[name]

    def _remaining(self) -> float:
        return max(self._deadline - time.monotonic(), 0.1)
