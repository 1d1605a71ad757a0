"""The blocks of the documentation and the programs in scripts/examples run against real servers.

A page's blocks run in order in one process. `doc_blocks.ADDRESSES` are the servers that pages name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from doc_blocks import MATRIX_PAGES, PAGES, PROJECT, SHELL, blocks, needs
from processes import OFFSETMGR, wait_for

from offsetmgr import OffsetAdmin, TopicPartition
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, ports

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

EXAMPLES: Final = PROJECT / "scripts" / "examples"
WITHOUT_SERVERS: Final = {"segments.md"}
"""Pages that `tests/unit/test_doc_blocks.py` runs."""
RUN_HERE: Final = [
    page
    for page in PAGES
    if page.name not in WITHOUT_SERVERS
    and any(block.runs and not (page in MATRIX_PAGES and block.language in SHELL) for block in blocks(page))
]
"""`tests/matrix/test_documented_commands.py` runs the shell blocks of `MATRIX_PAGES`."""
FIRST_MS: Final = 1_700_006_400_000
HOUR_MS: Final = 3_600_000
TOPICS: Final = {"orders": 2, "payments": 1}
"""The topics of the documentation. Only ``orders:0`` has records: ten in each of three hours from `FIRST_MS` on."""
GROUPS: Final = re.compile(r"(shop|billing|orders-|batches-job|simple-job).*")
"""The groups that the documentation uses."""


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server of this module alone, so that the names of the documentation can be used as they are."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def kafka(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker whose offsets topic has few partitions, because Spark reads each in a task of its own."""
    config = {"zookeeper.session.timeout.ms": 60_000, "offsets.topic.num.partitions": 4}
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
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.shuffle.partitions=2 --conf spark.ui.enabled=false pyspark-shell",
    }


def output_of(command: list[str | Path], directory: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def run_page(
    tmp_path: Path, environ: dict[str, str], kafka: KafkaBroker, zookeeper: ZooKeeperServer
) -> Iterator[Callable[[Path], str]]:
    """Runs the blocks of a page and returns what the Python blocks print. Starts an offset manager, and copies the
    broker's logs, only for pages that name them."""
    addresses = {"zookeeper": zookeeper.connect, "kafka": kafka.bootstrap, "output": str(tmp_path / "results")}
    with ExitStack() as stack:

        def run(page: Path) -> str:
            if needs(page, "manager"):
                addresses["manager"] = start_manager(kafka.bootstrap, stack, tmp_path / "manager.log", environ)
            if needs(page, "logs"):
                addresses["logs"] = str(tmp_path / "kafka-logs")
                for log in (kafka.directory / "data").glob("__consumer_offsets-*"):
                    if any(segment.stat().st_size for segment in log.glob("*.log")):
                        shutil.copytree(log, tmp_path / "kafka-logs" / log.name)
            directory = tmp_path / "work"
            directory.mkdir()
            runner = PROJECT / "tests" / "doc_runner.py"
            return output_of([sys.executable, runner, page, json.dumps(addresses)], directory, environ)

        yield run


def start_manager(bootstrap: str, stack: ExitStack, log: Path, environ: dict[str, str]) -> str:
    """Starts an offset manager and returns its address once it serves."""
    address, ready = (f"127.0.0.1:{ports.free_port()}" for _ in range(2))
    serve = ["manager", "serve", "--bootstrap-server", bootstrap, "--listen", address, "--metrics-listen", ready]
    process = subprocess.Popen([*OFFSETMGR, *serve], env=environ, stderr=log.open("wb"))
    stack.callback(process.wait, 60)
    stack.callback(process.terminate)
    status = [*OFFSETMGR, "manager", "status", "--bootstrap-server", address]
    wait_for(
        lambda: subprocess.run(status, env=environ, capture_output=True, check=False).returncode == 0,
        "the manager serves",
    )
    return address


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, run_page: Callable[[Path], str]) -> None:
    printed = run_page(page)
    expected = [block.output for block in blocks(page) if block.language == "python" and block.output is not None]
    if expected:
        assert printed == "".join(expected)


@pytest.fixture
def run(tmp_path: Path, environ: dict[str, str]) -> Callable[[str], str]:
    """Runs a program of scripts/examples and returns its output."""
    return lambda name: output_of([sys.executable, EXAMPLES / f"{name}.py"], tmp_path, environ)


def test_a_lag_report(run: Callable[[str], str]) -> None:
    assert "shop 26 records behind\n" in run("lag_report")


def test_a_copy_and_a_reset_that_is_undone(run: Callable[[str], str]) -> None:
    assert run("copy_group") == "1 offsets to write, no problems\nTrue\n"
    assert run("reset").endswith("1 written; undone: True\n")


def test_a_snapshot(run: Callable[[str], str]) -> None:
    saved, same = run("snapshot").splitlines()
    assert saved.split()[0] == same.split()[0] != "0"


def test_a_migration_that_is_rolled_back(run: Callable[[str], str]) -> None:
    assert run("migrate") == "1 planned, 1 written\nverified: True rolled back: True\n"


def test_a_check_of_a_phase_fails_for_a_group_without_members(run: Callable[[str], str]) -> None:
    assert run("check_phase").startswith("passed: False\n")


def test_a_period_coordinator(run: Callable[[str], str]) -> None:
    assert run("period_coordinator") == "period 1 begins at 1700000001000 ms\nperiod 2 begins at 1700000002000 ms\n"


def test_a_spark_committer(run: Callable[[str], str], kafka: KafkaBroker) -> None:
    assert run("spark_committer") == "committed: True\n"
    with OffsetAdmin(f"kafka://{kafka.bootstrap}") as admin:
        (group,) = admin.lag("shop-job")
        assert {row.lag for row in group.rows} == {0}


def test_every_example_is_shorter_than_15_lines() -> None:
    assert all(len(path.read_text("utf-8").splitlines()) < 15 for path in EXAMPLES.glob("*.py"))
