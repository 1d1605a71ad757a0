"""Scenarios of the fenced log: random faults, and directed ones for the faults that need a long preparation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from fenced_log_oracle import FOREIGN_VALUE, Violation
from simulated_log import SentBatch
from simulated_managers import ID_PREFIX, REFRESH_S, Manager, Simulation
from simulated_transactions import LAST_EPOCH, TransactionalId

from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.records.claim import Claim, encode_claim
from offsetmgr.segments.batch_builder import Producer

MOST_MANAGERS: Final = 3
LONGEST_RECOVERY_S: Final = 60.0
FOREIGN: Final = SentBatch(None, ((b"foreign", FOREIGN_VALUE),), 0)


class Weather(NamedTuple):
    """The mean number of seconds between two faults of a kind; 0 if the kind does not happen."""

    network: float = 0.0
    """The probability of each fault of the network for one request. This field is no number of seconds."""
    brokers_killed: float = 0.0
    leaders_moved: float = 0.0
    followers_stalled: float = 0.0
    coordinator_moved: float = 0.0
    compacted: float = 0.0
    assigned: float = 0.0
    freeze: float = 0.0
    """The probability that a manager freezes after a step."""
    crash: float = 0.0
    """The probability that a manager crashes after a step."""
    foreign: float = 0.0
    duration_s: float = 60.0


STORM: Final = Weather(
    network=0.02, brokers_killed=25, leaders_moved=8, followers_stalled=5, coordinator_moved=15, compacted=5,
    assigned=10, freeze=0.002, crash=0.0005,
)  # fmt: skip
NETWORK: Final = Weather(network=0.08, assigned=10)
REPLICAS: Final = Weather(network=0.02, leaders_moved=3, followers_stalled=2, brokers_killed=15)
MANAGERS: Final = Weather(network=0.01, assigned=3, freeze=0.01, crash=0.002)


Scenario: TypeAlias = Callable[[Simulation, Weather], None]
"""Raises `Violation` if the log breaks a guarantee."""


def storm(world: Simulation, weather: Weather) -> None:
    """Random faults, until the managers recover from the last one."""
    begin(world, weather)
    world.run(weather.duration_s)
    recover(world)


def begin(world: Simulation, weather: Weather) -> None:
    """Starts managers, and faults that last until `calm`."""
    draw, cluster = world.random, world.cluster
    for _ in range(2):
        world.start_manager()
    world.assign(world.managers[0], revoke=True)
    network = world.network
    network.lost = network.unanswered = network.late = network.slow = weather.network
    world.chances.freeze, world.chances.crash = weather.freeze, weather.crash
    world.quick = draw.random() < 0.3

    def any_partition() -> int:
        return draw.choice(list(cluster.partitions))

    def any_broker() -> int:
        return draw.randrange(len(cluster.brokers))

    kinds: list[tuple[float, Callable[[], object]]] = [
        (weather.brokers_killed, lambda: kill_broker(world, any_broker())),
        (weather.leaders_moved, lambda: cluster.move_leader(any_partition(), draw.choice([0.0, 0.0, 0.5, 3.0]))),
        (weather.followers_stalled, lambda: cluster.stall(any_partition(), any_broker(), draw.uniform(0.1, 6))),
        (weather.coordinator_moved, cluster.move_coordinator),
        (weather.compacted, lambda: cluster.compact(any_partition())),
        (weather.assigned, lambda: reassign(world)),
        (weather.foreign, lambda: cluster.append(any_partition(), FOREIGN)),
    ]
    for mean_s, action in kinds:
        if mean_s:
            world.every(mean_s, while_stormy(world, action))


def while_stormy(world: Simulation, action: Callable[[], object]) -> Callable[[], object]:
    return lambda: None if world.calm else action()


def kill_broker(world: Simulation, number: int) -> None:
    """Kills a broker for some seconds, unless another one is down."""
    if all(broker.up for broker in world.cluster.brokers):
        world.log(f"broker {number} is killed")
        world.cluster.kill(number)
        world.after(world.random.uniform(0.2, 8), lambda: world.cluster.start(number))


def reassign(world: Simulation) -> None:
    """Assigns the shard group to a random manager, possibly to a new one or to its owner."""
    alive = [manager for manager in world.managers if manager.alive]
    if (len(alive) < MOST_MANAGERS and world.random.random() < 0.5) or not alive:
        alive.append(world.start_manager())
    world.assign(world.random.choice(alive), revoke=world.random.random() < 0.5)


def end_faults(world: Simulation) -> None:
    world.log("the faults end")
    world.calm = True
    network, chances = world.network, world.chances
    network.lost = network.unanswered = network.late = network.slow = 0.0
    chances.freeze = chances.crash = 0.0
    world.quick = False


def recover(world: Simulation) -> None:
    """Ends all faults, and checks that an owner and a new owner can claim and append. Then compares every outcome with
    the log."""
    end_faults(world)
    world.run(REFRESH_S)  # the late requests arrive, and frozen managers thaw
    alive = [manager for manager in world.managers if manager.alive]
    for manager in [*alive[:1], world.start_manager()]:
        world.assign(manager, revoke=True)
        await_appends(world, manager)
    world.run(5)
    world.oracle.check()


def await_appends(world: Simulation, manager: Manager) -> None:
    """Checks that a manager claims and appends. Once it has, no append has an unknown outcome."""
    wanted, unknown = manager.acknowledged + 10, None

    def done() -> bool:
        nonlocal unknown
        if unknown is None and manager.acknowledged > wanted - 10:
            unknown = manager.unknown
        return manager.acknowledged >= wanted

    if not world.run(LONGEST_RECOVERY_S, done):
        raise Violation(f"{manager.name} acknowledges nothing without faults")
    if manager.unknown != unknown:
        raise Violation(f"{manager.name} has unknown outcomes without faults")


# --- directed scenarios ---------------------------------------------------------------------------------


def epochs_end(world: Simulation, weather: Weather) -> None:
    """The transactional ids have only few epochs left, so takeovers and refreshes receive other producer ids. The
    partitions have batches of the old id, or the brokers have dropped its state."""
    for number in world.cluster.partitions:
        exhaust_epochs(world, number, world.random.randint(0, 6), claimed=world.random.random() < 0.5)
    storm(world, weather)


def claims_race(world: Simulation, weather: Weather) -> None:
    """The first claim of a manager receives the last epoch. The manager freezes at any step of the claim, and another
    manager claims with another producer id."""
    for number in world.cluster.partitions:
        exhaust_epochs(world, number, 1, claimed=world.random.random() < 0.3)
    first, second = world.start_manager(), world.start_manager()
    world.assign(first, revoke=True)
    run_into_claim(world, first)
    first.freeze(world.random.uniform(0, 2))
    world.assign(second, revoke=False)
    world.run(4)
    recover(world)


def run_into_claim(world: Simulation, manager: Manager) -> None:
    """Runs until a random step of the manager's next claim, in most cases after it has listed the producers."""
    listed = manager.client.requests[ApiKey.DESCRIBE_PRODUCERS]
    if world.random.random() < 0.8:
        world.run(10, lambda: manager.client.requests[ApiKey.DESCRIBE_PRODUCERS] > listed)
    last_step = manager.steps + world.random.randrange(30)
    world.run(5, lambda: manager.steps >= last_step)


def epochs_repeat(world: Simulation, weather: Weather) -> None:
    """The coordinator loses its newest states, so a manager receives an epoch that another manager has."""
    world.oracle.check_repeated_claims = False  # the first manager may present its epoch, too
    begin(world, weather)
    world.run(5, lambda: world.managers[0].acknowledged > 0)
    earlier = world.cluster.transactions.copy_states()
    first, second = world.start_manager(), world.start_manager()
    world.assign(first, revoke=True)
    appended = world.random.randint(1, 3)
    world.run(10, lambda: first.acknowledged >= appended)
    first.appending = False
    world.log("the coordinator loses its newest states")
    world.cluster.transactions.states = earlier
    world.assign(second, revoke=False)
    world.run(2)
    first.appending = True
    world.run(5)
    recover(world)


def exhaust_epochs(world: Simulation, number: int, left: int, *, claimed: bool) -> None:
    """Gives the transactional id of a partition a producer id with only ``left`` further epochs. If ``claimed`` is
    True, the partition has a batch of this producer id."""
    name, producer_id = f"{ID_PREFIX}{number}", world.cluster.transactions.new_id()
    epoch = LAST_EPOCH - left
    world.cluster.transactions.states[name] = TransactionalId(producer_id, epoch, updated=world.now)
    if claimed:
        claim = encode_claim(Claim("", "an earlier manager", 0, (producer_id,)))
        world.cluster.append(number, SentBatch(Producer(producer_id, epoch, 0), (claim,), 0))


def state_expires(world: Simulation, weather: Weather) -> None:
    """A manager freezes while it claims, appends or refreshes its claim, and thaws after the brokers have dropped all
    state."""
    begin(world, weather)
    frozen, draw = world.managers[0], world.random
    phase, after_s = draw.choice(["claim", "refresh", "append"]), world.now + draw.uniform(0, 25)
    world.run(60, lambda: world.now > after_s and frozen.phase == phase)
    last_step = frozen.steps + draw.randrange(40)
    world.run(5, lambda: frozen.steps >= last_step)
    outlast_state(world, frozen, suspended=draw.random() < 0.5)


def claim_freezes(world: Simulation, weather: Weather) -> None:
    """Like `state_expires`, but the manager freezes while it claims again after an unknown outcome. Its clock stops, so
    the timeout of the claim does not pass."""
    begin(world, weather)
    frozen = world.managers[0]
    world.run(20, lambda: frozen.acknowledged > world.random.randrange(20))
    world.network.lost = 1.0
    world.run(20, lambda: frozen.unknown > 0)
    world.network.lost = 0.0
    run_into_claim(world, frozen)
    outlast_state(world, frozen, suspended=True)


def outlast_state(world: Simulation, frozen: Manager, *, suspended: bool) -> None:
    """Freezes a manager. A successor claims, appends and stops, and the brokers drop the state of its producers,
    possibly also the transactional ids. Then the frozen manager continues."""
    end_faults(world)
    settings = world.cluster.settings
    pause_s = 60 + world.random.choice([settings.producer_expiration_s, settings.transactional_id_expiration_s])
    frozen.freeze(pause_s + 90, suspended=suspended)
    successor = world.start_manager()
    world.assign(successor, revoke=False)
    await_appends(world, successor)
    world.run(world.random.uniform(0, 20))
    successor.kill()
    world.run(pause_s + 100)
    recover(world)
