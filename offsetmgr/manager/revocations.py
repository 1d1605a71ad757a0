"""`Revocations`: revokes shard groups in the runtime, and assigns them to the runtime once an earlier revocation of the
same shard group has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial

from offsetmgr.manager.ownership_protocol import OwnershipListener

_log = logging.getLogger(__name__)


class Revocations:
    """The running revocations of one process. Use it on one event loop. ``listener`` is the runtime."""

    def __init__(self, listener: OwnershipListener) -> None:
        self._listener = listener
        self._running: dict[int, asyncio.Task[None]] = {}

    def __contains__(self, shard_group: int) -> bool:
        """Whether the shard group is being revoked."""
        return shard_group in self._running

    def running(self) -> Collection[int]:
        """Returns the shard groups that are being revoked."""
        return self._running.keys()

    def start(self, shard_groups: Iterable[int]) -> None:
        """Starts to revoke these shard groups, except those that are being revoked already."""
        for shard_group in shard_groups:
            if shard_group not in self._running:
                task = self._running[shard_group] = asyncio.create_task(self._revoke(shard_group))
                task.add_done_callback(partial(self._on_revoked, shard_group))

    def when_revoked(self, shard_group: int, action: Callable[[], None]) -> None:
        """Calls ``action`` when the running revocation of this shard group has ended."""
        self._running[shard_group].add_done_callback(lambda _: action())

    async def wait(self, shard_groups: Collection[int] | None = None, timeout_s: float | None = None) -> None:
        """Waits until the running revocations of these shard groups have ended, or those of all shard groups if
        ``shard_groups`` is None, but at most ``timeout_s`` seconds."""
        tasks = [
            task for shard_group, task in self._running.items() if shard_groups is None or shard_group in shard_groups
        ]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def assign(self, shard_group: int, not_before: float, still_owned: Callable[[], bool]) -> None:
        """Assigns the shard group to the runtime, after the end of a running revocation if ``still_owned`` returns True
        then."""
        if shard_group in self._running:
            self.when_revoked(shard_group, partial(self._assign_again, shard_group, not_before, still_owned))
        else:
            self._listener.on_assigned(shard_group, not_before)

    def _assign_again(self, shard_group: int, not_before: float, still_owned: Callable[[], bool]) -> None:
        if shard_group not in self._running and still_owned():
            self._listener.on_assigned(shard_group, not_before)

    def _on_revoked(self, shard_group: int, _: object) -> None:
        del self._running[shard_group]

    async def _revoke(self, shard_group: int) -> None:
        try:
            await self._listener.on_revoked(shard_group)
        except Exception:
            _log.exception("the revocation of shard group %d failed", shard_group)
