"""Hand-written wire formats, checked against kio's generated readers and against published examples."""

import io
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.serial import entity_writer

from offsetmgr.core.errors import (
    AuthenticationFailed,
    ConfigError,
    ErrorCode,
    InvalidRequest,
    MalformedData,
    NotCoordinator,
    OffsetMgrError,
    UnsupportedOperation,
)
from offsetmgr.core.model import Committed, TopicPartition, deletion_mark
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.sasl import OAuthBearer, Scram
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol import requests as consumer_protocol
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.kafka.protocol.requests import read_metadata
from offsetmgr.kafka.protocol.schema_codec import Cursor, decode_response, encode_request, encode_response

topics = st.text("abcXYZ.-_0", min_size=1, max_size=12)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))


rows: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "partition_index": st.integers(0, 2**31 - 1),
        "committed_offset": st.integers(-1, 2**63 - 1),
        "committed_leader_epoch": st.integers(-1, 2**31 - 1),
        "metadata": st.none() | st.text(max_size=20) | st.just("x" * 200),
        "error_code": st.sampled_from([0, 0, ErrorCode.UNSTABLE_OFFSET_COMMIT]),
    }
)
plain_rows = st.builds(lambda row, text: {**row, "metadata": text, "error_code": 0}, rows, st.sampled_from([None, ""]))
fetched_topics: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "name": topics,
        "partitions": st.sampled_from([rows, plain_rows]).flatmap(
            lambda some: st.lists(some, max_size=6, unique_by=lambda row: int(row["partition_index"]))
        ),
    }
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


def test_an_offset_is_deleted_only_if_the_mark_names_it() -> None:
    """A tool that copies the metadata of a deleted offset to another offset does not hide the other offset."""
    parts = [
        {"partition_index": number, "committed_offset": offset, "metadata": deletion_mark(7), "error_code": 0}
        for number, offset in enumerate((7, 9))
    ]
    groups = [{"group_id": "g", "topics": [{"name": "orders", "partitions": parts}], "error_code": 0}]
    answer = Cursor(encode_response(9, 8, {"groups": groups}), 0, flexible=True, is_response=True)
    found = requests.read_offset_fetch(answer)["g"]
    assert isinstance(found, requests.FetchedGroup)
    assert {tp: committed.offset for tp, committed in found.offsets.items()} == {TopicPartition("orders", 1): 9}


@given(fetched, st.data())
def test_a_response_that_ends_too_early_is_rejected(groups: list[dict[str, Any]], data: st.DataObject) -> None:
    encoded = encode_response(9, 8, {"groups": groups})
    end = data.draw(st.integers(0, len(encoded) - 1))

    with pytest.raises(InvalidRequest):
        requests.read_offset_fetch(Cursor(encoded[:end], 0, flexible=True, is_response=True))


@given(entity=st.from_type(load_response_schema(3, 8)))
def test_metadata_is_read_as_the_schema_codec_reads_it_but_without_replicas(entity: Any) -> None:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    data = buffer.getvalue()
    cursor = Cursor(data, 0, flexible=False, is_response=True)
    found = read_metadata(cursor)

    assert cursor.at == len(data)
    expected = decode_response(3, 8, data, 0)
    for unused in ("throttle_time", "cluster_authorized_operations"):
        expected.pop(unused)
    for topic in expected["topics"]:
        topic.pop("topic_authorized_operations")
        for part in topic["partitions"]:
            for unused in ("replica_nodes", "isr_nodes", "offline_replicas"):
                part.pop(unused)
    assert found == expected


def test_a_request_never_names_another_group_than_the_callers() -> None:
    """A response may replace characters that UTF-8 cannot encode; a request with a replaced name would edit another
    group."""
    with pytest.raises(UnicodeEncodeError):
        encode_request(42, 1, {"groups_names": ["broken \udc80"]})
    with pytest.raises(UnicodeEncodeError):
        requests.offset_commit("broken \udc80", {})


@given(st.binary(max_size=40))
@example(b"")  # a member without an assignment
def test_a_damaged_assignment_is_an_error_or_an_assignment_but_never_a_crash(data: bytes) -> None:
    try:
        found = consumer_protocol.decode_assignment(data)
    except MalformedData as error:
        assert error.what == "consumer group assignment"
    else:
        assert all(isinstance(tp, TopicPartition) for tp in found) and (data or found == ())


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
    "answers",
    [
        [b"e=invalid-proof"],
        [b"r=somebody-elses,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"],
        [b"r=mine-and-more,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=none"],
        [b"r=mine-and-more,s=%%%,i=4096"],
        # a server that does not know the password
        [b"r=mine-and-more,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="],
    ],
)
def test_a_scram_server_with_an_invalid_answer_is_rejected(answers: list[bytes]) -> None:
    exchange = Scram("SCRAM-SHA-256", "user", "pencil", nonce="mine")
    exchange.start()
    for valid in answers[:-1]:
        exchange.answer(valid)
    with pytest.raises(AuthenticationFailed) as caught:
        exchange.answer(answers[-1])
    assert "pencil" not in str(caught.value)


def test_a_broker_that_rejects_a_token_may_name_a_reason() -> None:
    exchange = OAuthBearer("abc", {"logicalCluster": "lkc-1", "pool": "p"})
    assert exchange.start() == b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01pool=p\x01\x01"
    for answer, why in (
        (b'{"status":"invalid_token"}', r"rejected the token \(invalid_token\)"),
        (b"<junk>", "without a reason"),
    ):
        with pytest.raises(AuthenticationFailed, match=why):
            exchange.answer(answer)


def test_security_is_off_by_default_and_checks_of_host_names_can_be_off() -> None:
    names = {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"}
    for settings, checked in ((names, False), ({"security.protocol": "SSL"}, True)):
        tls = Security.of(settings).tls
        assert tls is not None and tls.check_hostname is checked
    assert (Security.of({}).tls, Security.of({}).login()) == (None, None)
    login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": "hidden",
    }
    assert "hidden" not in repr(Security.of({**login, "sasl.password": "hidden"}))
    addresses = {"h:9093": ("h", 9093), " h ": ("h", 9092), "[::1]:9093": ("::1", 9093), "[::1]": ("::1", 9092)}
    assert {text: tuple(Address.parse(text)) for text in addresses} == addresses


def test_kerberos_names_the_extra_if_its_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(UnsupportedOperation, match="gssapi is missing") as caught:
        Security.of({"security.protocol": "sasl_plaintext"})  # GSSAPI is the default, as in Java
    assert "pip install '.[kerberos]'" in caught.value.hint


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "error"),
    [
        ({"security.protocol": "telnet"}, ConfigError),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanism": "CRAM-MD5"}, UnsupportedOperation),
        ({"security.protocol": "ssl", "ssl.keystore.location": "k.p12"}, UnsupportedOperation),
        ({"security.protocol": "ssl", "ssl.certificate.location": "missing.pem"}, ConfigError),
        ({"security.protocol": "ssl", "ssl.ca.pem": "not a certificate"}, ConfigError),
        ({"security.protocol": "ssl", "ssl.certificate.pem": "not a certificate"}, ConfigError),
    ],
)
def test_unsupported_settings_are_rejected(properties: dict[str, str], error: type[OffsetMgrError]) -> None:
    with pytest.raises(error):
        Security.of(properties)


def test_a_missing_file_of_certificate_authorities_is_named() -> None:
    with pytest.raises(ConfigError, match=r"of ssl\.ca\.location missing\.pem: cannot be loaded: No such file"):
        Security.of({"security.protocol": "ssl", "ssl.ca.location": "missing.pem"})
