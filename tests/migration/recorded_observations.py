"""Observations of a group that tests write down, one a second."""

from __future__ import annotations

from collections.abc import Mapping

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.model import ABSENT, Committed, LogRange, TopicPartition
from offsetmgr.migration.observation import Observation, OffsetReadResult, PartitionOwner, RegisteredMember

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ZOOKEEPER, DUAL, KAFKA = CommitMode.ZOOKEEPER, CommitMode.DUAL, CommitMode.KAFKA
START_MS = 1_700_000_000_000
OLD = RegisteredMember("g_h1-1699999999999-aaaaaaaa", "h1", START_MS - 5000, czxid=1, session=1, topics=("t",))
NEW = RegisteredMember("g_h1-1700000000001-bbbbbbbb", "h1", START_MS + 100, czxid=50, session=2, topics=("t",))
OTHER = RegisteredMember("g_h2-1700000000002-cccccccc", "h2", START_MS + 200, czxid=60, session=3, topics=("t",))
Offsets = Mapping[int, OffsetReadResult | tuple[int, int] | int | None]
"""Partition -> (offset, version), offset, an error, or None for absent."""


def reading(found: OffsetReadResult | tuple[int, int] | int | None) -> OffsetReadResult:
    if found is None:
        return ABSENT
    if isinstance(found, int):
        return Committed(found)
    if isinstance(found, Committed) or not isinstance(found, tuple):
        return found
    return Committed(found[0], version=found[1])


def observation(
    second: float,
    *,
    zookeeper: Offsets,
    kafka: Offsets,
    ends: Mapping[int, int],
    owners: Mapping[int, tuple[RegisteredMember, int]] | None = None,
    members: tuple[RegisteredMember, ...] = (NEW,),
    unreadable: tuple[str, ...] = (),
) -> Observation:
    """An observation ``second`` seconds after the start; by default NEW owns every partition, since czxid 100."""
    tps = {n: TopicPartition("t", n) for n in ends}
    owned = dict.fromkeys(ends, (NEW, 100)) if owners is None else owners
    return Observation(
        group="g",
        at_ms=START_MS + 1000 + int(second * 1000),
        members={m.id: m for m in members},
        owners={tps[n]: PartitionOwner(m.id, czxid) for n, (m, czxid) in owned.items()},
        partitions=tuple(tps.values()),
        zookeeper={tps[n]: reading(z) for n, z in zookeeper.items()},
        kafka={tps[n]: reading(k) for n, k in kafka.items()},
        logs={tps[n]: LogRange(0, end) for n, end in ends.items()},
        unreadable=unreadable,
    )


BASELINE = observation(-1, zookeeper={0: (10, 1)}, kafka={0: None}, ends={0: 10}, owners={0: (OLD, 5)}, members=(OLD,))


def series(zookeeper: list[tuple[int, int] | None], kafka: list[int | None], end: int = 1000) -> list[Observation]:
    """Observations of one partition, one a second."""
    pairs = zip(zookeeper, kafka, strict=True)
    return [observation(n, zookeeper={0: z}, kafka={0: k}, ends={0: end}) for n, (z, k) in enumerate(pairs)]


def idle(zookeeper: tuple[int, int] | None, kafka: int | None, end: int = 10) -> list[Observation]:
    return series([zookeeper] * 4, [kafka] * 4, end)


MESSAGE = "send a message to this partition: its commit shows the phase"


def new_is_dual_and_other_commits_to_zookeeper() -> list[Observation]:
    """Two observations. NEW has been bounced into the dual phase; OTHER has not been bounced."""
    return [
        observation(
            n,
            zookeeper={0: (10 + n, n), 1: (10 + n, n)},
            kafka={0: 10 + n, 1: None},
            ends={0: 99, 1: 99},
            owners={0: (NEW, 100), 1: (OTHER, 101)},
            members=(NEW, OTHER),
        )
        for n in range(2)
    ]
