"""`GroupCoordinator`: finds the coordinator of one group and opens connections to it. `ProblemLog` logs the errors of
the requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from offsetmgr.core.errors import OffsetMgrError, value_of
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.protocol.frames import Address

_log = logging.getLogger(__name__)


class GroupCoordinator:
    """The coordinator of ``group``. The object caches the address until a caller calls `forget`.

    ``on_found`` is called after each lookup with the address. ``timeout_s`` is the timeout of one lookup, and of the
    opening of one connection.
    """

    def __init__(
        self, client: Client, group: str, timeout_s: float, on_found: Callable[[Address], Awaitable[None]]
    ) -> None:
        self._client = client
        self._group = group
        self._timeout_s = timeout_s
        self._on_found = on_found
        self._address: Address | None = None
        self._lookup_lock = asyncio.Lock()

    async def address(self) -> Address:
        """Returns the address of the coordinator. Raises `OffsetMgrError`."""
        async with self._lookup_lock:
            if self._address is None:
                found = (await self._client.find_coordinators([self._group], self._deadline()))[self._group]
                self._address = value_of(found)
                await self._on_found(self._address)
            return self._address

    async def connection(self, previous: BrokerConnection | None) -> BrokerConnection:
        """Returns ``previous`` if ``previous`` is an open connection to the current coordinator. Otherwise closes
        ``previous``, and opens and returns a new connection. Raises `OffsetMgrError`."""
        address = await self.address()
        if previous is not None:
            if not previous.closed and previous.address == address:
                return previous
            await previous.close()
        try:
            return await self._client.node(address).open(self._deadline())
        except OffsetMgrError:
            self.forget(address)
            raise

    def forget(self, address: Address) -> None:
        """Discards the cached address if it is ``address``, because the group may now have another coordinator."""
        if self._address == address:
            self._address = None
            self._client.rotate_lookup_broker()

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_s


class ProblemLog:
    """Logs the errors of consecutive attempts. If several attempts fail with the same error, logs the error once.
    ``what`` names the subject of the messages."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last = ""

    def log(self, error: OffsetMgrError) -> None:
        if str(error) != self._last:
            self._last = str(error)
            _log.warning("%s: %s", self._what, error)

    def log_recovery(self) -> None:
        """Called after a successful attempt. Logs the success if the previous attempt failed."""
        if self._last:
            self._last = ""
            _log.info("%s: the coordinator responds again", self._what)
