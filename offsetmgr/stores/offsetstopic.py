"""What groups have committed, read from ``__consumer_offsets`` itself: for brokers that cannot say it.

Brokers 0.8.2 list no groups and do not say of which partitions a group has offsets; brokers 0.9 and 0.10.0 list only
groups with members. Their offsets topic has it all. It is read once from its beginning, and after that from where the
last reading ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from offsetmgr.errors import CoordinatorNotAvailable, OffsetMgrError, UnknownTopicOrPartition
from offsetmgr.model import TopicPartition
from offsetmgr.segments.committed import SavedOffset, decode
from offsetmgr.segments.offsets import OffsetsFold
from offsetmgr.wire import fetching
from offsetmgr.wire.client import Client
from offsetmgr.wire.connection import Address
from offsetmgr.wire.fetching import EARLIEST, LATEST, Limits, Slice
from offsetmgr.wire.leaders import Leaders
from offsetmgr.wire.listing import OFFSETS_TOPIC
from offsetmgr.wire.logranges import partition_counts

_SLICE_BYTES: Final = 1024 * 1024
_LARGEST_SLICE: Final = 64 * 1024 * 1024


class KafkaOffsetsTopic:
    """Use it within the client's event loop. Construction does no I/O."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._leaders = Leaders(client)
        self._folds: dict[TopicPartition, OffsetsFold] = {}
        self._decoded: dict[TopicPartition, tuple[int, dict[str, Mapping[TopicPartition, SavedOffset]]]] = {}
        """Of each partition what was decoded last, and up to which offset of the log."""
        self._reading = asyncio.Lock()

    async def groups(self, deadline: float) -> list[str]:
        """Ids of all groups that have offsets. Raises `OffsetMgrError` where a partition cannot be read."""
        return sorted(await self.saved(deadline))

    async def partitions(self, groups: Sequence[str], deadline: float) -> Mapping[str, Sequence[TopicPartition]]:
        """The partitions for which each of these groups has committed offsets. Raises as `groups`."""
        found = await self.saved(deadline)
        return {group: list(found.get(group, ())) for group in groups}

    async def saved(self, deadline: float) -> dict[str, Mapping[TopicPartition, SavedOffset]]:
        """The offsets of every group with their times, as the log's end has them at this moment. Raises as `groups`."""
        async with self._reading:
            count = (await partition_counts(self._client, [OFFSETS_TOPIC], deadline)).get(OFFSETS_TOPIC, 0)
            partitions = [TopicPartition(OFFSETS_TOPIC, number) for number in range(count)]
            ends = await self._edges(partitions, LATEST, deadline)
            new = [tp for tp in partitions if tp not in self._folds]
            starts = await self._edges(new, EARLIEST, deadline)
            positions = {tp: starts[tp] if tp in starts else self._folds[tp].end or 0 for tp in partitions}
            await self._follow({tp: at for tp, at in positions.items() if at < ends[tp]}, ends, deadline)
            everything: dict[str, Mapping[TopicPartition, SavedOffset]] = {}
            for tp in partitions:
                everything |= self._groups_of(tp)
            return everything

    def _groups_of(self, tp: TopicPartition) -> dict[str, Mapping[TopicPartition, SavedOffset]]:
        fold = self._folds.get(tp)
        if fold is None:
            return {}
        end = fold.end or 0
        known = self._decoded.get(tp)
        if known is None or known[0] != end:
            known = self._decoded[tp] = (end, {saved.group: saved.offsets for saved in decode(fold.newest).groups})
        return known[1]

    async def _edges(self, partitions: list[TopicPartition], edge: int, deadline: float) -> dict[TopicPartition, int]:
        async def ask(
            leader: Address, of_it: list[TopicPartition], attempt: float
        ) -> dict[TopicPartition, int | OffsetMgrError]:
            connection = await self._client.node(leader).connection(attempt)
            return await fetching.edges(connection, dict.fromkeys(of_it, edge), _left(attempt))

        found = await self._leaders.per_partition(partitions, ask, deadline) if partitions else {}
        return {tp: _offset(at) for tp, at in found.items()}

    async def _follow(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], deadline: float
    ) -> None:
        """Reads these partitions from their positions up to their ends."""
        left, size = dict(positions), _SLICE_BYTES
        while left:
            moved = False
            for tp, answer in (await self._slices(left, Limits(max_bytes=size), deadline)).items():
                if isinstance(answer, OffsetMgrError):
                    raise answer
                fold = self._folds.setdefault(tp, OffsetsFold())
                fold.take(answer.data)
                if fold.end is not None and fold.end > left[tp]:
                    moved, left[tp] = True, fold.end
            if not moved:
                if size >= _LARGEST_SLICE:
                    stuck, at = next(iter(left.items()))
                    raise CoordinatorNotAvailable(str(stuck), f"nothing can be read at offset {at}")
                size *= 4  # brokers before 0.10.1 cut off what is larger than the limit
            left = {tp: at for tp, at in left.items() if at < ends[tp]}

    async def _slices(
        self, positions: Mapping[TopicPartition, int], limits: Limits, deadline: float
    ) -> dict[TopicPartition, Slice | OffsetMgrError]:
        async def ask(
            leader: Address, of_it: list[TopicPartition], attempt: float
        ) -> dict[TopicPartition, Slice | OffsetMgrError]:
            connection = await self._client.node(leader).connection(attempt)
            return await fetching.fetch(connection, {tp: positions[tp] for tp in of_it}, limits, _left(attempt))

        return await self._leaders.per_partition(positions, ask, deadline)


def _offset(found: int | OffsetMgrError) -> int:
    if isinstance(found, UnknownTopicOrPartition):
        return 0
    if isinstance(found, OffsetMgrError):
        raise found
    return found


def _left(deadline: float) -> float:
    return max(deadline - asyncio.get_running_loop().time(), 0.001)
