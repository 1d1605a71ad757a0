"""No period is skipped, closed early, closed twice, or stuck while a live member can continue."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from simulated_periods import Tree, World

from offsetmgr.core.model import TopicPartition
from offsetmgr.period import barrier, leader_decision
from offsetmgr.period.barrier import NewestPeriods, OpenPeriod

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
def test_the_simulation_finds_a_planted_fault_where_the_real_code_passes(
    plant: Callable[[pytest.MonkeyPatch], None], seed: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(seed).faults == []
    plant(monkeypatch)
    assert any(found in fault for fault in run(seed).faults), "choose another seed that shows the fault"
