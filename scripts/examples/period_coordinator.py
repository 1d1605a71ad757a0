"""Works through two periods of 1 s as the only member: no period opens before the one in front of it is finished."""

import os

from offsetmgr.period import PeriodCoordinator, PeriodSchedule, TopicPartition

seconds, orders = PeriodSchedule(first_ms=1_700_000_000_000, length_ms=1_000), TopicPartition("orders", 0)
zookeeper, root = os.environ["OFFSETMGR_ZOOKEEPER"], "/examples/periods"
with PeriodCoordinator(zookeeper, root, "worker-1", seconds, lambda: [orders], owned=[orders]) as coordinator:
    for _ in range(2):
        period = coordinator.current_period_complete([orders])
        print("period", period.number, "begins at", period.start_ms, "ms")
