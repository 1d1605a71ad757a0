"""Runs coroutines for synchronous callers, on an event loop in a background thread. This package has no other
thread."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from offsetmgr.core.errors import Unreachable

if TYPE_CHECKING:
    from offsetmgr.kafka.client.client import Client

T = TypeVar("T")
A = TypeVar("A")
SLOW_S: Final = 3.0
"""The time after which a call is slow."""


class EventLoopThread:
    """An event loop in a daemon thread. The first call of `submit` or `run` starts the thread, and `close` ends it.
    After `close`, both raise `Unreachable`."""

    def __init__(self) -> None:
        self.closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts ``coroutine`` and returns a future of its result."""
        with self._starting:
            if not self.closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self._running())
        coroutine.close()
        raise _closed_error()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs ``coroutine`` and waits for its result. If the wait is interrupted, cancels the coroutine. If another
        thread calls `close` meanwhile, raises `Unreachable`."""
        future = self.submit(coroutine)
        try:
            return _result(future)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels the running coroutines and ends the thread."""
        with self._starting:
            self.closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            atexit.unregister(self.close)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_serve, args=(self._loop,), name="offsetmgr-kafka-client", daemon=True
            )
            self._thread.start()
            # Without this handler, the interpreter would destroy the loop at exit while coroutines are running, and
            # would print warnings to stderr.
            atexit.register(self.close)
        return self._loop


class ClientThread:
    """A client and the thread in which its event loop runs. ``timeout_s`` limits each call."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self.client = client
        self.runner = EventLoopThread()
        self._timeout_s = timeout_s

    def run(
        self,
        call: Callable[[float], Awaitable[T]],
        timeout_s: float | None = None,
        on_slow: Callable[[float], None] | None = None,
    ) -> T:
        """Runs a coroutine in the event loop and waits for its result. The argument of ``call`` is the deadline, as a
        time of the loop's clock. ``timeout_s`` replaces the timeout of the client. After 3 s, ``on_slow`` is called
        with the seconds that are left."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s

        async def within() -> T:
            loop = asyncio.get_running_loop()
            slow = None
            if on_slow is not None and limit_s > SLOW_S:
                slow = loop.call_later(SLOW_S, on_slow, limit_s - SLOW_S)
            try:
                return await call(loop.time() + limit_s)
            finally:
                if slow is not None:
                    slow.cancel()

        return self.runner.run(within())

    def close(self) -> None:
        if not self.runner.closed:
            self.runner.run(self.client.close())
            self.runner.close()


def _result(future: concurrent.futures.Future[T]) -> T:
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise _closed_error() from None


def _closed_error() -> Unreachable:
    return Unreachable("Kafka", "this client was closed")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()


def batches(items: Iterable[A], *, first: int, max_size: int, key: Callable[[A], str]) -> Iterator[list[A]]:
    """Splits a stream lazily into batches that grow from ``first`` to ``max_size`` items. A batch never contains two
    items with the same key."""
    source, size = iter(items), first
    carried: list[A] = []
    while True:
        batch, keys = carried, {key(item) for item in carried}
        carried = []
        for item in islice(source, size - len(batch)):
            if key(item) in keys:
                carried = [item]
                break
            keys.add(key(item))
            batch.append(item)
        if not batch:
            return
        yield batch
        size = min(size * 2, max_size)


def run_batches(
    runner: EventLoopThread,
    batches_to_run: Iterable[list[A]],
    do: Callable[[list[A]], Coroutine[Any, Any, list[T]]],
    *,
    max_in_flight: int,
    key: Callable[[A], str],
    finish: bool,
) -> Iterator[T]:
    """Runs ``do`` on batches, at most ``max_in_flight`` at a time, and yields the results in the order of completion.

    While a batch is in flight, no other batch that contains one of its keys is started, so that the items of each key
    stay in order. If the caller stops the iteration early, some batches may be in flight. If ``finish`` is True, the
    function waits for these batches; otherwise the function cancels them.
    """
    running: dict[concurrent.futures.Future[list[T]], set[str]] = {}

    def completed_results() -> Iterator[T]:
        done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in done:
            del running[future]
            yield from _result(future)

    try:
        for batch in batches_to_run:
            keys = {key(item) for item in batch}
            while len(running) >= max_in_flight or any(keys & busy for busy in running.values()):
                yield from completed_results()
            running[runner.submit(do(batch))] = keys
        while running:
            yield from completed_results()
    finally:
        for future in running:
            if finish:
                with contextlib.suppress(Exception):
                    future.result()
            else:
                future.cancel()
