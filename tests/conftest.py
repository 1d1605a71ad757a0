"""The real servers that all tests marked ``servers`` share: started when first asked for, stopped at the end.

A test that stops, kills or freezes a server takes one of its own from `offsetmgr.sandbox`.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import hypothesis  # before kio, which registers its strategies if it is there already
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer, jars

ALL_NEED_SERVERS = re.compile(r"^pytestmark = .*\bpytest\.mark\.servers\b", re.MULTILINE)
"""The line of a test file that marks all that is in it."""


def pytest_configure() -> None:
    """A shell that starts the tests in the background has Ctrl-C ignored, and what tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes says more of the machine than of what it tests: `pytest-timeout` bounds the whole.
    examples = 300 if os.environ.get("OFFSETMGR_SOAK") else 30
    hypothesis.settings.register_profile("any machine", deadline=None, max_examples=examples)
    hypothesis.settings.load_profile("any machine")
    # As the sandbox's servers: a JVM that lives for seconds spends them on its start, not on what it might optimise.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark listens on the machine's own address


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without servers, a file whose every test needs them is not even imported: each of xdist's processes would do
    that, and turn its assertions into pytest's, for nothing."""
    without = "not servers" in config.option.markexpr.split(" and ")
    if without and collection_path.suffix == ".py" and ALL_NEED_SERVERS.search(collection_path.read_text("utf-8")):
        return True
    return None


def pytest_collection_finish(session: pytest.Session) -> None:
    """What thousands of tests are made of is no garbage, and is not looked through for it again and again.

    Fetches the servers' jars before any test's timeout counts: the first time that takes minutes.
    """
    gc.freeze()
    if not session.config.option.collectonly and any(item.get_closest_marker("servers") for item in session.items):
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        matrix = any(item.get_closest_marker("matrix") for item in session.items)
        for name in jars.SETS if matrix else jars.DEFAULT_SETS:
            jars.resolve(name, terminal.write_line if terminal else None)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """ZooKeeper 3.8 (it answers MultiRead)."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper34(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """ZooKeeper 3.4.9 (it does not)."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper34"), version="3.4") as server:
        yield server


@pytest.fixture(scope="session")
def kafka(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Kafka 3.9.1 with its metadata under ``/kafka`` of `zookeeper`. Nobody kills it, so its session may outlast every
    moment in which the machine is too busy to answer."""
    config = {"zookeeper.session.timeout.ms": 60_000}
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), zookeeper=f"{zookeeper.connect}/kafka", config=config) as broker:
        yield broker


@pytest.fixture(scope="session")
def kraft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftBroker]:
    """Kafka 4.1.1 without ZooKeeper."""
    with KraftBroker(tmp_path_factory.mktemp("kraft")) as broker:
        yield broker


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name that no other test and no earlier run uses, valid as a group, a topic and a file."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name).strip("-")
    return f"{name[:60]}-{uuid.uuid4().hex[:8]}"


class MakeTopic(Protocol):
    """Creates a topic on `kafka` (or on the broker given) and returns its name once it can be used.

    Waits until a deletion of a topic of that name is complete.
    """

    def __call__(
        self, name: str, partitions: int = 1, *, bootstrap: str | None = None, config: dict[str, str] | None = None
    ) -> str: ...


@pytest.fixture
def make_topic(request: pytest.FixtureRequest) -> MakeTopic:
    """See `MakeTopic`. Starts `kafka` only where no other broker is named."""

    def make(
        name: str, partitions: int = 1, *, bootstrap: str | None = None, config: dict[str, str] | None = None
    ) -> str:
        address = bootstrap or request.getfixturevalue("kafka").bootstrap
        admin = AdminClient({"bootstrap.servers": address})
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
        deadline = time.monotonic() + 60
        while True:
            try:
                admin.create_topics([topic], operation_timeout=30)[name].result(60)
                break
            except KafkaException as error:
                # The broker refuses the name until it has completed the deletion of the topic that had it
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        while not _usable(admin, name, partitions):
            assert time.monotonic() < deadline, f"{name} has no leaders after 30 s"
        return name

    return make


def _usable(admin: AdminClient, name: str, partitions: int) -> bool:
    """Whether every partition has a leader."""
    topic = admin.list_topics(name, timeout=10).topics[name]
    return topic.error is None and [p.leader >= 0 for p in topic.partitions.values()] == [True] * partitions
