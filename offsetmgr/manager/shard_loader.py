"""`ShardLoader`: reads the part of the log that a shard group's shards have not replayed yet. The loader blocks and has
no threads.

A shard belongs to one thread at a time. During a load the shard belongs to the thread that runs `ShardLoader.run`. The
duration of this method has no limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing
from typing import Final

from offsetmgr.core.errors import CoordinatorNotAvailable
from offsetmgr.manager.log.base import PartitionLog
from offsetmgr.manager.shard import Shard

_MAX_TAIL_OFFSETS: Final = 50_000
"""A read of more offsets than this needs a load permit."""
_PERMIT_CHECK_INTERVAL_S: Final = 0.05


class ShardLoader:
    """One load of a shard group's partitions from their positions up to given end offsets. Call `plan`, then `run`.

    Other threads may read `offsets_to_read` and `offsets_read`.
    """

    def __init__(self, log: PartitionLog, shards: dict[int, Shard], stopped: Callable[[], bool]) -> None:
        self._log = log
        self.shards = shards
        self._stopped = stopped
        self._starts: Mapping[int, int] = {}
        self._ends: Mapping[int, int] = {}
        self.offsets_to_read = 0
        self.offsets_read = 0
        self.invalid_keys: Mapping[int, AbstractSet[bytes]] = {}
        """See `LogReader.invalid_keys`."""

    def plan(self, ends: Mapping[int, int], timeout_s: float) -> None:
        """Determines the offsets to read, up to ``ends``. ``timeout_s`` limits the request for the log's start.
        Raises `OffsetMgrError`."""
        starts = {partition: shard.position for partition, shard in self.shards.items()}
        if any(position == 0 for position in starts.values()):
            found = self._log.start_offsets(sorted(starts), timeout_s)
            starts = {partition: max(position, found[partition]) for partition, position in starts.items()}
        self._starts, self._ends = starts, ends
        self.offsets_to_read = sum(max(0, end - starts[partition]) for partition, end in ends.items())

    def run(self) -> bool:
        """Reads the records and replays them. Returns False if the load was stopped. A stopped load leaves the shards
        unchanged. Raises `OffsetMgrError`; records that were replayed before the error stay in the shards."""
        behind = {partition: end for partition, end in self._ends.items() if end > self._starts[partition]}
        if behind and not self._read({partition: self._starts[partition] for partition in behind}, behind):
            return False
        for partition, shard in self.shards.items():
            shard.replay_newest({}, max(self._ends[partition], shard.position))
            shard.check_versions()
        return True

    def _read(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> bool:
        newest: dict[int, dict[bytes, bytes | None]] = {partition: {} for partition in ends}
        with closing(self._log.reader()) as reader:
            reached = reader.load(starts, ends, newest, progress=self._add_progress, stopped=self._stopped)
            self.invalid_keys = reader.invalid_keys
        if any(reached[partition] < end for partition, end in ends.items()):
            return False
        for partition in sorted(ends):
            # The records of each partition are freed before the next partition is replayed. Therefore a load needs
            # little more memory than the loaded shards.
            self.shards[partition].replay_newest(newest.pop(partition), reached[partition])
        return True

    def _add_progress(self, offsets: int) -> None:
        self.offsets_read += offsets


def with_load_permit(load: ShardLoader, permits: threading.Semaphore, stopping: threading.Event) -> bool:
    """Runs a load. A long load waits for a permit, a short load does not. Returns False if the load was stopped."""
    if load.offsets_to_read <= _MAX_TAIL_OFFSETS:
        return load.run()
    while not permits.acquire(timeout=_PERMIT_CHECK_INTERVAL_S):
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
