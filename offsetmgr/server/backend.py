"""`Backend`: serves groups' offsets behind the listener.

All methods run on the event loop and must not block it. Methods that return an awaitable should return a future (if
possible, a completed future) and not a coroutine, because a coroutine needs a task. All methods except
`wait_for_commits` report errors as Kafka error codes and do not raise. An exception from one of these methods is a
defect: the listener logs the exception and responds with UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from offsetmgr.manager.assignment import NodeAddress
from offsetmgr.manager.results import CommitRequest, CommitResponse, FetchRequest, FetchResponse


class Backend(Protocol):
    """The operations on groups' offsets that the listener offers to clients."""

    def nodes(self) -> Sequence[NodeAddress]:
        """Returns all known manager processes including this one, sorted by id."""

    def coordinator(self, group: str) -> NodeAddress | None:
        """Returns the manager that owns the group's shard; None while it is unknown."""

    def ownership_error(self, group: str) -> int:
        """Returns NONE if this process may serve the group at this moment; otherwise COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE or NOT_COORDINATOR."""

    def ownership_epoch(self, group: str) -> int:
        """A number that changes whenever this process acquires the group's shard. Evidence about group members is valid
        only while the number is the same as when the evidence was collected. The number is constant if no other process
        can own the shard."""

    def commit(self, request: CommitRequest) -> Awaitable[CommitResponse]:
        """Commits offsets. The returned awaitable completes when the commit is acknowledged or has failed. Commits to
        one group take effect in the order of the calls."""

    def fetch(self, request: FetchRequest) -> Awaitable[FetchResponse]: ...

    def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> Awaitable[CommitResponse]: ...

    def delete_group(self, group: str) -> Awaitable[int]:
        """Deletes all offsets of a group; returns an error code (GROUP_ID_NOT_FOUND if the group has no offsets)."""

    def list_groups(self) -> Awaitable[tuple[int, Sequence[str]]]:
        """Returns an error code, and the groups that this process owns and that have offsets."""

    def wait_for_commits(self, group: str) -> Awaitable[None]:
        """Waits for all commits to the group that started before this call. Completes when they have ended and can no
        longer take effect. Raises a retriable `OffsetMgrError` if the backend reaches its time limit first."""

    def backpressure(self) -> asyncio.Future[None] | None:
        """Returns None while the backend accepts commits; otherwise a future that completes when the backend accepts
        commits again. The listener calls this method after every commit. Until the future completes, the listener does
        not read from the connection that sent the commit."""

    def features(self) -> Mapping[str, int]:
        """Returns the features beyond Kafka's protocol, each with its highest level. The lowest level of every feature
        is 1. ApiVersions responses list these features as supported. See
        `offsetmgr.kafka.protocol.requests`."""

    def metrics(self) -> Mapping[str, float]:
        """Values for the metrics endpoint. Each key is the metric's name without the prefix ``offsetmgr_``, followed by
        the metric's labels."""
