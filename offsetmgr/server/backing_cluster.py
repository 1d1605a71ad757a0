"""`BackingCluster`: what the endpoint needs to know of the cluster whose topics its clients consume.

`offsetmgr.kafka.client.backing_cluster.BackingClusterClient` is one.  Without any, Metadata names no topics.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

from offsetmgr.kafka.client.backing_cluster import FoundOffset, OffsetQuery, TopicLayout


class BackingCluster(Protocol):
    """All methods raise `OffsetMgrError` where the cluster could not be asked: never an empty answer instead."""

    async def cluster_id(self) -> str | None: ...

    async def topics(self, names: Sequence[str] | None, ids: Sequence[uuid.UUID] = ()) -> Sequence[TopicLayout]:
        """The topics of these names and ids, each with its error; None: all that there are."""
        ...

    async def list_offsets(
        self, asked: Mapping[str, Sequence[OffsetQuery]], *, read_committed: bool
    ) -> Mapping[str, Sequence[FoundOffset]]:
        """One answer a partition, in any order."""
        ...
