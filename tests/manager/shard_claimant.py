"""`Claimant`: a process that follows a partition, claims it, serves it and loses it, in one thread. It does the
runtime's part of the shard's ordering contract in the shortest form."""

from __future__ import annotations

from enum import Enum
from typing import Any

from scenario_log import TIMEOUT_S, OutcomeWriter, ScenarioLog

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.manager.log.base import AppendRejected, Fenced, OutcomeUnknown
from offsetmgr.manager.results import CoordinatorResult
from offsetmgr.manager.shard import Shard
from offsetmgr.records.base import EncodedRecord, RecordFormat


class Role(Enum):
    FOLLOWING = "following"
    SERVING = "serving"
    """It has claimed the partition. Another process may have claimed it since."""
    RECOVERING = "recovering"
    """The outcome of its last append is unknown."""


class Claimant:
    def __init__(self, scenario_log: ScenarioLog, record_format: RecordFormat, limits: ManagerSettings) -> None:
        self.scenario_log = scenario_log
        self.shard = Shard(scenario_log.partition, record_format, limits)
        self.role = Role.FOLLOWING
        self.pending: list[CoordinatorResult[Any]] = []
        """Prepared results that wait for their append, in this order."""
        self.in_doubt: list[CoordinatorResult[Any]] = []
        self._writer: OutcomeWriter | None = None

    def claim(self) -> None:
        """Claims the shard group, also a second time, and reads the log to its end."""
        self._close()
        self._writer = self.scenario_log.writer()
        self._writer.claim(TIMEOUT_S)
        self._read_to_end()
        for prepared in self.in_doubt:
            self.shard.on_discarded(prepared)
        self.in_doubt = []
        self.role = Role.SERVING

    def _read_to_end(self) -> None:
        partition = self.scenario_log.partition
        end = self.scenario_log.log.end_offsets([partition], TIMEOUT_S)[partition]
        start = max(self.shard.position, self.scenario_log.log.start_offsets([partition], TIMEOUT_S)[partition])
        if start >= end:
            return
        newest: dict[bytes, bytes | None] = {}
        reader = self.scenario_log.log.reader()
        reached = reader.load({partition: start}, {partition: end}, {partition: newest})
        reader.close()
        self.shard.replay_newest(newest, reached[partition])

    def follow(self, limit: int | None = None) -> bool:
        """Replays at most ``limit`` records, one by one. Returns whether it has reached the end of the log."""
        partition = self.scenario_log.partition
        end = max(self.scenario_log.written_to, self.scenario_log.log.end_offsets([partition], TIMEOUT_S)[partition])
        reader = self.scenario_log.log.reader()
        reader.follow({partition: self.shard.position})
        taken = 0
        while reader.position(partition) < end and (limit is None or taken < limit):
            records = reader.poll(1000 if limit is None else limit - taken, self.scenario_log.wait_s)
            for record in records:
                self.shard.replay(record.offset, record.key, record.value)
            taken += len(records)
        at_end = reader.position(partition) >= end
        reader.close()
        return at_end

    def release(self) -> None:
        """Discards unfinished writes. From now on the process only follows the log."""
        self._close()
        for prepared in [*self.in_doubt, *self.pending]:
            self.shard.on_discarded(prepared)
        self.pending, self.in_doubt = [], []
        self.role = Role.FOLLOWING

    def enqueue(self, prepared: CoordinatorResult[Any]) -> None:
        if prepared.records:
            self.pending.append(prepared)

    def append(self, count: int) -> None:
        """Appends the first ``count`` pending results in one batch, and reports the outcome to the shard."""
        assert self._writer is not None
        batch, self.pending = self.pending[:count], self.pending[count:]
        records: list[EncodedRecord] = [record for prepared in batch for record in prepared.records]
        try:
            last = self._writer.append({self.scenario_log.partition: records}, TIMEOUT_S)[self.scenario_log.partition]
        except AppendRejected:
            for prepared in batch:
                self.shard.on_discarded(prepared)
        except OutcomeUnknown:
            self.in_doubt += batch
            self._close()
            self.role = Role.RECOVERING
        except Fenced:
            self.pending = batch + self.pending
            self.release()
        else:
            first = last - len(records) + 1
            for prepared in batch:
                self.shard.acknowledged(prepared, first)
                first += len(prepared.records)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
