"""`BrokerCommitMonitor`: looks whether the real coordinators hold offsets of groups that are ours.

They cannot come from clients of the relay.  Either somebody talks to the brokers directly, and then part of a group's
progress is here and part of it there; or the group was moved here and its old offsets were never deleted there.
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

_PAUSE_SECONDS: Final = 30.0
_ASK_SECONDS: Final = 20.0
_NAMED: Final = 10
"""Groups that are named in an alarm; the others are counted."""


class BrokerCommitMonitor:
    """Use it within one event loop."""

    def __init__(self, backend: Backend, coordinators: Coordinators) -> None:
        self._backend = backend
        self._coordinators = coordinators
        self._task: asyncio.Task[None] | None = None
        self.alarms: Sequence[str] = ("whether clients go past the relay: not looked yet",)
        """What the last look has found, in sentences; empty where all is well."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def poll(self) -> dict[str, int | OffsetMgrError]:
        """Groups that this process owns and has offsets of, and for which the real coordinator holds offsets too: for
        how many partitions, or why nobody knows. Raises `OffsetMgrError` where nobody could be asked at all."""
        code, ours = await self._backend.list_groups()
        if code or not ours:
            return {}
        deadline = asyncio.get_running_loop().time() + _ASK_SECONDS
        # A coordinator lists every group that it holds offsets of, so most of ours need not be asked about.
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
            await asyncio.sleep(_PAUSE_SECONDS)


def _sentences(found: dict[str, int | OffsetMgrError]) -> list[str]:
    held = sorted(group for group, what in found.items() if isinstance(what, int))
    unknown = {group: what for group, what in found.items() if isinstance(what, OffsetMgrError)}
    sentences = []
    if held:
        why = "somebody commits past the relay, or offsets from before the group came here were not deleted"
        sentences.append(f"the brokers hold offsets of {_named(held)}: {why}")
    if unknown:
        why = str(next(iter(unknown.values())))
        sentences.append(f"whether the brokers hold offsets of {_named(sorted(unknown))} is not known: {why}")
    return sentences


def _named(groups: list[str]) -> str:
    names = ", ".join(groups[:_NAMED])
    more = len(groups) - _NAMED
    return f"{names} and {more} groups more" if more > 0 else names
