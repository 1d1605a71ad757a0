"""Two runtimes on one in-memory log, through every fault of managers: each kind of failed append, failed claims, shard
groups that are revoked and assigned regularly, leases that expire after another manager got the shard groups, and late
claims.

Clients commit increasing offsets at a random manager, and fetch. A successful fetch returns at least the offset that
was acknowledged before it began, and at most the last offset that was sent. In the end the state of both runtimes
equals a fresh load of the log, and no write is in flight.
"""

import asyncio
import contextlib
import os
import random

import pytest
from async_tests import async_test
from blocking_writer import claimed
from confluent_kafka import KafkaError
from memory_log import Failure, MemoryLog
from runtimes import Lease

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import Unreachable
from offsetmgr.manager.results import CommitRequest, FetchRequest
from offsetmgr.manager.runtime import ManagerRuntime
from offsetmgr.records.avro import AvroRecordFormat

PARTITIONS, GROUPS, CLIENTS = 16, 40, 8
EVENTS = 4000 if os.environ.get("OFFSETMGR_SOAK") else 300
SEEDS = range(40) if os.environ.get("OFFSETMGR_SOAK") else range(3)
CONFIG = ManagerSettings(
    commit_timeout_s=2.0, retry_pause_s=0.002, max_retry_pause_s=0.01, standby_poll_s=0.002, lag_interval_s=0.02,
    max_append_records=40,
)  # fmt: skip


class Cluster:
    """Two managers, and the assignment that moves shard groups between them by the rules of `ownership_protocol`."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log = MemoryLog(PARTITIONS, max_batch_bytes=4_000)
        self.leases = [Lease(), Lease()]
        self.managers = [ManagerRuntime(self.log, AvroRecordFormat(), lease, CONFIG) for lease in self.leases]
        self.owner = {shard_group: shard_group % 2 for shard_group in range(8)}
        self.acknowledged = dict.fromkeys((f"g{number}" for number in range(GROUPS)), -1)
        self.sent = dict(self.acknowledged)
        self.answered = 0
        self.stopped = False

    async def start(self) -> None:
        for manager in self.managers:
            await manager.start()
        for shard_group, owner in self.owner.items():
            self.managers[owner].on_assigned(shard_group)

    async def inject_event(self) -> None:
        shard_group = self.rng.randrange(8)
        event = self.rng.choices(["append", "claim", "read", "move", "lapse", "zombie"], [8, 3, 1, 3, 1, 2])[0]
        if event == "append":
            self.log.fail_next_append(shard_group, self.rng.choice(list(Failure)))
        elif event == "claim":
            self.log.fail_next_claim(shard_group, Unreachable("broker"))
        elif event == "read":
            self.log.fail_next_read(Unreachable("broker"))
        elif event == "move":
            await self.managers[self.owner[shard_group]].on_revoked(shard_group)
            self.owner[shard_group] = 1 - self.owner[shard_group]
            self.managers[self.owner[shard_group]].on_assigned(shard_group)
        elif event == "lapse":
            await self.expire_lease(self.rng.randrange(2))
        else:
            with contextlib.suppress(Unreachable):
                claimed(self.log, shard_group)  # by one that was frozen before, and then sees that its lease is over
        self.rejoin()

    def rejoin(self) -> None:
        """Assigns the shard groups that a manager owns, but has lost to another claim, to the manager again."""
        for number, lease in enumerate(self.leases):
            losses, lease.losses = lease.losses, []
            for lost in sorted({shard_group for shard_group, _ in losses}):
                if self.owner[lost] == number:
                    self.managers[number].on_assigned(lost)

    async def expire_lease(self, manager: int) -> None:
        """A manager's lease expires, and the other manager gets its shard groups before it notices."""
        self.leases[manager].good = False
        shard_groups = [shard_group for shard_group, owner in self.owner.items() if owner == manager]
        for shard_group in shard_groups:
            self.owner[shard_group] = 1 - manager
            self.managers[1 - manager].on_assigned(shard_group)
        await asyncio.sleep(self.rng.random() * 0.02)
        await asyncio.gather(*[self.managers[manager].on_revoked(shard_group) for shard_group in shard_groups])
        self.leases[manager].good = True

    async def client(self, number: int) -> None:
        rng = random.Random(self.rng.random())
        mine = [group for index, group in enumerate(self.acknowledged) if index % CLIENTS == number]
        while not self.stopped:
            group = rng.choice(mine)
            # All commits of a round go to one manager: through several managers their order would be undefined.
            manager = self.managers[rng.randrange(2)]
            await asyncio.gather(*[self.commit(manager, group, rng) for _ in range(rng.randrange(1, 4))])
            self.fetch(rng.choice(list(self.acknowledged)), rng.randrange(2))
            if rng.random() < 0.2:
                await asyncio.sleep(0)

    async def commit(self, manager: ManagerRuntime, group: str, rng: random.Random) -> None:
        self.sent[group] += 1
        offset, metadata = self.sent[group], "x" * (1_500 if rng.random() < 0.02 else 3)
        request = CommitRequest(group, [("t", [(partition, offset, -1, metadata) for partition in range(3)])])
        response = await manager.commit(request)
        if response == (KafkaError.NO_ERROR, {}):
            self.acknowledged[group] = max(self.acknowledged[group], offset)

    def fetch(self, group: str, manager: int) -> None:
        response = self.managers[manager].fetch(FetchRequest(group, [("t", [0, 1, 2])]))
        if response.error == KafkaError.NO_ERROR:
            self.answered += 1
            offsets = {entry[1] for entry in response.topics[0][1]}
            assert len(offsets) == 1
            assert self.acknowledged[group] <= offsets.pop() <= self.sent[group]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@async_test
async def test_two_managers_under_every_failure(seed: int) -> None:
    cluster = Cluster(seed)
    await cluster.start()
    clients = [asyncio.create_task(cluster.client(number)) for number in range(CLIENTS)]
    for _ in range(EVENTS):
        await cluster.inject_event()
        await asyncio.sleep(cluster.rng.random() * 0.005)
    cluster.stopped = True
    await asyncio.gather(*clients)
    assert cluster.answered > EVENTS
    assert max(cluster.acknowledged.values()) > 0
    await _wait_until_stable(cluster)
    assert [manager.metrics()["pending_records"] for manager in cluster.managers] == [0, 0]
    await _check_nothing_is_lost(cluster)
    for manager in cluster.managers:
        await manager.close()


async def _wait_until_stable(cluster: Cluster) -> None:
    """Waits until every shard group is active at its owner, and no shard is recovering."""
    while True:
        cluster.rejoin()
        statuses = [manager.status() for manager in cluster.managers]
        owned = [statuses[cluster.owner[partition % 8]][partition] for partition in range(PARTITIONS)]
        if all(status.state == "active" and not status.recovering for status in owned):
            return
        await asyncio.sleep(0.001)


async def _check_nothing_is_lost(cluster: Cluster) -> None:
    fresh = ManagerRuntime(cluster.log, AvroRecordFormat(), Lease(), ManagerSettings(standby=False, retry_pause_s=0.01))
    await fresh.start()
    for shard_group in range(8):
        fresh.on_assigned(shard_group)
    while any(status.state != "active" for status in fresh.status()):
        await asyncio.sleep(0.001)
    for group, offset in cluster.acknowledged.items():
        found = fresh.fetch(FetchRequest(group, [("t", [0])])).topics[0][1][0][1]
        assert offset <= found <= cluster.sent[group]
    for partition in range(PARTITIONS):
        assert cluster.managers[cluster.owner[partition % 8]].dump(partition) == fresh.dump(partition)
    await fresh.close()
