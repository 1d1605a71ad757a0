"""Migrations of offsets that Kafka 0.7 and Storm spouts keep in ZooKeeper: as processes, to real Kafka and back."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from committed_offsets import offsets
from conftest import MakeTopic
from processes import Commands, fill

from offsetmgr.core.model import Absent, BrokerPartition, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit, OffsetStore
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, OperationState

pytestmark = pytest.mark.servers

LOG_END = 50


@dataclass
class World:
    """A topic of four partitions with offsets 0 to 50 in Kafka, and a chroot of its own in ZooKeeper."""

    topic: str
    kafka: str
    chroot: str
    directory: Path

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return Commands(self.directory).run(*arguments, code=code)

    @property
    def address(self) -> str:
        return self.chroot.removeprefix("zookeeper://")

    @property
    def bootstrap(self) -> str:
        return self.kafka.removeprefix("kafka://")

    def spouts(self) -> ZookeeperStore:
        """The store of the spouts below /storm."""
        return ZookeeperStore(self.address, layout="storm", root="/storm")

    def old(self, broker: int, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, BrokerPartition(broker, partition))

    def new(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)


@pytest.fixture
def world(zookeeper: ZooKeeperServer, kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path) -> World:
    topic = make_topic(unique, 4)
    fill(kafka.bootstrap, topic, *[LOG_END] * 4)
    with ZookeeperSession(zookeeper.connect) as session:
        assert session.transaction([Create(f"/{unique}")]).state is OperationState.COMMITTED
    return World(topic, f"kafka://{kafka.bootstrap}", f"zookeeper://{zookeeper.connect}/{unique}", tmp_path)


class TestKafka07:
    @pytest.fixture
    def source(self, world: World) -> Iterator[OffsetStore]:
        with ZookeeperStore(world.address, layout="0.7") as store:
            yield store

    def test_byte_positions_are_migrated_with_a_confirmed_map_and_rolled_back(self, world, source, unique):
        """Draft, confirm, plan, apply, verify as inferred, detect a newer source, roll back, finalize."""
        positions = {(0, 0): 1000, (0, 1): 2000, (1, 0): 3000, (1, 1): 4000}
        source.commit(unique, {world.old(*bp): OffsetAndMetadata(n) for bp, n in positions.items()})
        sides = ("--from", source.uri, "--to", world.kafka, "--group", unique)
        without = world.run("migrate", "plan", *sides, "-o", "refused.json", code=1)
        assert "next: run the same command with --draft-partition-map FILE" in without.stderr
        assert "4 byte positions of Kafka 0.7 cannot be planned without" in without.stderr
        assert "migrate apply" not in without.stderr
        world.run("migrate", "plan", *sides, "--draft-partition-map", "map.json")
        document = json.loads((world.directory / "map.json").read_text())
        entries = document["topics"][world.topic]
        entries["0-1"] = {"partition": 1, "table": [[0, 0], [1990, 7]], "between": "floor"}
        entries["1-0"] = {"partition": 2, "table": [[0, 0], [3000, 11]]}
        entries["1-1"] = {"partition": 3, "start": "latest"}
        (world.directory / "map.json").write_text(json.dumps({**document, "confirmed_by": "anna"}))
        world.run("migrate", "plan", *sides, "--partition-map", "map.json", "-o", "plan.json")
        world.run("migrate", "apply", "plan.json", "--yes")
        verified = world.run("migrate", "verify", "plan.json", "--format", "json")
        expected = {world.new(0): 0, world.new(1): 7, world.new(2): 11, world.new(3): LOG_END}
        with KafkaStore(world.bootstrap) as target:
            assert offsets(target.fetch(unique)) == expected
            found = [(row["status"], row["evidence"]) for row in json.loads(verified.stdout)]
            assert found == [("equal", "inferred")] * 4
            source.commit(unique, {world.old(0, 0): OffsetAndMetadata(1001)})
            moved = world.run("migrate", "verify", "plan.json", "--format", "json", code=1)
            assert [row["status"] for row in json.loads(moved.stdout)] == ["source-ahead", "equal", "equal", "equal"]
            world.run("migrate", "rollback", "plan.json", "--yes")
            assert offsets(target.fetch(unique)) == {}
            world.run("migrate", "plan", *sides, "--partition-map", "map.json", "-o", "again.json")
            world.run("migrate", "apply", "again.json", "--yes")
            world.run("migrate", "finalize", "again.json", "--yes", "--delete-source", "--window", "0.2")
            assert offsets(target.fetch(unique)) == expected
            assert offsets(source.fetch(unique)) == {}

    def test_byte_positions_are_copied_unchanged_between_stores_of_kafka_0_7(self, world, source, unique):
        positions = {world.old(1, 0): 3000, world.old(1, 1): 4000}
        source.commit(unique, {tp: OffsetAndMetadata(n) for tp, n in positions.items()})
        with ZookeeperSession(world.address) as session:
            session.transaction([Create("/new")])
        other = f"{world.chroot}/new?layout=0.7"
        cluster = ("--bootstrap-server", world.bootstrap)
        copies = ("--translate", "none")  # the second ZooKeeper has no cluster id
        sides = ("--from", source.uri, "--to", other)
        world.run("migrate", "plan", *sides, "--all-groups", "-o", "plan.json", *cluster, *copies)
        world.run("migrate", "apply", "plan.json", "--yes")
        world.run("migrate", "verify", "plan.json", *cluster)
        with ZookeeperStore(f"{world.address}/new", layout="0.7") as target:
            assert offsets(target.fetch(unique)) == positions

    def test_snapshots_keep_byte_positions_which_are_not_imported_as_offsets(self, world, source, unique):
        source.commit(unique, {world.old(1, 0): OffsetAndMetadata(3000)})
        world.run("offsets", "export", "a.zk", "--store", source.uri, "--group", unique)
        imported = world.run("offsets", "import", "a.zk", "--store", world.kafka, "--execute", "--yes", code=1)
        lines = (world.directory / "a.zk").read_text()
        assert lines == f"/consumers/{unique}/offsets/{world.topic}/1-0:3000\n"
        assert "is a byte position of Kafka 0.7, not an offset" in imported.stdout + imported.stderr

    @pytest.mark.parametrize(
        ("command", "why"),
        [
            ("migrate mirror --from OLD --to KAFKA --all-groups --once --yes", "which cannot be compared"),
            ("manager serve --store OLD --listen 127.0.0.1:0", "would use as offsets"),
            ("offsets reset --store OLD --group g --to-earliest --all-topics", "no log can be read at them"),
        ],
        ids=["mirror", "serve", "reset"],
    )
    def test_commands_that_need_offsets_refuse_byte_positions(self, world, source, command, why):
        uris = {"OLD": source.uri, "KAFKA": world.kafka}
        arguments = [uris.get(word, word) for word in command.split()]
        if arguments[0] != "migrate":
            arguments += ["--bootstrap-server", world.bootstrap]
        done = world.run(*arguments, code=2)
        assert why in done.stderr


class TestStorm:
    def test_a_spouts_offsets_are_migrated_and_back_and_its_other_fields_are_kept(self, world, unique):
        written = {"topology": {"id": "7f", "name": "clicks"}, "offset": 17, "partition": 0, "mine": [1]}
        written |= {"broker": {"host": "h", "port": 9092}, "topic": world.topic}
        with ZookeeperSession(world.address) as session:
            directories = ["/storm", f"/storm/{unique}"]
            session.transaction(
                [*map(Create, directories), Create(f"{directories[1]}/partition_0", json.dumps(written).encode())]
            )
            spouts = f"{world.chroot}?layout=storm&root=/storm"
            world.run("migrate", "plan", "--from", spouts, "--to", world.kafka, "--all-groups", "-o", "p.json")
            world.run("migrate", "apply", "p.json", "--yes")
            world.run("migrate", "finalize", "p.json", "--yes", "--window", "0.2")
            with KafkaStore(world.bootstrap) as kafka:
                assert offsets(kafka.fetch(unique)) == {world.new(0): 17}
                kafka.commit(unique, {world.new(0): OffsetAndMetadata(20), world.new(1): OffsetAndMetadata(3)})
            world.run("migrate", "plan", "--from", world.kafka, "--to", spouts, "--group", unique, "-o", "back.json")
            world.run("migrate", "apply", "back.json", "--yes")
            first = session.get(f"/storm/{unique}/partition_0")
            second = session.get(f"/storm/{unique}/partition_1")
            assert first is not None and json.loads(first.data) == {**written, "offset": 20}
            assert second is not None and json.loads(second.data)["offset"] == 3
            assert json.loads(second.data)["topology"] == {"id": "offsetmgr", "name": "offsetmgr"}

    def test_a_spout_that_subscribes_by_pattern_has_a_directory_per_topic(self, world: World, unique: str) -> None:
        """The path follows Partition.getId of storm-kafka 0.10 and later."""
        node = {"topology": {"id": "7f", "name": "n"}, "offset": 5, "partition": 2, "topic": "a"}
        with ZookeeperSession(world.address) as session, world.spouts() as store:
            directories = ["/storm", f"/storm/{unique}", f"/storm/{unique}/a"]
            session.transaction(
                [*map(Create, directories), Create(f"{directories[2]}/partition_2", json.dumps(node).encode())]
            )
            existing, new, other_topic = TopicPartition("a", 2), TopicPartition("a", 3), TopicPartition("b", 2)
            assert offsets(store.fetch(unique)) == {existing: 5}
            after = {existing: 6, new: 1, other_topic: 9}
            store.commit(unique, {tp: OffsetAndMetadata(offset) for tp, offset in after.items()})
            assert offsets(store.fetch(unique)) == after
            some = store.fetch(unique, [existing, other_topic])
            assert [getattr(some[tp], "offset", None) for tp in (existing, other_topic)] == [6, 9]
            assert sorted(session.children(f"/storm/{unique}") or []) == ["a", "partition_2"]
            assert sorted(session.children(f"/storm/{unique}/a") or []) == ["partition_2", "partition_3"]

    def test_one_node_cannot_hold_the_offsets_of_two_topics(self, world: World, unique: str) -> None:
        first, second = TopicPartition("a", 0), TopicPartition("b", 0)
        with world.spouts() as store:
            store.commit(unique, {first: OffsetAndMetadata(5)})
            (result,) = store.edit([GroupEdit(unique, {second: Change(OffsetAndMetadata(1))})])
            assert "holds the offset of topic a: the two topics share this node" in str(result.outcomes[second].error)
            assert dict(store.fetch(unique, [second])) == {second: Absent()}
            assert offsets(store.fetch(unique)) == {first: 5}

    def test_an_unreadable_node_fails_its_partition_or_its_group(self, world: World, unique: str) -> None:
        """If a node's topic is unknown, the group fails, because its offsets may be incomplete."""
        with ZookeeperSession(world.address) as session, world.spouts() as store:
            store.commit(unique, {TopicPartition("a", 0): OffsetAndMetadata(5)})
            store.commit(f"{unique}-2", {TopicPartition("a", 0): OffsetAndMetadata(5)})
            broken = {unique: b'{"topic":"a","partition":1}', f"{unique}-2": b"broken"}
            session.transaction([Create(f"/storm/{group}/partition_1", data) for group, data in broken.items()])
            named, nameless = store.scan([unique, f"{unique}-2"])
            assert {tp: found.offset for tp, found in named.offsets.items()} == {TopicPartition("a", 0): 5}
            assert "'offset' is missing" in str(named.errors[TopicPartition("a", 1)])
            assert "is not JSON" in str(nameless.error)
