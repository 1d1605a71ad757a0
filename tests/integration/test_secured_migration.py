"""A migration between a ZooKeeper with digest ACLs and a Kafka with SASL: credentials open it, and appear nowhere."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from processes import Commands, create_topic, wait_for_login

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.sandbox.ports import free_port

pytestmark = pytest.mark.servers

KAFKA_SECRET = "alice-7-secret"
ZOOKEEPER_SECRET = "sesame-8-secret"
WRONG = "mallory-9-guess"
MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-256": "scram.ScramLoginModule"}


@dataclass
class Secured:
    """``topic`` has two partitions; the group of the same name has committed 0 in each, in a ZooKeeper that only
    boss may read."""

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
        for answered in admin.alter_user_scram_credentials([alice]).values():
            answered.result(20)
        for mechanism in MODULES:
            login = {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": KAFKA_SECRET}
            wait_for_login(f"127.0.0.1:{sasl}", {"security.protocol": "sasl_plaintext", **login})
        boss = KazooClient(
            chroot,
            auth_data=[("digest", f"boss:{ZOOKEEPER_SECRET}")],
            default_acl=[make_digest_acl("boss", ZOOKEEPER_SECRET, all=True)],
        )
        boss.start(20)
        for partition in range(2):
            boss.create(f"/consumers/{topic}/offsets/{topic}/{partition}", b"0", makepath=True)
        boss.stop()
        boss.close()
        yield Secured(chroot, f"127.0.0.1:{sasl}", topic)


def properties(
    directory: Path,
    mechanism: str = "PLAIN",
    *,
    kafka: str | None = KAFKA_SECRET,
    zookeeper: str | None = ZOOKEEPER_SECRET,
) -> list[str]:
    """``--command-config`` with a file as Java's tools take it."""
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
    """Where a password turns up, beside the file that holds the credentials."""
    secrets = [KAFKA_SECRET, ZOOKEEPER_SECRET, WRONG]
    files = [file for file in directory.rglob("*") if file.is_file() and file.name != "client.properties"]
    found = [str(file) for file in files if any(secret.encode() in file.read_bytes() for secret in secrets)]
    return found + [text for text in texts if any(secret in text for secret in secrets)]


@pytest.mark.parametrize("mechanism", list(MODULES))
def test_with_the_right_credentials_everything_works_and_they_appear_nowhere(
    secured: Secured, tmp_path: Path, mechanism: str
) -> None:
    commands = Commands(tmp_path)
    login = properties(tmp_path, mechanism)
    renamed = f"moved-{mechanism}"
    said: list[str] = []

    def run(*arguments: str) -> str:
        with commands.start(*arguments, *login) as process:
            said.append(Path(f"/proc/{process.pid}/cmdline").read_text())  # what ps shows
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        said.extend((out, err))
        return out

    rename = ["--rename", f"{secured.topic}={renamed}"]
    run("migrate", "plan", *secured.stores, "--group", secured.topic, *rename, "-o", "plan.json", "--debug")
    run("migrate", "apply", "plan.json", "--yes")
    verified = json.loads(run("migrate", "verify", "plan.json", "--format", "json"))
    lag = json.loads(
        run("offsets", "lag", "--group", renamed, "--bootstrap-server", secured.bootstrap, "--format", "json")
    )
    edited = ["--group", renamed, "--topic", f"{secured.topic}:0", "--to-offset", "0", "--metadata", "x"]
    run("offsets", "set", *edited, "--bootstrap-server", secured.bootstrap, "--execute", "--yes")

    assert [row["status"] for row in verified] == ["equal", "equal"]
    assert [(row["partition"], row["offset"], row["lag"]) for row in lag] == [(0, 0, 0), (1, 0, 0)]
    assert {"plan.json", "plan.journal"} <= set(os.listdir(tmp_path))  # noqa: PTH208 - names are what is compared
    assert len(list(tmp_path.glob("state/offsetmgr/before-images/*"))) == 1
    assert secrets_in(tmp_path, *said) == []


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "wrong-kafka-password": (
        {"kafka": WRONG},
        "the broker rejected the credentials (SASL_AUTHENTICATION_FAILED)",
    ),
    "wrong-scram-password": (
        {"mechanism": "SCRAM-SHA-256", "kafka": WRONG},
        "the broker rejected the credentials (SASL_AUTHENTICATION_FAILED)",
    ),
    "no-kafka-credentials": ({"kafka": None}, "set security.protocol in the client properties (--command-config FILE)"),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_wrong_or_missing_credentials_are_named_in_one_line(secured: Secured, tmp_path: Path, fault: str) -> None:
    commands = Commands(tmp_path)
    given, says = FAULTS[fault]
    login = properties(tmp_path, **given)

    done, took = commands.timed(
        "migrate", "plan", *secured.stores, "--group", secured.topic, "-o", "plan.json", "--timeout", "5000", *login,
        code=1,
    )  # fmt: skip

    assert took < 5 + 3
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] in (["error"], ["error", "hint"]), done.stderr
    assert says in done.stderr
    assert not (tmp_path / "plan.json").exists()
    debugged = commands.start(
        "migrate", "plan", *secured.stores, "--group", secured.topic, "-o", "plan.json", "--timeout", "5000", "--debug",
        *login,
    ).communicate(timeout=60)  # fmt: skip
    assert "Traceback" in debugged[1]
    assert secrets_in(tmp_path, done.stdout, done.stderr, *debugged) == []


@pytest.mark.parametrize("given", [WRONG, None], ids=["wrong", "missing"])
def test_a_group_whose_nodes_may_not_be_read_is_named_with_what_is_missing(
    secured: Secured, tmp_path: Path, given: str | None
) -> None:
    """Digest ACLs are a node's own matter: the other groups of such a ZooKeeper can be moved."""
    commands = Commands(tmp_path)
    login = properties(tmp_path, zookeeper=given)
    who = "a session without credentials" if given is None else "digest:boss"
    names = f"its ACL does not allow this (NO_AUTH): {who} may not read this node"

    planned = commands.run("migrate", "plan", *secured.stores, "--group", secured.topic, "-o", "p.json", *login, code=1)
    got = commands.run("offsets", "get", "--group", secured.topic, "--zookeeper", secured.zookeeper, *login, code=1)

    assert "1 group, 0 partitions:" in planned.stderr
    assert names in planned.stderr
    assert got.stdout == ""
    assert names in got.stderr
    assert (
        "hint: set zookeeper.auth=digest:USER:PASSWORD (or sasl:USER:PASSWORD) in the --command-config file"
        in got.stderr
    )
    assert secrets_in(tmp_path, planned.stdout, planned.stderr, got.stderr) == []
