"""The contract of `PartitionLog` on the log in memory, which the tests of other modules use."""

import pytest
from log_contract import PARTITIONS, LogContract
from memory_log import MemoryLog

from offsetmgr.manager.log.base import PartitionLog


class TestMemoryLog(LogContract):
    @pytest.fixture
    def log(self) -> MemoryLog:
        return MemoryLog(PARTITIONS)

    def recreate(self, log: PartitionLog) -> None:
        assert isinstance(log, MemoryLog)
        log.recreate()
