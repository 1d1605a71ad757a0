"""`ShardWriterThread`: the life of one owned shard group as its thread lives it, from the claim to the end.

It only does I/O. What it finds out it tells the loop, in order, and the loop changes the state and answers.

Why fetches are still answered from memory while the outcome of an append is unknown: what is in doubt was answered with
an error or not at all, so memory holds the last *acknowledged* offsets. Nobody else can have acknowledged anything
since: whoever owns the shard group after us does not before our lease has ended, which every fetch checks (data rule
"one writer per shard"), and who claims the shard group without owning it appends nothing (see `ownership_protocol`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from offsetmgr.core.errors import CoordinatorNotAvailable, OffsetMgrError
from offsetmgr.manager.lease import boottime
from offsetmgr.manager.log.base import AppendRejected, Fenced, OutcomeUnknown, PartitionLog, ShardGroupWriter, TooLarge
from offsetmgr.manager.ownership_protocol import Ownership
from offsetmgr.manager.runtime.config import ManagerConfig
from offsetmgr.manager.runtime.loop_proxy import LoopEnded, LoopProxy
from offsetmgr.manager.runtime.process_tuning import after_load
from offsetmgr.manager.runtime.write_batch import AppendResult, WriteBatch, failed, merged, split_expired, written
from offsetmgr.manager.shard import Shard
from offsetmgr.manager.shard_loader import ShardLoader, truncated_partitions

NON_RETRIABLE_BACKOFF_S: Final = 60.0
"""Seconds: the longest pause after an error that will hardly pass; each try may read a whole topic again."""
_LEASE_PAUSE: Final = 0.05
_LEAST_TIME: Final = 0.1
"""The part of the commit timeout that must be left for an append to be tried."""
_TAIL: Final = 50_000
"""Offsets; with more to read it is a load."""
_TAIL_PART: Final = 1000


class WriterCallbacks(Protocol):
    """What the loop's side of the shard group is told, on the loop."""

    def on_loading(self) -> None:
        """It begins to claim and to read."""
        ...

    def on_retry(self, error: Exception) -> None:
        """That failed, and will be tried again."""
        ...

    def on_loaded(self, shards: Mapping[int, Shard], generation: str, as_of: float) -> None:
        """The shards are as the log (of this `PartitionLog.generation`) was after the claim, at ``as_of`` of
        `lease.boottime`: the shard group can be served, and the shards are the loop's."""
        ...

    def on_topic_recreated(self) -> None:
        """The log is not the one any more that the shards were filled from: they must be read again."""
        ...

    def on_replay(self, partition: int, part: Mapping[bytes, bytes | None], position: int) -> None:
        """What was appended while the outcome was unknown, of one partition; see `Shard.replay_newest`."""
        ...

    def on_recovered(self) -> None:
        """After an unknown outcome the log was read to its end, and `on_tail` has told all of it."""
        ...

    def on_ended(self, outcomes: Sequence[AppendResult], batches: int, seconds: float) -> None:
        """The oldest ``batches`` have ended, in order; that took so long."""
        ...

    def on_finished(self, fenced: str) -> None:
        """The thread ends; ``fenced`` says by whom, or nothing. It appends nothing any more."""
        ...


class ShardWriterThread:
    """``shards`` belong to the thread until `WriterCallbacks.on_loaded`."""

    def __init__(
        self,
        slot: int,
        log: PartitionLog,
        ownership: Ownership,
        config: ManagerConfig,
        bridge: LoopProxy,
        listener: WriterCallbacks,
        shards: Mapping[int, Shard],
        generation: str,
        new_shard: Callable[[int], Shard],
        loading: threading.Semaphore,
    ) -> None:
        self.load: ShardLoader | None = None
        self._slot = slot
        self._log = log
        self._ownership = ownership
        self._config = config
        self._bridge = bridge
        self._listener = listener
        self._shards: dict[int, Shard] | None = dict(shards)
        self._partitions = sorted(shards)
        self._generation = generation
        self._new_shard = new_shard
        self._loading = loading
        self._positions: dict[int, int] = {}
        self._queue: queue.SimpleQueue[WriteBatch | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._writer: ShardGroupWriter | None = None
        self._thread = threading.Thread(target=self._run, name=f"offsetmgr-slot-{slot}", daemon=True)

    # --- called on the loop ------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def put(self, batch: WriteBatch) -> None:
        """To be appended after all that was put before."""
        self._queue.put(batch)

    def stop(self) -> None:
        """What was put will still be appended; nothing may be put any more."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._queue.put(None)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def loading(self) -> bool:
        """Whether it has not handed over its shards yet."""
        return self._shards is not None

    # --- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        fenced = ""
        try:
            self._live()
        except Fenced as error:
            fenced = str(error)
        except LoopEnded:
            pass
        finally:
            self._close_writer()
            self._bridge.post(self._listener.on_finished, fenced)

    def _live(self) -> None:
        """Until it is stopped: claims, then serves as long as it is known what became of every append."""
        pause = self._config.retry_pause
        while not self._stopping.is_set():
            try:
                if self._take_over():
                    pause = self._config.retry_pause
                    self._serve()
            except (Fenced, LoopEnded):
                raise
            except Exception as error:  # whatever it is, it is shown, and the slot must not stay without an owner
                self._close_writer()
                self._bridge.post(self._listener.on_retry, error)
                self._stopping.wait(pause)
                pause = min(
                    pause * 2, self._config.most_retry_pause if is_retriable(error) else NON_RETRIABLE_BACKOFF_S
                )

    def _take_over(self) -> bool:
        """Claims the shard group and reads what is there. False: it is not, or not yet, ours to serve."""
        while not self._ownership.valid():
            if self._stopping.wait(_LEASE_PAUSE):
                return False
        self._bridge.post(self._listener.on_loading)
        if not self._of_one_log(self._log.generation(self._config.claim_timeout)):
            return False
        self._writer = self._log.writer(self._slot)
        self._writer.claim(self._config.claim_timeout)
        # In this order, and after the claim: see `ownership_protocol`.
        if not self._ownership.valid() or self._stopping.is_set():
            self._close_writer()
            return False
        as_of = boottime()
        ends = self._log.end_offsets(self._partitions, self._config.claim_timeout)
        done = self._read_tail(ends) if self._shards is None else self._read_all(self._shards, ends, as_of)
        if not done:
            self._close_writer()
        return done

    def _of_one_log(self, generation: str) -> bool:
        """Before the claim. Shards of another log are forgotten, if they can be: False where they are the loop's."""
        if generation in ("", self._generation):
            return True
        if self._shards is None:
            self._bridge.run(self._listener.on_topic_recreated)
            return False
        self._shards = {partition: self._new_shard(partition) for partition in self._partitions}
        self._generation = generation
        return True

    def _read_all(self, shards: dict[int, Shard], ends: Mapping[int, int], as_of: float) -> bool:
        for partition in truncated_partitions(shards.values(), ends):
            shards[partition] = self._new_shard(partition)
        load = self.load = ShardLoader(self._log, shards, self._stopping.is_set)
        load.plan(ends, self._config.claim_timeout)
        if not with_load_permit(load, self._loading, self._stopping):
            return False
        check_same_log(self._log, self._generation, self._config.claim_timeout)
        if self._config.own_process:
            after_load()
        self._positions = {partition: shard.position for partition, shard in shards.items()}
        self._shards = None
        self._bridge.post(self._listener.on_loaded, shards, self._generation, as_of)
        return True

    def _read_tail(self, ends: Mapping[int, int]) -> bool:
        """After an unknown outcome. What is new is at most what was being appended, so it is handed to the loop."""
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
        check_same_log(self._log, self._generation, self._config.claim_timeout)
        for partition, found in newest.items():
            self._hand_over(partition, found, reached[partition])
            self._positions[partition] = reached[partition]
        self._bridge.post(self._listener.on_recovered)
        return True

    def _hand_over(self, partition: int, newest: Mapping[bytes, bytes | None], position: int) -> None:
        """In parts, so that the loop can do other things in between; the last one moves the shard's position."""
        items = list(newest.items())
        while len(items) > _TAIL_PART:
            part, items = dict(items[:_TAIL_PART]), items[_TAIL_PART:]
            self._bridge.run(self._listener.on_replay, partition, part, self._positions[partition])
        self._bridge.run(self._listener.on_replay, partition, dict(items), position)

    # --- appending ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Appends what is put, until nothing more will be, or it is not known what became of an append."""
        while self._writer is not None:
            batches = self._next_batches()
            if not batches:
                return
            began = time.monotonic()
            outcomes = self._outcomes(batches)
            self._bridge.post(self._listener.on_ended, outcomes, len(batches), time.monotonic() - began)
            fenced = next((outcome.error for outcome in outcomes if isinstance(outcome.error, Fenced)), None)
            if fenced is not None:
                raise fenced

    def _next_batches(self) -> Sequence[WriteBatch]:
        """Waits for a batch and until the log takes it up, and takes those that are there too by then, up to the
        limits; nothing: it is to stop."""
        first = self._queue.get()
        if first is None:
            return ()
        if self._writer is not None and (rest := self._writer.ready_at - time.monotonic()) > 0:
            time.sleep(rest)
        batches, records, size = [first], first.count, first.bytes
        while records < self._config.transaction_records and size < self._config.transaction_bytes:
            try:
                batch = self._queue.get_nowait()
            except queue.Empty:
                break
            if batch is None:
                self._queue.put(None)  # nothing stands behind it
                break
            batches.append(batch)
            records += batch.count
            size += batch.bytes
        return batches

    def _outcomes(self, batches: Sequence[WriteBatch]) -> list[AppendResult]:
        """Appends what there is still time for."""
        latest = time.monotonic() + _LEAST_TIME * self._config.commit_timeout
        late = sum(batch.deadline < latest for batch in batches)  # the oldest come first
        outcomes = failed(batches[:late], split_expired())
        return outcomes + self._append(batches[late:]) if late < len(batches) else outcomes

    def _append(self, batches: Sequence[WriteBatch]) -> list[AppendResult]:
        """One transaction for all; where something in it is too large, halves, so that only the culprit fails."""
        if self._writer is None:
            return failed(batches, AppendRejected("commit", "what became of the one before it is not known"))
        records = merged(batches)
        timeout = batches[0].deadline - time.monotonic()
        if timeout <= 0:
            return failed(batches, split_expired())
        try:
            return written(batches, self._note(self._writer.append(records, timeout)), records)
        except TooLarge as error:
            halves = _halves(batches)
            if halves is None:
                return failed(batches, error)
            return self._append(halves[0]) + self._append(halves[1])
        except AppendRejected as error:
            return failed(batches, error)
        except Fenced as error:
            self._close_writer()
            return failed(batches, error)
        except Exception as error:  # an error that an append should not give leaves its outcome open, too
            self._close_writer()
            unknown = error if isinstance(error, OutcomeUnknown) else OutcomeUnknown("commit", _text(error))
            return failed(batches, unknown, certain=False)

    def _note(self, last: Mapping[int, int]) -> Mapping[int, int]:
        for partition, offset in last.items():
            self._positions[partition] = offset + 1
        return last

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def with_load_permit(load: ShardLoader, turns: threading.Semaphore, stopping: threading.Event) -> bool:
    """Runs a load, a long one when it is its turn; False: it was stopped. A tail waits for nobody."""
    if load.offsets_to_read <= _TAIL:
        return load.run()
    while not turns.acquire(timeout=_LEASE_PAUSE):
        if stopping.is_set():
            return False
    try:
        return load.run()
    finally:
        turns.release()


def check_same_log(log: PartitionLog, generation: str, timeout: float) -> None:
    """After a reading of the log that had this generation before. Raises `OffsetMgrError`."""
    if log.generation(timeout) not in ("", generation):
        raise CoordinatorNotAvailable("offsets topic", "it was made anew while it was read")


def is_retriable(error: Exception) -> bool:
    """Whether trying again may help without anybody changing anything."""
    return isinstance(error, OffsetMgrError) and error.retriable


def _halves(batches: Sequence[WriteBatch]) -> tuple[Sequence[WriteBatch], Sequence[WriteBatch]] | None:
    if len(batches) > 1:
        middle = len(batches) // 2
        return batches[:middle], batches[middle:]
    if len(batches[0].entries) > 1:
        first, second = batches[0].halves()
        return [first], [second]
    return None


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, OffsetMgrError) else f"{type(error).__name__}: {error}"
