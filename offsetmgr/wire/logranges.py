"""Which topics exist, and from where to where their logs reach, over connections that are there already.

`KafkaCluster` tells the same through librdkafka, whose client takes longer to load and to connect than all questions
of a migration's apply to its target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kio.schema.metadata.v8.response import MetadataResponse

from offsetmgr.errors import OffsetMgrError
from offsetmgr.model import LogRange, TopicPartition
from offsetmgr.wire import fetching, requests
from offsetmgr.wire.client import Client, remaining
from offsetmgr.wire.connection import Address
from offsetmgr.wire.fetching import EARLIEST, LATEST
from offsetmgr.wire.leaders import Leaders


async def partition_counts(client: Client, topics: Collection[str], deadline: float) -> dict[str, int]:
    """Partitions of those of these topics that exist. Raises as `Client.any_connection`."""
    if not topics:
        return {}
    connection = await client.any_connection(deadline)
    answer = await connection.call(requests.metadata(sorted(topics)), MetadataResponse, remaining(deadline))
    return {str(topic.name): len(topic.partitions) for topic in answer.topics if not int(topic.error_code)}


async def log_ranges(
    client: Client, partitions: Iterable[TopicPartition], deadline: float
) -> dict[TopicPartition, LogRange | OffsetMgrError]:
    """One outcome a partition, asked of its leader, twice: where the log begins, and then where it ends. Raises only if
    no broker was ever reached."""
    leaders = Leaders(client)
    asked = list(dict.fromkeys(partitions))
    starts = await _edge(client, leaders, asked, EARLIEST, deadline)
    ends = await _edge(client, leaders, [tp for tp in asked if isinstance(starts[tp], int)], LATEST, deadline)
    found: dict[TopicPartition, LogRange | OffsetMgrError] = {}
    for tp in asked:
        start, end = starts[tp], ends.get(tp)
        if isinstance(start, OffsetMgrError):
            found[tp] = start
        elif isinstance(end, OffsetMgrError):
            found[tp] = end
        else:
            assert end is not None  # asked for, since it has a start
            found[tp] = LogRange(start, end)
    return found


async def _edge(
    client: Client, leaders: Leaders, partitions: list[TopicPartition], edge: int, deadline: float
) -> dict[TopicPartition, int | OffsetMgrError]:
    async def ask(
        leader: Address, of_it: list[TopicPartition], attempt: float
    ) -> dict[TopicPartition, int | OffsetMgrError]:
        connection = await client.node(leader).connection(attempt)
        return await fetching.edges(connection, dict.fromkeys(of_it, edge), remaining(attempt))

    return await leaders.per_partition(partitions, ask, deadline) if partitions else {}
