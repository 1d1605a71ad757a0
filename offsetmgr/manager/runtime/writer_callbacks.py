"""`WriterCallbacks`: the reports of a shard group's writer to the shard group. All calls run on the event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from offsetmgr.manager.runtime.write_batch import AppendResult
from offsetmgr.manager.shard import Shard
from offsetmgr.records.base import EncodedRecord


class WriterCallbacks(Protocol):
    """The callbacks of `offsetmgr.manager.runtime.shard_writer.ShardWriter`."""

    def on_loading(self) -> None:
        """The task starts to claim and load the shard group."""
        ...

    def on_retry(self, error: Exception) -> None:
        """The claim or the load failed, and the task will retry it."""
        ...

    def on_loaded(self, shards: Mapping[int, Shard], generation: str, as_of: float) -> None:
        """The load is complete, and the shards now belong to the loop, which can serve them. ``generation`` is the
        `PartitionLog.generation` of the log from which the shards were read. The shards contain every record that this
        log had at the time ``as_of`` (`lease.boottime`), which is after the claim."""
        ...

    def on_topic_recreated(self) -> None:
        """The topic was recreated after the shards had been read, so the shards must be loaded again."""
        ...

    def on_replay(self, partition: int, part: Mapping[bytes, bytes | None], position: int) -> None:
        """Called after an append with an unknown outcome. Passes those records of one partition that were not replayed
        yet, in the form that `Shard.replay_newest` expects."""
        ...

    def record(self, partition: int, key: bytes) -> EncodedRecord | None:
        """Returns the record that sets a key to its value in a served shard (see `Shard.record`)."""
        ...

    def on_recovered(self) -> None:
        """Called after an append with an unknown outcome, once the task has read the log up to its new claim and has
        passed all records to `on_replay`."""
        ...

    def on_append_ended(self, results: Sequence[AppendResult], batches: int, seconds: float) -> None:
        """The append of the oldest batches ended after ``seconds`` seconds. ``batches`` is the number of these batches,
        and ``results`` are their results. Those of one partition are in order."""
        ...

    def on_finished(self, fenced: str) -> None:
        """The task ends and appends nothing any more. ``fenced`` is the text of the error if another writer claimed the
        shard group, and empty otherwise."""
        ...
