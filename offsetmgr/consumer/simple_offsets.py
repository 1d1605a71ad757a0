"""`OffsetManagers`: reads and commits offsets for `SimpleConsumer`, in the consumer's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from offsetmgr.core.errors import GroupActive, OffsetMgrError, UnknownTopicOrPartition, value_of
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.retry import Retries
from offsetmgr.kafka.client.client import UNKNOWN_TOPIC_TIMEOUT_S, Client, find_leaders
from offsetmgr.kafka.client.offset_commits import NotAMember
from offsetmgr.kafka.client.pinned_client import PinnedCoordinatorClient
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.requests import MANAGER_API_VERSIONS, FetchedGroup


class OffsetManagers:
    """Sends requests to the coordinators of groups. The coordinator is found through the servers in ``bootstrap``,
    unless the caller names a server.

    ``bootstrap`` are brokers or offset managers. All methods must run in the same event loop.
    """

    def __init__(self, bootstrap: str, security: Security) -> None:
        self._security = security
        self._client_for_groups = Client(bootstrap, security, MANAGER_API_VERSIONS)
        self._pinned: dict[Address, PinnedCoordinatorClient] = {}

    async def find(self, group: str, deadline: float) -> Address:
        """Returns the coordinator of a group. Raises `CoordinatorNotAvailable` and others."""
        return await self._client_for_groups.coordinator(group, deadline)

    async def fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, coordinator: Address | None, deadline: float
    ) -> FetchedGroup:
        """Returns the committed offsets. Raises `OffsetMgrError` if the request failed for all partitions."""
        return value_of((await self._client_of(coordinator).fetch({group: partitions}, deadline))[group])

    async def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        coordinator: Address | None,
        deadline: float,
    ) -> dict[TopicPartition, OffsetMgrError | None]:
        """Returns the error of each partition, or None if the partition was committed. Raises `GroupActive` if the
        group has members, and `OffsetMgrError` if the request failed for all partitions."""
        client = self._client_of(coordinator)
        loop = asyncio.get_running_loop()
        wait_s = min(deadline, loop.time() + UNKNOWN_TOPIC_TIMEOUT_S)
        outcomes: dict[TopicPartition, OffsetMgrError | None] = {}
        pending = dict(offsets)
        retries = Retries(deadline)
        while True:
            try:
                outcomes |= await client.commit(group, pending, deadline)
            except NotAMember as error:
                hint = "while a group has members, only they may commit; stop the members first"
                raise GroupActive(error.what, error.why, hint) from None
            # A coordinator that has just started may not have received the metadata of a topic yet, although other
            # brokers already have the metadata.
            unknown = [tp for tp in pending if isinstance(outcomes.get(tp), UnknownTopicOrPartition)]
            if unknown and loop.time() + retries.next_pause_s >= wait_s and not retries.exhausted:
                known = await find_leaders(client, unknown, deadline)
                unknown = [tp for tp in unknown if not isinstance(known[tp], UnknownTopicOrPartition)]
            if not unknown or not await retries.pause():
                break
            pending = {tp: offsets[tp] for tp in unknown}
        return outcomes

    async def close(self) -> None:
        """Closes all connections."""
        await asyncio.gather(self._client_for_groups.close(), *(client.close() for client in self._pinned.values()))

    def _client_of(self, coordinator: Address | None) -> Client:
        if coordinator is None:
            return self._client_for_groups
        if coordinator not in self._pinned:
            self._pinned[coordinator] = PinnedCoordinatorClient(coordinator, self._security)
        return self._pinned[coordinator]
