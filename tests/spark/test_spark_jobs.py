"""Streaming jobs of real Spark on real Kafka: the group follows the checkpoint, and a job starts from the group alone.

All tests share one Spark session. Batches are small and many: in `scripts/soak` at least 100.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import fill, wait_for
from repeated import repeated
from streaming_queries import finished

from offsetmgr.core.errors import PartialFailure, Unreachable
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer
from offsetmgr.spark import BatchCommitter, CommitPolicy, OffsetCommitter, reader_from_group, starting_offsets
from offsetmgr.spark.checkpoint import HadoopFiles
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.testing.faulty_store import FaultyStore

pytestmark = pytest.mark.servers

BATCHES = 100 if os.environ.get("OFFSETMGR_SOAK") else 8
PER_BATCH = 6
until = partial(wait_for, description="the condition is true", seconds=120)


class Group:
    """A group in its own store. Tests read it through another connection than the committer's."""

    def __init__(self, kind: Callable[[str], OffsetStore], at: str, name: str, stack: contextlib.ExitStack) -> None:
        self.name = name
        self.written = stack.enter_context(kind(at))
        self.read = stack.enter_context(kind(at))
        self._lock = threading.Lock()

    def offsets(self) -> dict[str, int]:
        with self._lock:
            fetched = self.read.fetch(self.name)
        return {str(tp): found.offset for tp, found in fetched.items() if isinstance(found, Committed)}


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as found:
        yield found


@contextlib.contextmanager
def never_ahead(pairs: list[tuple[Group, Path]]) -> Iterator[list[int]]:
    """Repeatedly checks that no group is ahead of its checkpoint. Each round reads the group first, and then the
    checkpoint, which only grows. Yields the number of comparisons in which the group had offsets."""
    comparisons, wrong = [0], []

    def compare() -> None:
        for group, checkpoint in pairs:
            committed, done = group.offsets(), finished(checkpoint)
            ahead = {tp: (offset, done.get(tp)) for tp, offset in committed.items() if offset > done.get(tp, -1)}
            if ahead:
                wrong.append((group.name, ahead))
            comparisons[0] += bool(committed)
        time.sleep(0.01)

    with repeated(compare):
        yield comparisons
    assert wrong == []


def source(spark: Any, bootstrap: str, topic: str, batch: int = PER_BATCH) -> Any:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    return reader.option("maxOffsetsPerTrigger", batch).load().select("topic")


def test_a_query_with_two_sources_and_a_query_with_a_failing_store(
    spark: Any, kraft: KraftBroker, zookeeper: ZooKeeperServer, make_topic: Any, unique: str, tmp_path: Path, stack: Any
) -> None:
    topics = [make_topic(f"{unique}-{n}", 2, bootstrap=kraft.bootstrap) for n in "abc"]
    for topic in topics:
        fill(kraft.bootstrap, topic, *[BATCHES * PER_BATCH // 2] * 2)
    double = Group(KafkaStore, kraft.bootstrap, f"{unique}-double", stack)
    single = Group(ZookeeperStore, zookeeper.connect, f"{unique}-single", stack)
    failing = FaultyStore(single.written)
    first = OffsetCommitter(double.written, double.name, queries=["double"], policy=CommitPolicy(reconcile_s=1))
    second = OffsetCommitter(failing, single.name, queries=["single"], policy=CommitPolicy(reconcile_s=1, retries=1))
    checkpoints = [tmp_path / "double 100%25 #1", tmp_path / "single"]
    for committer in (first, second):
        spark.streams.addListener(committer)

    def start(name: str, frame: Any, checkpoint: Path) -> Any:
        stream = frame.writeStream.format("noop").queryName(name).option("checkpointLocation", str(checkpoint))
        return stream.start()

    a, b, c = (source(spark, kraft.bootstrap, topic) for topic in topics)
    clock = spark.readStream.format("rate").load().selectExpr("cast(value as string)")
    with never_ahead([(double, checkpoints[0]), (single, checkpoints[1])]) as comparisons:
        failing.fail("write", Unreachable("store", "injected failure"))
        queries = [start("double", b.union(clock).union(a), checkpoints[0]), start("single", c, checkpoints[1])]
        until(lambda: second.state.failing is not None)
        assert queries[1].isActive
        assert single.offsets() == {}
        failing.heal()
        # Halfway the first query is stopped and started again.
        until(lambda: finished(checkpoints[0]).get(f"{topics[0]}-0", 0) >= BATCHES * PER_BATCH // 4, seconds=300)
        queries[0].stop()
        assert first.reconcile()
        assert double.offsets() == finished(checkpoints[0])
        queries[0] = start("double", b.union(clock).union(a), checkpoints[0])
        whole = BATCHES * PER_BATCH // 2
        until(lambda: set(finished(checkpoints[0]).values()) == {whole}, seconds=300)
        until(lambda: set(finished(checkpoints[1]).values()) == {whole}, seconds=300)
        for query in queries:
            query.stop()
        assert first.close()
        assert second.close()

    assert comparisons[0] >= BATCHES
    assert double.offsets() == {f"{topic}-{p}": whole for topic in topics[:2] for p in range(2)}
    assert single.offsets() == {f"{topics[2]}-{p}": whole for p in range(2)}
    assert second.state.failing is None
    assert second.state.failures >= 2
    # The same checkpoint through Hadoop's file systems, as on HDFS or an object store.
    through_hadoop = HadoopFiles(f"file:{checkpoints[0]}", spark._jvm, spark._jsc.hadoopConfiguration())
    assert set(through_hadoop.names("commits")) == {path.name for path in checkpoints[0].glob("commits/[!.]*")}
    assert through_hadoop.read("offsets/0") == (checkpoints[0] / "offsets" / "0").read_text()
    assert through_hadoop.read("offsets/none") is None
    for committer in (first, second):
        spark.streams.removeListener(committer)


@contextlib.contextmanager
def listening(spark: Any, committer: OffsetCommitter) -> Iterator[OffsetCommitter]:
    spark.streams.addListener(committer)
    try:
        yield committer
    finally:
        spark.streams.removeListener(committer)
        committer.close()


def test_a_topic_name_on_two_clusters_needs_a_configured_cluster(
    spark: Any, kraft: KraftBroker, kafka: KafkaBroker, make_topic: Any, unique: str, tmp_path: Path, stack: Any
) -> None:
    for bootstrap, count in ((kraft.bootstrap, 4), (kafka.bootstrap, 10)):
        make_topic(unique, 1, bootstrap=bootstrap)
        fill(bootstrap, unique, count)
    unconfigured, configured, elsewhere = (Group(KafkaStore, kafka.bootstrap, f"{unique}-{n}", stack) for n in range(3))
    with (
        listening(spark, OffsetCommitter(unconfigured.written, unconfigured.name)) as first,
        listening(
            spark, OffsetCommitter(configured.written, configured.name, policy=CommitPolicy(cluster=kafka.bootstrap))
        ) as second,
        listening(
            spark, OffsetCommitter(elsewhere.written, elsewhere.name, policy=CommitPolicy(cluster="none:1", retries=0))
        ) as third,
    ):
        frame = source(spark, kraft.bootstrap, unique, 50).union(source(spark, kafka.bootstrap, unique, 50))
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
        query.trigger(availableNow=True).start().awaitTermination(120)
        assert not first.reconcile()
        assert second.reconcile()
        assert not third.reconcile()

    assert (unconfigured.offsets(), configured.offsets(), elsewhere.offsets()) == ({}, {f"{unique}-0": 10}, {})
    both = " and from ".join(sorted([kraft.bootstrap, kafka.bootstrap]))
    assert str(first.state.failing) == f"topic {unique} is not committed: it is read from {both}"
    assert "no source reads from the configured cluster" in str(third.state.failing)


def test_foreach_batch_commits_the_previous_batch_and_the_present_one_only_on_request(
    spark: Any, kraft: KraftBroker, make_topic: Any, unique: str, tmp_path: Path, stack: Any
) -> None:
    topic = make_topic(unique, 1, bootstrap=kraft.bootstrap)
    fill(kraft.bootstrap, topic, 3 * PER_BATCH)
    behind, ahead = (Group(KafkaStore, kraft.bootstrap, f"{unique}-{name}", stack) for name in ("behind", "ahead"))
    seen: list[tuple[int, dict[str, int]]] = []

    def run(group: Group, ahead_of_checkpoint: bool) -> BatchCommitter:
        checkpoint = tmp_path / group.name
        committer = BatchCommitter(
            group.written,
            group.name,
            lambda frame, number: seen.append((number, group.offsets())),
            checkpoint=str(checkpoint),
            ahead_of_checkpoint=ahead_of_checkpoint,
        )
        frame = source(spark, kraft.bootstrap, topic)
        committer.start(frame.writeStream.trigger(availableNow=True)).awaitTermination(120)
        return committer

    finishing = run(behind, False)
    at = f"{topic}-0"
    assert seen == [(0, {}), (1, {at: PER_BATCH}), (2, {at: 2 * PER_BATCH})]
    assert behind.offsets() == {at: 2 * PER_BATCH}
    assert finishing.commit_last_batch()
    assert behind.offsets() == {at: 3 * PER_BATCH}

    run(ahead, True)
    assert ahead.offsets() == {at: 3 * PER_BATCH}


def test_a_job_starts_at_the_committed_offsets_of_its_group(spark, kraft, make_topic, unique, stack) -> None:
    # Given a topic of four partitions: one read in part, one never, one committed past the log, one at its end.
    topic = make_topic(unique, 4, bootstrap=kraft.bootstrap)
    fill(kraft.bootstrap, topic, *[10] * 4)
    group = Group(KafkaStore, kraft.bootstrap, unique, stack)
    at = [TopicPartition(topic, n) for n in range(4)]
    group.written.commit(
        unique, {at[0]: OffsetAndMetadata(4), at[2]: OffsetAndMetadata(99), at[3]: OffsetAndMetadata(10)}
    )

    start = starting_offsets(
        group.read, unique, [topic], cluster=kraft.bootstrap, default="earliest", out_of_range="latest"
    )

    assert str(start) == json.dumps({topic: {"0": 4, "1": -2, "2": -1, "3": 10}})
    assert start.explain() == [
        f"group {unique}: 2 of 4 partitions begin at their committed offset",
        f"{topic}-1: no committed offset, begins at the earliest offset",
        f"{topic}-2: 99 is not in the log (0 to 10), begins at the latest offset",
    ]
    with pytest.raises(PartialFailure) as rejected:
        starting_offsets(group.read, unique, topic, default="refuse", out_of_range="refuse")
    assert {tp: str(error) for tp, error in rejected.value.failures.items()} == {
        at[1]: f"{unique} {at[1]}: the group has no committed offset",
        at[2]: f"{unique} {at[2]}: the committed offset 99 is not in the log, which has 0 to 10",
    }

    reader = reader_from_group(spark, group.read, unique, topic, bootstrap=kraft.bootstrap, out_of_range="latest")
    rows: list[tuple[int, int]] = []
    query = (
        reader.load()
        .select("partition", "offset")
        .writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
    )
    query.trigger(availableNow=True).start().awaitTermination(120)
    assert sorted(rows) == [(0, n) for n in range(4, 10)] + [(1, n) for n in range(10)]
    assert group.read.fetch(unique)[at[0]] == Committed(4)
