"""A simulation of managers that take over a shard group from one another, over the brokers of `simulated_cluster`.

The managers run the real `KafkaShardGroupWriter`. One seed determines the whole run. The simulation runs one callback
of one manager at a time, so a manager can freeze or crash between any two awaits of its writer.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fenced_log_oracle import Oracle, Violation
from simulated_cluster import Cluster, Settings
from simulated_loop import SimulatedLoop
from simulated_network import TOPIC, Network, SimulatedClient

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.manager.log.base import AppendOutcome, Fenced, OutcomeUnknown
from offsetmgr.manager.log.kafka.leader_connections import LeaderConnections
from offsetmgr.manager.log.kafka.log_history import LogHistory
from offsetmgr.manager.log.kafka.writer import KafkaShardGroupWriter, WriterOptions
from offsetmgr.records.base import EncodedRecord
from offsetmgr.records.claim import CLAIM_KEY, FENCE_KEY, decode_claim

ID_PREFIX: Final = "offsets-partition-"
CLAIM_TIMEOUT_S: Final = 4.0
APPEND_TIMEOUT_S: Final = 2.0
REFRESH_S: Final = 20.0
"""The time between two claims of an owner. It is below a quarter of the brokers' expiration times."""
MAX_BATCH_BYTES: Final = 1_800
"""The limit of the writers. It is above the brokers' limit, so that both are tested."""


@dataclass
class Chances:
    """The probabilities that a step of a manager is its last one before a freeze, or its last one at all."""

    freeze: float = 0.0
    crash: float = 0.0
    longest_freeze_s: float = 8.0


class Simulation:
    """The simulated time, the brokers and the managers."""

    def __init__(
        self, seed: int, settings: Settings | None = None, writer: type[KafkaShardGroupWriter] = KafkaShardGroupWriter
    ) -> None:
        self.random = random.Random(seed)
        self.now = 1_000.0
        self.network = Network()
        self.chances = Chances()
        self.managers: list[Manager] = []
        self.owner: Manager | None = None
        """The manager to which the shard group is assigned."""
        self.calm = False
        """Whether the faults have ended."""
        self.quick = False
        """Whether the owner appends without pauses."""
        self.writer = writer
        self.history: list[str] = []
        self.numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.cluster = Cluster(self, settings or Settings())
        self.oracle = Oracle(self.cluster)
        self.every(10, self.cluster.expire)

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *_: object) -> None:
        for manager in self.managers:
            manager.loop.end()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self.numbers), action))

    def every(self, mean_s: float, action: Callable[[], object]) -> None:
        """Calls ``action`` at random times until the end."""

        def act() -> None:
            action()
            self.after(self.random.expovariate(1 / mean_s), act)

        self.after(self.random.expovariate(1 / mean_s), act)

    def log(self, message: str) -> None:
        self.history.append(f"{self.now:9.3f} {message}")

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Advances the time, step by step. Returns whether the condition ``until`` has become true."""
        end = self.now + seconds
        while self.now < end:
            if until is not None and until():
                return True
            running = [manager for manager in self.managers if manager.alive and not manager.frozen]
            first = self.random.randrange(len(running)) if len(running) > 1 else 0
            if any(manager.step() for manager in running[first:] + running[:first]):
                continue
            following = min([self._events[0][0], *(manager.due() for manager in running)])
            self.now = min(max(self.now, following), end)
            while self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
        return until is not None and until()

    def start_manager(self) -> Manager:
        manager = Manager(self, f"m{len(self.managers)}")
        self.managers.append(manager)
        return manager

    def assign(self, manager: Manager, *, revoke: bool) -> None:
        """Assigns the shard group to a manager. If ``revoke`` is False, the former owner does not learn about it."""
        if self.owner is not None and revoke:
            self.owner.revoked = True
        self.log(f"{manager.name} becomes the owner" + ("" if revoke else ", secretly"))
        manager.revoked = False
        self.owner = manager


class Manager:
    """One process. It claims the shard group while it is the owner, loads it, appends records and refreshes its
    claim."""

    def __init__(self, world: Simulation, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.frozen = self.revoked = False
        self.appending = True
        self._freezes = 0
        self.lost_s = 0.0
        """The time for which the clock of the loop has not advanced."""
        self.loop = SimulatedLoop(lambda: world.now - self.lost_s)
        self.steps = 0
        self.lives = 0
        self.acknowledged = self.unknown = 0
        self.life = ""
        self.phase = ""
        """The call of the writer that is in progress: claim, refresh or append."""
        self.history = LogHistory(TOPIC)
        self.client = SimulatedClient(self, world, world.cluster, world.network)
        self.caches: dict[int, dict[bytes, bytes | None]] = {}
        self.positions: dict[int, int] = {}
        self._task = self.loop.create_task(self._run())

    # --- steps and faults -----------------------------------------------------------------------------

    def step(self) -> bool:
        if not self.loop.step():
            return False
        self.steps += 1
        if self._task.done() and (error := self._task.exception()) is not None:
            raise error
        world = self.world
        if world.random.random() < world.chances.freeze:
            seconds = world.random.uniform(0, world.chances.longest_freeze_s)
            self.freeze(seconds, suspended=world.random.random() < 0.5)
        elif world.random.random() < world.chances.crash:
            self.kill()
        return True

    def due(self) -> float:
        return self.loop.due() + self.lost_s

    def freeze(self, seconds: float, *, suspended: bool = False) -> None:
        """Stops the process for a time. If ``suspended`` is True, its clock stops, too, as in a suspended machine."""
        self.world.log(f"{self.name} freezes for {seconds:.1f} s")
        self.frozen = True
        self._freezes += 1
        start, number = self.world.now, self._freezes

        def thaw() -> None:
            if number != self._freezes:  # it has frozen again meanwhile
                return
            self.world.log(f"{self.name} thaws")
            self.lost_s += self.world.now - start if suspended else 0.0
            self.frozen = False

        self.world.after(seconds, thaw)

    def kill(self) -> None:
        self.world.log(f"{self.name} crashes")
        self.alive = False

    # --- the life of an owner -------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if self.world.owner is self and not self.revoked:
                await self._own()
            await asyncio.sleep(self.world.random.uniform(0.05, 2))

    async def _own(self) -> None:
        self.lives += 1
        self.life = f"{self.name}.{self.lives}"
        self.caches = {number: {} for number in self.world.cluster.partitions}
        self.positions = dict.fromkeys(self.caches, 0)
        connections = LeaderConnections(self.client, TOPIC, ID_PREFIX)
        options = WriterOptions(TOPIC, self.life, MAX_BATCH_BYTES)
        writer = self.world.writer(0, list(self.caches), connections, options, self.history)
        self.world.log(f"{self.life} begins")
        try:
            while not self.revoked:
                try:
                    await self._claim(writer)
                    await self._serve(writer)
                except Fenced:
                    raise
                except OffsetMgrError as error:
                    self.world.log(f"{self.life}: {error}")
                    await asyncio.sleep(self.world.random.uniform(0.01, 0.3))
        except Fenced as error:
            self.world.oracle.counts.fenced += 1
            self.world.log(f"{self.life} is fenced: {error}")
        finally:
            writer.close()

    async def _claim(self, writer: KafkaShardGroupWriter) -> None:
        self.phase = "claim"
        ends = await writer.claim(CLAIM_TIMEOUT_S)
        self.world.log(f"{self.life} has claimed up to {dict(ends)}")
        self.world.oracle.on_claimed(self.life, ends)
        for number, end in ends.items():
            await self._read(number, end)
        for number, outcome in (await writer.complete_claim(CLAIM_TIMEOUT_S)).items():
            self._advance(number, outcome)
        self._refresh_at = self.loop.time() + REFRESH_S

    async def _read(self, number: int, end: int) -> None:
        """Reads a partition up to its claim, from the leader's compacted log."""
        partition = self.world.cluster.partitions[number]
        while partition.leader is None or partition.replicas[partition.leader].high_watermark < end:
            await asyncio.sleep(0.1)
        for _, key, value in partition.replicas[partition.leader].records(self.positions[number], end):
            if key == CLAIM_KEY and value is not None:
                self.history.add_ids(number, decode_claim(value).producer_ids)
            elif key != FENCE_KEY:
                self.caches[number][key] = value
        self.positions[number] = max(self.positions[number], end)
        self.world.oracle.check_cache(number, self.caches[number], self.positions[number])

    def _advance(self, number: int, outcome: AppendOutcome) -> None:
        if isinstance(outcome, OffsetMgrError):
            raise outcome
        self.positions[number] = outcome + 1
        self.world.oracle.check_cache(number, self.caches[number], self.positions[number])

    async def _serve(self, writer: KafkaShardGroupWriter) -> None:
        while not self.revoked:
            if self.loop.time() >= self._refresh_at:
                await self._refresh(writer)
            elif self.appending:
                await self._append(writer)
            pauses = [0.0, 0.001] if self.world.quick else [0.0, 0.001, 0.2, 2.0]
            await asyncio.sleep(self.world.random.choice(pauses if self.appending else [1.0]))

    async def _refresh(self, writer: KafkaShardGroupWriter) -> None:
        """Claims again, without reading, as `ShardWriter` does."""
        self.phase = "refresh"
        try:
            ends = await writer.claim(CLAIM_TIMEOUT_S)
        except Fenced:
            raise
        except OffsetMgrError as error:
            self.world.log(f"{self.life} cannot refresh its claim: {error}")
            self._refresh_at = self.loop.time() + REFRESH_S / 4
            if not writer.claimed:
                raise
            return
        self.world.log(f"{self.life} has refreshed its claim, up to {dict(ends)}")
        self.world.oracle.on_claimed(self.life, ends)
        for number, end in ends.items():
            self._advance(number, end - 1)
        self._refresh_at = self.loop.time() + REFRESH_S

    async def _append(self, writer: KafkaShardGroupWriter) -> None:
        batches = self._new_batches()
        self.world.oracle.on_append(self.life, batches)
        self.phase = "append"
        outcomes = await writer.append(batches, APPEND_TIMEOUT_S)
        self.on_outcomes(batches, outcomes)
        for outcome in outcomes.values():
            if isinstance(outcome, Fenced | OutcomeUnknown):
                raise outcome

    def on_outcomes(self, batches: Mapping[int, list[EncodedRecord]], outcomes: Mapping[int, AppendOutcome]) -> None:
        """Replays the batches that are written."""
        if outcomes.keys() != batches.keys():
            raise Violation(f"outcomes of {sorted(outcomes)}, batches of {sorted(batches)}")
        for number, outcome in outcomes.items():
            self.world.log(f"{self.life} {number}: {batches[number][0]} {outcome!r}")
            self.world.oracle.on_outcome(batches[number], outcome)
            self.unknown += isinstance(outcome, OutcomeUnknown)
            if isinstance(outcome, int):
                self.acknowledged += 1
                self.caches[number].update(batches[number])
                self._advance(number, outcome)

    def _new_batches(self) -> dict[int, list[EncodedRecord]]:
        draw = self.world.random
        numbers = draw.sample(list(self.caches), draw.randint(1, len(self.caches)))
        return {number: [self._new_record() for _ in range(draw.choice([1, 1, 1, 2, 3]))] for number in numbers}

    def _new_record(self) -> EncodedRecord:
        draw, number = self.world.random, next(self.world.numbers)
        kind = draw.random()
        if kind < 0.1:
            return b"gone-%d" % number, None
        size = draw.choice([1_600, 2_000]) if kind > 0.97 else 0
        return b"k%d" % draw.randrange(6), b"%s/%d" % (self.life.encode(), number) + b"." * size
