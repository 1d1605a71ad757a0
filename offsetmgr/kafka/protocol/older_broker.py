"""The connection to a broker that does not support the versions in which offsetmgr writes its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from offsetmgr.core.errors import UnsupportedOperation
from offsetmgr.kafka.protocol import releases
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Channel, EncodedRequest, Request
from offsetmgr.kafka.protocol.frames import send_and_read, send_in_version
from offsetmgr.kafka.protocol.primitives import Cursor
from offsetmgr.kafka.protocol.releases import Capability, release
from offsetmgr.kafka.protocol.schema_codec import Message

T = TypeVar("T")

_REQUIRED_CAPABILITIES: Final[Mapping[int, Capability]] = {
    **{capability.api_key: capability for capability in reversed(releases.CAPABILITIES)},
    ApiKey.HEARTBEAT: releases.HOLDS_LOCK,
    ApiKey.LEAVE_GROUP: releases.HOLDS_LOCK,
    ApiKey.SYNC_GROUP: releases.HOLDS_LOCK,
    ApiKey.LIST_GROUPS: releases.DESCRIBES_MEMBERS,
}
"""For each API key, the capability that a broker lacks if it does not have this API."""


class OlderBroker(NamedTuple):
    """The connection to the older broker, and the timeout in seconds of each request."""

    connection: Channel
    timeout_s: float

    def version(self, api_key: int, requested: int) -> int:
        """Returns the highest version up to ``requested`` that the broker supports. Raises `UnsupportedOperation` if
        there is no such version."""
        low, high = self.connection.versions.get(api_key, (0, -1))
        if high < 0 and api_key in _REQUIRED_CAPABILITIES:
            raise _REQUIRED_CAPABILITIES[api_key].unsupported_error(
                str(self.connection.address), self.connection.versions
            )
        if not low <= min(requested, high):
            raise UnsupportedOperation(
                f"broker {self.connection.address}",
                f"Kafka {release(self.connection.versions)} or later: it supports versions {low} to {high} of API "
                f"{api_key}, but offsetmgr needs version {requested} or lower",
            )
        return min(requested, high)

    async def send(self, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
        return await send_in_version(self.connection, Request(api_key, version, message), self.timeout_s)

    async def exchange_encoded(self, api_key: int, version: int, body: bytes, read: Callable[[Cursor], T]) -> T:
        """Sends an encoded body, and decodes the response with ``read``."""
        return await send_and_read(self.connection, EncodedRequest(api_key, version, body), self.timeout_s, read)


async def nearest_version(broker: OlderBroker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Sends the request in the highest supported version. The codec omits fields that this version lacks."""
    return await broker.send(api_key, broker.version(api_key, requested), message)
