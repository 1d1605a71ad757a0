"""Runs one function over many directories in parallel processes, because reading a log is CPU-bound.

Results come in the order of the directories as soon as they are available; an error is that directory's result. A
worker ends with its parent, however that ends.
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
"""Seconds between two reads of the workers' progress."""
_GARBAGE: Final = 1_000_000
"""Millions of records are held, in no cycles."""
_bytes_read: Any = None


def processors() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_directories(
    function: Callable[[Argument, Callable[[int], None]], Result],
    arguments: Sequence[Argument],
    processes: int,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[Argument, Result | OffsetMgrError]]:
    """Yields the result or error of ``function`` for every argument, with at most ``processes`` at a time (1: in this
    process).

    ``function`` receives a counter for the bytes that it has read, and ``progress`` receives the sum periodically.
    Function, arguments and results are pickled. An error that is not an `OffsetMgrError` ends it.
    """
    if min(processes, len(arguments)) <= 1:
        yield from _here(function, arguments, progress)
        return
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    pool = ProcessPoolExecutor(min(processes, len(arguments)), context, _begin, (counter,))
    try:
        futures = [pool.submit(_called, function, argument) for argument in arguments]
        for argument, future in zip(arguments, futures, strict=True):
            while not wait([future], _POLL_S).done:
                if progress is not None:
                    progress(counter.value)
            yield argument, _result(future, argument)
        if progress is not None:
            progress(counter.value)
    finally:
        # A worker that has just started would not find what its parent has removed.
        pool.shutdown(wait=True, cancel_futures=True)


def _here(
    function: Callable[[Argument, Callable[[int], None]], Result],
    arguments: Sequence[Argument],
    progress: Callable[[int], None] | None,
) -> Iterator[tuple[Argument, Result | OffsetMgrError]]:
    done = 0

    def tick(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done)

    for argument in arguments:
        try:
            result: Result | OffsetMgrError = function(argument, tick)
        except OffsetMgrError as error:
            result = error
        yield argument, result


def _result(future: Future[Result | OffsetMgrError], argument: object) -> Result | OffsetMgrError:
    try:
        return future.result()
    except BrokenProcessPool:
        return FileFailure(
            f"reading {argument}", "the process that read it, or a parallel one, was killed", "is there enough memory?"
        )


def _begin(counter: Any) -> None:
    """Initializes each worker once."""
    global _bytes_read  # noqa: PLW0603 - a pool hands nothing else to its workers
    _bytes_read = counter
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # not the parent's handlers
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
    gc.set_threshold(_GARBAGE)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _called(
    function: Callable[[Argument, Callable[[int], None]], Result], argument: Argument
) -> Result | OffsetMgrError:
    try:
        return function(argument, _tick)
    except OffsetMgrError as error:
        return error


def _tick(size: int) -> None:
    with _bytes_read.get_lock():
        _bytes_read.value += size
