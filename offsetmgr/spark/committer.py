"""`OffsetCommitter`: a query listener that commits the offsets of finished micro-batches to a consumer group."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from offsetmgr.core.errors import OffsetMgrError, SparkError
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.spark.commit_loop import QueryTracker
from offsetmgr.spark.commit_policy import CommitPolicy
from offsetmgr.spark.group_committer import LOG, CommitterState, GroupCommitter, Process
from offsetmgr.spark.query_plan import QueryExecution
from offsetmgr.spark.versions import require_supported


class OffsetCommitter(StreamingQueryListener):
    """Commits the offsets of a session's streaming queries. A ``with`` block listens to the queries. At its end, also
    after an exception, the committer commits the last finished batches.

    The group is never ahead of a query's checkpoint. When a query starts or stops, and every `CommitPolicy.reconcile_s`
    seconds, the committer reconciles the group with the checkpoints: it reads all checkpoints and commits their
    offsets, so that the group's offsets equal the offsets in the checkpoints. The committer ignores sources other than
    Kafka.

    ``store`` is any `OffsetStore`. No other code may use the store at the same time. The committer does not close the
    store. ``spark`` is the session to which the listener is added, by default the active session. ``queries`` are the
    names of the queries to track; the committer commits nothing before all of them have started. By default the
    committer tracks every query of the session, from the start of the query.

    If two sources of the same query or of different queries read the same partition, the committer commits the smaller
    offset. After a query has ended, its last offsets remain part of this comparison until the query restarts, another
    query takes over its name or checkpoint, or you call `forget`. A query that has not finished a batch blocks commits
    for its topics. Spark Connect is not supported.

    Example::

        from offsetmgr.spark import OffsetCommitter, open_store, session

        spark = session("shop-job", master="local[1]")
        orders = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "h1:9092")
        stream = orders.option("subscribe", "orders").load().writeStream.format("noop").trigger(availableNow=True)
        with OffsetCommitter(open_store("kafka://h1:9092"), "shop-job") as committer:
            stream.option("checkpointLocation", "checkpoint").start().awaitTermination()
        print("committed:", committer.state.failing is None)

    A program that cannot use a block calls ``spark.streams.addListener(committer)``, and in the end `close`.
    """

    def __init__(
        self,
        store: OffsetStore,
        group: str,
        *,
        spark: SparkSession | None = None,
        queries: Collection[str] | str | None = None,
        policy: CommitPolicy | None = None,
    ) -> None:
        """Contacts no server. Raises `UnsupportedOperation` if PySpark is not installed, `SparkError` if its version is
        not supported."""
        require_supported("OffsetCommitter")
        self._session = spark or SparkSession.getActiveSession()
        settings = policy or CommitPolicy()
        names = [queries] if isinstance(queries, str) else queries
        self._queries = None if names is None else frozenset(names)
        self._committer = GroupCommitter(store, group, allow_rewind=settings.allow_rewind)
        self._tracker = QueryTracker(self._committer, settings, self._queries or frozenset())

    @property
    def state(self) -> CommitterState:
        """The numbers of commits and failures, and the present failure."""
        return self._committer.state

    def reconcile(self, timeout_s: float = 30.0) -> bool:
        """Reads all checkpoints and commits now. Retries failed commits until the committer reports the failure in the
        log (see `CommitPolicy`). Returns True if the offsets of all finished batches are committed within ``timeout_s``
        seconds. Raises no error for a failed commit: `state` has the error."""
        return self._tracker.reconcile(timeout_s)

    def committed_first(self, process: Process, timeout_s: float = 30.0) -> Process:
        """Wraps a function for foreachBatch so that each batch begins after the offsets of the previous batches are
        committed.

        With this wrapper, a job that has no checkpoint and starts at the group's offsets repeats at most one batch,
        even if the store is slow. If the commit fails or takes longer than ``timeout_s`` seconds, the committer logs a
        warning and the batch begins anyway.
        """

        def process_after_commit(frame: Any, batch_id: int) -> None:
            if not self.reconcile(timeout_s):
                LOG.warning("batch %d begins although the offsets of the previous batch are not committed", batch_id)
            process(frame, batch_id)

        return process_after_commit

    def forget(self, query: str) -> None:
        """Stops waiting for a query, so that the query no longer blocks commits. ``query`` is the query's id or name.
        Call it for an ended query that will not restart, or for one of ``queries`` that will not start. Raises no
        error if the committer does not track the query."""
        self._tracker.forget(query)

    def close(self, timeout_s: float = 30.0) -> bool:
        """Waits for Spark's queued events, reconciles once more, ends the thread, and removes the listener from the
        session; waits for each of these steps for up to ``timeout_s`` seconds. If both the program and a ``with`` block
        added the listener, removes it twice. Returns True if the offsets of all finished batches are committed. Raises
        no error for a failed commit."""
        self._await_events(timeout_s)
        done = self._tracker.close(timeout_s)
        with suppress(Exception):  # Spark's errors, if the session has been stopped
            for _ in range(2):
                self._active_session("the listener is not removed").streams.removeListener(self)
        self._await_events(timeout_s)
        return done

    def _await_events(self, timeout_s: float) -> None:
        """Waits until Spark has delivered its events. If the program ended during a callback, Spark would print a stack
        trace."""
        with suppress(Exception):
            context = self._active_session("events are not awaited").sparkContext
            context._jsc.sc().listenerBus().waitUntilEmpty(int(timeout_s * 1000))

    def _active_session(self, what: str) -> Any:
        """Returns the session. Raises `SparkError` about ``what`` if there is none."""
        session = self._session or self.spark
        if session is None:
            raise SparkError(what, "there is no active Spark session", "OffsetCommitter(..., spark=)")
        return session

    def __enter__(self) -> Self:
        """Adds the committer to the listeners of the session, so the program need not call ``addListener``. Raises
        `SparkError` if there is no active session."""
        self._active_session("the offsets are not committed").streams.addListener(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Calls `close`. Logs a warning if the last finished batches are not committed."""
        if not self.close():
            LOG.warning("group %s: the last finished batches are not committed", self._committer.group)

    # --- called by Spark: these only schedule checks -------------------------------------------------

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self._track(str(event.id))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        # A query that started before the listener was added is not tracked yet.
        if not self._tracker.schedule_check(str(event.progress.id)):
            self._track(str(event.progress.id))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Tracks the query if it started before the listener was added. An idle query has read nothing since its last
        batch, so it needs no check."""
        if not self._tracker.tracks(str(event.id)):
            self._track(str(event.id))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._tracker.schedule_check(str(event.id), ended=str(event.runId))

    def _track(self, query_id: str) -> None:
        try:
            found = self._active_session(f"query {query_id} is not tracked").streams.get(query_id)
            if found is None:
                return  # the query has already ended
            query = QueryExecution(found)
            if self._queries is None or query.name in self._queries:
                self._tracker.track(query)
        except OffsetMgrError as error:
            self._tracker.cannot_track(query_id, error)
