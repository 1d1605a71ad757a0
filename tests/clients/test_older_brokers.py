"""Requests to older brokers: the versions that are sent and the translated responses, as bytes on a socket."""

import asyncio
import contextlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from offsetmgr.core.errors import AuthenticationFailed, ErrorCode, ServerError, UnsupportedOperation
from offsetmgr.core.model import KEEPS_ACTIVE_OFFSETS
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol import releases
from offsetmgr.kafka.protocol.frames import Address, EncodedRequest, Request
from offsetmgr.kafka.protocol.releases import KAFKA_0_8_2, KAFKA_0_9, Versions
from offsetmgr.kafka.protocol.schema_codec import decode_request, encode_response

KAFKA_0_10_2: Versions = {
    **KAFKA_0_9,
    **{1: (0, 3), 2: (0, 1), 3: (0, 2), 9: (0, 2), 11: (0, 1), 17: (0, 0), 18: (0, 0), 19: (0, 1)},
}
KAFKA_1_1: Versions = {
    **KAFKA_0_10_2,
    **{1: (0, 7), 3: (0, 5), 8: (0, 3), 9: (0, 3), 10: (0, 1), 17: (0, 1), 22: (0, 0), 36: (0, 0), 42: (0, 1)},
}
METADATA, COMMIT, FETCH, LIST_OFFSETS, DESCRIBE_CONFIGS, CREATE_TOPICS = 3, 8, 9, 2, 32, 19
UNKNOWN, LOADING = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
Answer = Callable[[EncodedRequest], bytes]


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


class Broker:
    """A broker of a known release: answers each request with a function, and records the requests."""

    def __init__(self, versions: Versions, answer: Answer) -> None:
        self.sent: list[EncodedRequest] = []
        self._versions = versions
        self._answer = answer

    def ask(self, api_key: int, version: int, message: dict[str, Any]) -> dict[str, Any]:
        async def run() -> dict[str, Any]:
            async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
                address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
                connection = await BrokerConnection.open(address, Security(), 60, self._versions)
                try:
                    return await connection.call(Request(api_key, version, message), 60)
                finally:
                    await connection.close()

        return asyncio.run(run())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                frame = await read_frame(reader)
                api_key, version, _, name_size = struct.unpack_from(">hhih", frame)
                self.sent.append(EncodedRequest(api_key, version, frame[10 + name_size :]))
                answer = frame[4:8] + self._answer(self.sent[-1])
                writer.write(struct.pack(">i", len(answer)) + answer)
        writer.close()


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def metadata_of(partitions: int, *names: str, version: int = 0) -> bytes:
    """A Metadata response with topics of this number of partitions."""
    parts = [
        {"error_code": 0, "partition_index": number, "leader_id": 0, "replica_nodes": [], "isr_nodes": []}
        for number in range(partitions)
    ]
    topics = [{"error_code": 0, "name": name, "is_internal": False, "partitions": parts} for name in names]
    return encode_response(METADATA, version, {"brokers": [], "controller_id": 0, "topics": topics})


def partition(number: int, offset: int, code: int = 0, **fields: Any) -> dict[str, Any]:
    """A partition in a request to commit, or in a response to OffsetFetch."""
    own = {"partition_index": number, "committed_offset": offset, "error_code": code, "metadata": ""}
    return {**own, "committed_metadata": "", "committed_leader_epoch": -1, **fields}


def orders(*partitions: dict[str, Any]) -> dict[str, Any]:
    return {"topics": [{"name": "orders", "partitions": list(partitions)}]}


COMMITTED_RESPONSE = orders(partition(0, 7))


# --- commits ----------------------------------------------------------------------------------------


def commit(
    versions: Versions, response: bytes, topics: list[dict[str, Any]], **member: Any
) -> tuple[dict[str, Any], EncodedRequest]:
    """Commits to a broker whose only topic is orders, with 5 partitions. Returns the response and the last request."""

    def answer(request: EncodedRequest) -> bytes:
        return metadata_of(5, "orders", version=request.version) if request.api_key == METADATA else response

    broker = Broker(versions, answer)
    sender = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return broker.ask(COMMIT, 7, {**sender, **member, "topics": topics}), broker.sent[-1]


def test_a_commit_for_a_missing_partition_is_rejected_if_the_broker_would_accept_it() -> None:
    response = encode_response(COMMIT, 3, {"throttle_time": 0, **orders(partition(0, -1))})
    topics = orders(partition(0, 7), partition(5, 7))["topics"]
    topics.append({"name": "missing", "partitions": [partition(0, 7)]})

    found, sent = commit(KAFKA_1_1, response, topics)

    codes = {(t["name"], p["partition_index"]): p["error_code"] for t in found["topics"] for p in t["partitions"]}
    assert codes == {("orders", 0): 0, ("orders", 5): UNKNOWN, ("missing", 0): UNKNOWN}
    (named,) = decode_request(COMMIT, 3, sent.body, 0)["topics"]
    assert [part["partition_index"] for part in named["partitions"]] == [0]


def test_commits_to_082_have_version_1_and_the_present_time() -> None:
    response = struct.pack(">i", 1) + text("orders") + struct.pack(">iih", 1, 4, 0)
    part = partition(4, 7, committed_leader_epoch=3, committed_metadata="note")

    found, sent = commit(KAFKA_0_8_2, response, orders(part)["topics"])

    body = text("g") + struct.pack(">i", -1) + text("") + struct.pack(">i", 1) + text("orders")
    assert sent == EncodedRequest(COMMIT, 1, body + struct.pack(">iiqq", 1, 4, 7, -1) + text("note"))
    assert found == {"topics": [{"name": "orders", "partitions": [{"partition_index": 4, "error_code": 0}]}]}


def test_a_commit_to_1_1_keeps_the_brokers_retention_and_drops_the_leader_epoch() -> None:
    response = encode_response(COMMIT, 3, {"throttle_time": 0, "topics": []})
    topics = orders(partition(4, 7, committed_leader_epoch=3))["topics"]

    _, sent = commit(KAFKA_1_1, response, topics, generation_id_or_member_epoch=1, member_id="m")

    decoded = decode_request(COMMIT, 3, sent.body, 0)
    assert (sent.version, decoded["retention_time"], decoded["generation_id_or_member_epoch"]) == (3, -1, 1)


# --- fetches of offsets -----------------------------------------------------------------------------


def coordinator(fetched: Sequence[dict[str, Any]], codes: Sequence[int] = ()) -> Answer:
    """Answers OffsetFetch with the next of ``fetched``, and DescribeGroups with the next of these error codes."""
    answers, errors = list(fetched), list(codes)

    def answer(request: EncodedRequest) -> bytes:
        if request.api_key == FETCH:
            return encode_response(FETCH, request.version, {"error_code": 0, **answers.pop(0)})
        group = {"group_id": "g", "group_state": "", "protocol_type": "", "protocol_data": "", "members": []}
        return encode_response(15, 0, {"groups": [{**group, "error_code": errors.pop(0)}]})

    return answer


def fetch(broker: Broker, *partitions: int) -> dict[str, Any]:
    """The response about one group: to a request for these partitions of orders, or for all offsets."""
    topics = [{"name": "orders", "partition_indexes": partitions}] if partitions else None
    (found,) = broker.ask(FETCH, 8, {"groups": [{"group_id": "g", "topics": topics}], "require_stable": True})["groups"]
    return dict(found)


@pytest.mark.parametrize(("versions", "sent"), [(KAFKA_0_9, (1, [])), (KAFKA_0_10_2, (2, None))])
def test_all_offsets_of_a_group_are_requested_as_each_release_expects(versions: Versions, sent) -> None:
    broker = Broker(versions, coordinator([COMMITTED_RESPONSE]))
    fetch(broker)
    (request,) = broker.sent
    assert (request.version, decode_request(FETCH, request.version, request.body, 0)["topics"]) == sent


@pytest.mark.parametrize(
    ("fetched", "codes", "error", "topics"),
    [
        pytest.param([{"topics": []}], [LOADING], LOADING, 0, id="loading"),
        pytest.param([{"topics": []}] * 2, [0, ErrorCode.NOT_COORDINATOR], ErrorCode.NOT_COORDINATOR, 0, id="moved"),
        pytest.param([{"topics": []}, COMMITTED_RESPONSE], [0], 0, 1, id="loaded meanwhile"),
        pytest.param([{"topics": []}] * 2, [0, 0], 0, 0, id="empty"),
    ],
)
def test_before_0_10_2_an_empty_response_counts_only_from_a_coordinator_that_has_loaded_the_group(
    fetched: list[dict[str, Any]], codes: list[int], error: int, topics: int
) -> None:
    found = fetch(Broker(KAFKA_0_9, coordinator(fetched, codes)))
    assert (found["error_code"], len(found["topics"])) == (error, topics)


@pytest.mark.parametrize(
    ("existing", "error"), [(["orders", "__consumer_offsets"], LOADING), ([], LOADING), (["__consumer_offsets"], 0)]
)
def test_082_returns_unknown_topic_for_uncommitted_and_for_not_yet_known_partitions(existing, error: int) -> None:
    def answer(request: EncodedRequest) -> bytes:
        if request.api_key == METADATA:
            return metadata_of(1, *existing)
        return encode_response(FETCH, 1, orders(partition(0, -1, UNKNOWN)))

    found = fetch(Broker(KAFKA_0_8_2, answer), 0)
    assert found["error_code"] == error
    assert [part["error_code"] for topic in found["topics"] for part in topic["partitions"]] == [0] * (not error)


def test_all_offsets_of_a_group_are_never_requested_from_082() -> None:
    broker = Broker(KAFKA_0_8_2, lambda request: b"")
    with pytest.raises(UnsupportedOperation, match='lacks the capability "reads all offsets of a group"'):
        fetch(broker)
    assert broker.sent == []


def test_a_group_error_that_an_old_broker_returns_for_partitions_is_an_error_of_the_group() -> None:
    response = encode_response(FETCH, 1, orders(partition(0, -1, LOADING)))
    found = fetch(Broker(KAFKA_0_9, lambda request: response), 0)
    assert (found["error_code"], found["topics"]) == (LOADING, [])


# --- metadata and ends of logs ------------------------------------------------------------------------


def test_a_missing_topic_is_not_named_to_brokers_that_would_create_it() -> None:
    broker = Broker(KAFKA_0_10_2, lambda request: metadata_of(0, "existing", version=request.version))
    names = [{"name": "existing"}, {"name": "missing"}]
    found = broker.ask(METADATA, 8, {"topics": names, "allow_auto_topic_creation": False})
    assert decode_request(METADATA, 2, broker.sent[0].body, 0)["topics"] is None
    assert [(topic["name"], topic["error_code"]) for topic in found["topics"]] == [
        ("existing", 0),
        ("missing", UNKNOWN),
    ]


def large_metadata(version: int, topics: int = 1_000, partitions: int = 300) -> bytes:
    """Returns the Metadata response of a large cluster with three replicas of each partition."""
    replicas = struct.pack(">iiii", 3, 0, 1, 2)
    parts = b"".join(struct.pack(">hii", 0, number, number % 3) + replicas * 2 for number in range(partitions))
    body = bytearray(bytes(4) if version >= 3 else b"")  # throttle time
    body += struct.pack(">ii", 1, 0) + text("h") + struct.pack(">i", 9092)
    body += text("rack") if version >= 1 else b""
    body += text("cluster") if version >= 2 else b""
    body += bytes(4) if version >= 1 else b""  # controller
    body += struct.pack(">i", topics)
    for number in range(topics):
        body += struct.pack(">h", 0) + text(f"topic-{number}") + (b"\0" if version >= 1 else b"")
        body += struct.pack(">i", partitions) + parts
    return bytes(body)


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_cluster_of_300_000_partitions_is_read(version: int) -> None:
    """The response has 2,100,000 items: 1,000 topics of 300 partitions with six replica ids each."""
    broker = Broker({**KAFKA_0_9, METADATA: (0, version)}, lambda request: large_metadata(version))
    everything = broker.ask(METADATA, 8, {"topics": None, "allow_auto_topic_creation": False})
    assert {len(topic["partitions"]) for topic in everything["topics"]} == {300}
    assert len(everything["topics"]) == 1_000
    request = {"topics": [{"name": "topic-7"}, {"name": "gone"}], "allow_auto_topic_creation": False}
    named = broker.ask(METADATA, 8, request)["topics"]
    assert [(topic["name"], len(topic["partitions"])) for topic in named] == [("topic-7", 300), ("gone", 0)]
    assert [part["leader_id"] for part in named[0]["partitions"][:4]] == [0, 1, 2, 0]


@pytest.mark.parametrize("count", [-1, 2**31 - 1], ids=["a negative count", "a count beyond the response"])
def test_a_metadata_response_with_an_invalid_number_of_replicas_is_rejected(count: int) -> None:
    body = large_metadata(0, topics=1, partitions=1)
    at = len(body) - 32  # the position of the number of replicas
    broker = Broker(KAFKA_0_9, lambda request: body[:at] + struct.pack(">i", count) + body[at + 4 :])
    with pytest.raises(ServerError, match="its response is not valid"):
        broker.ask(METADATA, 8, {"topics": None, "allow_auto_topic_creation": False})


def list_offsets(broker: Broker, time: int) -> list[dict[str, Any]]:
    parts = [{"partition_index": 0, "timestamp": time}]
    request = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": parts}]}
    (topic,) = broker.ask(LIST_OFFSETS, 4, request)["topics"]
    return list(topic["partitions"])


@pytest.mark.slow
def test_a_list_offsets_response_of_250_000_partitions_is_read() -> None:
    part = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": 42}
    response = encode_response(LIST_OFFSETS, 1, orders(*[part] * 250_000))
    assert len(list_offsets(Broker(KAFKA_0_10_2, lambda request: response), -1)) == 250_000


def test_list_offsets_version_0_finds_ends_and_rejects_times() -> None:
    response = struct.pack(">i", 1) + text("orders") + struct.pack(">iihiq", 1, 0, 0, 1, 42)
    broker = Broker(KAFKA_0_9, lambda request: response)

    assert list_offsets(broker, -1) == [{"partition_index": 0, "error_code": 0, "offset": 42}]
    with pytest.raises(UnsupportedOperation, match='lacks the capability "finds offsets by time"'):
        list_offsets(broker, 1_700_000_000_000)
    assert len(broker.sent) == 1


# --- settings -----------------------------------------------------------------------------------------


def test_settings_are_read_from_0_11_and_1_0_in_version_0_of_the_request() -> None:
    resource = struct.pack(">b", 2) + text("orders")
    configs = text("cleanup.policy") + text("compact") + b"\0\0\0" + text("password") + b"\xff\xff\1\1\1"
    response = struct.pack(">iihh", 0, 1, 0, -1) + resource + struct.pack(">i", 2) + configs
    broker = Broker({**KAFKA_1_1, DESCRIBE_CONFIGS: (0, 0)}, lambda request: response)
    asked = {"resource_type": 2, "resource_name": "orders", "configuration_keys": None}

    found = broker.ask(DESCRIBE_CONFIGS, 1, {"resources": [asked], "include_synonyms": False})

    settings = [(one["name"], one["value"]) for one in found["results"][0]["configs"]]
    assert settings == [("cleanup.policy", "compact"), ("password", None)]
    body = struct.pack(">i", 1) + resource + struct.pack(">i", -1)
    assert broker.sent == [EncodedRequest(DESCRIBE_CONFIGS, 0, body)]


# --- releases -----------------------------------------------------------------------------------------


def test_a_missing_api_is_an_error_that_names_the_capability() -> None:
    broker = Broker(KAFKA_1_1, lambda request: b"")
    with pytest.raises(UnsupportedOperation, match=r"Kafka 1\.1 lacks .*deletes single offsets.* Kafka 2\.4"):
        broker.ask(47, 0, {"group_id": "g", "topics": []})


def test_a_version_without_a_schema_is_an_error_of_the_package() -> None:
    with pytest.raises(UnsupportedOperation, match="offsetmgr does not know API 19 in version 1"):
        Broker(KAFKA_0_10_2, lambda request: b"").ask(CREATE_TOPICS, 2, {"topics": [], "timeout": 1})


def test_a_release_is_reported_by_the_versions_and_the_fallback_names_one_before_apiversions() -> None:
    known = {"0.8.2": KAFKA_0_8_2, "0.9": KAFKA_0_9, "0.10.2": KAFKA_0_10_2, "1.1": KAFKA_1_1}
    assert [releases.release(versions) for versions in known.values()] == list(known)
    for name, versions in {"0.8.2.2": KAFKA_0_8_2, "0.9.0.1": KAFKA_0_9, "0.10.2": None, "": None}.items():
        assert releases.fallback_versions(name) is versions


def test_plans_for_brokers_before_2_1_say_that_each_offset_expires_by_itself() -> None:
    """Brokers from 2.1 on accept OffsetCommit 5, which has no retention."""
    later: Versions = {**KAFKA_1_1, 8: (0, 6), 1: (0, 10)}
    for versions, reported in (([KAFKA_1_1], True), ([later, KAFKA_1_1], True), ([later], False)):
        texts = [
            weakness.text for weakness in releases.weaknesses(versions) if weakness.subject == KEEPS_ACTIVE_OFFSETS
        ]
        assert bool(texts) == reported
        assert not reported or "each offset expires by itself" in texts[0]


def test_a_broker_is_0_8_2_only_if_it_closes_two_connections_at_the_same_request() -> None:
    """A stopping broker of 0.9 closes connections, too."""
    seen: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = len(seen)
        seen.append(0)
        while seen[connection] < 2:
            frame = await read_frame(reader)
            seen[connection] += 1
            if seen[connection] == 2 and connection == 0:
                break
            answer = frame[4:8] + (metadata_of(0) if seen[connection] == 1 else bytes(6))
            writer.write(struct.pack(">i", len(answer)) + answer)
        writer.close()

    async def run() -> Versions:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            connection = await BrokerConnection.open(Address("127.0.0.1", port), Security(), 60)
            await connection.close()
            return connection.versions

    assert asyncio.run(run()) is KAFKA_0_9
    assert seen == [2, 2]


# --- logins -------------------------------------------------------------------------------------------


LOGIN = Security(sasl=("PLAIN", "alice", "secret"))


class Listener:
    """A fake listener with SASL PLAIN, like a broker of these versions. It closes the first ``lost`` connections in the
    middle of the login. Without ApiVersions, it behaves as before 0.10.0: 0.9 does not respond to that request, and
    0.8.2 closes the connection."""

    def __init__(self, versions: Versions, *, password: str = "secret", lost: int = 0) -> None:
        self.versions = versions
        self.sent: list[tuple[int, int]] = []
        """API and version of each request; (-1, 0) is a token without a header."""
        self.connections = 0
        self._password = password
        self._lost = lost

    def open(self, timeout: float = 60) -> Versions:
        """Opens and closes a connection. Returns the API versions of the broker."""

        async def run() -> Versions:
            async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                connection = await BrokerConnection.open(Address("127.0.0.1", port), LOGIN, timeout)
                assert await connection.exchange(EncodedRequest(METADATA, 0, bytes(4)), timeout)
                await connection.close()
                return connection.versions

        return asyncio.run(run())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        bare, lost = False, self.connections <= self._lost
        try:
            while True:
                frame = await read_frame(reader)
                key, version = (-1, 0) if bare else struct.unpack_from(">hh", frame)
                self.sent.append((key, version))
                answer = b"" if bare else self._answer(key, version, frame)
                if bare and (lost or frame != f"\0alice\0{self._password}".encode()):
                    return
                if answer is None:
                    await reader.read()
                    return
                if not bare:
                    answer = frame[4:8] + answer
                writer.write(struct.pack(">i", len(answer)) + answer)
                bare = (key, version) == (17, 0)
        except (asyncio.IncompleteReadError, EOFError):
            pass
        finally:
            writer.close()

    def _answer(self, key: int, version: int, frame: bytes) -> bytes | None:
        """Returns None if the broker does not respond. Raises `EOFError` if the broker closes the connection."""
        if key in (16, 18) and key not in self.versions:
            if key == 16 or self.versions is KAFKA_0_8_2:
                raise EOFError
            return None
        keys = [{"api_key": k, "min_version": low, "max_version": high} for k, (low, high) in self.versions.items()]
        answers: dict[int, dict[str, Any]] = {
            16: {"error_code": 0, "groups": []},
            17: {"error_code": 0, "mechanisms": ["PLAIN"]},
            18: {"error_code": 0, "api_keys": keys},
            36: {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime": 0},
        }
        version = version if key in (17, 36) else 0
        return encode_response(key, version, answers[key]) if key in answers else metadata_of(0)


@pytest.mark.parametrize(
    ("versions", "sent"),
    [(KAFKA_0_10_2, [(18, 0), (17, 0), (-1, 0), (3, 0)]), (KAFKA_1_1, [(18, 0), (17, 1), (36, 0), (3, 0)])],
)
def test_a_login_is_sent_as_tokens_before_1_0_and_as_requests_from_then_on(versions: Versions, sent) -> None:
    listener = Listener(versions)
    assert listener.open() == versions
    assert listener.sent == sent


def test_a_wrong_password_is_named_though_0_10_only_closes_the_connection() -> None:
    listener = Listener(KAFKA_0_10_2, password="another")
    with pytest.raises(AuthenticationFailed, match="closed the connection during the login") as failed:
        listener.open()
    assert "check the user name and password" in str(failed.value.hint)
    assert listener.connections == 2


def test_a_broker_that_closes_a_connection_during_the_login_because_it_stops_does_not_fail_the_login() -> None:
    listener = Listener(KAFKA_0_10_2, lost=1)
    assert listener.open() == KAFKA_0_10_2
    assert listener.connections == 2


@pytest.mark.parametrize("versions", [KAFKA_0_8_2, KAFKA_0_9])
def test_a_login_to_a_broker_before_0_10_is_an_error_that_names_the_capability(versions: Versions) -> None:
    listener = Listener(versions)
    with pytest.raises(UnsupportedOperation, match=r'lacks the capability "accepts SASL logins", .* Kafka 0\.10\.0'):
        listener.open(timeout=1)
