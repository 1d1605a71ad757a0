"""A Python member frozen (SIGSTOP) past its session and woken hands out nothing of what it lost, and commits nothing.

The same with a member that does not ask for its lease: the checker of shared groups finds what it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from members import PythonMember
from ownership_checker import Handed, judge
from zookeeper_history import group_history

from offsetmgr.core.model import TopicPartition
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.ownership import owners
from offsetmgr.zookeeper.groups.registry import members

pytestmark = [pytest.mark.servers, pytest.mark.timeout(120)]


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)  # between looks, never instead of one


@pytest.mark.parametrize("careless", [False, True])
def test_a_member_frozen_past_its_session_and_woken(
    careless: bool,
    zookeeper: ZooKeeperServer,
    kafka: KafkaBroker,
    make_topic: Callable[..., str],
    unique: str,
    tmp_path: Path,
) -> None:
    topic = make_topic(unique, 2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(24_000):  # more than it can have handed out when it is frozen, however late that is
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(30) == 0

    def member(name: str, careless: bool = False) -> PythonMember:
        return PythonMember(
            tmp_path / name,
            zookeeper=kafka.zookeeper,
            bootstrap=kafka.bootstrap,
            group=unique,
            topic=topic,
            consumer_id=name,
            settings={"zookeeper_session_timeout_ms": 2000, "auto_commit_interval_ms": 100, "release_delay_ms": 0},
            think_ms=3,
            careless=careless,
        )

    frozen, other = member("a", careless), member("b")
    with ZookeeperSession(kafka.zookeeper) as session:

        def owned_by(name: str) -> int:
            return sum(owner.member_id == f"{unique}_{name}" for owner in owners(session, unique).values())

        try:
            frozen.start()
            other.start()
            wait_for(lambda: owned_by("a") == owned_by("b") == 1, "each owns one")
            ready = len(frozen.messages())
            wait_for(lambda: len(frozen.messages()) > ready + 50, "it consumes")
            frozen.freeze()
            wait_for(lambda: owned_by("b") == 2, "the other one owns both")
            (registered,) = members(session, unique)
            consumed = len(other.messages())
            wait_for(lambda: len(other.messages()) > consumed + 50, "and consumes them")
            frozen.thaw()
            wait_for(lambda: owned_by("a") == owned_by("b") == 1, "it has come back")
        finally:
            frozen.stop()
            other.stop()
    assert registered.member_id == f"{unique}_b"
    handed = [
        Handed(f"{unique}_{name}", False, TopicPartition(topic, m.partition), m.offset, m.time_ms)
        for name, one in (("a", frozen), ("b", other))
        for m in one.messages()
    ]
    verdict = judge(group_history(zookeeper.directory / "data", "/kafka", unique), handed, {})

    late = [finding for finding in verdict.findings if f"{unique}_a handed out" in finding]
    assert bool(late) is careless
    assert all(finding.endswith("before, expired") for finding in late)
    assert careless or verdict.findings == []
