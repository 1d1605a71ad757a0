"""Managers that freeze, die, leave, come and lose slots, under a coordinator that moves, freezes and loads: at no
instant has a slot two owners, and once the trouble is over everything is owned again, evenly."""

from __future__ import annotations

import os

import pytest
from simulated_group import REBALANCE, SLOTS, Process, World

SEEDS = 600 if os.environ.get("OFFSETMGR_SOAK") else 12
MOST_PROCESSES = 4


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer heartbeats: the same events in less time."""
    monkeypatch.setattr("offsetmgr.wire.groupmember._MOST_BETWEEN_HEARTBEATS", 1.0)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_slot_ever_has_two_owners(seed: int) -> None:
    with World(seed) as world:
        live(world)


def live(world: World) -> None:
    random = world.random
    world.slow_network = random.random() < 0.5
    for _ in range(random.randint(1, 3)):
        world.processes.append(Process(world, len(world.processes)))
    for _ in range(random.randint(5, 25)):
        world.run(random.choice([0.05, 0.5, 2, 10, 25]))
        trouble(world)
    calm(world)


def trouble(world: World) -> None:
    random = world.random
    alive = [p for p in world.processes if p.alive]
    kind = random.choice(["freeze", "freeze", "kill", "stop", "start", "start", "lose", "fail over", "freeze broker"])
    if kind == "start" or not alive:
        if len(alive) < MOST_PROCESSES:
            world.log("another process starts")
            world.processes.append(Process(world, len(world.processes)))
        return
    one = random.choice(alive)
    if kind == "freeze":
        one.freeze(random.choice([1, 5, 9, 15, 40]) * random.random())
    elif kind == "kill":
        one.kill()
    elif kind == "stop":
        one.stop()
    elif kind == "lose" and one.serving and one.running:
        one.lose(random.choice(sorted(one.serving)))
    elif not any(broker.stopped for broker in world.brokers):
        world.fail_over(wake_after=None if kind == "fail over" else random.uniform(0.5, 25))


def calm(world: World) -> None:
    """Long enough for everything frozen to wake, every session and rebalance to end."""
    world.log("calm")
    world.slow_network = False
    if not any(p.alive for p in world.processes):
        world.processes.append(Process(world, len(world.processes)))
    world.run(4 * REBALANCE)
    alive = [p for p in world.processes if p.alive]
    if not alive:  # the last ones had only been asked to stop
        return
    told = "\n".join(world.history)
    assert all(p.ownership.valid() for p in alive), told
    slots = sorted(slot for p in alive for slot in p.serving)
    assert slots == list(range(SLOTS)), told
    sizes = [len(p.serving) for p in alive]
    assert max(sizes) - min(sizes) <= 1, told
    assert all(p.serving == p.ownership.owned() for p in alive), told
