"""`RuntimeServices`: the objects that all shard groups of one manager share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.manager.log.base import PartitionLog
from offsetmgr.manager.ownership_protocol import Ownership
from offsetmgr.manager.runtime.backpressure import Backpressure
from offsetmgr.manager.runtime.status import Counters
from offsetmgr.manager.shard import Shard


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
