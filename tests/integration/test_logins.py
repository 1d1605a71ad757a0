"""Logins at a real broker with stores and settings of Java clients, with both of offsetmgr's Kafka clients."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from processes import Commands, create_topic

from offsetmgr.config.java_config import translate_properties
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.manager.log.kafka.topics import Topics
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.sandbox.ports import free_port

pytestmark = pytest.mark.servers

STORES: Final = Path(__file__).parent.parent / "data" / "key_stores"
SECRETS: Final = ("trust-secret", "store-secret", "entry-secret", "mallory-guess")


@dataclass
class Broker:
    tls: str
    """The address of a listener that requires a certificate."""
    topic: str


@pytest.fixture(scope="module")
def broker(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("logins")
    plain, tls = free_port(), free_port()
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls}",
        "ssl.keystore.location": STORES / "server.p12",
        "ssl.keystore.password": "store-secret",
        "ssl.truststore.location": STORES / "trust.p12",
        "ssl.truststore.password": "trust-secret",
        "ssl.client.auth": "required",
    }
    chroot = f"{zookeeper.connect}/{directory.name}-{time.time_ns()}"
    with KafkaBroker(directory / "broker", zookeeper=chroot, port=plain, config=config) as server:
        yield Broker(f"127.0.0.1:{tls}", create_topic(server.bootstrap, "logins", 2))


def librdkafka_topic(bootstrap: str, java: Mapping[str, str], topic: str) -> int:
    """Asks librdkafka for the number of partitions of ``topic``."""
    found = Topics(bootstrap, translate_properties(java, "client.properties").kafka, 10).find(topic)
    assert found is not None
    return found.partitions


def write(directory: Path, java: Mapping[str, str]) -> list[str]:
    """``--command-config`` with a file with these properties."""
    (directory / "client.properties").write_text("".join(f"{key}={value}\n" for key, value in java.items()))
    return ["--command-config", "client.properties"]


def secrets_in(directory: Path, *texts: str) -> list[str]:
    """Files and texts that contain a secret. The file with the credentials is left out."""
    files = [file for file in directory.rglob("*") if file.is_file() and file.name != "client.properties"]
    contents = {**{str(file): file.read_bytes() for file in files}, **{text: text.encode() for text in texts}}
    return [name for name, content in contents.items() if any(secret.encode() in content for secret in SECRETS)]


def store(which: str, name: str, password: str, **more: str) -> dict[str, str]:
    given = {"location": str(STORES / name), "password": password, **more}
    return {f"ssl.{which}.{key}": value for key, value in given.items()}


JKS: Final = {
    **store("truststore", "trust.jks", "trust-secret", type="JKS"),
    **store("keystore", "client.jks", "store-secret"),
    "ssl.key.password": "entry-secret",
}
PKCS12: Final = {
    **store("truststore", "trust.p12", "trust-secret", type="PKCS12"),
    **store("keystore", "client.p12", "store-secret"),
}


@pytest.mark.parametrize("stores", [JKS, PKCS12], ids=["jks", "pkcs12"])
def test_the_stores_of_a_java_client_work_for_a_whole_group(
    broker: Broker, tmp_path: Path, stores: dict[str, str], unique: str
) -> None:
    commands = Commands(tmp_path)
    login = [*write(tmp_path, {"security.protocol": "SSL", **stores}), "--bootstrap-server", broker.tls]

    edit = ["--group", unique, "--topic", f"{broker.topic}:0", "--to-offset", "0", "--metadata", "x", "--new-group"]
    done = commands.run("offsets", "set", *edit, *login, "--execute", "--yes", "--debug")
    lag = commands.run("offsets", "lag", "--group", unique, *login, "--format", "csv")

    assert f"{broker.topic},0,committed,0,x" in lag.stdout
    assert librdkafka_topic(broker.tls, {"security.protocol": "SSL", **stores}, broker.topic) == 2
    assert secrets_in(tmp_path, done.stdout, done.stderr, lag.stdout, lag.stderr) == []


FAULTS: Final[dict[str, tuple[dict[str, str], int, str]]] = {
    "wrong-password": (
        {**PKCS12, "ssl.truststore.password": "mallory-guess"},
        2,
        "trust.p12 cannot be read: its password is wrong",
    ),
    "wrong-key-password": (
        {**JKS, "ssl.key.password": "mallory-guess"},
        2,
        "the password of its private key is wrong: set ssl.key.password",
    ),
    "no-certificate": (
        {k: v for k, v in JKS.items() if "truststore" in k},
        1,
        "the broker ended the TLS connection (SSLV3_ALERT_BAD_CERTIFICATE)",
    ),
    "other-authority": (
        {**JKS, **store("truststore", "client.jks", "store-secret")},
        1,
        "certificate verification failed",
    ),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_refused_login_is_one_line_without_a_secret(broker: Broker, tmp_path: Path, fault: str) -> None:
    stores, code, why = FAULTS[fault]
    login = [*write(tmp_path, {"security.protocol": "SSL", **stores}), "--bootstrap-server", broker.tls]

    done = Commands(tmp_path).run("groups", "list", *login, "--timeout", "8000", code=code)
    debugged = (
        Commands(tmp_path).start("groups", "list", *login, "--timeout", "8000", "--debug").communicate(timeout=60)
    )

    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] in (["error"], ["error", "hint"]), done.stderr
    assert why in done.stderr, done.stderr
    assert secrets_in(tmp_path, done.stdout, done.stderr, *debugged) == []
    with pytest.raises(OffsetMgrError) as caught:
        librdkafka_topic(broker.tls, {"security.protocol": "SSL", **stores}, broker.topic)
    assert secrets_in(tmp_path, f"{caught.value} {caught.value.hint} {caught.value!r}") == []
