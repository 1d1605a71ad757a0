"""`Backend`: who answers for groups' offsets behind the listener.

All methods run on the event loop and must not block it.  Awaitables that are futures (done already, best of all) are
quicker than coroutines, which need a task each.  They answer with Kafka's error codes and do not raise: an
unforeseen exception is a defect, which the listener logs and answers with UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, Protocol

from offsetmgr.manager.protocol_values import CommitRequest, CommitResponse, DeleteResponse, FetchRequest, FetchResponse


class ManagerAddress(NamedTuple):
    """A manager process, as Metadata names it."""

    node_id: int
    host: str
    port: int


class Backend(Protocol):
    """See the module's docstring."""

    def nodes(self) -> Sequence[ManagerAddress]:
        """All manager processes that are known, this one among them, sorted by id."""
        ...

    def coordinator(self, group: str) -> ManagerAddress | None:
        """The manager that owns the group's shard; None while that is not known."""
        ...

    def owns(self, group: str) -> int:
        """0 if this process may answer for the group at this very moment, else 14, 15 or 16."""
        ...

    def ownership_epoch(self, group: str) -> int:
        """A number that changes whenever this process takes the group's shard again: what the relay learned of the
        group's members under one says nothing under the next. Always the same where nobody else can own it."""
        ...

    def commit(self, request: CommitRequest) -> Awaitable[CommitResponse]:
        """Commits; done once the commit is acknowledged or has failed. Commits to one group keep the order of the
        calls."""
        ...

    def fetch(self, request: FetchRequest) -> Awaitable[FetchResponse]: ...

    def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> Awaitable[DeleteResponse]: ...

    def delete_group(self, group: str) -> Awaitable[int]:
        """Deletes all offsets of a group: an error code (69 where it has none)."""
        ...

    def list_groups(self) -> Awaitable[tuple[int, Sequence[str]]]:
        """An error code, and the groups with offsets that this process owns."""
        ...

    def settled(self, group: str) -> Awaitable[None]:
        """Done once every commit to the group that was begun before the call has ended, either way, and can take
        effect no more. The one method that raises: a retriable `OffsetMgrError` where that is not known in time."""
        ...

    def backpressure(self) -> asyncio.Future[None] | None:
        """None while commits may come; else a future that is done when they may again: until then the listener reads
        no more from the connection whose commit it has just handed over. Asked after every commit."""
        ...

    def features(self) -> Mapping[str, int]:
        """What is offered beyond Kafka's protocol, each with its highest level (the lowest is 1): announced in the
        ApiVersions answer as supported features. See `offsetmgr.kafka.protocol.conditional_commit`."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Figures for the metrics endpoint, by the name after ``offsetmgr_``, labels included."""
        ...
