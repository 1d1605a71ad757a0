"""Stores and offsets topics as Spark tables, and audits of them, on real Spark, Kafka and ZooKeeper.

All tests share one Spark session.
"""

import json
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from committed_offsets import commit
from conftest import MakeTopic
from processes import fill
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from same_cluster import join_cluster

from offsetmgr import open_store
from offsetmgr.cli.app import run
from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit, OffsetStore
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer
from offsetmgr.spark.store_tables import store_table, written
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers

COPIED = 200_000 if os.environ.get("OFFSETMGR_SOAK") else 5_000
PER_GROUP = 50


@dataclass
class World:
    """Two groups in Kafka, and a topic of three partitions with 10 records each.

    ``a`` has committed 4, then 8, then 6 in partitions 0 to 2, and then deleted the commit of partition 2. ``b`` has
    committed 10 in partition 0 and 99, which is beyond the log's end, in partition 1.
    """

    bootstrap: str
    topic: str
    store: KafkaStore

    @property
    def a(self) -> str:
        return f"{self.topic}-a"

    @property
    def b(self) -> str:
        return f"{self.topic}-b"


@pytest.fixture
def world(kafka: KafkaBroker, make_topic: MakeTopic, unique: str) -> Iterator[World]:
    topic = make_topic(unique, 3)
    fill(kafka.bootstrap, topic, 10, 10, 10)
    with KafkaStore(kafka.bootstrap) as store:
        world = World(kafka.bootstrap, topic, store)
        for offset in (4, 8, 6):
            at = {TopicPartition(topic, p): OffsetAndMetadata(offset, f"at {offset}") for p in range(3)}
            store.commit(world.a, at, allow_rewind=True)
        store.delete(world.a, [TopicPartition(topic, 2)])
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(10), TopicPartition(topic, 1): OffsetAndMetadata(99)}
        store.commit(world.b, offsets)
        yield world


@pytest.fixture
def chroot(zookeeper: ZooKeeperServer, kafka: KafkaBroker, unique: str) -> str:
    """The URI of a ZooKeeper store for this test alone, which belongs to the broker's Kafka cluster."""
    join_cluster(f"{zookeeper.connect}/{unique}", kafka.bootstrap)
    return f"zookeeper://{zookeeper.connect}/{unique}"


def committed(store: OffsetStore, group: str) -> dict[tuple[str, int], tuple[int, str]]:
    return {
        (tp.topic, int(tp.partition)): (one.offset, one.metadata)
        for tp, one in store.fetch(group).items()
        if isinstance(one, Committed)
    }


def test_the_log_has_every_record_of_the_selected_groups(spark: SparkSession, world: World) -> None:
    table = (
        spark.read.format("offsetmgr-log")
        .option("kafka.bootstrap.servers", world.bootstrap)
        .option("group", f"{world.a},{world.b}")
        .option("tasks", 3)
        .load()
    )

    rows = table.where("kind = 'offset'").orderBy("group", "partition", "log_offset").collect()

    assert [(row.group, row.partition, row.offset, row.metadata, row.tombstone) for row in rows] == [
        *((world.a, p, offset, f"at {offset}", False) for p in (0, 1) for offset in (4, 8, 6)),
        *((world.a, 2, offset, f"at {offset}", False) for offset in (4, 8, 6)),
        (world.a, 2, None, None, True),
        (world.b, 0, 10, "", False),
        (world.b, 1, 99, "", False),
    ]
    assert {row.topic for row in rows} == {world.topic}
    assert all(row.error is None and row.format == "kafka" and row.key_version == 1 for row in rows)
    assert all(row.tombstone or abs(row.commit_timestamp - row.log_timestamp) < 60_000 for row in rows)


def test_a_store_is_read_as_a_table_and_a_table_is_written_to_a_store(spark, world, chroot) -> None:
    source, target = f"kafka://{world.bootstrap}", chroot
    table = spark.read.format("offsetmgr").option("group", f"{world.topic}-*").load(source)

    rows = {(row.group, row.topic, row.partition): (row.offset, row.metadata) for row in table.collect()}
    table.where("offset < 50").write.format("offsetmgr").mode("append").save(target)

    t = world.topic
    assert rows == {
        (world.a, t, 0): (6, "at 6"),
        (world.a, t, 1): (6, "at 6"),
        (world.b, t, 0): (10, ""),
        (world.b, t, 1): (99, ""),
    }
    with open_store(target) as store:
        assert committed(store, world.a) == {(t, 0): (6, ""), (t, 1): (6, "")}
        assert committed(store, world.b) == {(t, 0): (10, "")}


def test_writing_a_table_never_rewinds_a_group(spark: SparkSession, world: World) -> None:
    uri = f"kafka://{world.bootstrap}"
    rows = spark.createDataFrame(
        [(world.a, world.topic, 0, 5), (world.a, world.topic, 1, 7)],
        "group string, topic string, partition int, offset bigint",
    )

    for _ in range(2):  # the second attempt finds one offset unchanged
        with pytest.raises(PySparkException, match="1 of 2 offsets were not committed") as refused:
            rows.write.format("offsetmgr").option("store", uri).mode("append").save()
        assert f"{world.a} {world.topic}-0: " in str(refused.value)
        assert "would go back from 6 to 5" in str(refused.value)
        assert committed(world.store, world.a) == {(world.topic, 0): (6, "at 6"), (world.topic, 1): (7, "")}


def test_an_unknown_option_is_rejected(spark: SparkSession, world: World) -> None:
    wrong = spark.read.format("offsetmgr").option("groups", "g")
    with pytest.raises(PySparkException, match="there is no option 'groups'"):
        wrong.load(f"kafka://{world.bootstrap}").collect()


def test_an_audit_reports_the_lag_of_the_lag_command_and_differences_from_another_store(
    spark: SparkSession, world: World, chroot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the other store, ``a`` is equal in partition 0 and behind in 1, ``b`` is missing, and ``c`` is additional."""
    c = f"{world.topic}-c"
    with open_store(chroot) as store:
        at = {TopicPartition(world.topic, p): OffsetAndMetadata(offset) for p, offset in ((0, 6), (1, 4))}
        store.commit(world.a, at)
        store.commit(c, {TopicPartition(world.topic, 0): OffsetAndMetadata(3)})
    connect = ["--bootstrap-server", world.bootstrap, "--format", "json"]
    assert run(["offsets", "lag", *connect, "--group", f"{world.topic}-*"]) in (0, 1)
    lags = json.loads(capsys.readouterr().out)

    code = run(["spark", "audit", *connect, "-o", str(tmp_path / "audit"), "--compare", chroot])
    captured = capsys.readouterr()
    reported = {row["table"]: row for row in json.loads(captured.out)}

    assert code == 1
    assert f"differences from {chroot}" in captured.err
    expected = "records latest history silent tombstones expiry lag unreadable differences"
    assert list(reported) == expected.split()
    tables = {
        name: spark.read.parquet(row["path"]).where(f"group like '{world.topic}-%'") for name, row in reported.items()
    }
    names = ("group", "topic", "partition", "offset", "log_start_offset", "log_end_offset", "lag")
    assert sorted(map(tuple, tables["lag"].select(*names).collect())) == sorted(
        tuple(row[name] for name in names) for row in lags if row["offset"] is not None
    )
    assert {(r.group, r.partition): (r.lag, r.note) for r in tables["lag"].collect()} == {
        (world.a, 0): (4, ""),
        (world.a, 1): (4, ""),
        (world.b, 0): (0, ""),
        (world.b, 1): (None, "beyond the log's end"),
    }
    history = {(r.group, r.partition): r for r in tables["history"].collect()}
    first, third = history[world.a, 0], history[world.a, 2]
    assert (first.commits, first.rewinds, first.largest_rewind, first.tombstones) == (3, 1, 2, 0)
    assert (third.commits, third.rewinds, third.largest_rewind, third.tombstones) == (3, 1, 2, 1)
    assert history[world.b, 0].commits_per_hour is None
    assert [(r.group, r.tombstones, r.partitions) for r in tables["tombstones"].collect()] == [(world.a, 1, 1)]
    assert tables["silent"].count() == 0
    assert reported["unreadable"]["rows"] == 0
    week = 7 * 86_400_000
    expiring = {(r.group, r.partition): r for r in tables["expiry"].collect()}
    assert set(expiring) == {(world.a, 0), (world.a, 1), (world.b, 0), (world.b, 1)}
    assert all(0 <= r.expires_at - r.commit_timestamp - week < 60_000 and not r.overdue for r in expiring.values())
    found = tables["differences"].collect()
    assert {(r.group, r.partition): (r.kind, r.left_offset, r.right_offset) for r in found} == {
        (world.a, 1): ("offset", 6, 4),
        (world.b, 0): ("only-left", 10, None),
        (world.b, 1): ("only-left", 99, None),
        (c, 0): ("only-right", None, 3),
    }
    html = (tmp_path / "audit" / "index.html").read_text(encoding="utf-8")
    assert f"<h2>Differences from {chroot}</h2>" in html
    assert run(["spark", "audit", *connect, "-o", str(tmp_path / "without")]) == 0


def test_diff_and_copy_on_the_command_line(spark: SparkSession, world: World, chroot: str, capsys) -> None:
    source, target = f"kafka://{world.bootstrap}", chroot
    sides = ["--from", source, "--to", target, "--group", world.a, "--format", "json"]

    planned = run(["spark", "copy", *sides])
    would = capsys.readouterr()
    before = run(["spark", "diff", *sides])
    missing = json.loads(capsys.readouterr().out)
    done = run(["spark", "copy", *sides, "--execute", "--yes", "--reason", "ticket 7"])
    captured = capsys.readouterr()
    assert run(["edits", "list", "--last", "1", "--format", "json"]) == 0
    (logged,) = json.loads(capsys.readouterr().out)
    assert (logged["operation"], logged["reason"], logged["written"]) == ("spark copy", "ticket 7", 2)
    after = run(["spark", "diff", *sides])

    assert (planned, before, done, after) == (0, 1, 0, 0)
    assert [(row["partition"], row["offset"], row["outcome"]) for row in json.loads(would.out)] == [
        (0, 6, "write"),
        (1, 6, "write"),
    ]
    assert "2 would be written, 0 are equal already; nothing was written" in would.err
    assert [(row["partition"], row["difference"], row["from_offset"], row["to_offset"]) for row in missing] == [
        (0, "only-left", 6, None),
        (1, "only-left", 6, None),
    ]
    assert json.loads(captured.out) == []
    assert "2 written, 0 unchanged, 0 failed" in captured.err
    assert "no difference" in capsys.readouterr().err

    # A dry run does not announce writes of offsets that are equal or larger in the target.
    commit(target, world.a, world.topic, {1: 9})
    with open_store(source) as store:
        store.commit(world.a, {TopicPartition(world.topic, 0): OffsetAndMetadata(6, "by hand")})
    assert run(["spark", "copy", *sides]) == 0
    again = capsys.readouterr()
    assert "warning: the target cannot hold the metadata of 2 offsets (a client's own text)" in again.err
    assert [(row["partition"], row["before"], row["outcome"]) for row in json.loads(again.out)] == [
        (0, 6, "unchanged"),
        (1, 9, "refuse-rewind"),
    ]
    assert "0 would be written, 1 are equal already, 1 would be refused (the target's offset is larger)" in again.err
    # A missing topic fails the command, but does not prevent the other copies.
    some = ["--topic", world.topic, "--topic", "nosuch", "--topic", f"{world.topic}:2,7"]
    options: tuple[list[str], ...] = ([], ["--execute", "--yes"])
    for more, expected in zip(options, ("0 would be written", "0 written, 1 unchanged, 1 failed"), strict=True):
        assert run(["spark", "copy", *sides, *some, *more]) == 1
        printed = capsys.readouterr().err
        assert expected in printed
        assert f"error: topics nosuch, {world.topic}:2,7: not among the groups' offsets in {source}\n" in printed
    # A misspelt group fails the command, too.
    for command in ("copy", "diff"):
        assert run(["spark", command, "--from", source, "--to", target, "--group", f"{world.a}-x"]) == 1
        assert f"error: group '{world.a}-x'" in capsys.readouterr().err


def test_a_copy_whose_worker_is_killed_is_equal_to_a_migration(
    spark: SparkSession,
    kafka: KafkaBroker,
    kraft: KraftBroker,
    chroot: str,
    make_topic: MakeTopic,
    unique: str,
    tmp_path: Path,
) -> None:
    """Executors, of which one is killed, copy offsets to Kafka 3.9; `migrate apply` copies the same offsets to 4.4."""
    topic, source = make_topic(unique, PER_GROUP), chroot
    make_topic(unique, PER_GROUP, bootstrap=kraft.bootstrap)
    fill(kraft.bootstrap, topic, *[100] * PER_GROUP)  # a migration rejects offsets outside the log
    groups = [f"{unique}-{n:05}" for n in range(COPIED // PER_GROUP)]
    with open_store(source) as store:
        for result in store.edit(
            GroupEdit(
                group, {TopicPartition(topic, p): Change(OffsetAndMetadata(n % 50 + p)) for p in range(PER_GROUP)}
            )
            for n, group in enumerate(groups)
        ):
            assert not result.failures
    killed = tmp_path / "killed"

    def die_once(outcomes: Iterable[Any]) -> Iterator[Any]:
        for count, outcome in enumerate(outcomes):
            if count == 2 * PER_GROUP and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield outcome

    rows = store_table(spark, source, groups, ConnectionConfig())
    outcomes = (
        written(rows, f"kafka://{kafka.bootstrap}", ConnectionConfig(), tasks=4).mapPartitions(die_once).collect()
    )
    plan = str(tmp_path / "plan.json")
    sides = ["--from", source, "--to", f"kafka://{kraft.bootstrap}", "--translate", "none"]
    everything = [*sides, "--all-groups", "-o", plan]
    planned, applied = run(["migrate", "plan", *everything]), run(["migrate", "apply", plan, "--yes"])

    assert killed.exists()
    assert (planned, applied) == (0, 0)
    assert len(outcomes) == COPIED
    assert [outcome for outcome in outcomes if outcome.status not in ("written", "unchanged")] == []
    # The writes of the killed executor are stored already.
    assert {outcome.status for outcome in outcomes} == {"written", "unchanged"}
    with KafkaStore(kafka.bootstrap) as by_spark, KafkaStore(kraft.bootstrap) as by_plan:
        copied = {found.name: found.offsets for found in by_spark.scan(groups)}
        migrated = {found.name: found.offsets for found in by_plan.scan(groups)}
    expected = {
        group: {TopicPartition(topic, p): Committed(n % 50 + p) for p in range(PER_GROUP)}
        for n, group in enumerate(groups)
    }
    assert copied == expected
    assert migrated == expected
