"""The releases of brokers around the oldest one with which an offset manager starts."""

import pytest
from confluent_kafka.admin import AdminClient
from processes import Commands

from offsetmgr import Committed, OffsetAndMetadata, OffsetManager, TopicPartition
from offsetmgr.sandbox import KafkaBroker, jars
from offsetmgr.sandbox import broker as sandbox_broker

pytestmark = [pytest.mark.servers, pytest.mark.matrix]


def test_2_7_is_rejected_by_the_name_of_the_missing_request(zookeeper, tmp_path, unique, monkeypatch) -> None:
    kafka, log4j = jars.SETS["kafka-1.1"]
    modules = (kafka._replace(revision="2.7.2"), log4j._replace(revision="1.7.30"))
    monkeypatch.setitem(jars.SETS, "kafka-2.7", modules)
    monkeypatch.setitem(sandbox_broker.BROKER_JARS, "2.7.2", ("kafka-2.7",))
    where = f"{zookeeper.connect}/{unique}"
    with KafkaBroker(tmp_path / "broker", zookeeper=where, version="2.7.2") as broker:
        serve = ("manager", "serve", "--bootstrap-server", broker.bootstrap, "--listen", "127.0.0.1:0")
        done = Commands(tmp_path).run(*serve, code=1)

        expected = "it does not support DescribeProducers (Kafka 2.8 and later)"
        assert f"error: broker {broker.bootstrap}: {expected}\n" in done.stderr
        assert not AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).topics


def test_a_manager_on_2_8_claims_commits_and_takes_over(start_release, unique) -> None:
    bootstrap = start_release("2.8.2").bootstrap
    partition = TopicPartition("orders", 0)
    with OffsetManager(bootstrap, topic=unique, partitions=8, timeout_s=60) as manager:
        manager.commit("group", {partition: OffsetAndMetadata(5)})
    with OffsetManager(bootstrap, topic=unique, partitions=8, timeout_s=60) as manager:
        assert manager.fetch("group") == {partition: Committed(5)}
        manager.commit("group", {partition: OffsetAndMetadata(6)})
        assert manager.fetch("group") == {partition: Committed(6)}
