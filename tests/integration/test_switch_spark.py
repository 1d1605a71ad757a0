"""A running Spark job and a running `ZookeeperConsumer` follow their groups through all storage modes and back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from before_image_callback import BeforeImageCallback
from confluent_kafka import Producer
from processes import wait_for

from offsetmgr.consumer import ConsumerSettings, ZookeeperConsumer
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.model import Committed
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.migration.live.live_migration import LiveMigration, SwitchSides
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.spark import CommitPolicy, OffsetCommitter
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.uri import open_store
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.session import ZookeeperSession

pytestmark = [pytest.mark.servers, pytest.mark.soak]

ROUND = [CommitMode.DUAL, CommitMode.KAFKA, CommitMode.DUAL, CommitMode.ZOOKEEPER]


def test_a_running_job_and_a_running_consumer_are_switched_without_loss_repetition_or_restart(
    spark: Any, kafka: KafkaBroker, make_topic: Callable[..., str], unique: str, tmp_path: Path
) -> None:
    topic = make_topic(unique, 2)
    job_group, old_group = f"{unique}-job", f"{unique}-old"
    first, second = quote(f"zookeeper://{kafka.zookeeper}", safe=""), quote(f"kafka://{kafka.bootstrap}", safe="")
    store = open_store(f"switched:?zookeeper={first}&kafka={second}&start=zookeeper")
    consumed: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []
    produced, ended = [0, 0], threading.Event()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def produce() -> None:
        while not ended.wait(0.01):
            for partition in range(2):
                producer.produce(topic, b"%d" % produced[partition], partition=partition)
                produced[partition] += 1
            producer.poll(0)

    def write(frame: Any, _batch: int) -> None:
        written.extend((row.partition, row.offset) for row in frame.select("partition", "offset").collect())

    def read(stream: Any) -> None:
        consumed.extend((message.partition, message.offset) for message in stream)

    def switch(group: str, to: CommitMode) -> int:
        with (
            ZookeeperStore(kafka.zookeeper) as one,
            KafkaStore(kafka.bootstrap) as two,
            KafkaCluster(kafka.bootstrap) as cluster,
            ZookeeperSession(kafka.zookeeper, session_timeout_ms=20_000) as own,
        ):
            sides = SwitchSides(one, two, cluster)
            done = LiveMigration(own, group, sides, who="the test", images_of=lambda *_: BeforeImageCallback())
            return len(done.execute(to, wait_s=90).members)

    with ZookeeperSession(kafka.zookeeper, session_timeout_ms=20_000) as own:
        for group in (job_group, old_group):
            sides = SwitchSides(store, store, None)
            LiveMigration(own, group, sides, who="the test", images_of=lambda *_: BeforeImageCallback()).declare(
                CommitMode.ZOOKEEPER
            )
    settings = ConsumerSettings(auto_offset_reset="smallest", auto_commit_interval_ms=100, release_delay_ms=0)
    consumer = ZookeeperConsumer(
        zookeeper=kafka.zookeeper,
        bootstrap_servers=kafka.bootstrap,
        group=old_group,
        offsets="switched",
        settings=settings,
    )
    committer = OffsetCommitter(store, job_group, policy=CommitPolicy(reconcile_s=1))
    spark.streams.addListener(committer)
    threads = [threading.Thread(target=produce)]
    query = None
    try:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        threads.append(threading.Thread(target=read, args=(stream,)))
        for thread in threads:
            thread.start()
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
        source = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
        query = source.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "point")).start()
        run = query.runId
        wait_for(lambda: committer.state.commits > 0, "the job commits")
        for mode in ROUND:
            commits, count = committer.state.commits, len(consumed)
            wait_for(lambda c=commits: committer.state.commits > c, "the job continues to commit")  # type: ignore[misc]
            wait_for(lambda c=count: len(consumed) > c, "the consumer continues")  # type: ignore[misc]
            assert (switch(job_group, mode), switch(old_group, mode)) == (1, 1)
        ended.set()
        threads[0].join()
        assert producer.flush(30) == 0
        wait_for(lambda: len(written) >= sum(produced) and len(consumed) >= sum(produced), "all is read")
        assert committer.reconcile(30)
        assert (query.isActive, query.runId, committer.state.failing) == (True, run, None)
    finally:
        ended.set()
        if query is not None:
            query.stop()
        spark.streams.removeListener(committer)
        committer.close()
        consumer.shutdown()
        store.close()
        for thread in threads:
            thread.join(90)

    everything = [(p, offset) for p in range(2) for offset in range(produced[p])]
    assert sorted(written) == everything
    assert sorted(consumed) == everything
    with ZookeeperStore(kafka.zookeeper) as zookeeper:
        for group in (job_group, old_group):
            offsets = {tp.partition: o.offset for tp, o in zookeeper.fetch(group).items() if isinstance(o, Committed)}
            assert offsets == dict(enumerate(produced))
