"""The runtime of one manager process: the shards on an event loop, and the threads that read the log.

The state belongs to the loop (`manager`, `shard_group`). Each owned shard group has a task on the loop (`shard_group`)
that claims, loads and appends; reads of a load run in threads, to which the loaded shards belong until the load ends.
The thread of the standby (`standby`) reads the records that other managers append, and passes them to the loop.
Therefore the state needs no locks. `write_batch` defines the values that a shard group passes to its task.

The task appends batches in the order in which the shard group submits them, and reports their outcomes in the same
order. The shard group answers a commit after `Shard.acknowledged`, so a fetch that a client sends after the response
returns the committed offset.
"""

from offsetmgr.manager.runtime.manager import ManagerRuntime as ManagerRuntime
from offsetmgr.manager.runtime.status import Role as Role
from offsetmgr.manager.runtime.status import ShardStatus as ShardStatus

__all__ = ["ManagerRuntime", "Role", "ShardStatus"]
