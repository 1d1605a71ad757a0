"""The real servers that all tests marked ``servers`` share. A server starts for the first test that uses it and stops
at the end of the session.

A test that stops, kills or freezes a server starts its own from `offsetmgr.sandbox`.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import hypothesis  # before kio, which registers its strategies only if hypothesis is imported
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from release_fixtures import release_cluster, start_release

from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer, jars

__all__ = ["release_cluster", "start_release"]  # pytest finds these fixtures here


def pytest_configure(config: pytest.Config) -> None:
    """Restores the handling of SIGINT: a shell that starts the tests in the background ignores the signal, and the
    processes that tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Edits write their before-images and the operation log there.
    state = tempfile.TemporaryDirectory(prefix="offsetmgr-state-", ignore_cleanup_errors=True)
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    # No deadline for one example: its duration depends on the machine. `pytest-timeout` bounds the whole test.
    examples = 300 if os.environ.get("OFFSETMGR_SOAK") else 30
    hypothesis.settings.register_profile("any machine", deadline=None, max_examples=examples)
    hypothesis.settings.load_profile("any machine")
    # The JVM flags of the sandbox's servers, for a quick start: these JVMs live only for seconds.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # by default Spark listens on the machine's public address


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips the import of a file whose ``pytestmark`` has a deselected marker. Otherwise each process of xdist would
    import the file and rewrite its assertions for nothing."""
    deselected = re.findall(r"(?:^| and )not (\w+)(?= and |$)", config.option.markexpr)
    if deselected and collection_path.suffix == ".py":
        line = rf"^pytestmark = .*\bpytest\.mark\.({'|'.join(deselected)})\b"
        if re.search(line, collection_path.read_text("utf-8"), re.MULTILINE):
            return True
    return None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Excludes the collected tests from garbage collection, which would scan thousands of objects again and again.

    Fetches the servers' jars before any test's timeout starts: the first download takes minutes.
    """
    gc.freeze()
    if not session.config.option.collectonly and any(item.get_closest_marker("servers") for item in session.items):
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        matrix = any(item.get_closest_marker("matrix") for item in session.items)
        for name in jars.SETS if matrix else jars.DEFAULT_SETS:
            jars.resolve(name, terminal.write_line if terminal else None)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """ZooKeeper 3.8, which supports MultiRead."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper34(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """ZooKeeper 3.4.9, which does not support MultiRead."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper34"), version="3.4") as server:
        yield server


@pytest.fixture(scope="session")
def kafka(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Kafka 3.9.1 with its metadata under ``/kafka`` of `zookeeper`.

    No test kills this broker, so it has a long session timeout, which tolerates a busy machine.
    """
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
    """Creates a topic on `kafka` or on the brokers at ``bootstrap``, and returns its name once every partition has a
    leader.

    Waits until a deletion of a topic of that name is complete.
    """

    def __call__(
        self, name: str, partitions: int = 1, *, bootstrap: str | None = None, config: dict[str, str] | None = None
    ) -> str: ...


@pytest.fixture
def make_topic(request: pytest.FixtureRequest) -> MakeTopic:
    """See `MakeTopic`. Starts `kafka` only if ``bootstrap`` names no other broker."""

    def make(
        name: str, partitions: int = 1, *, bootstrap: str | None = None, config: dict[str, str] | None = None
    ) -> str:
        address = bootstrap or request.getfixturevalue("kafka").bootstrap
        admin = AdminClient({"bootstrap.servers": address})
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
        deadline = time.monotonic() + 120
        while True:
            try:
                admin.create_topics([topic], operation_timeout=30)[name].result(60)
                break
            except KafkaException as error:
                # The broker rejects the name until it has completed the deletion of the earlier topic.
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        while not _usable(admin, name, partitions):
            assert time.monotonic() < deadline, f"{name} has no leaders after 120 s"
        return name

    return make


def _usable(admin: AdminClient, name: str, partitions: int) -> bool:
    """Whether every partition has a leader."""
    topic = admin.list_topics(name, timeout=60).topics[name]
    return topic.error is None and [p.leader >= 0 for p in topic.partitions.values()] == [True] * partitions
