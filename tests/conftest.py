"""The real servers that all tests marked ``servers`` share. A server starts for the first test that uses it and stops
at the end of the session.

A test that stops, kills or freezes a server starts its own from `offsetmgr.sandbox`.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

import hypothesis  # before kio, which registers its strategies only if hypothesis is imported
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from processes import is_led

from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer
from offsetmgr.sandbox.broker import NEWEST_VERSION
from offsetmgr.sandbox.java import class_archive

pytest_plugins = [
    "checked_cluster", "damaged_log_fixtures", "everyday_fixtures", "group_lock_fixtures", "memory_listener_fixtures",
    "period_runs", "planted_tree", "relay_fixtures", "release_fixtures", "secured_fixtures", "two_clusters",
    "zookeeper_store_fixtures",
]  # fmt: skip
"""The modules with fixtures that several tests share."""

_INHERITED: Final = re.compile(
    r"OFFSETMGR_(?!CACHE$|BROWSER$|CLIENTS$|SOAK$|SEED$|TAKEOVERS$|RUNNING_).*"
    r"|PYTHON(?!PATH$|HOME$|HASHSEED$).*|(PY)?SPARK_.*|HADOOP_.*|GIT_(DIR|WORK_TREE|INDEX_FILE)"
    r"|COLUMNS|LINES|NO_COLOR|FORCE_COLOR"
)
"""The variables that change the output or the settings of the commands that tests run."""


def pytest_configure(config: pytest.Config) -> None:
    """Replaces the state that the tests, and the processes that they start, inherit from the parent process. Makes the
    helpers of every directory of tests importable from every test."""
    helpers = {str(path.parent) for path in Path(__file__).parent.rglob("*.py")}
    sys.path += sorted(helpers.difference(sys.path))
    pytest.register_assert_rewrite("log_contract", "offsetmgr.testing")
    # A shell that starts the tests in the background ignores SIGINT. nohup ignores SIGHUP, and so do the tests
    # themselves: their handler does nothing, and the processes that they start do not inherit it.
    handlers: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: lambda *_: None}
    handlers |= dict.fromkeys((signal.SIGTERM, signal.SIGCHLD), signal.SIG_DFL)
    for number, handler in handlers.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    os.umask(0o022)
    for name in filter(_INHERITED.fullmatch, list(os.environ)):
        del os.environ[name]
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "localhost,127.0.0.1")))
    # Edits write their before-images and the operation log there. The user's own contexts are not read.
    state = tempfile.TemporaryDirectory(prefix="offsetmgr-state-", ignore_cleanup_errors=True)
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = os.environ["XDG_CONFIG_HOME"] = state.name
    # No deadline for one example: its duration depends on the machine. `pytest-timeout` bounds the whole test.
    # Every run has the same examples, so that a commit that has passed passes again; only the soak searches for others.
    soak = bool(os.environ.get("OFFSETMGR_SOAK"))
    hypothesis.settings.register_profile("same", deadline=None, max_examples=30, derandomize=True)
    hypothesis.settings.register_profile("soak", deadline=None, max_examples=300)
    hypothesis.settings.load_profile("soak" if soak else "same")
    # The JVM flags of the sandbox's servers, for a quick start: these JVMs live only for seconds.
    spark_module = find_spec("pyspark")
    assert spark_module is not None and spark_module.origin is not None
    classes = class_archive([Path(spark_module.origin).with_name("jars")])
    flags = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:SharedArchiveFile={classes} -Xlog:cds*=off"
    os.environ["SPARK_SUBMIT_OPTS"] = flags
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # by default Spark listens on the machine's public address


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips the import of a file whose ``pytestmark`` has a deselected marker. Otherwise each process of xdist would
    import the file and rewrite its assertions for nothing."""
    deselected = re.findall(r"(?:^| and )not (\w+)(?= and |$)", config.option.markexpr)
    if deselected and collection_path.suffix == ".py":
        line = rf"^pytestmark = .*\bpytest\.mark\.({'|'.join(deselected)})\b"
        if re.search(line, collection_path.read_text("utf-8"), re.MULTILINE):
            return True
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``--dist loadfile``: gives all files that use Spark to one process, so that they share its JVM."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    pattern = re.compile(r"\bspark: (Any|SparkSession)\b")
    tests = (config.rootpath / "tests").rglob("test_*.py")
    spark_files = {str(path.relative_to(config.rootpath)) for path in tests if pattern.search(path.read_text("utf-8"))}
    scheduling = LoadScopeScheduling(config, log)

    def scope_of(node: str) -> str:
        file = node.partition("::")[0]
        return "spark" if file in spark_files else file

    scheduling._split_scope = scope_of
    return scheduling


LONGEST: Final = (
    "tutorials", "period_jobs", "running_groups", "fleet", "running_edit_faults", "old_brokers_commands",
    "cutover_clients", "mirror_maker", "chain", "rolling_bounce", "bounce_failures", "runbook_followed",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the tests without servers, while the servers are downloaded. Of the others, those with Spark and
    those that take longest begin first, so that all processes end at the same time."""

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        spark = "spark" in getattr(item, "fixturenames", ())
        longest = item.path.stem.removeprefix("test_") in LONGEST
        return item.get_closest_marker("servers") is not None, not spark, not longest

    items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Excludes the collected tests from garbage collection, which would scan thousands of objects again and again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def restored_signal_handlers() -> Iterator[None]:
    """A command that runs in this process may leave a signal ignored, and each process that a later test starts would
    inherit that."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def no_brokers_of_other_users() -> Iterator[None]:
    """Java programs of other users, whose open files this user may not see, do not use the log directories of tests."""
    from offsetmgr.segments import broker_lock

    may_be_broker = broker_lock._may_be_broker

    def is_of_a_test(process: Path) -> bool:
        return process.parent != Path("/proc") and may_be_broker(process)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_lock, "_may_be_broker", is_of_a_test)
        yield


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
def kraft(start_kraft: Callable[[str], KraftBroker]) -> KraftBroker:
    """Kafka 4.4.0, the newest release."""
    return start_kraft(NEWEST_VERSION)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A Spark session with the tables of offsetmgr and with the Kafka connector. Its JVM outlives it."""
    from offsetmgr.spark import session
    from offsetmgr.spark.table_registration import register

    settings: dict[str, Any] = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.driver.memory": "1g"}
    settings["spark.sql.shuffle.partitions"] = 2
    found = register(session("offsetmgr-tests", master="local[2,4]", **settings))
    yield found
    found.stop()


@pytest.fixture
def migration(tmp_path: Path) -> Any:
    """A `one_migration.Migration`, which has not been planned yet."""
    from one_migration import Migration

    return Migration(tmp_path)


@pytest.fixture
def dead_server() -> Iterator[str]:
    """An address without a listener, reserved so that no other process can use it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


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


@pytest.fixture(scope="session")
def kafka_admin(kafka: KafkaBroker) -> AdminClient:
    """One client for all topics: each new one needs threads and connections."""
    return AdminClient({"bootstrap.servers": kafka.bootstrap})


@pytest.fixture
def make_topic(request: pytest.FixtureRequest) -> MakeTopic:
    """See `MakeTopic`. Starts `kafka` only if ``bootstrap`` names no other broker."""

    def make(
        name: str, partitions: int = 1, *, bootstrap: str | None = None, config: dict[str, str] | None = None
    ) -> str:
        admin = AdminClient({"bootstrap.servers": bootstrap}) if bootstrap else request.getfixturevalue("kafka_admin")
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
        while not is_led(admin, name, partitions):
            assert time.monotonic() < deadline, f"{name} has no leaders after 120 s"
            time.sleep(0.02)
        return name

    return make
