"""Helpers for tests with brokers and consumers of older releases."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from committed_offsets import commit, committed
from confluent_kafka import Producer
from processes import Commands
from repeated import repeated

from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.sandbox import OldConsumer, jars, java_tool
from offsetmgr.sandbox.broker import BROKER_JARS, DEFAULT_VERSION, KRAFT_JARS, NEWEST_VERSION
from offsetmgr.sandbox.java import LOG4J_FLAGS, QUICK_START, java_command
from offsetmgr.sandbox.legacy_consumer import JARS as OLD_CONSUMERS
from offsetmgr.sandbox.process import ServerProcess

RELEASES: Final = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "1.1.1", "2.8.2")
CURRENT_RELEASES: Final = (
    DEFAULT_VERSION,
    NEWEST_VERSION,
    *(pytest.param(one, marks=pytest.mark.soak) for one in KRAFT_JARS if one != NEWEST_VERSION),
)
"""The last release with ZooKeeper, and the newest one. The soak adds the releases between them."""


def releases(*in_matrix: str) -> list[Any]:
    """All releases as parameters. The matrix runs those that are given, and the soak runs all."""
    return [pytest.param(one, marks=() if one in in_matrix else pytest.mark.soak) for one in RELEASES]


RECORDS: Final = 40


def has_leaders(bootstrap: str, topic: str, partitions: int) -> bool:
    """Whether every partition of a topic has a leader that answers."""
    with KafkaCluster(bootstrap) as cluster:
        found = cluster.log_ranges([TopicPartition(topic, number) for number in range(partitions)])
    return all(isinstance(log, LogRange) for log in found.values())


def librdkafka_settings(release: str) -> dict[str, str]:
    """librdkafka's settings for brokers that do not report their API versions."""
    if not release.startswith(("0.8", "0.9")):
        return {}
    return {"api.version.request": "false", "broker.version.fallback": "0.8.2.2"}


def old_consumer_for(release: str) -> str:
    """The release of old consumers for brokers of a release: the same one if it includes them."""
    return release if release in OLD_CONSUMERS else "0.10.2.2"


def seen(consumers: Iterable[OldConsumer]) -> Counter[tuple[int, int]]:
    """How often the record at each offset of each partition was consumed."""
    return Counter((m.partition, m.offset) for consumer in consumers for m in consumer.messages())


def produce(bootstrap: str, topic: str, release: str, records: int = RECORDS) -> None:
    """Sends records with the release's own producer; their keys spread them over the partitions."""
    lines = "".join(f"key-{number}:{number}\n" for number in range(records))
    where = ["--broker-list", bootstrap, "--topic", topic, "--request-required-acks", "-1"]
    where += ["--property", "parse.key=true", "--property", "key.separator=:"]
    done = java_tool(BROKER_JARS[release], "kafka.tools.ConsoleProducer", where, stdin=lines)
    assert done.returncode == 0, done.stderr


class Records:
    """Numbered records of one topic: the value of each is its partition and its offset there."""

    def __init__(self, bootstrap: str, topic: str, release: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0}
        self._producer = Producer({**settings, **librdkafka_settings(release)})
        self._topic = topic
        self.ends: Counter[int] = Counter()
        """The number of records in each partition."""

    @property
    def total(self) -> int:
        return self.ends.total()

    def send(self, partitions: Iterable[int], count: int = 1) -> None:
        """Sends ``count`` records to each of the partitions."""
        for partition in partitions:
            for _ in range(count):
                self._producer.produce(self._topic, value=f"{partition}-{self.ends[partition]}", partition=partition)
                self.ends[partition] += 1
        assert self._producer.flush(60) == 0

    @contextmanager
    def steadily(self, partitions: Iterable[int]) -> Iterator[None]:
        """Sends records to each of the partitions continuously until the end of the block."""
        targets = list(partitions)

        def send() -> None:
            self.send(targets)
            time.sleep(0.1)

        with repeated(send):
            yield


class NewConsumer(ServerProcess):
    """A release's own new consumer, a member of a Kafka group with auto-commit."""

    name = "new consumer"

    def __init__(self, directory: Path, *, release: str, bootstrap: str, group: str, topic: str) -> None:
        super().__init__(directory)
        self.release, self.bootstrap, self.group, self.topic = release, bootstrap, group, topic

    def seen(self) -> Counter[tuple[int, int]]:
        """How often it consumed each of the `Records`."""
        written = self._stdout().read_text("utf-8") if self._stdout().exists() else ""
        whole = written[: written.rfind("\n") + 1].split()
        return Counter((int(partition), int(offset)) for partition, _, offset in (one.partition("-") for one in whole))

    def _stdout(self) -> Path:
        return self.directory / "values.txt"

    def _command(self) -> list[str]:
        settings = {"group.id": self.group, "auto.commit.interval.ms": 200, "session.timeout.ms": 30_000}
        file = self.directory / "consumer.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        where = ["--bootstrap-server", self.bootstrap, "--topic", self.topic, "--consumer.config", str(file)]
        return java_command(
            [jars.resolve(name) for name in BROKER_JARS[self.release]],
            "kafka.tools.ConsoleConsumer",
            [*(["--new-consumer"] if self.release == "0.9.0.1" else []), *where, "--from-beginning"],
            jvm=("-Xmx128m", *QUICK_START, *LOG4J_FLAGS),
        )

    def _is_ready(self) -> bool:
        return True


@dataclass
class Environment:
    """A cluster, a topic with records, and a directory in which commands run."""

    zookeeper: str
    kafka: str
    bootstrap: str
    topic: str
    commands: Commands

    @property
    def servers(self) -> tuple[str, ...]:
        return ("--bootstrap-server", self.bootstrap)

    def run(self, *arguments: str, code: int = 0) -> str:
        done = self.commands.run(*arguments, code=code)
        return done.stdout + done.stderr

    def rows(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.commands.run(*arguments, "--format", "json", code=code).stdout)
        return found

    def commit(self, uri: str, group: str, offsets: dict[int, int]) -> None:
        commit(uri, group, self.topic, offsets)

    def committed(self, uri: str, group: str) -> dict[int, int]:
        return committed(uri, group)

    def is_stable(self, group: str) -> bool:
        """Whether `groups describe` reports the state STABLE: the members have their partitions."""
        describe = ("groups", "describe", "--group", group, "--state", *self.servers, "--format", "json")
        done = self.commands.run(*describe, code=None)
        return done.returncode == 0 and json.loads(done.stdout)[0]["state"] == "STABLE"
