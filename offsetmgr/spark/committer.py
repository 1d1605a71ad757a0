"""`OffsetCommitter`: a listener that commits the finished micro-batches of a session's queries to a consumer group."""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from offsetmgr.core.errors import OffsetMgrError, SparkError
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.spark.commit_loop import QueryTracker, RetryPolicy
from offsetmgr.spark.commit_policy import CommitPolicy
from offsetmgr.spark.group_committer import LOG, CommitterState, GroupCommitter, Process
from offsetmgr.spark.query_plan import QueryExecution
from offsetmgr.spark.versions import require_supported


class OffsetCommitter(StreamingQueryListener):
    """``spark.streams.addListener(OffsetCommitter(store, "g"))``: commits the queries' finished offsets to the group.

    The group is never ahead of a query's checkpoint, and equal to it after each reconciliation: at a query's start and
    stop, and every `CommitPolicy.reconcile_s` seconds. Sources other than Kafka are ignored.

    ``store`` is any `OffsetStore`, for this committer only; it is not closed. ``spark`` is the session to which the
    listener is added (None: the active one). ``queries`` are the names of the queries to track; nothing is committed
    before all of them have started (None: all queries of the session, as they start). If two sources, of one query or
    of two, read one topic, the smaller offset is committed. A query that has not finished a batch blocks commits for
    its topics. A query that has ended keeps them at its last offset until it restarts, another query takes over its
    name or checkpoint, or you call `forget`. Does not support Spark Connect.
    """

    def __init__(
        self,
        store: OffsetStore,
        group: str,
        *,
        spark: SparkSession | None = None,
        queries: Collection[str] | None = None,
        policy: CommitPolicy | None = None,
    ) -> None:
        require_supported("OffsetCommitter")
        self._session = spark or SparkSession.getActiveSession()
        settings = policy or CommitPolicy()
        self._queries = None if queries is None else frozenset(queries)
        self._tracker = QueryTracker(
            GroupCommitter(store, group, allow_rewind=settings.allow_rewind),
            clusters=settings.clusters,
            retry_policy=RetryPolicy(settings.reconcile_s, settings.retries, settings.pause_s),
            stop_on_failure=settings.stop_on_failure,
            expected=self._queries or frozenset(),
        )

    @property
    def state(self) -> CommitterState:
        """Numbers of commits and failures, and the present failure."""
        return self._tracker.state

    def reconcile(self, timeout: float = 30.0) -> bool:
        """Reads all checkpoints and commits now; failures are retried until they are reported. True if everything is
        committed within ``timeout`` seconds."""
        return self._tracker.reconcile(timeout)

    def committed_first(self, process: Process, timeout: float = 30.0) -> Process:
        """For foreachBatch: returns ``process`` wrapped so that a batch begins only after the previous ones are
        committed.

        A job that starts from the group alone then repeats at most one batch, even if the store is slow. If the commit
        takes longer than ``timeout`` seconds or fails, that is reported and the batch begins all the same.
        """

        def process_after_commit(frame: Any, batch_id: int) -> None:
            if not self.reconcile(timeout):
                LOG.warning("batch %d begins before the one before it is committed", batch_id)
            process(frame, batch_id)

        return process_after_commit

    def forget(self, query: str) -> None:
        """An ended query (by id or name) will not restart, or one of ``queries`` will not start: it no longer blocks
        commits."""
        self._tracker.forget(query)

    def close(self, timeout: float = 30.0) -> bool:
        """Reconciles once more and ends the thread. True if everything is committed."""
        return self._tracker.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    # --- called by Spark: only records which query to check ------------------------------------------

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self._track(str(event.id))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._check(str(event.progress.id))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing was read, so nothing is new; but the query may have started before the listener was added."""
        if not self._tracker.tracks(str(event.id)):
            self._track(str(event.id))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._tracker.schedule_check(str(event.id), ended=str(event.runId))

    def _check(self, query_id: str) -> None:
        # The query is not tracked yet if the listener was added after it had started.
        if not self._tracker.schedule_check(query_id):
            self._track(query_id)

    def _track(self, query_id: str) -> None:
        try:
            session = self._session or self.spark
            if session is None:
                raise SparkError(
                    f"query {query_id} is not followed", "no Spark session", "OffsetCommitter(..., spark=)"
                )
            found = session.streams.get(query_id)
            if found is None:
                return  # ended before it was tracked
            query = QueryExecution(found)
            if self._queries is None or query.name in self._queries:
                self._tracker.track(query)
        except OffsetMgrError as error:
            LOG.error("%s", error)
