"""Managers that freeze, crash, leave, join and lose shard groups, under a coordinator that moves, freezes and loads: a
shard group never has two owners, and after the faults every shard group is claimed by an owner, evenly distributed."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from simulated_coordinator import REBALANCE_TIMEOUT_S
from simulated_group import SHARD_GROUPS, Process, World

from offsetmgr.core.errors import ErrorCode
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.groups import group_lock as lock_membership
from offsetmgr.kafka.groups.group_member import KafkaGroupMember
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.requests import LockMembership
from offsetmgr.manager import ownership
from offsetmgr.manager.assignment import ManagerMetadata
from offsetmgr.manager.group_secret import GroupSecret
from offsetmgr.manager.lease import LEASE_DURATION_S

SEEDS = 3000 if os.environ.get("OFFSETMGR_SOAK") else 25
MOST_PROCESSES = 4
FAULTS = [
    "freeze", "freeze", "kill", "stop", "start", "start", "claim", "remove", "remove", "fail over", "freeze broker"
]  # fmt: skip


@pytest.fixture(autouse=True)
def fewer_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """This makes the simulation faster."""
    monkeypatch.setattr("offsetmgr.kafka.groups.group_member._MAX_HEARTBEAT_INTERVAL_S", 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_shard_group_ever_has_two_owners(seed: int) -> None:
    with World(seed) as world:
        run_random_faults(world)


def run_random_faults(world: World) -> None:
    random = world.random
    world.slow_network, world.few_commits = random.random() < 0.5, random.random() < 0.8
    world.quick_claims = random.random() < 0.5
    for _ in range(random.randint(1, 3)):
        world.processes.append(Process(world, len(world.processes)))
    for _ in range(random.randint(5, 25)):
        world.run(random.choice([0.05, 0.5, 2, 10, 25]))
        inject_fault(world)
    check_recovery(world)


def inject_fault(world: World) -> None:
    random = world.random
    alive = [p for p in world.processes if p.alive]
    kind = random.choice(FAULTS)
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
    elif kind == "remove":
        remove_living_member(one)
    elif kind == "claim":
        shard_group = random.randrange(SHARD_GROUPS)
        world.log(f"{one.name} claims {shard_group} late")
        world.claims[shard_group] = one
    elif not any(broker.stopped for broker in world.brokers):
        world.fail_over(wake_after=None if kind == "fail over" else random.uniform(0.5, 25))


def remove_living_member(remover: Process) -> None:
    """Lets a process remove another member, although it is alive. Half of the removed processes are frozen for a moment
    and do not notice the removal, so that their leases last as long as possible."""
    world = remover.world
    peers = sorted((member, node.port) for member, node in remover.peers.items())
    if not peers:
        return
    member, number = world.random.choice(peers)
    if world.random.random() < 0.5:
        world.processes[number].freeze(world.random.uniform(0.5, 3))
    remover.remove(member)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_repeated_metadata_gives_no_shard_group_a_second_owner(seed: int) -> None:
    with World(seed) as world:
        world.quick_claims = world.quick_revocations = True
        started(world, 3)
        for _ in range(20):
            world.run(world.random.uniform(0.5, 5))
            remove_living_member(world.random.choice(world.processes))
            for _ in range(4):
                world.after(world.random.uniform(0, 1), world.active.repeat_metadata)


def check_recovery(world: World) -> None:
    """Runs without faults until all sessions and rebalances have ended, and checks the assignment."""
    world.log("calm")
    world.slow_network = world.few_commits = world.quick_claims = False
    if not any(p.alive for p in world.processes):
        world.processes.append(Process(world, len(world.processes)))
    world.run(4 * REBALANCE_TIMEOUT_S)
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


ALL = set(range(SHARD_GROUPS))


def shared_by(*processes: Process) -> bool:
    shard_groups = [p.serving for p in processes]
    return sum(map(len, shard_groups)) == SHARD_GROUPS and all(shard_groups) and set().union(*shard_groups) == ALL


def run_until(world: World, condition: Callable[[], bool], seconds: float) -> None:
    end = world.now + seconds
    while not condition():
        assert world.now < end, "\n".join(world.history)
        world.run(0.05)


def started(world: World, count: int = 2) -> list[Process]:
    world.processes += [Process(world, number) for number in range(count)]
    run_until(world, lambda: shared_by(*world.processes), 10 if count < 3 else 30)
    return world.processes[:]


def test_a_manager_frozen_between_assignment_and_claim_never_serves() -> None:
    """The late claim of the frozen manager fences the owner, which rejoins and claims again."""
    with World(1) as world:
        frozen, other = Process(world, 0), Process(world, 1)
        world.processes += [frozen, other]
        run_until(world, lambda: bool(frozen.claiming), 5)
        assert not frozen.serving
        mine = set(frozen.claiming)
        frozen.freeze(20)
        run_until(world, lambda: other.serving == ALL, 15)
        run_until(world, lambda: frozen.running, 20)
        assert not frozen.ownership.valid()
        run_until(world, lambda: any(world.claims[shard_group] is frozen for shard_group in mine), 2)
        assert not frozen.serving
        run_until(world, lambda: shared_by(frozen, other), 60)
        run_until(world, lambda: all(world.claims[s] is p for p in (frozen, other) for s in p.serving), 5)


def removed_while_stalled(world: World) -> tuple[Process, Process]:
    """Two processes that share the shard groups. The first one has just proven its membership and does not run for two
    seconds. The second one removes it, as if it were dead. The clocks differ as much as the simulation allows."""
    world.quick_claims = world.quick_revocations = True
    stalled, other = Process(world, 0, rate=0.9), Process(world, 1, rate=1.1)
    world.processes += [stalled, other]
    run_until(world, lambda: shared_by(stalled, other), 10)
    run_until(world, lambda: stalled.ownership.lease.remaining() > 0.9 * LEASE_DURATION_S, 5)
    stalled.freeze(2)
    (member,) = other.peers
    other.remove(member)
    run_until(world, lambda: len(other.ownership.owned()) == SHARD_GROUPS, 1)
    assert stalled.ownership.valid()  # it would answer a fetch now, although it is no member any more
    return stalled, other


def test_the_successor_of_a_removed_manager_waits_until_its_lease_has_ended() -> None:
    with World(7) as world:
        stalled, other = removed_while_stalled(world)
        removed_at = world.now
        run_until(world, lambda: other.serving == ALL, 3)
        assert world.now - removed_at < 2
        run_until(world, lambda: shared_by(stalled, other), 30)  # the removed one has rejoined


def test_a_shard_group_that_moves_on_during_the_wait_is_not_claimed_early() -> None:
    """The successor of a removed manager releases shard groups to a third one before its wait has ended."""
    with World(8) as world:
        stalled, other = removed_while_stalled(world)
        third = Process(world, 2)
        world.processes.append(third)
        run_until(world, lambda: bool(third.ownership.owned()), 1)
        assert stalled.ownership.valid()
        run_until(world, lambda: shared_by(stalled, other, third), 30)


def test_a_manager_that_stops_hands_its_shard_groups_over_without_a_wait() -> None:
    with World(9) as world:
        stopping, other = started(world)
        seen = len(world.history)
        stopping.stop()
        run_until(world, lambda: other.serving == ALL, 12)
        taken = [line for line in world.history[seen:] if "p1 takes" in line]
        assert len(taken) == SHARD_GROUPS // 2
        assert all(line.endswith("waits 0.000 s") for line in taken)


def test_heartbeat_responses_of_a_loading_coordinator_do_not_extend_the_lease() -> None:
    """While a coordinator loads, it responds to every heartbeat without an error and without a check."""
    with World(2) as world:
        frozen, other = started(world)
        frozen.freeze(30)
        run_until(world, lambda: other.serving == ALL, 20)
        world.active.stop()
        world.active = world.brokers[1]
        world.active.load()
        run_until(world, lambda: frozen.running, 20)
        world.run(3)
        assert frozen.ownership.generation > 0  # no response has ended its membership
        assert not frozen.ownership.valid()
        world.active.lead(world.brokers[0].stored)
        run_until(world, lambda: shared_by(frozen, other), 60)


def plant_wait(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The successor does not wait, or it waits as if all clocks ran at the same rate."""
    monkeypatch.setattr(ownership, "TAKEOVER_WAIT_S", seconds)


def plant_forgotten_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that waits for the lease of a former owner does not say so when it rejoins."""

    encode: Callable[[ManagerMetadata, int], bytes] = vars(ownership)["encode_metadata"]

    def encode_without_waits(metadata: ManagerMetadata, attempt: int) -> bytes:
        return encode(replace(metadata, waiting_for=frozenset()), attempt)

    monkeypatch.setattr(ownership, "encode_metadata", encode_without_waits)


def plant_heartbeats_as_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send_heartbeat(
        member: KafkaGroupMember, connection: BrokerConnection, membership: LockMembership
    ) -> None:
        sent, synced = member._clock(), member._synced
        code = await lock_membership.heartbeat(connection, membership, member._wait_s)
        await member._handle_response(connection.address, membership, code)
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS) and synced and member._membership == membership:
            member._listener.on_confirmed(sent, membership.generation)

    monkeypatch.setattr(KafkaGroupMember, "_send_heartbeat", send_heartbeat)


@pytest.mark.parametrize(
    ("plant", "finds"),
    [
        (partial(plant_wait, 0.0), test_the_successor_of_a_removed_manager_waits_until_its_lease_has_ended),
        (
            partial(plant_wait, LEASE_DURATION_S),
            test_the_successor_of_a_removed_manager_waits_until_its_lease_has_ended,
        ),
        (plant_forgotten_waits, test_a_shard_group_that_moves_on_during_the_wait_is_not_claimed_early),
        (plant_heartbeats_as_proofs, test_heartbeat_responses_of_a_loading_coordinator_do_not_extend_the_lease),
    ],
)
def test_the_model_finds_a_planted_fault(plant, finds: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        finds()


def test_a_manager_with_another_topic_is_excluded_until_it_is_alone() -> None:
    with World(3) as world:
        (one,) = started(world, 1)
        misconfigured = Process(world, 1, topic="elsewhere")
        world.processes.append(misconfigured)
        run_until(world, lambda: misconfigured.ownership.exclusion_reason is not None, 10)
        why = "topic is 'elsewhere' here and 'offsets' at the other managers"
        assert misconfigured.ownership.exclusion_reason is not None
        assert misconfigured.ownership.exclusion_reason.endswith(f"assigns no shard groups to this manager: {why}")
        assert one.serving == ALL
        assert [node.port for node in misconfigured.ownership.nodes()] == [0]
        one.stop()
        run_until(world, lambda: misconfigured.serving == ALL, 20)
        assert misconfigured.ownership.exclusion_reason is None


def with_secrets(world: World, secrets: str, *, required: bool = True) -> Process:
    secret = GroupSecret("managers", secrets.split(), required=required, clock=lambda: 100 * world.now)
    world.processes.append(Process(world, len(world.processes), secret=secret))
    return world.processes[-1]


@pytest.mark.parametrize("seed", range(4))
def test_managers_get_and_replace_a_secret_by_rolling_restarts(seed: int) -> None:
    """Each restart but those to optional secrets ends with no alarm, ten minutes later at the latest."""
    with World(seed) as world:
        running = [with_secrets(world, ""), with_secrets(world, "")]
        for secrets, required in (("old", False), ("old", True), ("old new", True), ("new", True)):
            for number in range(2):
                running[number].stop()
                running[number] = with_secrets(world, secrets, required=required)
                run_until(world, lambda: shared_by(*running), 60)
                world.run(0 if not required and number == 0 else 10)
                alarms = [text for process in running for text in process.ownership.secret.unproven]
                assert bool(alarms) == (not required and number == 0), "\n".join(world.history)
                assert [process.ownership.exclusion_reason for process in running] == [None, None]


@pytest.mark.parametrize("seed", range(8))
def test_an_owner_that_can_no_longer_prove_its_claims_is_replaced_after_its_lease(seed: int) -> None:
    """Only the leader verifies both other managers. When it dies, one of them leads and excludes the other."""
    with World(seed) as world:
        both = with_secrets(world, "old new")
        run_until(world, lambda: both.serving == ALL, 10)
        old, new = with_secrets(world, "old"), with_secrets(world, "new")
        run_until(world, lambda: shared_by(old, both, new), 60)
        both.kill()
        run_until(world, lambda: ALL in (old.serving, new.serving), 60)
        world.run(20)
        assert sorted(map(len, (old.serving, new.serving))) == [0, SHARD_GROUPS]


def test_every_manager_knows_the_owner_of_each_shard_group() -> None:
    with World(4) as world:
        for process in started(world, 3):
            assert [node.port for node in sorted(process.ownership.nodes(), key=lambda n: n.port)] == [0, 1, 2]
            for owner in world.processes:
                owners = [process.ownership.owner_of(shard_group) for shard_group in owner.serving]
                assert {node and node.port for node in owners} == {int(owner.name[1:])}


def test_repeated_foreign_claims_cause_rebalances_with_backoff() -> None:
    """If two groups are configured for one topic, they fence each other endlessly, but with growing pauses."""
    with World(5) as world:
        (one,) = started(world, 1)
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
        (one,) = started(world, 1)
        other = Process(world, 1)
        world.lost_answers.add((one, kind))
        world.processes.append(other)
        run_until(world, lambda: not world.lost_answers, 5)
        run_until(world, lambda: shared_by(one, other), 30)
