"""Describes and creates topics. A description never creates a topic, even if ``auto.create.topics.enable`` is true."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import ErrorCode, OffsetMgrError, ServerError, TimedOut, Unreachable
from offsetmgr.core.model import is_valid_topic_name
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, attempt_deadline, remaining
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.errors import checked, kafka_error
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.releases import (
    CAPABILITIES,
    REPORTS_CONFIGURATION,
    REPORTS_TOPIC_IDS,
    ApiKey,
    Capability,
    Versions,
    is_before,
    release,
)
from offsetmgr.kafka.protocol.schema_codec import Message

# Requests topic ids (KIP-516), which distinguish a recreated topic from its predecessor with the same name.

_METADATA_VERSION: Final = 12
"""A version whose response contains topic ids (KIP-516)."""
_MAX_TOPICS_PER_REQUEST: Final = 5000


async def topic_ids(client: Client, topics: Collection[str] | None, deadline: float) -> dict[str, str]:
    """Returns the ids of ``topics`` (all topics if None) in Kafka's text form. Missing topics are left out.

    The result is empty if the brokers do not support topic ids.

    Raises the errors of `Client.ask_any`.
    """
    names = None if topics is None else sorted(filter(is_valid_topic_name, topics))

    async def ask(connection: BrokerConnection, until: float) -> dict[str, str]:
        if not REPORTS_TOPIC_IDS.supported_by(connection.versions):
            return {}
        found: dict[str, str] = {}
        for batch in [None] if names is None else batched(names, _MAX_TOPICS_PER_REQUEST):
            answer = await connection.call(_metadata_with_ids(batch), remaining(until))
            for topic in answer["topics"]:
                if topic["name"] is not None and topic["topic_id"] is not None and not topic["error_code"]:
                    found[topic["name"]] = format_topic_id(topic["topic_id"].bytes)
        return found

    return await client.ask_any(ask, deadline)


def _metadata_with_ids(names: Sequence[str] | None) -> Request:
    wanted = None if names is None else [{"topic_id": None, "name": name} for name in names]
    return Request(ApiKey.METADATA, _METADATA_VERSION, {"topics": wanted, **requests.METADATA_OPTIONS})


def format_topic_id(topic_id: bytes) -> str:
    """Formats a topic id like ``org.apache.kafka.common.Uuid``: URL-safe Base64 without padding."""
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(topic_id).decode().rstrip("=")


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

    async def describe(connection: BrokerConnection, attempt: float) -> TopicDescription | None:
        answer = await connection.call(_metadata_with_ids([name]), remaining(attempt))
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

    return await client.ask_any(describe, deadline)


async def topic_settings(client: Client, name: str, deadline: float) -> dict[str, str] | None:
    """Returns all settings of a topic; None if the topic does not exist. Retries as `describe_topic`, and raises the
    errors of `settings_at`."""
    return await client.ask_any(lambda connection, until: settings_at(connection, name, until), deadline)


async def create_topic(
    client: Client, name: str, partitions: int, replication_factor: int, settings: Mapping[str, str], deadline: float
) -> None:
    """Creates a topic. Retries retriable errors until the deadline, also while the controller fails over. The call also
    succeeds if the topic exists, for example because another process or an earlier attempt has created it. Raises
    `OffsetMgrError`."""
    what = f"creation of topic {name}"

    async def create(connection: BrokerConnection, attempt: float) -> None:
        # With KRaft, brokers report a random broker, which passes the request on to the controller.
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

    await client.ask_any(create, deadline)


# Lists the brokers of a cluster with their addresses and API versions.


class ClusterBroker(NamedTuple):
    """One broker. ``id`` is -1 if the cluster does not report the id (Kafka 0.8.2 without topics)."""

    id: int
    address: Address
    versions: Versions | None
    """The API versions of the broker; None if the broker does not respond."""
    release: str | None
    """The oldest release with these API versions; None if the broker does not respond."""
    capabilities: tuple[Capability, ...]
    """All capabilities that offsetmgr knows. `Capability.supported_by` returns whether the broker has a capability."""


async def describe_brokers(client: Client, deadline: float) -> list[ClusterBroker]:
    """Returns every broker of the cluster, sorted by id. Raises the errors of `Client.ask_any`."""
    addresses = await client.brokers(deadline)
    found = await client.broker_versions(list(addresses.values()), deadline)
    releases = {at: None if versions is None else release(versions) for at, versions in found.items()}
    numbered = sorted(addresses.items())
    return [ClusterBroker(number, at, found[at], releases[at], CAPABILITIES) for number, at in numbered]


# Reads settings of brokers, topics and groups with DescribeConfigs (Kafka 0.11 and later).

_TOPIC: Final = 2
_BROKER: Final = 4
_GROUP: Final = 32
"""The resource types of Kafka's protocol."""
_KINDS: Final = {_TOPIC: "topic", _BROKER: "broker", _GROUP: "group"}
_DESCRIBE_CONFIGS_VERSION: Final = 1
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS


async def offsets_retention_ms(client: Client, deadline: float) -> int | None:
    """Returns ``offsets.retention.minutes`` of a broker in milliseconds.

    Returns the default of the release if the broker does not support DescribeConfigs, and None if the broker does not
    report the setting. Raises `Unreachable`, `TimedOut`, and the errors of `Client.any_connection` and
    `Client.ask_any`.
    """
    connection = await client.any_connection(deadline)
    if not REPORTS_CONFIGURATION.supported_by(connection.versions):
        return _DAY_MS if is_before("2.0", connection.versions) else 7 * _DAY_MS  # KIP-186
    failure: OffsetMgrError | None = None
    for broker in await client.brokers(deadline):
        try:
            minutes = await broker_setting(client, broker, "offsets.retention.minutes", attempt_deadline(deadline))
            return None if minutes is None else int(minutes) * _MINUTE_MS
        except (Unreachable, TimedOut) as error:  # the cluster still lists a broker that has stopped
            failure = error
    if failure is not None:
        raise failure
    return None


async def broker_setting(client: Client, broker: int, name: str, deadline: float) -> str | None:
    """Returns one setting of a running broker; None if the broker does not report the setting. Raises `Unreachable`,
    `TimedOut`."""
    where = (await client.brokers(deadline)).get(broker)
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
    return _values(checked(await _describe(connection, broker, names, deadline), f"broker {connection.address}"))


async def group_setting(connection: BrokerConnection, group: str, name: str, deadline: float) -> str | None:
    """Returns one setting of a group of the consumer protocol from its coordinator; None if the broker does not report
    it. Raises `Unreachable`, `TimedOut`."""
    result = await _describe(connection, group, [name], deadline, _GROUP)
    return None if result["error_code"] else _values(result).get(name)


async def settings_at(connection: BrokerConnection, topic: str, deadline: float) -> dict[str, str] | None:
    """Returns all settings of a topic; None if the topic does not exist. Raises `TopicNotAuthorized` without the ACL
    DescribeConfigs on the topic, `UnsupportedOperation` for brokers before 0.11, `ServerError`, `Unreachable`,
    `TimedOut`."""
    result = await _describe(connection, topic, None, deadline, _TOPIC)
    if result["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    checked(result, f"settings of topic {topic}")
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
        found = await connection.call(
            Request(ApiKey.DESCRIBE_CONFIGS, _DESCRIBE_CONFIGS_VERSION, message), remaining(deadline)
        )
    except TimedOut as error:
        raise TimedOut(what, error.why) from None
    results: list[Message] = found["results"]
    if not results:
        raise ServerError(what, "the response does not contain the settings")
    return results[0]


def _values(result: Message) -> dict[str, str]:
    return {config["name"]: config["value"] for config in result["configs"] if config["value"]}
