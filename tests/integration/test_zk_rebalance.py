"""``zk rebalance`` alongside real old consumers: its prediction is the group's next assignment."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from conftest import MakeTopic
from kazoo.client import KazooClient
from kazoo_client import connected

from offsetmgr.cli.app import run
from offsetmgr.core.model import TopicPartition
from offsetmgr.sandbox import KafkaBroker, OldConsumer, ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.ownership import owners

pytestmark = pytest.mark.servers

STRATEGIES = ["range", "roundrobin"] if os.environ.get("OFFSETMGR_SOAK") else ["roundrobin"]
"""tests/chaos/test_shared_group.py also covers range, among real members that change."""

Owned = dict[TopicPartition, str]


@pytest.fixture
def session(kafka: KafkaBroker) -> Iterator[ZookeeperSession]:
    with ZookeeperSession(kafka.zookeeper) as session:
        yield session


@pytest.fixture
def client(kafka: KafkaBroker) -> Iterator[KazooClient]:
    """A ZooKeeper client that registers members as consumers do."""
    with connected(kafka.zookeeper) as client:
        yield client


class Group:
    """A group's present and predicted owners."""

    def __init__(self, name: str, session: ZookeeperSession, capsys: pytest.CaptureFixture[str]) -> None:
        self.name = name
        self._session = session
        self._capsys = capsys

    def owned(self) -> Owned:
        found = owners(self._session, self.name)
        return {tp: f"{one.member_id}-{one.thread}" for tp, one in found.items()}

    def rebalance(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of the command."""
        code = run(["zk", "rebalance", self.name, "--zookeeper", self._session.connect, *arguments])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def predicted(self, *arguments: str, strategy: str | None = None) -> Owned:
        """The predicted owners. With ``strategy``, waits until the present owners show it, because consumers may
        rebalance once more and own nothing for a moment."""
        for _ in until("the owners show the strategy"):
            code, out, stderr = self.rebalance("--simulate", "--partitions", "--format", "json", *arguments)
            assert code == 0
            if strategy is None or f"strategy {strategy} (inferred from the owners)" in stderr:
                break
        rows = [row for row in json.loads(out) if row["after"] is not None]
        return {TopicPartition(row["topic"], row["partition"]): row["after"] for row in rows}

    def saved(self, strategy: str, directory: Path) -> str:
        """A file that ``--save`` wrote while the owners showed the strategy."""
        for attempt in until("the owners of the saved group show the strategy"):
            path = str(directory / f"saved-{attempt}.json")
            assert self.rebalance("--save", path)[0] == 0
            if (
                f"strategy {strategy} (inferred from the owners)"
                in self.rebalance("--simulate", "--from-file", path)[2]
            ):
                return path
        raise AssertionError("the attempts end with an error")

    def wait_until_owned_as(self, expected: Owned) -> None:
        for _ in until(f"the owners are {expected}"):
            if self.owned() == expected:
                return


def until(what: str) -> Iterator[int]:
    """Attempts, counted from 0, for 120 seconds."""
    deadline = time.monotonic() + 120
    for attempt in itertools.count():
        yield attempt
        assert time.monotonic() < deadline, f"{what}: not within 120 s"
        time.sleep(0.1)  # between attempts


@pytest.fixture
def group(session: ZookeeperSession, unique: str, capsys: pytest.CaptureFixture[str]) -> Group:
    return Group(unique, session, capsys)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_prediction_is_the_next_assignment_of_the_real_group(
    strategy: str, group: Group, kafka: KafkaBroker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    orders, bills = make_topic(f"{group.name}-orders", 8), make_topic(f"{group.name}-bills", 5)

    def member(name: str, streams: int) -> OldConsumer:
        return OldConsumer(
            tmp_path / name,
            zookeeper=kafka.zookeeper,
            group=group.name,
            topic=f"white_list:{group.name}-.*",
            consumer_id=name,
            streams=streams,
            extra={"partition.assignment.strategy": strategy},
        )

    first, second, third = member("a", 2), member("b", 1), member("aa", 11)
    try:
        with ThreadPoolExecutor() as several:
            list(several.map(OldConsumer.start, [first, second]))
        assert_owned_as_assigned(group, strategy, 13)

        joined = group.predicted("--join", f"{group.name}_aa:11", strategy=strategy)
        saved = group.saved(strategy, tmp_path)
        assert group.predicted("--from-file", saved, "--join", f"{group.name}_aa:11", strategy=strategy) == joined
        third.start()
        group.wait_until_owned_as(joined)

        grown = group.predicted("--grow", f"{orders}=11", strategy=strategy)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_partitions([NewPartitions(orders, 11)])[orders].result(90)
        group.wait_until_owned_as(grown)
        assert len(grown) == 16

        left = group.predicted("--leave", "a", strategy=strategy)
        first.stop()
        group.wait_until_owned_as(left)
        assert {tp.topic for tp in left} == {orders, bills}
        assert_owned_as_assigned(group, strategy, 16)
    finally:
        for one in (first, second, third):
            one.kill()


def assert_owned_as_assigned(group: Group, strategy: str, partitions: int) -> None:
    """Checks that all partitions are owned as assigned, and that the owners show the strategy."""
    code, _, stderr = group.rebalance("--settle", "40")
    assert (code, stderr) == (
        0,
        f"strategy {strategy} (inferred from the owners); {partitions} partitions: {partitions} owned as assigned\n",
    )


def plant(client: KazooClient, path: str, data: bytes) -> None:
    client.create(path, data, ephemeral=True, makepath=True)


def test_partitions_with_another_owner_than_assigned_are_reported(
    group: Group, client: KazooClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(group.name, 4)
    registration = json.dumps(
        {"version": 1, "subscription": {topic: 1}, "pattern": "static", "timestamp": "1"}
    ).encode()
    for member in ("a", "b"):
        plant(client, f"/consumers/{group.name}/ids/{group.name}_{member}", registration)
    for partition, owner in ((0, "a-0"), (1, "b-0"), (2, "b-0")):
        plant(client, f"/consumers/{group.name}/owners/{topic}/{partition}", f"{group.name}_{owner}".encode())

    code, out, stderr = group.rebalance("--partitions", "--settle", "0", "--format", "json")

    a, b = f"{group.name}_a-0", f"{group.name}_b-0"
    assert code == 1
    assert json.loads(out) == [
        {"topic": topic, "partition": 0, "owned": a, "due": a, "state": "right"},
        {"topic": topic, "partition": 1, "owned": b, "due": a, "state": "wrong"},
        {"topic": topic, "partition": 2, "owned": b, "due": b, "state": "right"},
        {"topic": topic, "partition": 3, "owned": None, "due": b, "state": "missing"},
    ]
    assert stderr == (
        "strategy range (the default; it cannot be inferred from the owners); 4 partitions: 2 owned as assigned, "
        "1 owned by another member than assigned, 1 without an owner: no member consumes them\n"
    )


def test_a_first_member_can_be_simulated_with_any_topic(
    group: Group, client: KazooClient, make_topic: MakeTopic
) -> None:
    """The group existed before and has no consumers now."""
    topic = make_topic(group.name, 2)
    client.ensure_path(f"/consumers/{group.name}/ids")
    joins = f"{group.name}_first:2"
    assert group.predicted("--join", joins, "--topic", topic) == {
        TopicPartition(topic, 0): f"{group.name}_first-0",
        TopicPartition(topic, 1): f"{group.name}_first-1",
    }
    code, out, err = group.rebalance("--watch", "0.1", "--count", "2")
    assert (code, err) == (
        0,
        "strategy range (the default; it cannot be inferred from the owners); 0 partitions: nothing to assign\n"
        "no live members\n" * 2,
    )
    assert [line[-1] for line in out.splitlines()] == ["Z", "Z"]  # only the times


def test_a_rebalance_that_ends_in_time_is_no_error(group: Group, client: KazooClient, make_topic: MakeTopic) -> None:
    topic = make_topic(group.name, 1)
    plant(
        client,
        f"/consumers/{group.name}/ids/{group.name}_a",
        json.dumps({"version": 1, "subscription": {topic: 1}}).encode(),
    )

    with ThreadPoolExecutor() as several:
        running: Callable[[], tuple[int, str, str]] = several.submit(group.rebalance, "--settle", "60").result
        plant(client, f"/consumers/{group.name}/owners/{topic}/0", f"{group.name}_a-0".encode())
        assert running()[0] == 0


def test_an_unreadable_member_is_reported_and_can_be_left_out_of_a_simulation(
    group: Group, client: KazooClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(group.name, 2)
    directory = f"/consumers/{group.name}/ids/{group.name}"
    plant(client, f"{directory}_a", json.dumps({"version": 1, "subscription": {topic: 1}}).encode())
    plant(client, f"{directory}_b", b"{broken")

    code, out, stderr = group.rebalance()
    assert (code, out) == (1, "")
    assert stderr == (
        f"error: member {group.name}_b: its registration cannot be read, so no member of its group can rebalance\n"
        f"hint: restart that member; to preview the group without it: --simulate --leave {group.name}_b\n"
    )
    assert set(group.predicted("--leave", "b").values()) == {f"{group.name}_a-0"}


def test_an_unsupported_topic_pattern_is_reported(group: Group, client: KazooClient, make_topic: MakeTopic) -> None:
    make_topic(group.name, 1)
    registration = {"version": 1, "subscription": {"[^a[b]]+": 1}, "pattern": "white_list"}
    plant(client, f"/consumers/{group.name}/ids/{group.name}_a", json.dumps(registration).encode())

    code, _, stderr = group.rebalance("--simulate")
    assert code == 1
    assert stderr.startswith("error: topic pattern '[^a[b]]+': uses a negated class that contains another class")


def test_a_group_that_does_not_exist_is_reported(group: Group) -> None:
    code, _, stderr = group.rebalance()
    assert code == 1
    assert stderr.startswith(f"error: group '{group.name}': does not exist in ZooKeeper at ")


def test_a_cluster_of_kafka_0_7_is_assigned_in_its_own_order(
    zookeeper: ZooKeeperServer, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The nodes follow the documentation of 0.7: broker -> partition count, owners of ``<broker>-<partition>``."""
    with connected(zookeeper.connect) as client:
        root = f"/{unique}"
        for broker in (2, 10):
            plant(client, f"{root}/brokers/ids/{broker}", f"host-{broker}:creator:9092".encode())
            plant(client, f"{root}/brokers/topics/t/{broker}", b"2")
        for member in ("a", "b"):
            plant(client, f"{root}/consumers/g/ids/g_{member}", b'{ "t": 1 }')
        for name, owner in (("10-0", "a"), ("10-1", "a"), ("2-0", "b"), ("2-1", "b")):
            plant(client, f"{root}/consumers/g/owners/t/{name}", f"g_{owner}-0".encode())
        arguments = ["zk", "rebalance", "g", "--zookeeper", zookeeper.connect + root]

        assert run([*arguments, "--settle", "0"]) == 0
        assert (
            "strategy clustered (inferred from the owners); 4 partitions: 4 owned as assigned"
            in capsys.readouterr().err
        )

        assert run([*arguments, "--simulate", "--lose-broker", "10", "--format", "csv"]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == [
            'g_a,,2,1,0,1,2,"t:10-0,10-1",t:2-0',
            'g_b,,2,1,1,0,1,"t:2-0,2-1",t:2-1',
        ]
