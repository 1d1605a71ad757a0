"""`RuntimeServices`: the objects that all shard groups of one manager share. `ShardLoader`: the load of a shard
group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import CoordinatorNotAvailable
from offsetmgr.manager.log.base import PartitionLog
from offsetmgr.manager.ownership_protocol import Ownership
from offsetmgr.manager.runtime.backpressure import Backpressure
from offsetmgr.manager.runtime.process_settings import after_load
from offsetmgr.manager.runtime.status import Counters
from offsetmgr.manager.shard import Shard

_MAX_TAIL_OFFSETS: Final = 50_000
"""A read of more offsets than this needs a load permit."""
_PERMIT_CHECK_INTERVAL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class RuntimeServices:
    """The objects that the shard groups and their writers share. ``readers`` are the threads that read the log, and
    ``load_permits`` limits the number of concurrent loads."""

    log: PartitionLog
    ownership: Ownership
    settings: ManagerSettings
    counters: Counters
    backpressure: Backpressure
    new_shard: Callable[[int], Shard]
    load_permits: threading.Semaphore
    readers: Executor

    def check_same_log(self, generation: str) -> None:
        """Checks, after a read of the log, that the log still has this generation. Raises `OffsetMgrError` if the topic
        was recreated."""
        if self.log.generation(self.settings.claim_timeout_s) not in ("", generation):
            raise CoordinatorNotAvailable("offsets topic", "it was recreated while this manager read it")


class ShardLoader:
    """One load of the part of the log that a shard group's shards have not replayed yet. It blocks and has no threads.

    A shard belongs to one thread at a time: during a load, to the thread that runs `load`. The duration of this method
    has no limit. Other threads may read `progress`.
    """

    def __init__(self, services: RuntimeServices, shards: dict[int, Shard], stopping: threading.Event) -> None:
        self.shards = shards
        self.progress = (0, 0)
        """The numbers of offsets that the load has read and has to read."""
        self.invalid_keys: Mapping[int, AbstractSet[bytes]] = {}
        """See `LogReader.invalid_keys`."""
        self._services = services
        self._stopping = stopping

    def load(self, ends: Mapping[int, int], generation: str) -> bool:
        """Replaces the shards that do not match their log by empty ones, then reads the log of the shards up to
        ``ends`` and replays it. Returns False if the load was stopped; it has replayed no record then. If a shard lacks
        deleted records, and another process has appended their values again, the shard is read again from the start.

        Raises `OffsetMgrError`, also if the log does not have this generation after the load. Records that were
        replayed before an error stay in the shards.
        """
        deleted = self._services.log.deleted
        for partition, shard in self.shards.items():
            # the log was truncated, recreated or appended again
            if shard.position > ends[partition] or deleted.is_outdated(shard):
                self.shards[partition] = self._services.new_shard(partition)
        starts = self._starts()
        behind = {partition: end for partition, end in ends.items() if end > starts[partition]}
        to_read = sum(end - starts[partition] for partition, end in behind.items())
        self.progress = (0, to_read)
        # A short load does not wait for others.
        permits = self._services.load_permits if to_read > _MAX_TAIL_OFFSETS else threading.Semaphore()
        while not permits.acquire(timeout=_PERMIT_CHECK_INTERVAL_S):
            if self._stopping.is_set():
                return False
        try:
            if behind and not self._read({partition: starts[partition] for partition in behind}, behind):
                return False
            for partition, shard in self.shards.items():
                deleted.note_gap(shard)
                shard.replay_newest({}, max(ends[partition], shard.position))
                shard.check_versions()
        finally:
            permits.release()
        self._services.check_same_log(generation)
        if any(map(deleted.is_outdated, self.shards.values())):
            return self.load(ends, generation)
        if self._services.settings.own_process:
            after_load()
        return True

    def _starts(self) -> Mapping[int, int]:
        """Returns the offsets to read from. Raises `OffsetMgrError`."""
        starts = {partition: shard.position for partition, shard in self.shards.items()}
        if all(starts.values()):
            return starts
        found = self._services.log.start_offsets(sorted(starts), self._services.settings.claim_timeout_s)
        for partition, position in starts.items():
            if found[partition] > position:
                self._services.log.deleted.note_missing(partition, found[partition])
                if not position:
                    self.shards[partition].held_from = found[partition]
        return {partition: max(position, found[partition]) for partition, position in starts.items()}

    def _read(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> bool:
        newest: dict[int, dict[bytes, bytes | None]] = {partition: {} for partition in ends}
        with closing(self._services.log.reader()) as reader:
            reached = reader.load(starts, ends, newest, progress=self._add_progress, stopped=self._stopping.is_set)
            self.invalid_keys = reader.invalid_keys
        if any(reached[partition] < end for partition, end in ends.items()):
            return False
        for partition in sorted(ends):
            # The records of each partition are freed before the next partition is replayed. Therefore a load needs
            # little more memory than the loaded shards.
            self._services.log.deleted.note_gap(self.shards[partition])
            self.shards[partition].replay_newest(newest.pop(partition), reached[partition])
        return True

    def _add_progress(self, offsets: int) -> None:
        self.progress = (self.progress[0] + offsets, self.progress[1])
