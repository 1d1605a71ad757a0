"""SASL logins to brokers before 1.0, which expect tokens without headers, and to 1.1, which expects requests."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from client_properties import command_config
from librdkafka_consumer import librdkafka_consumer
from processes import Commands, wait_for, wait_for_login
from release_environment import has_leaders

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, create_topic, java_tool
from offsetmgr.sandbox.broker import BROKER_JARS, BROKER_JVM
from offsetmgr.sandbox.java import java_program
from offsetmgr.sandbox.ports import free_port
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

SECRET = "alice-7-secret"
WRONG = "mallory-9-guess"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256")
LISTENERS = ("SASL_PLAINTEXT", "SASL_SSL")
REJECTS = {
    "0.10.2.2": "the broker closed the connection during the login",
    "1.1.1": "the broker rejected the credentials (SASL_AUTHENTICATION_FAILED)",
}


@dataclass
class Secured:
    """A broker with a topic of two partitions, named after the release; ``certificate`` is a PEM file."""

    release: str
    zookeeper: str
    plain: str
    logins: dict[str, str]
    """The addresses of the listeners that require a login, by security protocol."""
    certificate: Path

    @property
    def topic(self) -> str:
        return f"secured-{self.release}"

    def settings(self, protocol: str, mechanism: str, password: str = SECRET) -> dict[str, str]:
        login = {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": password}
        trust = {"ssl.ca.location": str(self.certificate)} if protocol == "SASL_SSL" else {}
        return {"security.protocol": protocol.lower(), **login, **trust}

    def properties(self, directory: Path, protocol: str, mechanism: str, password: str = SECRET) -> list[str]:
        return command_config(directory, self.settings(protocol, mechanism, password))


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A key store for 127.0.0.1 (password ``changeit``), and its certificate as a PEM file."""
    keytool = str(Path(java_program()).with_name("keytool"))
    store, certificate = directory / "keys.p12", directory / "certificate.pem"
    common = ["-keystore", str(store), "-storepass", "changeit", "-storetype", "PKCS12", "-alias", "broker"]
    names = ["-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1", "-keyalg", "RSA", "-keypass", "changeit"]
    for command in (["-genkeypair", *common, *names], ["-exportcert", "-rfc", *common, "-file", str(certificate)]):
        subprocess.run([keytool, *command], check=True, capture_output=True, timeout=120)
    return store, certificate


@pytest.fixture(scope="module", params=list(REJECTS))
def secured(request: pytest.FixtureRequest, zookeeper: ZooKeeperServer, tmp_path_factory) -> Iterator[Secured]:
    release = request.param
    directory = tmp_path_factory.mktemp(f"secured-{release}")
    where = f"{zookeeper.connect}/{directory.name}"
    plain = free_port()
    logins = {protocol: f"127.0.0.1:{free_port()}" for protocol in LISTENERS}
    keys, certificate = make_certificate(directory)
    module = "org.apache.kafka.common.security"
    jaas = directory / "jaas.conf"
    jaas.write_text(
        "KafkaServer {\n"
        f'  {module}.plain.PlainLoginModule required user_alice="{SECRET}";\n'
        f"  {module}.scram.ScramLoginModule required;\n"
        "};\n"
    )
    listeners = [f"PLAINTEXT://127.0.0.1:{plain}", *(f"{protocol}://{at}" for protocol, at in logins.items())]
    config = {
        "listeners": ",".join(listeners),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.location": keys,
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": "changeit",
        "ssl.key.password": "changeit",
    }
    jvm = (*BROKER_JVM, f"-Djava.security.auth.login.config={jaas}")
    with KafkaBroker(directory, zookeeper=where, port=plain, config=config, jvm=jvm, version=release) as broker:
        found = Secured(release, where, broker.bootstrap, logins, certificate)
        create_topic(found.topic, 2, zookeeper=where, bootstrap=found.plain, version=release)
        password = ["--alter", "--add-config", f"SCRAM-SHA-256=[password={SECRET}]"]
        user = ["--zookeeper", where, "--entity-type", "users", "--entity-name", "alice"]
        done = java_tool(BROKER_JARS[release], "kafka.admin.ConfigCommand", [*user, *password])
        assert done.returncode == 0, done.stderr
        wait_for(lambda: has_leaders(found.plain, found.topic, 2), "the topic has leaders")
        wait_for_login(logins["SASL_PLAINTEXT"], found.settings("SASL_PLAINTEXT", "SCRAM-SHA-256"))
        yield found


@pytest.mark.parametrize("protocol", LISTENERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_migration_goes_there_and_back_over_a_login(secured, tmp_path, unique, protocol: str, mechanism: str) -> None:
    commands = Commands(tmp_path)
    login = secured.properties(tmp_path, protocol, mechanism)
    kafka, zookeeper = f"kafka://{secured.logins[protocol]}", f"zookeeper://{secured.zookeeper}"
    with ZookeeperStore(secured.zookeeper) as store:
        store.commit(unique, {TopicPartition(secured.topic, number): OffsetAndMetadata(0) for number in (0, 1)})

    planned = ["migrate", "plan", "--from", zookeeper, "--to", kafka, "--group", unique, "-o", "p.json"]
    commands.run(*planned, *login)
    commands.run("migrate", "apply", "p.json", "--yes", *login)
    assert "verified: 2 partitions" in commands.run("migrate", "verify", "p.json", *login).stderr
    listed = commands.run("groups", "list", "--bootstrap-server", secured.logins[protocol], *login)
    assert unique in listed.stdout
    commands.run("migrate", "rollback", "p.json", "--yes", *login)
    describe = ["cluster", "describe", "--bootstrap-server", secured.logins[protocol], "--format", "json"]
    capabilities = {row["capability"]: row["on"] for row in json.loads(commands.run(*describe, *login).stdout)}
    assert capabilities["accepts SASL logins"] is True


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_named_at_once(secured: Secured, tmp_path: Path, mechanism: str) -> None:
    login = secured.properties(tmp_path, "SASL_PLAINTEXT", mechanism, WRONG)
    address = secured.logins["SASL_PLAINTEXT"]
    options = ("--bootstrap-server", address, *login, "--timeout", "300000")
    done, took = Commands(tmp_path).timed("groups", "list", *options, code=1)
    assert REJECTS[secured.release] in done.stderr
    assert "hint: check the user name and password" in done.stderr
    assert WRONG not in done.stderr
    assert took < 60


def test_a_mechanism_that_the_broker_does_not_offer_is_named(secured: Secured, tmp_path: Path) -> None:
    login = secured.properties(tmp_path, "SASL_PLAINTEXT", "SCRAM-SHA-512")
    address = secured.logins["SASL_PLAINTEXT"]
    done = Commands(tmp_path).run("groups", "list", "--bootstrap-server", address, *login, code=1)
    assert "the broker does not offer SCRAM-SHA-512" in done.stderr
    assert "hint: it offers PLAIN, SCRAM-SHA-256" in done.stderr


def test_a_login_at_a_port_that_takes_none_is_named(secured: Secured, tmp_path: Path) -> None:
    login = secured.properties(tmp_path, "SASL_PLAINTEXT", "PLAIN")
    done = Commands(tmp_path).run("groups", "list", "--bootstrap-server", secured.plain, *login, code=1)
    assert "hint: this port accepts no SASL logins" in done.stderr


@pytest.mark.parametrize("protocol", LISTENERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in_to_the_same_listeners(secured: Secured, protocol: str, mechanism: str) -> None:
    with librdkafka_consumer(secured.logins[protocol], secured.settings(protocol, mechanism)) as consumer:
        assert consumer.partition_count(secured.topic) == 2
