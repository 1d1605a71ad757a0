"""`PartitionOffsets`: requests the topic id and the start and end offsets of partitions, and retries until the response
is plausible.

librdkafka's Admin client has two faults, which were both observed. If a response does not arrive in time, the client
returns a negative offset and no error. If the client has missed a change of the leader, it sends all further requests
to the old leader or with the old epoch. Therefore a failed request is retried with a new client. There are three
exceptions. An error that a retry cannot fix (`_NOT_RETRIED`) is raised at once. An unknown partition is retried for
`UNKNOWN_TOPIC_TIMEOUT_S` seconds, because the broker that leads a new partition may not know it yet. The first retries
after an outdated end offset use the same client, because the broker may still be writing the transaction markers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import admin as ck_admin

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import (
    AuthenticationFailed,
    ConfigError,
    NotAuthorized,
    OffsetMgrError,
    TimedOut,
    UnknownTopicOrPartition,
)
from offsetmgr.core.retry import Backoff, BlockingRetries
from offsetmgr.kafka.client.leader_router import UNKNOWN_TOPIC_TIMEOUT_S
from offsetmgr.kafka.cluster.librdkafka import Admin
from offsetmgr.manager.log.kafka.topics import id_of

_FIRST_ATTEMPT_S: Final = 0.5
_BACKOFF: Final = Backoff(0.002, 0.25)
_MARKER_WRITE_S: Final = 0.1
_NOT_RETRIED: Final = (AuthenticationFailed, NotAuthorized, ConfigError)

# confluent-kafka declares no types for these.
_OffsetSpec: Final[Any] = ck_admin.OffsetSpec
_COMMITTED: Final[Any] = ck.IsolationLevel.READ_COMMITTED


class PartitionOffsets:
    """Requests for the offsets of one topic. Any number of threads may use it."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str], topic: str) -> None:
        self._admin = Admin(bootstrap, ConnectionConfig(kafka=properties))
        self._topic = topic

    def starts(self, partitions: Sequence[int], timeout_s: float) -> dict[int, int]:
        return self._request_until_complete(partitions, _OffsetSpec.earliest(), timeout_s, lambda _: 0)

    def ends(self, partitions: Sequence[int], timeout_s: float, lower_bound: Callable[[int], int]) -> dict[int, int]:
        """Returns the last stable offsets. An offset below the ``lower_bound`` of its partition is outdated, so the
        offset is requested again."""
        return self._request_until_complete(partitions, _OffsetSpec.latest(), timeout_s, lower_bound)

    def topic_id(self, timeout_s: float) -> str:
        """Returns the current id of the topic; empty if the brokers do not support topic ids."""
        start, attempt = time.monotonic(), _FIRST_ATTEMPT_S
        deadline = start + timeout_s
        retries = BlockingRetries(deadline, _BACKOFF)
        requests = ck.TopicCollection([self._topic])
        while True:
            remaining = max(min(attempt, deadline - time.monotonic()), 0.05)

            def send(client: ck_admin.AdminClient, keys: list[str], remaining: float) -> Mapping[str, Any]:
                found: Mapping[str, Any] = client.describe_topics(requests, request_timeout=remaining)
                return {key: found[key] for key in keys}

            try:
                found = self._admin.ask_each([self._topic], send, "topic ", remaining)[self._topic]
            except OffsetMgrError as error:
                found = error
            if not isinstance(found, OffsetMgrError):
                return id_of(found)
            if _is_final(found, start) or retries.exhausted:
                raise found
            self._admin.close()
            attempt *= 2
            retries.pause()

    def close(self) -> None:
        """Closes the connections; the next call opens new ones."""
        self._admin.close()

    def _request_until_complete(
        self, partitions: Sequence[int], spec: Any, timeout_s: float, lower_bound: Callable[[int], int]
    ) -> dict[int, int]:
        start, attempt = time.monotonic(), _FIRST_ATTEMPT_S
        deadline = start + timeout_s
        retries = BlockingRetries(deadline, _BACKOFF)
        offsets: dict[int, int] = {}
        while missing := [partition for partition in partitions if partition not in offsets]:
            remaining = max(min(attempt, deadline - time.monotonic()), 0.05)
            found, failure = self._request_once(missing, spec, remaining)
            outdated = [partition for partition, offset in found.items() if offset < lower_bound(partition)]
            offsets.update((partition, offset) for partition, offset in found.items() if partition not in outdated)
            if outdated and failure is None:
                failure = TimedOut(f"end of {self._topic}-{outdated[0]}", "no broker returns the newest records yet")
            if failure is None:
                continue
            if _is_final(failure, start) or retries.exhausted:
                raise failure
            if not outdated or retries.next_pause_s > _MARKER_WRITE_S:
                self._admin.close()
                attempt *= 2
            retries.pause()
        return offsets

    def _request_once(
        self, partitions: list[int], spec: Any, timeout_s: float
    ) -> tuple[dict[int, int], OffsetMgrError | None]:
        """Sends one request. Returns the offsets that arrived within ``timeout_s`` seconds, and an error if some are
        missing."""

        def send(client: ck_admin.AdminClient, keys: list[int], remaining: float) -> Mapping[int, Any]:
            requests = {ck.TopicPartition(self._topic, partition): spec for partition in keys}
            results = client.list_offsets(requests, isolation_level=_COMMITTED, request_timeout=remaining)
            return {found.partition: future for found, future in results.items()}

        try:
            results = self._admin.ask_each(partitions, send, f"{self._topic}-", timeout_s)
        except OffsetMgrError as error:
            return {}, error
        offsets: dict[int, int] = {}
        failure: OffsetMgrError | None = None
        for partition, value in results.items():
            if isinstance(value, OffsetMgrError):
                failure = value
            elif value.offset < 0:
                failure = TimedOut(f"offset of {self._topic}-{partition}", "no response within the timeout")
            else:
                offsets[partition] = int(value.offset)
        return offsets, failure


def _is_final(error: OffsetMgrError, start: float) -> bool:
    """Returns whether another request cannot succeed. ``start`` is the time of the first request, of the monotonic
    clock."""
    if isinstance(error, UnknownTopicOrPartition):
        return time.monotonic() >= start + UNKNOWN_TOPIC_TIMEOUT_S
    return isinstance(error, _NOT_RETRIED)
