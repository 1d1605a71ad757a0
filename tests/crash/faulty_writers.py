"""Faults of a writer, each planted in a copy of `KafkaShardGroupWriter` or of its parts. `test_fenced_log` shows that
the simulation finds each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

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
from simulated_cluster import Cluster
from simulated_network import SimulatedClient

from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.kafka.client.fetch import ProduceResult
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.kafka.protocol.errors import ProducerFenced
from offsetmgr.manager.log.base import AppendRejected, Fenced, TooLarge
from offsetmgr.manager.log.kafka.partition_producer import BatchSender, PartitionProducer, Step
from offsetmgr.manager.log.kafka.writer import KafkaShardGroupWriter
from offsetmgr.records.base import EncodedRecord
from offsetmgr.records.claim import CLAIM_KEY
from offsetmgr.segments import batch_builder
from offsetmgr.segments.batch_builder import Producer
from offsetmgr.segments.batch_reader import Record

# --- claims -------------------------------------------------------------------------------------------


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


class NoComparison(KafkaShardGroupWriter):
    """Receives each epoch unconditionally."""

    async def _new_epochs(self, partitions: Iterable[int], deadline: float) -> None:
        self._epochs = {}
        await super()._new_epochs(self._partitions, deadline)


class IgnoresChangedId(KafkaShardGroupWriter):
    """Goes on with another producer id, if the coordinator returns one."""

    async def _new_epochs(self, partitions: Iterable[int], deadline: float) -> None:
        current = {number: self._epochs.get(number) for number in partitions}
        found = await self._connections.new_epochs(current, deadline)
        self._epochs |= {number: epoch for number, epoch in found.items() if isinstance(epoch, ProducerEpoch)}
        for error in found.values():
            if isinstance(error, OffsetMgrError):
                raise Fenced(self._what, "another manager") if isinstance(error, ProducerFenced) else error


class FencesWithoutComparison(KafkaShardGroupWriter):
    """Fences other producer ids, although they may be newer than its own."""

    _fencing = False

    async def _fence_other_ids(self, deadline: float) -> None:
        self._fencing = True
        await super()._fence_other_ids(deadline)
        self._fencing = False

    async def _new_epochs(self, partitions: Iterable[int], deadline: float) -> None:
        if not self._fencing:
            await super()._new_epochs(partitions, deadline)


class LeavesOldId(KafkaShardGroupWriter):
    """Does not fence the earlier producer ids."""

    async def _fence_other_ids(self, deadline: float) -> None:
        if others := await self._other_ids(deadline):
            await self._new_epochs(others, deadline)


class NoConfirmation(KafkaShardGroupWriter):
    """Does not ask the coordinator again if the leader had no state of the producer id."""

    async def _append_claims(self, deadline: float) -> dict[int, PartitionProducer]:
        producers = await super()._append_claims(deadline)
        self._unlisted.clear()
        return producers


class NoTokens(KafkaShardGroupWriter):
    """Does not read its claims back."""

    async def _compare_tokens(self, tokens: Mapping[int, str], ends: Mapping[int, int], deadline: float) -> None:
        pass


# --- batches ------------------------------------------------------------------------------------------


class ReusesSequence(PartitionProducer):
    """After a timeout, gives the sequence numbers of an uncertain batch to the next batch."""

    def on_deadline(self) -> None:
        self._uncertain = False
        super().on_deadline()


class TrustsRefusalOfResend(PartitionProducer):
    """Takes a rejection of a resend for a rejection of the batch."""

    def on_result(self, result: ProduceResult) -> Step:
        if result.error_code in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE):
            self._uncertain = False
        return super().on_result(result)


class TrustsFormerLeader(PartitionProducer):
    """Takes NOT_LEADER_OR_FOLLOWER for a rejection before the append."""

    def on_result(self, result: ProduceResult) -> Step:
        uncertain = self._uncertain
        step = super().on_result(result)
        if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._uncertain = uncertain
        return step


class TrustsFewReplicas(PartitionProducer):
    """Takes NOT_ENOUGH_REPLICAS_AFTER_APPEND for a rejection before the append."""

    def on_result(self, result: ProduceResult) -> Step:
        if result.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            return self._fail(AppendRejected(self._what, "too few replicas"))
        return super().on_result(result)


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


class NoExpectedOffset(PartitionProducer):
    """Does not compare the first offset of an acknowledged batch."""

    def _on_success(self, first_offset: int) -> Step:
        self.next_offset = None
        return super()._on_success(first_offset)


class KeepsSequence(PartitionProducer):
    """Does not advance the sequence number after a batch."""

    def _on_success(self, first_offset: int) -> Step:
        sequence = self._sequence
        step = super()._on_success(first_offset)
        self._sequence = sequence
        return step


class SkipsSequence(PartitionProducer):
    """Advances the sequence number after a rejected batch, too."""

    def _fail(self, error: OffsetMgrError) -> Step:
        if isinstance(error, TooLarge | AppendRejected):
            self._sequence += self._records
        return super()._fail(error)


class ForgetsListedState(PartitionProducer):
    """Does not notice that the leader has dropped the state of the producer since the claim began."""

    def on_owners(self, epochs: dict[int, int]) -> None:
        self._listed = False
        super().on_owners(epochs)


class NoCheckOfConnections(BatchSender):
    """Sends batches over connections on which it has checked nothing."""

    async def _check_owners(self, connection: Any, producers: Mapping[int, PartitionProducer], deadline: float) -> None:
        connection.checked.update(producers)


# --- the runs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    copy: type[KafkaShardGroupWriter] | type[PartitionProducer] | type[BatchSender]
    scenario: Scenario
    weather: Weather
    seed: int

    @property
    def name(self) -> str:
        return self.copy.__name__

    @property
    def writer(self) -> type[KafkaShardGroupWriter]:
        return self.copy if issubclass(self.copy, KafkaShardGroupWriter) else KafkaShardGroupWriter

    @property
    def replaced(self) -> str:
        """The name in the writer's module that the copy replaces; empty if the copy is a writer."""
        kinds = {PartitionProducer: "PartitionProducer", BatchSender: "BatchSender"}
        return next((name for kind, name in kinds.items() if issubclass(self.copy, kind)), "")


FAULTS: Final = [
    Fault(NoClaimInOnePartition, storm, MANAGERS, 3),
    Fault(PresentsForeignEpoch, storm, MANAGERS, 2),
    Fault(NoComparison, storm, MANAGERS, 4),
    Fault(IgnoresChangedId, state_expires, NETWORK, 2),
    Fault(FencesWithoutComparison, claims_race, NETWORK, 9),
    Fault(LeavesOldId, epochs_end, MANAGERS, 0),
    Fault(NoConfirmation, claims_race, NETWORK, 25),
    Fault(NoTokens, epochs_repeat, NETWORK, 5),
    Fault(ReusesSequence, storm, NETWORK, 0),
    Fault(TrustsRefusalOfResend, storm, REPLICAS, 1),
    Fault(TrustsFormerLeader, storm, REPLICAS._replace(leaders_moved=1.5, followers_stalled=0.7, brokers_killed=6), 1),
    Fault(TrustsFewReplicas, storm, REPLICAS, 0),
    Fault(ResendsOutOfOrder, storm, NETWORK, 0),
    Fault(NoExpectedOffset, storm, Weather(foreign=5), 0),
    Fault(KeepsSequence, storm, Weather(duration_s=5), 0),
    Fault(SkipsSequence, storm, Weather(duration_s=5), 0),
    Fault(ForgetsListedState, claim_freezes, Weather(), 8),
    Fault(NoCheckOfConnections, state_expires, NETWORK, 2),
]


def cluster_of(writer: KafkaShardGroupWriter) -> Cluster:
    """Returns the brokers. A fault may read the log in ways that a writer cannot."""
    return cast(SimulatedClient, writer._connections._client).simulated
