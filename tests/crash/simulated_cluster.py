"""A cluster of brokers in memory: leaders and their replicas, as far as the writers of a partition notice them.

Every broker has a replica of each partition. A leader acknowledges a batch after all in-sync replicas have it, if they
are enough. A broker that is not the leader any more may notice it later.

Source: kafka.server.ReplicaManager, kafka.cluster.Partition, kafka.server.DelayedProduce.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from simulated_log import Batch, Replica, SentBatch, parse_batch
from simulated_transactions import TransactionCoordinator

from offsetmgr.core.errors import ErrorCode
from offsetmgr.kafka.client.fetch import ProduceResult


class Time(Protocol):
    now: float
    random: random.Random

    def after(self, seconds: float, action: Callable[[], None]) -> None: ...


@dataclass(frozen=True)
class Settings:
    """The settings of the brokers. Times are in seconds of the simulated time, and much shorter than those of real
    brokers."""

    partitions: tuple[int, ...] = (0, 8)
    brokers: int = 3
    min_in_sync: int = 2
    max_message_bytes: int = 1_500
    producer_expiration_s: float = 120.0
    transactional_id_expiration_s: float = 300.0
    max_idle_s: float = 40.0
    """The time after which a broker closes an idle connection. It is below ``producer_expiration_s``."""
    tombstone_retention_s: float = 60.0


@dataclass
class Broker:
    number: int
    up: bool = True
    incarnation: int = 0
    """Increases with each start. A restarted broker has no connection of an earlier incarnation."""


@dataclass(eq=False)
class PendingProduce:
    """A Produce request that waits for replicas: the first offset and the required end offset of each partition."""

    reply: Callable[[Mapping[int, ProduceResult]], None]
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    results: dict[int, ProduceResult] = field(default_factory=dict)

    def finish(self, partition: int, code: int) -> None:
        first, _ = self.waiting.pop(partition)
        self.results[partition] = ProduceResult(code, -1 if code else first)
        self.reply_if_done()

    def reply_if_done(self) -> None:
        if not self.waiting:
            self.reply(self.results)


@dataclass(eq=False)
class Partition:
    number: int
    replicas: list[Replica]
    leader: int | None
    in_sync: set[int]
    leading: set[int]
    """The brokers that act as the leader. A former leader may be one of them."""
    announced_leader: int | None
    """The leader in responses to Metadata, which may be outdated."""
    pending: dict[int, list[PendingProduce]]
    """The requests that wait at each broker."""
    fetched: dict[int, int] = field(default_factory=dict)
    """The offset up to which each follower has fetched from the present leader."""
    stalled: dict[int, float] = field(default_factory=dict)
    """The followers that fetch nothing until a time."""
    committed: list[Batch] = field(default_factory=list)
    """The batches that were below the high watermark at any time. No leader loses them."""


class Cluster:
    """The brokers, the partitions and the coordinator of transactional ids."""

    def __init__(self, time: Time, settings: Settings) -> None:
        self.time = time
        self.settings = settings
        self.brokers = [Broker(number) for number in range(settings.brokers)]
        everywhere = set(range(settings.brokers))
        self.partitions: dict[int, Partition] = {}
        for number in settings.partitions:
            leader = time.random.randrange(settings.brokers)
            replicas = [Replica() for _ in everywhere]
            pending: dict[int, list[PendingProduce]] = {broker: [] for broker in everywhere}
            self.partitions[number] = Partition(number, replicas, leader, set(everywhere), {leader}, leader, pending)
        self.transactions = TransactionCoordinator(time.random.randrange(1_000))
        self.coordinator = 0
        self.loading_until = 0.0

    # --- requests -------------------------------------------------------------------------------------

    def produce(
        self,
        broker: int,
        batches: Mapping[int, bytes],
        timeout_s: float,
        reply: Callable[[Mapping[int, ProduceResult]], None],
    ) -> None:
        """Appends with acks=all. Replies after all in-sync replicas have the batches, or after the timeout."""
        request = PendingProduce(reply)
        appended = []
        for number, data in batches.items():
            partition = self.partitions[number]
            code, first, last = self._append(partition, broker, parse_batch(data))
            if code:
                request.results[number] = ProduceResult(code, -1)
            else:
                request.waiting[number] = (first, last + 1)
                partition.pending[broker].append(request)
                appended.append(partition)
        if not appended:
            reply(request.results)
        for partition in appended:
            self._advance(partition)
        self.time.after(timeout_s, lambda: self._time_out(request, broker))

    def _append(self, partition: Partition, broker: int, sent: SentBatch) -> tuple[int, int, int]:
        if broker not in partition.leading:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1
        if len(partition.in_sync) < self.settings.min_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS, -1, -1
        if sent.size > self.settings.max_message_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE, -1, -1
        replica = partition.replicas[broker]
        end = replica.end
        appended = replica.append(sent, self.time.now)
        if replica.end > end:
            self._replicate_later(partition)
        return appended

    def _time_out(self, request: PendingProduce, broker: int) -> None:
        for number in list(request.waiting):
            pending = self.partitions[number].pending[broker]
            if request in pending:  # a killed broker has forgotten it
                pending.remove(request)
                request.finish(number, ErrorCode.REQUEST_TIMED_OUT)

    def describe_producers(self, broker: int, partition: int) -> dict[int, int] | None:
        """Returns the epoch of each producer id; None if the broker does not lead the partition."""
        found = self.partitions[partition]
        return found.replicas[broker].epochs() if broker in found.leading else None

    def fetch(self, broker: int, partition: int, offset: int) -> tuple[int, bytes]:
        found = self.partitions[partition]
        if broker not in found.leading:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, b""
        data = found.replicas[broker].fetch(offset)
        return (ErrorCode.OFFSET_OUT_OF_RANGE, b"") if data is None else (ErrorCode.NONE, data)

    def coordinator_error(self, broker: int) -> int:
        if broker != self.coordinator:
            return ErrorCode.NOT_COORDINATOR
        loading = self.time.now < self.loading_until
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE

    def append(self, number: int, sent: SentBatch) -> None:
        """Appends a batch of another client to a partition, if it has a leader."""
        partition = self.partitions[number]
        if partition.leader is not None and partition.leader in partition.leading:
            self._append(partition, partition.leader, sent)
            self._advance(partition)

    # --- replication ----------------------------------------------------------------------------------

    def _replicate_later(self, partition: Partition) -> None:
        for broker in self.brokers:
            if broker.number != partition.leader:
                self._fetch_later(partition, broker.number, self.time.random.uniform(0.0005, 0.01))

    def _fetch_later(self, partition: Partition, follower: int, seconds: float) -> None:
        self.time.after(seconds, lambda: self._fetch(partition, follower))

    def _fetch(self, partition: Partition, follower: int) -> None:
        leader = partition.leader
        if leader is None or leader not in partition.leading or follower in partition.leading:
            return
        if not self.brokers[follower].up:
            return
        stalled_s = partition.stalled.get(follower, 0.0) - self.time.now
        if stalled_s > 0:
            self._fetch_later(partition, follower, stalled_s)
            return
        replica, source = partition.replicas[follower], partition.replicas[leader]
        replica.follow(source)
        if replica.end >= source.high_watermark:
            partition.in_sync.add(follower)
        partition.fetched[follower] = replica.end
        self._advance(partition)

    def _advance(self, partition: Partition) -> None:
        """Advances the high watermark of the leader, and answers the requests that waited for it."""
        leader = partition.leader
        if leader is None or leader not in partition.leading:
            return
        source = partition.replicas[leader]
        reached = min([source.end, *(partition.fetched.get(b, 0) for b in partition.in_sync if b != leader)])
        if reached > source.high_watermark:
            source.high_watermark = reached
            while len(partition.committed) < len(source.batches):
                batch = source.batches[len(partition.committed)]
                if batch.last >= reached:
                    break
                partition.committed.append(batch)
            self._replicate_later(partition)
        enough = len(partition.in_sync) >= self.settings.min_in_sync
        code = ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        for request in list(partition.pending[leader]):
            if request.waiting[partition.number][1] <= source.high_watermark:
                partition.pending[leader].remove(request)
                request.finish(partition.number, code)

    def stall(self, number: int, follower: int, seconds: float) -> None:
        """Makes a follower fetch nothing for a time. The leader may remove it from the in-sync replicas meanwhile."""
        partition = self.partitions[number]
        partition.stalled[follower] = self.time.now + seconds
        if seconds > 1:
            self.time.after(1, lambda: self._shrink(partition, follower))
        self._fetch_later(partition, follower, seconds)

    def _shrink(self, partition: Partition, follower: int) -> None:
        leader = partition.leader
        if leader is None or leader not in partition.leading or follower == leader:
            return
        behind = partition.replicas[follower].end < partition.replicas[leader].end
        if behind or not self.brokers[follower].up or follower in partition.leading:
            partition.in_sync.discard(follower)
            self._advance(partition)

    # --- leaders and brokers --------------------------------------------------------------------------

    def move_leader(self, number: int, unaware_s: float) -> None:
        """Another in-sync replica becomes the leader. The former leader notices it after ``unaware_s`` seconds."""
        partition = self.partitions[number]
        former = partition.leader
        if former is None or not self._elect(partition, [b for b in partition.in_sync if b != former]):
            return
        if unaware_s:
            self.time.after(unaware_s, lambda: self._step_down(partition, former))
            self.time.after(1, lambda: self._shrink(partition, former))
        else:
            self._step_down(partition, former)

    def _elect(self, partition: Partition, candidates: Iterable[int]) -> bool:
        able = sorted(broker for broker in candidates if self.brokers[broker].up)
        if not able:
            return False
        leader = partition.leader = self.time.random.choice(able)
        partition.leading.add(leader)
        partition.fetched = {}
        self._check_committed(partition)
        for broker in partition.in_sync - {leader}:
            if not self.brokers[broker].up:
                self.time.after(1, lambda broker=broker: self._shrink(partition, broker))  # type: ignore[misc]
        self._advance(partition)
        self._replicate_later(partition)
        delay = self.time.random.choice([0.0, 0.0, 0.3, 1.0])
        self.time.after(delay, lambda: self._announce(partition))
        return True

    def _check_committed(self, partition: Partition) -> None:
        assert partition.leader is not None
        own = partition.replicas[partition.leader].batches[: len(partition.committed)]
        assert len(own) == len(partition.committed)
        assert all(a is b for a, b in zip(own, partition.committed, strict=True)), "a leader loses a committed batch"

    def _announce(self, partition: Partition) -> None:
        partition.announced_leader = partition.leader

    def _step_down(self, partition: Partition, broker: int) -> None:
        """A former leader learns that another broker leads. Its pending requests fail after the append."""
        if partition.leader == broker:
            return
        partition.leading.discard(broker)
        waiting, partition.pending[broker] = partition.pending[broker], []
        for request in waiting:
            request.finish(partition.number, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._fetch_later(partition, broker, 0.01)

    def kill(self, number: int) -> None:
        broker = self.brokers[number]
        broker.up = False
        for partition in self.partitions.values():
            partition.leading.discard(number)
            partition.pending[number] = []
            if partition.leader == number:
                self.time.after(self.time.random.uniform(0.1, 2), lambda p=partition: self._replace(p))  # type: ignore[misc]
            else:
                self.time.after(1, lambda p=partition: self._shrink(p, number))  # type: ignore[misc]
        if self.coordinator == number:
            self.move_coordinator()

    def _replace(self, partition: Partition) -> None:
        if partition.leader in partition.leading:
            return
        partition.leader = partition.announced_leader = None
        self._elect(partition, partition.in_sync)

    def start(self, number: int) -> None:
        broker = self.brokers[number]
        broker.up = True
        broker.incarnation += 1
        for partition in self.partitions.values():
            partition.replicas[number].reload(only_newest=self.time.random.random() < 0.5)
            if partition.leader in (None, number):
                self._replace_by(partition, number)
            self._fetch_later(partition, number, 0.1)

    def _replace_by(self, partition: Partition, broker: int) -> None:
        if broker in partition.in_sync:
            self._elect(partition, [broker])

    def move_coordinator(self) -> None:
        """Makes another broker the coordinator of all transactional ids. It loads their states first."""
        able = [broker.number for broker in self.brokers if broker.up]
        if able:
            self.coordinator = self.time.random.choice(able)
            self.loading_until = self.time.now + self.time.random.uniform(0, 1)

    # --- cleaners -------------------------------------------------------------------------------------

    def compact(self, number: int) -> None:
        """Compacts some replicas of a partition, each up to its own offset."""
        for replica in self.partitions[number].replicas:
            if self.time.random.random() < 0.7:
                oldest = self.time.now - self.settings.tombstone_retention_s
                replica.compact(self.time.random.randint(0, replica.high_watermark), oldest)

    def expire(self) -> None:
        """Removes the expired producers on some brokers, and the expired transactional ids."""
        for partition in self.partitions.values():
            for replica in partition.replicas:
                if self.time.random.random() < 0.8:
                    replica.expire_producers(self.time.now, self.settings.producer_expiration_s)
        self.transactions.expire(self.time.now, self.settings.transactional_id_expiration_s)
