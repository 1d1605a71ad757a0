"""Managers that take over a shard group from one another, with every fault of managers, networks and brokers.

Every acknowledged record is in the log, below the claim of each later owner, and no record of an earlier owner follows
an acknowledged claim. A rejected record is not in the log, and a record with an unknown outcome is there at most once.
An owner that has read up to its claim knows every acknowledged record. After the faults a manager claims and appends.

The simulation also finds each fault that `faulty_writers` plants in a copy of the writer, on one recorded seed. The
real writer passes on this seed, so the same fault in the real writer makes this run fail.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import NamedTuple

import fenced_log_scenarios
import pytest
from faulty_writers import FAULTS, Fault
from fenced_log_oracle import FOREIGN_VALUE, Violation
from processes import fails
from simulated_cluster import Settings
from simulated_managers import CLAIM_TIMEOUT_S, REFRESH_S, Simulation

from offsetmgr.manager.log.kafka.writer import KafkaShardGroupWriter

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
FIRST_SEED = int(os.environ.get("OFFSETMGR_SEED") or 0) if SOAK else 0
SEEDS = range(FIRST_SEED, FIRST_SEED + (500 if SOAK else 3))
SEARCHED_SEEDS = 200
"""The number of seeds among which a failed test searches for another seed of a planted fault."""
PRINTED_LINES = 100


class Case(NamedTuple):
    """A scenario, the frequency of its faults, and the brokers."""

    scenario: fenced_log_scenarios.Scenario
    weather: fenced_log_scenarios.Weather
    settings: Settings = Settings()


CASES = {
    "all faults": Case(fenced_log_scenarios.storm, fenced_log_scenarios.STORM),
    "network": Case(fenced_log_scenarios.storm, fenced_log_scenarios.NETWORK),
    "replicas": Case(fenced_log_scenarios.storm, fenced_log_scenarios.REPLICAS),
    "managers": Case(fenced_log_scenarios.storm, fenced_log_scenarios.MANAGERS),
    "one broker": Case(fenced_log_scenarios.storm, fenced_log_scenarios.STORM, Settings(brokers=1, min_in_sync=1)),
    "other clients": Case(fenced_log_scenarios.storm, fenced_log_scenarios.NETWORK._replace(foreign=3)),
    "epochs end": Case(fenced_log_scenarios.epochs_end, fenced_log_scenarios.MANAGERS),
    "claims race": Case(fenced_log_scenarios.claims_race, fenced_log_scenarios.NETWORK),
    "epochs repeat": Case(fenced_log_scenarios.epochs_repeat, fenced_log_scenarios.NETWORK),
    "state expires": Case(fenced_log_scenarios.state_expires, fenced_log_scenarios.NETWORK),
    "a claim freezes": Case(fenced_log_scenarios.claim_freezes, fenced_log_scenarios.NETWORK),
}


RUNS = {f"{name}-{seed}": (case, seed) for name, case in CASES.items() for seed in SEEDS} | {
    f"where {fault.name} shows": (Case(fault.scenario, fault.weather), fault.seed) for fault in FAULTS
}


@pytest.mark.parametrize(("case", "seed"), RUNS.values(), ids=RUNS.keys())
def test_no_acknowledged_record_is_lost_and_no_earlier_owner_appends(case: Case, seed: int) -> None:
    with Simulation(seed, case.settings) as world:
        try:
            case.scenario(world, case.weather)
        except Violation as violation:
            pytest.fail("\n".join([*world.history[-PRINTED_LINES:], str(violation)]))
        counts = world.oracle.counts
        assert counts.acknowledged > 20 and counts.claims >= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_claim_is_read_back_from_the_next_leader(seed: int) -> None:
    with Simulation(seed) as world:
        world.assign(world.start_manager(), revoke=True)
        partition = world.cluster.partitions[0]
        world.run(10, lambda: bool(partition.committed))
        assert partition.leader is not None and not world.oracle.counts.claims

        world.cluster.kill(partition.leader)

        assert world.run(CLAIM_TIMEOUT_S, lambda: world.oracle.counts.claims > 0)
        assert len(partition.committed) == 1  # it needs no further claim


def test_an_owner_reads_the_records_of_another_client_that_precede_its_refresh() -> None:
    with Simulation(0) as world:
        owner = world.start_manager()
        world.assign(owner, revoke=True)
        assert world.run(10, lambda: owner.acknowledged > 0)
        owner.appending = False
        claims = world.oracle.counts.claims

        world.cluster.append(0, fenced_log_scenarios.FOREIGN)

        assert world.run(2 * REFRESH_S, lambda: world.oracle.counts.claims > claims)
        assert owner.caches[0][b"foreign"] == FOREIGN_VALUE


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a change of the writer makes a recorded seed useless, the failure names other seeds for `FAULTS`."""
    writer = fault.plant(monkeypatch)
    if not shows_fault(fault, writer, fault.seed):
        others = (seed for seed in range(SEARCHED_SEEDS) if shows_fault(fault, writer, seed))
        pytest.fail(f"{fault.name} does not show on seed {fault.seed}, but on {list(islice(others, 3))}")


def shows_fault(fault: Fault, writer: type[KafkaShardGroupWriter], seed: int) -> bool:
    """Returns whether a run of the simulation with a faulty copy fails."""
    with Simulation(seed, writer=writer) as world:
        return fails(Violation, fault.scenario, world, fault.weather)
