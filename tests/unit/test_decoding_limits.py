"""Limits on requests that are small to send and costly to decode, while other clients are served."""

from __future__ import annotations

import asyncio
import gc
import struct
import threading
import time
import uuid
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from listener_requests import wait_until
from memory_listener import MemoryBackend, MemoryListener, WireClient, commit_errors, commit_message
from stopwatch import loop_s

from offsetmgr.cli.app import run as run_command
from offsetmgr.core.errors import InvalidRequest
from offsetmgr.core.varint import encode_varint
from offsetmgr.kafka.client.backing_cluster import FoundOffset, OffsetQuery, TopicLayout
from offsetmgr.kafka.protocol.primitives import Cursor
from offsetmgr.kafka.protocol.schema_codec import decode_request, decode_response, encode_request
from offsetmgr.manager.protocol_values import FetchRequest, FetchResponse
from offsetmgr.server.apis import fetch_codec
from offsetmgr.server.network.limits import ServerLimits
from offsetmgr.server.process.config import ServeOptions

FIND_COORDINATOR, DESCRIBE_GROUPS, API_VERSIONS, DELETE_GROUPS = 10, 15, 18, 42
INVALID_REQUEST, INVALID_COMMIT_OFFSET_SIZE, INVALID_TOPIC = 42, 28, 17
BUDGET = 20.0
"""The processor time that one callback may take, in units of `loop_s`."""


@pytest.fixture
def listening() -> Iterator[MemoryListener]:
    with MemoryListener(MemoryBackend()) as listening:
        yield listening


def frame(api_key: int, version: int, body: bytes, *, flexible: bool = True) -> bytes:
    head = struct.pack(">hhih", api_key, version, 7, -1) + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


class Probe:
    """Measures the longest callback of the listener's event loop, in processor time of its thread, in units of
    `loop_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longest = 0.0
        unit_s = loop_s()
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            begun = time.thread_time()
            run(handle)
            if threading.current_thread() is not threading.main_thread():
                self.longest = max(self.longest, (time.thread_time() - begun) / unit_s)

        monkeypatch.setattr(asyncio.Handle, "_run", timed)


def test_eight_megabytes_of_empty_tagged_fields_are_rejected_at_once(
    listening: MemoryListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = 2_000_000
    body = encode_varint(1) + encode_varint(fields) + b"".join(b"\x01\x00" for _ in range(fields))
    gc.collect()
    gc.disable()
    try:
        probe = Probe(monkeypatch)
        with WireClient(listening.port) as client, WireClient(listening.port) as other:
            client.socket.sendall(frame(DELETE_GROUPS, 2, body))
            assert client.is_disconnected()
            other.ask(API_VERSIONS, 0, {})
        assert probe.longest <= BUDGET
    finally:
        gc.enable()


def test_a_large_api_versions_request_is_rejected_before_it_is_decoded(listening: MemoryListener) -> None:
    with WireClient(listening.port) as client, WireClient(listening.port) as other:
        client.socket.sendall(frame(API_VERSIONS, 3, b"x" * 9000))
        assert client.is_disconnected()
        other.ask(API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api_key", "version", "field"),
    [(FIND_COORDINATOR, 4, "coordinator_keys"), (DESCRIBE_GROUPS, 5, "groups"), (DELETE_GROUPS, 2, "groups_names")],
)
def test_too_many_names_are_each_rejected_and_as_many_as_the_java_tools_send_are_served(
    listening: MemoryListener, api_key: int, version: int, field: str
) -> None:
    others: dict[str, Any] = {"key_type": 0, "include_authorized_operations": False}
    for number, served in ((20_000, True), (50_001, False), (199_000, False)):
        message = {field: [f"g{n}" for n in range(number)], **others}
        with WireClient(listening.port) as client, WireClient(listening.port) as other:
            client.socket.sendall(frame(api_key, version, encode_request(api_key, version, message)))
            answer = decode_response(api_key, version, client.receive(), 5)
            (results,) = (value for value in answer.values() if isinstance(value, list))
            assert len(results) == number
            assert {result["error_code"] == INVALID_REQUEST for result in results} == {not served}
            other.ask(API_VERSIONS, 0, {})


def test_many_keys_in_a_find_coordinator_request_do_not_block_the_event_loop(
    listening: MemoryListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = {"key_type": 0, "coordinator_keys": [f"g{n}" for n in range(5_000)]}
    body = encode_request(FIND_COORDINATOR, 4, message)
    longest = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            with monkeypatch.context() as patch, WireClient(listening.port) as client:
                probe = Probe(patch)
                client.socket.sendall(frame(FIND_COORDINATOR, 4, body))
                client.receive()
                longest.append(probe.longest)
    finally:
        gc.enable()
    assert min(longest) <= BUDGET


@pytest.mark.parametrize("length", [32_768, 8_000_000])
def test_a_name_longer_than_any_group_is_rejected(listening: MemoryListener, length: int) -> None:
    message = {"key_type": 0, "coordinator_keys": ["x" * length]}
    with WireClient(listening.port) as client, WireClient(listening.port) as other:
        client.socket.sendall(frame(FIND_COORDINATOR, 4, encode_request(FIND_COORDINATOR, 4, message)))
        assert client.is_disconnected()
        other.ask(API_VERSIONS, 0, {})


def test_sixty_four_tagged_fields_are_read_and_one_more_is_not() -> None:
    for number, read in ((64, True), (65, False)):
        cursor = Cursor(encode_varint(number) + b"\x01\x00" * number, 0, flexible=True)
        if read:
            cursor.tags()
        else:
            with pytest.raises(InvalidRequest, match="65 tagged fields in a structure, allowed are 64"):
                cursor.tags()


def test_a_group_name_of_the_longest_length_is_read() -> None:
    body = encode_request(DELETE_GROUPS, 2, {"groups_names": ["x" * 32_767]})
    assert decode_request(DELETE_GROUPS, 2, body, 0) == {"groups_names": ["x" * 32_767]}


def test_the_limits_have_the_documented_defaults() -> None:
    found = ServerLimits()
    assert (found.unauthenticated_bytes, found.api_versions_bytes, found.names) == (65_536, 8_192, 50_000)
    assert (found.tags, found.name_bytes, found.topic_bytes) == (64, 32_767, 249)


PARTITIONS = 15_000
COMMIT, FETCH, METADATA, LIST_OFFSETS, OFFSET_DELETE = 8, 9, 3, 2, 47
UNKNOWN_TOPICS = [{"name": f"t{n}"} for n in range(20_000)]


def commit_of(group: str, offset: int, partitions: int, topic: str = "t") -> dict[str, Any]:
    return commit_message(group, {(topic, p): offset for p in range(partitions)})


def fetch_group(group: str, partitions: int | None) -> dict[str, Any]:
    topics = None if partitions is None else [{"name": "t", "partition_indexes": list(range(partitions))}]
    return {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}


BULK: dict[str, tuple[int, int, dict[str, Any]]] = {
    "a commit of 15,000 partitions": (COMMIT, 8, commit_of("g", 7, PARTITIONS)),
    "a fetch of 15,000 partitions": (FETCH, 8, {"groups": [fetch_group("g", PARTITIONS)], "require_stable": False}),
    "a fetch of all offsets": (FETCH, 8, {"groups": [fetch_group("g", None)], "require_stable": False}),
    "a fetch of 20,000 groups": (
        FETCH, 8, {"groups": [fetch_group(f"g{n}", 1) for n in range(20_000)], "require_stable": False}
    ),
    "20,000 groups described": (DESCRIBE_GROUPS, 5, {"groups": [f"g{n}" for n in range(20_000)]}),
    "20,000 groups deleted": (DELETE_GROUPS, 2, {"groups_names": [f"g{n}" for n in range(20_000)]}),
    "20,000 coordinators": (FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [f"g{n}" for n in range(20_000)]}),
    "coordinators of long names": (
        FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["x" * 32_000 + str(n) for n in range(200)]}
    ),
    "20,000 topics": (METADATA, 9, {"topics": UNKNOWN_TOPICS, "allow_auto_topic_creation": False}),
    "the log ends of 20,000 partitions": (
        LIST_OFFSETS, 6, {
            "replica_id": -1, "isolation_level": 0, "topics": [
                {"name": "t", "partitions": [
                    {"partition_index": p, "current_leader_epoch": -1, "timestamp": -1} for p in range(20_000)
                ]}
            ],
        },
    ),
    "15,000 offsets deleted": (
        OFFSET_DELETE, 0,
        {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": p} for p in range(PARTITIONS)]}]},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", BULK)
def test_no_bulk_request_of_a_tool_blocks_the_event_loop(
    listening: MemoryListener, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    longest = []
    for _ in range(3):
        with WireClient(listening.port) as client:
            client.ask(*BULK["a commit of 15,000 partitions"])
            gc.collect()
            gc.disable()
            try:
                with monkeypatch.context() as patch:
                    probe = Probe(patch)
                    client.ask(*BULK[what])
                    longest.append(probe.longest)
            finally:
                gc.enable()
    assert min(longest) <= BUDGET, longest


def test_a_large_commit_is_not_overtaken_by_a_small_one_behind_it(listening: MemoryListener) -> None:
    with WireClient(listening.port) as client:
        client.send(COMMIT, 8, commit_of("g", 1, PARTITIONS))
        client.send(COMMIT, 8, commit_of("g", 2, 10))
        client.receive()
        client.receive()
        found = client.ask(FETCH, 7, {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [9, 10]}],
                                      "require_stable": False})  # fmt: skip
    (topic,) = found["topics"]
    assert [part["committed_offset"] for part in topic["partitions"]] == [2, 1]


def test_more_partitions_than_a_group_may_name_at_once_are_refused(listening: MemoryListener) -> None:
    with WireClient(listening.port) as client:
        refused = commit_errors(client.ask(COMMIT, 8, commit_of("g", 1, PARTITIONS + 1)))
        assert set(refused.values()) == {INVALID_COMMIT_OFFSET_SIZE}
        assert len(refused) == PARTITIONS + 1
        (group,) = client.ask(FETCH, 8, {"groups": [fetch_group("g", PARTITIONS + 1)], "require_stable": False})[
            "groups"
        ]
        assert (group["error_code"], group["topics"]) == (INVALID_REQUEST, [])
        assert (
            client.ask(FETCH, 8, {"groups": [fetch_group("g", None)], "require_stable": False})["groups"][0]["topics"]
            == []
        )


@pytest.mark.parametrize("groups", [["g"], ["g", "h"]])
def test_offsets_of_many_partitions_are_encoded_in_small_steps(
    listening: MemoryListener, monkeypatch: pytest.MonkeyPatch, groups: list[str]
) -> None:
    """The number of groups makes no difference: 25 groups have 100 partitions, and one or two groups have 5,000."""
    small = [f"s{n}" for n in range(25)]
    for group in (*small, *groups):
        number = 5_000 if group in groups else 100
        listening.backend.offsets[group] = {"t": {p: (p, 1, "") for p in range(number)}}
    turn = most = 0
    run, encode, fetch = asyncio.Handle._run, fetch_codec.encode_group, listening.backend.fetch

    def begin(handle: asyncio.Handle) -> None:
        nonlocal turn
        if threading.current_thread().name == "listening":
            turn = 0
        run(handle)

    def counted(found: FetchResponse) -> None:
        nonlocal turn, most
        if threading.current_thread().name == "listening":
            turn += sum(len(parts) for _, parts in found.topics)
            most = max(most, turn)

    def encoded(version: int, request: FetchRequest, found: FetchResponse) -> bytes:
        counted(found)
        return encode(version, request, found)

    def fetched(request: FetchRequest) -> Awaitable[FetchResponse]:
        answer = fetch(request)
        assert isinstance(answer, asyncio.Future)
        counted(answer.result())
        return answer

    message = {"groups": [fetch_group(group, None) for group in (*small, *groups)] * 2, "require_stable": False}
    with WireClient(listening.port) as client:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.Handle, "_run", begin)
            patch.setattr(fetch_codec, "encode_group", encoded)
            client.ask(FETCH, 8, message)
        assert most <= 2_100
        most = 0
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.Handle, "_run", begin)
            patch.setattr(listening.backend, "fetch", fetched)
            answer = client.ask(FETCH, 8, message)
        assert most <= 2_100 + 5_000, "a backend in memory fetches one group at once"
    assert [group["group_id"] for group in answer["groups"]] == [*small, *groups] * 2
    assert [len(group["topics"][0]["partitions"]) for group in answer["groups"]] == (
        [100] * 25 + [5_000] * len(groups)
    ) * 2


TOPICS = {"t": 0, "y" * 249: 0, "x" * 250: INVALID_TOPIC, "é" * 125: INVALID_TOPIC}
"""Topic names, and the expected error codes."""


def test_an_invalid_topic_name_is_rejected_and_the_others_are_committed(listening: MemoryListener) -> None:
    with WireClient(listening.port) as client:
        answer = client.ask(COMMIT, 8, commit_message("g", {(topic, 0): 1 for topic in TOPICS}))
    assert commit_errors(answer) == {(topic, 0): error for topic, error in TOPICS.items()}
    assert listening.backend.offsets["g"].keys() == {"t", "y" * 249}


@pytest.mark.parametrize("version", [1, 7, 8])
def test_offsets_of_a_topic_with_too_long_a_name_are_not_fetched(listening: MemoryListener, version: int) -> None:
    topics = [{"name": topic, "partition_indexes": [0, 1]} for topic in TOPICS]
    requested = {"group_id": "g", "topics": topics, "member_id": None, "member_epoch": -1}
    with WireClient(listening.port) as client:
        client.commit("g", {("t", 0): 7})
        answer = client.ask(FETCH, version, {**requested, "groups": [requested], "require_stable": False})
    (found,) = answer["groups"] if version == 8 else [answer]
    codes = {topic["name"]: [part["error_code"] for part in topic["partitions"]] for topic in found["topics"]}
    assert codes == {topic: [error] * 2 for topic, error in TOPICS.items()}
    assert found["topics"][0]["partitions"][0]["committed_offset"] == 7


def test_offsets_of_a_topic_with_too_long_a_name_are_not_deleted(listening: MemoryListener) -> None:
    topics = [{"name": topic, "partitions": [{"partition_index": 0}]} for topic in TOPICS]
    with WireClient(listening.port) as client:
        client.commit("g", {("t", 0): 7, ("u", 0): 8})
        answer = client.ask(OFFSET_DELETE, 0, {"group_id": "g", "topics": topics})
        assert commit_errors(answer) == {(topic, 0): error for topic, error in TOPICS.items()}
        only = client.ask(OFFSET_DELETE, 0, {"group_id": "g", "topics": topics[2:]})
        assert set(commit_errors(only).values()) == {INVALID_TOPIC}
    assert listening.backend.offsets["g"] == {"u": {0: (8, -1, "")}}


class AnyTopics:
    """A cluster in which every topic with a valid name exists."""

    async def cluster_id(self) -> str | None:
        return "real"

    async def topics(self, names: Sequence[str] | None, ids: Sequence[uuid.UUID] = ()) -> Sequence[TopicLayout]:
        assert names is not None and not any(TOPICS[name] for name in names)
        return [TopicLayout(name, None, 0) for name in names]

    async def list_offsets(
        self, requested: Mapping[str, Sequence[OffsetQuery]], *, read_committed: bool
    ) -> Mapping[str, Sequence[FoundOffset]]:
        assert not any(TOPICS[name] for name in requested)
        return {name: [FoundOffset(part.partition, 0, -1, 5, 0) for part in parts] for name, parts in requested.items()}


def test_the_cluster_gets_no_request_for_a_topic_with_too_long_a_name() -> None:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    ends = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": t, "partitions": [part]} for t in TOPICS]}
    named = {"topics": [{"name": topic, "topic_id": None} for topic in TOPICS], "allow_auto_topic_creation": False}
    with MemoryListener(cluster=AnyTopics) as listening, WireClient(listening.port) as client:
        assert commit_errors(client.ask(LIST_OFFSETS, 6, ends)) == {(t, 0): error for t, error in TOPICS.items()}
        for version in (0, 9, 12):
            answer = client.ask(METADATA, version, named)
            assert {topic["name"]: topic["error_code"] for topic in answer["topics"]} == TOPICS


def test_the_longest_topic_name_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ServeOptions] = []
    monkeypatch.setattr("offsetmgr.server.process.manager_process.run_manager", started.append)
    monkeypatch.setattr("offsetmgr.server.logs.start_logging", lambda *_: None)
    serve = ["manager", "serve", "--bootstrap-server", "nowhere:1", "--listen", "127.0.0.1:0"]
    assert run_command([*serve, "--max-topic-bytes", "2"]) == 0
    (options,) = started
    with MemoryListener(limits=options.limits) as listening, WireClient(listening.port) as client:
        answer = client.ask(COMMIT, 8, commit_message("g", {("to", 0): 1, ("top", 0): 1}))
    assert commit_errors(answer) == {("to", 0): 0, ("top", 0): INVALID_TOPIC}


@pytest.mark.slow
def test_the_listener_stops_reading_from_a_client_that_reads_no_responses(listening: MemoryListener) -> None:
    """60 requests of 20 bytes have responses of 300 KB each. The listener keeps only a part of them in memory."""
    small = ServerLimits(answer_bytes=1_000_000)
    with (
        MemoryListener(listening.backend, limits=small) as slow,
        WireClient(slow.port, receive_buffer=65_536) as client,
    ):
        client.ask(*BULK["a commit of 15,000 partitions"])
        for _ in range(60):
            client.send(*BULK["a fetch of all offsets"])
        (connection,) = slow.service.connections
        pipeline = connection._pipeline
        assert wait_until(lambda: pipeline.answers_full)
        time.sleep(0.2)  # long enough for a listener without the limit to continue
        assert pipeline._answer_bytes + connection.unsent < 2_000_000
        sizes = {len(client.receive()) for _ in range(60)}
        assert len(sizes) == 1 and min(sizes) > 200_000
