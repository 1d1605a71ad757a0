"""What groups have committed, read from ``__consumer_offsets`` itself: for brokers that cannot say it.

Brokers 0.8.2 list no groups and do not say of which partitions a group has offsets; brokers 0.9 and 0.10.0 list only
groups with members. Their offsets topic has it all. It is read once from its beginning, and after that from where the
last reading ended.
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
from offsetmgr.kafka.client.leader_routing import PartitionLeaders
from offsetmgr.kafka.client.log_ranges import partition_counts
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.requests import OFFSETS_TOPIC
from offsetmgr.segments.batch_reader import LOG_HEADER, LOG_OVERHEAD
from offsetmgr.segments.committed import SavedOffset, decode
from offsetmgr.segments.offsets import OffsetsFold

_SLICE_BYTES: Final = 1024 * 1024
_LARGEST_SLICE: Final = 64 * 1024 * 1024
_NO_TOPIC_S: Final = 10.0
"""Longest time, in seconds, for which the brokers are asked again how many partitions the topic has."""
_SHORTEST_S: Final = 1.0
"""The same, where the caller has less time left: one answer alone does not suffice."""
_BETWEEN_S: Final = 0.25
"""Pause, in seconds, between two such questions."""

Groups: TypeAlias = dict[str, Mapping[TopicPartition, SavedOffset | None]]
OnRead: TypeAlias = Callable[[int, int], object]
"""Takes how many records were read, and how many there are."""


class KafkaOffsetsTopic:
    """Use it within the client's event loop. Construction does no I/O.

    A call may take as long as the topic is large: its deadline is a limit for each answer of a broker, counted from the
    request.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.on_read: OnRead = lambda _read, _all: None
        """Called again and again during a reading."""
        self._leaders = PartitionLeaders(client)
        self._folds: dict[TopicPartition, OffsetsFold] = {}
        self._decoded: dict[TopicPartition, tuple[int, Groups]] = {}
        """Of each partition what was decoded last, and up to which offset of the log."""
        self._believed: int | None = None
        """The number of partitions of the topic that two answers gave; None as long as there is none."""
        self._reading = asyncio.Lock()

    async def groups(self, deadline: float) -> list[str]:
        """Ids of all groups that have offsets, except those whose offsets offsetmgr has deleted. Raises as `saved`."""
        return sorted(group for group, found in (await self.saved(deadline)).items() if _living(found))

    async def partitions(self, groups: Sequence[str], deadline: float) -> Mapping[str, Sequence[TopicPartition]]:
        """The partitions for which each of these groups has committed offsets. Raises as `saved`."""
        found = await self.saved(deadline, groups)
        return {group: list(found.get(group, ())) for group in groups}

    async def saved(self, deadline: float, groups: Sequence[str] | None = None) -> Groups:
        """The offsets of every group (or of those in the same partitions as ``groups``) with their times, as the log's
        end has them at this moment; None for an offset that cannot be decoded.

        Raises `OffsetMgrError` where a partition cannot be read, or has a key that cannot be decoded.
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
        """The number of partitions of the offsets topic; 0 where the cluster has other topics, but not this one.

        From its start until the controller has named them, a broker knows no topic at all, and after a failure of the
        controller it may know only some partitions. So no topic at all is an error, and a number that this object has
        not believed before is believed once two answers give it.
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
        """The number of partitions of the offsets topic in one answer of the brokers; None if it names no topic.

        Brokers before 0.11 create the offsets topic if they are asked about it by its name; so they are first asked
        about all topics.
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
                fold = self._folds.setdefault(tp, OffsetsFold())
                fold.take(_whole_entries(answer.data))
                if fold.end is not None and fold.end > left[tp]:
                    moved, left[tp] = True, fold.end
            if not moved:
                if size >= _LARGEST_SLICE:
                    stuck, at = next(iter(left.items()))
                    why = f"the broker gives no whole message at offset {at}, though the log ends at {ends[stuck]}"
                    raise ServerError(str(stuck), why, "look at the broker's log: is the file of that offset damaged?")
                size *= 4  # brokers before 0.10.1 cut off what is larger than the limit
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
    """A piece of a log without the last batch or message, if that was cut off."""
    at = 0
    while (start := at + LOG_OVERHEAD) <= len(data):
        end = start + LOG_HEADER.unpack_from(data, at)[1]
        if not start < end <= len(data):
            break
        at = end
    return data[:at]


def _places(group: str, partitions: int) -> set[int]:
    """The partitions of an offsets topic that may hold a group: Kafka's ``Utils.abs`` was another one once."""
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
