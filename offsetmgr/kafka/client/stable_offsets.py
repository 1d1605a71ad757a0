"""`StableOffsets`: requests the start and the last stable offset of partitions, and retries until the response is
complete and plausible. `topic_id` requests the id of a topic in the same way.

A manager needs these responses while brokers fail. Therefore the first attempt is short, and each further attempt has
twice the time. After a failed attempt the next one looks up the leaders again, at another broker, because a broker that
has missed a change of the leader returns an outdated leader. There are three exceptions. An error that a retry cannot
fix (`_NOT_RETRIED`) is raised at once. An unknown partition is retried for `UNKNOWN_TOPIC_TIMEOUT_S` seconds, because
the broker that leads a new partition may not know it yet. The first retries after an outdated end offset ask the same
leader, because the broker may still be writing the transaction markers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from offsetmgr.core.errors import (
    AuthenticationFailed,
    ConfigError,
    NotAuthorized,
    OffsetMgrError,
    TimedOut,
    UnknownTopicOrPartition,
)
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.retry import Backoff, Retries, UnusableAddress
from offsetmgr.kafka.client.client import UNKNOWN_TOPIC_TIMEOUT_S, Client, PartitionLeaders
from offsetmgr.kafka.client.fetch import EARLIEST, LATEST
from offsetmgr.kafka.client.log_ranges import list_offsets
from offsetmgr.kafka.client.topics import describe_topic

_FIRST_ATTEMPT_S: Final = 0.5
_MIN_ATTEMPT_S: Final = 0.05
_BACKOFF: Final = Backoff(0.002, 0.25)
_MARKER_WRITE_S: Final = 0.1
_NOT_RETRIED: Final = (AuthenticationFailed, NotAuthorized, ConfigError, UnusableAddress)


class StableOffsets:
    """Requests for the offsets of logs. Any number of tasks on the loop of ``client`` may use it. It caches the leaders
    of the partitions."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._leaders = PartitionLeaders(client)

    async def starts(self, partitions: Iterable[TopicPartition], deadline: float) -> dict[TopicPartition, int]:
        """Returns the first offset of each log. Raises `OffsetMgrError` if one is missing at the deadline."""
        return await self._request_until_complete(dict.fromkeys(partitions, EARLIEST), deadline, lambda _: 0)

    async def ends(
        self,
        partitions: Iterable[TopicPartition],
        deadline: float,
        lower_bound: Callable[[TopicPartition], int] = lambda _: 0,
    ) -> dict[TopicPartition, int]:
        """Returns the last stable offset of each log. An offset below the ``lower_bound`` of its partition is outdated,
        so the offset is requested again. Raises `OffsetMgrError` if one is missing at the deadline."""
        return await self._request_until_complete(dict.fromkeys(partitions, LATEST), deadline, lower_bound)

    async def _request_until_complete(
        self, times: Mapping[TopicPartition, int], deadline: float, lower_bound: Callable[[TopicPartition], int]
    ) -> dict[TopicPartition, int]:
        attempts = _Attempts(self._client, deadline)
        offsets: dict[TopicPartition, int] = {}
        while missing := {tp: time for tp, time in times.items() if tp not in offsets}:
            failure: OffsetMgrError | None = None
            outdated: list[TopicPartition] = []
            try:
                until = attempts.next_deadline()
                found = await list_offsets(self._client, self._leaders, missing, until, read_committed=True)
            except OffsetMgrError as error:
                found, failure = {}, error
            for tp, outcome in found.items():
                if isinstance(outcome, OffsetMgrError):
                    failure = outcome
                elif outcome < lower_bound(tp):
                    outdated.append(tp)
                else:
                    offsets[tp] = outcome
            if outdated and failure is None:
                failure = TimedOut(f"log of {outdated[0]}", "no broker returns its current offset yet")
            if failure is not None and await attempts.pause_or_raise(failure, outdated=bool(outdated)):
                self._leaders = PartitionLeaders(self._client)
        return offsets


async def topic_id(client: Client, topic: str, deadline: float) -> str:
    """Returns the current id of the topic; empty if the brokers do not support topic ids. Raises `OffsetMgrError`."""
    attempts = _Attempts(client, deadline)
    while True:
        try:
            found = await describe_topic(client, topic, attempts.next_deadline())
            if found is not None:
                return found.topic_id
            failure: OffsetMgrError = UnknownTopicOrPartition(f"topic {topic}", "the cluster has no such topic")
        except OffsetMgrError as error:
            failure = error
        await attempts.pause_or_raise(failure)


class _Attempts:
    """The attempts of one request: their deadlines, the pauses between them, and the decision to make another one."""

    def __init__(self, client: Client, deadline: float) -> None:
        self._client = client
        self._deadline = deadline
        self._now = asyncio.get_running_loop().time
        self._unknown_topic_deadline = self._now() + UNKNOWN_TOPIC_TIMEOUT_S
        self._attempt_s = _FIRST_ATTEMPT_S
        self._retries = Retries(deadline, _BACKOFF)

    def next_deadline(self) -> float:
        """Returns the deadline of an attempt that begins now."""
        now = self._now()
        return now + max(min(self._attempt_s, self._deadline - now), _MIN_ATTEMPT_S)

    async def pause_or_raise(self, error: OffsetMgrError, *, outdated: bool = False) -> bool:
        """Waits before the next attempt. Raises ``error`` if another attempt cannot succeed, or if no time is left.
        ``outdated`` is whether a broker has returned an outdated end offset. Returns whether the next attempt has to
        look up the leaders again."""
        if isinstance(error, UnknownTopicOrPartition):
            final = self._now() >= self._unknown_topic_deadline
        else:
            final = isinstance(error, _NOT_RETRIED)
        if final or self._retries.exhausted:
            raise error
        look_up = not outdated or self._retries.next_pause_s > _MARKER_WRITE_S
        if look_up:
            self._client.rotate_lookup_broker()
            self._attempt_s *= 2
        await self._retries.pause()
        return look_up
