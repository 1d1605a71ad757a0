"""`BatchCommitter`: commits offsets from inside foreachBatch, for jobs without a listener.

When batch N begins, batch N-1 is finished and ``commits/N-1`` is in the checkpoint, so the committer commits the
offsets of batch N-1. The committer can also commit batch N after the output of batch N, but such a commit is *ahead of
the checkpoint*: if the driver dies before Spark writes ``commits/N``, the query repeats batch N although the group
already includes it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import CorruptData, OffsetMgrError, SparkError
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.core.retry import Backoff, BlockingRetries
from offsetmgr.spark.checkpoint import (
    CheckpointBatch,
    CheckpointFiles,
    LocalFiles,
    directory_of,
    newest_finished,
    planned_batch,
)
from offsetmgr.spark.commit_policy import CommitPolicy
from offsetmgr.spark.group_committer import CommitterState, GroupCommitter, Process, is_retriable
from offsetmgr.spark.offset_merge import merge_min
from offsetmgr.spark.query_plan import QueryExecution, progress_of
from offsetmgr.spark.versions import require_supported


class BatchCommitter:
    """A function for foreachBatch that commits offsets to a group and calls ``process``. `start` starts a query.

    The committer commits batch N-1 before it calls ``process`` for batch N. At the end of a ``with`` block, also after
    an exception, it commits the last finished batch. ``checkpoint`` is the query's ``checkpointLocation``. With
    ``ahead_of_checkpoint`` the committer also commits batch N after ``process``, before Spark records that the batch is
    finished (see the module's docstring).

    If a commit fails, the batch waits while the committer retries: ``CommitPolicy.retries`` times, and three times
    without a policy. If all attempts fail, the committer reports the failure and the query continues; with
    ``stop_on_failure`` in the policy, the query fails with the error instead.

    Example::

        from pyspark.sql import DataFrame

        from offsetmgr.spark import BatchCommitter, open_store, session

        spark = session("shop-job", master="local[1]")
        store = open_store("kafka://h1:9092")
        orders = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "h1:9092")
        stream = orders.option("subscribe", "orders").load().writeStream.trigger(availableNow=True)

        def show(rows: DataFrame, _number: int) -> None:
            rows.show()

        with BatchCommitter(store, "shop-batches", show, checkpoint="batches") as batches:
            batches.start(stream).awaitTermination()
    """

    def __init__(
        self,
        store: OffsetStore,
        group: str,
        process: Process,
        *,
        checkpoint: str,
        spark: SparkSession | None = None,
        ahead_of_checkpoint: bool = False,
        policy: CommitPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Contacts no server. Raises `UnsupportedOperation` if PySpark is not installed, `SparkError` if its version is
        not supported."""
        require_supported("BatchCommitter")
        # The DataFrames of foreachBatch belong to a clone of the session, which does not list the queries.
        self._session = spark or SparkSession.getActiveSession()
        self._process = process
        self._policy = policy or CommitPolicy(retries=3)
        self._committer = GroupCommitter(store, group, allow_rewind=self._policy.allow_rewind)
        self._checkpoint = checkpoint
        self._files: CheckpointFiles = LocalFiles(checkpoint)
        self._query: QueryExecution | None = None
        self._lock = threading.Lock()
        """Held during a commit. The end of a block may commit while Spark's thread calls the committer."""
        self._ahead = ahead_of_checkpoint
        self._clock = clock or SystemClock()

    @property
    def state(self) -> CommitterState:
        """The numbers of commits and failures, and the present failure."""
        return self._committer.state

    def start(self, stream: DataStreamWriter) -> StreamingQuery:
        """Starts a query that calls this committer for each batch, with the checkpoint of the committer. Raises the
        errors of Spark, and `SparkError` for a query of Spark Connect."""
        query = stream.foreachBatch(self).option("checkpointLocation", self._checkpoint).start()
        # The query's files may be on another file system than the driver's, also if the query has no further batch.
        self._use(QueryExecution(query))
        return query

    def _use(self, query: QueryExecution) -> None:
        with self._lock:
            self._query, self._files = query, query.files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        """Calls `commit_last_batch`. An error of the block is not replaced with the error of a commit."""
        with suppress(OffsetMgrError) if error is not None else nullcontext():
            self.commit_last_batch()

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Commits the batch before ``batch_id``, then calls ``process``. Spark calls this method for each batch. Raises
        `SparkError` if no running query has the checkpoint, the errors of ``process``, and with ``stop_on_failure`` the
        error of a failed commit."""
        self._find_query(frame)
        self._commit(lambda: newest_finished(self._files))
        self._process(frame, batch_id)
        if self._ahead:
            self._commit(lambda: self._planned(batch_id))

    def commit_last_batch(self) -> bool:
        """Commits the last finished batch, after the query has ended. Returns True if the offsets of this batch
        are committed, or if no batch has finished. Returns False if the commit fails or if the checkpoint cannot be
        read: `state` and the log have the error, which the method raises only with ``stop_on_failure``."""
        self._commit(lambda: newest_finished(self._files))
        return self.state.failing is None

    def _planned(self, batch_id: int) -> CheckpointBatch:
        found = planned_batch(self._files, batch_id)
        if found is None:
            raise CorruptData(
                f"checkpoint {self._files.root}", f"offsets/{batch_id} does not exist, although batch {batch_id} runs"
            )
        return found

    def _find_query(self, frame: Any) -> None:
        """Finds the calling query among the session's running queries, by its checkpoint. The search runs once for each
        run of the query."""
        if self._query is not None and self._query.active:
            return
        directory = directory_of(self._files.root)
        session = self._session or getattr(frame, "sparkSession", None)
        for active in session.streams.active if session is not None else ():
            query = QueryExecution(active)
            if directory_of(query.files.root) == directory:
                self._use(query)
                return
        raise SparkError(
            "cannot commit offsets from foreachBatch",
            f"no running query has the checkpoint {self._files.root}",
            "a loop without foreachBatch commits with open_store(...).commit",
        )

    def _commit(self, read_batch: Callable[[], CheckpointBatch | None]) -> None:
        backoff = Backoff(self._policy.pause_s, math.inf, self._policy.retries)
        retries = BlockingRetries(backoff=backoff, clock=self._clock)
        with self._lock:
            while (failed := self._attempt(read_batch)) is not None:
                if not is_retriable(failed) or not retries.pause():
                    self._committer.report(failed)
                    if self._policy.stop_on_failure:
                        raise failed
                    return
            self._committer.clear_failure()

    def _attempt(self, read_batch: Callable[[], CheckpointBatch | None]) -> OffsetMgrError | None:
        try:
            found = read_batch()
            if found is None:
                return None
            what = f"checkpoint {self._files.root}"
            sources = None if self._query is None else self._query.sources()
            progress, blocks = progress_of(found, sources, what)
            if not progress and not blocks:
                raise SparkError(what, f"its batch {found.number} has no offsets of a Kafka source")
            offsets, problem = merge_min(progress, self._policy.clusters, blocks)
        except OffsetMgrError as error:
            self._committer.count_failure()
            return error
        return self._committer.attempt(offsets) or problem
