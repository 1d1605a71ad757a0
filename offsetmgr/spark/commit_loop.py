"""The committer without Spark: queries that are followed, one thread that reads their checkpoints and commits.

Events only say *look at this query*: the offsets are always those of the newest ``commits/N`` in its checkpoint, so
the group is never ahead of it, a lost event is made good by the next one or by the clock, and of many events one
commit comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from offsetmgr.core.errors import OffsetMgrError, SparkError, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.spark import metrics
from offsetmgr.spark.group_committer import LOG, CommitterState, GroupCommitter, worth_retrying
from offsetmgr.spark.offset_merge import CommitBlock, merge_min
from offsetmgr.spark.query_plan import StreamingQueryProtocol
from offsetmgr.spark.tracked_query import TrackedQuery

PLANNING_S: Final = 0.1
"""How long until a query that was still being planned is looked at again."""
_LONGEST_PAUSE_S: Final = 10.0


class _Verdict(Enum):
    """What a round has come to."""

    COMMITTED = "all that has finished is committed"
    PENDING = "another round comes by itself, and may succeed"
    FAILED = "not before somebody does something, or too often already"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """``reconcile_s``: seconds between two looks at all checkpoints, event or not. ``retries``: attempts that may
    fail in a row before it is reported. ``pause_s``: after the first of them, doubled each time up to 10 s."""

    reconcile_s: float = 30.0
    retries: int = 5
    pause_s: float = 0.2


class QueryTracker:
    """Follows queries until `close`. All methods may be called from any thread and do no I/O, except the thread
    itself."""

    def __init__(
        self,
        writer: GroupCommitter,
        *,
        clusters: frozenset[str] | None = None,
        patience: RetryPolicy | None = None,
        stop_on_failure: bool = False,
        expected: frozenset[str] = frozenset(),
    ) -> None:
        """``expected`` are names of queries: nothing is committed before each of them has been followed."""
        self._writer = writer
        self._clusters = clusters
        self._patience = patience or RetryPolicy()
        self._stop_on_failure = stop_on_failure
        self._condition = threading.Condition()
        self._expected = set(expected)
        self._followed: dict[str, TrackedQuery] = {}
        self._look: set[str] = set()
        self._asked = 0
        self._answered = 0
        self._verdict = _Verdict.COMMITTED
        self._closing = False
        self._failed_in_a_row = 0
        self._not_before = 0.0
        self._reconcile_at = 0.0
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> CommitterState:
        return self._writer.state

    def follow(self, query: StreamingQueryProtocol) -> None:
        """A query has started. It takes the place of an ended one with its checkpoint or its name. Raises `UsageError`
        after `close`."""
        with self._condition:
            if self._closing:
                raise UsageError(f"query {query.id} is not followed", "the committer was closed")
            self._expected.discard(query.name or "")
            for other in [
                key for key, value in self._followed.items() if value.ended and _replaces(query, value.query)
            ]:
                if other != query.id:
                    del self._followed[other]
            before = self._followed.get(query.id)
            self._followed[query.id] = TrackedQuery(query) if before is None else before.again(query)
            self._look.add(query.id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="offsetmgr-committer", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def follows(self, query_id: str) -> bool:
        with self._condition:
            return query_id in self._followed

    def look(self, query_id: str, *, ended: str | None = None) -> bool:
        """Something happened to a query (``ended``: this run of it has); False where it is not followed."""
        with self._condition:
            found = self._followed.get(query_id)
            if found is None:
                return False
            # A query that starts again is followed at once, while the end of its run before is told later.
            found.ended = found.ended or ended == found.query.run
            self._look.add(query_id)
            self._condition.notify_all()
            return True

    def forget(self, query: str) -> None:
        """An ended query (its id or name) that will not come back, or will not start, no longer holds the group."""
        with self._condition:
            self._expected.discard(query)
            for key, value in list(self._followed.items()):
                if value.ended and query in (key, value.query.name):
                    del self._followed[key]
            self._look.update(self._followed)
            self._condition.notify_all()

    def reconcile(self, timeout: float) -> bool:
        """Reads all checkpoints, compares with the store and commits. True where all is committed within ``timeout``
        s; what fails is tried again until then, or until it is reported."""
        with self._condition:
            if self._thread is None:
                return True
            self._asked += 1
            ticket = self._asked
            self._condition.notify_all()

            def told() -> bool:
                return self._answered >= ticket and self._verdict is not _Verdict.PENDING

            self._condition.wait_for(lambda: told() or not self._alive(), timeout)
            return told() and self._verdict is _Verdict.COMMITTED

    def close(self, timeout: float) -> bool:
        """A last reconciliation, then the thread ends. True where all is committed."""
        done = self.reconcile(timeout)
        with self._condition:
            self._closing = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        return done

    # --- the thread ------------------------------------------------------------------------------

    def _alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        self._reconcile_at = time.monotonic() + self._patience.reconcile_s
        while True:
            with self._condition:
                while (wait := self._wait_s()) > 0 and not self._closing:
                    self._condition.wait(wait)
                if self._closing:
                    return
                asked = self._asked
                everything = asked > self._answered or time.monotonic() >= self._reconcile_at
                due = [value for key, value in self._followed.items() if key in self._look or everything]
                self._look.clear()
            verdict = self._round(due, everything)
            with self._condition:
                self._verdict = verdict
                self._answered = asked
                self._condition.notify_all()

    def _wait_s(self) -> float:
        """Seconds until there is something to do."""
        now = time.monotonic()
        if self._asked > self._answered:
            return 0.0
        if self._look:
            return self._not_before - now
        return max(self._not_before, self._reconcile_at) - now

    def _round(self, due: list[TrackedQuery], everything: bool) -> _Verdict:
        if everything:
            self._reconcile_at = time.monotonic() + self._patience.reconcile_s
            self._writer.forget()
        for followed in due:
            self._read(followed)
        with self._condition:
            known = list(self._followed.values())
            expected = sorted(self._expected)
        holds = [hold for followed in known for hold in followed.holds]
        if expected:
            holds.append(CommitBlock())
            if everything:
                LOG.warning("group %s waits for %s to start", self._writer.group, ", ".join(expected))
        merged = merge_min([r for followed in known for r in followed.readings], self._clusters, holds)
        failed = self._attempt(merged.offsets)
        problem = merged.problem
        unread = next((followed.error for followed in known if followed.error is not None), None)
        self._judge(failed or problem or unread, failed or _first(due) or problem, due)
        if self._writer.state.failing is not None or expected:
            return _Verdict.FAILED
        pending = failed or problem or unread or not all(followed.planned for followed in known)
        return _Verdict.PENDING if pending else _Verdict.COMMITTED

    def _read(self, followed: TrackedQuery) -> None:
        found = followed.read()
        if followed.error is not None:
            self._writer.count_failure()
        if found is not None:
            metrics.FINISHED.labels(self._writer.group, followed.query.name or followed.query.id).set(found.number)
        if not followed.planned:
            self._again([followed.query.id], PLANNING_S)

    def _attempt(self, offsets: Mapping[TopicPartition, int]) -> OffsetMgrError | None:
        try:
            return self._writer.attempt(offsets)
        except Exception as failed:  # a defect of some store must not end the thread in silence
            self._writer.count_failure()
            return SparkError(f"group {self._writer.group} is not committed", repr(failed))

    def _judge(
        self, standing: OffsetMgrError | None, new: OffsetMgrError | None, looked_at: list[TrackedQuery]
    ) -> None:
        """``standing`` is what hinders, ``new`` what has hindered this round: one query's event says nothing of what
        another one suffers from."""
        if standing is None:
            self._failed_in_a_row = 0
            self._writer.mended()
            return
        if new is None:
            return
        self._failed_in_a_row += 1
        if again := worth_retrying(new):
            pause = min(self._patience.pause_s * 2 ** min(self._failed_in_a_row - 1, 20), _LONGEST_PAUSE_S)
            self._again([followed.query.id for followed in looked_at], pause)
        if not again or self._failed_in_a_row > self._patience.retries:
            self._writer.report(new)
            if self._stop_on_failure:
                self._stop_all()

    def _again(self, queries: list[str], seconds: float) -> None:
        with self._condition:
            self._look.update(queries)
            self._not_before = time.monotonic() + seconds

    def _stop_all(self) -> None:
        with self._condition:
            running = [value.query for value in self._followed.values() if not value.ended]
        for query in running:
            # Stopping waits for the batch in hand, which may itself be waiting for us (`committed_first`).
            threading.Thread(target=query.stop, name="offsetmgr-stop", daemon=True).start()


def _first(looked_at: list[TrackedQuery]) -> OffsetMgrError | None:
    return next((followed.error for followed in looked_at if followed.error is not None), None)


def _replaces(query: StreamingQueryProtocol, old: StreamingQueryProtocol) -> bool:
    return query.files.root == old.files.root or (query.name is not None and query.name == old.name)
