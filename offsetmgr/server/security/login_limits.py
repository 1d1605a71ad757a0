"""`LoginLimits`: checks passwords in a thread, and delays the responses to failed logins.

The thread serves the addresses in turn, and the logins of one address in their order. So a login waits for at most one
check of each other address, and for the earlier logins of its own. The delay of a failed login grows with the recent
failures of the address. The delay ends no sooner if the client disconnects, and the number of delays of an address at a
time is limited, so parallel connections cannot guess without limit. No state concerns a user, so failures never lock a
user, and a user's earlier logins cannot be noticed.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

_MAX_DELAYS: Final = 2_000
"""Maximum number of failed logins of one address at a time, as many as its connections. The next check waits then."""
_FIRST_DELAY_S: Final = 0.1
"""The delay after the first failure (connection.failed.authentication.delay.ms). Each failure doubles the delay."""
_MAX_DELAY_S: Final = 4.0
_HALF_LIFE_S: Final = 30.0
"""The time after which half of an address's failures are forgotten."""
_MAX_ADDRESSES: Final = 10_000
"""Maximum number of addresses that are remembered."""

_executor: Final = ThreadPoolExecutor(1, thread_name_prefix="offsetmgr-logins")
"""Key derivation releases the interpreter's lock, so the event loop runs meanwhile."""


class _Address:
    """The logins of one address."""

    def __init__(self) -> None:
        self.checking = asyncio.Lock()
        self.delays = asyncio.Semaphore(_MAX_DELAYS)
        self._failures = 0.0
        self._failed_at = 0.0

    def next_delay(self, now: float) -> float:
        """Records a failed login. Returns its delay in seconds."""
        self._failures = 1 + self._failures * 0.5 ** ((now - self._failed_at) / _HALF_LIFE_S)
        self._failed_at = now
        return min(_FIRST_DELAY_S * math.exp2(min(self._failures, 10.0) - 1), _MAX_DELAY_S)


class LoginLimits:
    """The logins of all addresses. Use it in one event loop. ``network``: see `client_network`."""

    def __init__(self) -> None:
        self.addresses: OrderedDict[str, _Address] = OrderedDict()
        """The longest unused address is the first."""

    async def check(self, network: str, check: Callable[[], T]) -> T:
        """Calls ``check`` in the thread when it is the turn of the address, and returns its result."""
        address = self._address(network)
        async with address.checking, address.delays:
            return await asyncio.get_running_loop().run_in_executor(_executor, check)

    async def delay(self, network: str) -> None:
        """Waits for the delay of a login that has just failed."""
        address, loop = self._address(network), asyncio.get_running_loop()
        await address.delays.acquire()  # does not wait, because `check` has just released it
        delay_s = address.next_delay(loop.time())
        loop.call_later(delay_s, address.delays.release)
        await asyncio.sleep(delay_s)

    def _address(self, network: str) -> _Address:
        address = self.addresses.setdefault(network, _Address())
        self.addresses.move_to_end(network)
        if len(self.addresses) > _MAX_ADDRESSES:
            self.addresses.popitem(last=False)
        return address
