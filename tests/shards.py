"""Short forms of commits and fetches for tests of the shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offsetmgr.config.manager_settings import HOUR_MS
from offsetmgr.manager.results import CommitRequest, CoordinatorResult, FetchRequest
from offsetmgr.manager.shard import Shard

DAY_MS = 24 * HOUR_MS
NOW = 1_800_000_000_000
ABSENT = (-1, -1, "", 0)


def committing(group: str, *, topic: str = "t", **offsets: int) -> CommitRequest:
    """A request that commits offsets by partition: ``committing("g", p0=5)``."""
    return CommitRequest(group, [(topic, [(int(name[1:]), offset, -1, "") for name, offset in offsets.items()])])


def acknowledge(shard: Shard, prepared: CoordinatorResult[Any]) -> None:
    shard.acknowledged(prepared, shard.position)


def committed(shard: Shard, group: str, *, topic: str = "t", now: int = NOW, **offsets: int) -> None:
    """Commits and acknowledges."""
    acknowledge(shard, shard.commit(committing(group, topic=topic, **offsets), now))


def fetched(shard: Shard, group: str, partition: int, topic: str = "t") -> tuple[int, int, str, int]:
    """Offset, leader epoch, metadata and error of one partition in a fetch response."""
    [(_, [(_, offset, epoch, metadata, error)])] = shard.fetch(FetchRequest(group, [(topic, [partition])])).topics
    return offset, epoch, metadata, error


def offsets(shard: Shard, group: str) -> Mapping[tuple[str, int], int]:
    """The offsets of a fetch of the whole group."""
    return {(t, p): offset for t, ps in shard.fetch(FetchRequest(group)).topics for p, offset, _, _, _ in ps}
