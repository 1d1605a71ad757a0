"""A migration from a ZooKeeper with digest ACLs to a Kafka with SASL: no output or file contains a password."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from kazoo.security import make_digest_acl
from kazoo_client import connected
from processes import Commands, create_topic, wait_for_login

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.sandbox.ports import free_port

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

KAFKA_SECRET = "alice-7-secret"
ZOOKEEPER_SECRET = "sesame-8-secret"
WRONG = "mallory-9-guess"
MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-256": "scram.ScramLoginModule"}


@dataclass
class Secured:
    """A topic with two partitions. The group of the same name has committed 0 in each, in a ZooKeeper that only the
    user boss may read."""

    zookeeper: str
    bootstrap: str
    topic: str

    @property
    def stores(self) -> list[str]:
        return ["--from", f"zookeeper://{self.zookeeper}", "--to", f"kafka://{self.bootstrap}"]


@pytest.fixture(scope="module")
def secured(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("locked")
    chroot = f"{zookeeper.connect}/{directory.name}-{time.time_ns()}"
    plain, sasl = free_port(), free_port()
    listener = "listener.name.sasl_plaintext"
    module = "org.apache.kafka.common.security"
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}",
        "sasl.enabled.mechanisms": ",".join(MODULES),
        f"{listener}.plain.sasl.jaas.config": f'{module}.plain.PlainLoginModule required user_alice="{KAFKA_SECRET}";',
        f"{listener}.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
    }
    with KafkaBroker(directory / "broker", zookeeper=chroot, port=plain, config=config) as broker:
        topic = create_topic(broker.bootstrap, "locked", 2)
        alice = UserScramCredentialUpsertion(
            "alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), KAFKA_SECRET.encode()
        )
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.alter_user_scram_credentials([alice]).values():
            future.result(90)
        for mechanism in MODULES:
            login = {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": KAFKA_SECRET}
            wait_for_login(f"127.0.0.1:{sasl}", {"security.protocol": "sasl_plaintext", **login})
        acl = [make_digest_acl("boss", ZOOKEEPER_SECRET, all=True)]
        with connected(chroot, auth_data=[("digest", f"boss:{ZOOKEEPER_SECRET}")], default_acl=acl) as boss:
            for partition in range(2):
                boss.create(f"/consumers/{topic}/offsets/{topic}/{partition}", b"0", makepath=True)
        yield Secured(chroot, f"127.0.0.1:{sasl}", topic)


def properties(
    directory: Path, mechanism: str = "PLAIN", *, kafka: Any = KAFKA_SECRET, zookeeper: Any = ZOOKEEPER_SECRET
) -> list[str]:
    """``--command-config`` with a properties file in the format of Java's tools."""
    lines = []
    if kafka is not None:
        module = f"org.apache.kafka.common.security.{MODULES[mechanism]}"
        lines += [
            "security.protocol=SASL_PLAINTEXT",
            f"sasl.mechanism={mechanism}",
            f'sasl.jaas.config={module} required username="alice" password="{kafka}";',
        ]
    if zookeeper is not None:
        lines.append(f"zookeeper.auth=digest:boss:{zookeeper}")
    (directory / "client.properties").write_text("\n".join(lines) + "\n")
    return ["--command-config", "client.properties"]


def secrets_in(directory: Path, *texts: str) -> list[str]:
    """Files and texts that contain a password. The file with the credentials is left out."""
    secrets = [KAFKA_SECRET, ZOOKEEPER_SECRET, WRONG]
    files = [file for file in directory.rglob("*") if file.is_file() and file.name != "client.properties"]
    found = [str(file) for file in files if any(secret.encode() in file.read_bytes() for secret in secrets)]
    return found + [text for text in texts if any(secret in text for secret in secrets)]


@pytest.mark.parametrize("mechanism", list(MODULES))
def test_a_migration_with_the_right_credentials_works_and_leaks_no_password(secured, tmp_path, mechanism):
    commands = Commands(tmp_path)
    login = properties(tmp_path, mechanism)
    renamed = f"moved-{mechanism}"
    outputs: list[str] = []

    def run(*arguments: str) -> str:
        with commands.start(*arguments, *login) as process:
            outputs.append(Path(f"/proc/{process.pid}/cmdline").read_text())  # as ps shows it
            out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        outputs.extend((out, err))
        return out

    rename = ["--rename", f"{secured.topic}={renamed}"]
    run("migrate", "plan", *secured.stores, "--group", secured.topic, *rename, "-o", "plan.json", "--debug")
    run("migrate", "apply", "plan.json", "--yes")
    verified = json.loads(run("migrate", "verify", "plan.json", "--format", "json"))
    servers = ("--bootstrap-server", secured.bootstrap)
    lag = json.loads(run("offsets", "lag", "--group", renamed, *servers, "--format", "json"))
    edited = ["--group", renamed, "--topic", f"{secured.topic}:0", "--to-offset", "0", "--metadata", "x"]
    run("offsets", "set", *edited, "--bootstrap-server", secured.bootstrap, "--execute", "--yes")
    assert [row["status"] for row in verified] == ["equal", "equal"]
    assert [(row["partition"], row["offset"], row["lag"]) for row in lag] == [(0, 0, 0), (1, 0, 0)]
    assert {"plan.json", "plan.journal"} <= set(os.listdir(tmp_path))  # noqa: PTH208 - the test compares names
    assert len(list(tmp_path.glob("state/offsetmgr/before-images/*"))) == 1
    assert secrets_in(tmp_path, *outputs) == []


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "wrong-kafka-password": ({"kafka": WRONG}, "the broker rejected the credentials (SASL_AUTHENTICATION_FAILED)"),
    "wrong-scram-password": (
        {"mechanism": "SCRAM-SHA-256", "kafka": WRONG},
        "the broker rejected the credentials (SASL_AUTHENTICATION_FAILED)",
    ),
    "no-kafka-credentials": ({"kafka": None}, "set security.protocol in the client properties (--command-config FILE)"),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_wrong_or_missing_credentials_are_reported_in_one_line(secured: Secured, tmp_path: Path, fault: str) -> None:
    commands = Commands(tmp_path)
    credentials, expected = FAULTS[fault]
    login = properties(tmp_path, **credentials)
    plan = ("migrate", "plan", *secured.stores, "--group", secured.topic, "-o", "plan.json", *login)
    done, took = commands.timed(*plan, "--timeout", "300000", code=1)
    assert took < 60
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] in (["error"], ["error", "hint"]), done.stderr
    assert expected in done.stderr
    assert not (tmp_path / "plan.json").exists()
    debugged = commands.start(*plan, "--debug").communicate(timeout=120)
    assert "Traceback" in debugged[1]
    assert secrets_in(tmp_path, done.stdout, done.stderr, *debugged) == []


@pytest.mark.parametrize("password", [WRONG, None], ids=["wrong", "missing"])
def test_a_group_with_unreadable_nodes_is_reported_with_the_missing_permission(secured, tmp_path, password):
    """Each node has its own ACL, so the other groups of the same ZooKeeper can be migrated."""
    commands = Commands(tmp_path)
    login = properties(tmp_path, zookeeper=password)
    principal = "a session without credentials" if password is None else "digest:boss"
    names = f"its ACL does not allow this (NO_AUTH): {principal} may not read this node"
    planned = commands.run("migrate", "plan", *secured.stores, "--group", secured.topic, "-o", "p.json", *login, code=1)
    got = commands.run("offsets", "get", "--group", secured.topic, "--zookeeper", secured.zookeeper, *login, code=1)
    assert "1 group, 0 partitions" in planned.stderr
    assert names in planned.stderr
    assert got.stdout == ""
    assert names in got.stderr
    hint = "hint: set zookeeper.auth=digest:USER:PASSWORD (or sasl:USER:PASSWORD) in the --command-config file"
    assert hint in got.stderr
    assert secrets_in(tmp_path, planned.stdout, planned.stderr, got.stderr) == []
