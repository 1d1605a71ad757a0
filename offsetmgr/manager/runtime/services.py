"""`RuntimeServices`: the objects that all shard groups of one manager share, and the load of a shard group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.manager.log.base import PartitionLog
from offsetmgr.manager.ownership_protocol import Ownership
from offsetmgr.manager.runtime.backpressure import Backpressure
from offsetmgr.manager.runtime.process_settings import after_load
from offsetmgr.manager.runtime.status import Counters
from offsetmgr.manager.shard import Shard
from offsetmgr.manager.shard_loader import ShardLoader, check_same_log, with_load_permit


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

    def load(self, load: ShardLoader, ends: Mapping[int, int], generation: str, stopping: threading.Event) -> bool:
        """Reads the log of the load's shards up to ``ends``, and replaces the shards that do not match their log.
        Returns False if the load was stopped. Blocks, so call it in a thread.

        Raises `OffsetMgrError`, also if the log has no longer this generation at the end.
        """
        for partition, shard in load.shards.items():
            if shard.position > ends[partition]:  # the log was truncated or recreated
                load.shards[partition] = self.new_shard(partition)
        load.plan(ends, self.settings.claim_timeout_s)
        if not with_load_permit(load, self.load_permits, stopping):
            return False
        check_same_log(self.log, generation, self.settings.claim_timeout_s)
        if self.settings.own_process:
            after_load()
        return True
