"""`LeaderConnections`: the requests of one shard group's writer to the brokers.

A batch of a partition goes only over a connection on which the leader has shown its producers and none of them was
newer than the writer (`LeaderConnection.checked`). A connection that was closed is never replaced silently: the new one
must be checked first. Otherwise a manager that was frozen for days could append over a new connection after the brokers
have dropped the state of its successor.

A broker handles the requests of a connection one at a time, so each shard group has its own connections. A slow
partition delays only the partitions of its shard group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client, find_leaders
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.client.fetch import FetchLimits, ProduceResult, fetch_log, produce
from offsetmgr.kafka.client.producers import ProducerEpoch, describe_producers, init_producer_ids
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.manager.log.base import LogClosed

_CLAIM_BYTES: Final = 64 * 1024
"""The largest size of the batch of a claim."""


class LeaderConnection:
    """An open connection to one broker. The methods raise the errors of `BrokerConnection.call`."""

    def __init__(self, topic: str, connection: BrokerConnection) -> None:
        self.checked: set[int] = set()
        """The partitions whose producers the writer has checked on this connection."""
        self._topic = topic
        self.connection = connection

    async def describe_producers(
        self, partitions: Sequence[int], deadline: float
    ) -> Mapping[int, dict[int, int] | OffsetMgrError]:
        """See `offsetmgr.kafka.client.producers.describe_producers`."""
        return await describe_producers(self.connection, self._topic, partitions, remaining(deadline))

    async def produce(self, batches: Mapping[int, bytes], deadline: float) -> Mapping[int, ProduceResult]:
        """See `offsetmgr.kafka.client.fetch.produce`."""
        return await produce(self.connection, self._topic, batches, remaining(deadline))

    async def read(self, offsets: Mapping[int, int], deadline: float) -> Mapping[int, bytes | OffsetMgrError]:
        """Reads the batch at an offset of each partition. The bytes are empty if no replicated batch is there."""
        positions = {TopicPartition(self._topic, number): offset for number, offset in offsets.items()}
        limits = FetchLimits(max_bytes=_CLAIM_BYTES)
        answers = await fetch_log(self.connection, positions, remaining(deadline), limits)
        return {
            tp.partition: found if isinstance(found, OffsetMgrError) else found.data for tp, found in answers.items()
        }


class LeaderConnections:
    """Finds the leaders of the partitions of ``topic`` and connects to them. Use it on the loop of ``client``."""

    def __init__(self, client: Client, topic: str, transactional_id_prefix: str) -> None:
        self._client = client
        self._topic = topic
        self._transactional_id_prefix = transactional_id_prefix
        self._leaders: dict[int, Address] = {}
        self._connections: dict[Address, LeaderConnection] = {}
        self._closed = False

    def check_open(self) -> None:
        """Raises `LogClosed` after `close`."""
        if self._closed:
            raise LogClosed(f"writer of {self._topic}", "it was closed")

    async def new_epochs(
        self, current: Mapping[int, ProducerEpoch | None], deadline: float
    ) -> Mapping[int, ProducerEpoch | OffsetMgrError]:
        """Requests a new epoch for the transactional id of each partition. See
        `offsetmgr.kafka.client.producers.init_producer_ids`."""
        names = {f"{self._transactional_id_prefix}{number}": number for number in current}
        by_name = {name: current[number] for name, number in names.items()}
        found = await init_producer_ids(self._client, by_name, deadline)
        return {names[name]: outcome for name, outcome in found.items()}

    async def by_leader(
        self, partitions: Iterable[int], deadline: float
    ) -> tuple[dict[Address, list[int]], dict[int, OffsetMgrError]]:
        """Returns the partitions of each leader, and the errors of partitions without a known leader. Raises the errors
        of `Client.ask_any`."""
        wanted = list(partitions)
        unknown = [TopicPartition(self._topic, number) for number in wanted if number not in self._leaders]
        errors: dict[int, OffsetMgrError] = {}
        if unknown:
            for tp, found in (await find_leaders(self._client, unknown, deadline)).items():
                if isinstance(found, OffsetMgrError):
                    errors[tp.partition] = found
                else:
                    self._leaders[tp.partition] = found
        return by_key((self._leaders[number], number) for number in wanted if number not in errors), errors

    async def connection(self, leader: Address, deadline: float) -> LeaderConnection:
        """Returns the connection to a broker. If there is none, or if it was closed, opens one, on which no partition
        is checked. Raises the errors of `BrokerConnection.open`."""
        found = self._connections.get(leader)
        if found is None or found.connection.closed:
            found = LeaderConnection(self._topic, await self._client.node(leader).open(deadline))
            if self._closed:
                found.connection.abort()
            self.check_open()
            self._connections[leader] = found
        return found

    def forget_leader(self, partition: int) -> None:
        """Makes the next call of `by_leader` look up the leader again."""
        self._leaders.pop(partition, None)

    def close(self) -> None:
        """Closes the connections at once. No other connection is opened."""
        self._closed = True
        for one in self._connections.values():
            one.connection.abort()
        self._connections.clear()
