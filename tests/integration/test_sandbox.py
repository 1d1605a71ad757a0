"""The sandbox's servers are real: they answer, survive a kill with their data, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic

from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer, ports

pytestmark = pytest.mark.servers


def test_zookeeper_serves_requests_in_both_versions(zookeeper: ZooKeeperServer, zookeeper34: ZooKeeperServer) -> None:
    assert ports.four_letters(zookeeper.connect, "srvr").startswith("Zookeeper version: 3.8.4")
    assert ports.four_letters(zookeeper34.connect, "srvr").startswith("Zookeeper version: 3.4.9")


def test_brokers_take_topics_at_once(
    kafka: KafkaBroker, kraft: KraftBroker, make_topic: MakeTopic, unique: str
) -> None:
    make_topic(unique, 3)
    make_topic(unique, 2, bootstrap=kraft.bootstrap)

    assert len(AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(unique).topics[unique].partitions) == 3
    assert len(AdminClient({"bootstrap.servers": kraft.bootstrap}).list_topics(unique).topics[unique].partitions) == 2


def test_a_killed_broker_comes_back_on_its_port_with_its_topics(
    zookeeper: ZooKeeperServer, tmp_path: Path, make_topic: MakeTopic, unique: str
) -> None:
    with KafkaBroker(tmp_path / "broker", zookeeper=f"{zookeeper.connect}/{unique}") as broker:
        before = broker.bootstrap
        make_topic(unique, 2, bootstrap=before)

        broker.kill()
        broker.start()

        assert broker.bootstrap == before
        assert len(AdminClient({"bootstrap.servers": before}).list_topics(unique).topics[unique].partitions) == 2
