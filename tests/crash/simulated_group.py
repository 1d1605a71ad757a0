"""A simulation of the managers' group: processes with their own clocks and event loops, a network with delays, and the
coordinator of `simulated_coordinator`.

The processes run the real `OwnershipManager` over the real `KafkaGroupMember`; only the connection is simulated. One
seed determines the whole run.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

from simulated_coordinator import REBALANCE_TIMEOUT_S, SESSION_TIMEOUT_S, Coordinator
from simulated_loop import SimulatedLoop

from offsetmgr.core.errors import OffsetMgrError, TimedOut, Unreachable
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.groups.group_member import GroupMemberConfig, KafkaGroupMember
from offsetmgr.kafka.protocol.frames import Address, EncodedRequest, Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import Message
from offsetmgr.manager.assignment import NodeAddress, SharedConfig
from offsetmgr.manager.group_secret import GroupSecret
from offsetmgr.manager.ownership import ASSIGNMENT_RULES, PROTOCOL, PROTOCOL_TYPE, OwnershipManager

SHARD_GROUPS: Final = 8


class World:
    """The simulated time, the scheduled events, the brokers and the processes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000.0
        self.brokers = [Coordinator(self, n) for n in range(2)]
        self.active = self.brokers[0]
        self.active.lead({})
        self.processes: list[Process] = []
        self.history: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.lost_answers: set[tuple[Process, int]] = set()
        """Process and API key whose next response is lost; the connection stays open."""
        self.claims: dict[int, Process] = {}
        """The process that claimed each shard group last; the writers of all others are fenced."""
        self.slow_network = self.few_commits = False
        self.quick_claims = self.quick_revocations = False

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.loop.end()

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def latency(self) -> float:
        draw = self.random.random()
        if self.slow_network and draw < 0.1:
            return self.random.uniform(0, 8 if draw > 0.02 else 2 * REBALANCE_TIMEOUT_S)
        return self.random.uniform(0.001, 0.02)

    def log(self, message: str) -> None:
        self.history.append(f"{self.now:10.3f} {message}")

    def run(self, seconds: float) -> None:
        """Advances the time, event by event, and checks the invariant after each."""
        end = self.now + seconds
        while True:
            for process in self.processes:
                process.work()
            self.check()
            times = [self._events[0][0]] if self._events else []
            times += [process.loop.due() for process in self.processes if process.running]
            following = min(times, default=end)
            if following >= end:
                self.now = end
                return
            self.now = max(self.now, following)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()

    def check(self) -> None:
        """No shard group has two owners."""
        owners: dict[int, Process] = {}
        for process in self.processes:
            if process.alive and process.ownership.valid():
                for shard_group in process.serving:
                    other = owners.setdefault(shard_group, process)
                    assert other is process, "\n".join(
                        [*self.history, f"{self.now:.3f} shard group {shard_group}: {other.name}, {process.name}"]
                    )

    def fail_over(self, *, wake_after: float | None) -> None:
        """The coordinator's broker stops for good, or is frozen for ``wake_after`` seconds. Later the other broker
        becomes the leader and loads the stored group."""
        old, new = self.active, next(b for b in self.brokers if b is not self.active)
        self.log(f"{old.name} stops" + (f" for {wake_after:.1f} s" if wake_after else ""))
        old.stop()
        election = self.random.uniform(0.1, 9)
        loading = self.random.uniform(0, 3)

        def elect() -> None:
            self.log(f"{new.name} leads, loads for {loading:.1f} s")
            self.active = new
            new.load()
            self.after(loading, lambda: new.lead(old.stored))

        def wake() -> None:
            self.log(f"{old.name} wakes")
            old.wake(zombie=self.active is not old)

        if wake_after is None or wake_after > election:
            self.after(election, elect)
        if wake_after is not None:
            self.after(wake_after, wake)
        else:
            self.after(election + 1, lambda: old.wake(zombie=False))  # restarted, empty, as a follower


@dataclass
class SimulatedConnection:
    """A connection whose requests arrive even after the client closed it. That produces outdated JoinGroup requests."""

    process: Process
    broker: Coordinator
    closed: bool = False
    login_unproven: bool = False
    calls: dict[asyncio.Future[Any], None] = field(default_factory=dict)  # a set has no fixed order

    @property
    def address(self) -> Address:
        return self.broker.address

    async def call(self, request: Request | EncodedRequest, timeout: float) -> Message:
        if self.closed:
            raise Unreachable(str(self.address), "closed")
        world, loop = self.process.world, self.process.loop
        answer: asyncio.Future[Message] = loop.create_future()
        self.calls[answer] = None

        def deliver(values: dict[str, Any]) -> None:
            if request.api_key == ApiKey.OFFSET_COMMIT:
                values = {"topics": [{"partitions": [values]}]}
            elif request.api_key == ApiKey.LEAVE_GROUP:
                values = {"members": [], **values}
            if not answer.done() and self.process.alive:
                answer.set_result(values)

        def reply(**values: Any) -> None:
            if (self.process, request.api_key) in world.lost_answers:
                world.lost_answers.discard((self.process, request.api_key))
                return

            def arrive() -> None:
                loop.call_soon(deliver, values)

            world.after(world.latency(), arrive)

        world.after(world.latency(), lambda: self.broker.receive(request, reply))
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            self.closed = True
            raise TimedOut(str(self.address), "no answer") from None
        finally:
            self.calls.pop(answer, None)

    async def close(self) -> None:
        self.closed = True
        for answer in self.calls:
            if not answer.done():
                answer.set_exception(Unreachable(str(self.address), "closed"))


class SimulatedClient:
    """The methods of `Client` that `KafkaGroupMember` calls."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def find_coordinators(self, groups: list[str], deadline: float) -> dict[str, Address | OffsetMgrError]:
        await asyncio.sleep(self.process.world.latency())
        active = self.process.world.active
        if active.stopped:
            raise TimedOut("brokers", "no answer")
        return dict.fromkeys(groups, active.address)

    def rotate_after(self, errors: Iterable[OffsetMgrError]) -> None: ...

    async def coordinator(self, group: str, deadline: float) -> Address:
        return self.process.world.active.address

    def node(self, address: Address) -> SimpleNamespace:
        broker = next(b for b in self.process.world.brokers if b.address == address)

        async def connect(deadline: float) -> SimulatedConnection:
            await asyncio.sleep(self.process.world.latency())
            return SimulatedConnection(self.process, broker)

        return SimpleNamespace(open=connect, connection=connect)


class Process:
    """One manager. Its clock runs at its own rate; the rates of two clocks differ by less than the lease tolerates."""

    def __init__(
        self,
        world: World,
        number: int,
        *,
        topic: str = "offsets",
        rate: float | None = None,
        secret: GroupSecret | None = None,
    ) -> None:
        self.world = world
        self.name = f"p{number}"
        self.loop = SimulatedLoop(lambda: world.now)
        self.alive = self.running = True
        self.serving: set[int] = set()
        self.claiming: set[int] = set()
        """The shard groups for which the process has checked its lease and is about to claim."""
        self._working: dict[int, asyncio.Task[None]] = {}
        self._doing: list[asyncio.Task[None]] = []
        self.peers: Mapping[str, NodeAddress] = {}
        """The other members of the newest assignment, by member id."""
        self.rate = world.random.uniform(0.9, 1.1) if rate is None else rate
        client = cast(Client, SimulatedClient(self))
        self.ownership = OwnershipManager(
            "host",
            number,
            SharedConfig(topic, 50, SHARD_GROUPS, "avro", ASSIGNMENT_RULES, 1, False),
            lambda events: KafkaGroupMember(
                client,
                GroupMemberConfig(
                    "managers",
                    PROTOCOL_TYPE,
                    PROTOCOL,
                    SESSION_TIMEOUT_S,
                    REBALANCE_TIMEOUT_S,
                    proof=TopicPartition(topic, 0),
                ),
                events,
                clock=self.clock,
            ),
            on_peers=self._on_peers,
            rebalance_timeout_s=REBALANCE_TIMEOUT_S,
            clock=self.clock,
            secret=secret,
        )
        self.do(lambda: self.ownership.start(self))

    def clock(self) -> float:
        return self.world.now * self.rate

    def _on_peers(self, peers: Mapping[str, NodeAddress]) -> None:
        self.peers = peers

    def do(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await work()

        self._doing.append(self.loop.create_task(run()))

    def work(self) -> None:
        if self.running:
            self.loop.work()

    # --- a small runtime that claims like the real one and is fenced like a writer of the real log -------------

    def on_assigned(self, shard_group: int, not_before: float) -> None:
        assert shard_group not in self._working, f"{self.name} takes {shard_group} twice"
        wait_s = max(not_before - self.clock(), 0.0)
        self.world.log(f"{self.name} takes {shard_group} in {self.ownership.generation}, waits {wait_s:.3f} s")
        self._working[shard_group] = self.loop.create_task(self._work(shard_group, not_before))

    async def on_revoked(self, shard_group: int) -> None:
        if shard_group in self._working:
            self.world.log(f"{self.name} revokes {shard_group}")
            self._drop(shard_group)
            await asyncio.sleep(0 if self.world.quick_revocations else self.world.random.choice([0, 0, 0.1, 3, 9]))

    async def _work(self, shard_group: int, not_before: float) -> None:
        while self.clock() < not_before:
            await asyncio.sleep(0.05)
        while not await self._claimed(shard_group):
            await asyncio.sleep(0.1)
        self.serving.add(shard_group)
        appended = True
        while self.world.claims[shard_group] is self or not appended:
            await asyncio.sleep(0.5)
            appended = not self.world.few_commits or self.world.random.random() < 0.02  # only an append is rejected
        self.world.log(f"{self.name} is fenced from {shard_group} by {self.world.claims[shard_group].name}")
        self._drop(shard_group)
        self.ownership.on_fenced(shard_group, "fenced")

    async def _claimed(self, shard_group: int) -> bool:
        if not self.ownership.valid():
            return False
        self.claiming.add(shard_group)
        await asyncio.sleep(0 if self.world.quick_claims else self.world.random.random())  # a freeze may happen here
        self.claiming.discard(shard_group)
        self.world.claims[shard_group] = self
        return self.ownership.valid()

    def _drop(self, shard_group: int) -> None:
        self.serving.discard(shard_group)
        self.claiming.discard(shard_group)
        task = self._working.pop(shard_group)
        if task is not asyncio.current_task():
            task.cancel()

    # --- faults ----------------------------------------------------------------------------

    def freeze(self, seconds: float) -> None:
        self.world.log(f"{self.name} is frozen for {seconds:.1f} s")
        self.running = False

        def thaw() -> None:
            self.world.log(f"{self.name} wakes")
            self.running = self.alive

        self.world.after(seconds, thaw)

    def kill(self) -> None:
        """Kills the process. The other processes notice it and remove the member."""
        self.world.log(f"{self.name} is killed")
        self.alive = self.running = False
        for process in self.world.processes:
            for member_id, node in process.peers.items():
                if f"p{node.port}" == self.name:
                    self.world.after(self.world.random.uniform(0.2, 0.6), partial(process.remove, member_id))

    def remove(self, member_id: str) -> None:
        """Removes another member from the group, which may be alive."""
        if not self.running:
            return
        self.world.log(f"{self.name} asks the coordinator to remove {member_id}")

        async def remove() -> None:
            with contextlib.suppress(OffsetMgrError):
                await self.ownership.remove(member_id)

        self.do(remove)

    def stop(self) -> None:
        self.world.log(f"{self.name} stops")

        async def stop() -> None:
            await self.ownership.stop()
            self.alive = self.running = False

        self.do(stop)
