"""`Backend`: serves groups' offsets behind the listener.

All methods run on the event loop and must not block it. Futures (best: completed ones) are faster than coroutines,
which need a task each. They return Kafka's error codes and do not raise: an unexpected exception is a defect, which the
listener logs and answers with UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, Protocol

from offsetmgr.manager.protocol_values import CommitRequest, CommitResponse, DeleteResponse, FetchRequest, FetchResponse


class ManagerAddress(NamedTuple):
    """A manager process, as in Metadata responses."""

    node_id: int
    host: str
    port: int


class Backend(Protocol):
    """See the module's docstring."""

    def nodes(self) -> Sequence[ManagerAddress]:
        """All known manager processes including this one, sorted by id."""
        ...

    def coordinator(self, group: str) -> ManagerAddress | None:
        """The manager that owns the group's shard; None while unknown."""
        ...

    def owns(self, group: str) -> int:
        """0 if this process may serve the group at this moment, else 14, 15 or 16."""
        ...

    def ownership_epoch(self, group: str) -> int:
        """A number that changes whenever this process acquires the group's shard again. Knowledge about members from
        one epoch is invalid in the next. Constant if no other process can own the shard."""
        ...

    def commit(self, request: CommitRequest) -> Awaitable[CommitResponse]:
        """Commits; the awaitable completes when the commit is acknowledged or has failed. Commits to one group keep the
        order of the calls."""
        ...

    def fetch(self, request: FetchRequest) -> Awaitable[FetchResponse]: ...

    def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> Awaitable[DeleteResponse]: ...

    def delete_group(self, group: str) -> Awaitable[int]:
        """Deletes all offsets of a group; returns an error code (69 if it has none)."""
        ...

    def list_groups(self) -> Awaitable[tuple[int, Sequence[str]]]:
        """An error code, and the groups with offsets that this process owns."""
        ...

    def await_commits(self, group: str) -> Awaitable[None]:
        """Completes when every commit to the group that began before the call has ended and can no longer take effect.
        The only method that raises: a retriable `OffsetMgrError` if that is not known in time."""
        ...

    def backpressure(self) -> asyncio.Future[None] | None:
        """None while commits are accepted; otherwise a future that completes when they are again. Until then the
        listener stops reading from the connection whose commit it has just passed on. Called after every commit."""
        ...

    def features(self) -> Mapping[str, int]:
        """Features beyond Kafka's protocol, each with its highest level (the lowest is 1); ApiVersions responses list
        them as supported features. See `offsetmgr.kafka.protocol.conditional_commit`."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Values for the metrics endpoint, by the name after ``offsetmgr_``, labels included."""
        ...
