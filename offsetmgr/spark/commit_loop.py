"""`QueryTracker`: tracks streaming queries. The thread of the tracker reads the checkpoints of the queries and commits
the queries' offsets to the group.

This module is independent of Spark. An event of a query only triggers a check; the offsets always come from the newest
``commits/N`` in the query's checkpoint. The group is therefore never ahead of the checkpoint. If an event is lost, the
next event or the periodic check triggers the check instead. Several events before a check cause only one commit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from enum import Enum
from typing import Final

from offsetmgr.core.errors import OffsetMgrError, SparkError, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.retry import Backoff
from offsetmgr.spark import metrics
from offsetmgr.spark.commit_policy import CommitPolicy
from offsetmgr.spark.group_committer import LOG, GroupCommitter, is_retriable, log_failure
from offsetmgr.spark.offset_merge import CommitBlock, merge_min
from offsetmgr.spark.query_plan import QueryExecution
from offsetmgr.spark.tracked_query import TrackedQuery

PLANNING_S: Final = 0.1
"""Delay before the next check of a query that Spark has not planned yet."""
_MAX_PAUSE_S: Final = 10.0


class _RoundResult(Enum):
    """The result of one round. In a round the thread reads the checkpoints of the due queries and makes one commit."""

    COMMITTED = "the offsets of all finished batches are committed"
    PENDING = "something failed or is not planned yet; the thread tries again on its own"
    FAILED = "the failure is reported, or an expected query has not started"


class QueryTracker:
    """Tracks streaming queries and commits their offsets until `close`.

    All methods are thread-safe. Only the tracker's own thread does I/O.
    """

    def __init__(self, committer: GroupCommitter, policy: CommitPolicy, expected: frozenset[str] = frozenset()) -> None:
        """``expected`` are names of queries. The tracker commits nothing until all these queries have started. The
        pause between attempts is at most 10 s. With ``stop_on_failure`` in the policy, the tracker stops all running
        queries when it reports a failure.
        """
        self._committer = committer
        self._policy = policy
        self._condition = threading.Condition()
        self._expected = set(expected)
        self._tracked: dict[str, TrackedQuery] = {}
        self._untracked: set[str] = set()
        """The ids of the queries that cannot be tracked."""
        self._due: set[str] = set()
        self._requested_rounds = 0
        self._completed_rounds = 0
        self._result = _RoundResult.COMMITTED
        self._closing = False
        self._consecutive_failures = 0
        self._not_before = 0.0
        self._reconcile_at = 0.0
        self._thread: threading.Thread | None = None

    def track(self, query: QueryExecution) -> None:
        """Starts to track a query that has started. The query replaces an ended query that has the same checkpoint or
        name. Raises `UsageError` after `close`."""
        with self._condition:
            if self._closing:
                raise UsageError(f"query {query.id} is not tracked", "the committer is closed")
            self._expected.discard(query.name or "")
            self._untracked.discard(query.id)
            for other in [key for key, value in self._tracked.items() if value.ended and _replaces(query, value.query)]:
                if other != query.id:
                    del self._tracked[other]
            before = self._tracked.get(query.id, TrackedQuery(query))
            # A query continues from the same checkpoint after a restart, so its progress is kept.
            self._tracked[query.id] = TrackedQuery(query, progress=before.progress, blocks=before.blocks)
            self._due.add(query.id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="offsetmgr-committer", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def cannot_track(self, query_id: str, error: OffsetMgrError) -> None:
        """Logs why a query cannot be tracked. Until `forget`, the offsets of its batches count as not committed."""
        with self._condition:
            known = query_id in self._untracked
            self._untracked.add(query_id)
        if not known:
            log_failure(self._committer.group, error)

    def tracks(self, query_id: str) -> bool:
        with self._condition:
            return query_id in self._tracked

    def schedule_check(self, query_id: str, *, ended: str | None = None) -> bool:
        """Schedules a check of a query after an event. ``ended`` is the id of the run that has ended; None if the event
        is not the end of a run. Returns False if the query is not tracked."""
        with self._condition:
            found = self._tracked.get(query_id)
            if found is None:
                return False
            # Spark may report the end of the previous run after the restarted query is tracked.
            found.ended = found.ended or ended == found.query.run
            self._due.add(query_id)
            self._condition.notify_all()
            return True

    def forget(self, query: str) -> None:
        """Removes an ended query that will not restart, or an expected query that will not start. After this the query
        no longer blocks commits. ``query`` is an id or a name."""
        with self._condition:
            self._expected.discard(query)
            self._untracked.discard(query)
            for key, value in list(self._tracked.items()):
                if value.ended and query in (key, value.query.name):
                    del self._tracked[key]
            self._due.update(self._tracked)
            self._condition.notify_all()

    def reconcile(self, timeout_s: float) -> bool:
        """Reads all checkpoints, compares them with the store, and commits.

        Returns True if the offsets of all finished batches are committed within ``timeout_s`` seconds. The tracker
        repeats failed attempts until the timeout, or until it reports the failure in the log (see `CommitPolicy`).
        """
        with self._condition:
            if (thread := self._thread) is None:
                return not (self._expected or self._untracked)
            self._requested_rounds += 1
            ticket = self._requested_rounds
            self._condition.notify_all()

            def completed() -> bool:
                return self._completed_rounds >= ticket and self._result is not _RoundResult.PENDING

            self._condition.wait_for(lambda: completed() or not thread.is_alive(), timeout_s)
            return completed() and self._result is _RoundResult.COMMITTED and not self._untracked

    def close(self, timeout_s: float) -> bool:
        """Reconciles once more and ends the thread. Returns the result of `reconcile`."""
        done = self.reconcile(timeout_s)
        with self._condition:
            self._closing = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
        return done

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        self._reconcile_at = time.monotonic() + self._policy.reconcile_s
        while True:
            with self._condition:
                while (wait := self._wait_s()) > 0 and not self._closing:
                    self._condition.wait(wait)
                if self._closing:
                    return
                requested = self._requested_rounds
                all_queries = requested > self._completed_rounds or time.monotonic() >= self._reconcile_at
                due = [value for key, value in self._tracked.items() if key in self._due or all_queries]
                self._due.clear()
            result = self._round(due, all_queries)
            with self._condition:
                self._result = result
                self._completed_rounds = requested
                self._condition.notify_all()

    def _wait_s(self) -> float:
        """Returns the seconds until the next round."""
        now = time.monotonic()
        if self._requested_rounds > self._completed_rounds:
            return 0.0
        if self._due:
            return self._not_before - now
        return max(self._not_before, self._reconcile_at) - now

    def _round(self, due: list[TrackedQuery], all_queries: bool) -> _RoundResult:
        if all_queries:
            self._reconcile_at = time.monotonic() + self._policy.reconcile_s
            self._committer.clear_cache()
        for tracked in due:
            self._read(tracked)
        with self._condition:
            known = list(self._tracked.values())
            expected = sorted(self._expected)
        blocks = [block for tracked in known for block in tracked.blocks]
        if expected:
            blocks.append(CommitBlock())
            if all_queries:
                LOG.warning(
                    "group %s: offsets are not committed until these queries have started: %s",
                    self._committer.group,
                    ", ".join(expected),
                )
        offsets, problem = merge_min([r for tracked in known for r in tracked.progress], self._policy.clusters, blocks)
        failed = self._attempt(offsets)
        unread, new = (next(filter(None, (one.error for one in queries)), None) for queries in (known, due))
        self._handle_result(failed or problem or unread, failed or new or problem, due)
        if self._committer.state.failing is not None or expected:
            return _RoundResult.FAILED
        pending = failed or problem or unread or not all(tracked.planned for tracked in known)
        return _RoundResult.PENDING if pending else _RoundResult.COMMITTED

    def _read(self, tracked: TrackedQuery) -> None:
        found = tracked.read()
        if tracked.error is not None:
            self._committer.count_failure()
        if found is not None:
            metrics.FINISHED.labels(self._committer.group, tracked.query.name or tracked.query.id).set(found.number)
        if not tracked.planned:
            self._schedule([tracked.query.id], PLANNING_S)

    def _attempt(self, offsets: Mapping[TopicPartition, int]) -> OffsetMgrError | None:
        try:
            return self._committer.attempt(offsets)
        except Exception as failed:  # a bug in a store must not end the thread silently
            self._committer.count_failure()
            return SparkError(f"group {self._committer.group} is not committed", repr(failed))

    def _handle_result(
        self, persistent: OffsetMgrError | None, new: OffsetMgrError | None, checked: list[TrackedQuery]
    ) -> None:
        """Schedules a retry after a failure. Reports a failure that is not retriable or has occurred too often.

        ``persistent`` is a problem that exists now, found in this round or in an earlier round. ``new`` is a problem
        found in this round. A round that an event of one query has caused checks only this query, so a known problem of
        another query is persistent but not new. Only new problems are counted.
        """
        if persistent is None:
            self._consecutive_failures = 0
            self._committer.clear_failure()
            return
        if new is None:
            return
        self._consecutive_failures += 1
        if again := is_retriable(new):
            backoff = Backoff(self._policy.pause_s, _MAX_PAUSE_S)
            self._schedule([tracked.query.id for tracked in checked], backoff.pause_s(self._consecutive_failures))
        if not again or self._consecutive_failures > self._policy.retries:
            self._committer.report(new)
            if self._policy.stop_on_failure:
                with self._condition:
                    running = [value.query for value in self._tracked.values() if not value.ended]
                for query in running:
                    # `stop` waits for the running batch, and that batch may wait for this thread (`committed_first`).
                    threading.Thread(target=query.stop, name="offsetmgr-stop", daemon=True).start()

    def _schedule(self, queries: list[str], seconds: float) -> None:
        with self._condition:
            self._due.update(queries)
            self._not_before = time.monotonic() + seconds


def _replaces(query: QueryExecution, old: QueryExecution) -> bool:
    return query.files.root == old.files.root or (query.name is not None and query.name == old.name)
