"""`EmbeddedNode`: a manager node without a listener, and the `RequestAdapter` that serves the calls of the program. The
node and the adapter run on the event loop."""

from __future__ import annotations

import os
import socket
import uuid

from offsetmgr.manager.embedded.request_adapter import RequestAdapter
from offsetmgr.manager.log.base import shard_group_of
from offsetmgr.manager.node.manager_node import ManagerNode
from offsetmgr.manager.node.node_config import NodeConfig


class EmbeddedNode:
    """A manager inside a program. The program opens and closes it once. ``timeout_s`` limits the wait to join the
    managers' group, and the retries of each call of `RequestAdapter`."""

    def __init__(self, settings: NodeConfig, timeout_s: float) -> None:
        self.requests: RequestAdapter | None = None
        """Set once the node is open."""
        self._timeout_s = timeout_s
        # The node has no listener, so a readable unique name takes the place of the host name.
        self._name = f"embedded-{uuid.uuid4().hex[:6]}-in-process-{os.getpid()}-of-{socket.gethostname()}"
        self._node = ManagerNode(settings, self._name, 0)

    async def open(self) -> None:
        """Opens the node and joins the managers' group. Raises `OffsetMgrError`; the caller must call `close` even
        after an error."""
        node = self._node
        await node.open()
        await node.join(self._timeout_s)
        runtime, ownership = node.runtime, node.ownership

        def other_owner(group: str) -> str | None:
            shard_group = shard_group_of(runtime.partition_of(group), node.topic.partitions)
            owner = ownership.owner_of(shard_group)
            if owner is None or owner.host == self._name or shard_group in ownership.owned():
                return None
            return f"{owner.host}:{owner.port}" if owner.port else owner.host

        self.requests = RequestAdapter(runtime, other_owner, self._timeout_s)

    async def close(self) -> None:
        """Completes the commits in flight, leaves the group and closes the connections."""
        self.requests = None
        await self._node.close()
