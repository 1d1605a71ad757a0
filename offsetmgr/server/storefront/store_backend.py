"""`StoreBackend`: any `OffsetStore` behind the listener, so that any Kafka client can use it as its coordinator.

Semantics are Kafka's: the last commit wins, so commits are edits that may rewind and compare nothing
(`Guard.OVERWRITE`); a member's commit goes to Kafka with its generation. Data that a store cannot hold (metadata in
ZooKeeper) is dropped, as the old consumers did; the log reports that once, at the start.

For a dual store (data rule "dual commit: Kafka first") see `dual_store`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import Conflict, GroupActive, GroupNotFound, OffsetMgrError, TimedOut
from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, Committer, OffsetStore
from offsetmgr.kafka.protocol.conditional_commit import (
    CONDITIONAL_FEATURE,
    DROPS_LEADER_EPOCH,
    DROPS_METADATA,
    NO_OFFSET,
    STORE_FEATURE,
)
from offsetmgr.manager.protocol_values import CommitRequest, CommitResponse, DeleteResponse, FetchRequest, FetchResponse
from offsetmgr.server.backend import ManagerAddress
from offsetmgr.server.storefront.dual_store import DualStoreBackend
from offsetmgr.server.storefront.single_store import SingleStoreBackend
from offsetmgr.server.storefront.store_calls import Outcomes
from offsetmgr.server.storefront.store_errors import commit_code, delete_code
from offsetmgr.server.storefront.store_executor import StoreWrite
from offsetmgr.stores.dual import DualStore

_log = logging.getLogger(__name__)

_FULL: Final = 100_000
"""Number of pending partitions above which the backend applies backpressure."""
_LOG_EVERY_S: Final = 10.0


class StoreBackend:
    """See the module's docstring, and `offsetmgr.server.backend.Backend`. Construction does no I/O; call `start` on the
    event loop first, `close` last. The backend then owns the store.

    No call of the store should take longer than ``commit_timeout``: open it with this ``timeout_ms``.
    """

    def __init__(
        self,
        store: OffsetStore,
        node: ManagerAddress,
        *,
        commit_timeout: float = 5.0,
        fetch_timeout: float = 5.0,
        secondary_wait_s: float = 1.0,
        look_every: float = 3.0,
        keeps_epochs: bool = True,
    ) -> None:
        """Times are in seconds. After ``commit_timeout`` a client gets COORDINATOR_NOT_AVAILABLE; a write that has
        begun by then may still happen, before all later writes of the group. ``secondary_wait_s``: see `Secondary`.
        ``look_every``: see `StoreHealth.watch`. ``keeps_epochs``: whether the clients' leader epochs are those of the
        store's logs; otherwise none is written, and none returned to clients."""
        self._store = store
        self._node = node
        self._commit_timeout = commit_timeout
        self._fetch_timeout = fetch_timeout
        self._wait_s = secondary_wait_s
        self._look_every = look_every
        self.keeps_epochs = keeps_epochs
        self.refusal: str | None = None
        """The reason why no client is served at present; None while clients are served."""
        self._figures: Counter[str] = Counter()
        self._said: dict[str, float] = {}
        self._capacity: asyncio.Future[None] | None = None
        self._behind: SingleStoreBackend
        self._starting: asyncio.Task[None]

    def start(self) -> asyncio.Task[None]:
        """Starts serving clients at once. The task completes when the store's capabilities are known, or when the store
        proves unreachable (clients get an error until it is reachable)."""
        store = self._store
        self._behind = (
            DualStoreBackend(store, self._wait_s) if isinstance(store, DualStore) else SingleStoreBackend(store)
        )
        self._behind.start(self._look_every, self._fetch_timeout)
        self._starting = asyncio.get_running_loop().create_task(self._behind.read_capabilities())
        return self._starting

    async def close(self, grace: float = 5.0) -> None:
        """Lets pending values reach a secondary, for at most ``grace`` seconds, and closes the store."""
        self._starting.cancel()
        await self._behind.close(grace)

    # --- ownership -----------------------------------------------------------------------------------

    def nodes(self) -> Sequence[ManagerAddress]:
        return [self._node]

    def coordinator(self, group: str) -> ManagerAddress | None:  # noqa: ARG002  # every group's
        return self._node

    def owns(self, group: str) -> int:  # noqa: ARG002
        return ErrorCode.NONE

    def ownership_epoch(self, group: str) -> int:  # noqa: ARG002
        return 0

    def features(self) -> Mapping[str, int]:
        can = self._behind.threads.capabilities
        offered = {f"{STORE_FEATURE}{self._store.uri.partition(':')[0]}": 1}
        if self._behind.compares:
            offered[CONDITIONAL_FEATURE] = 1
        if not can.metadata:
            offered[DROPS_METADATA] = 1
        if not (can.leader_epoch and self.keeps_epochs):
            offered[DROPS_LEADER_EPOCH] = 1
        return offered

    # --- commits and deletions ----------------------------------------------------------------------

    def commit(self, request: CommitRequest) -> Awaitable[CommitResponse]:
        if self.refusal is not None:
            return _at_once(CommitResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        if request.expected and not self._behind.compares:
            return _at_once(CommitResponse(ErrorCode.INVALID_REQUEST))
        if not request.group:
            return _at_once(CommitResponse(ErrorCode.INVALID_GROUP_ID))
        changes = {
            TopicPartition(topic, p): _change(
                request.expected.get((topic, p)), offset, epoch if self.keeps_epochs else -1, metadata
            )
            for topic, partitions in request.topics
            for p, offset, epoch, metadata in partitions
        }
        self._figures["store_commits_total"] += len(changes)
        committer = None
        if request.generation >= 0 or request.member_id:
            committer = Committer(request.generation, request.member_id, request.instance_id)
        return self._commit(self._hand_in(request.group, changes, committer, alone=bool(request.expected)))

    async def _commit(self, write: StoreWrite) -> CommitResponse:
        outcomes = await self._outcomes(write)
        if outcomes is None:
            return CommitResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        errors = {}
        for tp, outcome in outcomes.items():
            if outcome.error is not None:
                compared = write.changes[tp].expected is not None and isinstance(outcome.error, Conflict)
                errors[tp.topic, tp.partition] = (
                    ErrorCode.OPERATION_NOT_ATTEMPTED if compared else self._failed(outcome.error, commit_code)
                )
        return CommitResponse(ErrorCode.NONE, errors)

    def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> Awaitable[DeleteResponse]:
        if self.refusal is not None:
            return _at_once(DeleteResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        if not group:
            return _at_once(DeleteResponse(ErrorCode.INVALID_GROUP_ID))
        changes = {TopicPartition(topic, p): Change(None, None, True) for topic, ps in topics for p in ps}
        return self._delete_offsets(self._hand_in(group, changes))

    async def _delete_offsets(self, write: StoreWrite) -> DeleteResponse:
        outcomes = await self._outcomes(write)
        if outcomes is None:
            return DeleteResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        errors = {}
        for tp, outcome in outcomes.items():
            if isinstance(outcome.error, GroupActive):
                return DeleteResponse(self._failed(outcome.error, delete_code))
            if isinstance(outcome.error, GroupNotFound):
                if self._behind.names_groups:
                    return DeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND)
            elif outcome.error is not None:
                errors[tp.topic, tp.partition] = self._failed(outcome.error, delete_code)
        return DeleteResponse(ErrorCode.NONE, errors)

    async def delete_group(self, group: str) -> int:
        if self.refusal is not None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            async with asyncio.timeout(self._commit_timeout + self._fetch_timeout):
                return await self._behind.delete_group(group)
        except TimeoutError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        except OffsetMgrError as error:
            return self._failed(error, delete_code)

    def _hand_in(
        self,
        group: str,
        changes: Mapping[TopicPartition, Change],
        committer: Committer | None = None,
        *,
        alone: bool = False,
    ) -> StoreWrite:
        write = StoreWrite(group, changes, asyncio.get_running_loop().create_future(), committer, alone)
        self._behind.write(write)
        return write

    async def _outcomes(self, write: StoreWrite) -> Outcomes | None:
        """The outcome of a write; None if it stays unknown until the timeout."""
        await asyncio.wait([write.done], timeout=self._commit_timeout)
        self._end_backpressure()
        if write.done.done():
            return write.done.result()
        write.given_up = True
        self._failed(TimedOut(self._store.uri, f"a write did not end within {self._commit_timeout:g} s"), commit_code)
        return None

    async def settled(self, group: str) -> None:
        await self._behind.threads.settled(group)

    def backpressure(self) -> asyncio.Future[None] | None:
        if self._behind.threads.waiting < _FULL:
            return None
        if self._capacity is None:
            self._capacity = asyncio.get_running_loop().create_future()
        return self._capacity

    def _end_backpressure(self) -> None:
        if self._capacity is not None and self._behind.threads.waiting < _FULL // 2:
            capacity, self._capacity = self._capacity, None
            if not capacity.done():
                capacity.set_result(None)

    # --- reading ------------------------------------------------------------------------------------

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        if self.refusal is not None:
            return FetchResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not request.group:
            return FetchResponse(ErrorCode.INVALID_GROUP_ID)
        asked = None
        if request.topics is not None:
            asked = [TopicPartition(topic, p) for topic, partitions in request.topics for p in partitions]
            if not asked:
                return FetchResponse(ErrorCode.NONE, [(topic, []) for topic, _ in request.topics])
        self._figures["store_fetches_total"] += 1
        try:
            async with asyncio.timeout(self._fetch_timeout):  # wait_for may lose a cancellation (Python 3.11)
                found = await self._behind.read(request.group, asked)
        except TimeoutError:
            late = TimedOut(self._store.uri, f"a read did not end within {self._fetch_timeout:g} s")
            return FetchResponse(self._failed(late, commit_code))
        if found.error is not None:
            return FetchResponse(self._failed(found.error, commit_code))
        topics: dict[str, list[tuple[int, int, int, str, int]]] = {}
        for tp in sorted({**found.offsets, **found.errors}) if asked is None else asked:
            error = found.errors.get(tp)
            code = ErrorCode.NONE if error is None else self._failed(error, commit_code)
            topics.setdefault(tp.topic, []).append(self._row(tp.partition, found.offsets.get(tp, ABSENT), code))
        return FetchResponse(ErrorCode.NONE, list(topics.items()))

    async def list_groups(self) -> tuple[int, Sequence[str]]:
        if self.refusal is not None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
        try:
            async with asyncio.timeout(self._fetch_timeout * 2):
                return ErrorCode.NONE, await self._behind.groups()
        except TimeoutError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
        except OffsetMgrError as error:
            return self._failed(error, commit_code), ()

    def _row(self, partition: int, found: Offset, code: int) -> tuple[int, int, int, str, int]:
        if code != ErrorCode.NONE or not isinstance(found, Committed):
            return partition, NO_OFFSET, -1, "", code
        epoch = -1 if found.leader_epoch is None or not self.keeps_epochs else found.leader_epoch
        return partition, found.offset, epoch, found.metadata, ErrorCode.NONE

    # --- state ---------------------------------------------------------------------------------------

    def trouble(self) -> str | None:
        """The reason why the store, or either half of a dual one, cannot be used at present; None while it can."""
        return self.refusal or self._behind.trouble()

    def metrics(self) -> Mapping[str, float]:
        return {**self._figures, **self._behind.metrics(), "store_failing": int(self.trouble() is not None)}

    def _failed(self, error: OffsetMgrError, code_of: Callable[[OffsetMgrError], int]) -> int:
        """Counts an error, logs one of its kind from time to time, and returns the client's error code."""
        kind = type(error).__name__
        self._figures[f'store_errors_total{{error="{kind}"}}'] += 1
        now = asyncio.get_running_loop().time()
        if now - self._said.get(kind, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._said[kind] = now
            _log.warning("the store could not do what a client asked", extra={"error": str(error), "kind": kind})
        return code_of(error)


def _change(expected: int | None, offset: int, epoch: int, metadata: str) -> Change:
    after = OffsetAndMetadata(offset, metadata, None if epoch < 0 else epoch)
    if expected is None:
        return Change(after, None, True)
    held: Offset = ABSENT if expected == NO_OFFSET else Committed(expected)
    return Change(None if offset == NO_OFFSET else after, held, True)


async def _at_once(answer: Any) -> Any:
    return answer
