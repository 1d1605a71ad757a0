"""No period is skipped, closed early, closed twice, or stuck while a live member can continue.

The simulated members share a barrier through a tree with compare-and-set, one step at a time. The tree stores bytes and
versions like ZooKeeper; `offsetmgr.period.leader_decision` makes the decisions. Between two steps a member may be
killed, frozen for a random time, or resumed, and several members may act as the leader. The simulation records the
completed work outside the tree, and compares every advance with it.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from offsetmgr.core.model import TopicPartition
from offsetmgr.period import barrier, leader_decision, records
from offsetmgr.period.barrier import NewestPeriods, OpenPeriod
from offsetmgr.period.leader_decision import Advance, Leader, LeaderView, next_step
from offsetmgr.period.schedule import PeriodSchedule

OPEN, PARTITIONS, PROGRESS, HISTORY = "coordinator", "topic-partitions", "progress/", "history/"
SCHEDULE = PeriodSchedule(0, 1_000)


class ConditionFailed(Exception):
    """A transaction whose conditions did not hold. It changed nothing."""


class Tree:
    """Nodes with versions. A write names the version that it replaces, or None for a new node."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}

    def get(self, path: str) -> tuple[bytes, int | None]:
        return self.nodes.get(path, (b"", None))

    def write(self, *writes: tuple[str, bytes, int | None]) -> None:
        for path, _, expected in writes:
            if self.get(path)[1] != expected:
                raise ConditionFailed(path)
        for path, data, expected in writes:
            self.nodes[path] = (data, 0 if expected is None else expected + 1)

    def under(self, prefix: str) -> list[str]:
        return sorted(path for path in self.nodes if path.startswith(prefix))


@dataclass
class Member:
    """One process. ``steps`` is its current activity; each ``next`` makes one access to the tree."""

    name: str
    epoch: int
    owned: list[TopicPartition]
    steps: Iterator[None] | None = None
    done: dict[TopicPartition, int] = field(default_factory=dict)
    """The last finished period of each of its partitions."""


class World:
    def __init__(self, seed: int, topics: Mapping[str, int], names: Sequence[str]) -> None:
        self.dice = random.Random(seed)
        self.tree = Tree()
        self.topics = dict(topics)
        self.names = list(names)
        self.epochs = Counter[str]()
        self.leader_epoch = 0
        self.members: list[Member] = []
        self.frozen: list[Member] = []
        self.completed: set[tuple[TopicPartition, int]] = set()
        """The partitions and periods whose work is durably done."""
        self.closed: list[int] = []
        self.faults: list[str] = []
        for name in names:
            self.join(name)

    # --- membership ------------------------------------------------------------------

    def all_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, n) for topic, count in sorted(self.topics.items()) for n in range(count)]

    def join(self, name: str) -> None:
        """Starts a process with this name, and reassigns the partitions among the live members."""
        self.epochs[name] += 1
        self.members.append(Member(name, self.epochs[name], []))
        self.assign_partitions()

    def kill(self, member: Member) -> None:
        self.members.remove(member)
        self.assign_partitions()

    def freeze(self, member: Member) -> None:
        """Removes a member and reassigns its partitions; the frozen process may continue later."""
        self.members.remove(member)
        self.frozen.append(member)
        self.assign_partitions()

    def assign_partitions(self) -> None:
        for member in self.members:
            member.owned = []
        for at, partition in enumerate(self.all_partitions()):
            if self.members:
                self.members[at % len(self.members)].owned.append(partition)

    def grow(self) -> None:
        self.topics[self.dice.choice(sorted(self.topics))] += 1
        self.assign_partitions()

    # --- steps --------------------------------------------------------------------------------------

    def step(self, member: Member) -> None:
        if member.steps is None:
            member.steps = self.dice.choice([self.work, self.work, self.lead])(member)
        try:
            next(member.steps)
        except StopIteration:
            member.steps = None
        except ConditionFailed:
            member.steps = None

    def work(self, member: Member) -> Iterator[None]:
        """Reads the open period, finishes some partitions, and reports them."""
        data, _ = self.tree.get(OPEN)
        yield
        named, _ = self.tree.get(PARTITIONS)
        if not data or not named:
            return
        open_, partitions = records.decode_open(OPEN, data), records.decode_partitions(PARTITIONS, named)
        if open_.number != partitions.number:
            return
        yield
        path = PROGRESS + member.name
        old, version = self.tree.get(path)
        before = records.decode_progress(path, old) if old else records.ProgressNode(member.name, 0, {})
        if before.epoch > member.epoch:
            return  # a later process with this name has reported
        yield
        mine = [tp for tp in member.owned if tp in partitions.partitions]
        some = self.dice.sample(mine, self.dice.randint(0, len(mine))) if self.dice.random() < 0.5 else mine
        for partition in some:
            self.completed.add((partition, open_.number))
        yield
        finished = dict(before.finished)
        for partition in some:
            finished[partition] = max(open_.number, finished.get(partition, -1))
        if member.epoch > before.epoch or finished != before.finished:
            self.tree.write(
                (path, records.encode_progress(records.ProgressNode(member.name, member.epoch, finished)), version)
            )

    def lead(self, member: Member) -> Iterator[None]:
        """Acts as the leader, rightly or not: reads the nodes one by one, and advances the period if all have
        finished."""
        self.leader_epoch += 1
        epoch = self.leader_epoch
        open_data, open_version = self.tree.get(OPEN)
        yield
        partitions_data, partitions_version = self.tree.get(PARTITIONS)
        yield
        progress = {}
        for path in self.tree.under(PROGRESS):
            progress[path] = records.decode_progress(path, self.tree.get(path)[0])
            yield
        seen = LeaderView(
            records.decode_open(OPEN, open_data) if open_data else None,
            records.decode_partitions(PARTITIONS, partitions_data) if partitions_data else None,
            progress,
        )
        now = self.all_partitions()
        yield
        advance = next_step(seen, SCHEDULE, now, Leader(member.name, epoch), 0)
        if isinstance(advance, Advance):
            self.execute(advance, open_version, partitions_version)

    def execute(self, advance: Advance, open_version: int | None, partitions_version: int | None) -> None:
        before, _ = self.tree.get(OPEN)
        expected_partitions = (
            records.decode_partitions(PARTITIONS, self.tree.get(PARTITIONS)[0]).partitions if before else frozenset()
        )
        writes = [
            (OPEN, records.encode_open(advance.open_), open_version),
            (PARTITIONS, records.encode_partitions(advance.partitions), partitions_version),
        ]
        if advance.closed is not None:
            writes.append((f"{HISTORY}{advance.closed.period.number}", records.encode_closed(advance.closed), None))
        self.tree.write(*writes)
        self.check(advance, records.decode_open(OPEN, before) if before else None, expected_partitions)

    # --- checks -----------------------------------------------------------------------------

    def check(
        self, advance: Advance, before: records.OpenNode | None, expected_partitions: frozenset[TopicPartition]
    ) -> None:
        expected = 0 if before is None else before.number + 1
        if advance.open_.number != expected:
            self.faults.append(f"period {advance.open_.number} opened where {expected} was next")
        if before is None or advance.closed is None:
            return
        number = before.number
        if advance.closed.period.number != number or number in self.closed:
            self.faults.append(
                f"period {advance.closed.period.number} closed while {number} was open, after {self.closed}"
            )
        self.closed.append(number)
        if early := sorted(str(tp) for tp in expected_partitions if (tp, number) not in self.completed):
            self.faults.append(f"period {number} closed before {', '.join(early)} had finished it")

    def require_progress(self, periods: int) -> None:
        """Without further faults, the live members must close this number of periods."""
        goal = len(self.closed) + periods
        for _ in range(20_000):
            if len(self.closed) >= goal:
                return
            self.step(self.dice.choice(self.members))
        self.faults.append(f"stuck at {len(self.closed)} periods of {goal}")


SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
RUNS = 10_000 if SOAK else 200
SEED = int(os.environ.get("OFFSETMGR_SEED", "20161129"))

pytestmark = pytest.mark.timeout(3600 if SOAK else 900)


def run(seed: int, steps: int = 120) -> World:
    """Runs a small group through kills, freezes, resumes, restarts under the same name and growth, then without
    faults."""
    world = World(seed, {"a": 3, "b.c": 2}, ["m1", "m2", "m3"])
    dice = world.dice
    for _ in range(steps):
        act = dice.random()
        if act < 0.02 and len(world.members) > 1:
            world.kill(dice.choice(world.members))
        elif act < 0.04 and len(world.members) > 1:
            world.freeze(dice.choice(world.members))
        elif act < 0.07:
            absent = [name for name in world.names if all(m.name != name for m in world.members)]
            if absent:
                world.join(dice.choice(absent))
        elif act < 0.08:
            world.grow()
        elif act < 0.16 and world.frozen:
            woken = dice.choice(world.frozen)  # continues for one step without rejoining
            world.step(woken)
            if dice.random() < 0.2:
                world.frozen.remove(woken)
        else:
            world.step(dice.choice(world.members))
    world.require_progress(3)
    return world


@pytest.mark.slow
def test_no_order_of_crashes_freezes_and_growth_breaks_the_barrier() -> None:
    dice = random.Random(SEED)
    periods = 0
    for _ in range(RUNS):
        seed = dice.randrange(2**32)
        world = run(seed)
        assert world.faults == [], f"seed {seed} (of {SEED})"
        periods += len(world.closed)
    assert periods >= 3 * RUNS


def plant_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_lagging_partitions(monkeypatch, lambda open_, finished: [])


def plant_any_period_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition counts as finished once it has finished any period."""
    replace_lagging_partitions(
        monkeypatch, lambda open_, finished: [tp for tp in open_.partitions if tp not in finished]
    )


def replace_lagging_partitions(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[OpenPeriod, NewestPeriods], list[TopicPartition]]
) -> None:
    monkeypatch.setattr(leader_decision, "lagging_partitions", wrong)
    monkeypatch.setattr(barrier, "lagging_partitions", wrong)


def plant_unconditional_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_anyway(tree: Tree, *writes: tuple[str, bytes, int | None]) -> None:
        for path, data, _ in writes:
            tree.nodes[path] = (data, tree.nodes.get(path, (b"", -1))[1] + 1)

    monkeypatch.setattr(Tree, "write", write_anyway)


@pytest.mark.parametrize(
    ("plant", "seed", "found"),
    [
        (plant_no_lag, 0, "had finished it"),
        (plant_any_period_counts, 3, "had finished it"),
        (plant_unconditional_writes, 3, "was next"),
    ],
)
def test_the_simulation_finds_a_planted_fault_where_the_real_code_passes(plant, seed, found: str, monkeypatch) -> None:
    assert run(seed).faults == []
    plant(monkeypatch)
    assert any(found in fault for fault in run(seed).faults), "choose another seed that shows the fault"
