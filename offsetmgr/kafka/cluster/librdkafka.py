"""Converts errors of librdkafka's consumers into errors of offsetmgr, and silences the consumers' log."""

from __future__ import annotations

import logging
from typing import Final

import confluent_kafka as ck

from offsetmgr.core.errors import (
    AuthenticationFailed,
    ErrorCode,
    OffsetMgrError,
    ServerError,
    TimedOut,
    UnknownTopicOrPartition,
    Unreachable,
    UnsupportedOperation,
)
from offsetmgr.kafka.protocol.errors import kafka_error

_SILENCED_LOG: Final = logging.getLogger("offsetmgr.librdkafka")
_SILENCED_LOG.addHandler(logging.NullHandler())
_SILENCED_LOG.propagate = False

_UNREACHABLE: Final = frozenset(
    {ck.KafkaError._TRANSPORT, ck.KafkaError._ALL_BROKERS_DOWN, ck.KafkaError._RESOLVE, ck.KafkaError._FAIL}
)
_TIMED_OUT: Final = frozenset({ck.KafkaError._TIMED_OUT, ck.KafkaError._TIMED_OUT_QUEUE, ck.KafkaError._MSG_TIMED_OUT})
_UNKNOWN: Final = frozenset({ck.KafkaError._UNKNOWN_TOPIC, ck.KafkaError._UNKNOWN_PARTITION})


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
