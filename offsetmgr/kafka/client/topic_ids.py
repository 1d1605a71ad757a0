"""Requests topic ids (KIP-516), which distinguish a recreated topic from its predecessor with the same name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import TopicName

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.model import is_valid_topic_name
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.deadline import remaining
from offsetmgr.kafka.protocol.releases import REPORTS_TOPIC_IDS

_MAX_TOPICS_PER_REQUEST: Final = 5000


async def topic_ids(client: Client, topics: Collection[str] | None, deadline: float) -> dict[str, str]:
    """Returns the ids of ``topics`` (all topics if None) in Kafka's text form. Missing topics are left out.

    The result is empty if the brokers do not support topic ids.

    Raises the errors of `Client.any_connection`.
    """
    connection = await client.any_connection(deadline)
    if not REPORTS_TOPIC_IDS.supported_by(connection.versions):
        return {}
    found: dict[str, str] = {}
    names = None if topics is None else sorted(filter(is_valid_topic_name, topics))
    batches = (
        [None]
        if names is None
        else [names[at : at + _MAX_TOPICS_PER_REQUEST] for at in range(0, len(names), _MAX_TOPICS_PER_REQUEST)]
    )
    for batch in batches:
        request = MetadataRequest(
            topics=None
            if batch is None
            else tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in batch),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        answer = await connection.call(request, MetadataResponse, remaining(deadline))
        for topic in answer.topics:
            if topic.name is not None and topic.topic_id is not None and int(topic.error_code) == ErrorCode.NONE:
                found[str(topic.name)] = format_topic_id(topic.topic_id.bytes)
    return found


def format_topic_id(topic_id: bytes) -> str:
    """Formats a topic id like ``org.apache.kafka.common.Uuid``: URL-safe Base64 without padding."""
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(topic_id).decode().rstrip("=")
