"""``offsetmgr doctor`` on real servers, and on servers that do not respond."""

import shlex
import subprocess
import time
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import NewTopic
from documented_commands import TOOLS
from in_process import rows
from kazoo.security import make_acl, make_digest_acl
from kazoo_client import connected
from secured_broker import Secured

from offsetmgr.core.clock import SystemClock
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer, jars
from offsetmgr.sandbox.java import java_command

pytestmark = pytest.mark.servers

DEAD = "127.0.0.1:1"


def doctor(*options: str, code: int = 0) -> list[dict[str, Any]]:
    return list(rows("doctor", *options, code=code))


def results(shown: list[dict[str, Any]], check: str) -> list[str]:
    return [row["result"] for row in shown if row["check"] == check]


def test_every_endpoint_is_checked(zookeeper, kafka, make_topic, unique) -> None:
    topic = make_topic(unique)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": unique})
    consumer.commit(offsets=[Position(topic, 0, 0)], asynchronous=False)
    consumer.close()
    servers = ("--bootstrap-server", kafka.bootstrap, "--zookeeper", f"{zookeeper.connect}/kafka")
    with connected(zookeeper.connect) as client:
        before = client.get("/kafka")[1].pzxid
        shown = doctor(*servers, "-g", unique)
        assert client.get("/kafka")[1].pzxid == before
    for check in ("zookeeper", "chroot", "broker", "login", "release", "controller", "retention of offsets"):
        assert results(shown, check) == ["ok"], check
    assert "failed" not in {row["result"] for row in shown}
    (groups,) = (row for row in shown if row["check"] == "permissions on groups")
    assert groups["detail"] == f"{unique}: Describe, Read, Delete"
    assert results(shown, "phase") == ["ok"]
    (zookeeper_clock,) = (row for row in shown if row["check"] == "clock" and row["endpoint"] == zookeeper.connect)
    assert zookeeper_clock["result"] == "ok"
    assert "+/- " in zookeeper_clock["detail"]


def test_a_wrong_clock_of_this_machine_is_found(kraft: KraftBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: time.time_ns() // 1_000_000 + 10 * 86_400_000)
    shown = doctor("--bootstrap-server", kraft.bootstrap, code=1)
    (clock,) = (row for row in shown if row["check"] == "clock" and row["endpoint"].startswith("controller"))
    assert clock["result"] == "failed"
    assert clock["detail"].startswith("10 d behind this machine, +/- ")
    assert "NTP" in clock["fix"]


def test_servers_that_do_not_respond_are_rows_with_a_remedy(kafka: KafkaBroker) -> None:
    options = ("--bootstrap-server", f"{DEAD},{kafka.bootstrap}", "--zookeeper", f"{DEAD}/kafka", "--timeout", "3000")
    shown = doctor(*options, code=1)
    failed = {(row["check"], row["endpoint"]) for row in shown if row["result"] == "failed"}
    assert failed == {("zookeeper", DEAD), ("chroot", f"{DEAD}/kafka"), ("broker", DEAD)}
    assert all(row["fix"] for row in shown if row["result"] == "failed")
    assert results(shown, "release") == ["ok"]


def test_a_missing_chroot_is_found(zookeeper: ZooKeeperServer) -> None:
    shown = doctor("--zookeeper", f"{zookeeper.connect}/no-such-chroot", code=1)
    (chroot,) = (row for row in shown if row["check"] == "chroot")
    assert chroot["result"] == "failed"
    assert "does not exist" in chroot["detail"]


def test_a_zookeeper_acl_that_forbids_writes_is_found(zookeeper: ZooKeeperServer, unique: str) -> None:
    with connected(zookeeper.connect) as client:
        acl = [make_digest_acl("app", "secret", all=True), make_acl("world", "anyone", read=True)]
        client.ensure_path(f"/{unique}/brokers/ids")
        client.create(f"/{unique}/consumers", acl=acl)
    shown = doctor("--zookeeper", f"{zookeeper.connect}/{unique}", code=1)
    (found,) = (row for row in shown if row["check"] == "permissions in ZooKeeper")
    assert found["result"] == "failed"
    assert found["detail"] == "not allowed to write, create, delete: /consumers"


@pytest.mark.parametrize(
    ("password", "admin", "result"),
    [("secret", True, "ok"), ("other", True, "failed"), ("secret", False, "not known"), ("other", False, "not known")],
)
def test_a_digest_acl_is_compared_with_the_password(zookeeper, unique, tmp_path, password, admin, result: str) -> None:
    """Without the permission admin, the server shows only the user of an entry."""
    with connected(zookeeper.connect) as client:
        own = make_digest_acl("app", "secret", read=True, write=True, create=True, delete=True, admin=admin)
        client.ensure_path(f"/{unique}/brokers/ids")
        client.create(f"/{unique}/consumers", acl=[own, make_acl("world", "anyone", read=True)])
    login = tmp_path / "client.properties"
    login.write_text(f"zookeeper.auth=digest:app:{password}\n")
    options = ("--zookeeper", f"{zookeeper.connect}/{unique}", "--command-config", str(login))
    shown = doctor(*options, code=int(result == "failed"))
    assert results(shown, "permissions in ZooKeeper") == [result]


def test_an_unreachable_cluster_of_many_is_a_row(kraft: KraftBroker, tmp_path, monkeypatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'[context.prod-1]\nbootstrap-server = "{kraft.bootstrap}"\n'
        f'[context.prod-2]\nbootstrap-server = "{DEAD}"\ntimeout = 2000\n'
    )
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(config))
    shown = doctor("--context", "prod-*", code=1)
    assert {row["cluster"] for row in shown} == {"prod-1", "prod-2"}
    assert {row["cluster"] for row in shown if row["result"] == "failed"} == {"prod-2"}


def test_permissions_and_the_login_on_a_broker_with_an_authorizer(secured: Secured, unique: str, tmp_path) -> None:
    """The remedies are commands for Kafka's own tool; after these commands nothing is missing."""
    for created in secured.admin.create_topics([NewTopic(unique, 1, 1)]).values():
        created.result(90)
    consumer = Consumer({"bootstrap.servers": secured.open, "group.id": unique})
    consumer.commit(offsets=[Position(unique, 0, 0)], asynchronous=False)
    consumer.close()
    login = tmp_path / "client.properties"

    def checks(password: str = "secret", code: int = 0) -> dict[str, dict[str, Any]]:
        properties = secured.properties | {"sasl.password": password}
        login.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        options = ("--bootstrap-server", secured.bootstrap, "--command-config", str(login), "-g", unique)
        return {row["check"]: row for row in doctor(*options, code=code)}

    def follow(fix: str) -> None:
        arguments = fix.replace("User:NAME", "User:offsetmgr").replace(secured.bootstrap, secured.open)
        tool, *rest = shlex.split(arguments.partition("#")[0])  # a shell ignores the remark
        subprocess.run(java_command([jars.resolve("kafka-3.9")], TOOLS[tool], rest), check=True, timeout=120)

    assert checks("wrong", code=1)["login"]["result"] == "failed"
    shown = checks()
    assert shown["login"]["result"] == "ok"
    assert shown["login"]["detail"].startswith("SASL_PLAINTEXT PLAIN as offsetmgr")
    # The command checks a group only with Describe on the offsets topic, and a topic only with Describe on the topic.
    for missing in (("the cluster", "__consumer_offsets"), (f"group {unique}",), (f"topic {unique}",)):
        shown = checks()
        if missing == (f"topic {unique}",):
            assert shown["permissions on topics"]["result"] == "not known"
            follow(
                f"kafka-acls --bootstrap-server {secured.open} --add --allow-principal User:NAME"
                f" --operation Describe --topic {unique}"
            )
            shown = checks()
        for resource in missing:
            assert shown[f"permissions on {resource}"]["result"] == "warning"
            follow(shown[f"permissions on {resource}"]["fix"])
    shown = checks()
    for resource in ("the cluster", "__consumer_offsets", "groups", "topics"):
        assert shown[f"permissions on {resource}"]["result"] == "ok"
