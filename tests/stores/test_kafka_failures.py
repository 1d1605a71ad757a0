"""Errors of `KafkaStore` and `KafkaCluster`, and their delay, with dead, frozen, new, non-Kafka and secured servers."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism
from conftest import MakeTopic
from processes import wait_for, wait_for_login
from stopwatch import Stopwatch

from offsetmgr.cli.app import run
from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.config.java_config import translate_properties
from offsetmgr.core.errors import (
    AuthenticationFailed,
    OffsetMgrError,
    ServerError,
    TimedOut,
    Unreachable,
    UnsupportedOperation,
)
from offsetmgr.core.model import Committed, LogRange, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupEdit
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer
from offsetmgr.sandbox.ports import free_port
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers


def errors_of(bootstrap: str, timeout_ms: int, **kafka: str) -> tuple[OffsetMgrError, OffsetMgrError, OffsetMgrError]:
    """The errors of a fetch and an edit through the store, and of a request to the cluster."""
    config = ConnectionConfig(kafka=kafka, timeout_ms=timeout_ms)
    edit = GroupEdit("g", {TopicPartition("t", 0): Change(OffsetAndMetadata(1))})
    with KafkaStore(bootstrap, config) as store, KafkaCluster(bootstrap, config) as cluster:
        with pytest.raises(OffsetMgrError) as fetching:
            store.fetch("g")
        with pytest.raises(OffsetMgrError) as editing:
            list(store.edit([edit]))
        with pytest.raises(OffsetMgrError) as querying:
            cluster.cluster_id()
    return fetching.value, editing.value, querying.value


# --- dead, strange, frozen ------------------------------------------------------------------------


def test_a_dead_server_and_tls_to_a_plaintext_listener_are_errors_unless_another_server_responds(kafka) -> None:
    nowhere = "no-such-host.invalid:9092"
    assert {type(e) for e in errors_of(nowhere, timeout_ms=60_000)} == {Unreachable}
    before = {t.name for t in threading.enumerate()}
    with KafkaStore(f"{nowhere},127.0.0.1:1,{kafka.bootstrap}") as store:
        assert store.identity().id
    wait_for(lambda: {t.name for t in threading.enumerate()} <= before, "the look-up of the host has ended")
    fetching, editing, querying = errors_of(kafka.bootstrap, 3_000, **{"security.protocol": "ssl"})
    assert type(fetching) is type(editing)
    assert all(isinstance(one, ServerError | Unreachable | TimedOut) for one in (fetching, querying))
    assert querying.why
    assert "TLS listener" in querying.hint


# --- separate brokers -----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["3.9", "4.4"])
def own_broker(request, zookeeper, tmp_path_factory):
    """A new broker, whose ``__consumer_offsets`` does not exist before the first test."""
    directory = tmp_path_factory.mktemp("own")
    broker: KafkaBroker | KraftBroker
    if request.param == "3.9":
        broker = KafkaBroker(directory, zookeeper=f"{zookeeper.connect}/{directory.name}-{os.getpid()}")
    else:
        broker = KraftBroker(directory)
    with broker:
        yield broker


def test_the_first_requests_on_a_fresh_cluster_do_not_hang(own_broker, make_topic):
    """A request that hangs lasts until its timeout, which is longer than the one of the test."""
    tp = TopicPartition(make_topic("fresh", 2, bootstrap=own_broker.bootstrap), 0)
    config = ConnectionConfig(timeout_ms=3_600_000)
    with (
        KafkaStore(own_broker.bootstrap, config) as store,
        KafkaCluster(own_broker.bootstrap, config) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        describing = pool.submit(cluster.describe_groups, ["no-such-group"])
        result = store.commit("first", {tp: OffsetAndMetadata(5)})
        described = describing.result()["no-such-group"]
        assert result.outcomes[tp].status is EditStatus.WRITTEN
        assert dict(store.fetch("first")) == {tp: Committed(5)}
        assert getattr(described, "state", described) == "DEAD"


def test_a_frozen_broker_causes_timeouts_only(own_broker: KafkaBroker | KraftBroker, make_topic: MakeTopic) -> None:
    topic = make_topic("frozen", 1, bootstrap=own_broker.bootstrap)
    tp = TopicPartition(topic, 0)
    config = ConnectionConfig(timeout_ms=2_000)
    with KafkaStore(own_broker.bootstrap, config) as store, KafkaCluster(own_broker.bootstrap, config) as cluster:
        # A broker that has just started may exceed the timeout.
        _until(lambda: not _failures(store, "g", {tp: OffsetAndMetadata(5)}))
        _until(lambda: isinstance(cluster.log_ranges([tp])[tp], LogRange))
        own_broker.freeze()
        try:
            with Stopwatch() as watch:
                with pytest.raises(TimedOut):
                    store.fetch("g")
                (scanned,) = store.scan(["g"])
                (edited,) = store.edit([GroupEdit("g", {tp: Change(OffsetAndMetadata(9))})])
                with pytest.raises(TimedOut):
                    list(store.groups())
                ranges = cluster.log_ranges([tp])
        finally:
            own_broker.thaw()
        assert isinstance(scanned.error, TimedOut)
        assert dict(scanned.offsets) == {}
        assert {type(e) for e in edited.failures.values()} == {TimedOut}
        assert isinstance(ranges[tp], TimedOut)
        assert watch.seconds < 35  # five calls of 2 s; the default of the timeout is 30 s


def _failures(store: KafkaStore, group: str, offsets: dict[TopicPartition, OffsetAndMetadata]) -> object:
    (result,) = store.edit([GroupEdit(group, {tp: Change(o) for tp, o in offsets.items()})])
    return result.failures


def _until(condition: Callable[[], bool]) -> None:
    """Repeats a call that has its own timeout."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "not within 120 s"
        time.sleep(0.02)


@pytest.mark.matrix
def test_a_broker_killed_during_edits_leaves_no_false_outcome(own_broker, make_topic):
    """After the restart acknowledged edits exist. A failed edit left the old or the requested offset."""
    topic = make_topic("killed", 2, bootstrap=own_broker.bootstrap)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    names = [f"g{n}" for n in range(600)]

    def edits(offset: int) -> Iterator[GroupEdit]:
        for name in names:
            yield GroupEdit(name, {tp: Change(OffsetAndMetadata(offset)) for tp in (first, second)})

    outcomes: dict[str, ChangeOutcome] = {}
    with KafkaStore(own_broker.bootstrap, ConnectionConfig(timeout_ms=60_000)) as store:
        assert [r.failures for r in store.edit(edits(1)) if r.failures] == []
    with KafkaStore(own_broker.bootstrap, ConnectionConfig(timeout_ms=3_000)) as store:
        for number, result in enumerate(store.edit(edits(2))):
            outcomes[result.group] = result.outcomes[first]
            assert {o.status for o in result.outcomes.values()} == {result.outcomes[first].status}
            if number == 20:
                own_broker.kill()
    own_broker.start()
    with KafkaStore(own_broker.bootstrap, ConnectionConfig(timeout_ms=60_000)) as store:
        found = {s.name: s for s in store.scan(names)}
    statuses = {name: outcome.status for name, outcome in outcomes.items()}
    assert sorted(outcomes) == sorted(names)
    assert set(statuses.values()) == {EditStatus.WRITTEN, EditStatus.FAILED}
    for name in names:
        assert found[name].error is None, found[name].error
        offsets = [found[name].offsets[tp].offset for tp in (first, second)]
        assert offsets == ([2, 2] if statuses[name] is EditStatus.WRITTEN else [offsets[0], offsets[0]]), name
        assert offsets[0] in (1, 2)
        error = outcomes[name].error
        assert error is None or isinstance(error, Unreachable | TimedOut), error


def test_many_locks_wait_for_the_rebalance_delay_in_parallel(zookeeper, tmp_path, make_topic):
    """Each join waits for Kafka's default delay of 3 s, so 300 joins in sequence would take 15 minutes."""
    config = {"group.initial.rebalance.delay.ms": 3000}
    chroot = f"{zookeeper.connect}/{tmp_path.name}-{os.getpid()}"
    with KafkaBroker(tmp_path, zookeeper=chroot, config=config) as broker:
        topic = make_topic("delayed", 1, bootstrap=broker.bootstrap)
        tp = TopicPartition(topic, 0)
        with KafkaStore(broker.bootstrap, ConnectionConfig(timeout_ms=60_000)) as store:
            names = [f"g{n}" for n in range(300)]
            assert all(
                not r.failures for r in store.edit(GroupEdit(n, {tp: Change(OffsetAndMetadata(1))}) for n in names)
            )
            began = time.monotonic()
            results = list(store.edit(GroupEdit(n, {tp: Change(OffsetAndMetadata(2))}) for n in names))
            took = time.monotonic() - began
    assert {(r.atomic, r.outcomes[tp].status) for r in results} == {(True, EditStatus.WRITTEN)}
    assert 3 <= took < 300


# --- logins ---------------------------------------------------------------------------------------

LISTENERS = {"plain": "PLAIN", "scram-sha-256": "SCRAM-SHA-256", "scram-sha-512": "SCRAM-SHA-512"}


@pytest.fixture(scope="module")
def secured(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's SASL_PLAINTEXT address; alice (``alice-secret``) may use PLAIN and both SCRAMs."""
    plain_port, sasl_port = free_port(), free_port()
    directory = tmp_path_factory.mktemp("secured")
    broker = KafkaBroker(directory, zookeeper=f"{zookeeper.connect}/{directory.name}-{os.getpid()}", port=plain_port)
    listener = "listener.name.sasl_plaintext"
    module = "org.apache.kafka.common.security"
    broker.config = {
        "listeners": f"PLAINTEXT://{broker.bootstrap},SASL_PLAINTEXT://127.0.0.1:{sasl_port}",
        "sasl.enabled.mechanisms": ",".join(LISTENERS.values()),
        f"{listener}.plain.sasl.jaas.config": f'{module}.plain.PlainLoginModule required user_alice="alice-secret";',
        f"{listener}.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        f"{listener}.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
    }
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        alter: list[kafka_admin.UserScramCredentialAlteration] = [
            kafka_admin.UserScramCredentialUpsertion("alice", ScramCredentialInfo(mechanism, 4096), b"alice-secret")
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for answered in admin.alter_user_scram_credentials(alter).values():
            answered.result(90)
        # The broker loads the credentials when ZooKeeper notifies it.
        for mechanism in LISTENERS.values():
            wait_for_login(f"127.0.0.1:{sasl_port}", login(mechanism, "alice-secret"))
        yield f"127.0.0.1:{sasl_port}"


def login(mechanism: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", list(LISTENERS.values()))
def test_the_right_password_opens_store_and_cluster(secured: str, mechanism: str, make_topic: MakeTopic) -> None:
    config = ConnectionConfig(kafka=login(mechanism, "alice-secret"), timeout_ms=20_000)
    with KafkaStore(secured, config) as store, KafkaCluster(secured, config) as cluster:
        (result,) = store.edit([GroupEdit("secured", {TopicPartition("none", 0): Change(OffsetAndMetadata(1))})])
        assert {e.name for e in result.failures.values()} == {"UNKNOWN_TOPIC_OR_PARTITION"}
        assert store.identity().id == cluster.cluster_id()


@pytest.mark.parametrize("mechanism", list(LISTENERS.values()))
def test_the_wrong_password_is_rejected_and_never_printed_and_so_is_an_unknown_mechanism(secured, mechanism) -> None:
    errors = errors_of(secured, 15_000, **login(mechanism, "mallory-guess"))
    assert {type(e) for e in errors} == {AuthenticationFailed}
    assert all("mallory-guess" not in f"{e} {e.hint}" for e in errors)
    config = ConnectionConfig(kafka=login("CRAM-MD5", "alice-secret"))
    with KafkaStore(secured, config) as store, pytest.raises(UnsupportedOperation, match="CRAM-MD5"):
        store.fetch("g")


@dataclass
class Encrypted:
    """A broker with TLS, and the directory with its key stores (.p12) and certificates (.pem)."""

    bootstrap: str
    expired: str
    """The address of the listener whose certificate has expired."""
    redirecting: Mapping[str, str]
    """Addresses of listeners without TLS, by the address that the broker advertises for them."""
    directory: Path


@pytest.fixture(scope="module")
def encrypted(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    directory = tmp_path_factory.mktemp("encrypted")
    for name, dates in (("broker", []), ("expired", ["-startdate", "2020/03/01 00:00:00", "-validity", "1"])):
        store = str(directory / f"{name}.p12")
        keytool = ["keytool", "-keystore", store, "-storepass", "key-secret", "-alias", "broker"]
        identity = ["-dname", f"CN={name}", "-ext", "SAN=ip:127.0.0.1", *dates]
        for arguments in (
            ["-genkeypair", "-keyalg", "RSA", "-storetype", "PKCS12", *identity],
            ["-exportcert", "-rfc", "-file", str(directory / f"{name}.pem")],
        ):
            subprocess.run([*keytool, *arguments], check=True, capture_output=True, timeout=120)
    plain, tls, expired, refused, unknown = (f"127.0.0.1:{free_port()}" for _ in range(5))
    own = f"PLAINTEXT://{plain},SSL://{tls},EXPIRED://{expired}"
    config = {
        "listeners": f"{own},REFUSED://{refused},UNKNOWN://{unknown}",
        "advertised.listeners": f"{own},REFUSED://127.0.0.1:1,UNKNOWN://no-such-host.invalid:9092",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,SSL:SSL,EXPIRED:SSL,REFUSED:PLAINTEXT,UNKNOWN:PLAINTEXT"
        ),
        "ssl.keystore.location": directory / "broker.p12",
        "listener.name.expired.ssl.keystore.location": directory / "expired.p12",
        "ssl.keystore.password": "key-secret",
        "ssl.keystore.type": "PKCS12",
        "listener.name.ssl.ssl.client.auth": "requested",
    }
    chroot = f"{zookeeper.connect}/{directory.name}-{os.getpid()}"
    port = int(plain.rpartition(":")[2])
    with KafkaBroker(directory / "broker", zookeeper=chroot, port=port, config=config):
        yield Encrypted(tls, expired, {"127.0.0.1:1": refused, "no-such-host.invalid:9092": unknown}, directory)


def test_a_trusted_certificate_opens_store_and_cluster(encrypted: Encrypted) -> None:
    kafka = {"security.protocol": "ssl", "ssl.ca.location": str(encrypted.directory / "broker.pem")}
    config = ConnectionConfig(kafka=kafka, timeout_ms=20_000)
    with KafkaStore(encrypted.bootstrap, config) as store, KafkaCluster(encrypted.bootstrap, config) as cluster:
        assert dict(store.fetch("g")) == {}
        assert store.identity().id == cluster.cluster_id()


def test_an_unknown_certificate_and_a_login_without_tls_are_rejected(encrypted: Encrypted) -> None:
    errors = errors_of(encrypted.bootstrap, 5_000)
    assert {type(e) for e in errors} == {ServerError}
    assert all("TLS listener" in e.hint for e in errors)
    errors = errors_of(encrypted.bootstrap, 5_000, **{"security.protocol": "ssl"})
    assert {type(e) for e in errors} == {AuthenticationFailed}
    assert all("certificate" in str(e) and "(CN=broker, valid from " in str(e) for e in errors)
    assert all("ssl.truststore.location" in e.hint for e in errors)


def test_an_expired_certificate_is_named_with_its_dates(encrypted, tmp_path, capsys):
    authority = str(encrypted.directory / "expired.pem")
    errors = errors_of(encrypted.expired, 5_000, **{"security.protocol": "ssl", "ssl.ca.location": authority})
    dates = "(CN=expired, valid from 2020-03-01 00:00:00 to 2020-03-02 00:00:00 UTC)"
    assert all(dates in str(e) and e.hint.startswith("renew the certificate") for e in errors)
    (tmp_path / "c.properties").write_text(f"security.protocol=SSL\nssl.truststore.location={authority}\n")
    options = ["--bootstrap-server", encrypted.expired, "--command-config", str(tmp_path / "c.properties")]
    assert run(["doctor", *options, "--format", "json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    (login,) = (row for row in rows if row["check"] == "login")
    assert dates in login["detail"]
    assert login["fix"].startswith("renew the certificate")


def test_a_certificate_of_the_client_that_the_broker_rejects_is_named(encrypted: Encrypted) -> None:
    java = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(encrypted.directory / "broker.pem"),
        "ssl.keystore.location": str(encrypted.directory / "expired.p12"),
        "ssl.keystore.password": "key-secret",
    }
    errors = errors_of(encrypted.bootstrap, 5_000, **translate_properties(java, "f").kafka)
    assert {type(e) for e in errors} == {AuthenticationFailed}
    assert all("CN=expired, valid from 2020-03-01 00:00:00 to 2020-03-02 00:00:00 UTC" in e.hint for e in errors)


@pytest.mark.parametrize("advertised", ["127.0.0.1:1", "no-such-host.invalid:9092"])
@pytest.mark.parametrize(
    "command",
    [
        ["groups", "list"],
        ["groups", "describe", "g"],
        ["offsets", "get", "g"],
        ["offsets", "set", "g", "--topic", "t:0", "--to-offset", "1", "--new-group"],
        ["groups", "delete", "g", "--execute", "--yes"],
    ],
    ids=lambda command: "-".join(command[:2]),
)
def test_an_advertised_address_that_can_never_answer_ends_a_command_before_its_timeout(
    encrypted: Encrypted, advertised: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap = encrypted.redirecting[advertised]
    with Stopwatch() as watch:
        assert run([*command, "--bootstrap-server", bootstrap, "--timeout", "300000"]) == 1
    errors = capsys.readouterr().err
    assert f"broker {advertised}: " in errors
    assert f"(advertised by {bootstrap}, which names no usable address)" in errors
    assert "correct advertised.listeners" in errors
    assert watch.seconds < 100


# --- the cluster ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fixture", ["kafka", "kraft"])
def test_topics_log_ranges_and_times(request, fixture, unique, make_topic):
    bootstrap = request.getfixturevalue(fixture).bootstrap
    make_topic(unique, 2, bootstrap=bootstrap, config={"retention.ms": "-1"})  # the records are years old
    producer = ck.Producer({"bootstrap.servers": bootstrap})
    for number in range(5):
        producer.produce(unique, "x", partition=0, timestamp=1_700_000_000_000 + number * 1000)
    assert producer.flush(20) == 0
    first, second, missing = TopicPartition(unique, 0), TopicPartition(unique, 1), TopicPartition("no-such", 0)
    with KafkaCluster(bootstrap) as cluster:
        assert cluster.topics([unique, "no-such"]) == {unique: 2}
        assert cluster.topics()[unique] == 2
        ranges = cluster.log_ranges([first, second, missing])
        assert (ranges[first], ranges[second]) == (LogRange(0, 5), LogRange(0, 0))
        assert getattr(ranges[missing], "name", None) == "UNKNOWN_TOPIC_OR_PARTITION"
        times = cluster.offsets_for_time([first, second], 1_700_000_002_500)
        assert (times[first], times[second]) == (3, None)
        assert cluster.offsets_retention_ms() == 7 * 24 * 60 * 60 * 1000
        assert cluster.cluster_id()
