"""Brings a dual store's secondary up to date with the primary, once, when the listener starts.

Values that wait for the secondary are kept only in memory (`secondary`), so a crash of the listener may have left old
values in the secondary. The next commit of a partition repairs that partition's value; this module repairs the values
of partitions that get no further commit. It checks only groups with offsets in the secondary, because other groups of
the primary's Kafka cluster never used this listener. A write only raises a value, unless the secondary's value is
older than its topic, which was recreated. The write takes effect only if the secondary still holds the value that was
read, so commits made in the meantime are kept. Any other value of the secondary that is larger than the primary's value
stays unchanged, because the module cannot find out whether a rewind was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.offset_store import GROUPS_IN_FLIGHT, Change
from offsetmgr.core.retry import Backoff, Retries
from offsetmgr.server.store_backends.secondary import Secondary
from offsetmgr.server.store_backends.store_executor import StoreExecutor, StoreWrite
from offsetmgr.stores.dual_policy import catch_up_changes, without_epochs
from offsetmgr.stores.known_logs import KnownLogs

_log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, Committed]
_BACKOFF: Final = Backoff.fixed(5.0)
"""The pauses before the task retries groups that it could not read or write."""


class StartupReconciliation:
    """Reconciles all groups; call `run` once, on the event loop."""

    def __init__(
        self, primary: StoreExecutor, secondary_executor: StoreExecutor, secondary: Secondary, *, keeps_epochs: bool
    ) -> None:
        """``keeps_epochs``: whether the primary's leader epochs are valid for the secondary's logs."""
        self._primary = primary
        self._secondary_executor = secondary_executor
        self._secondary = secondary
        self._keeps_epochs = keeps_epochs
        self._logs = KnownLogs(primary.store, secondary_executor.store)
        self.written = 0
        """Number of partitions whose value in the secondary was raised."""

    async def run(self) -> None:
        """Checks all groups of the secondary. Retries groups with a retriable error until they succeed."""
        retries = Retries(backoff=_BACKOFF)
        while True:
            try:
                left = iter(await self._secondary_executor.groups())
                break
            except OffsetMgrError:
                await retries.pause()
        checked = 0
        while batch := list(islice(left, GROUPS_IN_FLIGHT)):
            checked += len(batch)
            while batch := await self._check(batch):
                await retries.pause()
        if self.written:
            what = {"store": self._secondary_executor.store.uri, "groups": checked, "partitions": self.written}
            _log.warning(
                "the secondary store was behind the primary after a restart; its offsets were updated", extra=what
            )

    async def _check(self, groups: list[str]) -> list[str]:
        """Updates these groups; returns the groups that must be checked again."""
        reads = [(self._primary.read(group, None), self._secondary_executor.read(group, None)) for group in groups]
        again: list[str] = []
        found: dict[str, tuple[Offsets, Offsets]] = {}
        for group, (first, second) in zip(groups, reads, strict=True):
            primary, secondary = await first, await second
            if error := primary.error or secondary.error:
                if error.retriable:
                    again.append(group)
                else:
                    self._log_unread(group, error)
            elif secondary.offsets:
                for unread in [*primary.errors.values(), *secondary.errors.values()][:1]:
                    self._log_unread(group, unread)
                ours = primary if self._keeps_epochs else without_epochs(primary)
                readable = {tp: offset for tp, offset in ours.offsets.items() if tp not in secondary.errors}
                found[group] = (secondary.offsets, readable)
        try:
            writes = await self._secondary_executor.call(partial(self._writes, found)) if found else {}
        except OffsetMgrError as error:
            if error.retriable:
                return [*found, *again]
            self._log_unread(next(iter(found)), error)
            return again
        pending = [
            StoreWrite(group, changes, asyncio.get_running_loop().create_future(), exclusive=True)
            for group, changes in writes.items()
        ]
        for write in pending:
            self._secondary_executor.write(write)
        for write in pending:
            if await self._must_retry(write):
                again.append(write.group)
        return again

    def _writes(self, found: Mapping[str, tuple[Offsets, Offsets]]) -> dict[str, dict[TopicPartition, Change]]:
        """Returns the writes to the secondary, for the offsets of each group in the secondary and in the primary. An
        offset of the primary that is beyond the end of its log is not written. An offset of the secondary that is older
        than its topic is replaced."""
        self._logs.recreated({tp.topic for _, primary in found.values() for tp in primary})
        changes = {group: catch_up_changes(secondary, primary) for group, (secondary, primary) in found.items()}
        for group, (secondary, primary) in found.items():
            for tp in secondary.keys() & primary.keys():
                if secondary[tp].offset != primary[tp].offset and self._logs.predates(tp, secondary[tp]):
                    changes[group][tp] = Change(primary[tp].value(), secondary[tp], allow_rewind=True)
        values = {group: {tp: found[group][1][tp].offset for tp in of_group} for group, of_group in changes.items()}
        outside = self._logs.beyond_end(pair for of_group in values.values() for pair in of_group.items())
        for group, of_group in values.items():
            for pair in of_group.items() & outside.keys():
                del changes[group][pair[0]]
                self._log_unread(group, outside[pair])
        return {group: of_group for group, of_group in changes.items() if of_group}

    def _log_unread(self, group: str, error: OffsetMgrError) -> None:
        what = {"group": group, "error": str(error)}
        _log.warning("the secondary store was not brought up to date for some partitions of a group", extra=what)

    async def _must_retry(self, write: StoreWrite) -> bool:
        """Waits for a write; returns whether its group must be checked again. A conflict is not an error: another
        client has changed the value, and that client's value is kept."""
        failed = False
        for tp, outcome in (await write.done).items():
            after = write.changes[tp].after
            if outcome.error is None and after is not None:
                self.written += 1
                self._secondary.remember((write.group, tp), after.offset)
            elif outcome.error is not None and not isinstance(outcome.error, Conflict):
                failed = failed or outcome.error.retriable
        return failed
