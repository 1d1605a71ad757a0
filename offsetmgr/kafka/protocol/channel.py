"""What the codecs need of a connection to a broker: its address, the versions that it speaks, and one exchange."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from offsetmgr.core.errors import Unreachable
from offsetmgr.kafka.protocol.releases import Versions


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """From ``host:port``, ``[v6]:port`` or ``host`` (port 9092)."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or port.endswith("]"):
            host, port = text.strip(), "9092"
        if not port.isdigit():
            raise Unreachable(f"broker {text}", "the port is not a number", "give host:port")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


class EncodedRequest(NamedTuple):
    """A request whose body is encoded already (hot requests that kio's writer is too slow for)."""

    api_key: int
    version: int
    body: bytes


class Channel(Protocol):
    """A connection to one broker. `offsetmgr.kafka.client.connection.BrokerConnection` is the implementation."""

    @property
    def address(self) -> Address: ...

    @property
    def versions(self) -> Versions:
        """The versions of each API that the broker speaks; empty as long as they are not known."""
        ...

    def speaks(self, api_key: int, version: int) -> bool:
        """Returns whether the broker speaks this version of an API."""
        ...

    async def exchange(self, request: EncodedRequest, timeout: float) -> bytes:
        """Sends an encoded request and returns the whole response, its correlation id first.

        Raises `TimedOut` and `Unreachable`."""
        ...
