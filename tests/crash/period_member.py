"""A process of one member in a run of periods: it processes its partitions, logs them as done, then reports them.

Argument: a JSON object with ``zookeeper``, ``root``, ``member``, ``partitions`` (of topic ``t``), ``owned``, ``log``
(the file to which all processes append), ``seed``, ``pace_ms``. It writes ``begin NUMBER`` when the coordinator opens a
period, and ``done NUMBER PARTITION,...`` when the work on partitions is done, before it reports them.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
from typing import Any

from offsetmgr.core.errors import LateRecord, OffsetMgrError, OpenPeriodUnknown
from offsetmgr.core.model import TopicPartition
from offsetmgr.period import CoordinatorOptions, Period, PeriodCoordinator, PeriodSchedule

SCHEDULE = PeriodSchedule(1_000, 100)


class Member:
    def __init__(self, arguments: dict[str, Any]) -> None:
        everything = [TopicPartition("t", n) for n in range(arguments["partitions"])]
        self.owned = [TopicPartition("t", n) for n in arguments["owned"]]
        self.log = os.open(arguments["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.dice = random.Random(arguments["seed"])
        self.pace_s = arguments["pace_ms"] / 1000
        self.coordinator = PeriodCoordinator(
            arguments["zookeeper"],
            arguments["root"],
            arguments["member"],
            SCHEDULE,
            lambda: everything,
            owned=self.owned,
            options=CoordinatorOptions(session_timeout_ms=1_500),
        )

    def write(self, text: str) -> None:
        os.write(self.log, f"{text}\n".encode())  # one write per line, so that a SIGKILL leaves whole lines

    def run(self) -> None:
        self.coordinator.start(60)
        open_ = self.coordinator.open_period()
        assert open_ is not None
        period = open_.period
        while True:
            self.write(f"begin {period.number}")
            self.finish(period)
            period = self.coordinator.wait(period.number)

    def finish(self, period: Period) -> None:
        """Finishes some partitions at a time, in random order, so that kills interrupt the work at different points."""
        left = self.dice.sample(self.owned, len(self.owned))
        while left:
            some, left = left[: (cut := self.dice.randint(1, len(left)))], left[cut:]
            mine = [tp for tp in some if self.is_due(period, tp)]
            time.sleep(self.dice.random() * self.pace_s)
            if mine:
                self.write(f"done {period.number} {','.join(str(tp.partition) for tp in mine)}")
                self.report(mine)

    def is_due(self, period: Period, partition: TopicPartition) -> bool:
        while True:
            try:
                return self.coordinator.check_limit(period.start_ms + 50, partition)
            except LateRecord:
                return False
            except OpenPeriodUnknown:
                time.sleep(0.02)

    def report(self, partitions: list[TopicPartition]) -> None:
        """Reports partitions without a period number: a frozen member must not report a period that it has not seen."""
        while True:
            try:
                self.coordinator.finished(partitions)
                return
            except OffsetMgrError as error:
                if not error.retriable:
                    raise


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s.%(msecs)03d %(name)s %(message)s", datefmt="%H:%M:%S")
    Member(json.loads(sys.argv[1])).run()
