"""Requests topic ids (KIP-516), which distinguish a recreated topic from its predecessor with the same name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import ErrorCode
from offsetmgr.core.model import is_valid_topic_name
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import remaining
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Request
from offsetmgr.kafka.protocol.releases import REPORTS_TOPIC_IDS

_VERSION: Final = 12
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
    for batch in [None] if names is None else batched(names, _MAX_TOPICS_PER_REQUEST):
        wanted = None if batch is None else [{"topic_id": None, "name": name} for name in batch]
        request = Request(ApiKey.METADATA, _VERSION, {"topics": wanted, **requests.METADATA_OPTIONS})
        answer = await connection.call(request, remaining(deadline))
        for topic in answer["topics"]:
            if topic["name"] is not None and topic["topic_id"] is not None and topic["error_code"] == ErrorCode.NONE:
                found[topic["name"]] = format_topic_id(topic["topic_id"].bytes)
    return found


def format_topic_id(topic_id: bytes) -> str:
    """Formats a topic id like ``org.apache.kafka.common.Uuid``: URL-safe Base64 without padding."""
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(topic_id).decode().rstrip("=")
