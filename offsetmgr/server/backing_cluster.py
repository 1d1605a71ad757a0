"""`BackingCluster`: the listener's view of the cluster whose topics its clients consume.

`offsetmgr.kafka.client.backing_cluster.BackingClusterClient` implements it. Without a backing cluster, Metadata lists
no topics.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

from offsetmgr.kafka.client.backing_cluster import FoundOffset, OffsetQuery, TopicLayout


class BackingCluster(Protocol):
    """The requests that the listener sends to the cluster. If the cluster cannot be reached, every method raises
    `OffsetMgrError` and does not return an empty result."""

    async def cluster_id(self) -> str | None:
        """The cluster's id; None if the brokers have none."""
        ...

    async def topics(self, names: Sequence[str] | None, ids: Sequence[uuid.UUID] = ()) -> Sequence[TopicLayout]:
        """Returns the topics with these names and ids, each with its error code. If ``names`` is None, returns all
        topics."""
        ...

    async def list_offsets(
        self, queries: Mapping[str, Sequence[OffsetQuery]], *, read_committed: bool
    ) -> Mapping[str, Sequence[FoundOffset]]:
        """One result per partition, in any order."""
        ...
