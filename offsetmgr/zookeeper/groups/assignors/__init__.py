"""The partition assignment strategies of the old consumer. Pure: no I/O, no clock.

Every member computes the whole assignment from the nodes in ZooKeeper, and claims the partitions that are assigned to
this member. All members must compute the same assignment, so each strategy returns exactly the result of Kafka's code.
The result does not depend on the order of the items in the given mappings.

``ASSIGNORS`` maps each supported value of ``partition.assignment.strategy`` to its strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offsetmgr.zookeeper.groups.assignors.base import Assignor, ThreadId
from offsetmgr.zookeeper.groups.assignors.range_assignor import RangeAssignor
from offsetmgr.zookeeper.groups.assignors.round_robin_assignor import RoundRobinAssignor

__all__ = ["ASSIGNORS", "Assignor", "ThreadId"]

ASSIGNORS: Final[Mapping[str, Assignor]] = {"range": RangeAssignor(), "roundrobin": RoundRobinAssignor()}
