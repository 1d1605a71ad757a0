"""Reads settings of brokers, topics and groups with DescribeConfigs (Kafka 0.11 and later)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from offsetmgr.core.errors import ErrorCode, ServerError, TimedOut, Unreachable
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Request
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.releases import REPORTS_CONFIGURATION, Versions, is_before
from offsetmgr.kafka.protocol.schema_codec import Message

_TOPIC: Final = 2
_BROKER: Final = 4
_GROUP: Final = 32
"""The resource types of Kafka's protocol."""
_KINDS: Final = {_TOPIC: "topic", _BROKER: "broker", _GROUP: "group"}
_VERSION: Final = 1
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS


async def offsets_retention_ms(client: Client, deadline: float) -> int | None:
    """Returns ``offsets.retention.minutes`` of a broker in milliseconds.

    Returns the default of the release if the broker does not support DescribeConfigs, and None if the broker does not
    report the setting. Raises `Unreachable`, `TimedOut`, and the errors of `Client.any_connection`.
    """
    connection = await client.any_connection(deadline)
    if not REPORTS_CONFIGURATION.supported_by(connection.versions):
        return default_retention_ms(connection.versions)
    answer = await connection.call(requests.metadata(), remaining(deadline))
    if not answer["brokers"]:
        return None
    minutes = await broker_setting(client, answer["brokers"][0]["node_id"], "offsets.retention.minutes", deadline)
    return None if minutes is None else int(minutes) * _MINUTE_MS


def default_retention_ms(versions: Versions) -> int:
    """Returns the default retention of offsets in milliseconds: one day before 2.0, one week from 2.0 on (KIP-186)."""
    return _DAY_MS if is_before("2.0", versions) else 7 * _DAY_MS


async def broker_setting(client: Client, broker: int, name: str, deadline: float) -> str | None:
    """Returns one setting of a running broker; None if the broker does not report the setting. Raises `Unreachable`,
    `TimedOut`."""
    connection = await client.any_connection(deadline)
    answer = await connection.call(requests.metadata(), remaining(deadline))
    where = requests.broker_addresses(answer).get(broker)
    if where is None:
        raise Unreachable(f"broker {broker}", "the cluster does not list it: it is down, or belongs to another cluster")
    connection = await client.node(where).connection(deadline)
    if not REPORTS_CONFIGURATION.supported_by(connection.versions):
        return None
    result = await _describe(connection, broker, [name], deadline)
    return None if result["error_code"] else _values(result).get(name)


async def reported_settings(
    connection: BrokerConnection, broker: int, names: Sequence[str], deadline: float
) -> dict[str, str]:
    """Returns these settings of the broker to which ``connection`` leads. Leaves out the settings that the broker does
    not report. Raises `NotAuthorized` without the ACL DescribeConfigs on the cluster, `ServerError`, `Unreachable`,
    `TimedOut`."""
    result = await _describe(connection, broker, names, deadline)
    if result["error_code"]:
        raise kafka_error(result["error_code"], f"broker {connection.address}", detail=result["error_message"] or "")
    return _values(result)


async def group_setting(connection: BrokerConnection, group: str, name: str, deadline: float) -> str | None:
    """Returns one setting of a group of the consumer protocol from its coordinator; None if the broker does not report
    it. Raises `Unreachable`, `TimedOut`."""
    result = await _describe(connection, group, [name], deadline, _GROUP)
    return None if result["error_code"] else _values(result).get(name)


async def topic_settings(connection: BrokerConnection, topic: str, deadline: float) -> dict[str, str] | None:
    """Returns all settings of a topic; None if the topic does not exist. Raises `TopicNotAuthorized` without the ACL
    DescribeConfigs on the topic, `UnsupportedOperation` for brokers before 0.11, `ServerError`, `Unreachable`,
    `TimedOut`."""
    result = await _describe(connection, topic, None, deadline, _TOPIC)
    code = result["error_code"]
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    if code:
        raise kafka_error(code, f"settings of topic {topic}", detail=result["error_message"] or "")
    return {config["name"]: config["value"] for config in result["configs"] if config["value"] is not None}


async def _describe(
    connection: BrokerConnection, name: int | str, settings: Sequence[str] | None, deadline: float, kind: int = _BROKER
) -> Message:
    """Requests settings of a broker, a topic or a group (all settings if None), and returns the result for it. Raises
    `TimedOut`, `ServerError` and the errors of `BrokerConnection.call`."""
    what = f"{_KINDS[kind]} {name}"
    resource = {"resource_type": kind, "resource_name": str(name), "configuration_keys": settings}
    message = {"resources": [resource], "include_synonyms": False}
    try:
        found = await connection.call(Request(ApiKey.DESCRIBE_CONFIGS, _VERSION, message), remaining(deadline))
    except TimedOut as error:
        raise TimedOut(what, error.why) from None
    results: list[Message] = found["results"]
    if not results:
        raise ServerError(what, "the response does not contain the settings")
    return results[0]


def _values(result: Message) -> dict[str, str]:
    return {config["name"]: config["value"] for config in result["configs"] if config["value"]}
