"""TLS towards ZooKeeper with the settings of Kafka's tools, with and without a digest."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from client_properties import STORES, command_config, secrets_in
from kazoo.security import make_digest_acl
from kazoo_client import connected
from processes import Commands
from stopwatch import Stopwatch

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.config.java_config import translate_properties
from offsetmgr.core.model import TopicPartition
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.sandbox.ports import free_port
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client import connection

pytestmark = pytest.mark.servers

SECRETS: Final = ("trust-secret", "store-secret", "entry-secret", "sesame-8-secret")
GROUPS: Final = 300


def stores(trust: str = "trust.jks", trust_password: str = "trust-secret") -> dict[str, str]:
    return {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.truststore.location": str(STORES / trust),
        "zookeeper.ssl.truststore.password": trust_password,
        "zookeeper.ssl.keystore.location": str(STORES / "client.p12"),
        "zookeeper.ssl.keystore.password": "store-secret",
    }


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a port that requires a client certificate. ``closed`` is a group that only boss may read."""
    port = free_port()
    config = {
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": STORES / "server.p12",
        "ssl.keyStore.password": "store-secret",
        "ssl.trustStore.location": STORES / "trust.p12",
        "ssl.trustStore.password": "trust-secret",
        "ssl.clientAuth": "need",
    }
    with ZooKeeperServer(tmp_path_factory.mktemp("secure"), config=config) as server:
        with connected(server.connect) as client:
            for number in range(GROUPS):
                client.create(f"/consumers/g{number}/offsets/t/0", str(number).encode(), makepath=True)
            acl = [make_digest_acl("boss", "sesame-8-secret", all=True)]
            client.add_auth("digest", "boss:sesame-8-secret")
            client.create("/consumers/closed/offsets/t/0", b"7", makepath=True, acl=acl)
        yield f"127.0.0.1:{port}"


def test_commands_work_over_tls_with_a_digest(secure: str, tmp_path: Path) -> None:
    settings = stores() | {"zookeeper.auth": "digest:boss:sesame-8-secret"}
    options = [*command_config(tmp_path, settings), "--zookeeper", secure]
    commands = Commands(tmp_path)

    got = commands.run("offsets", "get", "--group", "closed", *options, "--format", "csv", "--debug")
    edit = ["--group", "g7", "--topic", "t:0", "--to-offset", "9"]
    done = commands.run("offsets", "set", *edit, *options, "--execute", "--yes", "--debug")
    after = commands.run("offsets", "get", "--group", "g7", *options, "--format", "csv")

    assert "closed,t,0,committed,7" in got.stdout
    assert "g7,t,0,committed,9" in after.stdout
    assert secrets_in(tmp_path, SECRETS, got.stdout, got.stderr, done.stdout, done.stderr) == []


def test_many_groups_are_read_over_tls(secure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one TLS record waits in the socket; kazoo must not wait for further bytes then. The next bytes would be
    those of a ping, 20 s later."""
    monkeypatch.setattr(connection, "_MAX_SESSION_TIMEOUT_S", 60.0)
    properties = translate_properties(stores(), "f")
    config = ConnectionConfig(zookeeper_tls=properties.zookeeper_tls, timeout_ms=60_000)
    names = [f"g{number}" for number in range(100, GROUPS)]

    with ZookeeperStore(secure, config=config) as store, Stopwatch() as watch:
        found = {row.name: row.offsets[TopicPartition("t", 0)].offset for row in store.scan(names)}

    assert found == {name: int(name[1:]) for name in names}
    assert watch.seconds < 15


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "needs zookeeper.ssl.client.enable=true"),
        (stores("client.jks", "store-secret"), "certificate verification failed"),
        ({k: v for k, v in stores().items() if "keystore" not in k}, "no TLS connection"),
    ],
    ids=["plain", "other-authority", "no-certificate"],
)
def test_a_refused_connection_names_the_reason(secure: str, tmp_path: Path, settings: dict[str, str], why: str) -> None:
    options = [*command_config(tmp_path, settings), "--zookeeper", secure]

    out, err = (
        Commands(tmp_path).start("groups", "list", *options, "--timeout", "3000", "--debug").communicate(timeout=120)
    )

    assert f"error: ZooKeeper at {secure}: no server could be reached" in err
    assert why in err
    assert secrets_in(tmp_path, SECRETS, out, err) == []
