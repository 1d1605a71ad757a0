"""No period is skipped, closed early, closed twice, or stuck while a live member can continue."""

from __future__ import annotations

import os
import random
import time

import pytest
from simulated_periods import World

from offsetmgr.period import barrier, leader_decision

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
RUNS = 10_000 if SOAK else 200
SEED = int(os.environ.get("OFFSETMGR_SEED") or time.time_ns() % 1_000_000)

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


@pytest.mark.parametrize("fault", ["no partition lags", "any period counts"])
def test_the_simulation_finds_a_barrier_that_closes_early(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    if fault == "no partition lags":
        monkeypatch.setattr(leader_decision, "lagging_partitions", lambda open_, finished: [])
        monkeypatch.setattr(barrier, "lagging_partitions", lambda open_, finished: [])
    else:  # a partition counts as finished once it has finished any period
        wrong = lambda open_, finished: [tp for tp in open_.partitions if tp not in finished]  # noqa: E731
        monkeypatch.setattr(leader_decision, "lagging_partitions", wrong)
        monkeypatch.setattr(barrier, "lagging_partitions", wrong)
    assert any("had finished it" in fault for seed in range(5) for fault in run(seed).faults)


def test_the_simulation_finds_an_unconditional_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulated_periods.Tree.write", _write_anyway)
    assert any(run(seed).faults for seed in range(200))


def _write_anyway(self: object, *writes: tuple[str, bytes, int | None]) -> None:
    for path, data, _ in writes:
        self.nodes[path] = (data, (self.nodes.get(path, (b"", -1))[1]) + 1)  # type: ignore[attr-defined]
