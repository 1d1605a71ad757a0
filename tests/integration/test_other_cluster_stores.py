"""Long-running stores and commands reject offsets of another Kafka cluster and write nothing.

The fixtures `kafka` (its ZooKeeper chroot is ``/kafka``) and `kraft` are two clusters.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import confluent_kafka as ck
import confluent_kafka.admin
import pytest
from backend_listeners import ManagerListener
from processes import run_command, wait_for

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import OtherCluster
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.stores.dual import DualStore
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.uri import open_store
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.session import ZookeeperSession

if TYPE_CHECKING:
    from conftest import MakeTopic

    from offsetmgr.sandbox import KafkaBroker, KraftBroker

pytestmark = pytest.mark.servers

PATIENT = ConnectionConfig(timeout_ms=20_000)
Run = Callable[..., subprocess.CompletedProcess[str]]


class Two:
    """One group and one topic in two clusters."""

    def __init__(self, kafka: KafkaBroker, kraft: KraftBroker, name: str) -> None:
        self.a, self.b, self.name = kafka, kraft, name
        self.tp = TopicPartition(name, 0)
        self.of_a = KafkaStore(kafka.bootstrap, PATIENT)
        self.nodes = ZookeeperStore(kafka.zookeeper, config=PATIENT)
        self.of_b = KafkaStore(kraft.bootstrap, PATIENT)

    def committed(self, store: KafkaStore | ZookeeperStore) -> tuple[int, int | None] | None:
        """The committed offset and its leader epoch."""
        found = store.fetch(self.name).get(self.tp)
        return (found.offset, found.leader_epoch) if isinstance(found, Committed) else None


@pytest.fixture
def two(kafka: KafkaBroker, kraft: KraftBroker, make_topic: MakeTopic, unique: str) -> Iterator[Two]:
    make_topic(unique)
    make_topic(unique, bootstrap=kraft.bootstrap)
    found = Two(kafka, kraft, unique)
    yield found
    for store in (found.of_a, found.nodes, found.of_b):
        store.close()


@pytest.fixture
def run() -> Run:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(*arguments, code=None)

    return command


def test_a_dual_store_of_two_clusters_writes_nothing_without_translate_none(two: Two) -> None:
    uri = f"dual:?primary={quote(two.of_a.uri, safe='')}&secondary={quote(two.of_b.uri, safe='')}"
    value = OffsetAndMetadata(7, "", 0)

    with open_store(uri, PATIENT) as store:
        with pytest.raises(OtherCluster, match="different Kafka clusters"):
            store.commit(two.name, {two.tp: value})
        with pytest.raises(OtherCluster):
            store.fetch(two.name)
    assert (two.committed(two.of_a), two.committed(two.of_b)) == (None, None)

    with open_store(f"{uri}&translate=none", PATIENT) as store:
        store.commit(two.name, {two.tp: value})
    assert (two.committed(two.of_a), two.committed(two.of_b)) == ((7, 0), (7, None))


def test_a_dual_store_of_one_cluster_needs_no_option(two: Two) -> None:
    with DualStore(KafkaStore(two.a.bootstrap), ZookeeperStore(two.a.zookeeper)) as store:
        store.commit(two.name, {two.tp: OffsetAndMetadata(3, "", 0)})

    assert (two.committed(two.of_a), two.committed(two.nodes)) == ((3, 0), (3, None))


def test_a_switch_between_two_clusters_is_rejected_before_anything_changes(two: Two, run: Run) -> None:
    stores = ("--zookeeper", two.a.zookeeper, "--bootstrap-server", two.b.bootstrap)
    switch = ("migrate", "switch", "--group", two.name, *stores, "--execute", "--yes")

    declared = run(*switch, "--to", "zookeeper", "--declare")
    assert declared.returncode == 2
    assert "the offsets are positions in the logs of another Kafka cluster: the ZooKeeper belongs to" in declared.stderr
    with ZookeeperSession(two.a.zookeeper) as session:
        assert session.get(f"/consumers/{two.name}") is None

    two.nodes.commit(two.name, {two.tp: OffsetAndMetadata(5)})
    assert run(*switch, "--to", "zookeeper", "--declare", "--translate", "none").returncode == 0
    assert run(*switch, "--to", "dual").returncode == 2
    for mode in ("dual", "kafka"):
        done = run(*switch, "--to", mode, "--translate", "none")
        assert done.returncode == 0, done.stderr
    assert two.committed(two.of_b) == (5, None)


def test_a_mirror_between_two_clusters_is_rejected_before_it_starts(two: Two, run: Run) -> None:
    two.of_a.commit(two.name, {two.tp: OffsetAndMetadata(5, "", 0)})
    sides = ("--from", two.of_a.uri, "--to", two.of_b.uri)
    mirror = ("migrate", "mirror", *sides, "--group", two.name, "--once", "--settle", "50", "--yes")

    refused = run(*mirror)
    assert refused.returncode == 2
    assert "error: plan: the offsets are positions in the logs of another Kafka cluster: " in refused.stderr
    assert two.committed(two.of_b) is None

    done = run(*mirror, "--translate", "none")
    assert done.returncode == 0, done.stderr
    assert two.committed(two.of_b) == (5, None)


def test_a_mirror_rejects_the_offsets_of_a_recreated_topic_and_names_the_partition(
    two: Two, run: Run, make_topic: MakeTopic
) -> None:
    two.nodes.commit(two.name, {two.tp: OffsetAndMetadata(5)})
    admin = ck.admin.AdminClient({"bootstrap.servers": two.a.bootstrap})
    path = f"/brokers/topics/{two.name}"
    with ZookeeperSession(two.a.zookeeper) as session:
        node = session.get(path)
        assert node is not None
        first = node.ctime_ms
        admin.delete_topics([two.name], operation_timeout=30)[two.name].result(60)
        wait_for(lambda: session.get(path) is None, "the deletion")
        make_topic(two.name, bootstrap=two.a.bootstrap)
        wait_for(lambda: (found := session.get(path)) is not None and found.ctime_ms > first, "the new topic")
    mirror = ("migrate", "mirror", "--from", two.nodes.uri, "--to", two.of_a.uri, "--group", two.name)

    done = run(*mirror, "--once", "--settle", "50", "--yes", "--format", "json")

    (row,) = json.loads(done.stdout)
    assert done.returncode == 1
    assert f"refused: {two.tp}: committed at" in row["detail"]
    assert two.committed(two.of_a) is None


def test_a_runbook_for_a_zookeeper_and_a_kafka_of_two_clusters_is_rejected(two: Two, run: Run) -> None:
    two.nodes.commit(two.name, {two.tp: OffsetAndMetadata(5)})
    stores = ("--zookeeper", two.a.zookeeper, "--bootstrap-server", two.b.bootstrap)

    refused = run("runbook", "check", "--phase", "dual", "--group", two.name, *stores)

    assert refused.returncode == 2
    assert "error: runbook: ZooKeeper and brokers hold offsets of different Kafka clusters: " in refused.stderr


def test_a_spark_copy_to_another_cluster_is_rejected_before_spark_starts(two: Two, run: Run) -> None:
    two.of_a.commit(two.name, {two.tp: OffsetAndMetadata(5, "", 0)})
    copy = ("spark", "copy", "--from", two.of_a.uri, "--to", two.of_b.uri, "--group", two.name, "--execute", "--yes")

    refused = run(*copy)
    assert refused.returncode == 2
    assert "error: spark copy: the offsets are positions in the logs of another Kafka cluster: " in refused.stderr
    assert two.committed(two.of_b) is None

    done = run(*copy, "--translate", "none", "--master", "local[1]")
    assert done.returncode == 0, done.stderr
    assert two.committed(two.of_b) == (5, None)


def test_serving_a_store_of_another_cluster_is_rejected_and_translate_none_drops_leader_epochs(
    two: Two, run: Run
) -> None:
    serve = ("manager", "serve", "--listen", "127.0.0.1:0", "--bootstrap-server", two.b.bootstrap)
    refused = run(*serve, "--store", two.of_a.uri)
    assert refused.returncode == 2
    assert "its offsets belong to another Kafka cluster than the topics: " in refused.stderr
    assert "add --translate none" in refused.stderr

    with ManagerListener(two.b.bootstrap, "unused", store=two.of_a.uri, translate=OffsetTranslation.NONE) as listener:
        consumer = ck.Consumer({"bootstrap.servers": listener.bootstrap, "group.id": two.name})
        consumer.commit(offsets=[ck.TopicPartition(two.name, 0, 4, leader_epoch=0)], asynchronous=False)
        consumer.close()
    assert two.committed(two.of_a) == (4, None)
