"""`ScenarioLog`: one partition of an in-memory log or of a real one, with a chosen outcome for each append."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from blocking_writer import BlockingWriter
from memory_log import Failure, MemoryLog

from offsetmgr.manager.log.base import AppendRejected, Fenced, OutcomeUnknown, PartitionLog, shard_group_of
from offsetmgr.records.base import EncodedRecord

TIMEOUT_S = 30.0


class AppendOutcome(Enum):
    """The outcome of an append, and the error that its writer gets."""

    WRITTEN = "written"
    NOT_WRITTEN = "not written"
    UNKNOWN_WRITTEN = "unknown but written"
    UNKNOWN_NOT_WRITTEN = "unknown and not written"
    FENCED_WRITTEN = "written but fenced"
    """Another process claims the shard group before the response arrives, so the writer gets only `Fenced`."""
    OPEN_WRITTEN = "open then written"
    """The append stays unfinished: its outcome is unknown until the next claim ends it."""
    OPEN_NOT_WRITTEN = "open then not written"


class ScenarioLog:
    """One partition of ``log``. ``outcome`` is the outcome of the next append."""

    outcomes: Sequence[AppendOutcome] = (
        AppendOutcome.WRITTEN,
        AppendOutcome.NOT_WRITTEN,
        AppendOutcome.UNKNOWN_WRITTEN,
        AppendOutcome.UNKNOWN_NOT_WRITTEN,
        AppendOutcome.FENCED_WRITTEN,
    )

    wait_s = 0.5
    """Seconds that a poll may wait for records that are in the log."""

    def __init__(self, log: PartitionLog, partition: int) -> None:
        self.log = log
        self.partition = partition
        self.shard_group = shard_group_of(partition, log.partitions)
        self.outcome = AppendOutcome.WRITTEN
        self.fence: Callable[[], None] | None = None
        self.written_to = 0
        """The offset after the last written record."""

    def writer(self) -> OutcomeWriter:
        return OutcomeWriter(self, BlockingWriter(self.log.writer(self.shard_group)))

    def compact(self) -> None:
        """Compacts the log, if the log supports it."""


class MemoryScenarioLog(ScenarioLog):
    outcomes = tuple(AppendOutcome)
    wait_s = 0.0

    def __init__(self) -> None:
        self.memory = MemoryLog(1)
        super().__init__(self.memory, 0)

    def compact(self) -> None:
        self.memory.compact(self.partition)


class OutcomeWriter:
    """A writer whose next append has the outcome that its `ScenarioLog` prescribes."""

    def __init__(self, scenario_log: ScenarioLog, inner: BlockingWriter) -> None:
        self._scenario_log = scenario_log
        self._inner = inner

    def claim(self, timeout: float) -> None:
        self._inner.claim(timeout)

    def append(self, batches: Mapping[int, Sequence[EncodedRecord]], timeout: float) -> Mapping[int, int]:
        outcome, self._scenario_log.outcome = self._scenario_log.outcome, AppendOutcome.WRITTEN
        if outcome is AppendOutcome.NOT_WRITTEN:
            raise AppendRejected("append", outcome.value)
        if outcome is AppendOutcome.UNKNOWN_NOT_WRITTEN:
            self._inner.close()
            raise OutcomeUnknown("append", outcome.value)
        if outcome in (AppendOutcome.OPEN_WRITTEN, AppendOutcome.OPEN_NOT_WRITTEN):
            assert isinstance(self._scenario_log, MemoryScenarioLog)
            failure = Failure.UNKNOWN_OPEN_WRITTEN if outcome is AppendOutcome.OPEN_WRITTEN else Failure.UNKNOWN_OPEN
            self._scenario_log.memory.fail_next_append(self._scenario_log.shard_group, failure)
        last = self._inner.append(batches, timeout)
        self._scenario_log.written_to = last[self._scenario_log.partition] + 1
        if outcome is AppendOutcome.UNKNOWN_WRITTEN:
            self._inner.close()
            raise OutcomeUnknown("append", outcome.value)
        if outcome is AppendOutcome.FENCED_WRITTEN:
            assert self._scenario_log.fence is not None
            self._scenario_log.fence()
            self._inner.close()
            raise Fenced("append", outcome.value)
        return last

    def close(self) -> None:
        self._inner.close()
