"""The rows of ``doctor`` about permissions, from the responses of a fake broker."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from offsetmgr.core.errors import ErrorCode, Unreachable
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.broker_checks import check_permissions
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.requests import FetchedGroup

LIST_GROUPS, DESCRIBE_GROUPS, METADATA = 16, 15, 3
READ, DELETE, DESCRIBE, CONFIGS = 1 << 3, 1 << 6, 1 << 8, 1 << 10


class Cluster:
    """A fake client and its only connection. ``topics`` maps the topics with commits to the permissions on them; a
    negative number is an error code."""

    address = Address("kafka1", 9092)

    def __init__(self, topics: dict[str, int]) -> None:
        self.topics = topics
        self.down = False

    def supports(self, api_key: int, version: int) -> bool:
        return (api_key, version) == (METADATA, 8)

    async def call(self, request: Request, timeout: float) -> dict[str, Any]:
        group = {"group_id": "g", "error_code": 0, "authorized_operations": READ | DELETE | DESCRIBE}
        if request.api_key in (LIST_GROUPS, DESCRIBE_GROUPS):
            return {"error_code": 0, "groups": [group]}
        names = [topic["name"] for topic in request.message["topics"]]
        return {"cluster_authorized_operations": DESCRIBE | CONFIGS, "topics": [self._topic(name) for name in names]}

    def _topic(self, name: str) -> dict[str, Any]:
        bits = {"__consumer_offsets": DESCRIBE, **self.topics}[name]
        return {"name": name, "error_code": max(-bits, 0), "topic_authorized_operations": max(bits, 0)}

    async def fetch(self, partitions: Iterable[str], _deadline: float) -> dict[str, FetchedGroup]:
        if self.down:
            raise Unreachable("broker kafka2:9092", "it does not respond")
        offsets = {TopicPartition(topic, 0): cast(Any, None) for topic in self.topics}
        return dict.fromkeys(partitions, FetchedGroup(offsets, {}))


def rows_of(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """The result and the detail of each check."""

    async def check() -> list[Any]:
        deadline = asyncio.get_running_loop().time() + 120
        return list(await check_permissions(cast(Any, cluster), cast(Any, cluster), "kafka1:9092", (), deadline))

    return {row.check: (row.status.value, row.detail) for row in asyncio.run(check())}


BOTH = {"orders": DESCRIBE, "payments": DESCRIBE | READ}
NO_READ = "Read is missing (needed to write its offsets and read its records)"


@pytest.mark.parametrize(
    ("topics", "check", "result", "detail"),
    [
        (BOTH, "topic orders", "warning", NO_READ),
        (BOTH, "topics", "ok", "payments: Describe, Read"),
        ({"orders": DESCRIBE}, "groups", "ok", ""),
        ({"orders": -ErrorCode.TOPIC_AUTHORIZATION_FAILED}, "topic orders", "warning", "Describe is missing"),
        ({}, "topics", "not known", "topics: not checked"),
        ({"deleted": -ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, "topics", "not known", "topics: not checked"),
    ],
)
def test_a_missing_permission_is_a_warning_and_an_unknown_one_is_not_known(topics, check, result, detail: str) -> None:
    found = rows_of(Cluster(topics))[f"permissions on {check}"]
    assert found[0] == result
    assert found[1].startswith(detail)


def test_a_failed_read_of_the_commits_keeps_the_other_rows() -> None:
    cluster = Cluster({"orders": READ | DESCRIBE})
    cluster.down = True
    rows = rows_of(cluster)
    assert rows["permissions on topics"][0] == "failed"
    assert rows["permissions on the cluster"][0] == "ok"
