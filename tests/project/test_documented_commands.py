"""The blocks of `doc_blocks.MATRIX_PAGES` run against a ZooKeeper, two brokers and, for some pages, old consumers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from doc_blocks import MATRIX_PAGES, PROJECT, blocks
from kazoo_client import connected
from processes import OFFSETMGR, create_topic, start_command
from two_clusters import TwoClusters

from offsetmgr import OffsetAdmin, TopicPartition
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

TOPICS: Final = {"orders": 8, "payments": 1, "invoices": 1, "refunds": 8, "clicks": 3}
RECORDS: Final = 30
"""The number of records in each partition of `TOPICS`."""
COPY_AGAIN: Final = """
rm -f shop.json shop.journal
offsetmgr offsets set --group shop --topic orders:0 --to-offset 4 --new-group --store "$ZK" --execute
offsetmgr groups delete --group shop --store "$KAFKA" --execute
offsetmgr migrate plan --from "$ZK" --to "$KAFKA" --group shop -o shop.json
offsetmgr migrate apply shop.json
"""
"""Begins the migration of the group ``shop`` again."""


@dataclass
class World:
    """The servers, the directory in which a page's commands run, and the resources that live as long as its test."""

    zookeeper: ZooKeeperServer
    brokers: list[KafkaBroker]
    directory: Path
    stack: ExitStack
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def chroot(self) -> str:
        return f"{self.zookeeper.connect}/kafka"

    @property
    def bootstrap(self) -> str:
        return self.brokers[0].bootstrap

    def commit(self, uri: str, group: str, offsets: dict[TopicPartition, int]) -> None:
        with OffsetAdmin(uri) as admin:
            assert admin.plan_set(group, offsets, create=True).execute(self.directory / "images.avro").ok
        (self.directory / "images.avro").unlink()

    def file(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.directory / name
        path.write_text(text)
        path.chmod(mode)
        return path


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def brokers(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[KafkaBroker]]:
    """The brokers 1 and 2. Each topic of `TOPICS` has `RECORDS` records in each partition."""
    config = {"zookeeper.session.timeout.ms": 60_000, "offsets.topic.num.partitions": 4}
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                KafkaBroker(
                    tmp_path_factory.mktemp("kafka"),
                    zookeeper=f"{zookeeper.connect}/kafka",
                    broker_id=number,
                    config=config,
                )
            )
            for number in (1, 2)
        ]
        producer = Producer({"bootstrap.servers": started[0].bootstrap})
        for name, partitions in TOPICS.items():
            create_topic(started[0].bootstrap, name, partitions, replicas=2)
            for number in range(RECORDS * partitions):
                producer.produce(name, f"{name} {number}", partition=number % partitions)
        assert producer.flush(60) == 0
        yield started


@pytest.fixture
def world(zookeeper: ZooKeeperServer, brokers: list[KafkaBroker], tmp_path: Path) -> Iterator[World]:
    """Deletes the groups of other tests and creates the group ``shop`` in ZooKeeper, at ``orders:0``, offset 4."""
    directory = tmp_path / "work"
    directory.mkdir()
    with ExitStack() as stack:
        made = World(zookeeper, brokers, directory, stack)
        with connected(made.chroot) as client:
            for path in ("/consumers", "/offsetmgr"):
                client.delete(path, recursive=True)
            client.ensure_path("/consumers")
        with OffsetAdmin(f"kafka://{made.bootstrap}") as admin:
            if left := admin.groups():
                assert admin.plan_delete(left).execute(tmp_path / "deleted.avro").ok
        made.commit(f"zookeeper://{made.chroot}", "shop", {TopicPartition("orders", 0): 4})
        yield made


# --- the state that a page needs --------------------------------------------------------------------

Preparations = dict[str, str]
"""Shell commands that run in front of the first block below a heading."""


def nothing(_: World) -> Preparations:
    return {}


def a_sandbox(world: World) -> Preparations:
    """The sandbox of the page is in the test's directory."""
    world.environ["OFFSETMGR_SANDBOX"] = state = str(world.directory.parent / "sandbox")
    down = [*OFFSETMGR, "sandbox", "down", "--state", state]
    world.stack.callback(subprocess.run, down, cwd=PROJECT, capture_output=True, check=False, timeout=120)
    return {}


def alternatives(_: World) -> Preparations:
    """Each way to end a migration needs a migration of its own."""
    return {
        "Roll back": COPY_AGAIN,
        "Go back after a consumer has used the target": COPY_AGAIN
        + 'offsetmgr offsets set --group shop --topic orders:0 --to-offset 9 --store "$KAFKA" --execute\n',
    }


def many_groups(world: World) -> Preparations:
    refunds = {TopicPartition("refunds", number): 3 for number in range(8)}
    world.commit(f"zookeeper://{world.chroot}", "shop", refunds)
    world.commit(f"zookeeper://{world.chroot}", "app-web", {TopicPartition("orders", 1): 5})
    world.commit(f"kafka://{world.bootstrap}", "a/b", {TopicPartition("payments", 0): 2})
    world.file("waves.csv", "group,wave,owner\napp-*,1,web team\nshop,2,payments\n")
    return {}


def snapshots(_: World) -> Preparations:
    """The group ``shop`` in Kafka has moved since the snapshot ``backup.avro``. ``$ID`` is the id of an edit."""
    moved = 'offsetmgr offsets set --group shop --topic orders:0 --store "$KAFKA" --execute --to-offset'
    exported = 'offsetmgr offsets export backup.avro --group shop --store "$KAFKA"'
    newest = "offsetmgr edits list --last 1 --format json"
    with_id = f"ID=$({newest} | python -c 'import json, sys; print(json.load(sys.stdin)[0][\"id\"])')"
    return {
        "Undo an edit of offsetmgr": f"{moved} 5 --new-group\n{moved} 8\n{with_id}",
        "Import a snapshot": f"{moved} 4 --new-group\n{exported}\n{moved} 9",
        "Restore many groups": f"{moved} 12",
    }


def both_stores(_: World) -> Preparations:
    """The group ``shop`` is in both stores, and the snapshot ``nightly.avro`` equals the one in Kafka."""
    moved = 'offsetmgr offsets set --group shop --topic orders:0 --store "$KAFKA" --to-offset 4 --new-group --execute'
    exported = 'offsetmgr offsets export nightly.avro --group shop --store "$KAFKA"'
    return {"Check which store the command reads": f"{moved}\n{exported}"}


def byte_positions(world: World) -> Preparations:
    """The group ``shop`` of Kafka 0.7, and an editor that writes a name into the map."""
    editor = "import json, sys\nfile = sys.argv[1]\nmap = json.load(open(file))\nmap['confirmed_by'] = 'anna'\n"
    path = world.file("editor.py", editor + "json.dump(map, open(file, 'w'))\n")
    world.environ["EDITOR"] = f"python {path}"
    with connected(world.zookeeper.connect) as client:
        for name, position in {"0-0": b"1000", "0-1": b"2000", "1-0": b"3000"}.items():
            client.ensure_path(f"/consumers/shop/offsets/clicks/{name}")
            client.set(f"/consumers/shop/offsets/clicks/{name}", position)
    return {}


def registered_group(world: World) -> Preparations:
    """The group ``billing``, whose members run on host-1 and host-2, owns all partitions of ``orders`` and has
    committed."""
    billing = {TopicPartition("orders", number): 10 for number in range(TOPICS["orders"])}
    world.commit(f"zookeeper://{world.chroot}", "billing", billing)
    client = world.stack.enter_context(connected(world.chroot))
    for host in (1, 2):
        member = f"billing_host-{host}-1330000000000-1a2b3c4{host}"
        subscription = {"version": 1, "subscription": {"orders": 1}, "pattern": "static", "timestamp": "1330000000000"}
        path = f"/consumers/billing/ids/{member}"
        client.create(path, json.dumps(subscription).encode(), ephemeral=True, makepath=True)
        for number in range(4 * (host - 1), 4 * host):
            path = f"/consumers/billing/owners/orders/{number}"
            client.create(path, f"{member}-0".encode(), ephemeral=True, makepath=True)
    return {}


def two_clusters(world: World) -> Preparations:
    """The clusters A and B, and the groups ``shop`` and ``billing`` at A. B has a copy of their topic, behind other
    records."""

    def make_topic(
        name: str, partitions: int = 1, *, bootstrap: str | None = None, config: dict[str, str] | None = None
    ) -> str:
        assert bootstrap is not None and config is None
        return create_topic(bootstrap, name, partitions)

    a, b = (world.stack.enter_context(KraftBroker(world.directory.parent / name)) for name in "AB")
    clusters = TwoClusters(a.bootstrap, b.bootstrap, make_topic)
    clusters.foreign(clusters.topic("orders"), 7)
    clusters.copy("orders")
    for group in ("shop", "billing"):
        clusters.commit(group, "orders", {0: 50})
    world.environ |= {name: f"kafka://{one.bootstrap}" for name, one in (("A", a), ("B", b))} | {"A_PID": str(a.pid)}
    return {}


def a_lost_cluster(world: World) -> Preparations:
    two_clusters(world)
    world.environ["OFFSETMGR_TIMEOUT"] = "20000"
    return {"Fail over": 'kill -STOP "$A_PID"', "Fail back": 'kill -CONT "$A_PID"'}


def moves(world: World) -> Preparations:
    """A third broker, the page's file with moves, and a topic to delete.

    Before the election, ``orders:0`` has its preferred leader on another broker. Before the moves, the third broker has
    a replica of the partition.
    """
    (page,) = [page for page in MATRIX_PAGES if page.stem == "zookeeper-admin"]
    (text,) = [block.text for block in blocks(page) if block.language == "json"]
    world.file("moves.json", text)
    create_topic(world.bootstrap, "old-orders", 1)
    directory = world.directory.parent / "broker-3"
    world.stack.enter_context(KafkaBroker(directory, zookeeper=world.chroot, broker_id=3))
    with connected(world.chroot) as client:
        state = json.loads(client.get("/brokers/topics/orders/partitions/0/state")[0])
    partition = {"topic": "orders", "partition": 0}
    other = 3 - state["leader"]
    for name, replicas in (("swapped", [other, state["leader"]]), ("third", [3, 2])):
        world.file(f"{name}.json", json.dumps({"version": 1, "partitions": [partition | {"replicas": replicas}]}))
    reassign = f"offsetmgr zk reassign --zookeeper {world.chroot} --execute --reassignment-json-file"
    return {"Elect the preferred leaders": f"{reassign} swapped.json", "Move partitions": f"{reassign} third.json"}


STATES: Final[dict[str, Callable[[World], Preparations]]] = {
    "failover-and-failback": a_lost_cluster,
    "library": a_sandbox,
    "many-clusters": two_clusters,
    "migrate-a-group": alternatives,
    "migrate-from-kafka-07": byte_positions,
    "migrate-many-groups": many_groups,
    "mirror-a-group": nothing,
    "move-groups-to-another-cluster": two_clusters,
    "restore-offsets": snapshots,
    "sandbox": a_sandbox,
    "why-a-lag-looks-wrong": both_stores,
    "zookeeper": registered_group,
    "zookeeper-admin": moves,
    "zookeeper-check": registered_group,
}


@pytest.mark.parametrize("page", MATRIX_PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, world: World) -> None:
    preparations = STATES[page.stem](world)
    addresses = {"zookeeper": world.zookeeper.connect, "kafka": world.bootstrap}
    environ = {
        **os.environ,
        "OFFSETMGR_ZOOKEEPER": world.chroot,
        "OFFSETMGR_BOOTSTRAP_SERVER": world.bootstrap,
        "ZK": f"zookeeper://{world.chroot}",
        "KAFKA": f"kafka://{world.bootstrap}",
        "PYTHONPATH": os.pathsep.join([str(PROJECT), str(PROJECT / "tests")]),
        "XDG_STATE_HOME": str(world.directory.parent / "state"),
        **world.environ,
    }
    program = [sys.executable, str(PROJECT / "tests" / "doc_runner.py"), str(page)]
    done = start_command(
        json.dumps(addresses), json.dumps(preparations), program=program, environ=environ, cwd=world.directory
    )
    _, errors = done.communicate(timeout=600)
    assert done.returncode == 0, errors
