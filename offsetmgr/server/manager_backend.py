"""`ManagerBackend`: serves the offsets of the offset manager behind the listener."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

from offsetmgr.core.retry import completed
from offsetmgr.kafka.protocol.requests import CONDITIONAL_FEATURE, LOG_FEATURE
from offsetmgr.manager.assignment import NodeAddress
from offsetmgr.manager.log.base import shard_group_of
from offsetmgr.manager.node.manager_node import ManagerNode
from offsetmgr.manager.results import FetchRequest, FetchResponse


class ManagerBackend:
    """Implements `offsetmgr.server.backend.Backend` with the manager's runtime and its ownership of shard groups."""

    def __init__(self, manager: ManagerNode) -> None:
        runtime = manager.runtime
        self._manager = manager
        self._features = {CONDITIONAL_FEATURE: 1, f"{LOG_FEATURE}{manager.topic.name}": 1}
        self.ownership_error = runtime.ownership_error
        self.ownership_epoch = runtime.ownership_epoch
        self.commit = runtime.commit
        self.delete_offsets = runtime.delete_offsets
        self.delete_group = runtime.delete_group
        self.wait_for_commits = runtime.wait_for_writes
        self.backpressure = runtime.backpressure

    def nodes(self) -> Sequence[NodeAddress]:
        # A manager inside a program (`OffsetManager`) has no port: it owns shards, but clients cannot reach it.
        return [node for node in self._manager.ownership.nodes() if node.port]

    def coordinator(self, group: str) -> NodeAddress | None:
        shard_group = shard_group_of(self._manager.runtime.partition_of(group), self._manager.topic.partitions)
        owner = self._manager.ownership.owner_of(shard_group)
        return owner if owner is not None and owner.port else None

    def fetch(self, request: FetchRequest) -> Awaitable[FetchResponse]:
        return completed(self._manager.runtime.fetch(request))

    def list_groups(self) -> Awaitable[tuple[int, Sequence[str]]]:
        return completed(self._manager.runtime.list_groups())

    def features(self) -> Mapping[str, int]:
        return self._features

    def metrics(self) -> Mapping[str, float]:
        return {
            **self._manager.runtime.metrics(),
            "lease_seconds_left": self._manager.ownership.lease.remaining(),
            "unproven_messages_total": self._manager.ownership.secret.unproven_total,
        }
