"""Reads committed offsets from the topic ``__consumer_offsets`` itself, for brokers that cannot list all groups and
their partitions.

Brokers of release 0.8.2 list neither groups nor the partitions of a group; brokers of 0.9 and 0.10.0 list only groups
with members. The offsets topic contains all groups and partitions. The first read starts at the beginning of the topic;
each later read continues where the previous read ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from offsetmgr.core.errors import ServerError, TimedOut, value_of
from offsetmgr.core.java_hash import java_hash, partition_of_hash
from offsetmgr.core.model import TopicPartition, is_deleted
from offsetmgr.core.retry import Backoff, Retries
from offsetmgr.kafka.client.client import Client, PartitionLeaders
from offsetmgr.kafka.client.fetch import EARLIEST, LATEST, FetchLimits, fetch_log, list_offsets, partition_counts
from offsetmgr.kafka.protocol.requests import OFFSETS_TOPIC
from offsetmgr.segments.committed_offsets import SavedOffset, decode
from offsetmgr.segments.offsets import OffsetsReplay

_FETCH_BYTES: Final = 1024 * 1024
_MAX_FETCH_BYTES: Final = 64 * 1024 * 1024
_MAX_METADATA_WAIT_S: Final = 10.0
"""Maximum time in seconds for finding out the topic's number of partitions."""
_MIN_METADATA_WAIT_S: Final = 1.0
"""Minimum time in seconds for finding out the topic's number of partitions, even if the caller's deadline is earlier.
The reader needs at least two responses."""
_METADATA_BACKOFF: Final = Backoff.fixed(0.25)
"""Seconds between two requests for the number of partitions."""

SavedGroups: TypeAlias = dict[str, Mapping[TopicPartition, SavedOffset | None]]
OnRecordsRead: TypeAlias = Callable[[int, int], object]
"""A progress callback. It receives the number of records read and the total."""


class KafkaOffsetsTopic:
    """A reader of the offsets topic, for use in the client's event loop. The constructor performs no I/O.

    The deadline of a call limits each single request, not the whole call, because a large topic takes longer to read.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.on_read: OnRecordsRead = lambda _read, _all: None
        """Called repeatedly during a read, for progress."""
        self._leaders = PartitionLeaders(client)
        self._replays: dict[TopicPartition, OffsetsReplay] = {}
        self._decoded: dict[TopicPartition, tuple[int, SavedGroups]] = {}
        """For each partition, the decoded groups and the log offset up to which the partition was decoded."""
        self._confirmed_count: int | None = None
        """The topic's number of partitions, after two successive responses have contained the same number; None before
        that, and while the topic does not exist."""
        self._exists = False
        """Whether the caller knows that the topic exists, so that a request may name it."""
        self._reading = asyncio.Lock()

    async def groups(self, deadline: float) -> list[str]:
        """Returns the ids of all groups with offsets, except the groups whose offsets offsetmgr has deleted. Raises the
        errors of `read`."""
        found = await self.read(deadline)
        return sorted(group for group, saved in found.items() if any(map(_is_offset, saved.values())))

    async def partitions(self, groups: Sequence[str], deadline: float) -> Mapping[str, Sequence[TopicPartition]]:
        """Returns the partitions for which each of these groups has committed offsets. Raises the errors of `read`."""
        found = await self.read(deadline, groups)
        return {group: list(found.get(group, ())) for group in groups}

    async def partitions_in_log(
        self, groups: Sequence[str], deadline: float
    ) -> dict[str, Mapping[TopicPartition, bool]]:
        """Returns each partition for which the log has an offset of these groups, and whether the offset is pending in
        an open transaction. Raises the errors of `read`."""
        self._exists = True
        await self.read(deadline, groups)
        found: dict[str, Mapping[TopicPartition, bool]] = {}
        for group in groups:
            tp = TopicPartition(OFFSETS_TOPIC, partition_of_hash(java_hash(group), self._confirmed_count or 1))
            saved = self._groups_of(tp).get(group, {})
            replay = self._replays.get(tp)
            opened = [one for records in replay.pending.values() for one in decode(records).groups] if replay else []
            pending = {at: True for one in opened if one.name == group for at in (*one.offsets, *one.errors)}
            found[group] = pending | {at: False for at, one in saved.items() if _is_offset(one)}
        return found

    async def read(
        self, deadline: float, groups: Sequence[str] | None = None, limit_s: float | None = None
    ) -> SavedGroups:
        """Reads the topic up to its current end and returns each group's offsets with their commit times; the value
        None means that the offset cannot be decoded. If ``groups`` is given, reads only those partitions of the offsets
        topic that may contain these groups; the result then contains all groups in these partitions. ``limit_s`` limits
        the whole read; the next call continues where it ended.

        Raises `OffsetMgrError` if a partition cannot be read, or has a key that cannot be decoded or that may belong to
        an offset of a later release, and `TimedOut`.
        """
        timeout_s = max(deadline - asyncio.get_running_loop().time(), 0.001)
        async with self._reading:
            count = await self._partition_count(timeout_s)
            numbers = (
                range(count) if groups is None else sorted({n for g in groups for n in _possible_partitions(g, count)})
            )
            partitions = [TopicPartition(OFFSETS_TOPIC, number) for number in numbers]
            ends = await self._list_offsets(partitions, LATEST, timeout_s)
            new = [tp for tp in partitions if tp not in self._replays]
            starts = await self._list_offsets(new, EARLIEST, timeout_s)
            positions = {tp: starts[tp] if tp in starts else self._replays[tp].end or 0 for tp in partitions}
            until, size = None if limit_s is None else _from_now(limit_s), _FETCH_BYTES
            left = {tp: at for tp, at in positions.items() if at < ends[tp]}
            total = sum(ends[tp] - at for tp, at in left.items())
            while left:
                moved = False
                ask = partial(fetch_log, limits=FetchLimits(max_bytes=size))
                for tp, answer in (await self._leaders.per_partition(left, ask, _from_now(timeout_s))).items():
                    data = value_of(answer).data
                    replay = self._replays.setdefault(tp, OffsetsReplay())
                    replay.replay(data)
                    if replay.end is not None and replay.end > left[tp]:
                        moved, left[tp] = True, replay.end
                if not moved:
                    if size >= _MAX_FETCH_BYTES:
                        stuck, at = next(iter(left.items()))
                        why = f"the broker returns no complete message at offset {at}, although the log ends at"
                        hint = "check whether the broker's log segment with this offset is damaged"
                        raise ServerError(str(stuck), f"{why} {ends[stuck]}", hint)
                    size *= 4  # brokers before 0.10.1 truncate a message that is larger than the limit
                self.on_read(total - sum(max(ends[tp] - at, 0) for tp, at in left.items()), total)
                left = {tp: at for tp, at in left.items() if at < ends[tp]}
                if left and until is not None and asyncio.get_running_loop().time() > until:
                    raise TimedOut(OFFSETS_TOPIC, "a view does not read it for longer, and has not reached its end")
            everything: SavedGroups = {}
            for tp in partitions:
                everything |= self._groups_of(tp)
            return everything

    async def _partition_count(self, timeout_s: float) -> int:
        """Returns the number of partitions of the offsets topic; 0 if the cluster has other topics, but not the offsets
        topic.

        A broker that has just started knows no topic until the controller sends the metadata. If the controller fails
        meanwhile, the broker may know only some partitions. So a response without any topic does not count, and a new
        number is accepted only after two successive responses agree on it. Brokers before 0.11 create the offsets topic
        if a request names it, so the requests ask for all topics until two responses have confirmed that it exists.
        """
        until = _from_now(min(max(timeout_s, _MIN_METADATA_WAIT_S), _MAX_METADATA_WAIT_S))
        retries = Retries(until, _METADATA_BACKOFF)
        before = self._confirmed_count
        while True:
            names = [OFFSETS_TOPIC] if self._confirmed_count or self._exists else None
            counts = await partition_counts(self._client, names, _from_now(timeout_s))
            count = counts.get(OFFSETS_TOPIC, 0) if counts else None
            if count is not None and count == before:
                self._confirmed_count = count or None
                return count
            before = count
            if not await retries.pause():
                break
        why = "the brokers list no topic at all, or do not agree on the number of this topic's partitions"
        if self._exists and not before:
            why = "the brokers do not list the topic to this login"
        hint = "try again if the brokers have just started; a cluster without any topic has no offsets to read"
        raise ServerError(OFFSETS_TOPIC, why, hint)

    def _groups_of(self, tp: TopicPartition) -> SavedGroups:
        replay = self._replays.get(tp)
        if replay is None:
            return {}
        end = replay.end or 0
        cached = self._decoded.get(tp)
        if cached is None or cached[0] != end:
            decoded = decode(replay.newest)
            if errors := decoded.errors or decoded.unknown():
                raise errors[0]
            groups: SavedGroups = {one.name: {**one.offsets, **dict.fromkeys(one.errors)} for one in decoded.groups}
            cached = self._decoded[tp] = (end, groups)
        return cached[1]

    async def _list_offsets(
        self, partitions: list[TopicPartition], timestamp: int, timeout_s: float
    ) -> dict[TopicPartition, int]:
        found = await list_offsets(self._leaders, dict.fromkeys(partitions, timestamp), _from_now(timeout_s))
        return {tp: value_of(at) for tp, at in found.items()}


def _possible_partitions(group: str, partitions: int) -> set[int]:
    """Returns the partitions of the offsets topic that may contain a group. For some hashes there are two candidates,
    because ``Utils.abs`` of older Kafka releases returned another value."""
    found = java_hash(group)
    return {abs(found) % partitions, (found & 0x7FFFFFFF) % partitions} if partitions else set()


def _is_offset(found: SavedOffset | None) -> bool:
    return found is None or not is_deleted(found.offset, found.metadata)


def _from_now(timeout_s: float) -> float:
    return asyncio.get_running_loop().time() + timeout_s
