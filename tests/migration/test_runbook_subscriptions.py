"""`runbook check` derives the topics of a member from its subscription as the Java consumers do."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTopic
from everyday import Cli
from kazoo.client import KazooClient
from kazoo_client import connected

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytestmark = pytest.mark.servers


def register(client: KazooClient, path: str, kind: str, subscription: dict[str, int]) -> None:
    node = {"version": 1, "subscription": subscription, "pattern": kind, "timestamp": "1700000000123"}
    client.create(path, json.dumps(node).encode(), ephemeral=True, makepath=True)


def test_runbook_check_covers_every_topic_that_a_java_subscription_selects(
    kafka: KafkaBroker, zookeeper: ZooKeeperServer, make_topic: MakeTopic, tmp_path: Path, unique: str
) -> None:
    stem = unique[-8:].translate(str.maketrans("0123456789", "ghijklmnop"))
    for suffix in ("ac", "ca", "B", "q", "r1", "x", "y", "z"):
        make_topic(f"__{stem}{suffix}")
    subscriptions = [
        ("white_list", {f"__{stem}[a-z&&[^b]]\\p{{Lower}}+": 1}, {"ac", "ca"}),
        ("white_list", {f" __{stem}q , __{stem}\\p{{javaLowerCase}}\\d": 1}, {"q", "r1"}),
        ("white_list", {f"\\Q__{stem}x\\E": 1}, {"x"}),
        ("white_list", {f"__{stem}y": 1, f"__{stem}z": 1}, {"y", "z"}),  # as kafka-node registers topics
        ("static", {f"__{stem}B": 1}, {"B"}),
        ("unknown kind", {f"__{stem}.*": 1}, {".*"}),  # which Java consumers treat as static
    ]
    servers = ["--zookeeper", kafka.zookeeper, "--bootstrap-server", kafka.bootstrap]

    def check(group: str) -> dict[str, Any]:
        arguments = ["runbook", "check", "--group", group, "--phase", "zookeeper", "--window", "0", "--format", "json"]
        found: dict[str, Any] = json.loads(Cli(tmp_path)(*arguments, *servers, code=1).stdout)
        return found

    with connected(kafka.zookeeper) as client:
        for number, (kind, subscription, suffixes) in enumerate(subscriptions):
            group = f"{unique}-{number}"
            register(client, f"/consumers/{group}/ids/m", kind, subscription)
            topics = {found["topic"] for found in check(group)["partitions"]}
            assert topics == {f"__{stem}{suffix}" for suffix in suffixes if suffix != ".*"}, subscription
        register(client, f"/consumers/{unique}/ids/wrong", "white_list", {"*a": 1})
        problems = check(unique)["problems"]  # an invalid pattern fails every gate
    node = f"/consumers/{unique}/ids/wrong (topic pattern '*a': is not a regular expression of Java"
    assert any(node in problem for problem in problems), problems
