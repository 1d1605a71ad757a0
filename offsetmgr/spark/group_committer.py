"""Commits the offsets of one group to a store, and keeps the state that `OffsetCommitter` and `BatchCommitter` report.

A Spark job is not a member of its group, so it commits without the group lock (`Guard.COMPARE`): the store reads the
group's offsets, rejects a commit that would lower an offset, and writes. In Kafka these steps are not atomic. A driver
may freeze between two of these steps, and wake after a new driver has taken over the query. In this case the old
driver's offset may overwrite a newer offset. No message is lost: the group's offset of this partition stays too low
only until the new driver's next commit raises it again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from offsetmgr.core.errors import OffsetMgrError, PartialFailure, RecreatedTopic, RewindRefused
from offsetmgr.core.model import Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, GroupEdit, Guard, OffsetStore
from offsetmgr.spark import metrics
from offsetmgr.stores.known_logs import KnownLogs

LOG: Final = logging.getLogger("offsetmgr.spark")
_WAITS: Final = "the next batch that reads the new log commits its offset"

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
        self._logs = KnownLogs(store)
        self._written: dict[TopicPartition, int] = {}
        self._unchecked: set[TopicPartition] = set()
        """The partitions that the next attempt compares with the store, although they are in ``_written``."""
        self._offered: dict[TopicPartition, int] = {}
        self._deleted: dict[TopicPartition, tuple[int, str]] = {}
        """The last known offset of each partition whose topic was recreated, which belongs to the deleted log; and the
        evidence."""
        self._reported: object = None

    def clear_cache(self) -> None:
        """Makes the next attempt compare every partition with the store. Called periodically, in case another program
        has changed the group."""
        self._unchecked = set(self._written)

    def attempt(self, offsets: Mapping[TopicPartition, int]) -> OffsetMgrError | None:
        """Commits the offsets that have changed since the last successful attempt. Returns the error if some or all
        commits failed, and otherwise None.

        An offset of the deleted log of a recreated topic is not committed. The first offset of the new log may be lower
        than the group's offset.
        """
        due = {tp: at for tp, at in offsets.items() if tp in self._unchecked or self._written.get(tp) != at}
        if not due:
            return None
        failures: dict[TopicPartition, OffsetMgrError] = {}
        error: OffsetMgrError | None = None
        try:
            failures |= self._of_deleted_logs(due)
            failures |= self._commit({tp: offset for tp, offset in due.items() if tp not in failures})
            if failures:
                done = {tp: due[tp] for tp in due.keys() - failures.keys()}
                error = PartialFailure(f"commit of group {self.group}", successes=done, failures=failures)
        except OffsetMgrError as failed:
            failures, error = dict.fromkeys(due, failed), failed
        self._unchecked = self._unchecked - due.keys() | failures.keys()
        for tp in due.keys() - failures.keys():
            self._written[tp] = due[tp]
            self._deleted.pop(tp, None)
        ahead = tuple(sorted(tp for tp, why in failures.items() if isinstance(why, RewindRefused)))
        self.state = replace(self.state, rejected_rewinds=ahead)
        if error is None:
            self.state = replace(self.state, commits=self.state.commits + 1)
            metrics.COMMITS.labels(self.group).inc()
            return None
        self.count_failure()
        return error

    def _of_deleted_logs(self, due: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetMgrError]:
        """Returns the partitions whose offset belongs to the deleted log of a recreated topic, each with the error."""
        recreated = self._logs.recreated({tp.topic for tp in due})
        for tp, offset in self._offered.items():
            if tp.topic in recreated:  # a larger offset may belong to either log, so the next one decides
                self._deleted[tp] = max(offset, due.get(tp, offset)), recreated[tp.topic]
        self._offered |= due
        failures: dict[TopicPartition, OffsetMgrError] = {
            tp: error for (tp, _), error in self._logs.beyond_end(due.items()).items()
        }
        for tp, at in due.items():
            last, evidence = self._deleted.get(tp, (None, ""))
            if last == at:
                why = f"{evidence}; offset {at} belongs to the deleted log"
                failures[tp] = RecreatedTopic(str(tp), why, _WAITS)
        return failures

    def _commit(self, due: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, OffsetMgrError]:
        """Commits offsets and returns the failures. Leaves the metadata of a commit with the same offset."""
        changes = {tp: Change(OffsetAndMetadata(at), None, self._allow_rewind, True) for tp, at in due.items()}
        outcomes = self._edit(changes)
        old = {
            tp: changes[tp]._replace(expected=outcome.before, allow_rewind=True)
            for tp, outcome in outcomes.items()
            if isinstance(outcome.error, RewindRefused) and self._is_of_deleted_log(tp, outcome.before)
        }
        outcomes |= self._edit(old)
        return {tp: outcome.error for tp, outcome in outcomes.items() if outcome.error is not None}

    def _edit(self, changes: Mapping[TopicPartition, Change]) -> dict[TopicPartition, ChangeOutcome]:
        if not changes:
            return {}
        (result,) = self._store.edit([GroupEdit(self.group, changes, Guard.COMPARE)])
        return dict(result.outcomes)

    def _is_of_deleted_log(self, tp: TopicPartition, found: Offset | None) -> bool:
        """Returns whether the group's offset is the last one of a deleted log, or older than its topic."""
        if not isinstance(found, Committed):
            return False
        known = tp in self._deleted and found.offset in (self._deleted[tp][0], self._written.get(tp))
        return known or self._logs.predates(tp, found)

    def count_failure(self) -> None:
        """Adds one to the number of failures."""
        self.state = replace(self.state, failures=self.state.failures + 1)
        metrics.FAILURES.labels(self.group).inc()

    def report(self, error: OffsetMgrError) -> None:
        """Reports that the offsets cannot be committed. The log contains a failure of the same kind in the same
        partitions once, whatever its numbers are. The state and the metric show the failure until `clear_failure` is
        called."""
        kind = _kind(error)
        if self.state.failing is None or kind != self._reported:
            log_failure(self.group, error)
        self._reported = kind
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


def log_failure(group: str, error: OffsetMgrError) -> None:
    LOG.error("cannot commit offsets of group %s: %s%s", group, error, f" ({error.hint})" if error.hint else "")


def _kind(error: OffsetMgrError) -> object:
    if isinstance(error, PartialFailure):
        return {tp: type(failure) for tp, failure in error.failures.items()}
    return type(error), re.sub("[0-9]+", "", str(error))


def is_retriable(error: OffsetMgrError) -> bool:
    """Returns whether the same commit may succeed later without intervention. A partial failure is retriable if each of
    its failures is retriable."""
    if isinstance(error, PartialFailure):
        return all(failure.retriable for failure in error.failures.values())
    return error.retriable
