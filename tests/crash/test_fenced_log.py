"""Managers that take over a shard group from one another, with every fault of managers, networks and brokers.

Every acknowledged record is in the log, below the claim of each later owner, and no record of an earlier owner follows
an acknowledged claim. A rejected record is not in the log, and a record with an unknown outcome is there at most once.
An owner that has read up to its claim knows every acknowledged record. After the faults a manager claims and appends.

The simulation also finds each fault that is planted in a copy of the writer or of its parts, on one recorded seed. The
real writer passes on this seed, so the same fault in the real writer makes this run fail.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from types import ModuleType
from typing import Final, NamedTuple, TypeAlias, cast

import fenced_log_scenarios
import mutants
import pytest
from fenced_log_oracle import FOREIGN_VALUE, Violation
from fenced_log_scenarios import (
    MANAGERS,
    NETWORK,
    REPLICAS,
    Scenario,
    Weather,
    claim_freezes,
    claims_race,
    epochs_end,
    epochs_repeat,
    state_expires,
    storm,
)
from processes import fails
from simulated_cluster import Cluster, Settings
from simulated_managers import CLAIM_TIMEOUT_S, REFRESH_S, Simulation
from simulated_network import SimulatedClient

from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.kafka.client.fetch import ProduceResult
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.manager.log.base import Fenced
from offsetmgr.manager.log.kafka.partition_producer import PartitionProducer, Step
from offsetmgr.manager.log.kafka.writer import KafkaShardGroupWriter
from offsetmgr.records.base import EncodedRecord
from offsetmgr.records.claim import CLAIM_KEY
from offsetmgr.segments import batch_builder
from offsetmgr.segments.batch_builder import Producer
from offsetmgr.segments.batch_reader import Record

WRITER, PRODUCER = "manager/log/kafka/writer", "manager/log/kafka/partition_producer"

# --- faults that change more than a line --------------------------------------------------------------


class NoClaimInOnePartition(KafkaShardGroupWriter):
    """Serves a partition without a claim, from the end of its log on."""

    async def _append_claims(self, deadline: float) -> dict[int, PartitionProducer]:
        everything, self._partitions = self._partitions, self._partitions[:1]
        try:
            producers = await super()._append_claims(deadline)
        finally:
            self._partitions = everything
        for number in everything[1:]:
            end = max(replica.high_watermark for replica in cluster_of(self).partitions[number].replicas)
            producers[number] = PartitionProducer(f"{number}", self._epochs[number], end)
        return producers


class PresentsForeignEpoch(KafkaShardGroupWriter):
    """Takes over with the epoch of the newest claim in the log. Requests an epoch unconditionally only if that
    fails."""

    async def _new_epochs(self, partitions: Iterable[int], deadline: float) -> None:
        numbers = list(partitions)
        if self._epochs:
            await super()._new_epochs(numbers, deadline)
            return
        for number in numbers:
            for batch in cluster_of(self).partitions[number].committed:
                if batch.records[0][0] == CLAIM_KEY and batch.producer is not None:
                    self._epochs[number] = ProducerEpoch(batch.producer.id, batch.producer.epoch)
        try:
            await super()._new_epochs(numbers, deadline)
        except Fenced:
            self._epochs = {}
            await super()._new_epochs(numbers, deadline)


class ResendsOutOfOrder(PartitionProducer):
    """Sends an uncertain batch with the next sequence numbers before the resend."""

    _sent: Sequence[EncodedRecord] = ()

    def begin(self, records: Sequence[EncodedRecord]) -> None:
        self._sent = records
        super().begin(records)

    def on_no_response(self, error: OffsetMgrError) -> None:
        super().on_no_response(error)
        self._encode(self._sequence + self._records)

    def on_result(self, result: ProduceResult) -> Step:
        if self._uncertain and result.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self._encode(self._sequence)
            return Step.RESEND
        return super().on_result(result)

    def _encode(self, sequence: int) -> None:
        records = [Record(offset, None, key, value) for offset, (key, value) in enumerate(self._sent)]
        self.batch = batch_builder.batch(records, producer=Producer(self.epoch.id, self.epoch.epoch, sequence))


# --- the runs -------------------------------------------------------------------------------------------

Copy: TypeAlias = type[KafkaShardGroupWriter] | type[PartitionProducer] | tuple[str, str, str]
"""A faulty class, or the name of a module, a text of the module, and its replacement."""


class Fault(NamedTuple):
    name: str
    copy: Copy
    scenario: Scenario
    weather: Weather
    seed: int

    def plant(self, patch: pytest.MonkeyPatch) -> type[KafkaShardGroupWriter]:
        """Replaces the parts of the writer by faulty ones. Returns the writer."""
        if isinstance(self.copy, tuple):
            parts = vars(module_with(*self.copy))
        else:
            parts = {base.__name__: self.copy for base in self.copy.__bases__}
        for name in parts.keys() & {"PartitionProducer", "BatchSender"}:
            patch.setattr(f"offsetmgr.manager.log.kafka.writer.{name}", parts[name])
        return cast(type[KafkaShardGroupWriter], parts.get("KafkaShardGroupWriter", KafkaShardGroupWriter))


def module_with(module: str, text: str, replacement: str) -> ModuleType:
    """Returns a copy of a module of the package in which a text is replaced."""
    source = (mutants.ROOT / "offsetmgr" / f"{module}.py").read_text("utf-8")
    made = ModuleType(f"offsetmgr.{module.replace('/', '.')}")
    exec(compile(mutants.planted(source, text, replacement), module, "exec"), made.__dict__)
    return made


def known(module: str, fault: str) -> tuple[str, str, str]:
    """A fault that `scripts/mutants.py` plants, too."""
    return (module, *mutants.FAULTS[module][fault])


UNCERTAIN = "self._uncertain |= code in _AFTER_APPEND_CODES"
FAULTS: Final = [
    Fault("no claim in one partition", NoClaimInOnePartition, storm, MANAGERS, 3),
    Fault("a foreign epoch is presented", PresentsForeignEpoch, storm, MANAGERS, 7),
    Fault("no comparison", known(WRITER, "step 1 of a later claim is unconditional"), storm, MANAGERS, 3),
    Fault("a changed id is ignored", known(WRITER, "another producer id is accepted"), state_expires, NETWORK, 11),
    Fault("no comparison of fences", known(WRITER, "step 3 fences without a comparison"), claims_race, NETWORK, 25),
    Fault("an old id is left", (WRITER, "number, ids in others.items()", "number, ids in ()"), epochs_end, MANAGERS, 1),
    Fault("no confirmation", known(WRITER, "step 5 is missing"), claims_race, NETWORK, 130),
    Fault("no tokens", known(WRITER, "step 4 does not read back"), epochs_repeat, NETWORK, 1),
    Fault(
        "sequence numbers of an uncertain batch are used again after a timeout",
        (PRODUCER, "kind = OutcomeUnknown if self._uncertain else AppendRejected", "kind = AppendRejected"),
        storm, NETWORK, 0,
    ),
    Fault(
        "a rejected resend decides",
        (PRODUCER, "code = result.error_code", "code = result.error_code\n"
            "        self._uncertain &= code not in {*_NOT_APPENDED_CODES, ErrorCode.MESSAGE_TOO_LARGE}"),
        storm, REPLICAS, 0,
    ),
    Fault(
        "a former leader decides",
        (PRODUCER, UNCERTAIN, UNCERTAIN + " - {ErrorCode.NOT_LEADER_OR_FOLLOWER}"),
        storm, REPLICAS._replace(leaders_moved=1.5, followers_stalled=0.7, brokers_killed=6), 20,
    ),
    Fault(
        "too few replicas after the append reject it",
        (PRODUCER, "        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,\n", ""),
        storm, REPLICAS, 1,
    ),
    Fault("a resend is out of order", ResendsOutOfOrder, storm, NETWORK, 0),
    Fault("any offset", known(PRODUCER, "an acknowledgement may have any offset"), storm, Weather(foreign=5), 0),
    Fault(
        "the sequence number does not advance",
        (PRODUCER, "(self._sequence + self._records) % _SEQUENCES", "self._sequence"),
        storm, Weather(duration_s=5), 0,
    ),
    Fault(
        "the sequence number advances after a rejection",
        (PRODUCER, "        self.failure, self.batch = error, b\"\"\n",
            "        self.failure, self.batch = error, b\"\"\n"
            "        self._sequence += self._records * isinstance(error, TooLarge | AppendRejected)\n"),
        storm, Weather(duration_s=5), 0,
    ),
    Fault("lost state", known(PRODUCER, "lost state of the producer is accepted"), claim_freezes, Weather(), 4),
    Fault(
        "no check of connections",
        (PRODUCER, "await self._check_owners(connection, producers, attempt)", "connection.checked.update(producers)"),
        state_expires, NETWORK, 2,
    ),
]  # fmt: skip


def cluster_of(writer: KafkaShardGroupWriter) -> Cluster:
    """Returns the brokers. A fault may read the log in ways that a writer cannot."""
    return cast(SimulatedClient, writer._connections._client).simulated


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
