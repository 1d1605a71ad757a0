"""`RuntimeServices`: the objects that all shard groups of one manager share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from offsetmgr.manager.log.base import PartitionLog
from offsetmgr.manager.ownership_protocol import Ownership
from offsetmgr.manager.runtime.backpressure import Backpressure
from offsetmgr.manager.runtime.config import ManagerConfig
from offsetmgr.manager.runtime.loop_proxy import LoopProxy
from offsetmgr.manager.runtime.status import Counters
from offsetmgr.manager.shard import Shard


@dataclass(frozen=True, slots=True)
class RuntimeServices:
    """The objects that the shard groups and their writer threads share. ``load_permits`` limits the number of
    concurrent loads."""

    log: PartitionLog
    ownership: Ownership
    config: ManagerConfig
    loop: LoopProxy
    counters: Counters
    backpressure: Backpressure
    new_shard: Callable[[int], Shard]
    load_permits: threading.Semaphore
