"""Groups of old consumers that are not Java: how they register and own partitions, and when a group counts as live."""

import itertools
import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from checked_cluster import PARTITIONS, Cluster, found
from conftest import MakeTopic
from everyday import Cli
from kazoo_client import connected
from processes import fill, wait_for
from repeated import repeated
from same_cluster import join_cluster

from offsetmgr import ConnectionConfig, MigrationConfig, OffsetAdmin, PlanOptions, TopicPartition
from offsetmgr.app.connections import SourceAndTarget
from offsetmgr.migration.observation import ZookeeperRegistry
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups import registry

pytestmark = pytest.mark.servers

UUID = "d1c5a2f0-1b2c-4d3e-8f90-123456789012"
GO = '{"pattern":"static","subscription":{"orders":1},"timestamp":"1700000000","version":1}'
NODE = '{"version":1,"subscription":{"orders": 1},"pattern":"white_list","timestamp":"1700000000123"}'
NODE_2 = '{"version":1,"subscription":{"orders": 1, "invoices": 1},"pattern":"white_list","timestamp":"1"}'

CLIENTS = {
    "java": ("g_db-1-1700000000123-1a2b3c4d", NODE.replace("white_list", "static"), "{}-0", "{}"),
    "kazoo-go": (f"host-1:{UUID}", GO, "{}", "{}"),
    "kazoo-go-address": (f"host-1@10.0.0.1:{UUID}", GO, "{}", "{}"),
    "kafka-node": ("my-consumer-id-3", NODE, "{}", "{}"),
    "kafka-node-default": (f"g_{UUID}", NODE, "{}", "{}"),
    "kafka-node-topics": ("worker", NODE_2, "{}", "{}"),
    "pykafka": (f"host-1:{UUID}", "orders", "{}", "7-{}"),
}
"""Client -> the id, the registration, the content of the owner nodes, and their names."""


def join(cluster: Cluster, client: str) -> str:
    """Registers a member of group g that owns all partitions, and returns its id."""
    member, registration, owner, node = CLIENTS[client]
    cluster.create(f"/consumers/g/ids/{member}", registration, ephemeral=True)
    for partition in range(PARTITIONS):
        cluster.create(f"/consumers/g/owners/orders/{node.format(partition)}", owner.format(member), ephemeral=True)
        cluster.create(f"/consumers/g/offsets/orders/{partition}", "50")
    return member


@pytest.mark.parametrize("client", CLIENTS)
def test_the_owner_of_every_partition_is_known_and_a_healthy_group_has_no_findings(cluster, session, client) -> None:
    member = join(cluster, client)

    owned, unreadable = ZookeeperRegistry(session).owners("g")
    assert {str(tp): owner.member for tp, owner in owned.items()} == {f"orders-{n}": member for n in range(3)}
    members, undecoded = ZookeeperRegistry(session).members("g", lambda: ["orders", "invoices"])
    assert "orders" in members[member].topics

    if client == "kafka-node-topics":
        cluster.topic("invoices", 1)
        cluster.create("/consumers/g/owners/invoices/0", member, ephemeral=True)
    assert [finding.sentence for finding in found(session)] == []
    assert unreadable == undecoded == ()
    config = ConnectionConfig()
    with MigrationConfig().connections() as connections:
        sides = SourceAndTarget(connections, f"zookeeper://{session.connect}", "kafka://none:1", (config, config))
        with sides.changes(PlanOptions()) as (_, legacy_groups):
            assert legacy_groups is not None
            owners = legacy_groups(["g"])["g"].owners
    assert {owner.member for owner in owners.values()} == {member}


def test_an_id_that_ends_like_a_thread_is_told_apart_by_its_session(cluster, session, clients) -> None:
    """Member w owns with thread 3, and another member has the id w-3."""
    cluster.register("g", "w")
    clients[1].create(f"{cluster.chroot}/consumers/g/ids/w-3", GO.encode(), ephemeral=True)
    cluster.own("g", 0, "w-3")
    clients[1].create(f"{cluster.chroot}/consumers/g/owners/orders/1", b"w-3", ephemeral=True)
    clients[1].create(f"{cluster.chroot}/consumers/g/owners/orders/2", b"an unknown format", ephemeral=True)

    owners, _ = ZookeeperRegistry(session).owners("g")

    assert {tp.partition: owner.member for tp, owner in owners.items()} == {0: "w", 1: "w-3", 2: "w-3"}


def test_an_owner_of_a_go_client_that_has_left_is_a_stranger_and_not_unreadable(cluster, session, clients) -> None:
    join(cluster, "kazoo-go")
    path = f"{cluster.chroot}/consumers/g/owners/orders/2"
    cluster.client.delete(path)
    clients[1].create(path, f"host-2:{UUID}".encode(), ephemeral=True)

    (finding,) = found(session)

    assert (finding.code, finding.partitions) == ("owner-not-member", (2,))


# --- persistent registrations ---------------------------------------------------------------------------


def join_spark(cluster: Cluster) -> None:
    """kafka-spark-consumer: persistent nodes, the registrations below the topic."""
    for partition in range(PARTITIONS):
        cluster.create(f"/consumers/g/ids/orders/Receiver-{partition}", GO)
        cluster.create(f"/consumers/g/owners/orders/{partition}", f"Receiver-{partition}-0")
        cluster.create(f"/consumers/g/offsets/orders/{partition}", "50")


@contextmanager
def committing(cluster: Cluster) -> Iterator[None]:
    """Commits offsets again and again, as a running consumer does."""
    node, offsets = f"{cluster.chroot}/consumers/g/offsets/orders/0", itertools.count(51)

    def commit() -> None:
        cluster.client.set(node, b"%d" % next(offsets))
        time.sleep(0.05)

    with repeated(commit):
        wait_for(lambda: cluster.client.get(node)[0] != b"50", "a commit")
        yield


EDITS = {
    "set": ("offsets", "set", "-g", "g", "--topic", "orders:0", "--to-offset", "9", "--execute", "--yes"),
    "delete-offsets": ("offsets", "delete", "-g", "g", "--topic", "orders:0", "--execute", "--yes"),
    "copy": ("groups", "copy", "source", "g", "--allow-rewind", "--execute", "--yes"),
    "rename": ("groups", "rename", "g", "h", "--execute", "--yes"),
    "delete": ("groups", "delete", "-g", "g", "--execute", "--yes"),
}
WORD = "--ignore-persistent-members"


@pytest.fixture
def flags(zookeeper: ZooKeeperServer, cluster: Cluster) -> list[str]:
    return ["--zookeeper", zookeeper.connect + cluster.chroot]


@pytest.mark.parametrize("edit", EDITS)
def test_a_persistent_registration_needs_one_word_in_every_edit(cluster, flags, edit: str, tmp_path) -> None:
    join_spark(cluster)
    cluster.create("/consumers/source/offsets/orders/0", "7")
    cli = Cli(tmp_path)

    refused = cli(*EDITS[edit], *flags, code=1).stderr
    assert "3 persistent registrations in ZooKeeper, which does not show whether its consumer runs" in refused
    assert f"add {WORD}" in refused
    with committing(cluster):
        assert "STABLE with 3 members" in cli(*EDITS[edit], *flags, WORD, code=1).stderr
    cli(*EDITS[edit], *flags, WORD)


def test_a_persistent_registration_is_shown_as_what_it_is(cluster: Cluster, flags: list[str], tmp_path: Path) -> None:
    join_spark(cluster)
    cli = Cli(tmp_path)

    (first, *_) = cli.rows("groups", "describe", "-g", "g", *flags)
    assert (first["state"], first["member_id"]) == ("UNKNOWN", "orders/Receiver-0")
    assert cli.rows("groups", "list", "-g", "g", "--state", *flags) == [{"group": "g", "state": "UNKNOWN"}]
    assert cli.rows("groups", "list", "-g", "g", "--state", *flags, WORD) == [{"group": "g", "state": "EMPTY"}]


def test_a_group_with_persistent_registrations_is_finalized_and_mirrored_with_the_word(
    cluster: Cluster, flags: list[str], kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    topic, plan, cli = make_topic(unique), str(tmp_path / "plan.json"), Cli(tmp_path)
    fill(kafka.bootstrap, topic, 1)
    join_cluster(flags[1], kafka.bootstrap)
    cluster.create(f"/consumers/{unique}/ids/{topic}/Receiver-0", GO.replace("orders", topic))
    cluster.create(f"/consumers/{unique}/offsets/{topic}/0", "1")
    sides = ["--from", f"zookeeper://{flags[1]}", "--to", f"kafka://{kafka.bootstrap}", "-g", unique]

    cli("migrate", "plan", *sides, "-o", plan)
    cli("migrate", "apply", plan, "--yes")
    finalize = ["migrate", "finalize", plan, "--yes", "--window", "1"]
    assert f"add {WORD}" in " ".join(cli(*finalize, code=1).stderr.split())
    mirror = ["migrate", "mirror", *sides, "--once", "--yes", "--settle", "200", "--window", "1"]
    mirrored = cli(*mirror, code=1)
    assert f"add {WORD}" in " ".join((mirrored.stdout + mirrored.stderr).split())
    cli(*mirror, WORD)
    cli(*finalize, WORD)


def test_an_edit_of_the_same_program_is_no_commit_of_a_group_with_persistent_registrations(
    cluster: Cluster, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "WATCH_S", 0.1)
    join_spark(cluster)
    with OffsetAdmin(f"zookeeper://{flags[1]}", config=ConnectionConfig(ignore_persistent_members=True)) as admin:
        for offset in (9, 10):
            plan = admin.plan_set("g", {TopicPartition("orders", 0): offset})
            assert (plan.problems, plan.execute(tmp_path / f"{offset}.avro").written) == ({}, 1)
        assert admin.plan_undo(tmp_path / "10.avro").execute(tmp_path / "undo.avro").ok


def test_the_check_sees_that_a_group_with_persistent_registrations_commits(cluster, session) -> None:
    join_spark(cluster)

    assert {finding.code for finding in found(session, recheck_after_s=0.5)} == {
        "member-persistent",
        "owner-persistent",
    }
    with ZookeeperSession(session.connect, ConnectionConfig(timeout_ms=20_000)) as other, committing(cluster):
        assert found(other, recheck_after_s=0.5, fetch_log_ranges=None) == []


def test_the_remedy_that_is_printed_for_persistent_nodes_works(cluster: Cluster, flags: list[str], tmp_path) -> None:
    join_spark(cluster)
    cluster.client.set(f"{cluster.chroot}/consumers/g/ids/orders", b"10.1.2.3")  # Curator's default data of a directory
    cluster.register("flat", "flat_x y", ephemeral=False)
    cli = Cli(tmp_path)

    rows = json.loads(cli("zk", "check", "--all-groups", "--settle", "0", *flags, "--format", "json", code=1).stdout)
    with connected(flags[1]) as shell:
        for row in rows:
            if row["code"] == "member-persistent":
                (*_, command, path) = shlex.split(row["todo"])
                assert command == "delete"
                shell.delete(path)
    cli("offsets", "set", "-g", "g", "--topic", "orders:0", "--to-offset", "9", "--execute", "--yes", *flags)
    rows = json.loads(cli("zk", "check", "--all-groups", "--settle", "0", *flags, "--format", "json", code=1).stdout)
    assert {row["code"] for row in rows} == {"owner-persistent", "owner-not-member"}
