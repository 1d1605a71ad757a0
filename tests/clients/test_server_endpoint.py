"""Unmodified clients of the offsets endpoint: librdkafka, and Kafka's own Java tools of 3.9 and 4.4.

The backend behind the listener is a dict. Tests that need topics use those of a real broker.
"""

import contextlib
import select
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from certificates import self_signed
from confluent_kafka.admin import AdminClient, OffsetSpec
from conftest import MakeTopic
from memory_listener import MemoryBackend, MemoryListener, WireClient, limits, wait_until

from offsetmgr.core.errors import ConfigError
from offsetmgr.kafka.client.backing_cluster import BackingClusterClient, FoundOffset, OffsetQuery
from offsetmgr.kafka.client.connection import Security
from offsetmgr.sandbox import KafkaBroker, java_tool

GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PATIENT = ("--timeout", "30000")
"""The tool's default of 5 s is too short if Java has just started on a busy machine."""


def consumer(bootstrap: str) -> ck.Consumer:
    return ck.Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})


# --- librdkafka ---------------------------------------------------------------------------------------


def test_a_consumer_commits_and_reads_what_is_committed(listening: MemoryListener, backend: MemoryBackend) -> None:
    client = consumer(listening.bootstrap)
    try:
        committed = client.commit(
            offsets=[ck.TopicPartition("t", 0, 5), ck.TopicPartition("t", 1, 6, metadata="note")], asynchronous=False
        )
        assert [(tp.partition, tp.offset, tp.error) for tp in committed] == [(0, 5, None), (1, 6, None)]
        found = client.committed([ck.TopicPartition("t", p) for p in range(3)], timeout=60)
        assert [(tp.offset, tp.metadata) for tp in found] == [(5, None), (6, "note"), (ck.OFFSET_INVALID, None)]
    finally:
        client.close()
    assert backend.offsets["g"]["t"] == {0: (5, -1, ""), 1: (6, -1, "note\0")}, (
        "with the zero byte that librdkafka adds"
    )


def test_a_consumer_waits_while_the_coordinator_loads(listening: MemoryListener, backend: MemoryBackend) -> None:
    backend.offsets["g"] = {"t": {0: (42, -1, "")}}
    backend.errors["g"] = 14
    client = consumer(listening.bootstrap)
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.committed, [ck.TopicPartition("t", 0)], timeout=90)
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
            backend.errors.clear()
            assert waiting.result(90)[0].offset == 42
    finally:
        client.close()


def test_the_admin_api(listening: MemoryListener, backend: MemoryBackend) -> None:
    backend.offsets = {"g": {"t": {0: (5, -1, ""), 1: (6, -1, "")}}, "h": {"t": {0: (7, -1, "")}}}
    admin = AdminClient({"bootstrap.servers": listening.bootstrap})

    assert {group.group_id for group in admin.list_consumer_groups().result(90).valid} == {"g", "h"}
    described = admin.describe_consumer_groups(["g", "missing"])
    assert described["g"].result(90).state == ck.ConsumerGroupState.EMPTY
    assert described["missing"].result(90).state == ck.ConsumerGroupState.DEAD
    offsets = admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions("g")])["g"].result(90)
    assert [(tp.topic, tp.partition, tp.offset) for tp in offsets.topic_partitions] == [("t", 0, 5), ("t", 1, 6)]
    altered = ck.ConsumerGroupTopicPartitions("new", [ck.TopicPartition("t", 4, 44)])
    admin.alter_consumer_group_offsets([altered])["new"].result(90)
    assert admin.delete_consumer_groups(["h"])["h"].result(90) is None
    with pytest.raises(ck.KafkaException) as caught:
        admin.delete_consumer_groups(["missing"])["missing"].result(90)
    assert caught.value.args[0].code() == ck.KafkaError.GROUP_ID_NOT_FOUND
    assert sorted(backend.offsets) == ["g", "new"]
    assert [node.port for node in admin.describe_cluster().result(90).nodes] == [listening.port]
    assert sorted(admin.list_topics(timeout=60).brokers) == [1]


def test_two_hundred_commits_in_flight(listening: MemoryListener, backend: MemoryBackend) -> None:
    admin = AdminClient({"bootstrap.servers": listening.bootstrap})
    futures = []
    for number in range(400):
        parts = [ck.TopicPartition("t", p, number) for p in range(50)]
        futures += admin.alter_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(f"g{number}", parts)]).values()
    for future in futures:
        assert len(future.result(90).topic_partitions) == 50
    assert {group: len(topics["t"]) for group, topics in backend.offsets.items()} == {f"g{n}": 50 for n in range(400)}


# --- with a password, over TLS ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secured(tmp_path: Path, certificate: Path, backend: MemoryBackend) -> Iterator[MemoryListener]:
    (tmp_path / "users.toml").write_text('[users.alice]\npassword = "a secret"\n[users.bob]\npassword = "b secret"\n')
    (tmp_path / "rules.toml").write_text(
        '[[rule]]\nprincipals = ["alice"]\ngroups = ["alices-*"]\ntopics = ["orders"]\noperations = ["read", "write"]\n'
    )
    backend.offsets = {"alices-1": {"orders": {0: (5, -1, "")}}, "other": {"orders": {0: (6, -1, "")}}}
    with MemoryListener(
        backend, credentials=tmp_path / "users.toml", rules=tmp_path / "rules.toml", tls_certificate=certificate
    ) as listening:
        yield listening


def login(certificate: Path, mechanism: str, user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": str(certificate.parent / "cert.pem"),
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_reaches_only_its_own_groups(secured: MemoryListener, certificate: Path, mechanism: str) -> None:
    admin = AdminClient({"bootstrap.servers": secured.bootstrap, **login(certificate, mechanism, "alice", "a secret")})

    assert [group.group_id for group in admin.list_consumer_groups().result(90).valid] == ["alices-1"]
    client = admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions("alices-1")])["alices-1"].result(90)
    assert [tp.offset for tp in client.topic_partitions] == [5]
    with pytest.raises(ck.KafkaException) as caught:
        admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions("other")])["other"].result(90)
    assert caught.value.args[0].code() == ck.KafkaError.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
def test_users_log_in_while_clients_without_a_login_hold_all_connections(tmp_path, certificate, limit: str) -> None:
    (tmp_path / "users.toml").write_text('[users.alice]\npassword = "a secret"\n')
    files: Any = {"credentials": tmp_path / "users.toml", "tls_certificate": certificate}
    allowed = limits(**{limit: 50}, login_timeout_s=3600)
    with MemoryListener(limits=allowed, **files) as listening, contextlib.ExitStack() as held:

        def hold(first_bytes: bytes) -> None:
            """Opens 100 connections. No TLS handshake ends, so the listener closes all but 50."""
            opened = [held.enter_context(socket.create_connection(("127.0.0.1", listening.port))) for _ in range(100)]
            for connection in opened:
                with contextlib.suppress(ConnectionError):
                    connection.sendall(first_bytes)
            assert wait_until(lambda: len(select.select(opened, [], [], 0)[0]) >= 50)
            assert wait_until(lambda: len(listening.service.connections) <= 50)

        hold(b"")
        settings = {"bootstrap.servers": listening.bootstrap, **login(certificate, "PLAIN", "alice", "a secret")}
        client = ck.Consumer({**settings, "group.id": "g", "enable.auto.commit": False})
        client.commit(offsets=[ck.TopicPartition("t", 0, 5)], asynchronous=False)
        hold(b"\x16\x03\x01\x02")  # the begin of a TLS handshake
        assert client.committed([ck.TopicPartition("t", 0)], timeout=60)[0].offset == 5
        held.close()
        assert wait_until(lambda: {one.principal for one in listening.service.connections} == {"alice"})
        client.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "within", "message"),
    [
        (
            [
                "security.protocol=SASL_SSL",
                "sasl.mechanism=PLAIN",
                "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required"
                ' username="alice" password="wrong";',
            ],
            60_000,
            "SaslAuthenticationException: Authentication failed",
        ),
        (["security.protocol=SSL"], 1500, "TimeoutException"),
        (
            [
                "security.protocol=SASL_SSL",
                "sasl.mechanism=SCRAM-SHA-256",
                "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
                ' username="alice" password="a secret";',
            ],
            60_000,
            "alices-1",
        ),
    ],
    ids=["wrong credentials", "no credentials", "right credentials"],
)
def test_the_java_tool_logs_in_or_fails_clearly(secured, certificate, tmp_path, settings, within, message) -> None:
    trust = [f"ssl.truststore.location={certificate.parent / 'cert.pem'}", "ssl.truststore.type=PEM"]
    (tmp_path / "client.properties").write_text(
        "\n".join([*settings, *trust, f"default.api.timeout.ms={within}", f"request.timeout.ms={within}"])
    )
    config = ["--command-config", str(tmp_path / "client.properties")]
    arguments = ["--bootstrap-server", secured.bootstrap.replace("127.0.0.1", "localhost"), "--list", "--timeout"]
    found = java_tool("kafka-3.9", GROUPS_TOOL, [*arguments, str(within + 1000), *config], timeout_s=120)
    assert message in found.stdout + found.stderr


def test_clients_without_credentials_or_tls_are_disconnected(secured: MemoryListener, certificate: Path) -> None:
    with WireClient(secured.port) as plain:
        plain.send(18, 0, {})
        assert plain.is_disconnected()
    context = ssl.create_default_context(cafile=str(certificate.parent / "cert.pem"))
    with WireClient(secured.port, tls=context) as anonymous:
        anonymous.ask(18, 0, {})
        anonymous.send(3, 5, {"topics": []})
        assert anonymous.is_disconnected()


def test_unusable_certificates_are_reported(tmp_path: Path, certificate: Path) -> None:
    junk, other = tmp_path / "junk.pem", tmp_path / "other.pem"
    junk.write_text("junk")
    subprocess.run(["openssl", "genrsa", "-out", str(other), "2048"], check=True, capture_output=True, timeout=120)
    unusable: list[tuple[dict[str, Any], str]] = [
        ({"tls_certificate": tmp_path / "nothing.pem"}, r"nothing\.pem: No such file"),
        ({"tls_certificate": junk}, r"junk\.pem: not a valid certificate"),
        ({"tls_certificate": certificate.parent / "cert.pem", "tls_key": other}, "the key does not belong to the cert"),
    ]
    for files, why in unusable:
        with pytest.raises(ConfigError, match=why) as caught:
            MemoryListener(**files)
        assert caught.value.hint


# --- in front of a real cluster -----------------------------------------------------------------------


@pytest.fixture
def topic(kafka: KafkaBroker, make_topic: MakeTopic, unique: str) -> str:
    """A topic with two partitions of 20 messages each, with timestamps in 1970."""
    make_topic(unique, 2, config={"retention.ms": "-1"})
    producer = ck.Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(40):
        producer.produce(unique, b"x", partition=number % 2, timestamp=1_000 + number)
    assert producer.flush(30) == 0
    return unique


@pytest.fixture
def listening_with_cluster(kafka: KafkaBroker, backend: MemoryBackend) -> Iterator[MemoryListener]:
    with MemoryListener(backend, cluster=BackingClusterClient(kafka.bootstrap, Security())) as listening:
        yield listening


@pytest.mark.servers
def test_topics_and_log_offsets_come_from_the_real_cluster(listening_with_cluster, kafka, topic) -> None:
    admin = AdminClient({"bootstrap.servers": listening_with_cluster.bootstrap})
    real = AdminClient({"bootstrap.servers": kafka.bootstrap})

    ours, theirs = admin.list_topics(topic, timeout=60), real.list_topics(topic, timeout=60)
    assert ours.cluster_id == theirs.cluster_id
    assert {p: meta.leader for p, meta in ours.topics[topic].partitions.items()} == {0: 1, 1: 1}
    parts = [ck.TopicPartition(topic, p) for p in (0, 1)]
    requested = {parts[0]: OffsetSpec.latest(), parts[1]: OffsetSpec.for_timestamp(1_010)}
    found = {tp.partition: f.result(90).offset for tp, f in admin.list_offsets(requested).items()}
    assert found == {0: 20, 1: 5}
    missing = admin.list_topics("no-such-topic-anywhere", timeout=60).topics["no-such-topic-anywhere"]
    assert missing.error is not None
    assert missing.error.code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.servers
def test_each_partition_and_each_leader_has_its_own_outcome(kafka, topic, listening_with_cluster) -> None:
    async def query_offsets() -> dict[str, list[FoundOffset]]:
        upstream = BackingClusterClient(kafka.bootstrap, Security())
        try:
            requested = {
                topic: [OffsetQuery(0, -2), OffsetQuery(9, -1), OffsetQuery(1, -77)],
                "none": [OffsetQuery(0, -1)],
            }
            found = await upstream.list_offsets(requested, read_committed=True)
            return {name: sorted(offsets) for name, offsets in found.items()}
        finally:
            await upstream.close()

    found = listening_with_cluster.run(query_offsets())
    assert [(o.partition, o.error, o.offset) for o in found[topic]] == [(0, 0, 0), (1, 35, -1), (9, 3, -1)]
    assert [(o.partition, o.error) for o in found["none"]] == [(0, 3)]


@pytest.mark.servers
@pytest.mark.parametrize("tools", [pytest.param("kafka-3.9", marks=pytest.mark.matrix), "kafka-4.4"])
def test_every_command_of_the_java_tool(listening_with_cluster, backend, topic, tools: str, tmp_path) -> None:
    """Each command uses its own group. A few commands run concurrently, because Java starts slowly."""
    for group in ("described", "reset", "exported", "imported", "shortened", "deleted"):
        backend.offsets[group] = {topic: {0: (5, -1, ""), 1: (6, -1, "")}}
    file = tmp_path / "offsets.csv"
    file.write_text(f"{topic},0,11\n{topic},1,12\n")

    def tool(*arguments: str) -> str:
        done = java_tool(
            tools, GROUPS_TOOL, ["--bootstrap-server", listening_with_cluster.bootstrap, *PATIENT, *arguments]
        )
        assert "Error" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done.stdout

    listed, described = tool("--list"), tool("--describe", "--all-groups")
    with ThreadPoolExecutor(2) as pool:
        where = ("--topic", topic)
        reset = pool.submit(tool, "--reset-offsets", "--group", "reset", *where, "--to-latest", "--execute")
        exported = pool.submit(
            tool, "--reset-offsets", "--group", "exported", *where, "--shift-by", "2", "--export", "--dry-run"
        )
        imported = pool.submit(tool, "--reset-offsets", "--group", "imported", "--from-file", str(file), "--execute")
        shortened = pool.submit(tool, "--delete-offsets", "--group", "shortened", "--topic", f"{topic}:0")
        deleted = pool.submit(tool, "--delete", "--group", "deleted")

    assert set(listed.split()) == {"described", "reset", "exported", "imported", "shortened", "deleted"}
    rows = [line.split() for line in described.splitlines() if line.startswith("described")]
    assert sorted(row[1:6] for row in rows) == [[topic, "0", "5", "20", "15"], [topic, "1", "6", "20", "14"]]
    assert "NEW-OFFSET" in reset.result()
    assert sorted(exported.result().replace('"', "").split()) == [f"{topic},0,7", f"{topic},1,8"]
    assert "NEW-OFFSET" in imported.result()
    assert "Successful" in shortened.result()
    assert "successful" in deleted.result()
    assert {
        group: {p: at[0] for p, at in topics.get(topic, {}).items()} for group, topics in backend.offsets.items()
    } == {
        "described": {0: 5, 1: 6},
        "reset": {0: 20, 1: 20},
        "exported": {0: 5, 1: 6},
        "imported": {0: 11, 1: 12},
        "shortened": {1: 6},
    }
