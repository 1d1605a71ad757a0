"""Logins at a real broker with stores and settings of Java clients, with both of offsetmgr's Kafka clients."""

import asyncio
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from client_properties import STORES, command_config, secrets_in, store
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from librdkafka_consumer import librdkafka_consumer
from oidc_issuer import AUDIENCE, CLIENT, CLIENT_SECRET, OidcIssuer
from processes import Commands, create_topic, wait_for_login

from offsetmgr.config.connection import ConnectionConfig, with_properties
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.sandbox.broker import BROKER_JVM
from offsetmgr.sandbox.ports import free_port

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

SESSION_S: Final = 2
PASSWORD: Final = "alice-7-secret"
SECRETS: Final = (PASSWORD, CLIENT_SECRET, "trust-secret", "store-secret", "entry-secret", "mallory-guess")


@dataclass
class Broker:
    tls: str
    """The address of a listener that requires a certificate."""
    tokens: str
    """The address of a listener with TLS that requires a token. It ends sessions after `SESSION_S` seconds."""
    passwords: str
    """The same, for the user alice of SCRAM."""
    issuer: OidcIssuer
    topic: str


@pytest.fixture(scope="module")
def broker(zookeeper: ZooKeeperServer, issuer: OidcIssuer, tmp_path_factory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("logins")
    plain, tls, tokens, passwords = (free_port() for _ in range(4))
    module = "org.apache.kafka.common.security"
    listener = "listener.name.tokens"
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls},TOKENS://127.0.0.1:{tokens},"
        f"PASSWORDS://127.0.0.1:{passwords}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,TOKENS:SASL_SSL,PASSWORDS:SASL_SSL",
        f"{listener}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{listener}.oauthbearer.sasl.jaas.config": f"{module}.oauthbearer.OAuthBearerLoginModule required;",
        f"{listener}.oauthbearer.sasl.server.callback.handler.class": (
            f"{module}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        f"{listener}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"{issuer.url}/keys",
        f"{listener}.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
        f"{listener}.oauthbearer.connections.max.reauth.ms": SESSION_S * 1000,
        f"{listener}.ssl.client.auth": "none",
        "listener.name.passwords.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.passwords.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "listener.name.passwords.scram-sha-512.connections.max.reauth.ms": SESSION_S * 1000,
        "listener.name.passwords.ssl.client.auth": "none",
        "ssl.keystore.location": STORES / "server.p12",
        "ssl.keystore.password": "store-secret",
        "ssl.truststore.location": STORES / "trust.p12",
        "ssl.truststore.password": "trust-secret",
        "ssl.client.auth": "required",
    }
    chroot = f"{zookeeper.connect}/{directory.name}-{time.time_ns()}"
    jvm = (*BROKER_JVM, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.url}/keys")
    with KafkaBroker(directory / "broker", zookeeper=chroot, port=plain, config=config, jvm=jvm) as server:
        add_user(server.bootstrap)
        topic = create_topic(server.bootstrap, "logins", 2)
        wait_for_login(f"127.0.0.1:{passwords}", translated(directory, SCRAM))
        yield Broker(f"127.0.0.1:{tls}", f"127.0.0.1:{tokens}", f"127.0.0.1:{passwords}", issuer, topic)


def add_user(bootstrap: str) -> None:
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    user = UserScramCredentialUpsertion("alice", credential, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.alter_user_scram_credentials([user]).values():
        future.result(90)


@pytest.fixture(scope="module")
def issuer() -> Iterator[OidcIssuer]:
    with OidcIssuer() as running:
        yield running


TRUST: Final = store("truststore", "trust.jks", "trust-secret", type="JKS")
JKS: Final = {**TRUST, **store("keystore", "client.jks", "store-secret"), "ssl.key.password": "entry-secret"}
PKCS12: Final = {
    **store("truststore", "trust.p12", "trust-secret", type="PKCS12"),
    **store("keystore", "client.p12", "store-secret"),
}
SCRAM: Final = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": PASSWORD,
    **TRUST,
}


def oauth(**settings: str) -> dict[str, str]:
    return {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", **TRUST, **settings}


def java_oauth(issuer: OidcIssuer, secret: str = CLIENT_SECRET) -> dict[str, str]:
    """The settings of a Java client, as Kafka documents them."""
    module = "org.apache.kafka.common.security.oauthbearer"
    jaas = f'{module}.OAuthBearerLoginModule required clientId="{CLIENT}" clientSecret="{secret}" scope="kafka" ;'
    return oauth(
        **{
            "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
            "sasl.login.callback.handler.class": f"{module}.OAuthBearerLoginCallbackHandler",
            "sasl.jaas.config": jaas,
        }
    )


def librdkafka_oauth(issuer: OidcIssuer) -> dict[str, str]:
    """The settings of a client of librdkafka."""
    return oauth(
        **{
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        }
    )


def translated(directory: Path, java: Mapping[str, str]) -> Mapping[str, str]:
    """The settings in `ConnectionConfig` of a file with these properties."""
    command_config(directory, java)
    return with_properties(ConnectionConfig(), str(directory / "client.properties")).kafka


def librdkafka_topic(
    bootstrap: str, directory: Path, java: Mapping[str, str], topic: str, timeout_s: float = 60
) -> int:
    """Asks librdkafka for the number of partitions of ``topic``."""
    with librdkafka_consumer(bootstrap, translated(directory, java)) as consumer:
        return consumer.partition_count(topic, timeout_s)


def pem_files(directory: Path) -> dict[str, str]:
    """The settings of a client with PEM files."""
    found = translated(directory, {"security.protocol": "SSL", **PKCS12})
    files = {name: directory / f"client.properties.{name}" for name in ("ca", "certificate", "key")}
    for name, file in files.items():
        file.write_text(found[f"ssl.{name}.pem"])
    return {f"ssl.{name}.location": str(file) for name, file in files.items()}


def settings_of(login: str, broker: Broker, directory: Path) -> tuple[str, dict[str, str]]:
    """The address of the listener that accepts a login, and the properties."""
    if login == "scram":
        return broker.passwords, SCRAM
    if login in COMMAND_OUTPUTS:
        return broker.tokens, token_command(directory, broker.issuer.token(), COMMAND_OUTPUTS[login])
    stores = {"jks": JKS, "pkcs12": PKCS12}.get(login) or pem_files(directory)
    return broker.tls, {"security.protocol": "SSL", **stores}


@pytest.mark.parametrize("kind", ["jks", "pkcs12", "pem", "scram", "jwt", "json"])
def test_a_login_works_for_a_whole_group(broker: Broker, tmp_path: Path, kind: str, unique: str) -> None:
    commands = Commands(tmp_path)
    address, settings = settings_of(kind, broker, tmp_path)
    login = [*command_config(tmp_path, settings), "--bootstrap-server", address]

    edit = ["--group", unique, "--topic", f"{broker.topic}:0", "--to-offset", "0", "--metadata", "x", "--new-group"]
    done = commands.run("offsets", "set", *edit, *login, "--execute", "--yes", "--debug")
    lag = commands.run("offsets", "lag", "--group", unique, *login, "--format", "csv")

    assert f"{broker.topic},0,committed,0,x" in lag.stdout
    assert librdkafka_topic(address, tmp_path, settings, broker.topic) == 2
    outputs = done.stdout, done.stderr, lag.stdout, lag.stderr
    assert secrets_in(tmp_path, [*SECRETS, *broker.issuer.tokens], *outputs) == []


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
    refused(broker, broker.tls, {"security.protocol": "SSL", **stores}, tmp_path, why, code)


def refused(broker: Broker, address: str, java: dict[str, str], directory: Path, why: str, code: int = 1) -> None:
    """Asserts that both clients report the failure of the login, in one line and without a secret."""
    login = [*command_config(directory, java), "--bootstrap-server", address, "--timeout", "60000"]

    done = Commands(directory).run("groups", "list", *login, code=code)
    debugged = Commands(directory).start("groups", "list", *login, "--debug").communicate(timeout=120)

    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] in (["error"], ["error", "hint"]), done.stderr
    assert why in done.stderr, done.stderr
    assert secrets_in(directory, SECRETS, done.stdout, done.stderr, *debugged) == []
    with pytest.raises(OffsetMgrError) as caught:
        librdkafka_topic(address, directory, java, broker.topic, 3)
    assert secrets_in(directory, SECRETS, f"{caught.value} {caught.value.hint} {caught.value!r}") == []


COMMAND_OUTPUTS: Final = {"jwt": "print(token)", "json": 'print(json.dumps({"access_token": token, "expires_in": 60}))'}


def token_command(directory: Path, token: str, output: str) -> dict[str, str]:
    """Settings with a command that prints ``token``, and warnings to stderr."""
    (directory / "print_token.py").write_text(
        "import json, pathlib, sys\n"
        "token = pathlib.Path(sys.argv[1]).read_text()\n"
        "print('a warning with', token, file=sys.stderr)\n"
        f"{output}\n"
    )
    (directory / "client.properties.token").write_text(token)
    command = shlex.join(
        [sys.executable, str(directory / "print_token.py"), str(directory / "client.properties.token")]
    )
    return oauth(**{"sasl.oauthbearer.token.command": command})


def test_refused_tokens_are_one_line_without_a_secret(broker: Broker, tmp_path: Path) -> None:
    issuer, url = broker.issuer, "sasl.oauthbearer.token.endpoint.url"
    java = java_oauth(issuer)
    for settings, why in (
        (java_oauth(issuer, "mallory-guess"), "token: it rejected the client (HTTP 401, invalid_client)"),
        (java | {url: f"{issuer.url}0/token"}, "token endpoint http://127.0.0.1"),
        (java | {url: f"http://127.0.0.1:{free_port()}/token"}, "/token: Connection refused"),
    ):
        refused(broker, broker.tokens, settings, tmp_path, why)
    for output, why in (("sys.exit(3)", "failed with exit code 3"), ("", "its output contains no token")):
        refused(broker, broker.tokens, token_command(tmp_path, "x", output), tmp_path, why)
    refused(broker, broker.tokens, oauth(), tmp_path, "no setting names a source of tokens", 2)


def test_a_token_for_another_audience_and_an_expired_one_are_rejected(broker: Broker, tmp_path: Path) -> None:
    issuer, address = broker.issuer, broker.tokens
    settings = librdkafka_oauth(issuer)  # with a scope, and so a source of its own in each case
    issuer.audience = "another"
    try:
        other = settings | {"sasl.oauthbearer.scope": "another"}
        refused(broker, address, other, tmp_path, "the broker rejected the token")
        issuer.audience, issuer.lifetime_s = AUDIENCE, -30
        expired = token_command(tmp_path, issuer.token(), "print(token)")
        refused(broker, address, expired, tmp_path, "its token expired 3")
        expired = settings | {"sasl.oauthbearer.scope": "expired"}
        refused(broker, address, expired, tmp_path, "its token expired 3")
    finally:
        issuer.audience, issuer.lifetime_s = AUDIENCE, 300


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "SCRAM-SHA-512"])
def test_a_connection_logs_in_again_before_its_session_expires(broker: Broker, tmp_path: Path, mechanism: str) -> None:
    """The broker closes a connection that sends a request after the end of its session (KIP-368)."""
    settings, address = (
        (java_oauth(broker.issuer), broker.tokens) if mechanism == "OAUTHBEARER" else (SCRAM, broker.passwords)
    )
    security = Security.of(translated(tmp_path, settings))
    answers = 0

    async def work(connection: BrokerConnection, until: float) -> None:
        nonlocal answers
        while time.monotonic() < until:
            await connection.call(Request(3, 4, {"topics": [], "allow_auto_topic_creation": False}), 60)
            answers += 1
            await asyncio.sleep(0.01)

    async def run() -> None:
        connection = await BrokerConnection.open(Address.parse(address), security, 60)
        first_login = connection._login_due_at
        await asyncio.gather(*(work(connection, time.monotonic() + 2.5 * SESSION_S) for _ in range(20)))
        assert first_login is not None
        assert connection._login_due_at is not None
        assert connection._login_due_at - first_login > 1.5 * SESSION_S
        await asyncio.sleep(SESSION_S + 0.5)  # idle past the end of the session
        await work(connection, time.monotonic() + 0.1)
        await connection.close()

    asyncio.run(run())
    assert answers > 50
