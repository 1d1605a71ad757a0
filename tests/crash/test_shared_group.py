"""Python members and real old consumers in one group: through all changes each partition has one owner, no message is
lost, and none is consumed twice except after the last commit of a member that was killed or whose session expired.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_group import SharedGroup, events_of

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

SOAK = "OFFSETMGR_SOAK" in os.environ
EVENTS = 50 if SOAK else 6
SEED = int(os.environ.get("OFFSETMGR_SEED", "20161017"))

pytestmark = [pytest.mark.servers, pytest.mark.matrix, pytest.mark.timeout(1800 if SOAK else 900)]

SETTINGS = {
    "offsets.topic.replication.factor": 1,
    "controlled.shutdown.enable": "true",
    "zookeeper.session.timeout.ms": 3000,
    "min.insync.replicas": 1,
}


@pytest.fixture(scope="module")
def own_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def brokers(own_zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[KafkaBroker]]:
    directory = tmp_path_factory.mktemp("brokers")
    connect = f"{own_zookeeper.connect}/kafka"
    started = [KafkaBroker(directory / str(n), zookeeper=connect, broker_id=n, config=SETTINGS) for n in range(2)]
    try:
        for broker in started:
            broker.start()
        yield started
    finally:
        for broker in started:
            broker.stop()


@pytest.mark.parametrize("strategy", ["range", "roundrobin"] if SOAK else ["range"])
def test_members_of_both_kinds_share_a_group_through_all_changes(
    strategy: str, own_zookeeper: ZooKeeperServer, brokers: list[KafkaBroker], tmp_path: Path
) -> None:
    dice = random.Random(f"{SEED}-{strategy}")
    group = SharedGroup(tmp_path, own_zookeeper, brokers, f"shared-{strategy}", strategy)
    try:
        group.create_topic("small", 8)
        group.create_topic("large", 50)
        with group.traffic():
            each = 3 if SOAK else 2
            first = [make() for make in (group.python, group.java) for _ in range(each)]
            group.event(f"{each} Python members and {each} old ones start", lambda: group.start(*first))
            assert group.verified_by_kafka()
            for number, (description, act) in enumerate(events_of(group, brokers, dice, EVENTS)):
                group.event(description, act)
                if SOAK or number == EVENTS - 1:
                    assert group.verified_by_kafka(), description
        result = group.check()
    finally:
        group.close()

    sys.stdout.write(f"\nseed {SEED}, {strategy}: {result.messages} messages, {result.owner_nodes} owner nodes, ")
    sys.stdout.write(f"{len(group.took)} events, slowest {max(took for _, took in group.took):.1f} s; ")
    sys.stdout.write(f"duplicated or late with a reason: {dict(result.excused)}\n")
    assert result.findings == []
    assert result.messages > 1000
