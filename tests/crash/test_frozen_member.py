"""A Python member that is frozen (SIGSTOP) past its session timeout and resumed delivers no message of the partitions
that it lost, and commits nothing.

The checker of shared groups detects the violations of a faulty member that ignores its lease.
"""

import pytest
from members import PythonMember
from old_group_nodes import member_of, members, owners
from ownership_checker import Delivery, check_history
from processes import fill, wait_for
from zookeeper_history import group_history

from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.client.session import ZookeeperSession

pytestmark = [pytest.mark.servers, pytest.mark.matrix]


@pytest.mark.parametrize("ignore_lease", [False, True])
def test_a_member_frozen_past_its_session_and_woken(ignore_lease, zookeeper, kafka, make_topic, unique, tmp_path):
    topic = make_topic(unique, 2)
    fill(kafka.bootstrap, topic, 12_000, 12_000)  # more than it can deliver before it is frozen

    def member(name: str, ignore_lease: bool = False) -> PythonMember:
        return PythonMember(
            tmp_path / name,
            zookeeper=kafka.zookeeper,
            bootstrap=kafka.bootstrap,
            group=unique,
            topic=topic,
            consumer_id=name,
            settings={"zookeeper_session_timeout_ms": 2000, "auto_commit_interval_ms": 100, "release_delay_ms": 0},
            think_ms=3,
            ignore_lease=ignore_lease,
        )

    frozen, other = member("a", ignore_lease), member("b")
    with ZookeeperSession(kafka.zookeeper) as session:

        def owned_by(name: str) -> int:
            return sum(member_of(owner) == f"{unique}_{name}" for owner in owners(session, unique).values())

        try:
            frozen.start()
            other.start()
            wait_for(lambda: owned_by("a") == owned_by("b") == 1, "each member owns one partition")
            ready = len(frozen.messages())
            wait_for(lambda: len(frozen.messages()) > ready + 50, "the member consumes")
            frozen.freeze()
            wait_for(lambda: owned_by("b") == 2, "the other member owns both partitions")
            (registered,) = members(session, unique)
            consumed = len(other.messages())
            wait_for(lambda: len(other.messages()) > consumed + 50, "the other member consumes both partitions")
            frozen.thaw()
            wait_for(lambda: owned_by("a") == owned_by("b") == 1, "the resumed member has rejoined")
        finally:
            frozen.stop()
            other.stop()
    assert registered == f"{unique}_b"
    deliveries = [
        Delivery(f"{unique}_{name}", False, TopicPartition(topic, m.partition), m.offset, m.time_ms)
        for name, one in (("a", frozen), ("b", other))
        for m in one.messages()
    ]
    result = check_history(group_history(zookeeper.directory / "data", "/kafka", unique), deliveries, {})

    late = [finding for finding in result.findings if f"{unique}_a delivered" in finding]
    assert bool(late) is ignore_lease
    assert all(finding.endswith("before, expired") for finding in late)
    assert ignore_lease or result.findings == []
