"""`MemberFencingBackend`: wraps a backend, and accepts commits only from current members of a group.

If the `MemberFence` can decide about a commit, the commit proceeds or fails at once. Otherwise the backend asks the
real coordinator, and the member's commits wait in order. When the coordinator has responded, the backend passes all
waiting commits of the member to the wrapped backend, or rejects all of them, in one step. Deletions are first sent to
the real coordinator, which rejects them while the group has members.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.core.retry import Retries, completed
from offsetmgr.kafka.protocol.errors import VALID_MEMBER_CODES
from offsetmgr.kafka.protocol.requests import LockMembership
from offsetmgr.manager.results import CommitRequest, CommitResponse
from offsetmgr.server.backend import Backend
from offsetmgr.server.proxy.coordinators import Coordinators
from offsetmgr.server.proxy.member_fence import MemberFence

_CommitQueue = deque[tuple[CommitRequest, asyncio.Future[CommitResponse]]]

COORDINATOR_TIMEOUT_S: Final = 4.0
"""How long a commit may wait for the real coordinator before it fails with COORDINATOR_NOT_AVAILABLE."""

_FINAL_CODES: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
"""The coordinator's errors about the client or its group. The client receives these errors. For any other error of the
coordinator, the client receives a retriable error, because the error concerns only the manager."""

_REJECTED_CODES: Final = (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
"""The coordinator's errors for which the offsets of a topic are not deleted. Without rights of the manager on a topic,
the coordinator does not say whether members subscribe to it."""


class MemberFencingBackend:
    """Implements `Backend`; see the module's docstring."""

    def __init__(
        self, inner: Backend, fence: MemberFence, coordinators: Coordinators, clock: Callable[[], float]
    ) -> None:
        self._inner = inner
        self._fence = fence
        self._coordinators = coordinators
        self._clock = clock
        self._waiting: dict[LockMembership, _CommitQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._deleting: Counter[str] = Counter()
        self._deleted: dict[str, asyncio.Future[None]] = {}
        self._counters: Counter[str] = Counter()
        self.nodes = inner.nodes
        self.coordinator = inner.coordinator
        self.ownership_error = inner.ownership_error
        self.ownership_epoch = inner.ownership_epoch
        self.fetch = inner.fetch
        self.list_groups = inner.list_groups
        self.backpressure = inner.backpressure
        self.features = inner.features

    # --- commits ------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest) -> Awaitable[CommitResponse]:
        group = request.group
        if code := self._inner.ownership_error(group):
            return completed(CommitResponse(code))
        member = LockMembership(group, request.member_id, request.generation, request.instance_id)
        waiting = self._waiting.get(member)
        if waiting is None:
            error = self._check(member)
            if error == ErrorCode.NONE:
                return self._inner.commit(request)
            if error is not None:
                return self._reject(error)
            waiting = self._waiting[member] = deque()
            task = asyncio.ensure_future(self._resolve(member))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        answer: asyncio.Future[CommitResponse] = asyncio.get_running_loop().create_future()
        waiting.append((request, answer))
        return answer

    def _check(self, member: LockMembership) -> int | None:
        epoch = self._inner.ownership_epoch(member.group)
        return self._fence.check_commit(member.group, epoch, member.generation, member.member_id, self._clock())

    def _reject(self, code: int) -> asyncio.Future[CommitResponse]:
        self._counters["relay_commits_rejected_total"] += 1
        return completed(CommitResponse(code))

    async def _resolve(self, member: LockMembership) -> None:
        """Asks the coordinator until the fence can decide about the member's waiting commits. After the decision,
        passes all of these commits to the inner backend, or rejects all of them, in one step."""
        deadline = asyncio.get_running_loop().time() + COORDINATOR_TIMEOUT_S
        error: int | None = ErrorCode.COORDINATOR_NOT_AVAILABLE
        retries = Retries(deadline)
        try:
            while True:
                self._fence.sweep(self._clock())
                error = await self._ask(member, deadline)
                if error is None:
                    # After the coordinator's answer the fence can decide, unless the group changed during the request.
                    error = self._inner.ownership_error(member.group) or self._check(member)
                if error is not None:
                    return
                if not await retries.pause():
                    return
        finally:
            for request, answer in self._waiting.pop(member):
                if answer.done():
                    continue
                if error == ErrorCode.NONE:
                    _forward_result(self._inner.commit(request), answer)
                else:
                    _forward_result(self._reject(error or ErrorCode.COORDINATOR_NOT_AVAILABLE), answer)

    async def _ask(self, member: LockMembership, deadline: float) -> int | None:
        """Asks the coordinator once, and passes its answer to the fence. Returns the error code for the client; None if
        the fence must decide."""
        group, generation, member_id = member.group, member.generation, member.member_id
        if code := self._inner.ownership_error(group):
            return code
        ownership_epoch = self._inner.ownership_epoch(group)
        evidence_epoch = self._fence.evidence_epoch(group, ownership_epoch)
        sent = self._clock()
        self._counters["relay_member_requests_total"] += 1
        try:
            if generation < 0:
                idle = (await self._coordinators.prove_idle([group], deadline)).get(group)
                if idle is not None:
                    self._fence.on_group_proof(group, ownership_epoch, evidence_epoch, empty=idle, sent=sent)
                return None
            ask: Callable[[LockMembership, float], Awaitable[int]] = self._coordinators.prove_member
            record: Callable[..., object] = self._fence.on_member_proof
            if self._fence.heartbeat_suffices(group, ownership_epoch, generation, member_id, sent):
                ask, record = self._coordinators.heartbeat, self._fence.on_heartbeat_response
            code = await ask(member, deadline)
        except OffsetMgrError as error:
            self._coordinators.forget(group)
            return error.code if error.code in _FINAL_CODES else None
        if code in VALID_MEMBER_CODES:
            record(group, ownership_epoch, evidence_epoch, generation, member_id, sent)
            return None
        if code in _FINAL_CODES:
            return code
        self._coordinators.forget(group)
        return None

    # --- deletes ------------------------------------------------------------------------------------

    async def delete_group(self, group: str) -> int:
        """Deletes the group at the real coordinator, then in the inner backend. The real coordinator rejects the
        deletion if the group has members. Members that join during the deletion wait until the deletion has ended."""
        if code := self._inner.ownership_error(group):
            return code
        with self._deletion(group):
            try:
                coordinator_code = await self._coordinators.delete_group(group, self._deadline())
                if coordinator_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                    return self._coordinator_error(group, coordinator_code)
                self._fence.on_leave(group)
                own = await self._inner.delete_group(group)
                return coordinator_code if own == ErrorCode.GROUP_ID_NOT_FOUND else own
            except OffsetMgrError as error:
                return self._coordinator_error(group, error.code or ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> CommitResponse:
        """Deletes offsets at the real coordinator, which rejects the deletion for topics to which the group's members
        subscribe. Afterwards, deletes the offsets of all other requested topics in the inner backend."""
        if code := self._inner.ownership_error(group):
            return CommitResponse(code)
        requested = [
            {"name": topic, "partitions": [{"partition_index": number} for number in numbers]}
            for topic, numbers in topics
        ]
        with self._deletion(group):
            try:
                answer = await self._coordinators.delete_offsets(group, requested, self._deadline())
                if answer["error_code"] not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                    return CommitResponse(self._coordinator_error(group, answer["error_code"]))
                rejected = {
                    (topic["name"], part["partition_index"]): part["error_code"]
                    for topic in answer["topics"]
                    for part in topic["partitions"]
                    if part["error_code"] in _REJECTED_CODES
                }
                left = [(topic, [n for n in numbers if (topic, n) not in rejected]) for topic, numbers in topics]
                own = await self._inner.delete_offsets(group, [(topic, numbers) for topic, numbers in left if numbers])
                return CommitResponse(own.error, {**own.errors, **rejected})
            except OffsetMgrError as error:
                return CommitResponse(self._coordinator_error(group, error.code or ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def _coordinator_error(self, group: str, code: int) -> int:
        """Returns the client's error code for an error of the real coordinator. The code must not cause the client to
        look for another manager."""
        if code in _FINAL_CODES:
            return code
        self._coordinators.forget(group)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + COORDINATOR_TIMEOUT_S

    @contextmanager
    def _deletion(self, group: str) -> Iterator[None]:
        """Makes `wait_for_commits` wait until the deletion has ended."""
        self._deleting[group] += 1
        if group not in self._deleted:
            self._deleted[group] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self._deleting[group] -= 1
            if not self._deleting[group]:
                del self._deleting[group]
                self._deleted.pop(group).set_result(None)

    async def wait_for_commits(self, group: str) -> None:
        """Waits for the group's running deletions, and for its commits. Therefore no deletion is running when a member
        has joined."""
        while (deleted := self._deleted.get(group)) is not None:
            await asyncio.shield(deleted)
        await self._inner.wait_for_commits(group)

    def metrics(self) -> Mapping[str, float]:
        return {**self._inner.metrics(), **self._counters, "relay_groups_known": len(self._fence)}

    async def close(self) -> None:
        """Cancels the requests to the coordinators. The commits that wait for these requests fail."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _forward_result(source: Awaitable[CommitResponse], answer: asyncio.Future[CommitResponse]) -> None:
    def ended(done: asyncio.Future[CommitResponse]) -> None:
        if answer.done():
            return
        if done.cancelled():
            answer.set_result(CommitResponse(ErrorCode.NOT_COORDINATOR))
        elif (failure := done.exception()) is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(done.result())

    asyncio.ensure_future(source).add_done_callback(ended)
