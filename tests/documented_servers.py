"""The servers, topics and groups that the blocks of the documentation use, as fixtures. A test module that imports them
starts servers of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from doc_blocks import PROJECT, blocks, needs
from documented_files import FIRST_MS, HOUR_MS, Scene, prepare, serves
from processes import run_command, start_command, wait_for

from offsetmgr import OffsetAdmin, TopicPartition
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, ports

LONG_PAGES: Final = {
    "lost-cluster",
    "manager-relay",
    "run-an-offset-manager",
    "secure-an-offset-manager",
    "spark",
    "spark-audit",
    "spark-periods",
}
"""Pages whose blocks take longer than 10 s: they start several managers, Spark, or Kafka's own tools."""
TOPICS: Final = {"orders": 2, "payments": 1}
"""The topics of the documentation. Only ``orders:0`` has records: ten in each of three hours from `FIRST_MS` on."""
GROUPS: Final = re.compile(r"(shop|billing|orders-|batches-job).*")
"""The groups that the documentation uses."""


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server of this module alone, so that the names of the documentation can be used as they are."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def kafka(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker whose offsets topic has few partitions, because Spark reads each in a task of its own. The tests
    have all rights on it."""
    config = {
        "zookeeper.session.timeout.ms": 60_000,
        "offsets.topic.num.partitions": 4,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), zookeeper=f"{zookeeper.connect}/kafka", config=config) as broker:
        yield broker


@pytest.fixture(scope="module")
def topics(kafka: KafkaBroker) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    new = [NewTopic(name, count, 1, config={"retention.ms": "-1"}) for name, count in TOPICS.items()]
    for created in admin.create_topics(new, operation_timeout=30).values():
        created.result(60)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(30):
        at = FIRST_MS + number // 10 * HOUR_MS + number
        producer.produce("orders", f"order {number}", f"key {number % 3}", partition=0, timestamp=at)
    assert producer.flush(30) == 0


@pytest.fixture
def environ(topics: None, tmp_path: Path, kafka: KafkaBroker, zookeeper: ZooKeeperServer) -> dict[str, str]:
    """The environment of a program of the documentation. The old groups ``shop`` and ``billing`` are at ``orders:0``,
    offset 4."""
    chroot = f"{zookeeper.connect}/kafka"
    for uri in (f"zookeeper://{chroot}", f"kafka://{kafka.bootstrap}"):
        with OffsetAdmin(uri) as admin:
            if left := [group for group in admin.groups() if GROUPS.fullmatch(group)]:
                assert admin.plan_delete(left).execute(tmp_path / f"{uri[:5]}.avro").ok
    with OffsetAdmin(f"zookeeper://{chroot}") as admin:
        for group in ("shop", "billing"):
            plan = admin.plan_set(group, {TopicPartition("orders", 0): 4}, create=True)
            assert plan.execute(tmp_path / f"{group}.avro").written == 1
    return os.environ | {
        "OFFSETMGR_ZOOKEEPER": chroot,
        "OFFSETMGR_BOOTSTRAP_SERVER": kafka.bootstrap,
        "ZK": f"zookeeper://{chroot}",
        "KAFKA": f"kafka://{kafka.bootstrap}",
        "PYTHONPATH": os.pathsep.join([str(PROJECT), str(PROJECT / "tests")]),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.shuffle.partitions=2 --conf spark.ui.enabled=false pyspark-shell",
    }


def output_of(command: list[str | Path], directory: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "py4j" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture
def run_page(tmp_path: Path, environ: dict[str, str], kafka: KafkaBroker, zookeeper) -> Iterator[Callable[[Path], str]]:
    """Runs the blocks of a page and returns what the Python blocks print. Starts an offset manager only for
    pages that name it and do not start it themselves."""
    addresses = {"zookeeper": zookeeper.connect, "kafka": kafka.bootstrap, "output": str(tmp_path / "results")}
    with ExitStack() as stack:

        def run(page: Path) -> str:
            if serves(page):
                addresses["manager"], addresses["metrics"] = (f"127.0.0.1:{ports.free_port()}" for _ in range(2))
            elif needs(page, "manager"):
                addresses["manager"] = start_manager(kafka.bootstrap, stack, tmp_path / "manager.log", environ)
            addresses["logs"] = str(tmp_path / "kafka-logs")
            directory = tmp_path / "work"
            directory.mkdir()
            prepare(Scene(page, directory, kafka.directory / "data", addresses))
            runner = PROJECT / "tests" / "doc_runner.py"
            return output_of([sys.executable, runner, page, json.dumps(addresses)], directory, environ)

        yield run


def start_manager(bootstrap: str, stack: ExitStack, log: Path, environ: dict[str, str]) -> str:
    """Starts an offset manager and returns its address once it serves."""
    address, ready = (f"127.0.0.1:{ports.free_port()}" for _ in range(2))
    serve = ["manager", "serve", "--bootstrap-server", bootstrap, "--listen", address, "--metrics-listen", ready]
    process = start_command(*serve, environ=environ, stdout=subprocess.DEVNULL, stderr=log.open("wb"))
    stack.callback(process.wait, 60)
    stack.callback(process.terminate)
    status = ("manager", "status", "--bootstrap-server", address)
    wait_for(lambda: run_command(*status, environ=environ, code=None).returncode == 0, "the manager serves")
    return address


def check_page(page: Path, run_page: Callable[[Path], str]) -> None:
    """Runs the blocks of a page. The Python blocks must print the output that the page shows."""
    printed = run_page(page)
    expected = [block.output for block in blocks(page) if block.language == "python" and block.output is not None]
    if expected:
        assert printed == "".join(expected)
