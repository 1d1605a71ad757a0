"""`ManualLock`: the group lock of a single edit, under the control of the test."""

from __future__ import annotations

import time
from typing import Any

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.background_loop import EventLoopThread
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.groups.group_lock import GroupLock, acquire_lock


class ManualLock:
    """The lock of a single edit, which the test acquires and releases itself."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.runner = EventLoopThread()
        self.client = Client(bootstrap, Security())
        self._group = group

    def __enter__(self) -> ManualLock:
        async def enter() -> tuple[Any, GroupLock]:
            context = acquire_lock(self.client, self._group, self._deadline())
            return context, await context.__aenter__()

        self._context, self.lock = self.runner.run(enter())
        return self

    def _deadline(self) -> float:
        return time.monotonic() + 120

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, Any]:
        async def commit() -> dict[TopicPartition, Any]:
            return dict(await self.lock.commit(offsets, self._deadline()))

        return self.runner.run(commit())

    def leave(self) -> None:
        async def leave() -> None:
            await self._context.__aexit__(None, None, None)

        self.runner.run(leave())

    def __exit__(self, *_: object) -> None:
        self.runner.run(self.client.close())
        self.runner.close()
