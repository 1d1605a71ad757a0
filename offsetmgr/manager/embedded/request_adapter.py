"""`RequestAdapter`: turns the calls of a program into requests to the runtime, and responses into values and
exceptions. It runs on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from offsetmgr.core.batches import by_key
from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import Conflict, CorruptData, NotCoordinator, OffsetMgrError, PartialFailure, UsageError
from offsetmgr.core.evaluation import rejection
from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition, is_valid_offset
from offsetmgr.core.offset_store import Change
from offsetmgr.core.retry import Backoff, Retries
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.manager.protocol_values import CommitRequest, CommitResponse, FetchRequest, FetchResponse
from offsetmgr.manager.runtime import ManagerRuntime, ShardStatus

T = TypeVar("T")

_BACKOFF: Final = Backoff.fixed(0.02)
"""The interval between two attempts while a shard is loading or moves to another owner."""


class RequestAdapter:
    """Serves the calls of one program. ``other_owner`` returns the address of the manager that owns a group, or None if
    this process owns the group or the owner is unknown. ``timeout_s`` (seconds) limits the retries of a request."""

    def __init__(self, runtime: ManagerRuntime, other_owner: Callable[[str], str | None], timeout_s: float) -> None:
        self._runtime = runtime
        self._other_owner = other_owner
        self._timeout_s = timeout_s

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, allow_rewind: bool
    ) -> None:
        failures: dict[TopicPartition, OffsetMgrError] = {
            tp: UsageError(f"group {group}, {tp}", f"{after.offset} is not an offset")
            for tp, after in offsets.items()
            if not is_valid_offset(after.offset)
        }
        remaining = {tp: after for tp, after in offsets.items() if tp not in failures}
        retries = self._retries()
        while remaining:
            expected: dict[tuple[str, int], int] = {}
            if not allow_rewind:
                found = await self.fetch(group, list(remaining))
                failures |= {
                    tp: error
                    for tp, after in remaining.items()
                    if (error := rejection(group, tp, Change(after), found[tp])) is not None
                }
                remaining = {tp: offset for tp, offset in remaining.items() if tp not in failures}
                expected = {(tp.topic, tp.partition): _expected_offset(found[tp]) for tp in remaining}
            if not remaining:
                break
            errors = (await self._commit_once(group, remaining, expected)).errors
            again: dict[TopicPartition, OffsetAndMetadata] = {}
            for tp, offset in remaining.items():
                code = errors.get((tp.topic, tp.partition), ErrorCode.NONE)
                if code == ErrorCode.OPERATION_NOT_ATTEMPTED:
                    again[tp] = offset  # another commit of this partition is in flight, or has changed its offset
                elif code != ErrorCode.NONE:
                    failures[tp] = kafka_error(code, f"commit of {tp} of group {group}")
            remaining = again
            if remaining and not await retries.pause():
                why = "other clients committed to it during every attempt"
                failures |= {tp: Conflict(f"commit of {tp} of group {group}", why) for tp in remaining}
                break
        if failures:
            committed = {tp: offset for tp, offset in offsets.items() if tp not in failures}
            raise PartialFailure(f"commit of group {group}", successes=committed, failures=failures)

    def _retries(self) -> Retries:
        return Retries(asyncio.get_running_loop().time() + self._timeout_s, _BACKOFF)

    async def _commit_once(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        expected: Mapping[tuple[str, int], int],
    ) -> CommitResponse:
        topics = by_key(
            (topic, (partition, offset, -1 if epoch is None else epoch, metadata))
            for (topic, partition), (offset, metadata, epoch, _) in offsets.items()
        )
        request = CommitRequest(group, list(topics.items()), expected=expected)
        return await self._retry_until_answered(
            f"commit of group {group}", group, lambda manager: manager.commit(request), lambda response: response.error
        )

    async def fetch(self, group: str, partitions: Sequence[TopicPartition] | None) -> dict[TopicPartition, Offset]:
        request = FetchRequest(group, None if partitions is None else list(by_key(partitions).items()))

        async def send(manager: ManagerRuntime) -> FetchResponse:
            return manager.fetch(request)

        response = await self._retry_until_answered(
            f"offsets of group {group}", group, send, lambda response: response.error
        )
        found: dict[TopicPartition, Offset] = {}
        failures: dict[TopicPartition, OffsetMgrError] = {}
        for topic, entries in response.topics:
            for partition, offset, epoch, metadata, code in entries:
                tp = TopicPartition(topic, partition)
                if code != ErrorCode.NONE:
                    failures[tp] = CorruptData(
                        f"offset of {tp} of group {group}", "its record in the offsets topic is unreadable"
                    )
                else:
                    epoch_known = None if epoch < 0 else epoch
                    found[tp] = ABSENT if offset < 0 else Committed(offset, metadata, epoch_known)
        if failures:
            raise PartialFailure(f"fetch of group {group}", successes=found, failures=failures)
        return found

    async def delete(self, group: str, partitions: Sequence[TopicPartition] | None) -> None:
        if partitions is None:
            await self._retry_until_answered(
                f"group {group}",
                group,
                lambda manager: manager.delete_group(group),
                lambda code: ErrorCode.NONE if code == ErrorCode.GROUP_ID_NOT_FOUND else code,
            )
            return
        topics = by_key(partitions)
        await self._retry_until_answered(
            f"offsets of group {group}",
            group,
            lambda manager: manager.delete_offsets(group, list(topics.items())),
            lambda response: ErrorCode.NONE if response.error == ErrorCode.GROUP_ID_NOT_FOUND else response.error,
        )

    async def groups(self) -> list[str]:
        async def send(manager: ManagerRuntime) -> tuple[int, Sequence[str]]:
            return manager.list_groups()

        return sorted((await self._retry_until_answered("groups", None, send, lambda response: response[0]))[1])

    async def status(self) -> Sequence[ShardStatus]:
        return self._runtime.status()

    async def _retry_until_answered(
        self,
        what: str,
        group: str | None,
        send: Callable[[ManagerRuntime], Awaitable[T]],
        error_of: Callable[[T], int],
    ) -> T:
        """Sends a request, with retries while the shard is loading or has no owner, until the timeout. ``error_of``
        returns the error code of a response. Raises `NotCoordinator` if another manager owns the group."""
        retries = self._retries()
        while True:
            response = await send(self._runtime)
            code = error_of(response)
            if code == ErrorCode.NONE:
                return response
            if (
                code == ErrorCode.NOT_COORDINATOR
                and group is not None
                and (owner := self._other_owner(group)) is not None
            ):
                raise NotCoordinator(what, f"the group belongs to the manager {owner}")
            unavailable = code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
            if not unavailable or not await retries.pause():
                raise kafka_error(code, what)


def _expected_offset(found: Offset) -> int:
    """Returns the committed offset as the condition of a commit; -1 if no offset is committed."""
    return found.offset if isinstance(found, Committed) else -1
