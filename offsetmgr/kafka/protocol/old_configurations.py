"""DescribeConfigs for brokers of 0.11 and 1.0, in version 0, for which kio has no schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from offsetmgr.kafka.protocol.older_broker import OlderBroker
from offsetmgr.kafka.protocol.primitives import INT8, INT16, Cursor
from offsetmgr.kafka.protocol.schema_codec import Message, encode_request

_UNKNOWN_SOURCE: Final = 0
_DEFAULT_SOURCE: Final = 5


async def describe_configs(broker: OlderBroker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Requests settings. A request in version 0 is one in version 1 without its last byte, ``include_synonyms``."""
    version = broker.version(api_key, requested)
    if version:
        return await broker.send(api_key, version, message)
    return await broker.exchange_encoded(api_key, 0, encode_request(api_key, 1, message)[:-1], _read_v0)


def _read_v0(cursor: Cursor) -> Message:
    def config() -> Message:
        return {
            "name": cursor.string(),
            "value": cursor.nullable_string(),
            "read_only": cursor.boolean(),
            "config_source": _DEFAULT_SOURCE if cursor.boolean() else _UNKNOWN_SOURCE,
            "is_sensitive": cursor.boolean(),
            "synonyms": [],
        }

    def result() -> Message:
        return {
            "error_code": cursor.number(INT16),
            "error_message": cursor.nullable_string(),
            "resource_type": cursor.number(INT8),
            "resource_name": cursor.string(),
            "configs": [config() for _ in range(cursor.count(7))],
        }

    return {"throttle_time": cursor.int32(), "results": [result() for _ in range(cursor.count(11))]}
