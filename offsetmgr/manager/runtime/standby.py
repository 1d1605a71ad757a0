"""`StandbyReplica`: a thread that follows the log of all shard groups that this process does not own.

The loop decides which partitions the thread reads (`StandbyTask`). The thread reads records, passes them to the loop
and waits for the next task, so a slow loop slows the thread down and no records accumulate. The thread first loads each
shard group to the log's end (`ShardLoader`), one at a time, and then follows it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, ParamSpec, TypeAlias, TypeVar

from offsetmgr.manager.lease import boottime
from offsetmgr.manager.log.base import CorruptRecords, LogReader, LogRecord
from offsetmgr.manager.runtime.services import RuntimeServices, ShardLoader
from offsetmgr.manager.runtime.shard_group import NON_RETRIABLE_BACKOFF_S, ShardGroup, is_retriable
from offsetmgr.manager.shard import Shard
from offsetmgr.records.base import FormatMismatch

_logger: Final = logging.getLogger(__name__)
_RETRY_PAUSE_S: Final = 1.0
_LOOP_CHECK_INTERVAL_S: Final = 1.0

P = ParamSpec("P")
T = TypeVar("T")


class LoopEnded(Exception):
    """The event loop has ended."""


StandbyTask: TypeAlias = ShardGroup | Mapping[int, tuple[int, int]]
"""The next task of the thread: a shard group to load to the log's end, or the partitions to read, each with its follow
id and the offset to read from. The shards of a shard group to load belong to the thread until the thread reports the
end of the load. A partition that was removed and added again has a new follow id."""


class StandbyReplica:
    """Follows the log for the shard groups that this process does not own, and keeps their shards up to date. The
    methods run on the loop, except the methods in the section "the thread". No load starts while ``owned_loading``
    returns True, because owned shard groups have priority."""

    def __init__(self, services: RuntimeServices, owned_loading: Callable[[], bool]) -> None:
        self.ends: dict[int, tuple[int, float]] = {}
        """The last known end offset of each partition, and the time at which this end offset was requested
        (`lease.boottime`)."""
        self.loader: ShardLoader | None = None
        self.loading: ShardGroup | None = None
        self.last_error = ""
        self._services = services
        self._settings = services.settings
        self._loop = asyncio.get_running_loop()
        self._owned_loading = owned_loading
        self._last_follow_id = 0
        self._pause = _RETRY_PAUSE_S
        self._waiting: dict[int, ShardGroup] = {}
        self._unreadable: set[int] = set()
        """The shard groups that are not followed because their records are unreadable (see `_stop_following`)."""
        self._following: dict[int, tuple[int, ShardGroup]] = {}
        self._after_load: Callable[[], None] | None = None
        self._stopping = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="offsetmgr-standby", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Stops following all shard groups. Returns once the thread has ended."""
        self._stopping.set()
        self._waiting.clear()
        self._following.clear()
        if self._thread.is_alive():
            await self._ended.wait()

    def add(self, shard_group: ShardGroup) -> None:
        """Adds a shard group, whose shards are loaded and then follow the log."""
        self._unreadable.discard(shard_group.number)
        if not self._stopping.is_set():
            self._waiting[shard_group.number] = shard_group

    def release(self, shard_group: ShardGroup, when_free: Callable[[], None]) -> None:
        """Stops using the shards of a shard group. Then calls ``when_free``, either at once or, if the thread is
        loading these shards, after the load. (The load continues, because the new owner would have to start the same
        load.)"""
        self._waiting.pop(shard_group.number, None)
        for partition in shard_group.partitions:
            self._following.pop(partition, None)
        if self.loading is shard_group:
            self._after_load = when_free
        else:
            when_free()

    def follows(self, shard_group: ShardGroup) -> bool:
        """Returns whether the shards of a shard group follow the log after their load."""
        return shard_group.partitions[0] in self._following

    @property
    def load_progress(self) -> tuple[int, int]:
        """The numbers of offsets that the current load has read and has to read."""
        return (0, 0) if self.loader is None else self.loader.progress

    @property
    def caught_up(self) -> bool:
        """Whether every added shard group has been loaded to the log's end."""
        return not self._waiting and self.loading is None

    # --- calls of the thread -------------------------------------------------------------------------

    def _next_task(self) -> StandbyTask:
        self._load_again(lambda shard_group: shard_group.is_outdated())
        if self._waiting and not self._owned_loading() and not self._stopping.is_set():
            # The first in the queue: a failed load puts its shard group at the end.
            shard_group = self._waiting.pop(next(iter(self._waiting)))
            if shard_group.is_outdated():
                shard_group.reset()
            self.loading, self.loader = shard_group, None
            return shard_group
        return {
            p: (follow_id, shard_group.shards[p].position) for p, (follow_id, shard_group) in self._following.items()
        }

    def _on_loaded(
        self, shard_group: ShardGroup, shards: Mapping[int, Shard], generation: str, as_of: float | None
    ) -> StandbyTask:
        """Takes back the shards after a load. ``as_of`` is the time up to which the shards are current; None if the
        load failed."""
        shard_group.shards, shard_group.log_id = dict(shards), generation
        self.loading = None
        if as_of is not None:
            shard_group.current_at = as_of
        after_load_callback, self._after_load = self._after_load, None
        if after_load_callback is not None:
            after_load_callback()
        elif as_of is None and shard_group.number not in self._unreadable:
            self.add(shard_group)
        elif as_of is not None and not self._stopping.is_set():
            self._last_follow_id += 1
            self._following |= dict.fromkeys(shard_group.partitions, (self._last_follow_id, shard_group))
        return self._next_task()

    def _replay(self, records: Sequence[LogRecord]) -> StandbyTask:
        """Applies the records of partitions that are still followed. (No partition can have been removed and added
        again since the thread read the records: only `_on_loaded` adds partitions, and the same thread calls it.)"""
        self._load_again(self._lacks_records)
        shards = {partition: shard_group.shards[partition] for partition, (_, shard_group) in self._following.items()}
        newest: dict[int, dict[bytes, bytes | None]] = {}
        positions: dict[int, int] = {}
        for partition, offset, key, value in records:
            shard = shards.get(partition)
            if shard is not None and offset >= shard.position:
                newest.setdefault(partition, {})[key] = value
                positions[partition] = offset + 1
        for partition, found in newest.items():
            try:
                shards[partition].replay_newest(found, positions[partition])
            except FormatMismatch as error:
                self._stop_following(self._following[partition][1], error)
        self._services.counters.standby_records += len(records)
        return self._next_task()

    def _stop_following_damaged(self, error: CorruptRecords) -> None:
        if error.partition in self._following:
            self._stop_following(self._following[error.partition][1], error)

    def _stop_following(self, shard_group: ShardGroup, error: FormatMismatch | CorruptRecords) -> None:
        """Stops following a shard group whose records this process cannot read. The other shard groups are still
        followed."""
        shard_group.last_error = str(error)
        # If a new writer waits for the end of this load, that writer must still receive the shard group.
        waiting_owner = self._after_load if self.loading is shard_group else None
        self.release(shard_group, waiting_owner or (lambda: None))
        self._unreadable.add(shard_group.number)
        _logger.error(
            "a shard group is no longer followed",
            extra={"shard_group": shard_group.number, "why": shard_group.last_error},
        )

    def _note_generation(self, generation: str) -> None:
        """Releases the shard groups whose shards were read from another log, and adds them again."""
        self._load_again(lambda shard_group: generation not in ("", shard_group.log_id))

    def _load_again(self, outdated: Callable[[ShardGroup], bool]) -> None:
        """Loads the followed shard groups again that are outdated."""
        for shard_group in {shard_group.number: shard_group for _, shard_group in self._following.values()}.values():
            if outdated(shard_group):
                self.release(shard_group, lambda: None)
                self.add(shard_group)

    def _lacks_records(self, shard_group: ShardGroup) -> bool:
        """Returns whether records were deleted before a shard could replay them. Then the load decides which values
        the shard keeps."""
        deleted = self._services.log.deleted
        return any(
            shard.position < deleted.missing_below[partition] or deleted.is_outdated(shard)
            for partition, shard in shard_group.shards.items()
        )

    def _note_ends(self, ends: Mapping[int, int], reached: Mapping[int, int], asked_at: float) -> None:
        """Records the end offsets and the positions. If a shard group has been read up to the previous end offsets, its
        shards were current when those end offsets were requested. All records up to ``reached`` have been replayed, so
        only markers and gaps can be between a shard's position and ``reached``. Therefore the positions advance to
        ``reached``."""
        self._load_again(self._lacks_records)
        for partition, (_, shard_group) in self._following.items():
            if partition in reached:
                shard_group.shards[partition].replay_newest({}, reached[partition])
        for shard_group in {shard_group.number: shard_group for _, shard_group in self._following.values()}.values():
            before = [self.ends[partition] for partition in shard_group.partitions if partition in self.ends]
            reached_offsets = [reached.get(partition, -1) for partition in shard_group.partitions]
            if len(before) == len(reached_offsets) and all(
                at >= end for at, (end, _) in zip(reached_offsets, before, strict=True)
            ):
                shard_group.current_at = max(shard_group.current_at, min(as_of for _, as_of in before))
        self.ends |= {partition: (end, asked_at) for partition, end in ends.items()}
        self.last_error = ""

    def _record_failure(self, error: Exception) -> None:
        self.last_error = f"{type(error).__name__}: {error}"
        self._services.counters.standby_failures += 1
        _logger.warning("standbys cannot follow the log", extra={"why": self.last_error})

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with contextlib.closing(self._services.log.reader()) as reader:
                    self._follow(reader)
            except LoopEnded:
                return
            except CorruptRecords as error:
                self._post(self._stop_following_damaged, error)
            except Exception as error:  # any error is logged and retried, because standbys must not fall behind
                self._pause_after(error)
        self._post(self._ended.set)

    def _follow(self, reader: LogReader) -> None:
        followed: dict[int, int] = {}
        last_check = -float("inf")
        task = self._call(self._next_task)
        while not self._stopping.is_set():
            if isinstance(task, ShardGroup):
                task = self._load(task)
                continue
            planned = {partition: follow_id for partition, (follow_id, _) in task.items()}
            if planned != followed:
                # The reader continues at its own position in partitions that it already follows.
                starts = {
                    partition: reader.position(partition) if followed.get(partition) == follow_id else position
                    for partition, (follow_id, position) in task.items()
                }
                reader.follow(starts)
                followed = planned
            if followed and time.monotonic() - last_check > self._settings.lag_interval_s:
                asked_at, last_check = boottime(), time.monotonic()
                self._call(self._note_generation, self._services.log.generation(self._settings.claim_timeout_s))
                ends = self._services.log.end_offsets(sorted(followed), self._settings.claim_timeout_s)
                self._call(self._note_ends, ends, {p: reader.position(p) for p in followed}, asked_at)
            records: Sequence[LogRecord] = ()
            if followed:
                records = reader.poll(self._settings.standby_records, self._settings.standby_poll_s)
            else:
                self._stopping.wait(self._settings.standby_poll_s)
            task = self._call(self._replay, records)

    def _post(self, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Schedules a call on the loop, which owns the state, and does not wait for it. Does nothing if the loop has
        ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: call(*args, **kwargs))

    def _call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function on the loop and waits for its result, so that the thread does not queue calls faster than
        the loop executes them. Raises the error of the function, or `LoopEnded` if the loop has ended."""
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def execute() -> None:
            try:
                outcome.set_result(call(*args, **kwargs))
            except BaseException as error:
                outcome.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(execute)
        except RuntimeError as error:
            raise LoopEnded from error
        # A TimeoutError of `outcome.result` would be ambiguous, because the called function may raise a TimeoutError.
        while not concurrent.futures.wait([outcome], _LOOP_CHECK_INTERVAL_S).done:
            if self._loop.is_closed():
                raise LoopEnded
        return outcome.result()

    def _pause_after(self, error: Exception) -> None:
        """Pauses for one second. The pause is longer after repeated errors that are not retriable."""
        self._post(self._record_failure, error)
        self._pause = _RETRY_PAUSE_S if is_retriable(error) else min(self._pause * 2, NON_RETRIABLE_BACKOFF_S)
        self._stopping.wait(self._pause)

    def _load(self, shard_group: ShardGroup) -> StandbyTask:
        shards, generation, as_of = dict(shard_group.shards), shard_group.log_id, boottime()
        loaded = False
        try:
            found = self._services.log.generation(self._settings.claim_timeout_s)
            if found not in ("", generation):
                shards, generation = {partition: self._services.new_shard(partition) for partition in shards}, found
            ends = self._services.log.end_offsets(sorted(shards), self._settings.claim_timeout_s)
            self.loader = ShardLoader(self._services, shards, self._stopping)
            loaded = self.loader.load(ends, generation)
        except (FormatMismatch, CorruptRecords) as error:
            self._post(self._stop_following, shard_group, error)
        except Exception as error:
            self._pause_after(error)
        return self._call(self._on_loaded, shard_group, shards, generation, as_of if loaded else None)
