"""``zk elect|reassign|delete-topic``, executed by the controller of three real brokers with ZooKeeper (3.9.1).

Each test creates its own topics. Automatic election of preferred leaders is off, so a test knows the leaders.
"""

import contextlib
import json
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from processes import Commands, create_topic, fill, wait_for

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, java_tool
from offsetmgr.zookeeper.client.session import ZookeeperSession

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

BROKERS = 3
MOVES = "/admin/reassign_partitions"
CONFIG = ConnectionConfig(timeout_ms=20_000)
SETTINGS = {
    "auto.leader.rebalance.enable": "false",
    # A frozen broker counts as alive during a test, on a busy machine too.
    "zookeeper.session.timeout.ms": 30_000,
    "offsets.topic.num.partitions": 1,
}


@dataclass
class Trio:
    """Three brokers of one cluster, and ``keeper``: the only broker of a second cluster, which deletes no topics."""

    brokers: list[KafkaBroker]
    keeper: KafkaBroker

    @property
    def zookeeper(self) -> str:
        return self.brokers[0].zookeeper

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers if broker.running())


@pytest.fixture(scope="module")
def servers(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    directory = tmp_path_factory.mktemp("requests")
    chroot = f"{zookeeper.connect}/{directory.name}-{time.time_ns()}"
    brokers = [KafkaBroker(directory / str(n), zookeeper=chroot, broker_id=n, config=SETTINGS) for n in range(BROKERS)]
    no_deletion = {"delete.topic.enable": "false"}
    keeper = KafkaBroker(directory / "keeper", zookeeper=f"{chroot}-keeper", config=no_deletion)
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor() as pool:
            for broker in (*brokers, keeper):
                stack.callback(broker.kill)
            list(pool.map(KafkaBroker.start, (*brokers, keeper)))
        yield Trio(brokers, keeper)


@pytest.fixture
def trio(servers: Trio) -> Trio:
    """Starts the brokers that an earlier test stopped, and waits until all are registered."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(KafkaBroker.start, servers.brokers))
    with ZookeeperSession(servers.zookeeper, CONFIG) as session:
        wait_for(lambda: len(session.children("/brokers/ids") or ()) == BROKERS, "all brokers are registered")
    return servers


@pytest.fixture
def session(trio: Trio) -> Iterator[ZookeeperSession]:
    with ZookeeperSession(trio.zookeeper, CONFIG) as session:
        yield session


class Assigned(NamedTuple):
    """One partition. ``replicas`` begins with the preferred leader."""

    replicas: list[int]
    leader: int
    isr: list[int]
    moving: bool


def content(session: ZookeeperSession, path: str) -> dict[str, Any]:
    node = session.get(path)
    assert node is not None, path
    found: dict[str, Any] = json.loads(node.data)
    return found


def assigned(session: ZookeeperSession, topic: str) -> dict[int, Assigned]:
    """The partitions of a topic, as its nodes say."""
    node = content(session, f"/brokers/topics/{topic}")
    states = {n: content(session, f"/brokers/topics/{topic}/partitions/{n}/state") for n in node["partitions"]}
    changing = {**node.get("adding_replicas", {}), **node.get("removing_replicas", {})}
    return {
        int(n): Assigned(replicas, states[n]["leader"], states[n]["isr"], bool(changing.get(n)))
        for n, replicas in sorted(node["partitions"].items())
    }


def controller_of(session: ZookeeperSession) -> int:
    return int(content(session, "/controller")["brokerid"])


def last_operation(commands: Commands) -> dict[str, Any]:
    """The newest operation in the log."""
    (newest,) = json.loads(commands.run("edits", "list", "--last", "1", "--format", "json").stdout)
    (shown,) = json.loads(commands.run("edits", "show", newest["id"], "--format", "json").stdout)
    assert isinstance(shown, dict)
    return shown


def write(path: Path, topic: str, replicas: dict[int, list[int]]) -> Path:
    listed = [{"topic": topic, "partition": n, "replicas": to} for n, to in replicas.items()]
    path.write_text(json.dumps({"version": 1, "partitions": listed}))
    return path


def rows(commands: Commands, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(commands.run("zk", *arguments, "--format", "json", code=code).stdout)
    return found


def test_partitions_move_to_other_brokers_with_their_data_and_back_by_the_before_image(trio, session, unique, tmp_path):
    topic, commands = create_topic(trio.bootstrap, unique, 2, replicas=2), Commands(tmp_path)
    fill(trio.bootstrap, topic, 100, 100)
    before = {n: partition.replicas for n, partition in assigned(session, topic).items()}
    after = {n: [broker for broker in range(BROKERS) if broker != replicas[0]] for n, replicas in before.items()}
    moves, image = write(tmp_path / "moves.json", topic, after), tmp_path / "before.json"
    options = ("reassign", "--zookeeper", trio.zookeeper, "--reassignment-json-file", str(moves))
    dry = commands.run("zk", *options)
    assert "dry run: would change the replicas of 2 partitions; nothing was changed" in dry.stderr
    assert {n: p.replicas for n, p in assigned(session, topic).items()} == before
    moved = commands.run("zk", *options, "--before-image", str(image), "--execute", "--yes", "--reason", "ticket 7")
    logged = last_operation(commands)
    assert (logged["operation"], logged["outcome"], logged["written"]) == ("zk reassign", "done", 2)
    assert logged["reason"] == "ticket 7" and f"--reassignment-json-file {image} " in logged["undo"]
    after_move = assigned(session, topic)
    assert {n: p.replicas for n, p in after_move.items()} == after
    assert {n: set(p.isr) for n, p in after_move.items()} == {n: set(replicas) for n, replicas in after.items()}
    assert "2 of 2 done" in moved.stderr
    assert f"undo: offsetmgr zk reassign --reassignment-json-file {image} --zookeeper" in moved.stderr
    back = ("reassign", "--zookeeper", trio.zookeeper, "--reassignment-json-file", str(image))
    outcomes = rows(commands, *back, "--execute", "--yes")
    assert {(row["partition"], row["outcome"]) for row in outcomes} == {(0, "done"), (1, "done")}
    assert {n: p.replicas for n, p in assigned(session, topic).items()} == before
    assert session.get(MOVES) is None
    verified = java_tool(
        "kafka-3.9",
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        ["--bootstrap-server", trio.bootstrap, "--reassignment-json-file", str(image), "--verify"],
    )
    assert verified.stdout.count("is completed") == 2, verified.stdout + verified.stderr
    again = commands.run("zk", *back, "--execute", "--yes")
    assert "nothing to change" in again.stderr


def test_a_stuck_reassignment_is_cancelled_by_the_command_in_the_hint(trio, session, unique, tmp_path) -> None:
    topic, commands = create_topic(trio.bootstrap, unique, 1, replicas=1), Commands(tmp_path)
    before, leading = assigned(session, topic)[0].replicas, controller_of(session)
    target = next(b for b in trio.brokers if b.broker_id not in (*before, leading))
    controller = trio.brokers[leading].bootstrap
    moves, image = write(tmp_path / "moves.json", topic, {0: [target.broker_id]}), tmp_path / "before image.json"
    options = ("zk", "reassign", "--zookeeper", trio.zookeeper, "--bootstrap-server", controller, "--execute", "--yes")
    target.freeze()  # it counts as alive for a while, but never comes into sync
    try:
        moving = commands.run(
            *options, *("--reassignment-json-file", str(moves), "--before-image", str(image), "--wait", "0.5"), code=1
        )
        undo = commands.run(*options, "--reassignment-json-file", str(image), code=1)
        wait_for(lambda: assigned(session, topic)[0].moving, "the controller has started the reassignment")
        (hint,) = (line for line in moving.stderr.splitlines() if line.startswith("hint: if it does not finish"))
        command, *arguments = shlex.split(hint.partition("cancel it: ")[2])
        verified = java_tool("kafka-3.9", "org.apache.kafka.tools.reassign.ReassignPartitionsCommand", arguments)
        wait_for(lambda: session.get(MOVES) is None, "the controller has cancelled the reassignment")
        back = assigned(session, topic)[0]
    finally:
        target.thaw()
    assert command == "kafka-reassign-partitions.sh"
    assert "another is running" in undo.stderr
    assert "or cancel it: kafka-reassign-partitions.sh" in undo.stderr
    assert "Successfully cancelled partition reassignment" in verified.stdout, verified.stdout + verified.stderr
    assert (back.replicas, back.moving) == (before, False)


def test_a_reassignment_is_followed_across_a_controller_failover(trio, session, unique, tmp_path) -> None:
    first = controller_of(session)
    others = [broker for broker in trio.brokers if broker.broker_id != first]
    topic, commands = create_topic(trio.bootstrap, unique, 1, replicas=1), Commands(tmp_path)
    home = write(tmp_path / "home.json", topic, {0: [others[0].broker_id]})
    moves = write(tmp_path / "moves.json", topic, {0: [others[1].broker_id]})
    options = ("zk", "reassign", "--zookeeper", trio.zookeeper, "--execute", "--yes", "--reassignment-json-file")
    commands.run(*options, str(home))
    others[1].freeze()
    try:
        moving = commands.start(*options, str(moves))
        wait_for(lambda: session.get(MOVES) is not None, "the request is written")
        wait_for(lambda: assigned(session, topic)[0].moving, "the controller has started the reassignment")
        trio.brokers[first].stop()
    finally:
        others[1].thaw()
    out, err = moving.communicate(timeout=120)
    assert moving.returncode == 0, f"{out}\n{err}"
    assert "1 of 1 done" in err
    assert assigned(session, topic)[0].replicas == [others[1].broker_id]
    assert controller_of(session) != first


def test_preferred_leaders_lead_again_after_a_broker_restart(trio, session, unique, tmp_path) -> None:
    topic, commands = create_topic(trio.bootstrap, unique, 3, replicas=2), Commands(tmp_path)
    preferred = {n: partition.replicas[0] for n, partition in assigned(session, topic).items()}
    victim = trio.brokers[2]
    away = next(n for n, broker in preferred.items() if broker == victim.broker_id)
    victim.stop()
    refused = rows(commands, "elect", "--zookeeper", trio.zookeeper, "--topic", topic, code=1)
    assert [(row["partition"], row["note"]) for row in refused if row["note"] != "is the leader already"] == [
        (away, f"refused: its preferred leader, broker {victim.broker_id}, is not alive")
    ]
    victim.start()
    wait_for(lambda: victim.broker_id in assigned(session, topic)[away].isr, "the broker is in sync again")
    assert assigned(session, topic)[away].leader != victim.broker_id
    outcomes = rows(commands, "elect", "--zookeeper", trio.zookeeper, "--topic", topic, "--execute", "--yes")
    assert last_operation(commands)["operation"] == "zk elect"
    assert {row["partition"]: row["outcome"] for row in outcomes} == {
        n: "done" if n == away else "unchanged" for n in preferred
    }
    assert {n: partition.leader for n, partition in assigned(session, topic).items()} == preferred
    assert session.get("/admin/preferred_replica_election") is None


def test_a_deletion_of_a_topic_with_a_dead_broker_ends_when_the_broker_returns(trio, session, unique, tmp_path) -> None:
    commands = Commands(tmp_path)
    plain, waiting = (create_topic(trio.bootstrap, f"{unique}-{n}", 2, replicas=3) for n in range(2))
    servers = ("--zookeeper", trio.zookeeper, "--bootstrap-server", trio.bootstrap)
    (dry,) = rows(commands, "delete-topic", *servers, "--topic", plain)
    assert dry == {"topic": plain, "partitions": 2, "replicas": 6, "note": None}
    assert session.get(f"/brokers/topics/{plain}") is not None
    (gone,) = rows(commands, "delete-topic", *servers, "--topic", plain, "--execute", "--yes")
    assert (gone["outcome"], session.get(f"/brokers/topics/{plain}")) == ("done", None)
    trio.brokers[1].stop()
    servers = ("--zookeeper", trio.zookeeper, "--bootstrap-server", trio.bootstrap)
    still = commands.run(
        "zk", "delete-topic", *servers, "--topic", waiting, "--execute", "--yes", "--wait", "1", code=1
    )
    assert f"open: {waiting}: waits for broker 1, not alive, which holds replicas" in still.stderr
    assert "1 of 1 still open after 1 s; the controller continues" in still.stderr
    trio.brokers[1].start()
    wait_for(lambda: session.get(f"/brokers/topics/{waiting}") is None, "the topic is deleted when the broker is back")
    refused = commands.run("zk", "delete-topic", *servers, "--topic", plain, "--execute", "--yes", code=1)
    assert f"error: topic {plain}: there is no /brokers/topics/{plain}" in refused.stderr


def test_disabled_topic_deletion_is_reported_before_or_after_the_request(trio: Trio, unique: str, tmp_path) -> None:
    commands, keeper = Commands(tmp_path), trio.keeper
    topic = create_topic(keeper.bootstrap, unique, 1)
    options = ("zk", "delete-topic", "--zookeeper", keeper.zookeeper, "--topic", topic, "--execute", "--yes")
    before = commands.run(*options, "--bootstrap-server", keeper.bootstrap, code=1)
    after = commands.run(*options, code=1)
    assert "delete.topic.enable is false on the controller, broker 0" in before.stderr
    assert "not checked: delete.topic.enable of the controller (no --bootstrap-server)" in after.stderr
    assert f"failed: {topic}: the controller has removed the request" in after.stderr
    with ZookeeperSession(keeper.zookeeper, CONFIG) as session:
        assert assigned(session, topic)[0].replicas == [0]
