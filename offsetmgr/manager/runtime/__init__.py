"""The runtime of one manager process: the shards on an event loop, and the threads that perform their I/O.

The state belongs to the loop (`manager`, `shard_group`, `expiration_task`). The thread of a shard group
(`shard_writer`) claims, loads and appends. The thread of the standby (`standby`) reads the records that other managers
append. Both kinds of threads pass results to the loop through `loop_proxy`, so the state needs no locks. `write_batch`
defines the values that the loop and the threads of the shard groups exchange.

The thread of a shard group appends batches in the order in which the loop queues them, and reports their outcomes in
the same order. The loop answers a commit after `Shard.acknowledged`, so a fetch that a client sends after the response
returns the committed offset.
"""

from offsetmgr.manager.runtime.config import ManagerConfig as ManagerConfig
from offsetmgr.manager.runtime.manager import ManagerRuntime as ManagerRuntime
from offsetmgr.manager.runtime.status import Role as Role
from offsetmgr.manager.runtime.status import ShardStatus as ShardStatus

__all__ = ["ManagerConfig", "ManagerRuntime", "Role", "ShardStatus"]
