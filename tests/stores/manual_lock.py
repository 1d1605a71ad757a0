"""`ManualLock`: the group lock of a single edit, under the control of the test."""

from __future__ import annotations

import time
from typing import Any

from event_loop_thread import EventLoopThread

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.groups.group_lock import acquire_lock


class ManualLock(EventLoopThread):
    """The lock of a single edit, which the test acquires and releases itself."""

    def __init__(self, bootstrap: str, group: str) -> None:
        super().__init__()
        self.client = Client(bootstrap, Security())
        self._context = acquire_lock(self.client, group, self._deadline())

    async def _start(self) -> None:
        self.lock = await self._context.__aenter__()

    def _deadline(self) -> float:
        return time.monotonic() + 120

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, Any]:
        return dict(self.run(self.lock.commit(offsets, self._deadline())))

    def leave(self) -> None:
        self.run(self._context.__aexit__(None, None, None))

    async def _stop(self) -> None:
        await self.client.close()
