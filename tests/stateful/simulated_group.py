"""A simulated world for the managers' group: processes with clocks and event loops of their own, a network that delays,
and a coordinator that does what Kafka's does (GroupCoordinator.scala), its failures included.

What runs in the processes is the real `SlotOwnership` over the real `GroupMember`; only the connection is another.
Everything follows from one seed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

from offsetmgr.errors import OffsetMgrError, TimedOut, Unreachable
from offsetmgr.manager.assignment import Parameters
from offsetmgr.manager.ownership import PROTOCOL, PROTOCOL_TYPE, RULES, SlotOwnership
from offsetmgr.wire.client import Client
from offsetmgr.wire.connection import Address
from offsetmgr.wire.groupmember import GroupMember

SESSION: Final = 10.0
REBALANCE: Final = 30.0
SLOTS: Final = 8
UNKNOWN_MEMBER, ILLEGAL_GENERATION, REBALANCING, NOT_COORDINATOR, ID_REQUIRED = 25, 22, 27, 16, 79

Reply = Callable[..., None]


class World:
    """Time, and what happens when."""

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
        self.lost_answers: set[tuple[Process, str]] = set()
        """The next answer to this kind of request never arrives at this process; its connection stays open."""
        self.claims: dict[int, Process] = {}
        """Who has claimed a slot last: everybody else's writer is fenced."""
        self.slow_network = self.few_commits = False

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
        luck = self.random.random()
        if self.slow_network and luck < 0.1:
            return self.random.uniform(0, 8 if luck > 0.02 else 2 * REBALANCE)
        return self.random.uniform(0.001, 0.02)

    def log(self, what: str) -> None:
        self.history.append(f"{self.now:10.3f} {what}")

    def run(self, seconds: float) -> None:
        """Lets time pass, event by event, and looks at the invariant after each."""
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
        """No slot has two owners."""
        owners: dict[int, Process] = {}
        for process in self.processes:
            if process.alive and process.ownership.valid():
                for slot in process.serving:
                    other = owners.setdefault(slot, process)
                    assert other is process, "\n".join(
                        [*self.history, f"{self.now:.3f} slot {slot}: {other.name}, {process.name}"]
                    )

    def fail_over(self, *, wake_after: float | None) -> None:
        """The coordinator's broker stops: for good, or (frozen) until ``wake_after`` seconds from now. Later the other
        one leads and loads the group as it was last stored."""
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
class SimulatedMember:
    metadata: bytes
    heard: float
    joining: Reply | None = None
    syncing: Reply | None = None
    assignment: bytes = b""


class Coordinator:
    """One broker's group coordinator, for one group."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"broker-{number}"
        self.address = Address(self.name, 9092)
        self.stopped = False
        self.loading = False
        self.leads = False
        self.zombie = False
        self.queue: list[Callable[[], None]] = []
        self.stored: dict[str, Any] = {}
        self._forget()

    def _forget(self) -> None:
        self.state = "Empty"
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, SimulatedMember] = {}
        self.pending: set[str] = set()
        self.round = -1
        self.unsynced: set[str] = set()

    # --- the broker ---------------------------------------------------------------------------------

    def load(self) -> None:
        self._forget()
        self.loading, self.leads, self.zombie = True, True, False

    def lead(self, stored: dict[str, Any]) -> None:
        self.loading, self.leads = False, True
        self.stored = stored
        if stored:
            self.state, self.generation, self.leader = "Stable", stored["generation"], stored["leader"]
            for member_id, (metadata, assignment) in stored["members"].items():
                self.members[member_id] = SimulatedMember(metadata, self.world.now, assignment=assignment)
                self._watch(member_id)
            if not self.members:
                self.state = "Empty"

    def stop(self) -> None:
        self.stopped = True

    def wake(self, *, zombie: bool) -> None:
        """As a zombie it still takes itself for the coordinator, for a moment."""
        self.stopped = False
        self.zombie = zombie
        if zombie:
            self.world.after(self.world.random.uniform(0, 3), self.resign)
        elif self.world.active is not self:
            self.queue.clear()
            self.resign()
        waiting, self.queue = self.queue, []
        for work in waiting:
            work()

    def resign(self) -> None:
        if self.world.active is self:
            return
        for member in self.members.values():
            for reply in (member.joining, member.syncing):
                if reply:
                    reply(error_code=NOT_COORDINATOR)
        self._forget()
        self.leads = self.zombie = False

    def receive(self, request: Any, reply: Reply) -> None:
        if self.stopped:
            self.queue.append(lambda: self.receive(request, reply))
            return
        kind = type(request).__name__
        if not self.leads:
            reply(error_code=NOT_COORDINATOR)
        elif self.loading:
            reply(error_code={"HeartbeatRequest": 0, "SyncGroupRequest": REBALANCING}.get(kind, 14))
        else:
            getattr(self, f"_on_{kind}")(request, reply)

    # --- the group ----------------------------------------------------------------------------------

    def _on_JoinGroupRequest(self, request: Any, reply: Reply) -> None:  # noqa: N802
        member_id, metadata = request.member_id, request.protocols[0].metadata
        if not member_id:
            member_id = f"m{next(self.world._numbers)}"
            self.pending.add(member_id)
            self.world.after(SESSION, lambda: self._drop_pending(member_id))
            reply(error_code=ID_REQUIRED, member_id=member_id)
        elif member_id in self.pending:
            self.pending.discard(member_id)
            self.members[member_id] = SimulatedMember(metadata, self.world.now, joining=reply)
            self._watch(member_id)
            self._prepare()
            self._maybe_complete()
        elif member_id not in self.members:
            reply(error_code=UNKNOWN_MEMBER)
        else:
            member = self.members[member_id]
            same = member.metadata == metadata and (self.state == "Completing" or member_id != self.leader)
            if self.state in ("Completing", "Stable") and same:
                reply(**self._joined(member_id))
                return
            member.metadata, member.joining = metadata, reply
            self._prepare()
            self._maybe_complete()

    def _on_SyncGroupRequest(self, request: Any, reply: Reply) -> None:  # noqa: N802
        member = self.members.get(request.member_id)
        if member is None:
            reply(error_code=UNKNOWN_MEMBER)
        elif request.generation_id != self.generation:
            reply(error_code=ILLEGAL_GENERATION)
        elif self.state == "Preparing":
            reply(error_code=REBALANCING)
        elif self.state == "Stable":
            member.heard = self.world.now
            self._watch(request.member_id)
            reply(error_code=0, assignment=member.assignment)
        else:
            member.syncing = reply
            self.unsynced.discard(request.member_id)
            if request.member_id == self.leader:
                found = {a.member_id: a.assignment for a in request.assignments}
                generation = self.generation
                self.world.after(self.world.latency(), lambda: self._store(generation, found))

    def _store(self, generation: int, assignments: dict[str, bytes]) -> None:
        """Replicated, unless somebody else leads the partition by now."""
        if self.stopped:
            self.queue.append(lambda: self._store(generation, assignments))
            return
        if self.zombie or self.state != "Completing" or self.generation != generation:
            return
        self.state = "Stable"
        for member_id, member in self.members.items():
            member.assignment = assignments.get(member_id, b"")
        self._persist()
        for member_id, member in self.members.items():
            member.heard = self.world.now
            self._watch(member_id)
            if member.syncing:
                member.syncing(error_code=0, assignment=member.assignment)
                member.syncing = None

    def _persist(self) -> None:
        self.stored = {
            "generation": self.generation,
            "leader": self.leader,
            "members": {m: (member.metadata, member.assignment) for m, member in self.members.items()},
        }

    def _on_HeartbeatRequest(self, request: Any, reply: Reply) -> None:  # noqa: N802
        member = self.members.get(request.member_id)
        if member is None:
            reply(error_code=UNKNOWN_MEMBER)
        elif request.generation_id != self.generation:
            reply(error_code=ILLEGAL_GENERATION)
        else:
            member.heard = self.world.now
            self._watch(request.member_id)
            reply(error_code=REBALANCING if self.state == "Preparing" else 0)

    def _on_LeaveGroupRequest(self, request: Any, reply: Reply) -> None:  # noqa: N802
        for identity in request.members:
            self._remove(identity.member_id)
        reply(error_code=0)

    def _watch(self, member_id: str) -> None:
        self.world.after(SESSION, lambda: self._expire(member_id))

    def _expire(self, member_id: str) -> None:
        if self.stopped:
            self.queue.append(lambda: self._expire(member_id))
            return
        member = self.members.get(member_id)
        if member and not member.joining and not member.syncing and self.world.now >= member.heard + SESSION:
            self._remove(member_id)

    def _drop_pending(self, member_id: str) -> None:
        if member_id in self.pending:
            self.pending.discard(member_id)
            self._maybe_complete()

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self.world.log(f"{self.name} removes {member_id} in {self.state} {self.generation}")
        for reply in (member.joining, member.syncing):
            if reply:
                reply(error_code=UNKNOWN_MEMBER)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        if self.state in ("Stable", "Completing"):
            self._prepare()
        self._maybe_complete()

    def _prepare(self) -> None:
        if self.state == "Preparing":
            return
        for member in self.members.values():
            if member.syncing:
                member.syncing(error_code=REBALANCING)
                member.syncing = None
        self.state = "Preparing"
        number = self.round = next(self.world._numbers)
        self.world.after(REBALANCE, lambda: self._force(number))

    def _force(self, number: int) -> None:
        if self.stopped:
            self.queue.append(lambda: self._force(number))
        elif self.state == "Preparing" and self.round == number:
            self._complete()

    def _maybe_complete(self) -> None:
        if self.state == "Preparing" and not self.pending and all(m.joining for m in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        late = [m for m, member in self.members.items() if not member.joining]
        if late:
            self.world.log(f"{self.name} puts out the late {late}")
        for member_id in late:
            del self.members[member_id]
        self.generation += 1
        if not self.members:
            self.state, self.leader = "Empty", None
            if not self.zombie:
                self._persist()
            return
        self.state = "Completing"
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        self.unsynced = set(self.members)
        number = self.round
        self.world.after(REBALANCE, lambda: self._expire_unsynced(number))
        for member_id, member in self.members.items():
            assert member.joining
            member.joining(**self._joined(member_id))
            member.joining = None
            member.heard = self.world.now
            self._watch(member_id)

    def _expire_unsynced(self, number: int) -> None:
        if self.stopped:
            self.queue.append(lambda: self._expire_unsynced(number))
        elif self.state == "Completing" and self.round == number:
            for member_id in self.unsynced:
                self.world.log(f"{self.name} removes {member_id}, which has not synced")
                self.members.pop(member_id, None)
            self._prepare()
            self._maybe_complete()

    def _joined(self, member_id: str) -> dict[str, Any]:
        told = self.members.items() if member_id == self.leader else ()
        return {
            "error_code": 0,
            "member_id": member_id,
            "generation_id": self.generation,
            "leader": self.leader,
            "members": [SimpleNamespace(member_id=m, metadata=member.metadata) for m, member in told],
        }


# --- processes ------------------------------------------------------------------------------------------


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop whose time is the world's and that never waits."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self._selector = SimpleNamespace(select=lambda timeout: [])

    def time(self) -> float:
        return self.world.now

    def _process_events(self, events: object) -> None: ...

    def _write_to_self(self) -> None: ...

    def due(self) -> float:
        """When it has something to do next."""
        if self._ready:  # type: ignore[attr-defined]
            return self.world.now
        scheduled = [h for h in self._scheduled if not h.cancelled()]  # type: ignore[attr-defined]
        return min((float(h.when()) for h in scheduled), default=float("inf"))

    def end(self) -> None:
        """Tasks that were simply let go would be found by the garbage collector, in any order."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.work()
        self.close()

    def work(self) -> None:
        while self.due() <= self.world.now:
            asyncio._set_running_loop(self)
            try:
                self._run_once()  # type: ignore[attr-defined]
            finally:
                asyncio._set_running_loop(None)


@dataclass
class SimulatedConnection:
    """Requests arrive though the one who sent them has hung up: that is what makes old JoinGroups."""

    process: Process
    broker: Coordinator
    closed: bool = False
    calls: set[asyncio.Future[Any]] = field(default_factory=set)

    @property
    def address(self) -> Address:
        return self.broker.address

    async def call(self, request: Any, _: object, timeout: float) -> Any:
        if self.closed:
            raise Unreachable(str(self.address), "closed")
        world, loop = self.process.world, self.process.loop
        answer: asyncio.Future[Any] = loop.create_future()
        self.calls.add(answer)

        def deliver(values: dict[str, Any]) -> None:
            if not answer.done() and self.process.alive:
                answer.set_result(SimpleNamespace(**values))

        def reply(**values: Any) -> None:
            kind = type(request).__name__
            if (self.process, kind) in world.lost_answers:
                world.lost_answers.discard((self.process, kind))
                return
            world.after(world.latency(), lambda: loop.call_soon(deliver, values))

        world.after(world.latency(), lambda: self.broker.receive(request, reply))
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            self.closed = True
            raise TimedOut(str(self.address), "no answer") from None
        finally:
            self.calls.discard(answer)

    async def close(self) -> None:
        self.closed = True
        for answer in self.calls:
            if not answer.done():
                answer.set_exception(Unreachable(str(self.address), "closed"))


class SimulatedClient:
    """What `GroupMember` uses of `Client`."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def find_coordinators(self, groups: list[str], deadline: float) -> dict[str, Address | OffsetMgrError]:
        await asyncio.sleep(self.process.world.latency())
        active = self.process.world.active
        if active.stopped:
            raise TimedOut("brokers", "no answer")
        return dict.fromkeys(groups, active.address)

    async def coordinator(self, group: str, deadline: float) -> Address:
        return self.process.world.active.address

    def node(self, address: Address) -> SimpleNamespace:
        broker = next(b for b in self.process.world.brokers if b.address == address)

        async def connect(deadline: float) -> SimulatedConnection:
            await asyncio.sleep(self.process.world.latency())
            return SimulatedConnection(self.process, broker)

        return SimpleNamespace(open=connect, connection=connect)


class Process:
    """One manager. Its clock runs at a rate of its own, within what the lease allows for."""

    def __init__(self, world: World, number: int, *, topic: str = "offsets") -> None:
        self.world = world
        self.name = f"p{number}"
        self.loop = SimulatedLoop(world)
        self.alive = self.running = True
        self.serving: set[int] = set()
        self._working: dict[int, asyncio.Task[None]] = {}
        self._doing: list[asyncio.Task[None]] = []
        self.rate = world.random.uniform(0.85, 1.15)
        client = cast(Client, SimulatedClient(self))
        self.ownership = SlotOwnership(
            "host",
            number,
            Parameters(topic, 50, SLOTS, "avro", RULES, 1, False),
            lambda events: GroupMember(
                client,
                "managers",
                events,
                protocol_type=PROTOCOL_TYPE,
                protocol=PROTOCOL,
                session=SESSION,
                rebalance=REBALANCE,
                clock=self.clock,
            ),
            session=SESSION,
            rebalance=REBALANCE,
            clock=self.clock,
        )
        self.do(lambda: self.ownership.start(self))

    def clock(self) -> float:
        return self.world.now * self.rate

    def do(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await work()

        self._doing.append(self.loop.create_task(run()))

    def work(self) -> None:
        if self.running:
            self.loop.work()

    # --- a small runtime: claims as the real one does, and is fenced as the real log fences -------------

    def take(self, slot: int) -> None:
        assert slot not in self._working, f"{self.name} takes {slot} twice"
        self.world.log(f"{self.name} takes {slot} in {self.ownership.generation}")
        self._working[slot] = self.loop.create_task(self._work(slot))

    async def give_up(self, slot: int) -> None:
        if slot in self._working:
            self.world.log(f"{self.name} gives up {slot}")
            self._drop(slot)
            await asyncio.sleep(self.world.random.choice([0, 0, 0.1, 3, 9]))

    async def _work(self, slot: int) -> None:
        while not await self._claimed(slot):
            await asyncio.sleep(0.1)
        self.serving.add(slot)
        appended = True
        while self.world.claims[slot] is self or not appended:
            await asyncio.sleep(0.5)
            appended = not self.world.few_commits or self.world.random.random() < 0.02  # only an append tells
        self.world.log(f"{self.name} is fenced from {slot} by {self.world.claims[slot].name}")
        self._drop(slot)
        self.ownership.lost(slot, "fenced")

    async def _claimed(self, slot: int) -> bool:
        if not self.ownership.valid():
            return False
        await asyncio.sleep(self.world.random.uniform(0, 1))  # a freeze may fall in here
        self.world.claims[slot] = self
        return self.ownership.valid()

    def _drop(self, slot: int) -> None:
        self.serving.discard(slot)
        task = self._working.pop(slot)
        if task is not asyncio.current_task():
            task.cancel()

    # --- what befalls it ----------------------------------------------------------------------------

    def freeze(self, seconds: float) -> None:
        self.world.log(f"{self.name} is frozen for {seconds:.1f} s")
        self.running = False

        def thaw() -> None:
            self.world.log(f"{self.name} wakes")
            self.running = self.alive

        self.world.after(seconds, thaw)

    def kill(self) -> None:
        self.world.log(f"{self.name} is killed")
        self.alive = self.running = False

    def stop(self) -> None:
        self.world.log(f"{self.name} stops")

        async def stop() -> None:
            await self.ownership.stop()
            self.alive = self.running = False

        self.do(stop)
