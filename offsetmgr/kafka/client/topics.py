"""Describes and creates topics. A description never creates a topic, even if ``auto.create.topics.enable`` is true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from offsetmgr.core.errors import ErrorCode, ServerError, Unreachable
from offsetmgr.kafka.client import broker_settings
from offsetmgr.kafka.client.client import Client, with_retries
from offsetmgr.kafka.client.connection import attempt_deadline, remaining
from offsetmgr.kafka.client.topic_ids import format_topic_id
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Request
from offsetmgr.kafka.protocol.errors import kafka_error

_METADATA_VERSION: Final = 12
"""A version whose response contains topic ids (KIP-516)."""
_CREATE_TOPICS_VERSION: Final = 2
"""The oldest version that brokers of Kafka 4.x support (KIP-896)."""
_TRANSIENT_CODES: Final = frozenset(
    {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER}
)
"""Errors that a cluster returns for CreateTopics while its controller fails over."""


class ControllerUnavailable(ServerError):
    """The controller cannot create the topic at the moment, for example because it is failing over."""

    retriable = True


class TopicDescription(NamedTuple):
    """A topic as a broker describes it. ``topic_id`` is empty if the brokers do not support topic ids (before 2.8).
    ``replication_factor`` is the smallest number of replicas of a partition. ``leaderless`` contains the partitions
    without a leader."""

    topic_id: str
    partitions: int
    replication_factor: int
    leaderless: frozenset[int]


async def describe_topic(client: Client, name: str, deadline: float) -> TopicDescription | None:
    """Returns the description of a topic; None if the topic does not exist. Retries retriable errors until the
    deadline. Raises `OffsetMgrError`; before any broker has responded, the errors of `Client.any_connection`."""

    async def describe(attempt: float) -> TopicDescription | None:
        connection = await client.any_connection(attempt)
        wanted = {"topics": [{"topic_id": None, "name": name}], **requests.METADATA_OPTIONS}
        request = Request(ApiKey.METADATA, _METADATA_VERSION, wanted)
        answer = await connection.call(request, remaining(attempt))
        brokers = requests.broker_addresses(answer)
        if not brokers:  # then the broker has just started, and knows no topics either
            raise Unreachable(f"topic {name}", f"broker {connection.address} knows no brokers yet")
        found = next((topic for topic in answer["topics"] if topic["name"] == name), None)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else found["error_code"]
        if found is None or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        partitions = found["partitions"]
        if code or not partitions:
            raise kafka_error(code or ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name}")
        topic_id = found.get("topic_id")
        return TopicDescription(
            topic_id="" if topic_id is None else format_topic_id(topic_id.bytes),
            partitions=len(partitions),
            replication_factor=min(len(part.get("replica_nodes", ())) for part in partitions),
            leaderless=frozenset(part["partition_index"] for part in partitions if part["leader_id"] not in brokers),
        )

    return await with_retries(client, lambda: describe(attempt_deadline(deadline)), deadline)


async def topic_settings(client: Client, name: str, deadline: float) -> dict[str, str] | None:
    """Returns all settings of a topic; None if the topic does not exist. Retries as `describe_topic`, and raises the
    errors of `broker_settings.topic_settings`."""

    async def ask(attempt: float) -> dict[str, str] | None:
        connection = await client.any_connection(attempt)
        return await broker_settings.topic_settings(connection, name, attempt)

    return await with_retries(client, lambda: ask(attempt_deadline(deadline)), deadline)


async def create_topic(
    client: Client, name: str, partitions: int, replication_factor: int, settings: Mapping[str, str], deadline: float
) -> None:
    """Creates a topic. Retries retriable errors until the deadline, also while the controller fails over. The call also
    succeeds if the topic exists, for example because another process or an earlier attempt has created it. Raises
    `OffsetMgrError`."""
    what = f"creation of topic {name}"

    async def create(attempt: float) -> None:
        # With KRaft, brokers report a random broker, which passes the request on to the controller.
        connection = await client.any_connection(attempt)
        answer = await connection.call(requests.metadata(), remaining(attempt))
        controller = requests.broker_addresses(answer).get(answer.get("controller_id", -1))
        if controller is None:
            raise Unreachable(what, "no broker is the controller", "check that enough brokers and controllers are up")
        connection = await client.node(controller).connection(attempt)
        timeout_s = remaining(attempt)
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in settings.items()],
        }
        message = {"topics": [topic], "timeout": round(timeout_s * 1000), "validate_only": False}
        request = Request(ApiKey.CREATE_TOPICS, _CREATE_TOPICS_VERSION, message)
        for result in (await connection.call(request, timeout_s))["topics"]:
            code = result["error_code"]
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            error = kafka_error(code, what, detail=result["error_message"] or "")
            if code in _TRANSIENT_CODES and not error.retriable:
                raise ControllerUnavailable(what, error.why, kafka_code=code)
            raise error
        raise ServerError(what, "the response does not contain the topic")

    await with_retries(client, lambda: create(attempt_deadline(deadline)), deadline)
