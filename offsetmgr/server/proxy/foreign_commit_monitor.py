"""`BrokerCommitMonitor`: checks whether the real coordinators hold offsets of groups that are ours.

Such offsets cannot come from clients of the relay. Either a client connects to the brokers directly, which splits the
group's progress between both places; or the group was moved here and its old offsets were never deleted there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.server.backend import Backend
from offsetmgr.server.proxy.coordinators import Coordinators

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 30.0
_ASK_S: Final = 20.0
_NAMED: Final = 10
"""Number of groups that an alarm names; the others are counted."""


class BrokerCommitMonitor:
    """Use it in one event loop."""

    def __init__(self, backend: Backend, coordinators: Coordinators) -> None:
        self._backend = backend
        self._coordinators = coordinators
        self._task: asyncio.Task[None] | None = None
        self.alarms: Sequence[str] = ("whether clients go past the relay: not looked yet",)
        """The alarms of the last check, in sentences; empty if there are none."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def poll(self) -> dict[str, int | OffsetMgrError]:
        """Groups that this process owns and has offsets of, and for which the real coordinator holds offsets too: the
        number of partitions, or the error. Raises `OffsetMgrError` if no broker could be reached."""
        code, ours = await self._backend.list_groups()
        if code or not ours:
            return {}
        deadline = asyncio.get_running_loop().time() + _ASK_S
        # A coordinator lists every group with offsets, so most of our groups need no further request.
        known = await self._coordinators.groups(deadline)
        suspects = [group for group in ours if group in known]
        if not suspects:
            return {}
        held = await self._coordinators.held_offsets(suspects, deadline)
        return {group: found for group, found in held.items() if found != 0}

    async def _watch(self) -> None:
        while True:
            try:
                self.alarms = _sentences(await self.poll())
            except OffsetMgrError as error:
                self.alarms = (f"whether clients go past the relay is not known: {error}",)
            except Exception as error:
                _log.exception("looking for offsets that the brokers hold failed: a defect; it goes on")
                self.alarms = (f"whether clients go past the relay is not known: {type(error).__name__}",)
            await asyncio.sleep(_PAUSE_S)


def _sentences(found: dict[str, int | OffsetMgrError]) -> list[str]:
    held = sorted(group for group, what in found.items() if isinstance(what, int))
    unknown = {group: what for group, what in found.items() if isinstance(what, OffsetMgrError)}
    sentences = []
    if held:
        why = "a client bypasses the relay, or the group's old offsets were not deleted when it was moved here"
        sentences.append(f"the brokers hold offsets of {_named(held)}: {why}")
    if unknown:
        why = str(next(iter(unknown.values())))
        sentences.append(f"whether the brokers hold offsets of {_named(sorted(unknown))} is not known: {why}")
    return sentences


def _named(groups: list[str]) -> str:
    names = ", ".join(groups[:_NAMED])
    more = len(groups) - _NAMED
    return f"{names} and {more} groups more" if more > 0 else names
