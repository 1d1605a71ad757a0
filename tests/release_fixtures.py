"""Real brokers of older releases, each under its own chroot in one ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from release_environment import CURRENT_RELEASES, has_leaders, releases

from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer, create_topic
from offsetmgr.sandbox.broker import DEFAULT_VERSION

SETTINGS = {
    "offsets.topic.num.partitions": 8,
    # Brokers remove expired offsets, also deleted ones, after a second instead of ten minutes.
    "offsets.retention.check.interval.ms": 1000,
}


QUICK_HEARTBEATS = {"group.consumer.min.heartbeat.interval.ms": 1000, "group.consumer.heartbeat.interval.ms": 1000}
"""Members of the consumer protocol learn of changes with their next heartbeat, by default after up to 5 s."""


@dataclass(frozen=True)
class ReleaseCluster:
    """A cluster of one release: ``zookeeper`` is its connect string with the chroot."""

    release: str
    zookeeper: str
    broker: KafkaBroker

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def make_topic(self, name: str, partitions: int = 1) -> str:
        """Creates a topic with the release's own tool, and returns its name once it can be used."""
        create_topic(name, partitions, zookeeper=self.zookeeper, bootstrap=self.bootstrap, version=self.release)
        deadline = time.monotonic() + 120
        while not has_leaders(self.bootstrap, name, partitions):
            assert time.monotonic() < deadline, f"{name} has no leaders after 120 s"
            time.sleep(0.02)
        return name


@pytest.fixture(scope="session")
def start_release(zookeeper: ZooKeeperServer, tmp_path_factory) -> Iterator[Callable[[str], ReleaseCluster]]:
    """A function that starts the cluster of a release. Only the last one runs: it stops the cluster before it."""
    running: list[ReleaseCluster] = []

    def start(release: str) -> ReleaseCluster:
        if running and running[0].release == release:
            return running[0]
        stop()
        where = f"{zookeeper.connect}/release-{release}"
        directory = tmp_path_factory.mktemp(f"kafka-{release}")
        running.append(
            ReleaseCluster(release, where, KafkaBroker(directory, zookeeper=where, version=release, config=SETTINGS))
        )
        running[0].broker.start()
        return running[0]

    def stop() -> None:
        while running:
            running.pop().broker.stop()

    yield start
    stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The matrix runs the tests of a module on the releases in its ``IN_MATRIX``, and the soak on all."""
    if "release_cluster" in metafunc.fixturenames and hasattr(metafunc.module, "IN_MATRIX"):
        metafunc.parametrize("release_cluster", releases(*metafunc.module.IN_MATRIX), indirect=True, scope="module")


@pytest.fixture(scope="module")
def release_cluster(request: pytest.FixtureRequest, start_release: Callable[[str], ReleaseCluster]) -> ReleaseCluster:
    """A cluster of each release in turn."""
    return start_release(request.param)


@pytest.fixture(scope="session")
def start_kraft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], KraftBroker]]:
    """A function that starts the broker of a release without ZooKeeper. Each broker runs to the end of the session."""
    with ExitStack() as stack:
        running: dict[str, KraftBroker] = {}

        def start(release: str) -> KraftBroker:
            if release not in running:
                directory = tmp_path_factory.mktemp(f"kraft-{release}")
                broker = KraftBroker(directory, version=release, config=QUICK_HEARTBEATS)
                running[release] = stack.enter_context(broker)
            return running[release]

        yield start


@pytest.fixture(params=["kafka", "kraft"])
def broker(request: pytest.FixtureRequest) -> KafkaBroker | KraftBroker:
    """The shared broker with ZooKeeper, and the one without."""
    found: KafkaBroker | KraftBroker = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def bootstrap(broker: KafkaBroker | KraftBroker) -> str:
    return broker.bootstrap


@pytest.fixture(params=CURRENT_RELEASES)
def current_broker(request: pytest.FixtureRequest) -> KafkaBroker | KraftBroker:
    """The shared broker of each current release in turn."""
    broker: KafkaBroker | KraftBroker
    if request.param == DEFAULT_VERSION:
        broker = request.getfixturevalue("kafka")
    else:
        broker = request.getfixturevalue("start_kraft")(request.param)
    return broker
