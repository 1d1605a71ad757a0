"""Fixtures for tests of the everyday commands: command line, topic with records, each kind of store, group member."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from everyday import Cli
from processes import until
from same_cluster import join_cluster

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def topic(unique: str, kafka: KafkaBroker, make_topic: Callable[..., str]) -> str:
    """A topic of three partitions that hold 10, 20 and 0 records, at one-second steps from 2001-09-09T01:46:40Z."""
    # With the default retention the broker would delete records of that age.
    make_topic(unique, 3, config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for partition, count in ((0, 10), (1, 20)):
        for n in range(count):
            producer.produce(unique, b"x", partition=partition, timestamp=1_000_000_000_000 + 1000 * n)
    assert producer.flush(30) == 0
    return unique


@pytest.fixture(params=["zookeeper", "kafka", "dual"])
def flags(request: pytest.FixtureRequest, kafka: KafkaBroker, zookeeper: ZooKeeperServer, cli: Cli) -> list[str]:
    """The options that select each kind of store, and the brokers for the log ranges."""
    if request.param != "kafka":
        join_cluster(zookeeper.connect, kafka.bootstrap)
    if request.param == "dual":
        config = Path(cli.environ["XDG_CONFIG_HOME"]) / "offsetmgr" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(
            f'[store.both]\nprimary = "kafka://{kafka.bootstrap}"\nsecondary = "zookeeper://{zookeeper.connect}"\n'
        )
        return ["--store", "dual:both"]
    if request.param == "zookeeper":
        return ["--zookeeper", zookeeper.connect, "--bootstrap-server", kafka.bootstrap]
    return ["--bootstrap-server", kafka.bootstrap]


@pytest.fixture
def member(kafka: KafkaBroker, topic: str) -> Iterator[Consumer]:
    """A live consumer that has joined the group ``topic`` and owns all its partitions."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": topic, "client.id": "living", "auto.offset.reset": "latest"}
        | {"enable.auto.commit": False}
    )
    consumer.subscribe([topic])

    def owns_all() -> bool:
        consumer.poll(0.2)
        return len(consumer.assignment()) == 3

    until(owns_all)
    yield consumer
    consumer.close()
