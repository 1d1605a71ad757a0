"""`MemberFencingBackend`: the manager's backend behind the `MemberFence`. Only current group members may commit or
delete.

A commit that the fence can judge proceeds at once. Otherwise the backend asks the real coordinator, and the commits of
that member wait in their order; they are judged, and passed on, in one step.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.retries import backoff
from offsetmgr.manager.protocol_values import CommitRequest, CommitResponse, DeleteResponse, FetchRequest, FetchResponse
from offsetmgr.server.backend import Backend, ManagerAddress
from offsetmgr.server.proxy.coordinators import Coordinators
from offsetmgr.server.proxy.member_fence import MemberFence

_Waiting = deque[tuple[CommitRequest, asyncio.Future[CommitResponse]]]

ASK_S: Final = 4.0
"""How long a commit may wait for the real coordinator, before it fails with COORDINATOR_NOT_AVAILABLE."""

VALID: Final = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS})
"""The coordinator's responses to the Heartbeat of a valid member (27: the group is about to rebalance)."""
_FINAL: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
"""Errors of the coordinator about the client or its group. All others concern only the coordinator and the manager: the
client gets a retriable error."""


class _Key(NamedTuple):
    """The member whose commits keep their order."""

    group: str
    generation: int
    member_id: str


class MemberFencingBackend:
    """See the module's docstring, and `Backend`."""

    def __init__(
        self, inner: Backend, gate: MemberFence, coordinators: Coordinators, clock: Callable[[], float]
    ) -> None:
        self._inner = inner
        self._gate = gate
        self._coordinators = coordinators
        self._clock = clock
        self._waiting: dict[_Key, _Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._deleting: Counter[str] = Counter()
        self._deleted: dict[str, asyncio.Future[None]] = {}
        self._counters: Counter[str] = Counter()

    # --- commits ------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest) -> Awaitable[CommitResponse]:
        group = request.group
        if code := self._inner.owns(group):
            return _done(CommitResponse(code))
        key = _Key(group, request.generation, request.member_id)
        waiting = self._waiting.get(key)
        if waiting is None:
            verdict = self._judge(key)
            if verdict == ErrorCode.NONE:
                return self._inner.commit(request)
            if verdict is not None:
                return self._refused(verdict)
            waiting = self._waiting[key] = deque()
            task = asyncio.ensure_future(self._find_out(key, request.instance_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        answer: asyncio.Future[CommitResponse] = asyncio.get_running_loop().create_future()
        waiting.append((request, answer))
        return answer

    def _judge(self, key: _Key) -> int | None:
        return self._gate.check_commit(
            key.group, self._inner.ownership_epoch(key.group), key.generation, key.member_id, self._clock()
        )

    def _refused(self, code: int) -> asyncio.Future[CommitResponse]:
        self._counters["relay_commits_refused_total"] += 1
        return _done(CommitResponse(code))

    async def _find_out(self, key: _Key, instance_id: str | None) -> None:
        """Asks until the fence can judge, then passes the waiting commits on, all in one step."""
        deadline = asyncio.get_running_loop().time() + ASK_S
        verdict: int | None = ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            for pause in backoff():
                self._gate.sweep(self._clock())
                verdict = await self._ask(key, instance_id, deadline)
                if verdict is None:
                    # The question has been answered, so the fence can judge now, unless the group changed meanwhile.
                    verdict = self._inner.owns(key.group) or self._judge(key)
                if verdict is not None:
                    return
                if asyncio.get_running_loop().time() + pause >= deadline:
                    verdict = ErrorCode.COORDINATOR_NOT_AVAILABLE
                    return
                await asyncio.sleep(pause)
        finally:
            for request, answer in self._waiting.pop(key):
                if answer.done():
                    continue
                if verdict == ErrorCode.NONE:
                    _pass_on(self._inner.commit(request), answer)
                else:
                    _pass_on(self._refused(verdict or ErrorCode.COORDINATOR_NOT_AVAILABLE), answer)

    async def _ask(self, key: _Key, instance_id: str | None, deadline: float) -> int | None:
        """Asks once. Returns a final error code, or None."""
        group, generation, member_id = key
        if code := self._inner.owns(group):
            return code
        tenure = self._inner.ownership_epoch(group)
        serial = self._gate.epoch(group, tenure)
        sent = self._clock()
        self._counters["relay_members_asked_total"] += 1
        try:
            if generation < 0:
                idle = (await self._coordinators.prove_idle([group], deadline)).get(group)
                if idle is not None:
                    self._gate.described(group, tenure, serial, empty=idle, sent=sent)
                return None
            if self._gate.prolongs(group, tenure, generation, member_id, sent):
                code = await self._coordinators.heartbeat(group, generation, member_id, instance_id, deadline)
                if code in VALID:
                    self._gate.observe(group, tenure, serial, generation, member_id, sent)
            else:
                code = await self._coordinators.prove_member(group, generation, member_id, instance_id, deadline)
                if code in VALID:
                    self._gate.confirm(group, tenure, serial, generation, member_id, sent)
        except OffsetMgrError as error:
            self._coordinators.forget(group)
            return error.code if error.code in _FINAL else None
        if code in VALID:
            return None
        if code in _FINAL:
            return code
        self._coordinators.forget(group)
        return None

    # --- deletes ------------------------------------------------------------------------------------

    async def delete_group(self, group: str) -> int:
        """Rejected by the real coordinator if the group has members; members that join meanwhile wait until the
        deletion ends."""
        if code := self._inner.owns(group):
            return code
        self._hold(group)
        try:
            theirs = await self._coordinators.delete_group(group, self._deadline())
            if theirs not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                return self._unsettled(group, theirs)
            self._gate.left(group)
            ours = await self._inner.delete_group(group)
            return ErrorCode.NONE if ours == ErrorCode.GROUP_ID_NOT_FOUND and theirs == ErrorCode.NONE else ours
        except OffsetMgrError as error:
            return self._unsettled(group, error.code or ErrorCode.COORDINATOR_NOT_AVAILABLE)
        finally:
            self._release(group)

    async def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> DeleteResponse:
        """The real coordinator rejects those topics that members subscribe to; the others are deleted here."""
        if code := self._inner.owns(group):
            return DeleteResponse(code)
        self._hold(group)
        try:
            asked = [
                {"name": topic, "partitions": [{"partition_index": number} for number in numbers]}
                for topic, numbers in topics
            ]
            answer = await self._coordinators.delete_offsets(group, asked, self._deadline())
            if answer["error_code"] not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                return DeleteResponse(self._unsettled(group, answer["error_code"]))
            refused = {
                (topic["name"], part["partition_index"]): part["error_code"]
                for topic in answer["topics"]
                for part in topic["partitions"]
                if part["error_code"] == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            }
            left = [(topic, [n for n in numbers if (topic, n) not in refused]) for topic, numbers in topics]
            ours = await self._inner.delete_offsets(group, [(topic, numbers) for topic, numbers in left if numbers])
            return DeleteResponse(ours.error, {**ours.errors, **refused})
        except OffsetMgrError as error:
            return DeleteResponse(self._unsettled(group, error.code or ErrorCode.COORDINATOR_NOT_AVAILABLE))
        finally:
            self._release(group)

    def _unsettled(self, group: str, code: int) -> int:
        """The client's error code if the real coordinator failed: it must not make the client look for another
        manager."""
        if code in _FINAL:
            return code
        self._coordinators.forget(group)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + ASK_S

    def _hold(self, group: str) -> None:
        self._deleting[group] += 1
        if group not in self._deleted:
            self._deleted[group] = asyncio.get_running_loop().create_future()

    def _release(self, group: str) -> None:
        self._deleting[group] -= 1
        if not self._deleting[group]:
            del self._deleting[group]
            self._deleted.pop(group).set_result(None)

    async def await_commits(self, group: str) -> None:
        """Also waits for running deletions, so that a joining member finds them done."""
        while (deleted := self._deleted.get(group)) is not None:
            await asyncio.shield(deleted)
        await self._inner.await_commits(group)

    # --- delegated to the inner backend --------------------------------------------------------------

    def nodes(self) -> Sequence[ManagerAddress]:
        return self._inner.nodes()

    def coordinator(self, group: str) -> ManagerAddress | None:
        return self._inner.coordinator(group)

    def owns(self, group: str) -> int:
        return self._inner.owns(group)

    def ownership_epoch(self, group: str) -> int:
        return self._inner.ownership_epoch(group)

    def fetch(self, request: FetchRequest) -> Awaitable[FetchResponse]:
        return self._inner.fetch(request)

    def list_groups(self) -> Awaitable[tuple[int, Sequence[str]]]:
        return self._inner.list_groups()

    def backpressure(self) -> asyncio.Future[None] | None:
        return self._inner.backpressure()

    def features(self) -> Mapping[str, int]:
        return self._inner.features()

    def metrics(self) -> Mapping[str, float]:
        return {**self._inner.metrics(), **self._counters, "relay_groups_known": len(self._gate)}

    async def close(self) -> None:
        """Ends the open questions; their commits fail."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _done(response: CommitResponse) -> asyncio.Future[CommitResponse]:
    future: asyncio.Future[CommitResponse] = asyncio.get_running_loop().create_future()
    future.set_result(response)
    return future


def _pass_on(source: Awaitable[CommitResponse], answer: asyncio.Future[CommitResponse]) -> None:
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
