"""Hand-written wire formats, checked against kio's generated readers and against published examples."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.schema.offset_commit.v7.request import OffsetCommitRequest
from kio.serial import entity_reader

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import (
    AuthenticationFailed,
    ConfigError,
    GroupActive,
    InvalidRequest,
    LockLost,
    MalformedData,
    NotAuthorized,
    NotCoordinator,
    OffsetMgrError,
    ServerError,
    Superseded,
    Unreachable,
    UnsupportedOperation,
)
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.sasl import Plain, Scram, mechanism
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol import consumer_protocol, requests
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.metadata_reader import metadata_reader
from offsetmgr.kafka.protocol.primitives import Cursor
from offsetmgr.kafka.protocol.schema_codec import decode_response, encode_request, encode_response

topics = st.text("abcXYZ.-_0", min_size=1, max_size=12)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))
offsets = st.builds(
    OffsetAndMetadata,
    st.integers(0, 2**63 - 1),
    st.text(max_size=20),
    st.none() | st.integers(0, 2**31 - 1),
)


@given(
    st.dictionaries(partitions, offsets, max_size=8),
    st.integers(-1, 2**31 - 1),
    st.text(max_size=10),
    st.none() | st.text(max_size=10),
)
def test_kio_reads_the_commits_that_we_encode(
    commits: dict[TopicPartition, OffsetAndMetadata], generation: int, member: str, instance: str | None
) -> None:
    encoded = requests.offset_commit(
        "the group", commits, generation=generation, member_id=member, instance_id=instance
    )

    read, length = entity_reader(OffsetCommitRequest)(encoded.body, 0)

    assert (encoded.api_key, encoded.version, length) == (8, 7, len(encoded.body))
    assert (read.group_id, read.generation_id_or_member_epoch, read.member_id, read.group_instance_id) == (
        "the group",
        generation,
        member,
        instance,
    )
    found = {
        TopicPartition(topic.name, part.partition_index): (
            part.committed_offset,
            part.committed_metadata,
            part.committed_leader_epoch,
        )
        for topic in read.topics
        for part in topic.partitions
    }
    assert found == {
        tp: (o.offset, o.metadata, -1 if o.leader_epoch is None else o.leader_epoch) for tp, o in commits.items()
    }


rows: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "partition_index": st.integers(0, 2**31 - 1),
        "committed_offset": st.integers(-1, 2**63 - 1),
        "committed_leader_epoch": st.integers(-1, 2**31 - 1),
        "metadata": st.none() | st.text(max_size=20) | st.just("x" * 200),
        "error_code": st.sampled_from([0, 0, ErrorCode.UNSTABLE_OFFSET_COMMIT]),
    }
)
fetched_topics: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": topics, "partitions": st.lists(rows, max_size=6, unique_by=lambda row: int(row["partition_index"]))}
)
fetched = st.lists(
    st.fixed_dictionaries(
        {
            "group_id": st.text(min_size=1, max_size=8),
            "topics": st.lists(fetched_topics, max_size=3, unique_by=lambda topic: str(topic["name"])),
            "error_code": st.sampled_from([0, 0, ErrorCode.NOT_COORDINATOR]),
        }
    ),
    max_size=3,
    unique_by=lambda group: str(group["group_id"]),
)


@given(fetched)
def test_fetched_offsets_are_those_that_the_schema_codec_encodes(groups: list[dict[str, Any]]) -> None:
    data = encode_response(9, 8, {"groups": groups})

    cursor = Cursor(data, 0, flexible=True, is_response=True)
    found = requests.read_offset_fetch(cursor)

    assert cursor.at == len(data)
    assert list(found) == [group["group_id"] for group in groups]
    for group in groups:
        answer = found[group["group_id"]]
        if group["error_code"]:
            assert isinstance(answer, NotCoordinator)
            continue
        assert isinstance(answer, requests.FetchedGroup)
        parts = {
            TopicPartition(topic["name"], part["partition_index"]): part
            for topic in group["topics"]
            for part in topic["partitions"]
        }
        assert set(answer.errors) == {tp for tp, part in parts.items() if part["error_code"]}
        assert answer.offsets == {
            tp: Committed(
                part["committed_offset"],
                part["metadata"] or "",
                None if part["committed_leader_epoch"] < 0 else part["committed_leader_epoch"],
            )
            for tp, part in parts.items()
            if not part["error_code"] and part["committed_offset"] >= 0
        }


@given(fetched, st.data())
def test_a_response_that_ends_too_early_is_rejected(groups: list[dict[str, Any]], data: st.DataObject) -> None:
    encoded = encode_response(9, 8, {"groups": groups})
    end = data.draw(st.integers(0, len(encoded) - 1))

    with pytest.raises(InvalidRequest):
        requests.read_offset_fetch(Cursor(encoded[:end], 0, flexible=True, is_response=True))


layouts = st.lists(
    st.fixed_dictionaries(
        {
            "error_code": st.sampled_from([0, ErrorCode.LEADER_NOT_AVAILABLE]),
            "partition_index": st.integers(0, 2**31 - 1),
            "leader_id": st.integers(-1, 9),
            "leader_epoch": st.integers(-1, 9),
            "replica_nodes": st.lists(st.integers(0, 9), max_size=3),
            "isr_nodes": st.lists(st.integers(0, 9), max_size=3),
            "offline_replicas": st.lists(st.integers(0, 9), max_size=3),
        }
    ),
    max_size=4,
)
described_topics = st.lists(
    st.fixed_dictionaries(
        {"name": topics, "error_code": st.just(0), "is_internal": st.booleans(), "partitions": layouts}
    ),
    max_size=3,
)


@pytest.mark.parametrize("version", range(9))
@given(topics=described_topics, rack=st.none() | st.text(max_size=3))
def test_metadata_is_read_as_the_schema_codec_reads_it_but_without_replicas(
    version: int, topics: list[dict[str, Any]], rack: str | None
) -> None:
    brokers = [{"node_id": 1, "host": "h", "port": 9092, "rack": rack}]
    data = encode_response(3, version, {"brokers": brokers, "cluster_id": "c", "controller_id": 1, "topics": topics})

    cursor = Cursor(data, 0, flexible=False, is_response=True)
    found = metadata_reader(version)(cursor)

    assert cursor.at == len(data)
    expected = decode_response(3, version, data, 0)
    for unused in ("throttle_time", "cluster_authorized_operations"):
        expected.pop(unused, None)
    for topic in expected["topics"]:
        topic.pop("topic_authorized_operations", None)
        for part in topic["partitions"]:
            for unused in ("replica_nodes", "isr_nodes", "offline_replicas"):
                part.pop(unused, None)
            part.setdefault("leader_epoch", -1)
    assert found == expected


def test_a_request_never_names_another_group_than_the_callers() -> None:
    """A response may replace characters that UTF-8 cannot encode; a request with a replaced name would edit another
    group."""
    with pytest.raises(UnicodeEncodeError):
        encode_request(42, 1, {"groups_names": ["broken \udc80"]})
    with pytest.raises(UnicodeEncodeError):
        requests.offset_commit("broken \udc80", {})


@given(st.lists(topics, max_size=5))
def test_kio_reads_the_subscriptions_that_we_encode(names: list[str]) -> None:
    encoded = consumer_protocol.encode_subscription(names)

    read, length = entity_reader(ConsumerProtocolSubscription)(encoded, 2)

    assert (encoded[:2], 2 + length) == (b"\0\0", len(encoded))
    assert (list(read.topics), read.user_data) == (names, None)
    assert list(consumer_protocol.decode_subscription(encoded)) == names


@given(st.lists(partitions, max_size=8, unique=True))
def test_kio_reads_the_assignments_that_we_encode(assigned: list[TopicPartition]) -> None:
    encoded = consumer_protocol.encode_assignment(assigned)

    read, length = entity_reader(ConsumerProtocolAssignment)(encoded, 2)

    assert (encoded[:2], 2 + length) == (b"\0\0", len(encoded))
    assert sorted(TopicPartition(t.topic, p) for t in read.assigned_partitions for p in t.partitions) == sorted(
        assigned
    )
    assert consumer_protocol.decode_assignment(encoded) == tuple(sorted(assigned))


def test_a_member_without_an_assignment_has_no_partitions() -> None:
    assert consumer_protocol.decode_assignment(b"") == ()


@given(st.binary(min_size=1, max_size=40))
def test_a_damaged_assignment_is_an_error_or_an_assignment_but_never_a_crash(data: bytes) -> None:
    try:
        found = consumer_protocol.decode_assignment(data)
    except MalformedData as error:
        assert error.what == "consumer group assignment"
    else:
        assert all(isinstance(tp, TopicPartition) for tp in found)


# --- SASL -----------------------------------------------------------------------------------------


def test_scram_sha_256_as_in_rfc_7677() -> None:
    exchange = Scram("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")

    assert exchange.start() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = exchange.answer(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@pytest.mark.parametrize(
    "challenge",
    [
        b"e=invalid-proof",
        b"r=somebody-elses,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=mine-and-more,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=none",
        b"r=mine-and-more,s=%%%,i=4096",
    ],
)
def test_a_scram_challenge_for_another_message_is_rejected(challenge: bytes) -> None:
    exchange = Scram("SCRAM-SHA-512", "user", "pencil", nonce="mine")
    exchange.start()

    with pytest.raises(AuthenticationFailed) as caught:
        exchange.answer(challenge)

    assert "pencil" not in str(caught.value)


def test_a_server_that_does_not_know_the_password_is_rejected() -> None:
    exchange = Scram("SCRAM-SHA-256", "user", "pencil", nonce="mine")
    exchange.start()
    exchange.answer(b"r=mine-and-more,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")

    with pytest.raises(AuthenticationFailed):
        exchange.answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_plain_is_one_message() -> None:
    exchange = Plain("alice", "s,e=cret")

    assert exchange.start() == b"\0alice\0s,e=cret"
    assert exchange.answer(b"") is None


def test_names_with_commas_are_escaped_in_scram() -> None:
    assert Scram("SCRAM-SHA-256", "a=b,c", "p", nonce="n").start() == b"n,,n=a=3Db=2Cc,r=n"


def test_other_mechanisms_are_rejected_by_name() -> None:
    with pytest.raises(UnsupportedOperation, match="CRAM-MD5"):
        mechanism("CRAM-MD5", "", "")


def test_kerberos_names_the_extra_if_its_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(UnsupportedOperation, match="gssapi is missing") as caught:
        Security.of({"security.protocol": "sasl_plaintext"})  # GSSAPI is the default, as in Java
    assert "pip install '.[kerberos]'" in caught.value.hint


# --- settings -------------------------------------------------------------------------------------


def test_plain_text_is_the_default() -> None:
    assert (Security.of({}).tls, Security.of({}).login()) == (None, None)


def test_sasl_over_tls_from_librdkafkas_names() -> None:
    security = Security.of(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "scram-sha-512",
            "sasl.username": "alice",
            "sasl.password": "alice-secret",
            "ssl.endpoint.identification.algorithm": "none",
            "client.id": "me",
        }
    )

    login = security.login()
    assert login is not None and login.name == "SCRAM-SHA-512"
    assert security.tls is not None and security.tls.check_hostname is False
    assert security.client_id == "me"
    assert "alice-secret" not in repr(security)


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        ({"security.protocol": "telnet"}, ConfigError),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanism": "CRAM-MD5"}, UnsupportedOperation),
        ({"security.protocol": "ssl", "ssl.keystore.location": "k.p12"}, UnsupportedOperation),
        ({"security.protocol": "ssl", "ssl.certificate.location": "missing.pem"}, ConfigError),
        ({"security.protocol": "ssl", "ssl.ca.location": "missing.pem"}, ConfigError),
        ({"security.protocol": "ssl", "ssl.ca.pem": "not a certificate"}, ConfigError),
        ({"security.protocol": "ssl", "ssl.certificate.pem": "not a certificate"}, ConfigError),
    ],
)
def test_unsupported_settings_are_rejected(properties: dict[str, str], error: type[OffsetMgrError]) -> None:
    with pytest.raises(error):
        Security.of(properties)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("h:9093", Address("h", 9093)),
        (" h ", Address("h", 9092)),
        ("[::1]:9093", Address("::1", 9093)),
        ("[::1]", Address("::1", 9092)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address


def test_a_port_that_is_not_a_number_is_rejected() -> None:
    with pytest.raises(Unreachable, match="not a number"):
        Address.parse("h:port")


# --- error codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "cls", "retriable", "name"),
    [
        (14, OffsetMgrError, True, "COORDINATOR_LOAD_IN_PROGRESS"),
        (25, LockLost, True, "UNKNOWN_MEMBER_ID"),
        (30, NotAuthorized, False, "GROUP_AUTHORIZATION_FAILED"),
        (68, GroupActive, False, "NON_EMPTY_GROUP"),
        (82, Superseded, False, "FENCED_INSTANCE_ID"),
        (999, ServerError, False, "error 999"),
    ],
)
def test_error_codes(code: int, cls: type[OffsetMgrError], retriable: bool, name: str) -> None:
    error = kafka_error(code, "group g")

    assert isinstance(error, cls)
    assert error.retriable is retriable
    assert str(error).startswith("group g: ") and name in str(error)
