"""Findings as sentences, and the findings that two checks have in common.

tests/integration/test_zk_check.py plants the causes of the findings on a real ZooKeeper.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.model import BrokerPartition
from offsetmgr.zookeeper.check.findings import SEVERITIES, TRANSIENT, Finding, FindingCode, confirmed, partition_list


def finding(code: FindingCode, *partitions: int, path: str = "/consumers/g/owners/t") -> Finding:
    return Finding(code, "g", path, "{partitions} of topic t have no owner", "restart a member", "t", partitions)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "partition 3"),
        ([0, 1], "partitions 0-1"),
        ([7, 0, 1, 2, 4], "partitions 0-2,4,7"),
        ([BrokerPartition(2, 0), BrokerPartition(1, 1), BrokerPartition(1, 0)], "partitions 1-0,1-1,2-0"),
    ],
)
def test_partitions_as_people_write_them(numbers: list[int], text: str) -> None:
    assert partition_list(numbers) == text


def test_a_sentence_names_the_node_and_the_partitions() -> None:
    assert finding(FindingCode.NO_OWNER, 0, 1, 5).sentence == (
        "/consumers/g/owners/t: partitions 0-1,5 of topic t have no owner"
    )
    assert Finding(FindingCode.UNUSED, "g", "/consumers/g", "has no live member", "").sentence == (
        "/consumers/g has no live member"
    )


def test_every_code_has_a_severity() -> None:
    assert set(SEVERITIES) == set(FindingCode)


def test_a_transient_finding_of_only_one_check_is_dropped() -> None:
    before = [finding(FindingCode.NO_OWNER, 0, 1, 2), finding(FindingCode.OWNER_SESSION, 3, path="/a")]
    after = [
        finding(FindingCode.NO_OWNER, 2, 4),
        finding(FindingCode.OWNER_SESSION, 3, path="/b"),
        finding(FindingCode.OWNER_PERSISTENT, 1, path="/c"),
        finding(FindingCode.UNREADABLE, path="/d"),
    ]

    kept = confirmed(before, after)

    assert [(one.code, one.path, one.partitions) for one in kept] == [
        (FindingCode.NO_OWNER, "/consumers/g/owners/t", (2,)),
        (FindingCode.OWNER_PERSISTENT, "/c", (1,)),
        (FindingCode.UNREADABLE, "/d", ()),
    ]


codes = st.sampled_from(sorted(FindingCode))
some_findings = st.lists(
    st.builds(
        lambda code, path, partitions: finding(code, *sorted(partitions), path=path),
        codes,
        st.sampled_from(["/a", "/b", "/c"]),
        st.frozensets(st.integers(0, 5), min_size=1),
    ),
    unique_by=lambda one: (one.code, one.path),
)


@given(some_findings, some_findings)
def test_a_transient_finding_is_kept_for_exactly_the_partitions_of_both_checks(
    before: list[Finding], after: list[Finding]
) -> None:
    def seen(findings: list[Finding]) -> set[tuple[FindingCode, str, int]]:
        return {(one.code, one.path, number) for one in findings for number in one.partitions}

    expected = {one for one in seen(after) if one[0] not in TRANSIENT or one in seen(before)}

    assert seen(confirmed(before, after)) == expected


@given(some_findings)
def test_two_equal_checks_keep_everything(findings: list[Finding]) -> None:
    assert confirmed(findings, findings) == findings
