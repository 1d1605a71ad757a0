"""Reads committed offsets from ``__consumer_offsets`` itself, for brokers without a request for them.

Brokers of 0.8.2 list no groups and no partitions of a group; brokers of 0.9 and 0.10.0 list only groups with members.
Their offsets topic has everything. The first read starts at its beginning, later ones where the last read ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from offsetmgr.core.errors import OffsetMgrError, ServerError
from offsetmgr.core.java_hash import java_hash
from offsetmgr.core.model import TopicPartition, is_deleted
from offsetmgr.kafka.client import fetch
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.fetch import EARLIEST, LATEST, FetchedPartition, FetchLimits
from offsetmgr.kafka.client.leader_router import PartitionLeaders
from offsetmgr.kafka.client.log_ranges import partition_counts
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.requests import OFFSETS_TOPIC
from offsetmgr.segments.batch_reader import LOG_HEADER, LOG_OVERHEAD
from offsetmgr.segments.committed_offsets import SavedOffset, decode
from offsetmgr.segments.offsets import OffsetsReplay

_SLICE_BYTES: Final = 1024 * 1024
_LARGEST_SLICE: Final = 64 * 1024 * 1024
_NO_TOPIC_S: Final = 10.0
"""The maximum number of seconds for which the brokers are asked for the topic's number of partitions."""
_SHORTEST_S: Final = 1.0
"""The minimum, if the caller has less time left: one response is not enough."""
_BETWEEN_S: Final = 0.25
"""Seconds between two such requests."""

Groups: TypeAlias = dict[str, Mapping[TopicPartition, SavedOffset | None]]
OnRead: TypeAlias = Callable[[int, int], object]
"""Receives the number of records read and the total."""


class KafkaOffsetsTopic:
    """Use it within the client's event loop. The constructor performs no I/O.

    A call takes longer for a large topic: its deadline limits each response of a broker, counted from the request.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.on_read: OnRead = lambda _read, _all: None
        """Called repeatedly during a read."""
        self._leaders = PartitionLeaders(client)
        self._folds: dict[TopicPartition, OffsetsReplay] = {}
        self._decoded: dict[TopicPartition, tuple[int, Groups]] = {}
        """The decoded groups of each partition, and the offset of the log up to which they were decoded."""
        self._believed: int | None = None
        """The number of partitions that two responses agreed on; None as long as there is none."""
        self._reading = asyncio.Lock()

    async def groups(self, deadline: float) -> list[str]:
        """Returns the ids of all groups with offsets, except those whose offsets offsetmgr has deleted. Raises the
        errors of `saved`."""
        return sorted(group for group, found in (await self.saved(deadline)).items() if _living(found))

    async def partitions(self, groups: Sequence[str], deadline: float) -> Mapping[str, Sequence[TopicPartition]]:
        """Returns the partitions for which each of these groups has committed offsets. Raises the errors of `saved`."""
        found = await self.saved(deadline, groups)
        return {group: list(found.get(group, ())) for group in groups}

    async def saved(self, deadline: float, groups: Sequence[str] | None = None) -> Groups:
        """Returns the offsets of every group (or of those in the same partitions as ``groups``) with their times, up to
        the current end of the log; None for an offset that cannot be decoded.

        Raises `OffsetMgrError` if a partition cannot be read, or has a key that cannot be decoded.
        """
        limit = max(deadline - asyncio.get_running_loop().time(), 0.001)
        async with self._reading:
            count = await self._count(limit)
            numbers = range(count) if groups is None else sorted({n for g in groups for n in _places(g, count)})
            partitions = [TopicPartition(OFFSETS_TOPIC, number) for number in numbers]
            ends = await self._edges(partitions, LATEST, limit)
            new = [tp for tp in partitions if tp not in self._folds]
            starts = await self._edges(new, EARLIEST, limit)
            positions = {tp: starts[tp] if tp in starts else self._folds[tp].end or 0 for tp in partitions}
            await self._follow({tp: at for tp, at in positions.items() if at < ends[tp]}, ends, limit)
            everything: Groups = {}
            for tp in partitions:
                everything |= self._groups_of(tp)
            return everything

    async def _count(self, limit: float) -> int:
        """Returns the number of partitions of the offsets topic; 0 if the cluster has other topics, but not this one.

        After its start a broker knows no topic until the controller sends them, and after a failure of the controller
        it may know only some partitions. So no topic at all is an error, and a new number counts once two responses
        agree on it.
        """
        until = _from_now(min(max(limit, _SHORTEST_S), _NO_TOPIC_S))
        before = self._believed
        while True:
            count = await self._named(_from_now(limit))
            if count is not None and count == before:
                self._believed = count or None
                return count
            before = count
            if _from_now(_BETWEEN_S) >= until:
                break
            await asyncio.sleep(_BETWEEN_S)
        why = "the brokers name no topic at all, or do not agree on the number of this topic's partitions"
        hint = "try again: it happens when brokers have just started; without any topic there is nothing to read either"
        raise ServerError(OFFSETS_TOPIC, why, hint)

    async def _named(self, deadline: float) -> int | None:
        """Returns the number of partitions of the offsets topic in one response of the brokers; None if it contains no
        topic.

        Brokers before 0.11 create the offsets topic if a request names it, so the first request is for all topics.
        """
        names = [OFFSETS_TOPIC] if self._believed else None
        counts = await partition_counts(self._client, names, deadline)
        return counts.get(OFFSETS_TOPIC, 0) if counts else None

    def _groups_of(self, tp: TopicPartition) -> Groups:
        fold = self._folds.get(tp)
        if fold is None:
            return {}
        end = fold.end or 0
        known = self._decoded.get(tp)
        if known is None or known[0] != end:
            decoded = decode(fold.newest)
            if decoded.errors:
                raise decoded.errors[0]
            groups: Groups = {one.group: {**one.offsets, **dict.fromkeys(one.errors)} for one in decoded.groups}
            known = self._decoded[tp] = (end, groups)
        return known[1]

    async def _edges(self, partitions: list[TopicPartition], edge: int, limit: float) -> dict[TopicPartition, int]:
        async def ask(
            leader: Address, of_it: list[TopicPartition], attempt: float
        ) -> dict[TopicPartition, int | OffsetMgrError]:
            connection = await self._client.node(leader).connection(attempt)
            return await fetch.begin_and_end_offsets(connection, dict.fromkeys(of_it, edge), _left(attempt))

        found = await self._leaders.per_partition(partitions, ask, _from_now(limit)) if partitions else {}
        return {tp: _offset(at) for tp, at in found.items()}

    async def _follow(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: float
    ) -> None:
        """Reads these partitions from their positions up to their ends."""
        left, size = dict(positions), _SLICE_BYTES
        total = sum(ends[tp] - at for tp, at in left.items())
        while left:
            moved = False
            for tp, answer in (await self._slices(left, FetchLimits(max_bytes=size), _from_now(limit))).items():
                if isinstance(answer, OffsetMgrError):
                    raise answer
                fold = self._folds.setdefault(tp, OffsetsReplay())
                fold.replay(_whole_entries(answer.data))
                if fold.end is not None and fold.end > left[tp]:
                    moved, left[tp] = True, fold.end
            if not moved:
                if size >= _LARGEST_SLICE:
                    stuck, at = next(iter(left.items()))
                    why = f"the broker gives no whole message at offset {at}, though the log ends at {ends[stuck]}"
                    raise ServerError(str(stuck), why, "look at the broker's log: is the file of that offset damaged?")
                size *= 4  # brokers before 0.10.1 truncate a response at the limit
            self.on_read(total - sum(max(ends[tp] - at, 0) for tp, at in left.items()), total)
            left = {tp: at for tp, at in left.items() if at < ends[tp]}

    async def _slices(
        self, positions: Mapping[TopicPartition, int], limits: FetchLimits, deadline: float
    ) -> dict[TopicPartition, FetchedPartition | OffsetMgrError]:
        async def ask(
            leader: Address, of_it: list[TopicPartition], attempt: float
        ) -> dict[TopicPartition, FetchedPartition | OffsetMgrError]:
            connection = await self._client.node(leader).connection(attempt)
            return await fetch.fetch(connection, {tp: positions[tp] for tp in of_it}, limits, _left(attempt))

        return await self._leaders.per_partition(positions, ask, deadline)


def _whole_entries(data: bytes) -> bytes:
    """Returns a piece of a log without a truncated last batch or message."""
    at = 0
    while (start := at + LOG_OVERHEAD) <= len(data):
        end = start + LOG_HEADER.unpack_from(data, at)[1]
        if not start < end <= len(data):
            break
        at = end
    return data[:at]


def _places(group: str, partitions: int) -> set[int]:
    """Returns the partitions of an offsets topic that may hold a group: an older ``Utils.abs`` of Kafka gave another
    one."""
    found = java_hash(group)
    return {abs(found) % partitions, (found & 0x7FFFFFFF) % partitions} if partitions else set()


def _living(found: Mapping[TopicPartition, SavedOffset | None]) -> bool:
    return any(one is None or not is_deleted(one.offset, one.metadata) for one in found.values())


def _from_now(limit: float) -> float:
    return asyncio.get_running_loop().time() + limit


def _offset(found: int | OffsetMgrError) -> int:
    if isinstance(found, OffsetMgrError):
        raise found
    return found


def _left(deadline: float) -> float:
    return max(deadline - asyncio.get_running_loop().time(), 0.001)
