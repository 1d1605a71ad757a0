"""Managers that freeze, crash, leave, join and lose shard groups, under a coordinator that moves, freezes and loads: a
shard group never has two owners, and after the faults every shard group is claimed by an owner, evenly distributed."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from simulated_coordinator import REBALANCE
from simulated_group import SHARD_GROUPS, Process, World

from offsetmgr.kafka.protocol.api_key import ApiKey

SEEDS = 3000 if os.environ.get("OFFSETMGR_SOAK") else 25
MOST_PROCESSES = 4


@pytest.fixture(autouse=True)
def fewer_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends fewer heartbeats, which makes the simulation faster."""
    monkeypatch.setattr("offsetmgr.kafka.groups.group_member._MAX_HEARTBEAT_INTERVAL_S", 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_shard_group_ever_has_two_owners(seed: int) -> None:
    with World(seed) as world:
        run_random_faults(world)


def run_random_faults(world: World) -> None:
    random = world.random
    world.slow_network, world.few_commits = random.random() < 0.5, random.random() < 0.8
    for _ in range(random.randint(1, 3)):
        world.processes.append(Process(world, len(world.processes)))
    for _ in range(random.randint(5, 25)):
        world.run(random.choice([0.05, 0.5, 2, 10, 25]))
        inject_fault(world)
    check_recovery(world)


def inject_fault(world: World) -> None:
    random = world.random
    alive = [p for p in world.processes if p.alive]
    kind = random.choice(["freeze", "freeze", "kill", "stop", "start", "start", "claim", "fail over", "freeze broker"])
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
    elif kind == "claim":
        shard_group = random.randrange(SHARD_GROUPS)
        world.log(f"{one.name} claims {shard_group} late")
        world.claims[shard_group] = one
    elif not any(broker.stopped for broker in world.brokers):
        world.fail_over(wake_after=None if kind == "fail over" else random.uniform(0.5, 25))


def check_recovery(world: World) -> None:
    """Runs without faults until all sessions and rebalances have ended, and checks the assignment."""
    world.log("calm")
    world.slow_network = world.few_commits = False
    if not any(p.alive for p in world.processes):
        world.processes.append(Process(world, len(world.processes)))
    world.run(4 * REBALANCE)
    alive = [p for p in world.processes if p.alive]
    if not alive:  # the last processes were still stopping before
        return
    history = "\n".join(world.history)
    assert all(p.ownership.valid() for p in alive), history
    shard_groups = sorted(shard_group for p in alive for shard_group in p.serving)
    assert shard_groups == list(range(SHARD_GROUPS)), history
    sizes = [len(p.serving) for p in alive]
    assert max(sizes) - min(sizes) <= 1, history
    assert all(p.serving == p.ownership.owned() for p in alive), history
    assert all(world.claims[shard_group] is p for p in alive for shard_group in p.serving), history


# --- scenarios ------------------------------------------------------------------------------------------


def shared_by(world: World, *processes: Process) -> bool:
    shard_groups = [p.serving for p in processes]
    return (
        sum(map(len, shard_groups)) == SHARD_GROUPS
        and all(shard_groups)
        and set().union(*shard_groups) == set(range(SHARD_GROUPS))
    )


def run_until(world: World, condition: Callable[[], bool], seconds: float) -> None:
    end = world.now + seconds
    while not condition():
        assert world.now < end, "\n".join(world.history)
        world.run(0.05)


def test_a_manager_frozen_between_assignment_and_claim_never_serves() -> None:
    """The late claim of the frozen manager fences the owner, which rejoins and claims again."""
    with World(1) as world:
        frozen, other = Process(world, 0), Process(world, 1)
        world.processes += [frozen, other]
        run_until(world, lambda: len(frozen.ownership.owned()) == SHARD_GROUPS // 2, 5)
        assert not frozen.serving  # it is assigned, has checked its lease, and is about to claim
        mine = frozen.ownership.owned()
        frozen.freeze(20)
        run_until(world, lambda: other.serving == set(range(SHARD_GROUPS)), 15)
        run_until(world, lambda: frozen.running, 20)
        assert not frozen.ownership.valid()
        run_until(world, lambda: any(world.claims[shard_group] is frozen for shard_group in mine), 2)
        assert not frozen.serving
        run_until(world, lambda: shared_by(world, frozen, other), 60)
        run_until(world, lambda: all(world.claims[s] is p for p in (frozen, other) for s in p.serving), 5)


def test_heartbeat_responses_of_a_loading_coordinator_do_not_extend_the_lease() -> None:
    """While a coordinator loads, it responds to every heartbeat without an error and without a check."""
    with World(2) as world:
        frozen, other = Process(world, 0), Process(world, 1)
        world.processes += [frozen, other]
        run_until(world, lambda: shared_by(world, frozen, other), 10)
        frozen.freeze(30)
        run_until(world, lambda: other.serving == set(range(SHARD_GROUPS)), 20)
        world.active.stop()
        world.active = world.brokers[1]
        world.active.load()
        run_until(world, lambda: frozen.running, 20)
        world.run(3)
        assert frozen.ownership.generation > 0  # no response has ended its membership
        assert not frozen.ownership.valid()
        world.active.lead(world.brokers[0].stored)
        run_until(world, lambda: shared_by(world, frozen, other), 60)


def test_a_manager_with_another_topic_is_excluded_until_it_is_alone() -> None:
    with World(3) as world:
        one, misconfigured = Process(world, 0), Process(world, 1, topic="elsewhere")
        world.processes.append(one)
        run_until(world, lambda: one.serving == set(range(SHARD_GROUPS)), 10)
        world.processes.append(misconfigured)
        run_until(world, lambda: misconfigured.ownership.exclusion_reason is not None, 10)
        assert (
            misconfigured.ownership.exclusion_reason == "topic is 'elsewhere' here and 'offsets' at the other managers"
        )
        assert one.serving == set(range(SHARD_GROUPS))
        assert [node.port for node in misconfigured.ownership.nodes()] == [0]
        one.stop()
        run_until(world, lambda: misconfigured.serving == set(range(SHARD_GROUPS)), 20)
        assert misconfigured.ownership.exclusion_reason is None


def test_every_manager_knows_the_owner_of_each_shard_group() -> None:
    with World(4) as world:
        world.processes += [Process(world, n) for n in range(3)]
        run_until(world, lambda: shared_by(world, *world.processes), 30)
        for process in world.processes:
            assert [node.port for node in sorted(process.ownership.nodes(), key=lambda n: n.port)] == [0, 1, 2]
            for owner in world.processes:
                owners = [process.ownership.owner_of(shard_group) for shard_group in owner.serving]
                assert {node and node.port for node in owners} == {int(owner.name[1:])}


def test_repeated_foreign_claims_cause_rebalances_with_backoff() -> None:
    """If two groups are configured for one topic, they fence each other endlessly, but with growing pauses."""
    with World(5) as world:
        one = Process(world, 0)
        world.processes.append(one)
        run_until(world, lambda: one.serving == set(range(SHARD_GROUPS)), 10)
        before = one.ownership.generation

        def claim_repeatedly() -> None:
            world.claims[0] = Process.__new__(Process)
            world.claims[0].name = "a foreign process"
            world.after(0.1, claim_repeatedly)

        claim_repeatedly()
        world.run(60)
        assert one.ownership.generation - before < 25
        assert one.ownership.valid() and one.serving >= set(range(1, SHARD_GROUPS))


@pytest.mark.parametrize("kind", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP], ids=["JoinGroup", "SyncGroup"])
def test_a_lost_join_or_sync_response_delays_the_rebalance_only_briefly(kind: ApiKey) -> None:
    with World(6) as world:
        one, other = Process(world, 0), Process(world, 1)
        world.processes.append(one)
        run_until(world, lambda: one.serving == set(range(SHARD_GROUPS)), 10)
        world.lost_answers.add((one, kind))
        world.processes.append(other)
        run_until(world, lambda: not world.lost_answers, 5)
        run_until(world, lambda: shared_by(world, one, other), 30)
