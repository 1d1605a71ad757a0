"""`StoreBackend`: serves any `OffsetStore` behind the listener, so that Kafka clients can use it as their coordinator.

The semantics are Kafka's: the last commit wins. Therefore a commit is not compared with the committed offset, and may
lower that offset (`Guard.OVERWRITE`). If the store is Kafka, a member's commit carries the member's generation. The
backend drops fields that a store cannot hold (metadata in ZooKeeper), as the old consumers did, and logs this once at
startup.

For a dual store (data rule "dual commit: Kafka first") see `dual_store`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from offsetmgr.core.errors import Conflict, ErrorCode, GroupActive, GroupNotFound, OffsetMgrError, TimedOut
from offsetmgr.core.model import ABSENT, NO_OFFSET, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcomes, Committer, OffsetStore
from offsetmgr.core.retry import completed
from offsetmgr.kafka.protocol.requests import (
    CONDITIONAL_FEATURE,
    DROPS_LEADER_EPOCH,
    DROPS_METADATA,
    STORE_FEATURE,
)
from offsetmgr.manager.assignment import NodeAddress
from offsetmgr.manager.commit_checks import PartitionErrors, without_invalid
from offsetmgr.manager.results import CommitRequest, CommitResponse, FetchRequest, FetchResponse
from offsetmgr.manager.runtime.backpressure import Backpressure
from offsetmgr.server.store_backends.dual_store import DualStoreBackend
from offsetmgr.server.store_backends.store_errors import delete_code, error_code
from offsetmgr.server.store_backends.store_executor import StoreExecutor, StoreWrite
from offsetmgr.stores.dual import DualStore

_log = logging.getLogger(__name__)

_MAX_PENDING: Final = 100_000
"""The backend applies backpressure if at least this number of partitions is pending."""
_LOG_EVERY_S: Final = 10.0
FETCH_TIMEOUT_S: Final = 5.0
"""The longest time that a read of the store may take."""


class StoreBackend:
    """Implements `offsetmgr.server.backend.Backend`. The constructor does no I/O. Call `start` first, on the event
    loop, and `close` last. The backend owns the store and closes it.

    Open the store with the same timeout as ``commit_timeout_s``, so that no call takes longer than clients wait.
    """

    def __init__(
        self,
        store: OffsetStore,
        node: NodeAddress,
        *,
        commit_timeout_s: float = 5.0,
        secondary_wait_s: float = 1.0,
        probe_interval_s: float = 3.0,
    ) -> None:
        """Times are in seconds. If a write takes longer than ``commit_timeout_s``, the client gets
        COORDINATOR_NOT_AVAILABLE. If the write had already started, it may still take effect, but only before all later
        writes of the group. ``secondary_wait_s``: see `Secondary`. ``probe_interval_s``: see
        `StoreHealth.start_probing`."""
        self._store = store
        self._node = node
        self._commit_timeout_s = commit_timeout_s
        self._wait_s = secondary_wait_s
        self._probe_interval_s = probe_interval_s
        self.keeps_epochs = True
        """Whether the clients' leader epochs are valid for the store's logs; if not, epochs are neither written nor
        returned."""
        self.unavailable_reason: str | None = None
        """The reason why clients currently get COORDINATOR_NOT_AVAILABLE; None while clients are served."""
        self._counters: Counter[str] = Counter()
        self._logged_at: dict[str, float] = {}
        self._backpressure = Backpressure(_MAX_PENDING)
        self.backpressure = self._backpressure.backpressure
        self._stores: StoreExecutor | DualStoreBackend
        self._starting: asyncio.Task[None]

    def start(self) -> asyncio.Task[None]:
        """Serves clients from now on. The returned task completes when the store's capabilities are known, or when
        reading them has failed (clients get errors until the store is reachable)."""
        store = self._store
        self._stores = DualStoreBackend(store, self._wait_s) if isinstance(store, DualStore) else StoreExecutor(store)
        self._stores.start(self._probe_interval_s, FETCH_TIMEOUT_S)
        self._starting = asyncio.get_running_loop().create_task(self._stores.read_capabilities())
        return self._starting

    async def close(self, grace_s: float = 5.0) -> None:
        """Waits at most ``grace_s`` until the secondary of a dual store has all values, then closes the store."""
        self._starting.cancel()
        await self._stores.close(grace_s)

    # --- ownership -----------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeAddress]:
        return [self._node]

    def coordinator(self, group: str) -> NodeAddress | None:  # noqa: ARG002  # one node serves all groups
        return self._node

    def ownership_error(self, group: str) -> int:  # noqa: ARG002
        return ErrorCode.NONE

    def ownership_epoch(self, group: str) -> int:  # noqa: ARG002
        return 0

    def features(self) -> Mapping[str, int]:
        capabilities = self._stores.capabilities
        offered = {f"{STORE_FEATURE}{self._store.uri.partition(':')[0]}": 1}
        if self._stores.supports_conditional_commits:
            offered[CONDITIONAL_FEATURE] = 1
        if not capabilities.metadata:
            offered[DROPS_METADATA] = 1
        if not (capabilities.leader_epoch and self.keeps_epochs):
            offered[DROPS_LEADER_EPOCH] = 1
        return offered

    # --- commits and deletions ----------------------------------------------------------------------

    def commit(self, request: CommitRequest) -> Awaitable[CommitResponse]:
        if self.unavailable_reason is not None:
            return completed(CommitResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        if request.expected and not self._stores.supports_conditional_commits:
            return completed(CommitResponse(ErrorCode.INVALID_REQUEST))
        if not request.group:
            return completed(CommitResponse(ErrorCode.INVALID_GROUP_ID))
        request, invalid = without_invalid(request)
        if invalid and not request.topics:
            return completed(CommitResponse(errors=invalid))
        changes = {
            TopicPartition(topic, p): _change(
                request.expected.get((topic, p)), offset, epoch if self.keeps_epochs else -1, metadata
            )
            for topic, partitions in request.topics
            for p, offset, epoch, metadata in partitions
        }
        self._counters["store_commits_total"] += len(changes)
        committer = None
        if request.generation >= 0 or request.member_id:
            committer = Committer(request.generation, request.member_id, request.instance_id)
        return self._commit(self._submit(request.group, changes, committer, exclusive=bool(request.expected)), invalid)

    async def _commit(self, write: StoreWrite, invalid: PartitionErrors) -> CommitResponse:
        outcomes = await self._outcomes(write)
        if outcomes is None:
            return CommitResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        errors = dict(invalid)
        for tp, outcome in outcomes.items():
            if outcome.error is not None:
                compared = write.changes[tp].expected is not None and isinstance(outcome.error, Conflict)
                errors[tp.topic, tp.partition] = (
                    ErrorCode.OPERATION_NOT_ATTEMPTED if compared else self._record_error(outcome.error, error_code)
                )
        return CommitResponse(ErrorCode.NONE, errors)

    def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> Awaitable[CommitResponse]:
        if self.unavailable_reason is not None:
            return completed(CommitResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        if not group:
            return completed(CommitResponse(ErrorCode.INVALID_GROUP_ID))
        changes = {TopicPartition(topic, p): Change(None, None, True) for topic, ps in topics for p in ps}
        return self._delete_offsets(self._submit(group, changes))

    async def _delete_offsets(self, write: StoreWrite) -> CommitResponse:
        outcomes = await self._outcomes(write)
        if outcomes is None:
            return CommitResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        errors = {}
        for tp, outcome in outcomes.items():
            if isinstance(outcome.error, GroupActive):
                return CommitResponse(self._record_error(outcome.error, delete_code))
            if isinstance(outcome.error, GroupNotFound):
                if self._stores.reports_missing_groups:
                    return CommitResponse(ErrorCode.GROUP_ID_NOT_FOUND)
            elif outcome.error is not None:
                errors[tp.topic, tp.partition] = self._record_error(outcome.error, delete_code)
        return CommitResponse(ErrorCode.NONE, errors)

    async def delete_group(self, group: str) -> int:
        if self.unavailable_reason is not None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            async with asyncio.timeout(self._commit_timeout_s + FETCH_TIMEOUT_S):
                return await self._stores.delete_group(group)
        except OffsetMgrError as error:
            return self._record_error(error, delete_code)
        except TimeoutError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _submit(
        self,
        group: str,
        changes: Mapping[TopicPartition, Change],
        committer: Committer | None = None,
        *,
        exclusive: bool = False,
    ) -> StoreWrite:
        write = StoreWrite(group, changes, asyncio.get_running_loop().create_future(), committer, exclusive)
        self._backpressure.add(len(changes))
        write.done.add_done_callback(lambda _: self._backpressure.remove(len(changes)))
        self._stores.write(write)
        return write

    async def _outcomes(self, write: StoreWrite) -> ChangeOutcomes | None:
        """The outcomes of a write; None if the write did not end before the timeout."""
        await asyncio.wait([write.done], timeout=self._commit_timeout_s)
        if write.done.done():
            return write.done.result()
        write.abandoned = True
        late = TimedOut(self._store.uri, f"a write did not end within {self._commit_timeout_s:g} s")
        self._record_error(late, error_code)
        return None

    async def wait_for_commits(self, group: str) -> None:
        await self._stores.wait_for_writes(group)

    # --- reading ------------------------------------------------------------------------------------

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        if self.unavailable_reason is not None:
            return FetchResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not request.group:
            return FetchResponse(ErrorCode.INVALID_GROUP_ID)
        requested = None
        if request.topics is not None:
            requested = [TopicPartition(topic, p) for topic, partitions in request.topics for p in partitions]
            if not requested:
                return FetchResponse(ErrorCode.NONE, [(topic, []) for topic, _ in request.topics])
        self._counters["store_fetches_total"] += 1
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):  # wait_for may lose a cancellation (Python 3.11)
                found = await asyncio.shield(self._stores.read(request.group, requested))
        except TimeoutError:
            late = TimedOut(self._store.uri, f"a read did not end within {FETCH_TIMEOUT_S:g} s")
            return FetchResponse(self._record_error(late, error_code))
        if found.error is not None:
            return FetchResponse(self._record_error(found.error, error_code))
        topics: dict[str, list[tuple[int, int, int, str, int]]] = {}
        for tp in sorted({**found.offsets, **found.errors}) if requested is None else requested:
            error = found.errors.get(tp)
            code = ErrorCode.NONE if error is None else self._record_error(error, error_code)
            topics.setdefault(tp.topic, []).append(self._row(tp.partition, found.offsets.get(tp, ABSENT), code))
        return FetchResponse(ErrorCode.NONE, list(topics.items()))

    async def list_groups(self) -> tuple[int, Sequence[str]]:
        if self.unavailable_reason is not None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S * 2):
                return ErrorCode.NONE, await self._stores.groups()
        except OffsetMgrError as error:
            return self._record_error(error, error_code), ()
        except TimeoutError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()

    def _row(self, partition: int, found: Offset, code: int) -> tuple[int, int, int, str, int]:
        if code != ErrorCode.NONE or not isinstance(found, Committed):
            return partition, NO_OFFSET, -1, "", code
        epoch = -1 if found.leader_epoch is None or not self.keeps_epochs else found.leader_epoch
        return partition, found.offset, epoch, found.metadata, ErrorCode.NONE

    # --- state ---------------------------------------------------------------------------------------

    def failure(self) -> str | None:
        """The reason why the store (or a store of a dual store) currently cannot be used; None if it can be used."""
        return self.unavailable_reason or self._stores.failure()

    def metrics(self) -> Mapping[str, float]:
        return {**self._counters, **self._stores.metrics(), "store_failing": int(self.failure() is not None)}

    def _record_error(self, error: OffsetMgrError, code_of: Callable[[OffsetMgrError], int]) -> int:
        """Counts an error and returns the error code for the client. Logs at most one error of each class in 10
        seconds."""
        kind = type(error).__name__
        self._counters[f'store_errors_total{{error="{kind}"}}'] += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at.get(kind, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged_at[kind] = now
            _log.warning("a client's request failed in the store", extra={"error": str(error), "kind": kind})
        return code_of(error)


def _change(expected: int | None, offset: int, epoch: int, metadata: str) -> Change:
    after = OffsetAndMetadata(offset, metadata, None if epoch < 0 else epoch)
    if expected is None:
        return Change(after, None, True)
    held: Offset = ABSENT if expected == NO_OFFSET else Committed(expected)
    return Change(None if offset == NO_OFFSET else after, held, True)
