"""Translates requests for brokers that do not support the version in which offsetmgr writes them.

Other modules write each request and read its response in one fixed version. For an older broker, this module translates
the request into one or more requests in versions that the broker supports, and merges their responses into one response
of the original version. Messages are dicts, as in `schema_codec`. Each of the other modules named ``old_...`` contains
the translation of some APIs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from offsetmgr.core.errors import UnsupportedOperation
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Channel, EncodedRequest, Request
from offsetmgr.kafka.protocol.old_configurations import describe_configs
from offsetmgr.kafka.protocol.old_group_requests import find_coordinators, join_group, leave_group, list_groups
from offsetmgr.kafka.protocol.old_log_reads import fetch, list_offsets
from offsetmgr.kafka.protocol.old_metadata import metadata
from offsetmgr.kafka.protocol.old_offset_commit import offset_commit
from offsetmgr.kafka.protocol.old_offset_fetch import offset_fetch
from offsetmgr.kafka.protocol.older_broker import OlderBroker, nearest_version
from offsetmgr.kafka.protocol.request_codec import decoded
from offsetmgr.kafka.protocol.schema_codec import Message
from offsetmgr.kafka.protocol.schema_declarations import UnknownSchema


async def send_translated(connection: Channel, request: Request | EncodedRequest, timeout_s: float) -> Message:
    """Sends a request to a broker that does not support this version of the API. Returns a response in the version of
    the request; fields that the broker's version lacks may be missing. Raises `UnsupportedOperation` if offsetmgr
    cannot write the request in a version that the broker supports."""
    request = decoded(request)
    translate = _TRANSLATIONS.get(request.api_key, nearest_version)
    try:
        return await translate(OlderBroker(connection, timeout_s), request.api_key, request.version, request.message)
    except UnknownSchema as missing:
        where, why = f"broker {connection.address}", f"it is too old: offsetmgr does not know {missing}"
        raise UnsupportedOperation(where, why) from None


_TRANSLATIONS: Final[Mapping[int, Callable[[OlderBroker, int, int, Mapping[str, Any]], Awaitable[Message]]]] = {
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.METADATA: metadata,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.FIND_COORDINATOR: find_coordinators,
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.LIST_GROUPS: list_groups,
}
