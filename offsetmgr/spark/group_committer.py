"""Commits the offsets of one group to a store, and keeps the state that `OffsetCommitter` and `BatchCommitter` report.

A Spark job is not a member of its group, so it commits without the group lock (`Guard.COMPARE`): the store reads the
group's offsets, rejects a commit that would lower an offset, and writes. In Kafka these steps are not atomic. A driver
may freeze between two of these steps, and wake after a new driver has taken over the query. In this case the old
driver's offset may overwrite a newer offset. No message is lost: the group's offset of this partition stays too low
only until the new driver's next commit raises it again.
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
"""A function for foreachBatch. Its arguments are the batch's DataFrame and number."""


@dataclass(frozen=True, slots=True)
class CommitterState:
    """The state of a group's commits.

    ``commits`` and ``failures`` count attempts. ``failing`` is the reported error; None if no error was reported or a
    later attempt has succeeded. ``rejected_rewinds`` are the partitions for which the last commit was rejected, because
    the group is ahead of the checkpoint.
    """

    commits: int = 0
    failures: int = 0
    failing: OffsetMgrError | None = None
    rejected_rewinds: tuple[TopicPartition, ...] = ()


class GroupCommitter:
    """Commits one group's offsets to one store. Only one thread at a time may use it."""

    def __init__(self, store: OffsetStore, group: str, *, allow_rewind: bool = False) -> None:
        self.group = group
        self.state = CommitterState()
        self._store = store
        self._allow_rewind = allow_rewind
        self._written: dict[TopicPartition, int] = {}

    def clear_cache(self) -> None:
        """Forgets the offsets that were committed, so that the next attempt commits every partition. Called
        periodically, in case another program has changed the group."""
        self._written.clear()

    def attempt(self, offsets: Mapping[TopicPartition, int]) -> OffsetMgrError | None:
        """Commits the offsets that have changed since the last successful attempt. Returns the error if some or all
        commits failed, and otherwise None."""
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
        """Adds one to the number of failures."""
        self.state = replace(self.state, failures=self.state.failures + 1)
        metrics.FAILURES.labels(self.group).inc()

    def report(self, error: OffsetMgrError) -> None:
        """Reports that the offsets cannot be committed. The log contains each error once. The state and the metric show
        the failure until `clear_failure` is called."""
        if self.state.failing is None or str(self.state.failing) != str(error):
            LOG.error(
                "cannot commit offsets of group %s: %s%s", self.group, error, f" ({error.hint})" if error.hint else ""
            )
        self.state = replace(self.state, failing=error)
        metrics.FAILING.labels(self.group).set(1)

    def clear_failure(self) -> None:
        """Resets the reported failure after all offsets have been committed."""
        if self.state.failing is not None:
            LOG.warning(
                "offsets of group %s are committed again, after %d failed attempts", self.group, self.state.failures
            )
        self.state = replace(self.state, failing=None)
        metrics.FAILING.labels(self.group).set(0)


def is_retriable(error: OffsetMgrError) -> bool:
    """Returns whether the same commit may succeed later without intervention. A partial failure is retriable if each of
    its failures is retriable."""
    if isinstance(error, PartialFailure):
        return all(failure.retriable for failure in error.failures.values())
    return error.retriable
