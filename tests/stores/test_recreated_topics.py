"""Programs that write offsets again and again, on a topic that is deleted and recreated meanwhile: the offset of the
deleted log is not written into the new one, and the first offset of the new log is accepted."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic
from processes import delete_topic, fill, own_environment, run_command, wait_for
from recreation import recreate
from store_backend_setup import running
from streaming_queries import Driver, Query, source

from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.spark import BatchCommitter, OffsetCommitter
from offsetmgr.stores.dual import DualStore
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = pytest.mark.servers


def query_of(root: Path, topic: str) -> Query:
    """A query that subscribes to a pattern and has read 130 records of a topic."""
    query = Query(root, "q", source("KafkaV2[SubscribePattern[.*]]"))
    query.finish(0, 130, topic)
    return query


class Sides:
    """A topic with 130 records, and the stores of a group in Kafka and in its ZooKeeper."""

    def __init__(self, kafka: KafkaBroker, topic: str, stack: ExitStack) -> None:
        self.bootstrap, self.topic, self.tp = kafka.bootstrap, topic, TopicPartition(topic, 0)
        self.uris = {"kafka": f"kafka://{kafka.bootstrap}", "zookeeper": f"zookeeper://{kafka.zookeeper}"}
        self.stores: dict[str, OffsetStore] = {
            "kafka": stack.enter_context(KafkaStore(kafka.bootstrap)),
            "zookeeper": stack.enter_context(ZookeeperStore(kafka.zookeeper)),
        }
        fill(kafka.bootstrap, topic, 130)

    def offset(self, name: str, group: str = "") -> int | None:
        found = self.stores[name].fetch(group or self.topic, [self.tp])[self.tp]
        return found.offset if isinstance(found, Committed) else None

    def commit(self, name: str, offset: int, group: str = "") -> None:
        self.stores[name].commit(group or self.topic, {self.tp: OffsetAndMetadata(offset)}, allow_rewind=True)

    def committer(self, name: str, query: Query) -> OffsetCommitter:
        driver = Driver(self.stores[name], self.topic, reconcile_s=3600, retries=0)
        driver.start(query)
        return driver.committer

    def recreate(self) -> None:
        recreate(self.bootstrap, self.topic, 20)


@pytest.fixture
def sides(kafka: KafkaBroker, make_topic: MakeTopic, unique: str) -> Iterator[Sides]:
    with ExitStack() as stack:
        yield Sides(kafka, make_topic(unique), stack)


@pytest.mark.parametrize("name", ["kafka", "zookeeper"])
def test_a_committer_follows_the_checkpoint_of_a_query_whose_topic_was_recreated(name, sides, tmp_path, caplog):
    query = query_of(tmp_path / "c", sides.topic)
    committer = sides.committer(name, query)
    assert committer.reconcile(60)
    assert sides.offset(name) == 130
    sides.recreate()
    wait_for(lambda: name == "zookeeper" or sides.offset(name) is None, "the broker deletes the offset")
    left = sides.stores[name].fetch(sides.topic)
    for _ in range(3):
        assert not committer.reconcile(60)
    assert sides.stores[name].fetch(sides.topic) == left
    assert "the topic was deleted and recreated" in str(committer.state.failing)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    query.finish(1, 20, sides.topic)
    assert committer.reconcile(60)
    assert sides.offset(name) == 20
    assert committer.close(60)


def test_a_deleted_topic_of_a_pattern_is_reported_once_and_the_other_topics_are_committed(
    sides: Sides, make_topic: MakeTopic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deleted = make_topic(f"{sides.topic}-deleted")
    query = query_of(tmp_path / "c", sides.topic)
    query.write(0, f'v1\n{{}}\n{{"{sides.topic}":{{"0":5}},"{deleted}":{{"0":0}}}}')
    committer = sides.committer("kafka", query)
    assert committer.reconcile(60)
    admin = AdminClient({"bootstrap.servers": sides.bootstrap})
    delete_topic(admin, deleted)
    for batch in range(1, 5):
        query.write(batch, f'v1\n{{}}\n{{"{sides.topic}":{{"0":{5 + batch // 2}}},"{deleted}":{{"0":0}}}}')
        assert not committer.reconcile(60)
        assert sides.offset("kafka") == 5 + batch // 2
    (line,) = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert f"{deleted}-0: " in line
    query.finish(5, 8, sides.topic)
    assert committer.reconcile(60)
    assert committer.close(60)


@pytest.mark.parametrize("name", ["kafka", "zookeeper"])
def test_a_committer_that_starts_after_its_topic_was_recreated(name: str, sides: Sides, tmp_path: Path) -> None:
    query = query_of(tmp_path / "c", sides.topic)
    sides.commit("zookeeper", 130)
    sides.recreate()

    def committer() -> BatchCommitter:
        return BatchCommitter(sides.stores[name], sides.topic, lambda *_: None, checkpoint=str(query.directory))

    if name == "kafka":  # the log shows that its end is below the offset
        first = committer()
        assert not first.commit_last_batch()
        assert "130 is beyond the log's end (20): the topic was deleted and recreated" in str(first.state.failing)
        assert sides.offset(name) is None
    query.finish(1, 20, sides.topic)
    assert committer().commit_last_batch()  # ZooKeeper's 130 is older than the topic
    assert sides.offset(name) == 20


def test_the_start_of_a_dual_listener_replaces_old_offsets_and_writes_none(sides: Sides) -> None:
    sides.commit("zookeeper", 130, "old-in-zookeeper")
    sides.recreate()
    for group, kafka, zookeeper in (
        ("old-in-zookeeper", 20, None),
        ("beyond-the-log", 130, 10),
        ("behind", 15, 10),
        ("rewound", 10, 15),
    ):
        sides.commit("kafka", kafka, group)
        if zookeeper is not None:
            sides.commit("zookeeper", zookeeper, group)

    async def scenario() -> None:
        stores = (KafkaStore(sides.bootstrap), ZookeeperStore(sides.uris["zookeeper"].removeprefix("zookeeper://")))
        async with running(DualStore(*stores)):
            await asyncio.to_thread(wait_for, lambda: sides.offset("zookeeper", "behind") == 15, "the catch-up")
            done = lambda: sides.offset("zookeeper", "old-in-zookeeper") == 20  # noqa: E731
            await asyncio.to_thread(wait_for, done, "the replacement")

    asyncio.run(scenario())
    assert sides.offset("zookeeper", "beyond-the-log") == 10
    assert sides.offset("zookeeper", "rewound") == 15


def test_a_mirror_names_a_target_that_is_ahead_because_its_topic_was_recreated(sides: Sides, tmp_path: Path) -> None:
    sides.commit("zookeeper", 130)
    sides.recreate()
    sides.commit("kafka", 20)
    mirror = ("migrate", "mirror", "--from", sides.uris["kafka"], "--to", sides.uris["zookeeper"])
    done = run_command(
        *(*mirror, "--group", sides.topic, "--once", "--settle", "50", "--yes", "--format", "json"),
        code=1,
        environ=own_environment(tmp_path),
    )
    (row,) = json.loads(done.stdout)
    assert f"refused: {sides.tp}: committed at" in row["detail"]
    assert sides.offset("zookeeper") == 130


def test_refresh_does_not_commit_the_offset_of_a_deleted_log_again(sides: Sides, tmp_path: Path) -> None:
    sides.commit("zookeeper", 15)
    files: dict[str, Any] = {"cwd": tmp_path, "environ": own_environment(tmp_path)}
    ways = ("--from", sides.uris["zookeeper"], "--to", sides.uris["kafka"], "--group", sides.topic)
    run_command("migrate", "plan", *ways, "-o", "plan.json", **files)
    run_command("migrate", "apply", "plan.json", "--yes", **files)
    sides.recreate()
    wait_for(lambda: sides.offset("kafka") is None, "the broker deletes the offset")
    refresh = ("migrate", "apply", "plan.json", "--refresh", "--yes")
    run_command(*refresh, code=None, **files)
    assert sides.offset("kafka") is None
    sides.commit("kafka", 15)  # as a broker that keeps the offsets of deleted topics
    refused = run_command(*refresh, code=1, **files).stderr
    assert f"{sides.tp} still has the planned offset 15, but the topic was deleted and recreated" in refused
    sides.commit("kafka", 16)
    assert "1 group renewed" in run_command(*refresh, **files).stderr
