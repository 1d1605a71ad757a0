"""The committer without Spark: queries that are followed, one thread that reads their checkpoints and commits.

Events only say *look at this query*: the offsets are always those of the newest ``commits/N`` in its checkpoint, so
the group is never ahead of it, a lost event is made good by the next one or by the clock, and of many events one
commit comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from offsetmgr.errors import OffsetMgrError, SparkError, UsageError
from offsetmgr.model import TopicPartition
from offsetmgr.spark import metrics
from offsetmgr.spark.checkpointfiles import newest_finished
from offsetmgr.spark.merging import Reading, smallest
from offsetmgr.spark.running import FollowedQuery, readings
from offsetmgr.spark.writing import CommitterState, GroupWriter, worth_retrying

PLANNING_S: Final = 0.1
"""How long until a query that was still being planned is looked at again."""
_LONGEST_PAUSE_S: Final = 10.0


@dataclass
class _Followed:
    query: FollowedQuery
    ended: bool = False
    readings: list[Reading] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Patience:
    """``reconcile_s``: seconds between two looks at all checkpoints, event or not. ``retries``: attempts that may
    fail in a row before it is reported. ``pause_s``: after the first of them, doubled each time up to 10 s."""

    reconcile_s: float = 30.0
    retries: int = 5
    pause_s: float = 0.2


class Follower:
    """Follows queries until `close`. All methods may be called from any thread and do no I/O, except the thread
    itself."""

    def __init__(
        self,
        writer: GroupWriter,
        *,
        clusters: frozenset[str] | None = None,
        patience: Patience | None = None,
        stop_on_failure: bool = False,
    ) -> None:
        self._writer = writer
        self._clusters = clusters
        self._patience = patience or Patience()
        self._stop_on_failure = stop_on_failure
        self._condition = threading.Condition()
        self._followed: dict[str, _Followed] = {}
        self._look: set[str] = set()
        self._asked = 0
        self._answered = 0
        self._clean = True
        self._closing = False
        self._failed_in_a_row = 0
        self._not_before = 0.0
        self._reconcile_at = 0.0
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> CommitterState:
        return self._writer.state

    def follow(self, query: FollowedQuery) -> None:
        """A query has started. It takes the place of an ended one with its checkpoint or its name. Raises `UsageError`
        after `close`."""
        with self._condition:
            if self._closing:
                raise UsageError(f"query {query.id} is not followed", "the committer was closed")
            for other in [
                key for key, value in self._followed.items() if value.ended and _replaces(query, value.query)
            ]:
                del self._followed[other]
            before = self._followed.get(query.id)
            self._followed[query.id] = _Followed(query, readings=before.readings if before else [])
            self._look.add(query.id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="offsetmgr-committer", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def look(self, query_id: str, *, ended: bool = False) -> bool:
        """Something happened to a query; False where it is not followed."""
        with self._condition:
            found = self._followed.get(query_id)
            if found is None:
                return False
            found.ended = found.ended or ended
            self._look.add(query_id)
            self._condition.notify_all()
            return True

    def forget(self, query: str) -> None:
        """An ended query (its id or name) that will not come back no longer holds the group."""
        with self._condition:
            for key, value in list(self._followed.items()):
                if value.ended and query in (key, value.query.name):
                    del self._followed[key]
            self._look.update(self._followed)
            self._condition.notify_all()

    def reconcile(self, timeout: float) -> bool:
        """Reads all checkpoints, compares with the store and commits. True where all is committed within ``timeout``
        s."""
        with self._condition:
            if self._thread is None:
                return True
            self._asked += 1
            ticket = self._asked
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._answered >= ticket or not self._alive(), timeout)
            return self._answered >= ticket and self._clean

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
            clean = self._round(due, everything)
            with self._condition:
                self._clean = clean
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

    def _round(self, due: list[_Followed], everything: bool) -> bool:
        if everything:
            self._reconcile_at = time.monotonic() + self._patience.reconcile_s
            self._writer.forget()
        error: OffsetMgrError | None = None
        for followed in due:
            try:
                self._read(followed)
            except OffsetMgrError as failed:
                error = failed
                self._writer.count_failure()
            except Exception as failed:  # py4j's, when the driver's JVM ends: reported as any other failure
                error = SparkError(f"query {followed.query.id} cannot be read", str(failed).split("\n", 1)[0])
                self._writer.count_failure()
        with self._condition:
            merged = smallest([r for value in self._followed.values() for r in value.readings], self._clusters)
        error = self._attempt(merged.offsets) or error
        if error is None and merged.ambiguous:
            topic, names = next(iter(sorted(merged.ambiguous.items())))
            error = SparkError(
                f"topic {topic} is not committed",
                f"it is read from {' and from '.join(name or 'an unknown cluster' for name in names)}",
                "say which cluster the group belongs to: OffsetCommitter(..., cluster=BOOTSTRAP_SERVERS)",
            )
        self._judge(error, [value.query.id for value in due])
        return error is None

    def _read(self, followed: _Followed) -> None:
        query = followed.query
        sources = query.sources()
        if sources is None:
            if not followed.ended:
                self._again([query.id], PLANNING_S)
            return
        found = newest_finished(query.files)
        if found is not None:
            followed.readings = readings(found, sources, f"query {query.name or query.id}")
            metrics.FINISHED.labels(self._writer.group, query.name or query.id).set(found.number)
        elif followed.ended:
            followed.readings = []  # its checkpoint is gone, so nobody will go on from there

    def _attempt(self, offsets: Mapping[TopicPartition, int]) -> OffsetMgrError | None:
        try:
            return self._writer.attempt(offsets)
        except Exception as failed:  # a defect of some store must not end the thread in silence
            self._writer.count_failure()
            return SparkError(f"group {self._writer.group} is not committed", repr(failed))

    def _judge(self, error: OffsetMgrError | None, looked_at: list[str]) -> None:
        if error is None:
            self._failed_in_a_row = 0
            self._writer.mended()
            return
        self._failed_in_a_row += 1
        if worth_retrying(error):
            pause = min(self._patience.pause_s * 2 ** min(self._failed_in_a_row - 1, 20), _LONGEST_PAUSE_S)
            self._again(looked_at, pause)
        if not worth_retrying(error) or self._failed_in_a_row > self._patience.retries:
            self._writer.report(error)
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


def _replaces(query: FollowedQuery, old: FollowedQuery) -> bool:
    return query.files.root == old.files.root or (query.name is not None and query.name == old.name)
