"""`ForeignCommitMonitor`: raises an alarm if the real coordinators hold offsets of groups that the manager serves.

These offsets do not come from clients of the relay. There are two possible causes. A client may be connected directly
to the brokers, so that the group has offsets in two places. Or the group was migrated to the manager, and its old
offsets were not deleted from the brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.plurals import list_of
from offsetmgr.core.retry import cancel_tasks
from offsetmgr.server.backend import Backend
from offsetmgr.server.proxy.coordinators import Coordinators

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 30.0
_REQUEST_TIMEOUT_S: Final = 20.0
_MAX_NAMED_GROUPS: Final = 10
"""Maximum number of groups that an alarm names. If more groups are affected, the alarm contains only the number of the
remaining groups."""


class ForeignCommitMonitor:
    """Checks every 30 seconds. Use it in one event loop."""

    def __init__(self, backend: Backend, coordinators: Coordinators) -> None:
        self._backend = backend
        self._coordinators = coordinators
        self._task: asyncio.Task[None] | None = None
        self.alarms: Sequence[str] = ("not checked yet whether clients bypass the relay",)
        """The alarms of the last check, one sentence each."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        await cancel_tasks(self._task)

    async def poll(self) -> dict[str, int | OffsetMgrError]:
        """Finds the groups for which both this process and the real coordinator hold offsets. Returns, for each of
        these groups, the number of partitions for which the coordinator holds an offset, or the error of the request.
        Raises `OffsetMgrError` if no broker could be reached."""
        code, own_groups = await self._backend.list_groups()
        if code or not own_groups:
            return {}
        deadline = asyncio.get_running_loop().time() + _REQUEST_TIMEOUT_S
        # The real coordinators list every group for which they hold offsets. Therefore no further request is needed for
        # a group that no coordinator lists.
        known = await self._coordinators.groups(_REQUEST_TIMEOUT_S)
        suspects = [group for group in own_groups if group in known]
        if not suspects:
            return {}
        held = await self._coordinators.held_offsets(suspects, deadline)
        return {group: found for group, found in held.items() if found != 0}

    async def _run(self) -> None:
        while True:
            try:
                self.alarms = _alarms(await self.poll())
            except OffsetMgrError as error:
                self.alarms = (f"could not check whether clients bypass the relay: {error}",)
            except Exception as error:
                _log.exception("checking for clients that bypass the relay raised an unexpected exception (a defect)")
                self.alarms = (f"could not check whether clients bypass the relay: {type(error).__name__} (a defect)",)
            await asyncio.sleep(_PAUSE_S)


def _alarms(found: dict[str, int | OffsetMgrError]) -> list[str]:
    held = sorted(group for group, what in found.items() if isinstance(what, int))
    unknown = {group: what for group, what in found.items() if isinstance(what, OffsetMgrError)}
    sentences = []
    if held:
        why = "a client bypasses the relay, or the group's old offsets were not deleted when it was moved here"
        sentences.append(f"the brokers hold offsets of {_names(held)}: {why}")
    if unknown:
        why = str(next(iter(unknown.values())))
        sentences.append(f"could not check whether the brokers hold offsets of {_names(sorted(unknown))}: {why}")
    return sentences


def _names(groups: list[str]) -> str:
    return list_of(groups, _MAX_NAMED_GROUPS) + (" groups" if len(groups) > _MAX_NAMED_GROUPS else "")
