"""Runs one function over many directories in parallel processes, because reading a log is CPU-bound.

The results come in the order of the directories. If the function raises `OffsetMgrError` for a directory, the error
takes the place of the result of this directory. A worker process exits when its parent exits, even if the parent is
killed.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final, TypeVar

from offsetmgr.core.errors import FileFailure, OffsetMgrError

Argument = TypeVar("Argument")
Result = TypeVar("Result")

_POLL_S: Final = 0.2
"""Interval at which the parent reads the workers' progress."""
_GC_THRESHOLD: Final = 1_000_000
"""The threshold is high so that garbage collections are rare in workers, because the millions of records contain no
reference cycles."""
_bytes_read: Any = None


def processors() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_directories(
    function: Callable[[Argument, Callable[[int], None]], Result],
    arguments: Sequence[Argument],
    processes: int,
    progress: Callable[[int], None] = lambda _done: None,
) -> Iterator[tuple[Argument, Result | OffsetMgrError]]:
    """Yields each argument together with the result or the error of ``function``, in the order of the arguments.

    At most ``processes`` worker processes run at a time. If ``processes`` is 1, the function runs in this process.
    ``function`` receives the argument and a callback, to which it passes the number of bytes that it has read.
    ``progress`` periodically receives the total number of bytes. The function, the arguments and the results must be
    picklable. If the function raises an exception other than `OffsetMgrError`, the iteration raises it.
    """
    if min(processes, len(arguments)) <= 1:
        done = 0

        def tick(size: int) -> None:
            nonlocal done
            done += size
            progress(done)

        for argument in arguments:
            yield argument, _outcome(function, argument, tick)
        return
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    pool = ProcessPoolExecutor(min(processes, len(arguments)), context, _initialize_worker, (counter,))
    try:
        futures = [pool.submit(_outcome, function, argument, _add_bytes_read) for argument in arguments]
        for argument, future in zip(arguments, futures, strict=True):
            while not wait([future], _POLL_S).done:
                progress(counter.value)
            yield argument, _result(future, argument)
        progress(counter.value)
    finally:
        # Wait for the workers, because the parent afterwards removes resources that a worker needs while it starts.
        pool.shutdown(wait=True, cancel_futures=True)


def _outcome(
    function: Callable[[Argument, Callable[[int], None]], Result], argument: Argument, tick: Callable[[int], None]
) -> Result | OffsetMgrError:
    try:
        return function(argument, tick)
    except OffsetMgrError as error:
        return error


def _result(future: Future[Result | OffsetMgrError], argument: object) -> Result | OffsetMgrError:
    try:
        return future.result()
    except BrokenProcessPool:
        return FileFailure(
            f"reading {argument}", "one of the worker processes was killed", "check that there is enough memory"
        )


def _initialize_worker(counter: Any) -> None:
    """Initializes a worker process."""
    global _bytes_read  # noqa: PLW0603 - a pool passes shared counters only through its initializer
    _bytes_read = counter
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # workers must not use the parent's signal handlers
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
    gc.set_threshold(_GC_THRESHOLD)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _add_bytes_read(size: int) -> None:
    with _bytes_read.get_lock():
        _bytes_read.value += size
