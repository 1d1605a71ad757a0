"""The range and round-robin assignors assign like Kafka 0.10.2's classes, on random groups in a real ZooKeeper.

The groups have several topics, unequal subscriptions, many streams (so that thread ids 10 and 2 are compared) and
patterns. In Java every member computes the assignment itself; the results of all queried members must equal ours.
"""

import json
import logging
import os
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

import pytest
from java_program import run_java

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.model import TopicPartition
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create
from offsetmgr.zookeeper.groups.assignors import ASSIGNORS
from offsetmgr.zookeeper.groups.subscription import topics_of

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
LOG = logging.getLogger(__name__)

SEED = int(os.environ.get("OFFSETMGR_SEED", "20261122"))
SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
CLUSTERS, GROUPS = (10, 100) if SOAK else (2, 50)
MEMBERS_QUERIED = {"range": 2 if SOAK else 1, "roundrobin": 1}
"""The number of queried members of a group, by strategy."""
WORDS = ["orders", "bills", "Aa", "t", "x.y", "clicks-eu", "clicks-us", "a_b", "logs", "logs.dead"]
PATTERNS = [".*", "orders,bills", "clicks-.*", ".*\\.dead", "(?!logs).*", "[a-m&&[^c]].*", "nothing", "(?i)AA|t"]


@dataclass
class Cluster:
    """A random tree of topics and groups under its own chroot."""

    chroot: str
    partitions: dict[str, list[int]]
    groups: dict[str, dict[str, tuple[str, dict[str, int]]]] = field(default_factory=dict)
    """For each group and member, the kind of its subscription and the subscription."""

    def streams(self, group: str) -> dict[str, dict[str, int]]:
        return {
            member: topics_of(subscription, kind, self.partitions)
            for member, (kind, subscription) in self.groups[group].items()
        }


def random_cluster(rng: Random, chroot: str) -> Cluster:
    topics = rng.sample(WORDS, rng.randint(1, len(WORDS)))
    partitions = {topic: list(range(rng.choice([1, 2, 3, 7, 8, 12, 50, 101]))) for topic in topics}
    partitions["__consumer_offsets"] = list(range(5))
    cluster = Cluster(chroot, partitions)
    for number in range(GROUPS):
        hosts = [f"host{rng.randint(1, 20)}-{rng.randint(10**12, 2 * 10**12)}-{i:08x}" for i in range(10)]
        equal = random_subscription(rng, topics) if rng.random() < 0.4 else None
        cluster.groups[f"g{number}"] = {
            f"g{number}_{host}": equal or random_subscription(rng, topics)
            for host in rng.sample(hosts, rng.randint(1, 7))
        }
    return cluster


def random_subscription(rng: Random, topics: list[str]) -> tuple[str, dict[str, int]]:
    streams = [1, 1, 1, 2, 3, 12]
    if rng.random() < 0.3:
        return rng.choice(["white_list", "black_list"]), {rng.choice(PATTERNS): rng.choice(streams)}
    named = rng.sample([*topics, "missing"], rng.randint(1, min(4, len(topics) + 1)))
    return "static", {topic: rng.choice(streams) for topic in named}


def write_tree(session: ZookeeperSession, cluster: Cluster) -> None:
    """Writes the tree in the format of brokers and members of 0.10.2."""
    directories = [cluster.chroot, *(f"{cluster.chroot}/{one}" for one in ("brokers", "brokers/topics", "consumers"))]
    nodes = [Create(path, b"") for path in directories]
    for topic, numbers in cluster.partitions.items():
        replicas = {"version": 1, "partitions": {str(number): [0] for number in numbers}}
        nodes.append(Create(f"{cluster.chroot}/brokers/topics/{topic}", json.dumps(replicas).encode()))
    for group, members in cluster.groups.items():
        directory = f"{cluster.chroot}/consumers/{group}"
        nodes += [Create(directory, b""), Create(f"{directory}/ids", b"")]
        for member, (kind, subscription) in members.items():
            registration = {"version": 1, "subscription": subscription, "pattern": kind, "timestamp": "1411294187842"}
            nodes.append(Create(f"{directory}/ids/{member}", json.dumps(registration).encode()))
    for start in range(0, len(nodes), 200):
        assert session.transaction(nodes[start : start + 200]).error is None


def test_range_and_round_robin_assign_as_kafkas_own_classes_do(zookeeper: ZooKeeperServer, unique: str) -> None:
    LOG.info("seed %d", SEED)
    rng = Random(SEED)
    clusters = [random_cluster(rng, f"/{unique[-8:]}-{uuid.uuid4().hex[:6]}-{n}") for n in range(CLUSTERS)]
    queries = [
        (cluster, strategy, group, member)
        for cluster in clusters
        for group in cluster.groups
        for strategy, limit in MEMBERS_QUERIED.items()
        for member in rng.sample(sorted(cluster.groups[group]), min(limit, len(cluster.groups[group])))
    ]
    with ZookeeperSession(zookeeper.connect, ConnectionConfig()) as session:
        for cluster in clusters:
            write_tree(session, cluster)
    requests = "".join(f"{c.chroot}\t{strategy}\t{group}\t{member}\n" for c, strategy, group, member in queries)
    answers: defaultdict[int, dict[TopicPartition, str]] = defaultdict(dict)
    for line in run_java("Assignments", [zookeeper.connect], stdin=requests, timeout=800):
        query, topic, partition, thread = line.split("\t")
        answers[int(query)][TopicPartition(topic, int(partition))] = thread

    compared = 0
    for number, (cluster, strategy, group, member) in enumerate(queries):
        streams = cluster.streams(group)
        assigned = ASSIGNORS[strategy](streams, cluster.partitions)
        if strategy == "range":  # there a member computes only its own topics
            assigned = {one: thread for one, thread in assigned.items() if one.topic in streams[member]}
        assert answers[number] == {one: str(thread) for one, thread in assigned.items()}, (
            cluster.chroot,
            strategy,
            group,
        )
        compared += len(assigned)
    LOG.info("%d groups, %d answers, %d partitions", CLUSTERS * GROUPS, len(queries), compared)
    assert compared > 100 * len(clusters)


def test_java_orders_partitions_with_equal_hashes_as_the_registration_does(zookeeper, unique) -> None:
    """``Aa`` and ``BB`` have the same hash, and so have their partitions. Kafka's order then depends on the order of
    the topics in a registration; ours is alphabetical."""
    cluster = Cluster(f"/{unique[-8:]}-{uuid.uuid4().hex[:6]}", {"Aa": [0], "BB": [0]})
    for group, first, second in (("forth", "Aa", "BB"), ("back", "BB", "Aa")):
        cluster.groups[group] = {f"{group}_{m}": ("static", {first: 1, second: 1}) for m in "mn"}
    with ZookeeperSession(zookeeper.connect, ConnectionConfig()) as session:
        write_tree(session, cluster)
    requests = "".join(f"{cluster.chroot}\troundrobin\t{group}\t{group}_m\n" for group in cluster.groups)
    answers = [line.split("\t") for line in run_java("Assignments", [zookeeper.connect], stdin=requests)]
    owner = {(number, topic): thread[-3] for number, topic, _, thread in answers}
    assert {owner["0", "Aa"], owner["0", "BB"]} == {"m", "n"} == {owner["1", "Aa"], owner["1", "BB"]}
    assert owner["0", "Aa"] != owner["1", "Aa"]
