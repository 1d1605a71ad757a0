"""`LeaderConnections`: the connections of one shard group's writer to the leaders of its partitions.

A batch of a partition goes only over a connection on which the leader has shown its producers and none of them was
newer than the writer. A connection that was closed is never replaced silently: the new one must be checked first.
Otherwise a manager that was frozen for days could append over a new connection after the brokers have dropped the state
of its successor.

A broker handles the requests of a connection one at a time, so each shard group has its own connections. A slow
partition delays only the partitions of its shard group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.leader_router import find_leaders
from offsetmgr.kafka.protocol.channel import Address


class LeaderConnection:
    """An open connection to one broker, and the partitions whose producers were checked on it."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection: Final = connection
        self.checked: set[int] = set()


class LeaderConnections:
    """Finds the leaders of the partitions of ``topic`` and connects to them. Use it on the loop of ``client``."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._leaders: dict[int, Address] = {}
        self._connections: dict[Address, LeaderConnection] = {}

    async def by_leader(
        self, partitions: Iterable[int], deadline: float
    ) -> tuple[dict[Address, list[int]], dict[int, OffsetMgrError]]:
        """Returns the partitions of each leader, and the errors of partitions without a known leader. Raises the errors
        of `Client.any_connection`."""
        wanted = list(partitions)
        unknown = [TopicPartition(self._topic, number) for number in wanted if number not in self._leaders]
        errors: dict[int, OffsetMgrError] = {}
        if unknown:
            for tp, found in (await find_leaders(self._client, unknown, deadline)).items():
                if isinstance(found, OffsetMgrError):
                    errors[tp.partition] = found
                else:
                    self._leaders[tp.partition] = found
        leaders: dict[Address, list[int]] = {}
        for number in wanted:
            if number not in errors:
                leaders.setdefault(self._leaders[number], []).append(number)
        return leaders, errors

    async def connection(self, leader: Address, deadline: float) -> LeaderConnection:
        """Returns the connection to a broker. If there is none, or if it was closed, opens one, on which no partition
        is checked. Raises the errors of `BrokerConnection.open`."""
        found = self._connections.get(leader)
        if found is None or found.connection.closed:
            found = LeaderConnection(await self._client.node(leader).open(deadline))
            self._connections[leader] = found
        return found

    def forget_leader(self, partition: int) -> None:
        """Makes the next call of `by_leader` look up the leader again."""
        self._leaders.pop(partition, None)

    def close(self) -> None:
        """Closes the connections at once."""
        for one in self._connections.values():
            one.connection.abort()
        self._connections.clear()
