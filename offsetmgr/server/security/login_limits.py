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
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from offsetmgr.core.errors import AuthenticationFailed
from offsetmgr.server.network.requests import ClientSession

T = TypeVar("T")

_PLACES_OF_ADDRESS: Final = 64
_PLACES_OF_USER: Final = 16
_MAX_WAITING: Final = 1_000
"""Maximum number of logins that wait for a place."""
_MAX_WAITING_FOR_DELAYS: Final = 2
"""Maximum number of logins that wait for each place while delays take all places. Their time limit does not expire
before it is their turn."""
_FIRST_DELAY_S: Final = 0.1
"""The delay after the first failure (connection.failed.authentication.delay.ms). Each failure doubles the delay."""
_MAX_DELAY_S: Final = 4.0
_HALF_LIFE_S: Final = 30.0
"""The time after which half of an address's failures are forgotten."""
_MAX_QUEUES: Final = 10_000
"""Maximum number of addresses, and of users at an address, that are remembered."""

_executor: Final = ThreadPoolExecutor(1, thread_name_prefix="offsetmgr-logins")
"""Key derivation releases the interpreter's lock, so the event loop runs meanwhile."""


class TooManyLogins(Exception):
    """The login was not checked, because too many logins of the same address wait."""


class _LoginQueue:
    """The logins of one address, or of one user name at one address."""

    __slots__ = ("_delayed", "_failed_at", "_failures", "_places", "_waiting", "busy", "checking", "trusted")

    def __init__(self, places: int) -> None:
        self.trusted = False
        """Whether a login has succeeded."""
        self.checking = asyncio.Lock()
        self.busy = 0
        """Number of places that are in use."""
        self._places = places
        self._delayed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._failures = 0.0
        self._failed_at = 0.0

    async def enter(self) -> None:
        """Waits for a place. Raises `TooManyLogins`."""
        if self.busy < self._places:
            self.busy += 1
            return
        if len(self._waiting) >= self._max_waiting():
            raise TooManyLogins
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def leave(self) -> None:
        """Passes the place to the login that has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.busy -= 1

    def add_failure(self, now: float) -> float:
        """Records a failed login. Returns its delay."""
        self._failures = 1 + self._failures * 0.5 ** ((now - self._failed_at) / _HALF_LIFE_S)
        self._failed_at = now
        return min(_FIRST_DELAY_S * math.exp2(min(self._failures, 10.0) - 1), _MAX_DELAY_S)

    def begin_delay(self) -> None:
        self._delayed += 1
        while len(self._waiting) > self._max_waiting():
            if not (turn := self._waiting.pop()).done():
                turn.set_exception(TooManyLogins())

    def end_delay(self) -> None:
        self._delayed -= 1

    def _max_waiting(self) -> int:
        return self._places * _MAX_WAITING_FOR_DELAYS if self._delayed >= self._places else _MAX_WAITING


class LoginLimits:
    """The queues of all addresses. Use it in one event loop."""

    def __init__(self) -> None:
        self._queues: OrderedDict[tuple[str, int | None], _LoginQueue] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queues)

    async def attempt(
        self, client: ClientSession, user: str, check: Callable[[], T], on_failure: Callable[[], None]
    ) -> T:
        """Calls ``check`` in the thread and returns its result. If ``check`` raises `AuthenticationFailed`, calls
        ``on_failure``, and delays the error. Raises `TooManyLogins`."""
        loop = asyncio.get_running_loop()
        of_address = self._queue((client.network, None), _PLACES_OF_ADDRESS)
        of_user = self._queue((client.network, hash(user)), _PLACES_OF_USER)
        # A user who has logged in from this address before does not wait for others, even if they try many user names.
        queues = [of_user] if of_user.trusted else [of_user, of_address]
        with contextlib.ExitStack() as places:
            for queue in queues:
                await queue.enter()
                places.callback(queue.leave)
            try:
                async with of_address.checking:  # so that the thread serves the addresses in turn
                    if client.closed:
                        raise TooManyLogins
                    result = await loop.run_in_executor(_executor, check)
            except AuthenticationFailed:
                on_failure()
                delay_s = of_address.add_failure(loop.time())
                for queue in queues:
                    queue.begin_delay()
                    places.callback(queue.end_delay)
                await asyncio.sleep(delay_s)
                raise
            of_user.trusted = True
            return result

    def _queue(self, key: tuple[str, int | None], places: int) -> _LoginQueue:
        queue = self._queues.get(key) or _LoginQueue(places)
        self._queues[key] = queue
        self._queues.move_to_end(key)
        if len(self._queues) > _MAX_QUEUES:
            oldest = next(key for key, queue in self._queues.items() if not queue.busy)
            del self._queues[oldest]
        return queue
