"""Commits one group's offsets: attempts, their results, and the reported state.

Commits are edits without a lock (`Guard.COMPARE`), because a Spark job is not a member of its group. A commit that
would rewind the group is rejected. If a frozen driver wakes while its successor runs, the successor's next commit
repairs any harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from offsetmgr.core.errors import OffsetMgrError, PartialFailure, RewindRefused
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Guard, OffsetStore
from offsetmgr.spark import metrics

LOG: Final = logging.getLogger("offsetmgr.spark")

Process = Callable[[Any, int], None]
"""A function for foreachBatch: receives the batch's DataFrame and its number."""


@dataclass(frozen=True, slots=True)
class CommitterState:
    """The state of a group's commits.

    ``failing`` is the error that was reported and not repaired since; ``rejected_rewinds`` the partitions in which the group is
    ahead of the checkpoint.
    """

    commits: int = 0
    failures: int = 0
    failing: OffsetMgrError | None = None
    rejected_rewinds: tuple[TopicPartition, ...] = ()


class GroupCommitter:
    """Writes one group's offsets into one store; used by one thread at a time."""

    def __init__(self, store: OffsetStore, group: str, *, allow_rewind: bool = False) -> None:
        self.group = group
        self.state = CommitterState()
        self._store = store
        self._allow_rewind = allow_rewind
        self._written: dict[TopicPartition, int] = {}

    def clear_cache(self) -> None:
        """The next attempt compares every partition with the store, in case another program changed it."""
        self._written.clear()

    def attempt(self, offsets: Mapping[TopicPartition, int]) -> OffsetMgrError | None:
        """Commits the changes since the last successful attempt; returns the error if some or all of it failed."""
        due = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items() if self._written.get(tp) != offset}
        if not due:
            return None
        failures: Mapping[TopicPartition, OffsetMgrError] = {}
        error: OffsetMgrError | None = None
        try:
            self._store.commit(self.group, due, allow_rewind=self._allow_rewind, guard=Guard.COMPARE)
        except PartialFailure as partial:
            failures, error = partial.failures, partial
        except OffsetMgrError as failed:
            failures, error = dict.fromkeys(due, failed), failed
        self._written |= {tp: commit.offset for tp, commit in due.items() if tp not in failures}
        ahead = tuple(sorted(tp for tp, why in failures.items() if isinstance(why, RewindRefused)))
        self.state = replace(self.state, rejected_rewinds=ahead)
        if error is None:
            self.state = replace(self.state, commits=self.state.commits + 1)
            metrics.COMMITS.labels(self.group).inc()
            return None
        self.count_failure()
        return error

    def count_failure(self) -> None:
        """Counts an attempt that did not reach the store as failed."""
        self.state = replace(self.state, failures=self.state.failures + 1)
        metrics.FAILURES.labels(self.group).inc()

    def report(self, error: OffsetMgrError) -> None:
        """Reports once in the log, and in the metric for as long as it lasts, that the group falls behind its query."""
        if self.state.failing is None or str(self.state.failing) != str(error):
            LOG.error("group %s is not committed: %s%s", self.group, error, f" ({error.hint})" if error.hint else "")
        self.state = replace(self.state, failing=error)
        metrics.FAILING.labels(self.group).set(1)

    def clear_failure(self) -> None:
        """Everything due is committed."""
        if self.state.failing is not None:
            LOG.warning("group %s is committed again, after %d failures", self.group, self.state.failures)
        self.state = replace(self.state, failing=None)
        metrics.FAILING.labels(self.group).set(0)


def is_retriable(error: OffsetMgrError) -> bool:
    """Whether the same commit may succeed without intervention; for a partial failure, each part."""
    if isinstance(error, PartialFailure):
        return all(failure.retriable for failure in error.failures.values())
    return error.retriable
