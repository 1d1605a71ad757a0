"""`Channel`, the interface of a broker connection that the codecs use, and the types `Address`, `Request` and
`EncodedRequest`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from offsetmgr.core.errors import Unreachable
from offsetmgr.kafka.protocol.primitives import Cursor
from offsetmgr.kafka.protocol.releases import Versions


class Address(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parses ``host:port``, ``[v6]:port`` or ``host`` (port 9092)."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or port.endswith("]"):
            host, port = text.strip(), "9092"
        if not port.isdigit():
            raise Unreachable(f"broker {text}", "the port is not a number", "give host:port")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


class Request(NamedTuple):
    """A request as a plain dict (see `offsetmgr.kafka.protocol.schema_codec`)."""

    api_key: int
    version: int
    message: Mapping[str, Any]
    read: Callable[[Cursor], dict[str, Any]] | None = None
    """A decoder of the response that is faster than the schema codec and may omit fields; by default the schema
    codec."""


class EncodedRequest(NamedTuple):
    """A request whose body is already encoded. In flexible versions the body begins with the tagged fields of the
    header. Callers encode only OffsetCommit themselves, because bulk edits consist of this request."""

    api_key: int
    version: int
    body: bytes


class Channel(Protocol):
    """A connection to one broker. `offsetmgr.kafka.client.connection.BrokerConnection` is the implementation."""

    @property
    def address(self) -> Address: ...

    @property
    def versions(self) -> Versions:
        """The API versions that the broker supports; empty until they are known."""
        ...

    def supports(self, api_key: int, version: int) -> bool:
        """Returns whether the broker supports this version of an API."""
        ...

    async def exchange(self, request: EncodedRequest, timeout_s: float) -> bytes:
        """Sends an encoded request and returns the response, including its header (which starts with the correlation
        id).

        Raises `TimedOut` and `Unreachable`.
        """
        ...
