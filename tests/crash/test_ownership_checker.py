"""The checker of shared groups finds planted violations, and excuses only permitted duplicates."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from ownership_checker import CheckResult, Delivery, check_history
from zookeeper_history import Commit, GroupHistory, OwnerNode

from offsetmgr.core.model import TopicPartition

ORDERS = TopicPartition("orders", 0)
NODES = [OwnerNode(ORDERS, "g_a-0", 1, 10, 1000, 20, 2000, "released"), OwnerNode(ORDERS, "g_b-0", 2, 21, 2100)]
"""``g_a`` owns from 1000 to 2000 ms and commits 2, ``g_b`` from 2100 on, and commits 4."""
COMMITS = [Commit(ORDERS, 2, 19, 1990, 1), Commit(ORDERS, 4, 30, 3000, 2)]
DELIVERIES = [("a", 0, 1500), ("a", 1, 1990), ("b", 2, 2100), ("b", 3, 2200)]
NOTHING: dict[str, Any] = {}
EXPIRED = {"how": "expired"}
AGAIN = "1 delivered by g_a (released) at 1990 and again by g_b at "


class Case(NamedTuple):
    """Changes to a sound history, and what the checker says about it. ``old`` lists the old consumers."""

    delivered: Iterable[tuple[str, int, int]] = DELIVERIES
    first: dict[str, Any] = NOTHING  # of the owner nodes
    second: dict[str, Any] = NOTHING
    commits: list[Commit] = COMMITS
    old: str = ""
    finding: str = ""
    excused: tuple[str, ...] = ()

    def check(self) -> CheckResult:
        nodes = [replace(node, **values) for node, values in zip(NODES, (self.first, self.second), strict=True)]
        found = [Delivery(f"g_{one}", one in self.old, ORDERS, *where) for one, *where in self.delivered]
        return check_history(GroupHistory(nodes, self.commits, {1: "g_a", 2: "g_b"}), found, {ORDERS: 4})


def twice(offset: int, time_ms: int, member: str = "b") -> list[tuple[str, int, int]]:
    return [*DELIVERIES, (member, offset, time_ms)]


def earlier(**values: Any) -> list[Commit]:
    return [replace(COMMITS[0], **values), COMMITS[1]]


EARLY, LATE = ("early read of an old consumer",), "message of a late old consumer"
SEVERAL = [Commit(ORDERS, 1, 15, 1050, 1), *COMMITS]
# fmt: off
CASES = {
    "sound": Case(),
    "two owners": Case(second={"created_zxid": 15, "created_ms": 1800}, finding="g_b-0 became owner while g_a-0 was"),
    "after the end of ownership": Case([DELIVERIES[0], ("a", 1, 2001), *DELIVERIES[2:]],
                                       finding="g_a delivered 1, which it owned last 1 ms before, released"),
    "without ownership": Case([*DELIVERIES[:3], ("c", 3, 2200)], finding="g_c delivered 3, which it owned last never"),
    "lost": Case(DELIVERIES[:3], finding="1 messages lost, the first at 3"),
    "twice": Case(twice(1, 2300), finding=f"{AGAIN}2300"),
    "commit without ownership": Case(commits=[*COMMITS, Commit(ORDERS, 1, 31, 3100, 1)],
                                     finding="g_a committed 1 without owning it"),
    "deleted": Case(first={"how": "deleted by others"}, finding="the owner node of g_a-0 was deleted by others"),
    "expired, not committed": Case(twice(1, 2300), EXPIRED, commits=earlier(offset=1),
                                   excused=("after the last commit of an expired member",)),
    "expired, committed": Case(twice(1, 2300), EXPIRED, finding="1 delivered by g_a (expired) at 1990 and again by "
                                                                "g_b at 2300"),
    "early read": Case(twice(1, 2150), old="ab", excused=EARLY),
    "early read of a Python member": Case(twice(1, 2150), old="a", finding=f"{AGAIN}2150"),
    "early read after a Python member": Case(twice(1, 2150), old="b", finding=f"{AGAIN}2150"),
    "early read shortly before": Case(twice(1, 2150), commits=earlier(time_ms=1101), old="ab", excused=EARLY),
    "early read long before": Case(twice(1, 2150), commits=earlier(time_ms=1100), old="ab", finding=f"{AGAIN}2150"),
    "early read of several commits": Case(twice(1, 2150), commits=SEVERAL, old="ab", excused=EARLY),
    "early read before several commits": Case(twice(0, 2140), commits=SEVERAL, old="ab", finding="0 delivered by g_a "
                                              "(released) at 1500 and again by g_b at 2140"),
    "late old consumer": Case(twice(2, 2150, "a"), EXPIRED, old="a", excused=(LATE, f"{LATE}, doubled")),
}
# fmt: on


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_history_has_the_finding_or_the_excuse(case: Case) -> None:
    result = case.check()
    assert result.findings == [f"orders-0: {case.finding}"] * bool(case.finding)
    assert result.excused == dict.fromkeys(case.excused, 1)
    assert result.owner_nodes == 2


def test_late_messages_of_a_python_member_are_findings() -> None:
    assert Case(twice(2, 2150, "a"), EXPIRED).check().findings
