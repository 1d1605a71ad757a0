"""Notifies a mirror when its source may have changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from offsetmgr.core.clock import Clock
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupOffsets


class ChangeNotifier(Protocol):
    """Waits for changes of the source. `OffsetWatcher` implements it for ZooKeeper."""

    def wait(self, timeout_s: float) -> set[str] | None:
        """Waits at most ``timeout_s`` and returns the groups that may have changed since the last call. The set is
        empty if there was no change. None means that every group may have changed."""
        ...


@dataclass(slots=True)
class PollingNotifier:
    """Notifier for sources without watches: reports once in each interval that every group may have changed."""

    clock: Clock
    interval_s: float
    _last: float | None = None

    def wait(self, timeout_s: float) -> set[str] | None:
        if self._last is None:
            self._last = self.clock.monotonic()
        left = self._last + self.interval_s - self.clock.monotonic()
        self.clock.sleep(max(0.0, min(left, timeout_s)))
        if left > timeout_s:
            return set()
        self._last = self.clock.monotonic()
        return None


def first_changed_partition(before: GroupOffsets, after: GroupOffsets) -> TopicPartition | None:
    """Returns a partition whose commit changed between two reads; None if no commit changed."""
    return next((tp for tp, found in after.offsets.items() if before.offsets.get(tp) != found), None)
