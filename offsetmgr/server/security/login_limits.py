"""`LoginLimits`: checks passwords in a thread, and limits the failed logins of each address.

The response to a failed login is delayed. The delay grows with the recent failures of the address. An address, and each
user name at an address, has a number of *places* for logins. A login keeps its place while the thread checks it and,
if it fails, during its delay. So parallel connections cannot guess faster than the places allow, and a client with a
wrong password takes no place from the other users behind its address. No state concerns a user at all addresses, so
failures never lock a user.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from offsetmgr.core.errors import AuthenticationFailed

T = TypeVar("T")

_PLACES_OF_ADDRESS: Final = 128
_PLACES_OF_USER: Final = 32
_LOGINS_PER_PLACE: Final = 3
"""Maximum number of logins for each place, with those that wait. At the longest delay, the last of them waits for 8
seconds, so the time limit of a login does not end before its turn."""
_FIRST_DELAY_S: Final = 0.1
"""The delay after the first failure (connection.failed.authentication.delay.ms). Each failure doubles the delay."""
_MAX_DELAY_S: Final = 4.0
_HALF_LIFE_S: Final = 30.0
"""The time after which half of an address's failures are forgotten."""
_MAX_QUEUES: Final = 10_000
"""Maximum number of addresses, and of users at an address, that are remembered. They take 6 MB."""

_executor: Final = ThreadPoolExecutor(1, thread_name_prefix="offsetmgr-logins")
"""Key derivation releases the interpreter's lock, so the event loop runs meanwhile."""


class TooManyLogins(Exception):
    """The login was not checked, because too many logins of the same address wait."""


class _LoginQueue:
    """The logins of one address, or of one user name at one address."""

    def __init__(self, places: int) -> None:
        self.trusted = False
        """Whether a login has succeeded."""
        self.checking = asyncio.Lock()
        self.logins = 0
        """Number of logins that have a place or wait for one."""
        self._max_logins = places * _LOGINS_PER_PLACE
        self._places = asyncio.Semaphore(places)
        self._failures = 0.0
        self._failed_at = 0.0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Waits for a place, and keeps it during the block. Raises `TooManyLogins`."""
        if self.logins >= self._max_logins:
            raise TooManyLogins
        self.logins += 1
        try:
            async with self._places:
                yield
        finally:
            self.logins -= 1

    def next_delay(self, now: float) -> float:
        """Records a failed login. Returns its delay in seconds."""
        self._failures = 1 + self._failures * 0.5 ** ((now - self._failed_at) / _HALF_LIFE_S)
        self._failed_at = now
        return min(_FIRST_DELAY_S * math.exp2(min(self._failures, 10.0) - 1), _MAX_DELAY_S)


class LoginLimits:
    """The queues of all addresses. Use it in one event loop."""

    def __init__(self) -> None:
        self.queues: OrderedDict[tuple[str, int | None], _LoginQueue] = OrderedDict()
        """By address, and by address and hash of a user name. The longest unused queue is the first."""

    async def attempt(self, network: str, user: str, check: Callable[[], T], on_failure: Callable[[], None]) -> T:
        """Calls ``check`` in the thread and returns its result. If ``check`` raises `AuthenticationFailed`, calls
        ``on_failure``, and delays the error. ``network``: see `client_network`. Raises `TooManyLogins`."""
        loop = asyncio.get_running_loop()
        of_address = self._queue((network, None), _PLACES_OF_ADDRESS)
        of_user = self._queue((network, hash(user)), _PLACES_OF_USER)
        # A user who has logged in from this address before does not wait for others, even if they try many user names.
        async with of_user.place(), contextlib.nullcontext() if of_user.trusted else of_address.place():
            try:
                async with of_address.checking:  # so that the thread serves the addresses in turn
                    result = await loop.run_in_executor(_executor, check)
            except AuthenticationFailed:
                on_failure()
                await asyncio.sleep(of_address.next_delay(loop.time()))
                raise
            of_user.trusted = True
            return result

    def _queue(self, key: tuple[str, int | None], places: int) -> _LoginQueue:
        queue = self.queues.setdefault(key, _LoginQueue(places))
        self.queues.move_to_end(key)
        if len(self.queues) > _MAX_QUEUES:
            del self.queues[next(old for old, unused in self.queues.items() if not unused.logins)]
        return queue
