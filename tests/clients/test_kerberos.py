"""Kerberos with an MIT KDC, a real broker and a real ZooKeeper; ``scripts/kerberos`` installs what they need."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from client_properties import command_config
from processes import Commands, create_topic, fails, wait_for

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.sandbox.broker import BROKER_JVM
from offsetmgr.sandbox.ports import free_port

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

REALM: Final = "OFFSETMGR.TEST"
SERVER: Final = f"zookeeper/localhost@{REALM}"
CLIENT: Final = f"alice@{REALM}"
os.environ["PATH"] += ":/usr/sbin"


@dataclass
class Realm:
    """A KDC on this machine, with keytabs for a broker at localhost and for alice."""

    directory: Path

    @property
    def environ(self) -> dict[str, str]:
        return {
            "KRB5_CONFIG": str(self.directory / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(self.directory / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{self.directory / 'tickets'}",
        }

    def keytab(self, name: str) -> Path:
        return self.directory / f"{name}.keytab"

    def run(self, *command: str) -> None:
        environ = {**os.environ, **self.environ}
        subprocess.run(command, check=True, env=environ, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    assert shutil.which("krb5kdc"), "scripts/kerberos installs a KDC"
    realm, port = Realm(tmp_path_factory.mktemp("realm")), free_port()
    (realm.directory / "krb5.conf").write_text(
        f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n rdns = false\n"
        f" dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
        f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n[domain_realm]\n localhost = {REALM}\n"
    )
    (realm.directory / "kdc.conf").write_text(
        f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n"
        f"[realms]\n {REALM} = {{\n  database_name = {realm.directory}/principal\n"
        f"  key_stash_file = {realm.directory}/stash\n  max_life = 1h\n }}\n"
    )
    realm.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master-7-secret")
    for principal, name in ((f"kafka/localhost@{REALM}", "broker"), (SERVER, "server"), (CLIENT, "alice")):
        realm.run("kadmin.local", "-q", f"addprinc -randkey {principal}")
        realm.run("kadmin.local", "-q", f"ktadd -k {realm.keytab(name)} {principal}")
    process = subprocess.Popen(["krb5kdc", "-n"], env={**os.environ, **realm.environ}, stdin=subprocess.DEVNULL)
    try:
        probe = partial(socket.create_connection, ("127.0.0.1", port), timeout=60)
        wait_for(lambda: not fails(ConnectionRefusedError, lambda: probe().close()), "the KDC has started")
        yield realm
    finally:
        process.terminate()
        process.wait(90)


@pytest.fixture(scope="module")
def broker(zookeeper: ZooKeeperServer, realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a listener for Kerberos. The topic is ``tickets``."""
    directory = tmp_path_factory.mktemp("kerberos")
    plain, sasl = free_port(), free_port()
    module = "com.sun.security.auth.module.Krb5LoginModule"
    jaas = (
        f'{module} required useKeyTab=true storeKey=true keyTab="{realm.keytab("broker")}" '
        f'principal="kafka/localhost@{REALM}";'
    )
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://localhost:{sasl}",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": jaas,
        "listener.name.sasl_plaintext.gssapi.connections.max.reauth.ms": 2_000,
    }
    jvm = (*BROKER_JVM, f"-Djava.security.krb5.conf={realm.directory / 'krb5.conf'}")
    chroot = f"{zookeeper.connect}/{directory.name}-{time.time_ns()}"
    with KafkaBroker(directory / "broker", zookeeper=chroot, port=plain, config=config, jvm=jvm) as server:
        create_topic(server.bootstrap, "tickets", 2)
        yield f"localhost:{sasl}"


def login(directory: Path, **more: str) -> list[str]:
    common = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka"}
    return command_config(directory, {**common, **more})


@pytest.mark.parametrize("source", ["keytab", "tickets"])
def test_a_keytab_and_a_ticket_cache_log_in(broker: str, realm: Realm, tmp_path, source: str, unique: str) -> None:
    module = "com.sun.security.auth.module.Krb5LoginModule required"
    if source == "keytab":
        jaas = f'{module} useKeyTab=true keyTab="{realm.keytab("alice")}" principal="{CLIENT}";'
    else:
        realm.run("kinit", "-k", "-t", str(realm.keytab("alice")), CLIENT)
        jaas = f"{module} useTicketCache=true;"
    options = [*login(tmp_path, **{"sasl.jaas.config": jaas}), "--bootstrap-server", broker]
    commands = Commands(tmp_path, realm.environ)

    edit = ["--group", unique, "--topic", "tickets:0", "--to-offset", "0", "--metadata", "x", "--new-group"]
    commands.run("offsets", "set", *edit, *options, "--execute", "--yes")
    lag = commands.run("offsets", "lag", "--group", unique, *options, "--format", "csv")

    assert "tickets,0,committed,0,x" in lag.stdout


def test_without_a_ticket_the_error_says_so(broker: str, realm: Realm, tmp_path: Path) -> None:
    options = [*login(tmp_path), "--bootstrap-server", broker, "--timeout", "8000"]
    environ = {**realm.environ, "KRB5CCNAME": f"FILE:{tmp_path / 'none'}"}

    done = Commands(tmp_path, environ).run("groups", "list", *options, code=1)

    assert "error: Kerberos login to kafka/localhost: " in done.stderr
    assert "klist" in done.stderr


@pytest.fixture(scope="module")
def server(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper that rejects sessions without a login."""
    directory = tmp_path_factory.mktemp("server")
    module = "com.sun.security.auth.module.Krb5LoginModule"
    (directory / "jaas.conf").write_text(
        f"Server {{ {module} required useKeyTab=true storeKey=true useTicketCache=false "
        f'keyTab="{realm.keytab("server")}" principal="{SERVER}"; }};'
    )
    properties = {
        "java.security.krb5.conf": realm.directory / "krb5.conf",
        "java.security.auth.login.config": directory / "jaas.conf",
        "zookeeper.sessionRequireClientSASLAuth": "true",
    }
    config = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    jvm = ("-Xmx512m", *(f"-D{key}={value}" for key, value in properties.items()))
    with ZooKeeperServer(directory / "data", config=config, jvm=jvm) as running:
        yield running


def test_a_ticket_logs_in_to_zookeeper(server: ZooKeeperServer, realm: Realm, tmp_path: Path) -> None:
    realm.run("kinit", "-k", "-t", str(realm.keytab("alice")), CLIENT)
    settings = {"zookeeper.auth": "kerberos:zookeeper", "zookeeper.acl": "creator"}
    options = [*command_config(tmp_path, settings), "--zookeeper", f"localhost:{server.port}"]
    commands = Commands(tmp_path, realm.environ)

    edit = ["--group", "g", "--topic", "t:0", "--to-offset", "7", "--new-group", "--execute", "--yes"]
    commands.run("offsets", "set", *edit, *options)
    got = commands.run("offsets", "get", "--group", "g", *options, "--format", "csv")

    assert "g,t,0,committed,7" in got.stdout
    environ = {**realm.environ, "KRB5CCNAME": f"FILE:{tmp_path / 'none'}"}
    refused = Commands(tmp_path, environ).run("groups", "list", *options, "--timeout", "5000", code=1)
    assert "the server refused the credentials of kerberos" in refused.stderr
    assert "check the ticket (klist)" in refused.stderr
