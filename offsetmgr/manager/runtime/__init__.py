"""Runs the shards of one process: their event loop, and the threads that perform I/O.

Only this part of `manager` has threads. State belongs to the loop (`manager`, `shard_group`, `offset_expirer`). The
thread of a shard group (`shard_writer`) claims, loads and appends; the standby's thread (`standby`) reads what others
append; both hand results to the loop through `loop_proxy`. `write_batch` has the values between them. So state needs no
locks.

Ordering: the thread appends batches in the order in which the loop puts them, and reports outcomes in that order. The
loop answers a commit after `Shard.acknowledged`, so a client that has the response sees the commit.
"""

from offsetmgr.manager.runtime.config import ManagerConfig as ManagerConfig
from offsetmgr.manager.runtime.manager import ManagerRuntime as ManagerRuntime
from offsetmgr.manager.runtime.status import Role as Role
from offsetmgr.manager.runtime.status import ShardStatus as ShardStatus

__all__ = ["ManagerConfig", "ManagerRuntime", "Role", "ShardStatus"]
