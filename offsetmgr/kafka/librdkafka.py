"""Clients of librdkafka: their settings, and the conversion of their errors."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

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
from offsetmgr.kafka.client.sasl import GSSAPI, OAUTHBEARER, TOKEN_KEYS
from offsetmgr.kafka.protocol.errors import kafka_error

# Converts errors of librdkafka's consumers into errors of offsetmgr, and silences the consumers' log.

SILENT: Final = logging.getLogger("offsetmgr.librdkafka")
"""Receives the log messages of librdkafka, which are not needed, because its clients raise every relevant error."""
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False

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


# Settings of librdkafka clients: the user's settings, with the logins that librdkafka leaves to the application.


def librdkafka_settings(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings that every client of librdkafka accepts.

    With OAUTHBEARER, the clients get their tokens from the same source as offsetmgr's own client, so a token endpoint
    and a token command work alike in both. Gets the first token, so that a failure has its own error. Raises the
    errors of `TokenSource.token`, and `UnsupportedOperation` for Kerberos if the installed librdkafka lacks it.
    """
    kept = {key: value for key, value in properties.items() if not key.startswith(TOKEN_KEYS)}
    if not properties.get("security.protocol", "").lower().startswith("sasl"):
        return kept
    name = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or GSSAPI).upper()
    if name == GSSAPI and not _has_kerberos():
        raise UnsupportedOperation(
            "Kerberos (SASL mechanism GSSAPI)",
            "librdkafka would be needed here, and the wheel of confluent-kafka is built without Kerberos (sasl_gssapi)",
            "the extra kerberos of offsetmgr suffices for commands that consume no records; the others need "
            "confluent-kafka built with libsasl2: pip install --no-binary confluent-kafka confluent-kafka",
        )
    if name != OAUTHBEARER:
        return kept
    from offsetmgr.kafka.client.oauth_tokens import token_source

    source = token_source(properties)
    source.token()

    def token(_: str) -> tuple[str, float, str, dict[str, str]]:
        current = source.token()
        return current.value, current.expires_at, "", dict(source.extensions)

    return {**kept, "oauth_cb": token}


@functools.cache
def _has_kerberos() -> bool:
    """Returns whether librdkafka is built with libsasl2. The client has no address, so it does not connect."""
    try:
        AdminClient({"security.protocol": "sasl_plaintext", "sasl.mechanism": GSSAPI, "log_level": 0})
    except KafkaException:
        return False
    return True
