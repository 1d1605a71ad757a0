"""The rows of ``doctor`` about permissions and clocks, from the responses of fake brokers."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable
from typing import Any, cast

import pytest

from offsetmgr.core.check_result import CheckResult, CheckStatus
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.clock_difference import ClockDifference
from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import Unreachable
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client import broker_checks
from offsetmgr.kafka.client.broker_permissions import check_permissions
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, Request
from offsetmgr.kafka.protocol.requests import OFFSETS_TOPIC, FetchedGroup

BOOTSTRAP = "kafka1:9092"
READ, DELETE, DESCRIBE, CONFIGS = 1 << 3, 1 << 6, 1 << 8, 1 << 10
GROUP = "team a's group"


class Cluster:
    """A fake client and its only connection. ``topics`` maps the topics with commits to the permissions on them; a
    negative number is an error code."""

    address = Address("kafka1", 9092)

    def __init__(self, topics: dict[str, int], group: int = READ | DELETE | DESCRIBE) -> None:
        self.topics = topics
        self.group = group

    def supports(self, api_key: int, version: int) -> bool:
        return (api_key, version) == (ApiKey.METADATA, 8)

    async def call(self, request: Request, timeout: float) -> dict[str, Any]:
        assert timeout
        if request.api_key == ApiKey.LIST_GROUPS:
            return {"error_code": 0, "groups": [{"group_id": GROUP}]}
        if request.api_key == ApiKey.DESCRIBE_GROUPS:
            return {"groups": [{"group_id": GROUP, "error_code": 0, "authorized_operations": self.group}]}
        names = [topic["name"] for topic in request.message["topics"]]
        return {"cluster_authorized_operations": DESCRIBE | CONFIGS, "topics": [self._topic(name) for name in names]}

    def _topic(self, name: str) -> dict[str, Any]:
        bits = {OFFSETS_TOPIC: DESCRIBE, **self.topics}[name]
        return {"name": name, "error_code": max(-bits, 0), "topic_authorized_operations": max(bits, 0)}

    async def fetch(self, partitions: Iterable[str], _deadline: float) -> dict[str, FetchedGroup]:
        offsets = {TopicPartition(topic, 0): cast(Any, None) for topic in self.topics}
        return dict.fromkeys(partitions, FetchedGroup(offsets, {}))


def rows_of(cluster: Cluster) -> dict[str, CheckResult]:
    async def check() -> list[CheckResult]:
        deadline = asyncio.get_running_loop().time() + 120
        return await check_permissions(cast(Any, cluster), cast(Any, cluster), BOOTSTRAP, (), deadline)

    return {row.check: row for row in asyncio.run(check())}


def test_a_topic_of_a_commit_without_read_is_a_warning() -> None:
    rows = rows_of(Cluster({"orders": DESCRIBE, "payments": DESCRIBE | READ}))
    orders = rows["permissions on topic orders"]
    assert orders.status is CheckStatus.WARNING
    assert orders.detail == "Read is missing (needed to write its offsets and read its records)"
    assert rows["permissions on topics"].status is CheckStatus.OK
    assert rows["permissions on topics"].detail.startswith("payments: Describe, Read")
    assert rows["permissions on groups"].status is CheckStatus.OK


def test_a_topic_that_must_not_be_described_is_a_warning() -> None:
    rows = rows_of(Cluster({"orders": -ErrorCode.TOPIC_AUTHORIZATION_FAILED}))
    assert rows["permissions on topic orders"].detail.startswith("Describe is missing")
    assert "permissions on topics" not in rows


@pytest.mark.parametrize("topics", [{}, {"deleted": -ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}])
def test_without_a_topic_the_result_is_not_known(topics: dict[str, int]) -> None:
    row = rows_of(Cluster(topics))["permissions on topics"]
    assert row.status is CheckStatus.UNKNOWN
    assert row.detail.startswith("topics: not checked")


def test_a_failed_read_of_the_commits_keeps_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(*_: object) -> None:
        raise Unreachable("broker kafka2:9092", "it does not respond")

    monkeypatch.setattr(Cluster, "fetch", fetch)
    rows = rows_of(Cluster({"orders": READ | DESCRIBE}))
    assert rows["permissions on topics"].status is CheckStatus.FAILED
    assert rows["permissions on the cluster"].status is CheckStatus.OK


def test_the_remedy_is_a_complete_command_of_kafka_acls() -> None:
    fix = rows_of(Cluster({}, group=DESCRIBE))[f"permissions on group {GROUP}"].fix
    assert shlex.split(fix) == [
        *("kafka-acls", "--bootstrap-server", BOOTSTRAP, "--add", "--allow-principal", "User:NAME"),
        *("--operation", "Read", "--operation", "Delete", "--group", GROUP),
    ]


def test_a_broker_whose_clock_is_not_measured_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = ClockDifference.measured(1_000, 1_000, 1_000, "test")
    first, second, third = (Address(f"kafka{number}", 9092) for number in (1, 2, 3))

    async def controller(*_: object) -> tuple[int, ClockDifference]:
        return 3, measured

    async def leaders(*_: object) -> dict[Address, ClockDifference]:
        return {first: measured}

    monkeypatch.setattr(broker_checks, "controller_clock", controller)
    monkeypatch.setattr(broker_checks, "leader_clocks", leaders)
    cluster = cast(Any, Cluster({}))
    found = asyncio.run(broker_checks._clock_rows(cluster, cluster, {first: 1, second: 2, third: 3}, SystemClock(), 5))
    assert [(row.endpoint, row.status) for row in found] == [
        ("controller 3", CheckStatus.OK),
        ("kafka1:9092", CheckStatus.OK),
        ("kafka2:9092", CheckStatus.UNKNOWN),
    ]
