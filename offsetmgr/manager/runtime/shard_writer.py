"""`ShardWriterThread`: the thread that claims, loads and appends to an owned shard group.

It performs only I/O. It reports results to the event loop in order (`WriterCallbacks`); the loop changes the state and
answers requests.

The manager serves fetches from memory while the outcome of an append is unknown. This is correct for two reasons. No
commit of this append was acknowledged: the clients have received an error, or no response yet. Memory therefore
contains the last *acknowledged* offsets. In addition, no other process can have acknowledged a commit since this
append: the next owner acknowledges commits only after this process's lease has ended, and every fetch checks the lease
(data rule "one writer per shard"). A process that claims a shard group without owning it appends nothing (see
`ownership_protocol`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from offsetmgr.core.errors import CoordinatorNotAvailable, OffsetMgrError
from offsetmgr.manager.lease import boottime
from offsetmgr.manager.log.base import AppendRejected, Fenced, OutcomeUnknown, PartitionLog, ShardGroupWriter, TooLarge
from offsetmgr.manager.runtime.loop_proxy import LoopEnded
from offsetmgr.manager.runtime.process_settings import after_load
from offsetmgr.manager.runtime.services import RuntimeServices
from offsetmgr.manager.runtime.write_batch import (
    AppendResult,
    WriteBatch,
    deadline_passed,
    failed_results,
    merge_records,
    written_results,
)
from offsetmgr.manager.shard import Shard
from offsetmgr.manager.shard_loader import ShardLoader, truncated_partitions

NON_RETRIABLE_BACKOFF_S: Final = 60.0
"""The longest pause after an error that is not retriable. The pause is long because each attempt may read a whole topic
again."""
_LEASE_CHECK_INTERVAL_S: Final = 0.05
_MIN_TIME_SHARE: Final = 0.1
"""If less than this fraction of the commit timeout remains for a batch, the thread does not try to append it."""
_MAX_TAIL_OFFSETS: Final = 50_000
"""A read of more offsets than this needs a load permit."""
_REPLAY_PART: Final = 1000


class WriterCallbacks(Protocol):
    """The reports of the thread to the shard group. They run on the loop."""

    def on_loading(self) -> None:
        """The thread starts to claim and load the shard group."""
        ...

    def on_retry(self, error: Exception) -> None:
        """The claim or the load failed, and the thread will retry it."""
        ...

    def on_loaded(self, shards: Mapping[int, Shard], generation: str, as_of: float) -> None:
        """The load is complete, and the shards now belong to the loop, which can serve them. ``generation`` is the
        `PartitionLog.generation` of the log from which the shards were read. The shards contain every record that this
        log had at the time ``as_of`` (`lease.boottime`), which is after the claim."""
        ...

    def on_topic_recreated(self) -> None:
        """The topic was recreated after the shards had been read, so the shards must be loaded again."""
        ...

    def on_replay(self, partition: int, part: Mapping[bytes, bytes | None], position: int) -> None:
        """Called after an append with an unknown outcome. Passes those records of one partition that were not replayed
        yet, in the form that `Shard.replay_newest` expects."""
        ...

    def on_recovered(self) -> None:
        """Called after an append with an unknown outcome, once the thread has read the log to its end and has passed
        all records to `on_replay`."""
        ...

    def on_transaction_ended(self, outcomes: Sequence[AppendResult], batches: int, seconds: float) -> None:
        """The append of the oldest batches ended after ``seconds`` seconds. ``batches`` is the number of these batches,
        and ``outcomes`` are their outcomes in order."""
        ...

    def on_finished(self, fenced: str) -> None:
        """The thread ends and appends nothing any more. ``fenced`` is the text of the error if another writer claimed
        the shard group, and empty otherwise."""
        ...


class ShardWriterThread:
    """Claims, loads and appends to one shard group. ``shards`` belong to the thread until
    `WriterCallbacks.on_loaded`."""

    def __init__(
        self,
        shard_group: int,
        services: RuntimeServices,
        listener: WriterCallbacks,
        shards: Mapping[int, Shard],
        generation: str,
    ) -> None:
        self.load: ShardLoader | None = None
        self._shard_group = shard_group
        self._log = services.log
        self._ownership = services.ownership
        self._config = services.config
        self._loop = services.loop
        self._listener = listener
        self._shards: dict[int, Shard] | None = dict(shards)
        self._partitions = sorted(shards)
        self._generation = generation
        self._new_shard = services.new_shard
        self._load_permits = services.load_permits
        self._positions: dict[int, int] = {}
        self._queue: queue.SimpleQueue[WriteBatch | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._writer: ShardGroupWriter | None = None
        self._thread = threading.Thread(target=self._run, name=f"offsetmgr-shard-group-{shard_group}", daemon=True)

    # --- called on the loop --------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def put(self, batch: WriteBatch) -> None:
        """Queues a batch behind all earlier batches."""
        self._queue.put(batch)

    def stop(self) -> None:
        """Stops the thread after it has appended the queued batches."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._queue.put(None)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def loading(self) -> bool:
        """Whether the shards still belong to the thread."""
        return self._shards is not None

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        fenced = ""
        try:
            self._claim_and_serve()
        except Fenced as error:
            fenced = str(error)
        except LoopEnded:
            pass
        finally:
            self._close_writer()
            self._loop.post(self._listener.on_finished, fenced)

    def _claim_and_serve(self) -> None:
        """Claims and serves the shard group until the thread is stopped. After an append with an unknown outcome, the
        thread claims the shard group again."""
        pause = self._config.retry_pause_s
        while not self._stopping.is_set():
            try:
                if self._claim_and_load():
                    pause = self._config.retry_pause_s
                    self._serve()
            except (Fenced, LoopEnded):
                raise
            except Exception as error:  # retried, since the shard group needs an owner
                self._close_writer()
                self._loop.post(self._listener.on_retry, error)
                self._stopping.wait(pause)
                pause = min(
                    pause * 2, self._config.max_retry_pause_s if is_retriable(error) else NON_RETRIABLE_BACKOFF_S
                )

    def _claim_and_load(self) -> bool:
        """Claims the shard group and reads the log. Returns False if this process does not own the shard group now, or
        if the thread was stopped."""
        while not self._ownership.valid():
            if self._stopping.wait(_LEASE_CHECK_INTERVAL_S):
                return False
        self._loop.post(self._listener.on_loading)
        if not self._discard_other_log(self._log.generation(self._config.claim_timeout_s)):
            return False
        self._writer = self._log.writer(self._shard_group)
        self._writer.claim(self._config.claim_timeout_s)
        # The lease must be checked after the claim: see `ownership_protocol`.
        if not self._ownership.valid() or self._stopping.is_set():
            self._close_writer()
            return False
        as_of = boottime()
        ends = self._log.end_offsets(self._partitions, self._config.claim_timeout_s)
        done = self._read_tail(ends) if self._shards is None else self._read_all(self._shards, ends, as_of)
        if not done:
            self._close_writer()
        return done

    def _discard_other_log(self, generation: str) -> bool:
        """Discards shards that were read from another log. If the outdated shards belong to the loop, returns False,
        and the loop has to reload them."""
        if generation in ("", self._generation):
            return True
        if self._shards is None:
            self._loop.run(self._listener.on_topic_recreated)
            return False
        self._shards = {partition: self._new_shard(partition) for partition in self._partitions}
        self._generation = generation
        return True

    def _read_all(self, shards: dict[int, Shard], ends: Mapping[int, int], as_of: float) -> bool:
        for partition in truncated_partitions(shards.values(), ends):
            shards[partition] = self._new_shard(partition)
        load = self.load = ShardLoader(self._log, shards, self._stopping.is_set)
        load.plan(ends, self._config.claim_timeout_s)
        if not with_load_permit(load, self._load_permits, self._stopping):
            return False
        check_same_log(self._log, self._generation, self._config.claim_timeout_s)
        if self._config.own_process:
            after_load()
        self._positions = {partition: shard.position for partition, shard in shards.items()}
        self._shards = None
        self._loop.post(self._listener.on_loaded, shards, self._generation, as_of)
        return True

    def _read_tail(self, ends: Mapping[int, int]) -> bool:
        """Reads the end of the log after an append with an unknown outcome. Only the records of this append are new.
        They are few, so the loop replays them."""
        behind = {partition: end for partition, end in ends.items() if end > self._positions[partition]}
        newest: dict[int, dict[bytes, bytes | None]] = {partition: {} for partition in behind}
        reader = self._log.reader()
        try:
            starts = {partition: self._positions[partition] for partition in behind}
            reached = reader.load(starts, behind, newest, stopped=self._stopping.is_set) if behind else {}
        finally:
            reader.close()
        if any(reached[partition] < end for partition, end in behind.items()):
            return False
        check_same_log(self._log, self._generation, self._config.claim_timeout_s)
        for partition, found in newest.items():
            self._replay_on_loop(partition, found, reached[partition])
            self._positions[partition] = reached[partition]
        self._loop.post(self._listener.on_recovered)
        return True

    def _replay_on_loop(self, partition: int, newest: Mapping[bytes, bytes | None], position: int) -> None:
        """Lets the loop replay the records in parts, so that the loop can do other work between two parts. The last
        part advances the shard's position."""
        items = list(newest.items())
        while len(items) > _REPLAY_PART:
            part, items = dict(items[:_REPLAY_PART]), items[_REPLAY_PART:]
            self._loop.run(self._listener.on_replay, partition, part, self._positions[partition])
        self._loop.run(self._listener.on_replay, partition, dict(items), position)

    # --- appends -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Appends queued records until the thread is stopped or the outcome of an append is unknown."""
        while self._writer is not None:
            batches = self._next_batches()
            if not batches:
                return
            started_at = time.monotonic()
            outcomes = self._append_in_time(batches)
            self._loop.post(self._listener.on_transaction_ended, outcomes, len(batches), time.monotonic() - started_at)
            fenced = next((outcome.error for outcome in outcomes if isinstance(outcome.error, Fenced)), None)
            if fenced is not None:
                raise fenced

    def _next_batches(self) -> Sequence[WriteBatch]:
        """Waits until there is a batch to write and the broker is likely to accept an append. Takes further batches up
        to the limits of a transaction. Returns an empty sequence if the thread is stopped."""
        first = self._queue.get()
        if first is None:
            return ()
        if self._writer is not None and (wait_s := self._writer.ready_at - time.monotonic()) > 0:
            time.sleep(wait_s)
        batches, records, size = [first], first.count, first.bytes
        while records < self._config.max_transaction_records and size < self._config.max_transaction_bytes:
            try:
                batch = self._queue.get_nowait()
            except queue.Empty:
                break
            if batch is None:
                self._queue.put(None)  # stop after this transaction; no batch follows the None
                break
            batches.append(batch)
            records += batch.count
            size += batch.bytes
        return batches

    def _append_in_time(self, batches: Sequence[WriteBatch]) -> list[AppendResult]:
        """Appends the batches whose deadline is far enough away, and rejects the others."""
        min_deadline = time.monotonic() + _MIN_TIME_SHARE * self._config.commit_timeout_s
        expired = sum(batch.deadline < min_deadline for batch in batches)  # the oldest batches come first
        outcomes = failed_results(batches[:expired], deadline_passed())
        return outcomes + self._append(batches[expired:]) if expired < len(batches) else outcomes

    def _append(self, batches: Sequence[WriteBatch]) -> list[AppendResult]:
        """Appends all batches in one transaction. If a record is too large, splits the batches, so that only the
        request with this record fails."""
        if self._writer is None:
            return failed_results(batches, AppendRejected("commit", "the outcome of the previous append is unknown"))
        records = merge_records(batches)
        timeout = batches[0].deadline - time.monotonic()
        if timeout <= 0:
            return failed_results(batches, deadline_passed())
        try:
            return written_results(batches, self._advance(self._writer.append(records, timeout)), records)
        except TooLarge as error:
            split = _split(batches)
            if split is None:
                return failed_results(batches, error)
            return self._append(split[0]) + self._append(split[1])
        except AppendRejected as error:
            return failed_results(batches, error)
        except Fenced as error:
            self._close_writer()
            return failed_results(batches, error)
        except Exception as error:  # after an unexpected error the outcome is unknown too
            self._close_writer()
            unknown = error if isinstance(error, OutcomeUnknown) else OutcomeUnknown("commit", _text(error))
            return failed_results(batches, unknown, certain=False)

    def _advance(self, last: Mapping[int, int]) -> Mapping[int, int]:
        for partition, offset in last.items():
            self._positions[partition] = offset + 1
        return last

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def with_load_permit(load: ShardLoader, permits: threading.Semaphore, stopping: threading.Event) -> bool:
    """Runs a load. A long load waits for a permit, a short load does not. Returns False if the load was stopped."""
    if load.offsets_to_read <= _MAX_TAIL_OFFSETS:
        return load.run()
    while not permits.acquire(timeout=_LEASE_CHECK_INTERVAL_S):
        if stopping.is_set():
            return False
    try:
        return load.run()
    finally:
        permits.release()


def check_same_log(log: PartitionLog, generation: str, timeout_s: float) -> None:
    """Checks, after a read of the log, that the log still has this generation. Raises `OffsetMgrError` if the topic was
    recreated."""
    if log.generation(timeout_s) not in ("", generation):
        raise CoordinatorNotAvailable("offsets topic", "it was recreated while this manager read it")


def is_retriable(error: Exception) -> bool:
    """Returns whether a retry may succeed without a change by an administrator."""
    return isinstance(error, OffsetMgrError) and error.retriable


def _split(batches: Sequence[WriteBatch]) -> tuple[Sequence[WriteBatch], Sequence[WriteBatch]] | None:
    if len(batches) > 1:
        middle = len(batches) // 2
        return batches[:middle], batches[middle:]
    if len(batches[0].entries) > 1:
        first, second = batches[0].split()
        return [first], [second]
    return None


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, OffsetMgrError) else f"{type(error).__name__}: {error}"
