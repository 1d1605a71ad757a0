"""Requests to older brokers: the versions that are sent and the translated responses, as bytes."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import AuthenticationFailed, ServerError, UnsupportedOperation
from offsetmgr.core.model import KEEPS_ACTIVE_OFFSETS, TopicPartition, deletion_mark
from offsetmgr.kafka.client.connection import BrokerConnection, _is_metadata_0
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol import releases
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, EncodedRequest, Request
from offsetmgr.kafka.protocol.old_versions import send_translated
from offsetmgr.kafka.protocol.primitives import INT16, INT32, INT64, Cursor, string
from offsetmgr.kafka.protocol.releases import KAFKA_0_8_2, KAFKA_0_9, Versions
from offsetmgr.kafka.protocol.requests import FetchedGroup, read_offset_fetch
from offsetmgr.kafka.protocol.schema_codec import decode_request, encode_response

KAFKA_0_10_2: Versions = {
    **KAFKA_0_9,
    **{1: (0, 3), 2: (0, 1), 3: (0, 2), 9: (0, 2), 11: (0, 1), 17: (0, 0), 18: (0, 0), 19: (0, 1)},
}
KAFKA_1_1: Versions = {
    **KAFKA_0_10_2,
    **{1: (0, 7), 3: (0, 5), 8: (0, 3), 9: (0, 3), 10: (0, 1), 17: (0, 1), 22: (0, 0), 36: (0, 0), 42: (0, 1)},
}


_ports = itertools.count(1)
"""Each fake broker has its own port, because the client caches facts about a broker by its address."""


class Broker:
    """A fake connection: answers each request with a function, and records the requests."""

    def __init__(self, versions: Versions, answer: Callable[[EncodedRequest], bytes]) -> None:
        self.versions = versions
        self.address = Address("broker", next(_ports))
        self.sent: list[EncodedRequest] = []
        self._answer = answer

    async def exchange(self, request: EncodedRequest, timeout: float) -> bytes:
        assert timeout
        self.sent.append(request)
        return bytes(4) + self._answer(request)

    def ask(self, api_key: int, version: int, message: dict[str, Any]) -> dict[str, Any]:
        return asyncio.run(send_translated(cast(BrokerConnection, self), Request(api_key, version, message), 1))


def text(value: str) -> bytes:
    return string(value, flexible=False)


def orders(partitions: int) -> dict[str, Any]:
    """Returns a Metadata response with a topic of this number of partitions."""
    parts = [
        {"error_code": 0, "partition_index": number, "leader_id": 0, "replica_nodes": [], "isr_nodes": []}
        for number in range(partitions)
    ]
    return {"brokers": [], "topics": [{"error_code": 0, "name": "orders", "partitions": parts}]}


def test_a_commit_for_a_missing_partition_is_rejected_if_the_broker_would_accept_it() -> None:
    def answer(request: EncodedRequest) -> bytes:
        if request.api_key == 3:
            return encode_response(3, request.version, orders(1))
        part = {"partition_index": 0, "error_code": 0}
        return encode_response(8, 3, {"throttle_time": 0, "topics": [{"name": "orders", "partitions": [part]}]})

    broker = Broker(KAFKA_1_1, answer)
    parts = [
        {"partition_index": number, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
        for number in (0, 1)
    ]
    commit = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    topics = [{"name": "orders", "partitions": parts}, {"name": "missing", "partitions": parts[:1]}]
    found = broker.ask(8, 7, {**commit, "topics": topics})
    codes = {(t["name"], p["partition_index"]): p["error_code"] for t in found["topics"] for p in t["partitions"]}
    assert codes == {
        ("orders", 0): 0,
        ("orders", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    (named,) = decode_request(8, 3, broker.sent[-1].body, 0)["topics"]
    assert [part["partition_index"] for part in named["partitions"]] == [0]


def test_commits_to_082_have_version_1_and_the_present_time() -> None:
    def answer(request: EncodedRequest) -> bytes:
        if request.api_key == 3:
            return encode_response(3, 0, orders(5))
        parts = INT32.pack(1) + INT32.pack(4) + INT16.pack(0)
        return INT32.pack(1) + text("orders") + parts

    broker = Broker(KAFKA_0_8_2, answer)
    part = {"partition_index": 4, "committed_offset": 7, "committed_leader_epoch": 3, "committed_metadata": "note"}
    commit = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    found = broker.ask(8, 7, {**commit, "topics": [{"name": "orders", "partitions": [part]}]})
    body = text("g") + INT32.pack(-1) + text("") + INT32.pack(1) + text("orders") + INT32.pack(1)
    body += INT32.pack(4) + INT64.pack(7) + INT64.pack(-1) + text("note")
    assert broker.sent[-1] == EncodedRequest(8, 1, body)
    assert found == {"topics": [{"name": "orders", "partitions": [{"partition_index": 4, "error_code": 0}]}]}


def test_a_commit_to_1_1_keeps_the_brokers_retention_and_drops_the_leader_epoch() -> None:
    def answer(request: EncodedRequest) -> bytes:
        if request.api_key == 3:
            return encode_response(3, request.version, orders(5))
        return encode_response(8, 3, {"throttle_time": 0, "topics": []})

    broker = Broker(KAFKA_1_1, answer)
    part = {"partition_index": 4, "committed_offset": 7, "committed_leader_epoch": 3, "committed_metadata": ""}
    commit = {"group_id": "g", "generation_id_or_member_epoch": 1, "member_id": "m", "group_instance_id": None}
    broker.ask(8, 7, {**commit, "topics": [{"name": "orders", "partitions": [part]}]})
    sent = broker.sent[-1]
    decoded = decode_request(8, 3, sent.body, 0)
    assert (sent.version, decoded["retention_time"], decoded["generation_id_or_member_epoch"]) == (3, -1, 1)


ALL_OFFSETS: dict[str, Any] = {"groups": [{"group_id": "g", "topics": None}], "require_stable": True}
COMMITTED = {"partition_index": 0, "committed_offset": 7, "metadata": "", "error_code": 0}
COMMITTED_RESPONSE: dict[str, Any] = {"topics": [{"name": "orders", "partitions": [COMMITTED]}]}


class Coordinator:
    """Answers OffsetFetch with the next of ``fetched``, and DescribeGroups with the next of these error codes."""

    def __init__(self, fetched: Sequence[dict[str, Any]], codes: Sequence[int] = ()) -> None:
        self._fetched, self._codes = list(fetched), list(codes)

    def __call__(self, request: EncodedRequest) -> bytes:
        if request.api_key == 9:
            return encode_response(9, request.version, {"error_code": 0, **self._fetched.pop(0)})
        group = {"group_id": "g", "group_state": "", "protocol_type": "", "protocol_data": "", "members": []}
        return encode_response(15, 0, {"groups": [{**group, "error_code": self._codes.pop(0)}]})


@pytest.mark.parametrize(("versions", "sent"), [(KAFKA_0_9, (1, [])), (KAFKA_0_10_2, (2, None))])
def test_all_offsets_of_a_group_are_requested_as_each_release_expects(
    versions: Versions, sent: tuple[int, Any]
) -> None:
    broker = Broker(versions, Coordinator([COMMITTED_RESPONSE]))
    broker.ask(9, 8, ALL_OFFSETS)
    (request,) = broker.sent
    assert (request.version, decode_request(9, request.version, request.body, 0)["topics"]) == sent


@pytest.mark.parametrize(
    ("fetched", "codes", "error", "topics"),
    [
        ([{"topics": []}], [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS], ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0),
        ([{"topics": []}, {"topics": []}], [0, ErrorCode.NOT_COORDINATOR], ErrorCode.NOT_COORDINATOR, 0),
        ([{"topics": []}, COMMITTED_RESPONSE], [0], 0, 1),
        ([{"topics": []}, {"topics": []}], [0, 0], 0, 0),
    ],
    ids=["loading", "moved away", "loaded meanwhile", "empty"],
)
def test_before_0_10_2_an_empty_response_counts_only_from_a_coordinator_that_has_loaded_the_group(
    fetched: list[dict[str, Any]], codes: list[int], error: int, topics: int
) -> None:
    (found,) = Broker(KAFKA_0_9, Coordinator(fetched, codes)).ask(9, 8, ALL_OFFSETS)["groups"]
    assert (found["error_code"], len(found["topics"])) == (error, topics)


@pytest.mark.parametrize(
    ("existing", "error"),
    [
        (["orders", "__consumer_offsets"], ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ([], ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (["__consumer_offsets"], 0),
    ],
)
def test_082_returns_unknown_topic_for_uncommitted_and_for_not_yet_known_partitions(
    existing: list[str], error: int
) -> None:
    def answer(request: EncodedRequest) -> bytes:
        if request.api_key == 3:
            return encode_response(
                3, 0, {"brokers": [], "topics": [{**orders(1)["topics"][0], "name": n} for n in existing]}
            )
        part = {
            "partition_index": 0,
            "committed_offset": -1,
            "metadata": "",
            "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        return encode_response(9, 1, {"topics": [{"name": "orders", "partitions": [part]}]})

    group = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}
    (found,) = Broker(KAFKA_0_8_2, answer).ask(9, 8, {"groups": [group], "require_stable": True})["groups"]
    assert found["error_code"] == error
    assert [part["error_code"] for topic in found["topics"] for part in topic["partitions"]] == [0] * (not error)


def test_a_broker_is_0_8_2_only_if_it_closes_two_connections_at_the_same_request() -> None:
    """A stopping broker of 0.9 closes connections, too."""
    seen: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = len(seen)
        seen.append(0)
        while seen[connection] < 2:
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            frame = await reader.readexactly(length)
            seen[connection] += 1
            if seen[connection] == 2 and connection == 0:
                break
            nothing = encode_response(3, 0, {"brokers": [], "topics": []})
            answer = frame[4:8] + (nothing if seen[connection] == 1 else bytes(6))
            writer.write(INT32.pack(len(answer)) + answer)
        writer.close()

    async def run() -> Versions:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            connection = await BrokerConnection.open(Address("127.0.0.1", port), Security(), 60)
            await connection.close()
            return connection.versions

    assert asyncio.run(run()) is KAFKA_0_9
    assert seen == [2, 2]


def test_all_offsets_of_a_group_are_never_requested_from_082() -> None:
    broker = Broker(KAFKA_0_8_2, lambda request: b"")
    with pytest.raises(UnsupportedOperation, match='lacks the capability "reads all offsets of a group"'):
        broker.ask(9, 8, {"groups": [{"group_id": "g", "topics": None}], "require_stable": True})
    assert broker.sent == []


def test_a_group_error_that_an_old_broker_returns_for_partitions_is_an_error_of_the_group() -> None:
    def answer(request: EncodedRequest) -> bytes:
        part = {
            "partition_index": 0,
            "committed_offset": -1,
            "metadata": "",
            "error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        }
        return encode_response(9, 1, {"topics": [{"name": "orders", "partitions": [part]}]})

    group = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}
    (found,) = Broker(KAFKA_0_9, answer).ask(9, 8, {"groups": [group], "require_stable": True})["groups"]
    assert (found["error_code"], found["topics"]) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])


def test_a_missing_topic_is_not_named_to_brokers_that_would_create_it() -> None:
    def answer(request: EncodedRequest) -> bytes:
        topic = {"error_code": 0, "name": "existing", "is_internal": False, "partitions": []}
        return encode_response(3, request.version, {"brokers": [], "controller_id": 0, "topics": [topic]})

    broker = Broker(KAFKA_0_10_2, answer)
    request = {"topics": [{"name": "existing"}, {"name": "missing"}], "allow_auto_topic_creation": False}
    found = broker.ask(3, 8, request)
    assert decode_request(3, 2, broker.sent[0].body, 0)["topics"] is None
    assert [(topic["name"], topic["error_code"]) for topic in found["topics"]] == [
        ("existing", 0),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def large_metadata(version: int, topics: int = 1_000, partitions: int = 300) -> bytes:
    """Returns the Metadata response of a large cluster with three replicas of each partition."""
    replicas = struct.pack(">iiii", 3, 0, 1, 2)
    parts = b"".join(struct.pack(">hii", 0, number, number % 3) + replicas * 2 for number in range(partitions))
    body = bytearray(INT32.pack(0) if version >= 3 else b"")  # throttle time
    body += INT32.pack(1) + INT32.pack(0) + text("h") + INT32.pack(9092)
    if version >= 1:
        body += text("rack")
    if version >= 2:
        body += text("cluster")
    if version >= 1:
        body += INT32.pack(0)  # controller
    body += INT32.pack(topics)
    for number in range(topics):
        body += INT16.pack(0) + text(f"topic-{number}") + (b"\0" if version >= 1 else b"")
        body += INT32.pack(partitions) + parts
    return bytes(body)


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_cluster_of_300_000_partitions_is_read(version: int) -> None:
    """The response has 2,100,000 items: 1,000 topics of 300 partitions with six replica ids each."""
    broker = Broker({**KAFKA_0_9, 3: (0, version)}, lambda request: large_metadata(version))
    everything = broker.ask(3, 8, {"topics": None, "allow_auto_topic_creation": False})
    assert {len(topic["partitions"]) for topic in everything["topics"]} == {300}
    assert len(everything["topics"]) == 1_000
    request = {"topics": [{"name": "topic-7"}, {"name": "gone"}], "allow_auto_topic_creation": False}
    named = broker.ask(3, 8, request)["topics"]
    assert [(topic["name"], len(topic["partitions"])) for topic in named] == [("topic-7", 300), ("gone", 0)]
    assert [part["leader_id"] for part in named[0]["partitions"][:4]] == [0, 1, 2, 0]


@pytest.mark.slow
def test_a_list_offsets_response_of_250_000_partitions_is_read() -> None:
    part = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": 42}
    topics = [{"name": "orders", "partitions": [part] * 250_000}]
    broker = Broker(KAFKA_0_10_2, lambda request: encode_response(2, 1, {"topics": topics}))
    requested = [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    (found,) = broker.ask(2, 4, {"replica_id": -1, "isolation_level": 0, "topics": requested})["topics"]
    assert len(found["partitions"]) == 250_000


@pytest.mark.parametrize(
    "count",
    [struct.pack(">i", -1), struct.pack(">i", 2**31 - 1)],
    ids=["a negative count", "a count beyond the response"],
)
def test_a_metadata_response_with_an_invalid_number_of_replicas_is_rejected(count: bytes) -> None:
    body = large_metadata(0, topics=1, partitions=1)
    at = len(body) - 32  # the position of the number of replicas
    broker = Broker(KAFKA_0_9, lambda request: body[:at] + count + body[at + 4 :])
    with pytest.raises(ServerError, match="its response is not valid"):
        broker.ask(3, 8, {"topics": None, "allow_auto_topic_creation": False})


def test_list_offsets_version_0_finds_ends_and_rejects_times() -> None:
    def answer(request: EncodedRequest) -> bytes:
        parts = INT32.pack(1) + INT32.pack(0) + INT16.pack(0) + INT32.pack(1) + INT64.pack(42)
        return INT32.pack(1) + text("orders") + parts

    broker = Broker(KAFKA_0_9, answer)

    def list_offsets(time: int) -> dict[str, Any]:
        parts = [{"partition_index": 0, "timestamp": time}]
        return {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": parts}]}

    (topic,) = broker.ask(2, 4, list_offsets(-1))["topics"]
    assert topic["partitions"] == [{"partition_index": 0, "error_code": 0, "offset": 42}]
    with pytest.raises(UnsupportedOperation, match='lacks the capability "finds offsets by time"'):
        broker.ask(2, 4, list_offsets(1_700_000_000_000))
    assert len(broker.sent) == 1


def test_a_missing_api_is_an_error_that_names_the_capability() -> None:
    broker = Broker(KAFKA_1_1, lambda request: b"")
    with pytest.raises(UnsupportedOperation, match=r"Kafka 1\.1 lacks .*deletes single offsets.* Kafka 2\.4"):
        broker.ask(47, 0, {"group_id": "g", "topics": []})


@pytest.mark.parametrize(
    ("versions", "name"), [(KAFKA_0_8_2, "0.8.2"), (KAFKA_0_9, "0.9"), (KAFKA_0_10_2, "0.10.2"), (KAFKA_1_1, "1.1")]
)
def test_a_release_is_reported_by_the_versions(versions: Versions, name: str) -> None:
    assert releases.release(versions) == name


@pytest.mark.parametrize(
    ("text", "known"), [("0.8.2.2", KAFKA_0_8_2), ("0.9.0.1", KAFKA_0_9), ("0.10.2", None), ("", None)]
)
def test_the_fallback_names_a_release_before_apiversions(text: str, known: Versions | None) -> None:
    assert releases.fallback_versions(text) is known


def test_metadata_responses_of_versions_0_and_1_are_distinguished() -> None:
    nodes = {"node_id": 1, "host": "h", "port": 9092}
    topic = {"error_code": ErrorCode.INVALID_TOPIC_EXCEPTION, "name": "?", "partitions": []}
    old = encode_response(3, 0, {"brokers": [nodes], "topics": [topic]})
    new = encode_response(3, 1, {"brokers": [nodes], "controller_id": 1, "topics": [topic]})
    assert _is_metadata_0(bytes(4) + old)
    assert not _is_metadata_0(bytes(4) + new)


def test_plans_for_brokers_before_2_1_say_that_each_offset_expires_by_itself() -> None:
    """Brokers from 2.1 on accept OffsetCommit 5, which has no retention."""
    later: Versions = {**KAFKA_1_1, 8: (0, 6), 1: (0, 10)}
    for versions, reported in (([KAFKA_1_1], True), ([later, KAFKA_1_1], True), ([later], False)):
        texts = [
            weakness.text for weakness in releases.weaknesses(versions) if weakness.subject == KEEPS_ACTIVE_OFFSETS
        ]
        assert bool(texts) == reported
        assert not reported or "each offset expires by itself" in texts[0]


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
                assert await connection.exchange(EncodedRequest(ApiKey.METADATA, 0, INT32.pack(0)), timeout)
                await connection.close()
                return connection.versions

        return asyncio.run(run())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        bare, lost = False, self.connections <= self._lost
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(length)
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
                writer.write(INT32.pack(len(answer)) + answer)
                bare = (key, version) == (17, 0)
        except (asyncio.IncompleteReadError, EOFError):
            pass
        finally:
            writer.close()

    def _answer(self, key: int, version: int, frame: bytes) -> bytes | None:
        """Returns None if the broker does not respond. Raises `EOFError` if the broker closes the connection."""
        if key == 18 and 18 not in self.versions:
            if self.versions is KAFKA_0_8_2:
                raise EOFError
            return None
        if key == 18:
            keys = [{"api_key": k, "min_version": low, "max_version": high} for k, (low, high) in self.versions.items()]
            return encode_response(18, 0, {"error_code": 0, "api_keys": keys})
        if key == 17:
            return encode_response(17, version, {"error_code": 0, "mechanisms": ["PLAIN"]})
        if key == 36:
            message = {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime": 0}
            return encode_response(36, version, message)
        if key == 16 and 16 not in self.versions:
            raise EOFError
        if key == 16:
            return encode_response(16, 0, {"error_code": 0, "groups": []})
        return encode_response(3, 0, {"brokers": [], "topics": []})


@pytest.mark.parametrize(
    ("versions", "sent"),
    [
        (KAFKA_0_10_2, [(18, 0), (17, 0), (-1, 0), (3, 0)]),
        (KAFKA_1_1, [(18, 0), (17, 1), (36, 0), (3, 0)]),
    ],
)
def test_a_login_is_sent_as_tokens_before_1_0_and_as_requests_from_then_on(
    versions: Versions, sent: Sequence[tuple[int, int]]
) -> None:
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


def test_an_offset_is_deleted_only_if_the_mark_names_it() -> None:
    """A tool that copies the metadata of a deleted offset to another offset does not hide the other offset."""
    parts = [
        {"partition_index": number, "committed_offset": offset, "metadata": deletion_mark(7), "error_code": 0}
        for number, offset in enumerate((7, 9))
    ]
    group = {"group_id": "g", "topics": [{"name": "orders", "partitions": parts}], "error_code": 0}
    answer = encode_response(9, 8, {"groups": [group]})
    found = read_offset_fetch(Cursor(answer, 0, flexible=True, is_response=True))["g"]
    assert isinstance(found, FetchedGroup)
    assert {tp: committed.offset for tp, committed in found.offsets.items()} == {TopicPartition("orders", 1): 9}
