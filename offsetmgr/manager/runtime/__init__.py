"""Runs the shards of one process: the event loop that they live on, and the threads that do its I/O.

Nothing else in `manager` has threads. State belongs to the loop (`manager`, `shard_group`, `offset_expirer`); a shard
group's thread (`writing`) claims, loads and appends, the standby's thread (`following`) reads what others append, and
both hand what they found to the loop through `loop_proxy`. `batches` is what travels between them. So there are no
locks on state.

Ordering: what a shard group's loop side puts is appended in that order, and its outcomes come back in that order; a
commit is answered after `Shard.acknowledged`, so whoever has the answer sees the commit.
"""

from offsetmgr.manager.runtime.config import ManagerConfig as ManagerConfig
from offsetmgr.manager.runtime.manager import ManagerRuntime as ManagerRuntime
from offsetmgr.manager.runtime.status import Role as Role
from offsetmgr.manager.runtime.status import ShardStatus as ShardStatus

__all__ = ["ManagerConfig", "ManagerRuntime", "Role", "ShardStatus"]
