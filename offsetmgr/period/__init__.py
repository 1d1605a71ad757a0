"""The period coordinator: members process event time in periods, and a period closes when every partition finished it.

`schedule`, `barrier`, `leader_decision`, `records`, `job_records` and `status` are pure: they perform no I/O and read
no clock. `member_state` performs no I/O either, but several threads share its state. `idle_check` sends requests to
Kafka. The remaining modules access ZooKeeper.

Ordering contract: a partition is reported as finished with a period only after the results of that period's records are
durable. A period closes only after the reports of all its partitions are in ZooKeeper. Members see the next period only
after the previous period has closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.core import lazy_exports

if TYPE_CHECKING:
    from offsetmgr.core.model import TopicPartition as TopicPartition
    from offsetmgr.period.coordinator import PeriodCoordinator as PeriodCoordinator
    from offsetmgr.period.idle_check import idle_partitions as idle_partitions
    from offsetmgr.period.leader import CoordinatorOptions as CoordinatorOptions
    from offsetmgr.period.records import OffsetRange as OffsetRange
    from offsetmgr.period.schedule import Period as Period
    from offsetmgr.period.schedule import PeriodSchedule as PeriodSchedule

if not TYPE_CHECKING:  # a type checker would accept every name of a module that defines __getattr__
    __all__, __getattr__, __dir__ = lazy_exports(__name__)
