"""Groups whose edit cannot be exact while their members run: each real one is refused by name, and nothing changes."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from conftest import MakeTopic
from old_consumers import old_member
from processes import fill, running_program, until
from release_fixtures import ReleaseCluster
from repeated import repeated
from running_consumers import Deliveries, RdkafkaMember
from running_group import RunningGroup

from offsetmgr.sandbox import KafkaBroker, KraftBroker, jars
from offsetmgr.sandbox.java import QUICK_START, java_command

pytestmark = [pytest.mark.servers, pytest.mark.matrix]


def dry(edit: list[str]) -> list[str]:
    """The edit without its execution: an execution before the members have joined would create a plain group."""
    return [one for one in edit if one not in ("--execute", "--yes")]


def refused(running: RunningGroup, *options: str) -> str:
    """Checks that the edit is refused, also without --execute. Returns the line of the error."""
    edit = [*running.reset(3), *options]
    _, planned = running.run(*dry(edit), code=1)
    _, errors = running.run(*edit, code=1)
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, errors
    assert lines[0] in planned
    assert "hint: " in errors or "use Kafka's " in errors
    return lines[0]


def committed(bootstrap: str, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([KafkaPartition(topic, 0)], 30)
        return int(found.offset)
    except KafkaException:  # the broker creates its offsets topic
        return -1
    finally:
        consumer.close()


def test_a_connect_cluster(kafka: KafkaBroker, unique: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic(unique, 1)
    settings = tmp_path / "connect.properties"
    settings.write_text(
        f"bootstrap.servers={kafka.bootstrap}\ngroup.id={topic}\nlisteners=http://127.0.0.1:0\n"
        "key.converter=org.apache.kafka.connect.converters.ByteArrayConverter\n"
        "value.converter=org.apache.kafka.connect.converters.ByteArrayConverter\n"
        + "".join(
            f"{kind}.storage.topic={topic}-{kind}\n{kind}.storage.replication.factor=1\n"
            for kind in ("offset", "config", "status")
        )
    )
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    command = java_command([jars.resolve("connect")], main, [str(settings)], jvm=("-Xmx256m", *QUICK_START))
    running = RunningGroup(kafka.bootstrap, topic, tmp_path)
    with running_program(command, tmp_path / "connect.log"):
        until(lambda: "Kafka Connect" in running.run(*dry(running.reset(3)), "--new-group", code=None)[1], 120)
        line = refused(running, "--new-group")
        assert "its members are no consumers but a Kafka Connect cluster" in line


def test_a_kafka_streams_application(kraft: KraftBroker, unique: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic(unique, 1, bootstrap=kraft.bootstrap)
    fill(kraft.bootstrap, topic, 100)
    source = Path(__file__).parents[1] / "RunningStreams.java"
    command = java_command(
        [jars.resolve("kafka-4.4"), jars.resolve("streams"), jars.resolve("janino")],
        "org.codehaus.janino.SimpleCompiler",
        [str(source), "RunningStreams", kraft.bootstrap, topic, topic, str(tmp_path / "state")],
        jvm=("-Xmx256m", *QUICK_START),
    )
    running = RunningGroup(kraft.bootstrap, topic, tmp_path)
    with running_program(command, tmp_path / "streams.log"):
        until(lambda: committed(kraft.bootstrap, topic, topic) == 100, 120)
        assert "its members are Kafka Streams applications, which keep state" in refused(running)
        assert committed(kraft.bootstrap, topic, topic) == 100


def test_a_live_old_consumer_with_dual_commit(kafka, zookeeper, unique, make_topic, tmp_path) -> None:
    topic = make_topic(unique, 1)
    fill(kafka.bootstrap, topic, 100)
    chroot = f"{zookeeper.connect}/kafka"
    running = RunningGroup(kafka.bootstrap, topic, tmp_path)
    with old_member(tmp_path / "old", chroot, topic, topic, offsets_storage="kafka", dual_commit=True):
        until(lambda: committed(kafka.bootstrap, topic, topic) == 100)
        line = refused(running, "--store", f"kafka://{kafka.bootstrap}", "--zookeeper", chroot)
        assert "has consumers that are registered in ZooKeeper" in line
        # Without the ZooKeeper the group looks like one of consumers that have never joined.
        assert "its consumers have never joined, or use assign()" in refused(running)
        assert committed(kafka.bootstrap, topic, topic) == 100


def test_a_consumer_with_assign(kafka: KafkaBroker, unique: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = make_topic(unique, 1)
    fill(kafka.bootstrap, topic, 100)
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": topic, "auto.commit.interval.ms": 200}
        | {"auto.offset.reset": "earliest"}
    )
    consumer.assign([KafkaPartition(topic, 0, 0)])
    with closing(consumer), repeated(lambda: consumer.consume(10, 0.1)):
        until(lambda: committed(kafka.bootstrap, topic, topic) == 100)
        line = refused(RunningGroup(kafka.bootstrap, topic, tmp_path))
        assert "has commits, but the coordinator knows no members" in line
        assert committed(kafka.bootstrap, topic, topic) == 100


@contextmanager
def member_of(bootstrap: str, topic: str) -> Iterator[Deliveries]:
    """Runs a consumer, in the group with the name of the topic, that has committed the offset 100. Yields its
    deliveries."""
    fill(bootstrap, topic, 100)
    deliveries = Deliveries()
    member = RdkafkaMember(bootstrap, topic, topic, deliveries, name="member")
    try:
        until(lambda: committed(bootstrap, topic, topic) == 100)
        yield deliveries
    finally:
        member.stop()


def test_brokers_before_2_4(start_release: Callable[[str], ReleaseCluster], unique: str, tmp_path: Path) -> None:
    cluster = start_release("1.1.1")
    topic = cluster.make_topic(unique)
    with member_of(cluster.bootstrap, topic):
        line = refused(RunningGroup(cluster.bootstrap, topic, tmp_path))
        assert "needs brokers from Kafka 2.4 on, which remove members; its coordinator is of Kafka 1.1" in line
        assert committed(cluster.bootstrap, topic, topic) == 100


def test_brokers_of_2_8_are_edited(start_release: Callable[[str], ReleaseCluster], unique: str, tmp_path: Path) -> None:
    cluster = start_release("2.8.2")
    topic = cluster.make_topic(unique)
    with member_of(cluster.bootstrap, topic) as deliveries:
        running = RunningGroup(cluster.bootstrap, topic, tmp_path)
        _, errors = running.run(*running.reset(3))
        assert "1 of 1 member back" in errors
        until(lambda: len(deliveries.found) == 197)
        assert [one.offset for one in deliveries.found[100:]] == list(range(3, 100))
