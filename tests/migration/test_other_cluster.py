"""Offsets and leader epochs are not copied to another cluster unless the user accepts it.

The tests reproduce a case from production. A group has committed offset 400 with leader epoch 37 in cluster A. In
cluster B the topic of the same name begins with 300 other records. After a copy of offset and epoch, a Java consumer
read nothing, because cluster B's log never had that epoch."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import confluent_kafka as ck
import confluent_kafka.admin
import pytest
from backend_listeners import ManagerListener
from committed_offsets import commit
from conftest import MakeTopic
from kazoo.client import KazooClient
from kazoo_client import connected
from processes import Commands, create_topic, fill, produce, run_command
from recreation import recreate

from offsetmgr import Migration, OffsetTranslation
from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import OtherCluster
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer, java_tool
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.uri import open_store
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = pytest.mark.servers


CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSET, EPOCH = 400, 37


class TwoClusters:
    """Topic ``topic`` in cluster A (3.9.1) and cluster B (4.4.0), and group ``group`` at 400 with epoch 37 in A."""

    def __init__(self, a: KafkaBroker, b: KraftBroker, name: str, directory: Path) -> None:
        self.a, self.b = f"kafka://{a.bootstrap}", f"kafka://{b.bootstrap}"
        self.bootstrap_a, self.bootstrap_b = a.bootstrap, b.bootstrap
        self.logs_a = a.directory / "data"
        self.topic = self.group = name
        self.tp = TopicPartition(name, 0)
        self.commands = Commands(directory)
        with open_store(self.a) as store:
            store.commit(name, {self.tp: OffsetAndMetadata(OFFSET, "note", EPOCH)})

    def in_b(self, group: str | None = None) -> Committed | None:
        with open_store(self.b) as store:
            found = store.fetch(group or self.group).get(self.tp)
        assert found is None or isinstance(found, Committed)
        return found

    def run(self, *arguments: str, code: int = 0) -> str:
        return self.commands.run(*arguments, code=code).stderr

    def next_record_in_b(self) -> tuple[int, str]:
        """The first record that a Java consumer of the group reads in cluster B: its offset and its value."""
        arguments = ["--bootstrap-server", self.bootstrap_b, "--topic", self.topic, "--group", self.group]
        arguments += ["--max-messages", "1", "--timeout-ms", "60000", "--property", "print.offset=true"]
        done = java_tool("kafka-3.9", CONSOLE, arguments)
        offset, value = done.stdout.strip().split("\t")
        return int(offset.removeprefix("Offset:")), value


@pytest.fixture
def clusters(kafka: KafkaBroker, kraft: KraftBroker, unique: str, tmp_path: Path) -> TwoClusters:
    records = [f"record {n}" for n in range(500)]
    for broker, first in ((kafka, []), (kraft, [f"other {n}" for n in range(300)])):
        create_topic(broker.bootstrap, unique, 1)
        produce(broker.bootstrap, unique, first + records)
    return TwoClusters(kafka, kraft, unique, tmp_path)


def move_by_plan(at: TwoClusters, *options: str, code: int = 0) -> str:
    output = at.run(
        "migrate", "plan", "--from", at.a, "--to", at.b, "--group", at.group, "-o", "p.json", *options, code=code
    )
    return output if code else output + at.run("migrate", "apply", "p.json", "--yes")


def move_by_import(at: TwoClusters, *options: str, code: int = 0) -> str:
    at.run("offsets", "export", "--store", at.a, "--group", at.group, "s.avro", "--overwrite")
    return at.run("offsets", "import", "s.avro", "--store", at.b, "--execute", "--yes", *options, code=code)


def move_by_copy(at: TwoClusters, *options: str, code: int = 0) -> str:
    names = (at.group, at.group)
    return at.run("groups", "copy", *names, "--store", at.a, "--to", at.b, "--execute", "--yes", *options, code=code)


def move_by_copies_through_a_file(at: TwoClusters, *options: str, code: int = 0) -> str:
    """Copying into a snapshot does not change the cluster that the snapshot names."""
    at.run("offsets", "export", "--store", at.a, "--group", at.group, "f.avro", "--overwrite")
    at.run("groups", "copy", at.group, "second", "--store", at.a, "--to", "file:f.avro", "--execute", "--yes")
    from_file = ("groups", "copy", "second", at.group, "--store", "file:f.avro", "--to", at.b)
    return at.run(*from_file, "--execute", "--yes", *options, code=code)


def move_by_reset(at: TwoClusters, *options: str, code: int = 0) -> str:
    at.run("offsets", "export", "--store", at.a, "--group", at.group, "r.avro", "--overwrite")
    into = ("--group", at.group, "--from-file", "r.avro", "--new-group", "--execute", "--yes")
    servers = ("--store", at.b, "--bootstrap-server", at.bootstrap_b)
    return at.run("offsets", "reset", *into, *servers, *options, code=code)


def move_by_log(at: TwoClusters, *options: str, code: int = 0) -> str:
    arguments = ("log", "offsets", str(at.logs_a), "--group", at.group, "--to", at.b)
    return at.run(*arguments, "--execute", "--yes", *options, code=code)


Move = Callable[..., str]
MOVES = [move_by_plan, move_by_import, move_by_copy, move_by_copies_through_a_file, move_by_log, move_by_reset]


@pytest.mark.parametrize("move", MOVES)
def test_offsets_of_another_cluster_are_rejected_and_nothing_is_written(clusters: TwoClusters, move: Move) -> None:
    output = move(clusters, code=2)
    assert "the offsets are positions in the logs of another Kafka cluster: the source belongs to cluster" in output
    assert "hint: in the target's logs the same offsets belong to other records: " in output
    assert "reset the group by time (offsets reset --to-datetime)" in output
    shows = f"offsetmgr offsets diff --from {clusters.a} --to {clusters.b} --translate auto shows the right ones"
    assert (shows in output) == (move is move_by_copy)
    assert ("add --translate auto to write the offsets of the same records" in output) == (move is move_by_plan)
    assert "If the target's topics are exact copies" in output
    assert "--translate none" in output
    assert clusters.in_b() is None


@pytest.mark.parametrize("move", MOVES)
def test_translate_none_copies_the_offset_without_the_leader_epoch(clusters: TwoClusters, move: Move) -> None:
    output = move(clusters, "--translate", "none")
    committed = clusters.in_b()
    assert committed is not None
    assert (committed.offset, committed.leader_epoch) == (OFFSET, None)
    if move is not move_by_reset:
        assert "cluster accepted by --translate none: " in output
        assert committed.metadata == "note"


def test_a_java_consumer_reads_the_right_record_if_the_log_is_an_exact_copy(kafka, kraft, unique, tmp_path):
    for broker in (kafka, kraft):
        create_topic(broker.bootstrap, unique, 1)
        produce(broker.bootstrap, unique, [f"record {n}" for n in range(500)])
    clusters = TwoClusters(kafka, kraft, unique, tmp_path)
    move_by_import(clusters, "--translate", "none")
    assert clusters.next_record_in_b() == (OFFSET, f"record {OFFSET}")


def test_within_one_cluster_the_leader_epoch_is_kept(clusters: TwoClusters) -> None:
    other = f"{clusters.group}-copy"
    clusters.run("groups", "copy", clusters.group, other, "--store", clusters.a, "--execute", "--yes")
    with open_store(clusters.a) as store:
        found = store.fetch(other)[clusters.tp]
    assert isinstance(found, Committed)
    assert found.leader_epoch == EPOCH


def test_a_file_without_a_cluster_id_is_imported_with_a_note(clusters: TwoClusters) -> None:
    clusters.run("offsets", "export", "--store", clusters.a, "--group", clusters.group, "s.csv")
    to_b = ("--store", clusters.b, "--group", clusters.group, "--execute", "--yes")
    output = clusters.run("offsets", "import", "s.csv", *to_b)
    assert "origin unknown: source: the file names no Kafka cluster" in output
    committed = clusters.in_b()
    assert committed is not None
    assert committed.offset == OFFSET


# --- ZooKeeper -----------------------------------------------------------------------------------------
@pytest.fixture
def old_zookeeper(zookeeper: ZooKeeperServer, unique: str) -> Iterator[tuple[str, KazooClient]]:
    """Connect string and client for the chroot of a cluster before 0.10.1, which has no id. A group has offset 5."""
    connect = f"{zookeeper.connect}/{unique}"
    with connected(connect) as client:
        client.ensure_path("/")
        commit(f"zookeeper://{connect}", unique, unique, {0: 5})
        yield connect, client


def register_broker(client: KazooClient, address: str) -> None:
    """Registers a broker in the format of releases before 0.9."""
    host, _, port = address.rpartition(":")
    node = {"jmx_port": -1, "timestamp": "1", "host": host, "version": 1, "port": int(port)}
    client.create("/brokers/ids/0", json.dumps(node).encode(), makepath=True)


def plan_from(connect: str, target: str, commands: Commands, group: str, *options: str, code: int) -> str:
    sides = ("--from", f"zookeeper://{connect}", "--to", target, "--group", group)
    return commands.run("migrate", "plan", *sides, "-o", "p.json", *options, code=code).stderr


def test_a_zookeeper_without_a_cluster_id_belongs_to_the_cluster_whose_brokers_it_lists(
    old_zookeeper: tuple[str, KazooClient], kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    connect, client = old_zookeeper
    fill(kafka.bootstrap, make_topic(unique), 10)
    register_broker(client, kafka.bootstrap)
    output = plan_from(connect, f"kafka://{kafka.bootstrap}", Commands(tmp_path), unique, code=0)
    named = f"both name the broker {kafka.bootstrap}"
    assert f"cluster the same on both sides (inferred): no cluster id in ZooKeeper, but {named}" in output


def test_a_zookeeper_that_lists_no_broker_of_the_target_is_another_cluster(old_zookeeper, kafka, unique, tmp_path):
    connect, client = old_zookeeper
    register_broker(client, "127.0.0.1:1")
    output = plan_from(connect, f"kafka://{kafka.bootstrap}", Commands(tmp_path), unique, code=2)
    assert "the source and the target have no broker in common" in output
    assert "lists 127.0.0.1:1" in output
    assert not (tmp_path / "p.json").exists()


def test_the_cluster_of_a_zookeeper_without_brokers_is_unknown_and_one_word_suffices(
    old_zookeeper: tuple[str, KazooClient], kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    connect, _ = old_zookeeper
    fill(kafka.bootstrap, make_topic(unique), 10)
    target, commands = f"kafka://{kafka.bootstrap}", Commands(tmp_path)
    refused = plan_from(connect, target, commands, unique, code=2)
    assert "another" not in refused
    assert "lists no broker, so it is unknown whether both belong to the same cluster" in refused
    assert "add --translate none" in refused
    assert not (tmp_path / "p.json").exists()
    output = plan_from(connect, target, commands, unique, "--translate", "none", code=0)
    assert "so it is unknown whether both belong to the same cluster; accepted by --translate none" in output
    commands.run("migrate", "apply", "p.json", "--yes")
    commands.run("migrate", "verify", "p.json")
    servers = ("--zookeeper", connect, "--bootstrap-server", kafka.bootstrap)
    check = ("runbook", "check", "--phase", "dual", "--group", unique, *servers)
    assert "different Kafka clusters" not in commands.run(*check, code=None).stderr
    assert commands.run("groups", "where", unique, *servers, "--format", "json").stdout


@pytest.mark.parametrize("listed", ["127.0.0.1:1", None])
def test_describe_explains_the_missing_lag_if_the_cluster_of_zookeeper_is_unknown(
    old_zookeeper: tuple[str, KazooClient], kafka: KafkaBroker, unique: str, tmp_path: Path, listed: str | None
) -> None:
    connect, client = old_zookeeper
    if listed is not None:
        register_broker(client, listed)
    here = ("--zookeeper", connect, "--bootstrap-server", kafka.bootstrap, "--group", unique)
    output = Commands(tmp_path).run("groups", "describe", *here, code=1).stderr
    if listed is None:
        shown = f"cannot verify that {kafka.bootstrap} is the cluster of zookeeper://{connect}: ZooKeeper lists no live"
    else:
        shown = f"{kafka.bootstrap} is another Kafka cluster than that of zookeeper://{connect}: the "
        assert "have no broker in common" in output
    assert f"warning: {shown}" in output


@pytest.mark.parametrize("selected", [["--all-groups"], ["--group", "shop"], ["--group", "s*"]])
def test_a_plan_from_a_zookeeper_path_without_groups_asks_for_the_chroot(zookeeper, kafka, unique, tmp_path, selected):
    with connected(zookeeper.connect) as client:
        client.create(f"/{unique}")
    sides = ["--from", f"zookeeper://{zookeeper.connect}/{unique}", "--to", f"kafka://{kafka.bootstrap}"]
    errors = Commands(tmp_path).run("migrate", "plan", *sides, *selected, "-o", "p.json", code=1).stderr
    assert "hint: is the chroot right?" in errors
    assert "--translate" not in errors


def test_a_context_of_another_cluster_than_the_plans_is_refused(kafka, kraft, make_topic, unique, tmp_path):
    fill(kafka.bootstrap, make_topic(unique), 10)
    (tmp_path / "saved.csv").write_text(f"{unique},{unique},0,5\n")
    config = tmp_path / "offsetmgr" / "config.toml"
    config.parent.mkdir()
    config.write_text(
        f'[context.prod]\nbootstrap-server = "{kafka.bootstrap}"\n'
        f'[context.dr]\nbootstrap-server = "{kraft.bootstrap}"\n'
        '[context.down]\nbootstrap-server = "127.0.0.1:1"\n'
    )
    commands = Commands(tmp_path)
    sides = ["--from", f"file:{tmp_path}/saved.csv", "--to", f"kafka://{kafka.bootstrap}", "--group", unique]
    commands.run("migrate", "plan", *sides, "-o", "p.json", "--context", "prod")
    for command in (["apply", "p.json", "--yes"], ["verify", "p.json"], ["rollback", "p.json", "--yes"]):
        refused = commands.run("migrate", *command, "--context", "dr", code=2).stderr
        assert "error: --context dr: its servers are those of another cluster than the plan's" in refused
        assert "hint: name the context with which the plan was made" in refused
        down = commands.run("migrate", *command, "--context", "down", code=1).stderr
        assert "127.0.0.1:1: Connection refused" in down
    assert commands.run("offsets", "get", unique, "--bootstrap-server", kafka.bootstrap, code=1).stdout == ""
    commands.run("migrate", "apply", "p.json", "--yes", "--context", "prod")
    commands.run("migrate", "verify", "p.json", "--context", "prod")
    commands.run("migrate", "rollback", "p.json", "--yes", "--context", "prod")


# --- topics that were recreated ------------------------------------------------------------------------
def test_an_offset_in_zookeeper_of_a_recreated_topic_is_rejected(zookeeper, kafka, make_topic, unique, tmp_path):
    """ZooKeeper dates both the offset and the topic. Kafka deletes the offsets of a deleted topic; ZooKeeper keeps
    them."""
    gone, stays = make_topic(unique), make_topic(f"{unique}-stays")
    fill(kafka.bootstrap, stays, 10)
    connect = f"{zookeeper.connect}/kafka"
    with open_store(f"zookeeper://{connect}") as store:
        store.commit(unique, {TopicPartition(t, 0): OffsetAndMetadata(5) for t in (gone, stays)})
    recreate(kafka.bootstrap, gone)
    commands = Commands(tmp_path)
    output = plan_from(connect, f"kafka://{kafka.bootstrap}", commands, unique, code=0)
    assert "recreated after the commit: checked by the time of creation in ZooKeeper" in output
    with Migration(tmp_path / "p.json") as migration:
        (group,) = migration.groups()
    steps = {step.tp.topic: step for step in group.steps}
    assert steps[gone].action.value == "refuse-recreated"
    assert "the topic was created after that" in steps[gone].note
    assert steps[stays].action.value == "copy"
    rename = ("groups", "rename", unique, f"{unique}-new", "--store", f"zookeeper://{connect}")
    output = commands.run(*rename, "--execute", "--yes", code=1).stderr
    assert "the topic was created after that" in output


def test_a_snapshot_and_a_before_image_of_a_topic_that_was_recreated_are_rejected(kafka, make_topic, unique, tmp_path):
    """Both files carry topic ids."""
    uri, tp = f"kafka://{kafka.bootstrap}", TopicPartition(make_topic(unique), 0)
    fill(kafka.bootstrap, unique, 10)
    commands = Commands(tmp_path)
    with open_store(uri) as store:
        store.commit(unique, {tp: OffsetAndMetadata(5)})
    commands.run("offsets", "export", "--store", uri, "--group", unique, "s.avro")
    edit = ("offsets", "set", "--group", unique, "--topic", f"{unique}:0", "--to-offset", "7", "--store", uri)
    commands.run(*edit, "--execute", "--yes", "--before-image", "b.avro")
    recreate(kafka.bootstrap, unique)
    for file in ("s.avro", "b.avro"):
        into = ("offsets", "import", file, "--store", uri, "--execute", "--yes", "--allow-rewind")
        assert "the topic was deleted and recreated" in commands.run(*into, code=1).stderr
    plan = ("migrate", "plan", "--from", "file:s.avro", "--to", uri, "--group", unique, "-o", "p.json")
    assert "refuse-recreated" in commands.run(*plan, code=1).stdout
    with open_store(uri) as store:
        assert store.fetch(unique) == {}


def test_a_snapshot_taken_after_the_topic_was_recreated_is_rejected_by_the_dates(
    zookeeper: ZooKeeperServer, kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    """The snapshot has the new topic's id, but the offset in ZooKeeper is older than that topic."""
    connect = f"{zookeeper.connect}/kafka"
    commit(f"zookeeper://{connect}", unique, make_topic(unique), {0: 5})
    recreate(kafka.bootstrap, unique)
    commands = Commands(tmp_path)
    source = ("--store", f"zookeeper://{connect}", "--bootstrap-server", kafka.bootstrap)
    commands.run("offsets", "export", *source, "--group", unique, "s.avro")
    into = ("offsets", "import", "s.avro", "--store", f"zookeeper://{connect}", "--execute", "--yes", "--allow-rewind")
    output = commands.run(*into, "--group", unique, code=1).stderr
    assert "the topic was created after that" in output


PATIENT = ConnectionConfig(timeout_ms=20_000)


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


def test_a_mirror_between_two_clusters_is_rejected_before_it_starts(two: Two) -> None:
    two.of_a.commit(two.name, {two.tp: OffsetAndMetadata(5, "", 0)})
    options = ("--group", two.name, "--once", "--settle", "50", "--yes")
    mirror = ("migrate", "mirror", "--from", two.of_a.uri, "--to", two.of_b.uri, *options)
    refused = run_command(*mirror, code=2)
    assert "error: plan: the offsets are positions in the logs of another Kafka cluster: " in refused.stderr
    assert two.committed(two.of_b) is None
    run_command(*mirror, "--translate", "none")
    assert two.committed(two.of_b) == (5, None)


def test_a_mirror_rejects_the_offsets_of_a_recreated_topic_and_names_the_partition(two):
    two.nodes.commit(two.name, {two.tp: OffsetAndMetadata(5)})
    recreate(two.a.bootstrap, two.name)
    mirror = ("migrate", "mirror", "--from", two.nodes.uri, "--to", two.of_a.uri, "--group", two.name)
    done = run_command(*mirror, "--once", "--settle", "50", "--yes", "--format", "json", code=1)
    (row,) = json.loads(done.stdout)
    assert f"refused: {two.tp}: committed at" in row["detail"]
    assert two.committed(two.of_a) is None


def test_a_runbook_for_a_zookeeper_and_a_kafka_of_two_clusters_is_rejected(two: Two) -> None:
    two.nodes.commit(two.name, {two.tp: OffsetAndMetadata(5)})
    stores = ("--zookeeper", two.a.zookeeper, "--bootstrap-server", two.b.bootstrap)
    refused = run_command("runbook", "check", "--phase", "dual", "--group", two.name, *stores, code=2)
    assert "error: runbook: ZooKeeper and brokers hold offsets of different Kafka clusters: " in refused.stderr


def test_a_spark_copy_to_another_cluster_is_rejected_before_spark_starts(two: Two) -> None:
    two.of_a.commit(two.name, {two.tp: OffsetAndMetadata(5, "", 0)})
    copy = ("spark", "copy", "--from", two.of_a.uri, "--to", two.of_b.uri, "--group", two.name, "--execute", "--yes")
    refused = run_command(*copy, code=2)
    assert "error: spark copy: the offsets are positions in the logs of another Kafka cluster: " in refused.stderr
    assert two.committed(two.of_b) is None
    run_command(*copy, "--translate", "none", "--master", "local[1]")
    assert two.committed(two.of_b) == (5, None)


def test_serving_a_store_of_another_cluster_is_rejected_and_translate_none_drops_leader_epochs(two: Two) -> None:
    serve = ("manager", "serve", "--listen", "127.0.0.1:0", "--bootstrap-server", two.b.bootstrap)
    refused = run_command(*serve, "--store", two.of_a.uri, code=2)
    assert "its offsets belong to another Kafka cluster than the topics: " in refused.stderr
    assert "add --translate none" in refused.stderr
    with ManagerListener(two.b.bootstrap, "unused", store=two.of_a.uri, translate=OffsetTranslation.NONE) as listener:
        consumer = ck.Consumer({"bootstrap.servers": listener.bootstrap, "group.id": two.name})
        consumer.commit(offsets=[ck.TopicPartition(two.name, 0, 4, leader_epoch=0)], asynchronous=False)
        consumer.close()
    assert two.committed(two.of_a) == (4, None)
