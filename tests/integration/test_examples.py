"""The programs in scripts/examples run against real servers, and users' type checkers accept them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from same_cluster import join_cluster

from offsetmgr import OffsetAdmin, TopicPartition
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytestmark = pytest.mark.servers
EXAMPLES = Path(__file__).resolve().parents[2] / "scripts" / "examples"


@pytest.fixture
def run(
    unique: str, tmp_path: Path, kafka: KafkaBroker, zookeeper: ZooKeeperServer, make_topic: Callable[..., str]
) -> Callable[[str], str]:
    """Runs an example against a ZooKeeper chroot of its own and returns its output. The names ``orders`` and ``shop``
    in the example are replaced by unique names."""
    make_topic(f"orders-{unique}", 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for _ in range(10):
        producer.produce(f"orders-{unique}", b"x", partition=0)
    assert producer.flush(30) == 0
    chroot = f"{zookeeper.connect}/{unique}"
    join_cluster(chroot, kafka.bootstrap)
    with OffsetAdmin(f"zookeeper://{chroot}") as admin:
        plan = admin.plan_set(f"shop-{unique}", {TopicPartition(f"orders-{unique}", 0): 4}, create=True)
        assert plan.execute(tmp_path / "before.avro").written == 1

    def run(name: str) -> str:
        source = (EXAMPLES / f"{name}.py").read_text("utf-8").replace('"orders', f'"orders-{unique}')
        program = tmp_path / f"{name}.py"
        program.write_text(source.replace('"shop', f'"shop-{unique}'), "utf-8")
        environ = {
            **os.environ,
            "OFFSETMGR_ZOOKEEPER": chroot,
            "OFFSETMGR_BOOTSTRAP_SERVER": kafka.bootstrap,
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        done = subprocess.run(
            [sys.executable, program],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.replace(unique, "")

    return run


def test_a_lag_report(run: Callable[[str], str]) -> None:
    assert run("lag_report") == "shop- 6 records behind\n"


def test_a_copy_and_a_reset_that_is_undone(run: Callable[[str], str]) -> None:
    assert run("copy_group") == "1 offsets to write, no problems\nTrue\n"
    assert run("reset").endswith("1 written; undone: True\n")


def test_a_snapshot(run: Callable[[str], str]) -> None:
    assert run("snapshot") == "1 offsets of 1 groups\n1 are as in the file\n"


def test_a_migration_that_is_rolled_back(run: Callable[[str], str]) -> None:
    assert run("migrate") == "1 planned, 1 written\nverified: True rolled back: True\n"


def test_a_check_of_a_phase_fails_for_a_group_without_members(run: Callable[[str], str]) -> None:
    assert run("check_phase").startswith("passed: False\n")


def test_a_period_coordinator(run: Callable[[str], str]) -> None:
    assert run("period_coordinator") == ("period 1 begins at 1700000001000 ms\nperiod 2 begins at 1700000002000 ms\n")


def test_a_spark_committer(run: Callable[[str], str], kafka: KafkaBroker, unique: str) -> None:
    assert run("spark_committer") == "committed: True\n"
    with OffsetAdmin(f"kafka://{kafka.bootstrap}") as admin:
        (group,) = admin.lag(f"shop-{unique}-job")
        assert [row.lag for row in group.rows] == [0]


def test_every_example_is_shorter_than_15_lines() -> None:
    assert all(len(path.read_text("utf-8").splitlines()) < 15 for path in EXAMPLES.glob("*.py"))
