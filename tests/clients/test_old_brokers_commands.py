"""The commands of offsetmgr on brokers of older releases, and on clusters of two releases."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import Commands, pass_margin, wait_for
from release_environment import RECORDS, Environment, NewConsumer, has_leaders, produce
from release_fixtures import ReleaseCluster

from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, create_topic, java_tool
from offsetmgr.sandbox.broker import BROKER_JARS

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
IN_MATRIX = ("0.9.0.1", "1.1.1")
PARTITIONS = 2

LACKS = {"0.8.2.2": 18, "0.9.0.1": 15, "0.10.2.2": 11, "1.1.1": 9, "2.8.2": 2}
"""The number of capabilities that each release lacks."""


@pytest.fixture
def env(release_cluster: ReleaseCluster, unique: str, tmp_path: Path) -> Environment:
    release_cluster.make_topic(unique, PARTITIONS)
    produce(release_cluster.bootstrap, unique, release_cluster.release)
    return Environment(
        f"zookeeper://{release_cluster.zookeeper}",
        f"kafka://{release_cluster.bootstrap}",
        release_cluster.bootstrap,
        unique,
        Commands(tmp_path),
    )


def test_the_release_and_the_capabilities_are_reported(env: Environment, release_cluster: ReleaseCluster) -> None:
    rows = env.rows("cluster", "describe", *env.servers)
    assert {row["release"] for row in rows} == {release_cluster.release.rpartition(".")[0].replace("0.9.0", "0.9")}
    assert sum(not row["on"] for row in rows) == LACKS[release_cluster.release]
    assert "CAPABILITY" in env.run("cluster", "describe", *env.servers)


def test_offsets_are_set_listed_exported_compared_and_imported(env: Environment, unique: str) -> None:
    at = ("--group", unique, *env.servers)
    both = f"{env.topic}:0,1"
    env.run("offsets", "set", *at, "--topic", both, "--to-offset", "0", "--new-group", "--execute", "--yes")
    assert unique in [row["group"] for row in env.rows("groups", "list", *env.servers)]
    (listed,) = env.rows("groups", "list", unique, "--store", env.kafka, "--type", "classic")
    assert listed["protocol"] in ("consumer", "", None)
    assert listed["members"] == (None if listed["state"] == "UNKNOWN" else 0)
    assert {row["offset"] for row in env.rows("groups", "describe", *at)} == {0}
    assert sum(row["lag"] for row in env.rows("offsets", "lag", *at)) == RECORDS
    env.run("offsets", "export", "s.avro", *at)
    output = env.run("offsets", "reset", *at, "--to-latest", "--all-topics", "--execute", "--yes")
    assert "done: " in output
    assert sum(env.committed(env.kafka, unique).values()) == RECORDS
    env.run("offsets", "diff", "--from", "file:s.avro", "--to", env.kafka, "--group", unique, code=1)
    env.run("offsets", "import", "s.avro", *env.servers, "--allow-rewind", "--execute", "--yes")
    assert set(env.committed(env.kafka, unique).values()) == {0}
    env.run("groups", "copy", unique, f"{unique}-2", *env.servers, "--execute", "--yes")
    assert env.committed(env.kafka, f"{unique}-2") == env.committed(env.kafka, unique)
    env.run("groups", "delete", "--group", f"{unique}-2", *env.servers, "--execute", "--yes")


def test_a_reset_by_time_is_rejected_if_brokers_lack_the_capability(env, release_cluster, unique) -> None:
    env.commit(env.kafka, unique, {0: 3, 1: 4})
    reset = ("offsets", "reset", "--group", unique, *env.servers, "--to-datetime", "2020-01-01T00:00:00.000")
    old = release_cluster.release in ("0.8.2.2", "0.9.0.1")
    output = env.run(*reset, "--all-topics", "--execute", "--yes", code=1 if old else 0)
    if old:
        assert 'lacks the capability "finds offsets by time", which came with Kafka 0.10.1' in output
    assert env.committed(env.kafka, unique) == ({0: 3, 1: 4} if old else {0: 0, 1: 0})


def test_a_migration_goes_there_and_back(env: Environment, unique: str) -> None:
    env.commit(env.zookeeper, unique, {0: 5, 1: 6})
    there = ("migrate", "plan", "--from", env.zookeeper, "--to", env.kafka, "--group", unique)
    assert "logs    checked against Kafka cluster" in env.run(*there, "-o", "p.json")
    env.run("migrate", "apply", "p.json", "--yes")
    assert env.committed(env.kafka, unique) == {0: 5, 1: 6}
    assert "verified: 2 partitions" in env.run("migrate", "verify", "p.json")
    env.run("migrate", "finalize", "p.json", "--yes", "--window", "1", "--accept-idle")
    env.commit(env.kafka, unique, {0: 7, 1: 8})
    env.run("migrate", "rollback", "p.json", "--reverse-plan", "back.json")
    env.run("migrate", "apply", "back.json", "--yes")
    assert env.committed(env.zookeeper, unique) == {0: 7, 1: 8}


def test_the_retention_of_written_offsets_is_reported(env, release_cluster, unique) -> None:
    """Before 2.1 each offset has its own retention, which a write restarts. From 2.1 on the group lock of a write
    restarts the retention of the whole group."""
    env.commit(env.kafka, unique, {0: 5})
    env.commit(env.zookeeper, unique, {0: 5, 1: 6})
    apart = 'lacks "keeps the offsets of groups with members" (from 2.1 on): each offset expires by itself'
    locked = "expiry  the group lock of a write restarts the retention of all offsets of the group"
    planned = ("migrate", "plan", "--from", env.zookeeper, "--to", env.kafka, "--group", unique, "-o", "p.json")
    output = env.run(*planned)
    assert (apart in output) == (release_cluster.release != "2.8.2")
    assert (locked in output) == (release_cluster.release == "2.8.2")
    assert "expiry  offsets copied now" in output
    assert "expiry  offsets copied now" in env.run("migrate", "apply", "p.json", "--yes")
    assert (apart in env.run("migrate", "rollback", "p.json", "--yes")) == (release_cluster.release != "2.8.2")
    set_one = ("offsets", "set", "--group", unique, *env.servers, "--topic", f"{env.topic}:0", "--to-offset", "3")
    assert (apart in env.run(*set_one, "--execute", "--yes")) == (release_cluster.release != "2.8.2")


def test_the_fallback_setting_does_not_hide_that_a_broker_is_newer(env, release_cluster, unique) -> None:
    """The setting only distinguishes 0.8.2 from 0.9."""
    env.commit(env.kafka, unique, {0: 2, 1: 3})
    (env.commands.directory / "old.properties").write_text(
        f"broker.version.fallback={'0.8.2' if release_cluster.release == '0.8.2.2' else '0.9.0'}\n"
    )
    rows = env.rows("offsets", "get", "--group", unique, *env.servers, "--command-config", "old.properties")
    assert {row["partition"]: row["offset"] for row in rows} == {0: 2, 1: 3}


def test_a_rollback_restores_the_before_images_and_reports_offsets_that_remain(env, release_cluster, unique) -> None:
    env.commit(env.kafka, unique, {0: 2})
    env.commit(env.zookeeper, unique, {0: 5, 1: 6})
    env.run("migrate", "plan", "--from", env.zookeeper, "--to", env.kafka, "--group", unique, "-o", "p.json")
    env.run("migrate", "apply", "p.json", "--yes")
    output = env.run("migrate", "rollback", "p.json", "--yes")
    assert env.committed(env.kafka, unique) == {0: 2}
    assert "rolled back: every offset is as it was before" in output
    stays = "apply created 1 offset there, and rollback deleted them"
    assert (stays in output) == (release_cluster.release != "2.8.2")


def test_a_mirror_reports_missing_capabilities_and_the_retention(env, release_cluster, unique) -> None:
    env.commit(env.zookeeper, unique, {0: 5, 1: 6})
    follow = ("migrate", "mirror", "--from", env.zookeeper, "--to", env.kafka, "--group", unique)
    output = env.run(*follow, "--once", "--settle", "0", "--yes")
    assert ('warning Kafka 0.8.2 lacks "holds the group lock"' in output) == (release_cluster.release == "0.8.2.2")
    assert ('lacks "keeps the offsets of groups with members"' in output) == (release_cluster.release != "2.8.2")
    days = 7 if release_cluster.release == "2.8.2" else 1
    again = f"expiry  the mirror commits its offsets again every {days * 360:,} min; after it ends, offsets"
    assert f"{again} that no consumer commits expire within {days * 1440:,} min" in output


def test_a_mirror_follows_and_a_dual_store_reads_the_larger(env: Environment, unique: str) -> None:
    env.commit(env.zookeeper, unique, {0: 5, 1: 6})
    follow = ("migrate", "mirror", "--from", env.zookeeper, "--to", env.kafka, "--group", unique)
    process = env.commands.start(*follow, "--interval", "200", "--yes")

    def arrived(offsets: dict[int, int]) -> bool:
        assert process.poll() is None, process.communicate()
        return env.committed(env.kafka, unique) == offsets

    try:
        wait_for(lambda: arrived({0: 5, 1: 6}), "the mirror has copied")
        env.commit(env.zookeeper, unique, {0: 9})
        wait_for(lambda: arrived({0: 9, 1: 6}), "the mirror has followed")
    finally:
        process.terminate()
        _, output = process.communicate(timeout=120)
    assert "Traceback" not in output
    env.commit(env.kafka, unique, {1: 20})
    dual = f"dual:?primary={env.zookeeper}&secondary={env.kafka}"
    rows = env.rows("offsets", "get", "--group", unique, "--store", dual)
    assert {row["partition"]: row["offset"] for row in rows} == {0: 9, 1: 20}


def test_a_manager_does_not_start_if_brokers_cannot_fence_writers(env, release_cluster, unique) -> None:
    topic = ("--offsets-topic", unique[-60:] + "-offsets", "--partitions", "2", "--replication-factor", "1")
    serve = ("manager", "serve", *env.servers, "--listen", "127.0.0.1:0", *topic)
    if release_cluster.release != "2.8.2":
        output = env.run(*serve, code=1)
        assert f"error: broker {release_cluster.bootstrap}: it does not support DescribeProducers" in output
        assert "(Kafka 2.8 and later)" in output
        with KafkaCluster(release_cluster.bootstrap) as cluster:
            assert not cluster.topics([topic[1]])
        return
    process = env.commands.start(*serve)
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "serving" in line)
        listen = line.partition("listen=")[2].split()[0]
        env.commit(f"manager://{listen}", unique, {0: 3})
        assert env.committed(f"manager://{listen}", unique) == {0: 3}
    finally:
        process.terminate()
        process.communicate(timeout=120)


@pytest.mark.parametrize("release", ["0.9.0.1", "1.1.1"])
def test_an_edit_of_a_group_with_new_consumers_is_rejected_and_names_them(start_release, release, unique, tmp_path):
    release_cluster = start_release(release)
    release_cluster.make_topic(unique, PARTITIONS)
    env = Environment("", f"kafka://{release_cluster.bootstrap}", release_cluster.bootstrap, unique, Commands(tmp_path))
    member = NewConsumer(
        tmp_path / "member", release=release, bootstrap=release_cluster.bootstrap, group=unique, topic=unique
    )
    with member:
        wait_for(lambda: env.is_stable(unique), "the consumer is a member")
        edit = ("offsets", "set", "--group", unique, "--topic", f"{unique}:0", "--to-offset", "1", "--new-group")
        output = env.run(*edit, *env.servers, "--execute", "--yes", code=1)
        assert "STABLE with 1 member: consumer-1 at" in output


@contextmanager
def two_brokers(
    zookeeper: ZooKeeperServer, directory: Path, releases: tuple[str, str], name: str
) -> Iterator[Environment]:
    """One cluster of two brokers of different releases."""
    where = f"{zookeeper.connect}/{name}"
    old = releases[0]
    protocol = {"2.8.2": "2.8", "0.10.2.2": "0.10.2"}[old]
    formats = {"inter.broker.protocol.version": protocol, "log.message.format.version": protocol}
    common = {"offsets.topic.num.partitions": 4, "offsets.retention.check.interval.ms": 1000}
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(
                KafkaBroker(
                    directory / f"broker-{number}",
                    zookeeper=where,
                    broker_id=number,
                    version=release,
                    config={**common, **formats},
                )
            )
            for number, release in enumerate(releases)
        ]
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        create_topic(name, PARTITIONS, zookeeper=where, bootstrap=bootstrap, version=old)
        wait_for(lambda: has_leaders(bootstrap, name, PARTITIONS), f"{name} has leaders")
        produce(bootstrap, name, old)
        yield Environment(f"zookeeper://{where}", f"kafka://{bootstrap}", bootstrap, name, Commands(directory))


@pytest.mark.parametrize("releases", [("2.8.2", "3.9.1"), ("0.10.2.2", "1.1.1")])
def test_a_cluster_of_two_releases_is_served_as_one(zookeeper, releases: tuple[str, str], unique, tmp_path) -> None:
    with two_brokers(zookeeper, tmp_path, releases, unique) as env:
        assert "the brokers run different releases" in env.run("cluster", "describe", *env.servers)
        test_offsets_are_set_listed_exported_compared_and_imported(env, unique)
        test_a_migration_goes_there_and_back(env, f"{unique}-m")
        test_a_mirror_follows_and_a_dual_store_reads_the_larger(env, f"{unique}-d")


def rows_of_the_release(cluster: ReleaseCluster, topic: str, tool: str, *arguments: str) -> list[list[str]]:
    """The words of each line about the topic that a tool of the release prints."""
    done = java_tool(BROKER_JARS[cluster.release], tool, arguments)
    lines = [line.replace(":", " ").split() for line in done.stdout.splitlines()]
    return [line for line in lines if topic in line]


def log_ends(cluster: ReleaseCluster, topic: str) -> dict[int, int]:
    where = ("--broker-list", cluster.bootstrap, "--topic", topic, "--time", "-1")
    rows = rows_of_the_release(cluster, topic, "kafka.tools.GetOffsetShell", *where)
    return {int(partition): int(end) for _, partition, end in rows}


def lag_of_the_release(cluster: ReleaseCluster, group: str, topic: str, store: str) -> dict[int, int] | None:
    """The lag of each partition according to the release's own tool; None if the release has no tool that prints the
    lag of a group without members in the store."""
    release, groups_tool = cluster.release, "kafka.admin.ConsumerGroupCommand"
    where: tuple[str, ...]
    if store == "zookeeper" and release in ("0.8.2.2", "0.9.0.1", "0.10.2.2"):
        where = ("--zookeeper", cluster.zookeeper, "--group", group, "--topic", topic)
        rows = rows_of_the_release(cluster, topic, "kafka.tools.ConsumerOffsetChecker", *where)
    elif store == "kafka" and release in ("1.1.1", "2.8.2"):
        where = ("--bootstrap-server", cluster.bootstrap, "--describe", "--group", group)
        rows = rows_of_the_release(cluster, topic, groups_tool, *where)
    else:
        return None
    found = {}
    for row in rows:  # ..., topic, partition, offset, log end, lag, ...; the group may have the name of the topic
        start = len(row) - row[::-1].index(topic)
        if len(row) >= start + 4 and row[start].isdigit() and row[start + 3].isdigit():
            found[int(row[start])] = int(row[start + 3])
    return found


def test_groups_are_found_in_both_stores(env: Environment, release_cluster: ReleaseCluster, unique: str) -> None:
    both = ("--zookeeper", release_cluster.zookeeper, "--bootstrap-server", release_cluster.bootstrap)
    ends = log_ends(release_cluster, env.topic)
    assert sum(ends.values()) == RECORDS
    offsets: dict[str, dict[int, int]] = {"zookeeper": {}, "kafka": {}}

    def commit(store: str, found: dict[int, int]) -> None:
        env.commit(env.zookeeper if store == "zookeeper" else env.kafka, unique, found)
        offsets[store] |= found

    def located(phase: str) -> dict[str, Any]:
        """The row of the group. Its offsets are those of each store, and its lag is that of the release's tools."""
        (row,) = env.rows("groups", "where", unique, *both)
        assert row["phase"] == phase
        for one in row["partitions"]:
            partition = one["partition"]
            assert one["offsets"] == {name: found.get(partition) for name, found in offsets.items()}
            assert one["log_end_offset"] == ends[partition]
            if phase in offsets and partition in offsets[phase]:
                assert one["lag"] == ends[partition] - offsets[phase][partition]
        if phase in offsets:
            theirs = lag_of_the_release(release_cluster, unique, env.topic, phase)
            ours = {one["partition"]: one["lag"] for one in row["partitions"]}
            assert theirs is None or theirs == ours
        return row

    commit("zookeeper", {0: 5, 1: 6})
    row = located("zookeeper")
    assert (row["confidence"], row["lag"]) == ("inferred", ends[0] + ends[1] - 11)
    commit("kafka", {0: 5, 1: 6})
    located("unknown")
    pass_margin()
    commit("kafka", {0: 7, 1: 6})
    row = located("kafka")
    assert (row["confidence"], row["lag"]) == ("inferred", ends[0] + ends[1] - 13)


def test_the_record_at_the_committed_offset_is_shown(env: Environment, unique: str) -> None:
    env.commit(env.kafka, unique, {0: 3, 1: 0})
    rows = env.rows("offsets", "peek", "--group", unique, *env.servers)
    assert [(row["partition"], row["record_offset"], row["note"]) for row in rows] == [(0, 3, None), (1, 0, None)]
    assert all(row["size"] for row in rows)


def test_the_doctor_checks_the_brokers(env: Environment, release_cluster: ReleaseCluster, unique: str) -> None:
    env.commit(env.kafka, unique, {0: 3})
    rows = env.rows("doctor", *env.servers, "--zookeeper", release_cluster.zookeeper)
    assert "failed" not in {row["result"] for row in rows}
    release = release_cluster.release.rpartition(".")[0].replace("0.9.0", "0.9")
    (found,) = (row["detail"] for row in rows if row["check"] == "release")
    assert found == f"1 broker with Kafka {release} or later"
    (controller,) = (row for row in rows if row["check"] == "controller")
    assert "no KRaft quorum is reported" in controller["detail"]
