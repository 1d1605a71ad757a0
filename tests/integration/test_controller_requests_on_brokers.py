"""``zk elect|reassign|delete-topic``, executed by the controller of three real brokers with ZooKeeper (3.9.1).

Each test creates its own topics. Automatic election of preferred leaders is off, so a test knows the leaders.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from processes import Commands, create_topic, wait_for

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import Conflict
from offsetmgr.core.model import TopicPartition
from offsetmgr.groups.operation_log import OperationLog
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, java_tool
from offsetmgr.zookeeper.admin.admin_reader import read_state
from offsetmgr.zookeeper.admin.state import AssignedPartition
from offsetmgr.zookeeper.admin.submit import submit
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, Delete, OperationState
from offsetmgr.zookeeper.nodes import paths

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

BROKERS = 3
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
    with ZookeeperSession(servers.zookeeper, ConnectionConfig(timeout_ms=20_000)) as session:
        wait_for(lambda: len(read_state(session, []).brokers) == BROKERS, "all brokers are registered")
    return servers


@pytest.fixture
def session(trio: Trio) -> Iterator[ZookeeperSession]:
    with ZookeeperSession(trio.zookeeper, ConnectionConfig(timeout_ms=20_000)) as session:
        yield session


def assigned(session: ZookeeperSession, topic: str) -> dict[int, AssignedPartition]:
    return dict(read_state(session, [topic]).topic(topic).partitions)


def as_assigned(session: ZookeeperSession, topic: str) -> dict[str, Any]:
    """The topic's replicas in the JSON format of a reassignment."""
    listed = [
        {"topic": topic, "partition": n, "replicas": list(p.replicas)} for n, p in assigned(session, topic).items()
    ]
    return {"version": 1, "partitions": listed}


def write(path: Path, topic: str, replicas: dict[int, list[int]]) -> Path:
    listed = [{"topic": topic, "partition": n, "replicas": to} for n, to in replicas.items()]
    path.write_text(json.dumps({"version": 1, "partitions": listed}))
    return path


def rows(commands: Commands, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(commands.run("zk", *arguments, "--format", "json", code=code).stdout)
    return found


def test_partitions_move_to_other_brokers_with_their_data_and_back_by_the_before_image(
    trio: Trio, session: ZookeeperSession, unique: str, tmp_path: Path
) -> None:
    topic, commands = create_topic(trio.bootstrap, unique, 2, replicas=2), Commands(tmp_path)
    producer = Producer({"bootstrap.servers": trio.bootstrap})
    for number in range(200):
        producer.produce(topic, b"x" * 100, partition=number % 2)
    assert producer.flush(30) == 0
    before = {n: partition.replicas for n, partition in assigned(session, topic).items()}
    after = {n: [broker for broker in range(BROKERS) if broker != replicas[0]] for n, replicas in before.items()}
    moves, image = write(tmp_path / "moves.json", topic, after), tmp_path / "before.json"
    options = ("reassign", "--zookeeper", trio.zookeeper, "--reassignment-json-file", str(moves))

    dry = commands.run("zk", *options)
    assert "dry run: would change the replicas of 2 partitions; nothing was changed" in dry.stderr
    assert {n: p.replicas for n, p in assigned(session, topic).items()} == before

    moved = commands.run("zk", *options, "--before-image", str(image), "--execute", "--yes", "--reason", "ticket 7")
    logged = OperationLog(tmp_path / "state" / "offsetmgr" / "operations.jsonl").operations()[-1]
    assert (logged.start.name, logged.outcome, logged.written) == ("zk reassign", "done", 2)
    assert logged.start.reason == "ticket 7" and f"--reassignment-json-file {image} " in logged.start.undo[0]
    after_move = assigned(session, topic)
    assert {n: list(p.replicas) for n, p in after_move.items()} == after
    assert {n: set(p.isr) for n, p in after_move.items()} == {n: set(replicas) for n, replicas in after.items()}
    assert "2 of 2 done" in moved.stderr
    assert f"undo: offsetmgr zk reassign --reassignment-json-file {image} --zookeeper" in moved.stderr

    back = ("reassign", "--zookeeper", trio.zookeeper, "--reassignment-json-file", str(image))
    outcomes = rows(commands, *back, "--execute", "--yes")
    assert {(row["partition"], row["outcome"]) for row in outcomes} == {(0, "done"), (1, "done")}
    assert {n: p.replicas for n, p in assigned(session, topic).items()} == before
    assert session.get(paths.REASSIGN_PARTITIONS) is None
    verified = java_tool(
        "kafka-3.9",
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        ["--bootstrap-server", trio.bootstrap, "--reassignment-json-file", str(image), "--verify"],
    )
    assert verified.stdout.count("is completed") == 2, verified.stdout + verified.stderr
    again = commands.run("zk", *back, "--execute", "--yes")
    assert "nothing to change" in again.stderr


def test_a_reassignment_with_one_invalid_part_changes_nothing(
    trio: Trio, session: ZookeeperSession, unique: str, tmp_path: Path
) -> None:
    topic, commands = create_topic(trio.bootstrap, unique, 2, replicas=2), Commands(tmp_path)
    before = as_assigned(session, topic)
    first = before["partitions"][0]["replicas"]
    moves = write(tmp_path / "moves.json", topic, {0: first[::-1], 1: [1, 7], 9: [1, 2]})
    own = session.get(paths.broker(0))
    assert own is not None
    left_over = session.transaction([Create(paths.broker(7), own.data)])  # persistent: brokers create ephemeral nodes
    assert left_over.state is OperationState.COMMITTED

    outcomes = rows(
        commands,
        *("reassign", "--zookeeper", trio.zookeeper, "--reassignment-json-file", str(moves)),
        *("--execute", "--yes"),
        code=1,
    )
    assert session.transaction([Delete(paths.broker(7), 0)]).state is OperationState.COMMITTED

    assert [(row["partition"], row["outcome"], row["note"]) for row in outcomes] == [
        (0, "not done", "another part is refused"),
        (1, "refused", "broker 7 is not alive (alive: 0,1,2)"),
        (9, "refused", f"topic {topic} has no partition 9"),
    ]
    assert as_assigned(session, topic) == before
    assert session.get(paths.REASSIGN_PARTITIONS) is None


def test_a_request_is_refused_while_another_runs_or_if_the_state_changed_since_the_check(
    trio: Trio, session: ZookeeperSession, unique: str, tmp_path: Path
) -> None:
    topic, commands = create_topic(trio.bootstrap, unique, 1, replicas=1), Commands(tmp_path)
    checked = read_state(session, [topic])
    (holder,) = checked.topic(topic).partitions[0].replicas
    target = trio.brokers[(holder + 1) % BROKERS]
    if target.broker_id == checked.controller:
        target = trio.brokers[(holder + 2) % BROKERS]
    moves = write(tmp_path / "moves.json", topic, {0: [target.broker_id]})
    options = ("zk", "reassign", "--zookeeper", trio.zookeeper, "--reassignment-json-file", str(moves), "--execute")

    target.freeze()  # its session is still valid, so it counts as alive, but it fetches nothing
    try:
        first = commands.run(*options, "--yes", "--wait", "0.5", code=1)
        second = commands.run(*options, "--yes", code=1)
        with pytest.raises(Conflict, match="reassign_partitions exists already"):
            submit(session, "reassignment", [Create(paths.REASSIGN_PARTITIONS, b"{}")], checked, [])
    finally:
        target.thaw()

    assert f"open: {topic}-0: broker {target.broker_id} is not" in first.stderr
    assert "1 of 1 still open after 0.5 s; the controller continues" in first.stderr
    assert "another is running: /admin/reassign_partitions holds 1 partition" in second.stderr
    wait_for(lambda: session.get(paths.REASSIGN_PARTITIONS) is None, "the reassignment ends when the broker is back")
    assert assigned(session, topic)[0].replicas == (target.broker_id,)
    with pytest.raises(Conflict, match=rf"/brokers/topics/{topic} changed meanwhile; nothing was written"):
        submit(session, "reassignment", [Create(paths.REASSIGN_PARTITIONS, b"{}")], checked, [topic])
    assert session.get(paths.REASSIGN_PARTITIONS) is None


def test_a_stuck_reassignment_is_cancelled_by_the_command_in_the_hint(
    trio: Trio, session: ZookeeperSession, unique: str, tmp_path: Path
) -> None:
    topic, commands = create_topic(trio.bootstrap, unique, 1, replicas=1), Commands(tmp_path)
    state = read_state(session, [topic])
    before = state.topic(topic).partitions[0].replicas
    target = next(b for b in trio.brokers if b.broker_id not in (*before, state.controller))
    controller = trio.brokers[state.controller or 0].bootstrap
    moves, image = write(tmp_path / "moves.json", topic, {0: [target.broker_id]}), tmp_path / "before image.json"
    options = ("zk", "reassign", "--zookeeper", trio.zookeeper, "--bootstrap-server", controller, "--execute", "--yes")

    target.freeze()  # it counts as alive for a while, but never comes into sync
    try:
        moving = commands.run(
            *options,
            *("--reassignment-json-file", str(moves), "--before-image", str(image), "--wait", "0.5"),
            code=1,
        )
        undo = commands.run(*options, "--reassignment-json-file", str(image), code=1)
        wait_for(lambda: assigned(session, topic)[0].moving, "the controller has started the reassignment")
        (hint,) = (line for line in moving.stderr.splitlines() if line.startswith("hint: if it does not finish"))
        command, *arguments = shlex.split(hint.partition("cancel it: ")[2])
        verified = java_tool("kafka-3.9", "org.apache.kafka.tools.reassign.ReassignPartitionsCommand", arguments)
        wait_for(
            lambda: session.get(paths.REASSIGN_PARTITIONS) is None, "the controller has cancelled the reassignment"
        )
        back = assigned(session, topic)[0]
    finally:
        target.thaw()

    assert command == "kafka-reassign-partitions.sh"
    assert "another is running" in undo.stderr
    assert "or cancel it: kafka-reassign-partitions.sh" in undo.stderr
    assert "Successfully cancelled partition reassignment" in verified.stdout, verified.stdout + verified.stderr
    assert (back.replicas, back.moving) == (before, False)


def test_a_reassignment_is_followed_across_a_controller_failover(
    trio: Trio, session: ZookeeperSession, unique: str, tmp_path: Path
) -> None:
    first = read_state(session, []).controller
    others = [broker for broker in trio.brokers if broker.broker_id != first]
    topic, commands = create_topic(trio.bootstrap, unique, 1, replicas=1), Commands(tmp_path)
    home = write(tmp_path / "home.json", topic, {0: [others[0].broker_id]})
    moves = write(tmp_path / "moves.json", topic, {0: [others[1].broker_id]})
    options = ("zk", "reassign", "--zookeeper", trio.zookeeper, "--execute", "--yes", "--reassignment-json-file")
    commands.run(*options, str(home))

    others[1].freeze()
    try:
        moving = commands.start(*options, str(moves))
        wait_for(lambda: session.get(paths.REASSIGN_PARTITIONS) is not None, "the request is written")
        wait_for(lambda: assigned(session, topic)[0].moving, "the controller has started the reassignment")
        trio.brokers[first or 0].stop()
    finally:
        others[1].thaw()
    out, err = moving.communicate(timeout=120)

    assert moving.returncode == 0, f"{out}\n{err}"
    assert "1 of 1 done" in err
    assert assigned(session, topic)[0].replicas == (others[1].broker_id,)
    assert read_state(session, []).controller != first


def test_preferred_leaders_lead_again_after_a_broker_restart(
    trio: Trio, session: ZookeeperSession, unique: str, tmp_path: Path
) -> None:
    topic, commands = create_topic(trio.bootstrap, unique, 3, replicas=2), Commands(tmp_path)
    preferred = {n: partition.preferred for n, partition in assigned(session, topic).items()}
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
    assert OperationLog(tmp_path / "state" / "offsetmgr" / "operations.jsonl").operations()[-1].start.name == "zk elect"

    assert {row["partition"]: row["outcome"] for row in outcomes} == {
        n: "done" if n == away else "unchanged" for n in preferred
    }
    assert {n: partition.leader for n, partition in assigned(session, topic).items()} == preferred
    assert session.get(paths.PREFERRED_REPLICA_ELECTION) is None


def test_a_deletion_of_a_topic_with_a_dead_broker_ends_when_the_broker_returns(
    trio: Trio, session: ZookeeperSession, unique: str, tmp_path: Path
) -> None:
    commands = Commands(tmp_path)
    plain, waiting = (create_topic(trio.bootstrap, f"{unique}-{n}", 2, replicas=3) for n in range(2))
    servers = ("--zookeeper", trio.zookeeper, "--bootstrap-server", trio.bootstrap)

    (dry,) = rows(commands, "delete-topic", *servers, "--topic", plain)
    assert dry == {"topic": plain, "partitions": 2, "replicas": 6, "note": None}
    assert session.get(paths.topic(plain)) is not None
    (gone,) = rows(commands, "delete-topic", *servers, "--topic", plain, "--execute", "--yes")
    assert (gone["outcome"], session.get(paths.topic(plain))) == ("done", None)

    trio.brokers[1].stop()
    servers = ("--zookeeper", trio.zookeeper, "--bootstrap-server", trio.bootstrap)
    still = commands.run(
        "zk", "delete-topic", *servers, "--topic", waiting, "--execute", "--yes", "--wait", "1", code=1
    )
    assert f"open: {waiting}: waits for broker 1, not alive, which holds replicas" in still.stderr
    assert "1 of 1 still open after 1 s; the controller continues" in still.stderr
    trio.brokers[1].start()
    wait_for(lambda: session.get(paths.topic(waiting)) is None, "the topic is deleted when the broker is back")

    refused = commands.run("zk", "delete-topic", *servers, "--topic", plain, "--execute", "--yes", code=1)
    assert f"error: topic {plain}: there is no /brokers/topics/{plain}" in refused.stderr


def test_disabled_topic_deletion_is_reported_before_or_after_the_request(
    trio: Trio, unique: str, tmp_path: Path
) -> None:
    commands, keeper = Commands(tmp_path), trio.keeper
    topic = create_topic(keeper.bootstrap, unique, 1)
    options = ("zk", "delete-topic", "--zookeeper", keeper.zookeeper, "--topic", topic, "--execute", "--yes")

    before = commands.run(*options, "--bootstrap-server", keeper.bootstrap, code=1)
    after = commands.run(*options, code=1)

    assert "delete.topic.enable is false on the controller, broker 0" in before.stderr
    assert "not checked: delete.topic.enable of the controller (no --bootstrap-server)" in after.stderr
    assert f"failed: {topic}: the controller has removed the request" in after.stderr
    with ZookeeperSession(keeper.zookeeper, ConnectionConfig(timeout_ms=20_000)) as session:
        assert read_state(session, [topic]).partition(TopicPartition(topic, 0)).replicas == (0,)


def test_an_unreadable_topic_is_refused_and_leaders_of_the_others_are_elected(
    zookeeper: ZooKeeperServer, unique: str, tmp_path: Path
) -> None:
    """The test writes the nodes that brokers would write, so no controller processes the request."""
    commands = Commands(tmp_path)
    address = f"{zookeeper.connect}/{unique}"
    state = b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[0,1]}'
    directories = ("", "/admin", "/brokers", "/brokers/ids", "/brokers/topics")
    of_good = ("/brokers/topics/good/partitions", "/brokers/topics/good/partitions/0")
    broker = b'{"version":1,"host":"h","port":9092,"timestamp":"1"}'
    with ZookeeperSession(zookeeper.connect, ConnectionConfig(timeout_ms=20_000)) as session:
        planted = session.transaction(
            [
                *(Create(f"/{unique}{path}") for path in directories),
                Create(f"/{unique}/controller", b'{"version":1,"brokerid":1,"timestamp":"1"}', ephemeral=True),
                *(Create(f"/{unique}/brokers/ids/{n}", broker, ephemeral=True) for n in (0, 1)),
                Create(f"/{unique}/brokers/topics/bad", b'{"version":99,"partitions":{"0":[0]}}'),
                Create(f"/{unique}/brokers/topics/good", b'{"version":1,"partitions":{"0":[0,1]}}'),
                *(Create(f"/{unique}{path}") for path in of_good),
                Create(f"/{unique}/brokers/topics/good/partitions/0/state", state),
            ]
        )
        assert planted.state is OperationState.COMMITTED
        options = ("elect", "--zookeeper", address)

        alone = commands.run("zk", *options, "--topic", "bad", code=1)
        both = rows(commands, *options, "--topic", "bad", "--topic", "go*", "--topic", "good:0", code=1)
        done = commands.run("zk", *options, "--all-topics", "--execute", "--yes", "--wait", "0", code=1)
        request = session.get(f"/{unique}/admin/preferred_replica_election")

    assert "error: ZooKeeper node /brokers/topics/bad: is of version 99" in alone.stderr
    assert [(row["topic"], row["partition"], row["leader"], row["preferred"]) for row in both] == [
        ("bad", None, None, None),
        ("good", 0, 1, 0),
    ]
    assert both[0]["note"].startswith("refused: is of version 99")
    assert request is not None
    assert json.loads(request.data) == {"version": 1, "partitions": [{"topic": "good", "partition": 0}]}
    assert "error: ZooKeeper node /brokers/topics/bad: is of version 99" in done.stderr


def test_requests_are_refused_if_the_cluster_has_no_controller(
    zookeeper: ZooKeeperServer, unique: str, tmp_path: Path
) -> None:
    """ZooKeeper of a cluster whose brokers are all gone: the topic exists, the controller does not."""
    commands = Commands(tmp_path)
    address = f"{zookeeper.connect}/{unique}"
    with ZookeeperSession(zookeeper.connect, ConnectionConfig(timeout_ms=20_000)) as session:
        session.transaction(
            [
                *(Create(f"/{unique}{path}") for path in ("", "/brokers", "/brokers/topics", "/admin")),
                Create(f"/{unique}/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0]}}'),
            ]
        )

    elect = commands.run("zk", "elect", "--zookeeper", address, "--all-topics", "--execute", "--yes", code=1)
    delete = commands.run("zk", "delete-topic", "--zookeeper", address, "--topic", "orders", code=1)
    both = commands.run("zk", "elect", "--zookeeper", address, "--all-topics", "--topic", "a", code=2)

    for done in (elect, delete):
        assert "/controller does not exist, so no controller would process the request" in done.stderr
    assert "both --topic and --all-topics are given" in both.stderr
