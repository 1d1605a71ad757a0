"""Logins with tokens of Keycloak, whose endpoints use HTTPS, at brokers 3.9.1 and 4.4.0."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from client_properties import command_config
from keycloak import AUDIENCE, STORES, Keycloak, client
from librdkafka_consumer import librdkafka_consumer
from processes import Commands, create_topic

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.config.java_config import translate_properties
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer
from offsetmgr.sandbox.broker import BROKER_JVM
from offsetmgr.sandbox.ports import free_port
from offsetmgr.stores.kafka import KafkaStore

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

SECRET: Final = "client-7-secret"
LASTING: Final = "offsetmgr-client"
SHORT: Final = "short-client"
SHORT_LIFETIME_S: Final = 8
MODULE: Final = "org.apache.kafka.common.security.oauthbearer"
TRUST: Final = {
    "ssl.truststore.location": str(STORES / "trust.p12"),
    "ssl.truststore.password": "trust-secret",
    "ssl.truststore.type": "PKCS12",
}


@dataclass
class Broker:
    address: str
    """The address of a listener that requires a token of the issuer."""
    topic: str


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keycloak]:
    clients = client(LASTING, SECRET, 300), client(SHORT, SECRET, SHORT_LIFETIME_S)
    with Keycloak(tmp_path_factory.mktemp("keycloak"), *clients) as running:
        yield running


@pytest.fixture(scope="module", params=["3.9", "4.4"])
def broker(request, zookeeper: ZooKeeperServer, issuer: Keycloak, tmp_path_factory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("tokens")
    plain, tokens, controller = free_port(), free_port(), free_port()
    listener = "listener.name.tokens"
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},TOKENS://127.0.0.1:{tokens}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TOKENS:SASL_SSL",
        f"{listener}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{listener}.oauthbearer.sasl.jaas.config": f"{MODULE}.OAuthBearerLoginModule required;",
        f"{listener}.oauthbearer.sasl.server.callback.handler.class": f"{MODULE}.OAuthBearerValidatorCallbackHandler",
        f"{listener}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": issuer.keys_endpoint,
        f"{listener}.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
        f"{listener}.oauthbearer.sasl.oauthbearer.expected.issuer": issuer.issuer,
        f"{listener}.oauthbearer.connections.max.reauth.ms": 60_000,
        "ssl.keystore.location": STORES / "server.p12",
        "ssl.keystore.password": "store-secret",
    }
    # The broker reads the keys with the trust store of its JVM.
    jvm = (
        *BROKER_JVM,
        f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.keys_endpoint}",
        f"-Djavax.net.ssl.trustStore={TRUST['ssl.truststore.location']}",
        f"-Djavax.net.ssl.trustStorePassword={TRUST['ssl.truststore.password']}",
    )
    server: KafkaBroker | KraftBroker
    if request.param == "4.4":
        config["listeners"] = f"{config['listeners']},CONTROLLER://127.0.0.1:{controller}"
        config["listener.security.protocol.map"] = f"{config['listener.security.protocol.map']},CONTROLLER:PLAINTEXT"
        config["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{plain},TOKENS://127.0.0.1:{tokens}"
        server = KraftBroker(directory / "broker", port=plain, controller_port=controller, config=config, jvm=jvm)
    else:
        chroot = f"{zookeeper.connect}/{directory.name}-{time.time_ns()}"
        server = KafkaBroker(directory / "broker", zookeeper=chroot, port=plain, config=config, jvm=jvm)
    with server:
        yield Broker(f"127.0.0.1:{tokens}", create_topic(server.bootstrap, "tokens", 2))


def common() -> dict[str, str]:
    return {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", **TRUST}


def java(issuer: Keycloak, secret: str = SECRET, *, trusted: bool = True) -> dict[str, str]:
    """The settings of a Java client. ``trusted``: the JAAS line names the authority of the token endpoint."""
    trust = " ".join(f'{key}="{value}"' for key, value in TRUST.items()) if trusted else ""
    return {
        **common(),
        "sasl.oauthbearer.token.endpoint.url": issuer.token_endpoint,
        "sasl.login.callback.handler.class": f"{MODULE}.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": (
            f'{MODULE}.OAuthBearerLoginModule required clientId="{LASTING}" clientSecret="{secret}" {trust};'
        ),
    }


def librdkafka(issuer: Keycloak, name: str = LASTING) -> dict[str, str]:
    return {
        **common(),
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": issuer.token_endpoint,
        "sasl.oauthbearer.client.id": name,
        "sasl.oauthbearer.client.secret": SECRET,
        "https.ca.location": str(STORES / "ca.pem"),
    }


def options(directory: Path, settings: dict[str, str], broker: Broker) -> list[str]:
    return [*command_config(directory, settings), "--bootstrap-server", broker.address]


@pytest.mark.parametrize("names", ["java", "librdkafka"])
def test_client_credentials_are_accepted(broker: Broker, issuer: Keycloak, tmp_path, names: str, unique: str) -> None:
    settings = java(issuer) if names == "java" else librdkafka(issuer)
    login = options(tmp_path, settings, broker)
    commands = Commands(tmp_path)

    edit = ["--group", unique, "--topic", f"{broker.topic}:0", "--to-offset", "0", "--metadata", "x", "--new-group"]
    done = commands.run("offsets", "set", *edit, *login, "--execute", "--yes", "--debug")
    lag = commands.run("offsets", "lag", "--group", unique, *login, "--format", "csv")

    assert f"{broker.topic},0,committed,0,x" in lag.stdout
    with librdkafka_consumer(broker.address, translate_properties(settings, "f").kafka) as consumer:
        assert consumer.partition_count(broker.topic) == 2
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("secret", "trusted", "reason"),
    [
        ("mallory-guess", True, "it rejected the client (HTTP 401, unauthorized_client)"),
        (SECRET, False, "certificate verification failed"),
    ],
    ids=["wrong secret", "unknown authority"],
)
def test_a_refused_login_is_one_line(broker, issuer, tmp_path, secret: str, trusted: bool, reason: str) -> None:
    login = options(tmp_path, java(issuer, secret, trusted=trusted), broker)
    done = Commands(tmp_path).run("groups", "list", *login, code=1)

    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] in (["error"], ["error", "hint"])
    assert reason in done.stderr, done.stderr
    assert secret not in done.stderr


def test_both_clients_work_longer_than_a_token_is_valid(broker: Broker, issuer: Keycloak) -> None:
    kafka = translate_properties(librdkafka(issuer, SHORT), "f").kafka
    until = time.monotonic() + 2.5 * SHORT_LIFETIME_S
    with (
        librdkafka_consumer(broker.address, kafka) as consumer,
        KafkaStore(broker.address, ConnectionConfig(kafka=kafka)) as store,
    ):
        while time.monotonic() < until:
            assert consumer.partition_count(broker.topic) == 2
            assert dict(store.fetch("no-such-group")) == {}
            time.sleep(0.5)  # the pace of the requests
