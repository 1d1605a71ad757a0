"""The blocks after ``Example::`` in the docstrings of the public API run against real servers, in the order of
`docstring_examples.PACKAGES`.

All examples share one topic of the broker. Those of `offsetmgr.spark` run in a process of their own, with one Spark
session.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from docstring_examples import PACKAGES, blocks, public_objects

from offsetmgr import OffsetAdmin, TopicPartition
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytestmark = pytest.mark.servers

PROGRAMS = [
    (package, f"{package}.{name}", source)
    for package in PACKAGES
    for name, found in public_objects(package).items()
    for source in blocks(found)
]
SPARK = "offsetmgr.spark"


@pytest.fixture(scope="module")
def adapted(tmp_path_factory, zookeeper: ZooKeeperServer, kafka: KafkaBroker) -> Iterator[Callable[[str], str]]:
    """Replaces the names of servers, groups and topics in an example by those of this module: the topic has five
    records, and the group ``shop`` has an offset in ZooKeeper and in Kafka."""
    unique = f"docs-{os.getpid()}"
    directory = tmp_path_factory.mktemp("examples")
    topic, group = f"orders-{unique}", f"shop-{unique}"
    chroot = f"{zookeeper.connect}/kafka"  # of the broker: old consumers read its topics there
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("XDG_STATE_HOME", str(directory / "state"))
        environ.chdir(directory)
        _create_topic(kafka.bootstrap, topic)
        for uri in (f"zookeeper://{chroot}", f"kafka://{kafka.bootstrap}"):
            with OffsetAdmin(uri) as admin:
                admin.plan_set(group, {TopicPartition(topic, 0): 2}, create=True).execute()

        def adapt(source: str) -> str:
            replaced = source.replace("h1:9092", kafka.bootstrap).replace("h1:2181", chroot)
            replaced = re.sub(r'"orders(?=["*:])', f'"{topic}', replaced)
            return re.sub(r'"(/?)shop(?!\.plan)', rf'"\g<1>{group}', replaced)

        yield adapt


def _create_topic(bootstrap: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "-1"})])[topic].result(90)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(5):
        producer.produce(topic, f"order {number}", partition=0, timestamp=1_700_006_400_000 + number)
    assert producer.flush(30) == 0


@pytest.mark.parametrize(
    ("name", "source"), [pytest.param(name, code, id=name) for package, name, code in PROGRAMS if package != SPARK]
)
def test_an_example_runs(name: str, source: str, adapted: Callable[[str], str]) -> None:
    exec(compile(adapted(source), f"<{name}>", "exec"), {"__name__": "example"})


@pytest.mark.matrix
def test_the_examples_of_spark_run_in_one_session(adapted: Callable[[str], str], tmp_path: Path) -> None:
    def order(name: str) -> tuple[bool, bool]:
        # The outputs exist only after the job, and a session with the connector has to be the first.
        return name.endswith("published_outputs"), not name.endswith(".session")

    spark = sorted(
        ((name, source) for package, name, source in PROGRAMS if package == SPARK), key=lambda p: order(p[0])
    )
    parts = []
    for name, source in spark:
        compiled = f"compile({adapted(source)!r}, {name!r}, 'exec')"
        parts.append(f"print('--- {name}', flush=True)\nexec({compiled}, {{'__name__': 'example'}})")
    program = tmp_path / "examples.py"
    program.write_text("\n".join(parts), "utf-8")
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert done.stdout.count("--- offsetmgr.spark.") == len(spark)
    assert "py4j" not in done.stderr, done.stderr[-6000:]


def test_the_examples_are_found() -> None:
    names = {name for _, name, _ in PROGRAMS}
    assert {"offsetmgr.OffsetAdmin", "offsetmgr.Migration", "offsetmgr.spark.OffsetCommitter"} <= names
