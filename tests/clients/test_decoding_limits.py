"""Limits on requests that are small to send and costly to decode, while other clients are served."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from backend_listeners import serve_options
from memory_listener import (
    BUDGET,
    MemoryBackend,
    MemoryListener,
    WireClient,
    commit_errors,
    commit_message,
    limits,
    longest_callback,
    wait_until,
)

from offsetmgr.kafka.protocol.schema_codec import decode_response

FIND_COORDINATOR, DESCRIBE_GROUPS, API_VERSIONS, DELETE_GROUPS = 10, 15, 18, 42
INVALID_REQUEST, INVALID_COMMIT_OFFSET_SIZE, INVALID_TOPIC = 42, 28, 17


@pytest.fixture
def listening() -> Iterator[MemoryListener]:
    with MemoryListener(MemoryBackend()) as listening:
        yield listening


def test_eight_megabytes_of_empty_tagged_fields_are_rejected_at_once(listening: MemoryListener) -> None:
    body = b"\x01" + b"\x80\x89\x7a" + b"\x01\x00" * 2_000_000  # no names, the number of fields, and each field

    def send() -> None:
        with WireClient(listening.port) as client, WireClient(listening.port) as other:
            client.send(DELETE_GROUPS, 2, body)
            assert client.is_disconnected()
            other.ask(API_VERSIONS, 0, {})

    assert longest_callback(send, 1) <= BUDGET


def test_a_large_api_versions_request_is_rejected_before_it_is_decoded(listening: MemoryListener) -> None:
    with WireClient(listening.port) as client, WireClient(listening.port) as other:
        client.send(API_VERSIONS, 3, b"x" * 9000)
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
    for number, served in ((20_000, True), (50_001, False), (199_000, False)):
        message = {field: [f"g{n}" for n in range(number)], "key_type": 0}
        with WireClient(listening.port) as client, WireClient(listening.port) as other:
            client.send(api_key, version, message)
            answer = decode_response(api_key, version, client.receive(), 5)
            (results,) = (value for value in answer.values() if isinstance(value, list))
            assert len(results) == number
            assert {result["error_code"] == INVALID_REQUEST for result in results} == {not served}
            other.ask(API_VERSIONS, 0, {})


@pytest.mark.parametrize(("length", "read"), [(32_767, True), (32_768, False), (8_000_000, False)])
def test_a_name_longer_than_any_group_is_rejected(listening: MemoryListener, length: int, read: bool) -> None:
    message = {"key_type": 0, "coordinator_keys": ["x" * length]}
    with WireClient(listening.port) as client, WireClient(listening.port) as other:
        client.send(FIND_COORDINATOR, 4, message)
        assert client.is_disconnected() is not read
        other.ask(API_VERSIONS, 0, {})


@pytest.mark.parametrize(("number", "read"), [(64, True), (65, False)])
def test_sixty_four_tagged_fields_are_read_and_one_more_is_not(listening, number: int, read: bool) -> None:
    with WireClient(listening.port) as client:
        client.send(DELETE_GROUPS, 2, b"\x01" + bytes([number]) + b"\x01\x00" * number)
        assert client.is_disconnected() is not read


PARTITIONS = 15_000
COMMIT, FETCH, METADATA, LIST_OFFSETS, OFFSET_DELETE = 8, 9, 3, 2, 47
UNKNOWN_TOPICS = [{"name": f"t{n}"} for n in range(20_000)]


def commit_of(group: str, offset: int, partitions: int, topic: str = "t") -> dict[str, Any]:
    return commit_message(group, {(topic, p): offset for p in range(partitions)})


def fetch_group(group: str, partitions: int | None) -> dict[str, Any]:
    topics = None if partitions is None else [{"name": "t", "partition_indexes": list(range(partitions))}]
    return {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}


SMALL = [f"s{n}" for n in range(25)]
BULK: dict[str, tuple[int, int, dict[str, Any]]] = {
    "a commit of 15,000 partitions": (COMMIT, 8, commit_of("g", 7, PARTITIONS)),
    "a fetch of 15,000 partitions": (FETCH, 8, {"groups": [fetch_group("g", PARTITIONS)], "require_stable": False}),
    "a fetch of all offsets": (FETCH, 8, {"groups": [fetch_group("g", None)], "require_stable": False}),
    "a fetch of 20,000 groups": (
        FETCH, 8, {"groups": [fetch_group(f"g{n}", 1) for n in range(20_000)], "require_stable": False}
    ),
    "a fetch of 25 groups of 100 partitions and two of 15,000": (
        FETCH, 8,
        {"groups": [fetch_group(group, None) for group in (*SMALL, "g", "h")] * 2, "require_stable": False},
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
def test_no_bulk_request_of_a_tool_blocks_the_event_loop(listening: MemoryListener, what: str) -> None:
    offsets = listening.backend.offsets
    offsets["h"] = {"t": {p: (p, 1, "") for p in range(PARTITIONS)}}
    offsets |= {group: {"t": {p: (p, 1, "") for p in range(100)}} for group in SMALL}

    def send() -> None:
        with WireClient(listening.port) as client:
            client.ask(*BULK["a commit of 15,000 partitions"])
            client.ask(*BULK[what])

    assert longest_callback(send) <= BUDGET


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
        for partitions, error in ((PARTITIONS + 1, INVALID_REQUEST), (None, 0)):
            answer = client.ask(FETCH, 8, {"groups": [fetch_group("g", partitions)], "require_stable": False})
            assert [(group["error_code"], group["topics"]) for group in answer["groups"]] == [(error, [])]


TOPICS = {"t": 0, "y" * 249: 0, "x" * 250: INVALID_TOPIC, "é" * 125: INVALID_TOPIC}
"""Topic names, and the expected error codes."""


def test_offsets_of_a_topic_with_too_long_a_name_are_neither_committed_nor_fetched_nor_deleted(listening) -> None:
    stored = listening.backend.offsets
    by_topic = {(topic, 0): error for topic, error in TOPICS.items()}
    with WireClient(listening.port) as client:
        assert commit_errors(client.ask(COMMIT, 8, commit_message("g", dict.fromkeys(by_topic, 7)))) == by_topic
        assert stored["g"].keys() == {"t", "y" * 249}

        topics: list[dict[str, Any]] = [{"name": topic, "partition_indexes": [0, 1]} for topic in TOPICS]
        requested = {"group_id": "g", "topics": topics, "member_id": None, "member_epoch": -1}
        for version in (1, 7, 8):
            answer = client.ask(FETCH, version, {**requested, "groups": [requested], "require_stable": False})
            (found,) = answer["groups"] if version == 8 else [answer]
            codes = {topic["name"]: [part["error_code"] for part in topic["partitions"]] for topic in found["topics"]}
            assert codes == {topic: [error] * 2 for topic, error in TOPICS.items()}
            assert found["topics"][0]["partitions"][0]["committed_offset"] == 7

        topics = [{"name": topic, "partitions": [{"partition_index": 0}]} for topic in TOPICS]
        only = client.ask(OFFSET_DELETE, 0, {"group_id": "g", "topics": topics[2:]})
        assert set(commit_errors(only).values()) == {INVALID_TOPIC}
        client.commit("g", {("u", 0): 8})
        assert commit_errors(client.ask(OFFSET_DELETE, 0, {"group_id": "g", "topics": topics})) == by_topic
    assert stored["g"] == {"u": {0: (8, -1, "")}}


def test_the_longest_topic_name_is_an_option() -> None:
    short = serve_options("nowhere:1", "--max-topic-bytes", "2")
    with MemoryListener(limits=short) as listening, WireClient(listening.port) as client:
        answer = client.ask(COMMIT, 8, commit_message("g", {("to", 0): 1, ("top", 0): 1}))
    assert commit_errors(answer) == {("to", 0): 0, ("top", 0): INVALID_TOPIC}


@pytest.mark.slow
def test_the_listener_stops_reading_from_a_client_that_reads_no_responses(listening: MemoryListener) -> None:
    """60 requests of 20 bytes have responses of 300 KB each. The listener keeps only a part of them in memory."""
    small = limits(max_answer_bytes=1_000_000)
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
        assert pipeline.answer_bytes + connection.unsent < 2_000_000
        sizes = {len(client.receive()) for _ in range(60)}
        assert len(sizes) == 1 and min(sizes) > 200_000
