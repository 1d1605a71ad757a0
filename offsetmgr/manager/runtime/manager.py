"""`ManagerRuntime`: serves the requests for the shards of one process, on one event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from offsetmgr.config.manager_settings import ManagerSettings, Members
from offsetmgr.core.batches import batched_by_size
from offsetmgr.core.errors import CoordinatorLoadInProgress, ErrorCode, OffsetMgrError
from offsetmgr.core.plurals import list_of
from offsetmgr.core.retry import cancel_tasks, completed
from offsetmgr.manager.expiration import ExpirationSchedule
from offsetmgr.manager.lease import boottime
from offsetmgr.manager.lifecycle import ShardState
from offsetmgr.manager.log.base import PartitionLog, partitions_of, shard_group_count, shard_group_of
from offsetmgr.manager.ownership_protocol import Ownership
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.manager.results import (
    CommitRequest,
    CommitResponse,
    CoordinatorResult,
    FetchRequest,
    FetchResponse,
)
from offsetmgr.manager.runtime.backpressure import Backpressure
from offsetmgr.manager.runtime.process_settings import tune_process
from offsetmgr.manager.runtime.services import RuntimeServices
from offsetmgr.manager.runtime.shard_group import LOSS, ShardGroup
from offsetmgr.manager.runtime.standby import StandbyReplica
from offsetmgr.manager.runtime.status import Counters, ShardStatus
from offsetmgr.manager.runtime.status_report import shard_status, totals
from offsetmgr.manager.shard import Shard
from offsetmgr.records.base import OffsetKey, OffsetValue, RecordFormat

_logger: Final = logging.getLogger(__name__)
_START_TIMEOUT_S: Final = 2.0
"""The longest wait, before a shard group is revoked, for the first offsets of its log."""
_MAX_LISTED: Final = 5
"""The maximum number of items that a message lists."""
_EXPIRY_BATCH: Final = 2_000
"""The number of offsets that an expiration pass checks at a time. One such check occupies the loop for a few
milliseconds."""


class ManagerRuntime:
    """Serves the shard groups that `on_assigned` assigns to it. It implements `OwnershipListener`. Call all methods on
    the event loop that runs `start`. ``members`` is called before offsets expire, to determine which groups have
    members; the commit timeout limits each call. If ``members`` is None, every group counts as a group without members.

    The methods for requests return Kafka's error codes and do not raise errors.
    """

    def __init__(
        self,
        log: PartitionLog,
        record_format: RecordFormat,
        ownership: Ownership,
        settings: ManagerSettings | None = None,
        members: Members | None = None,
    ) -> None:
        self._settings = settings or ManagerSettings()
        self.counters = Counters()
        self._log = log
        self._format = record_format
        self._ownership = ownership
        self._clock = log.clock
        self._backpressure = Backpressure(self._settings.max_pending_records)
        self.backpressure = self._backpressure.backpressure
        """Returns None while there is capacity for commits. Otherwise it returns a future, and the caller should stop
        reading from sockets until the future completes. Commits that arrive nevertheless are accepted."""
        self._partitions = log.partitions
        self._serving: list[Shard | None] = [None] * self._partitions
        self._shard_groups: list[ShardGroup] = []
        self._not_before: dict[int, float] = {}
        """The time of `boottime` before which this process does not claim a shard group."""
        self._delayed_starts: dict[int, asyncio.TimerHandle] = {}
        """The timers of assigned shard groups that this process may not claim yet."""
        self._standby: StandbyReplica | None = None
        self._members = members
        self._expirations = ExpirationSchedule(self._partitions, self._settings.expiry_interval_s)
        self._readers: ThreadPoolExecutor | None = None
        self._housekeeping: asyncio.Task[None] | None = None
        self._closing = False

    # --- life ----------------------------------------------------------------------------------------

    @property
    def shard_groups(self) -> int:
        """The number of shard groups of the log."""
        return shard_group_count(self._partitions)

    @property
    def caught_up(self) -> bool:
        """Whether this process serves or follows every shard group, so that a takeover reads only the end of the log.
        If the process joins the managers' group before this is True, clients have to wait for a load."""
        return self._standby is None or self._standby.caught_up

    async def start(self) -> None:
        """Starts to follow the log as a standby of all shard groups. The process owns no shard group yet."""
        if self._settings.own_process:
            tune_process()
        self._readers = ThreadPoolExecutor(self.shard_groups, thread_name_prefix="offsetmgr-reader")
        services = RuntimeServices(
            self._log,
            self._ownership,
            self._settings,
            self.counters,
            self._backpressure,
            lambda partition: Shard(partition, self._format, self._settings),
            threading.BoundedSemaphore(self._settings.load_threads),
            self._readers,
        )
        self._shard_groups = [
            ShardGroup(
                number,
                partitions_of(number, self._partitions),
                services,
                on_changed=self._on_changed,
                on_released=self._on_released,
            )
            for number in range(self.shard_groups)
        ]
        if self._settings.standby:
            self._standby = StandbyReplica(
                services, lambda: any(one.state is ShardState.LOADING for one in self._shard_groups)
            )
            for shard_group in self._shard_groups:
                self._standby.add(shard_group)
            self._standby.start()
        self._housekeeping = asyncio.create_task(self._housekeeping_loop())

    async def close(self) -> None:
        """Rejects new commits, waits for the commits in flight, and closes the writers. The wait takes at most the sum
        of the commit timeout and the timeout of one claim. The method does not close the log. The caller must first let
        ownership leave the managers' group, so that other managers need not wait for the session timeout."""
        self._closing = True
        await cancel_tasks(self._housekeeping)
        following = [] if self._standby is None else [self._standby.stop()]
        await asyncio.gather(*following, *[self.on_revoked(shard_group.number) for shard_group in self._shard_groups])
        if self._readers is not None:
            self._readers.shutdown(wait=False)

    def on_assigned(self, shard_group: int, not_before: float = float("-inf")) -> None:
        """See `OwnershipListener.on_assigned`. Until ``not_before`` the standby follows the shard group."""
        found = self._shard_groups[shard_group]
        if found.assigned or self._closing:
            return
        found.assigned = True
        self._not_before[shard_group] = not_before
        if not found.has_writer:
            self._start(found)

    async def on_revoked(self, shard_group: int) -> None:
        """See `OwnershipListener.on_revoked`."""
        found = self._shard_groups[shard_group]
        found.assigned = False
        self._cancel_delayed_start(shard_group)
        if found.state is ShardState.ACTIVE:
            found.reject_requests()
            with suppress(OffsetMgrError):
                found.note_starts(await asyncio.to_thread(self._log.start_offsets, found.partitions, _START_TIMEOUT_S))
            await found.finish_restore()
        found.stop()
        await found.stopped()

    def note_generation(self, generation: str) -> None:
        """Stops serving the shard groups that were read from a log other than the current one (NOT_COORDINATOR), and
        loads them again. ``generation`` is the identity of the current log (`PartitionLog.generation`)."""
        for shard_group in self._shard_groups:
            shard_group.note_generation(generation)

    async def check_starts(self) -> None:
        """Appends shards again if records of their logs were deleted. Raises `OffsetMgrError` if this is unknown."""
        timeout_s = self._settings.claim_timeout_s
        starts = await asyncio.to_thread(self._log.start_offsets, range(self._partitions), timeout_s)
        for shard_group in self._shard_groups:
            shard_group.note_starts(starts)

    @property
    def restoring(self) -> AbstractSet[int]:
        """The partitions whose shards are being appended again, because records of their log were deleted."""
        return {partition for one in self._shard_groups for partition in one.restoring}

    @property
    def too_large(self) -> Mapping[int, Sequence[str]]:
        """See `ShardWriter.too_large`."""
        return {shard: keys for one in self._shard_groups for shard, keys in one.too_large.items()}

    @property
    def alarms(self) -> list[str]:
        """The faults of the log and of the clocks that an operator must fix, as text."""
        deleted = {
            "were deleted: this manager appends their offsets again; do not stop it": self.restoring,
            LOSS: {partition for one in self._shard_groups for partition in one.lost},
        }
        found = [f"records of shards {list_of(sorted(at), _MAX_LISTED)} {what}" for what, at in deleted.items() if at]
        for shard, keys in self.too_large.items():
            found.append(
                f"records of shard {shard} are only in this manager's memory, because they are larger than the topic's "
                f"max.message.bytes: {list_of(keys, _MAX_LISTED)}; raise it, and do not stop this manager before"
            )
        if fault := self._clock.fault():
            found.append(f"{fault}: no offset expires until you correct the wrong one")
        return found

    def _start(self, shard_group: ShardGroup) -> None:
        """Starts the writer of an assigned shard group, but not before the time that `on_assigned` received."""
        self._cancel_delayed_start(shard_group.number)
        if (wait_s := self._not_before[shard_group.number] - boottime()) > 0:
            timer = asyncio.get_running_loop().call_later(wait_s, self._start, shard_group)
            self._delayed_starts[shard_group.number] = timer
            return

        def start() -> None:
            if shard_group.assigned:
                shard_group.start()
            elif self._standby is not None and not self._closing:
                self._standby.add(shard_group)

        if self._standby is None:
            start()
        else:
            self._standby.release(shard_group, start)

    def _cancel_delayed_start(self, shard_group: int) -> None:
        if (timer := self._delayed_starts.pop(shard_group, None)) is not None:
            timer.cancel()

    def _on_released(self, shard_group: ShardGroup) -> None:
        """Passes the shards of a shard group whose writer has ended to a new writer or to the standby."""
        if shard_group.assigned:
            self._start(shard_group)
        elif self._standby is None:
            shard_group.reset()
        elif not self._closing:
            self._standby.add(shard_group)

    def _on_changed(self, shard_group: ShardGroup) -> None:
        serves = shard_group.state is ShardState.ACTIVE
        for partition in shard_group.partitions:
            previous = self._serving[partition]
            self._serving[partition] = shard_group.shards[partition] if serves else None
            if serves and previous is None:
                self._expirations.start(partition, time.monotonic())
            elif not serves:
                self._expirations.stop(partition)

    async def _housekeeping_loop(self) -> None:
        while True:
            await asyncio.sleep(min(self._settings.lag_interval_s, self._settings.expiry_interval_s / 10))
            for shard_group in self._shard_groups:
                shard_group.note_current()
            try:
                for partition in self._expirations.take_due(time.monotonic()):
                    if (shard := self._serving[partition]) is not None:
                        await self._expire(shard)
            except Exception:
                _logger.exception("the expiration pass failed")

    async def _expire(self, shard: Shard) -> None:
        """Runs one expiration pass over a shard, in batches, so that the loop can serve requests between two batches.
        The pass ends early if the shard is no longer served or an append fails."""
        if (now := self._clock.expiry_ms()) is None:
            _logger.error("no offset expires: a clock is wrong, or unknown", extra={"shard": shard.partition})
            return
        for groups in batched_by_size(shard.expiry_groups(), lambda group: 1 + shard.size(group), _EXPIRY_BATCH):
            await asyncio.sleep(0)
            if self._serving[shard.partition] is not shard:
                break
            if not (expirable := [group for group in groups if shard.expirable(group, now)]):
                continue
            active = await self._active(expirable)
            if self._serving[shard.partition] is not shard:
                break
            expired = await self._append(shard, shard.expire(now, active.get, expirable), lambda _: None)
            if expired is None:
                break
            self.counters.expired_offsets += expired

    async def _active(self, groups: Sequence[str]) -> Mapping[str, bool]:
        """Returns for each group whether it has members; nothing if this is unknown, so that no offset expires."""
        if self._members is None:
            return dict.fromkeys(groups, False)
        try:
            # `asyncio.wait_for` would ignore a cancellation that coincides with the response (Python 3.11).
            async with asyncio.timeout(self._settings.commit_timeout_s):
                return await self._members(groups)
        except OffsetMgrError:
            raise
        except TimeoutError:
            return {}

    # --- requests ------------------------------------------------------------------------------------

    def partition_of(self, group: str) -> int:
        """Returns the partition of the log for a group."""
        return shard_for(group, self._partitions)

    def ownership_error(self, group: str) -> int:
        """Returns 0 if this process may serve the group at this moment, else COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE or NOT_COORDINATOR."""
        partition = self.partition_of(group)
        if self._serving[partition] is None:
            return self._error_code(partition)
        return ErrorCode.NONE if self._ownership.valid() else ErrorCode.NOT_COORDINATOR

    def ownership_epoch(self, group: str) -> int:
        """Returns a number that increases each time this process becomes the owner of the group's shard."""
        return self._shard_group(self.partition_of(group)).ownership_epoch

    def commit(self, request: CommitRequest) -> asyncio.Future[CommitResponse]:
        """Returns a future of the response. The future completes once the commit is acknowledged or has failed, or
        after the commit timeout. Commits to one group keep the order of the calls.

        A commit does not check the lease, because the log rejects the append of a writer that no longer owns the shard
        group.
        """
        partition = shard_for(request.group, self._partitions)
        shard = self._serving[partition]
        if shard is None:
            return completed(CommitResponse(self._error_code(partition)))
        self.counters.commits += 1
        return self._append(shard, shard.commit(request, self._clock.now_ms()), CommitResponse)

    def fetch(self, request: FetchRequest) -> FetchResponse:
        """Returns the last acknowledged offsets, or a retriable error (data rule "current or retriable")."""
        partition = shard_for(request.group, self._partitions)
        shard = self._serving[partition]
        if shard is None:
            return FetchResponse(self._error_code(partition))
        self.counters.fetches += 1
        known = shard.unreadable
        response = shard.fetch(request)
        if shard.unreadable > known:  # each problem is logged once; the client receives only a code
            offsets = list(shard.problems[known : known + _MAX_LISTED])
            _logger.warning("committed offsets cannot be read", extra={"shard": partition, "which": offsets})
        # The lease is checked after the read, so no other process owned the shard group at the moment of the read (data
        # rule "one writer per shard").
        return response if self._ownership.valid() else FetchResponse(ErrorCode.NOT_COORDINATOR)

    def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> asyncio.Future[CommitResponse]:
        """Works as `commit`."""
        return self._delete(group, lambda shard: shard.delete_offsets(group, topics), CommitResponse)

    def delete_group(self, group: str) -> asyncio.Future[int]:
        """Deletes all offsets of a group. Works as `commit`. The response is an error code: GROUP_ID_NOT_FOUND if the
        group has no offsets."""
        return self._delete(group, lambda shard: shard.delete_group(group), int)

    def _delete(
        self,
        group: str,
        delete: Callable[[Shard], CoordinatorResult[Any]],
        error_response: Callable[[int], Any],
    ) -> asyncio.Future[Any]:
        partition = self.partition_of(group)
        shard = self._serving[partition]
        if shard is None:
            return completed(error_response(self._error_code(partition)))
        self.counters.deletes += 1
        return self._append(shard, delete(shard), error_response)

    def list_groups(self) -> tuple[int, Sequence[str]]:
        """Returns an error code and the groups with offsets in the served shard groups. The code is
        COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE if shard groups that this process owns are missing
        from the list, and NOT_COORDINATOR if the lease has expired."""
        groups = [group for shard in self._serving if shard is not None for group in shard.groups()]
        states = {shard_group.state for shard_group in self._shard_groups if shard_group.assigned}
        if states and not self._ownership.valid():
            return ErrorCode.NOT_COORDINATOR, ()
        if ShardState.FAILED in states:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, groups
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if states - {ShardState.ACTIVE} else ErrorCode.NONE, groups

    def wait_for_writes(self, group: str) -> asyncio.Future[None]:
        """Returns a future that completes once every earlier write to the group's shard group has ended. After this,
        none of these writes can take effect any more. If the writes do not end within the sum of the claim timeout and
        the commit timeout, the future raises the retriable `TimedOut`."""
        return self._shard_group(self.partition_of(group)).wait_for_writes()

    def _append(
        self, shard: Shard, result: CoordinatorResult[Any], error_response: Callable[[int], Any]
    ) -> asyncio.Future[Any]:
        if not result.records:
            # A result without records (for example if the group is not found or a condition does not hold) depends only
            # on a read, so the lease is checked as in a fetch.
            return completed(result.response if self._ownership.valid() else error_response(ErrorCode.NOT_COORDINATOR))
        self.counters.commit_records += len(result.records)
        return self._shard_group(shard.partition).append(shard, result, error_response)

    def _shard_group(self, partition: int) -> ShardGroup:
        return self._shard_groups[shard_group_of(partition, self._partitions)]

    def _error_code(self, partition: int) -> int:
        if self._closing or not self._shard_groups:
            return ErrorCode.NOT_COORDINATOR
        # The result is never 0: the error code is 0 only if the shard group is active, and the shards of an active
        # shard group are in `_serving`.
        return self._shard_group(partition).error_code or ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    # --- status --------------------------------------------------------------------------------------

    def dump(self, partition: int) -> Sequence[tuple[OffsetKey, OffsetValue]]:
        """Returns the readable offsets of a shard, sorted, even if this process does not serve the shard (see
        `ShardStatus.role`). The offsets are current only if this process serves the shard. Raises
        `CoordinatorLoadInProgress` during a load."""
        shard_group = self._shard_group(partition)
        if shard_group.loading or (self._standby is not None and self._standby.loading is shard_group):
            raise CoordinatorLoadInProgress(f"shard {partition}", "it is being loaded")
        return list(shard_group.shards[partition].entries())

    def status(self) -> Sequence[ShardStatus]:
        """Returns the status of every shard, by partition."""
        shard_groups = [self._shard_group(partition) for partition in range(self._partitions)]
        return [
            shard_status(shard_group, partition, self._standby) for partition, shard_group in enumerate(shard_groups)
        ]

    def metrics(self) -> dict[str, float]:
        """Returns the values of the metrics endpoint."""
        return {**self.counters.metrics(), "pending_records": self._backpressure.pending, **totals(self.status())}
