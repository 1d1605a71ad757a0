"""The fixtures of brokers with a login (SASL PLAIN) and an authorizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from secured_broker import Secured

from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer
from offsetmgr.sandbox.ports import free_port

PROPERTIES = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "offsetmgr",
    "sasl.password": "secret",
}


def settings(plain: int, login: str) -> dict[str, str]:
    """The settings of a broker with an open listener at the port ``plain``, and one with a login at ``login``."""
    users = " ".join(f'user_{name}="secret"' for name in ("offsetmgr", "alice", "mallory"))
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://{login}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {users};",
        "super.users": "User:ANONYMOUS",
    }


@pytest.fixture(scope="module")
def secured(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Kafka 3.9.1."""
    directory = tmp_path_factory.mktemp("secured")
    plain, login = free_port(), f"127.0.0.1:{free_port()}"
    config = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", **settings(plain, login)}
    where = f"{zookeeper.connect}/{directory.name}"
    with KafkaBroker(directory, zookeeper=where, port=plain, config=config) as broker:
        yield Secured(login, broker.bootstrap, AdminClient({"bootstrap.servers": broker.bootstrap}), PROPERTIES, where)


@pytest.fixture(scope="module")
def secured_kraft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Kafka 4.4.0."""
    plain, login, controller = free_port(), f"127.0.0.1:{free_port()}", free_port()
    config = settings(plain, login)
    open_listener, _, _ = config["listeners"].partition(",")
    config |= {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "listeners": f"{config['listeners']},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"{open_listener},SASL_PLAINTEXT://{login}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    directory = tmp_path_factory.mktemp("secured-kraft")
    with KraftBroker(directory, port=plain, controller_port=controller, config=config) as broker:
        yield Secured(login, broker.bootstrap, AdminClient({"bootstrap.servers": broker.bootstrap}), PROPERTIES, None)
