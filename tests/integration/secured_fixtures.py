"""The fixture of a broker with a login (SASL PLAIN) and an authorizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from secured_broker import Secured

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.sandbox.ports import free_port


@pytest.fixture(scope="module")
def secured(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    plain, login = free_port(), f"127.0.0.1:{free_port()}"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://{login}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} required user_offsetmgr="secret";',
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    where = f"{zookeeper.connect}/{directory.name}"
    with KafkaBroker(directory, zookeeper=where, port=plain, config=config) as broker:
        properties = {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "offsetmgr",
            "sasl.password": "secret",
        }
        yield Secured(login, broker.bootstrap, AdminClient({"bootstrap.servers": broker.bootstrap}), properties)
