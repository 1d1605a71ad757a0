"""`LibrdkafkaCluster`: implements `Cluster` with confluent-kafka's Admin client.

offsetmgr uses this class only for SASL mechanisms and key stores that its own Kafka client does not support. In all
other cases offsetmgr uses `KafkaCluster`, which supports all releases of brokers. The class `Admin` creates all Admin
clients of the project. librdkafka endlessly tries to reach dead servers, and prints errors, so `Admin` limits the time
of every call, silences the log, and converts errors of librdkafka into errors of offsetmgr.
"""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import confluent_kafka as ck
from confluent_kafka import admin as ck_admin
from confluent_kafka.admin import AdminClient

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import Clock
from offsetmgr.core.clock_difference import ClockDifference
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import (
    AuthenticationFailed,
    ConfigError,
    OffsetMgrError,
    ServerError,
    TimedOut,
    UnknownTopicOrPartition,
    Unreachable,
    UnsupportedOperation,
)
from offsetmgr.core.model import (
    GroupDescription,
    LogRange,
    TopicPartition,
    is_valid_topic_name,
)
from offsetmgr.core.retry import Backoff, BlockingRetries
from offsetmgr.kafka.cluster.group_descriptions import group_description
from offsetmgr.kafka.cluster.librdkafka_settings import librdkafka_settings
from offsetmgr.kafka.protocol.errors import LEADER_UNKNOWN, RETRIABLE, kafka_error

T = TypeVar("T")

# confluent-kafka declares no types for these.
_OffsetSpec: Final[Any] = ck_admin.OffsetSpec
_ConfigResource: Final[Any] = ck_admin.ConfigResource
_ResourceType: Final[Any] = ck_admin.ResourceType

_POLL_INTERVAL_S: Final = 0.05
RETRY_BACKOFF: Final = Backoff.fixed(0.1)
"""The pauses between two requests of librdkafka's Admin client."""
_FIRST_ATTEMPT_S: Final = 1.0
_MAX_GROUPS_PER_CALL: Final = 500
"""The maximum number of groups in one call of the Admin client. librdkafka sends one request for each group, and sends
all requests of a call at the same time. With 20,000 requests, confluent-kafka 2.16.1 crashed the process (SIGSEGV)."""
_MAX_REPORTS: Final = 100
_SILENCED_LOG: Final = logging.getLogger("offsetmgr.librdkafka")
_SILENCED_LOG.addHandler(logging.NullHandler())
_SILENCED_LOG.propagate = False

_UNREACHABLE: Final = frozenset(
    {ck.KafkaError._TRANSPORT, ck.KafkaError._ALL_BROKERS_DOWN, ck.KafkaError._RESOLVE, ck.KafkaError._FAIL}
)
_TIMED_OUT: Final = frozenset({ck.KafkaError._TIMED_OUT, ck.KafkaError._TIMED_OUT_QUEUE, ck.KafkaError._MSG_TIMED_OUT})
_UNKNOWN: Final = frozenset({ck.KafkaError._UNKNOWN_TOPIC, ck.KafkaError._UNKNOWN_PARTITION})
_RETRIABLE_CODES: Final = RETRIABLE | LEADER_UNKNOWN
_STALE_EPOCH: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH})
"""Error codes after which offsetmgr creates a new Admin client. The leader of a partition has changed, but librdkafka's
Admin client keeps the first leader epoch that it has seen."""


def error_of(error: ck.KafkaError, what: str) -> OffsetMgrError:
    """Converts an error of librdkafka or of the broker. ``what`` names the object or operation that failed."""
    code = error.code()
    if code in _TIMED_OUT:
        return TimedOut(what, "no answer within the timeout")
    if code in _UNREACHABLE:
        return Unreachable(what, error.str())
    if code == ck.KafkaError._AUTHENTICATION:
        return AuthenticationFailed(what, "the broker rejected the credentials (SASL_AUTHENTICATION_FAILED)")
    if code in _UNKNOWN:
        return UnknownTopicOrPartition(what, "the topic or partition does not exist on the broker")
    if code == ck.KafkaError._UNSUPPORTED_FEATURE:
        return UnsupportedOperation(what, "the brokers are too old for it")
    if code < 0 and code != ErrorCode.UNKNOWN_SERVER_ERROR:
        return ServerError(what, error.str())
    return kafka_error(code, what)


class Admin:
    """An Admin client of librdkafka. Every call has a time limit, and the class converts errors of librdkafka into
    errors of offsetmgr."""

    def __init__(self, bootstrap: str, config: ConnectionConfig) -> None:
        self.bootstrap = bootstrap
        self.timeout_s = config.timeout_ms / 1000
        self.cluster_id: str | None = None
        self.brokers: dict[int, str] = {}
        """Addresses of the brokers by id."""
        self._config = config
        self._client: AdminClient | None = None
        self._reported: deque[ck.KafkaError] = deque(maxlen=_MAX_REPORTS)

    def client(self, timeout_s: float | None = None) -> AdminClient:
        """Returns the Admin client, connected. ``timeout_s`` (seconds) replaces the configured timeout.

        Raises `Unreachable`, `TimedOut`, `AuthenticationFailed`, `ServerError` (not Kafka), `ConfigError`.
        """
        if self._client is None:
            client = self._create()
            cluster = self._first_answer(client, self.timeout_s if timeout_s is None else timeout_s)
            self.cluster_id = cluster.cluster_id or None
            self.brokers = {node.id: f"{node.host}:{node.port}" for node in cluster.nodes}
            self._client = client
        return self._client

    def ask_each(
        self,
        keys: Iterable[T],
        call: Callable[[AdminClient, list[T], float], Mapping[T, Any]],
        name: str = "",
        timeout_s: float | None = None,
    ) -> dict[T, Any]:
        """Makes a bulk call and retries retriable errors. ``call`` returns one future for each key.

        Returns the value or the `OffsetMgrError` of each key. Error messages contain ``name`` in front of the key.
        ``timeout_s`` (seconds) replaces the configured timeout.
        """
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        client = self.client(timeout_s)
        done: dict[T, Any] = {}
        pending, attempt = list(keys), _FIRST_ATTEMPT_S
        retries = BlockingRetries(deadline, RETRY_BACKOFF)
        while pending:
            # The first attempts have short timeouts, because on a new cluster librdkafka waits for the whole timeout
            # even after the broker has responded.
            left = min(attempt, max(deadline - time.monotonic(), 0.1))
            attempt *= 2
            again: list[T] = []
            stale = False
            for key, future in call(client, pending, left).items():
                try:
                    done[key] = future.result(left + 1)
                except ck.KafkaException as error:
                    found = error.args[0]
                    done[key] = error_of(found, f"{name}{key}")
                    if found.code() in _RETRIABLE_CODES or found.code() in _TIMED_OUT:
                        again.append(key)
                    stale = stale or found.code() in _STALE_EPOCH
                except concurrent.futures.TimeoutError:
                    done[key] = TimedOut(f"{name}{key}", "no answer within the timeout")
                    again.append(key)
            pending = again
            if pending and not retries.pause():
                break
            if stale:
                self._client = None
                client = self.client(max(deadline - time.monotonic(), 0.1))
        return done

    def close(self) -> None:
        """Releases the client."""
        self._client = None

    def _create(self) -> AdminClient:
        settings: dict[str, Any] = {
            # Reconnects are frequent, because every call has a time limit.
            "reconnect.backoff.ms": "50",
            "reconnect.backoff.max.ms": "500",
            # A request about a missing topic must not create the topic.
            "allow.auto.create.topics": "false",
            **librdkafka_settings(self._config.kafka),
            "bootstrap.servers": self.bootstrap,
            "error_cb": self._reported.append,
        }
        try:
            return AdminClient(settings, logger=_SILENCED_LOG)
        except ck.KafkaException as error:
            raise ConfigError("Kafka connection settings", error.args[0].str()) from None

    def _first_answer(self, client: AdminClient, timeout_s: float) -> Any:
        """Sends the first request and returns its response. Fails at once if librdkafka reports that no broker can be
        reached."""
        what, deadline = f"Kafka at {self.bootstrap}", time.monotonic() + timeout_s
        future = client.describe_cluster(request_timeout=max(timeout_s, 0.1))
        while True:
            try:
                return future.result(_POLL_INTERVAL_S)
            except ck.KafkaException as error:
                raise self._reported_error(what) or error_of(error.args[0], what) from None
            except concurrent.futures.TimeoutError:
                client.poll(0)
                if self._is_unreachable():
                    raise self._reported_error(what) or Unreachable(what, "no broker can be reached") from None
                if time.monotonic() >= deadline:
                    raise self._reported_error(what) or TimedOut(what, f"no answer within {timeout_s:g} s") from None

    def _is_unreachable(self) -> bool:
        codes = {error.code() for error in tuple(self._reported)}
        return bool(codes & {ck.KafkaError._ALL_BROKERS_DOWN, ck.KafkaError._AUTHENTICATION})

    def _reported_error(self, what: str) -> OffsetMgrError | None:
        reported = tuple(self._reported)
        # The most specific error has precedence, regardless of the order in which the errors arrived.
        for error in reported:
            if error.code() == ck.KafkaError._AUTHENTICATION:
                return error_of(error, what)
        # librdkafka reports a failed TLS handshake either as _SSL, or as _TRANSPORT with the error text of OpenSSL.
        if any(error.code() == ck.KafkaError._SSL or "SSL routines" in error.str() for error in reported):
            return ServerError(
                what, "no TLS connection", "check that this is the port of a TLS listener, and that its CA is trusted"
            )
        for error in reported:
            text = error.str()
            if "ApiVersion" in text or "Invalid response" in text or "correlation" in text:
                return _not_kafka(what)
            if error.code() in (ck.KafkaError._TRANSPORT, ck.KafkaError._RESOLVE):
                return Unreachable(
                    what, _short_reason(text), "check that it is running, and that host and port are right"
                )
        # librdkafka reports no specific error for a connection that the server closes silently.
        return _not_kafka(what) if self._reported else None


def _not_kafka(what: str) -> ServerError:
    return ServerError(
        what,
        "the server at this address does not respond like a Kafka broker",
        "check the port, and security.protocol (a TLS listener closes plain-text connections)",
    )


def _short_reason(text: str) -> str:
    """Returns the reason at the end of librdkafka's message, such as ``Connection refused``."""
    head = text.split(" (after ", maxsplit=1)[0]
    return head.rsplit("failed: ", 1)[-1].rsplit(": ", 1)[-1] or text


class LibrdkafkaCluster(Closeable):
    """Implements `offsetmgr.kafka.cluster.base.Cluster`."""

    def __init__(self, bootstrap: str, config: ConnectionConfig | None = None) -> None:
        self._admin = Admin(bootstrap, config or ConnectionConfig())

    def cluster_id(self) -> str | None:
        self._admin.client()
        return self._admin.cluster_id

    def brokers(self) -> frozenset[str]:
        self._admin.client()
        return frozenset(address.lower() for address in self._admin.brokers.values())

    def topics(self, names: Iterable[str] | None = None) -> Mapping[str, int]:
        valid_names = None if names is None else set(filter(is_valid_topic_name, names))
        if valid_names is not None and not valid_names:
            return {}
        client = self._admin.client()
        single = next(iter(valid_names)) if valid_names is not None and len(valid_names) == 1 else None
        try:
            found = client.list_topics(topic=single, timeout=self._admin.timeout_s)
        except ck.KafkaException as error:
            raise error_of(error.args[0], "topics") from None
        return {
            name: len(topic.partitions)
            for name, topic in sorted(found.topics.items())
            if topic.error is None and (valid_names is None or name in valid_names)
        }

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        from offsetmgr.kafka.client.log_ranges import ranges_between

        starts = self._list_offsets(list(dict.fromkeys(partitions)), _OffsetSpec.earliest())
        ends = self._list_offsets([tp for tp, at in starts.items() if isinstance(at, int)], _OffsetSpec.latest())
        return ranges_between(starts, ends)

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | OffsetMgrError | None]:
        found = self._list_offsets(list(dict.fromkeys(partitions)), _OffsetSpec.for_timestamp(timestamp_ms))
        return {tp: None if isinstance(value, int) and value < 0 else value for tp, value in found.items()}

    def describe_groups(self, groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        requested = list(dict.fromkeys(groups))
        if not requested:
            return {}
        described: dict[str, GroupDescription | OffsetMgrError] = {}
        # The first call has one group. While a new cluster creates its offsets topic, no group has a coordinator. In
        # this state a call for hundreds of groups crashed librdkafka 2.16.1 (in rd_kafka_enq_once_del_source_return).
        for at in (0, *range(1, len(requested), _MAX_GROUPS_PER_CALL)):
            found = self._admin.ask_each(
                requested[at : at + _MAX_GROUPS_PER_CALL if at else 1],
                lambda client, names, left: client.describe_consumer_groups(names, request_timeout=left),
                "group ",
            )
            for group, value in found.items():
                described[group] = value if isinstance(value, OffsetMgrError) else group_description(value)
        return described

    def offsets_retention_ms(self) -> int | None:
        self._admin.client()
        if not self._admin.brokers:
            return None
        minutes = self.broker_setting(next(iter(self._admin.brokers)), "offsets.retention.minutes")
        return None if minutes is None else int(minutes) * 60_000

    def clock_difference(self, clock: Clock) -> ClockDifference | None:  # noqa: ARG002 - the interface has it
        return None

    def broker_setting(self, broker: int, name: str) -> str | None:
        resource = _ConfigResource(_ResourceType.BROKER, str(broker))
        found = self._admin.ask_each(
            [resource], lambda client, keys, left: client.describe_configs(keys, request_timeout=left)
        )
        settings = found[resource]
        if isinstance(settings, OffsetMgrError):
            if isinstance(settings, Unreachable | TimedOut):
                raise settings
            return None
        entry = settings.get(name)
        return entry.value or None if entry is not None else None

    def close(self) -> None:
        self._admin.close()

    def _list_offsets(self, partitions: list[TopicPartition], spec: Any) -> dict[TopicPartition, int | OffsetMgrError]:
        """Returns the offset that ``spec`` describes for each partition, or an error."""
        from offsetmgr.kafka.client.log_ranges import impossible_partitions

        def call(client: AdminClient, keys: list[TopicPartition], left: float) -> Mapping[TopicPartition, Any]:
            requested = {ck.TopicPartition(tp.topic, tp.partition): spec for tp in keys}
            answers = client.list_offsets(requested, request_timeout=left)
            return {TopicPartition(found.topic, found.partition): future for found, future in answers.items()}

        # If one topic name in a call is invalid, librdkafka waits for the timeout and returns no results for the other
        # topics.
        answers: dict[TopicPartition, int | OffsetMgrError] = {**impossible_partitions(partitions)}
        if len(answers) < len(partitions):
            found = self._admin.ask_each([tp for tp in partitions if tp not in answers], call)
            answers |= {tp: v if isinstance(v, OffsetMgrError) else _offset_of(v, tp) for tp, v in found.items()}
        return answers


def _offset_of(found: Any, tp: TopicPartition) -> int | OffsetMgrError:
    """Returns the offset of a response. If the broker does not respond in time, librdkafka returns the constant
    OFFSET_INVALID instead of an error."""
    if found.offset == ck.OFFSET_INVALID:
        return TimedOut(str(tp), "no answer within the timeout")
    return int(found.offset)
