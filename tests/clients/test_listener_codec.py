"""Conversion between bytes of Kafka's protocol and the manager's tuples, in every version: `schema_codec` equals kio,
and the codecs of the frequent requests equal `schema_codec`. Malformed bytes raise only `InvalidRequest`."""

import dataclasses
import io
import os
import random
import struct
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import schema_name_map
from kio.serial import entity_writer

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol import schema_codec
from offsetmgr.manager.results import CommitRequest, CommitResponse, FetchRequest, FetchResponse
from offsetmgr.server.apis import commit_codec, fetch_codec

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
MANY, FEW = (300, 40) if SOAK else (15, 2)
"""Hypothesis examples for each version of the frequent requests, and of all others."""

COMMIT_VERSIONS = range(commit_codec.MIN_VERSION, commit_codec.MAX_VERSION + 1)
FETCH_VERSIONS = range(fetch_codec.MIN_VERSION, fetch_codec.MAX_VERSION + 1)

names = st.text(max_size=200)
numbers = st.integers(0, 2**31 - 1)
offsets = st.integers(0, 2**63 - 1)
INT32, INT64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (31, 63))
epochs = st.integers(-1, 2**31 - 1)
metadata = st.one_of(st.just(""), st.text(max_size=300))
codes = st.sampled_from([0, 3, 12, 14, 16, 22, 30])


def kio_bytes(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def topics_of(partition: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.tuples(names, st.lists(partition, max_size=8)), max_size=4)


commits = st.builds(
    CommitRequest,
    names,
    # Often no partition of a topic has metadata. The codec has a separate path for that case.
    topics_of(st.tuples(INT32, INT64, epochs, st.just(""))) | topics_of(st.tuples(INT32, INT64, epochs, metadata)),
    st.integers(-1, 2**31 - 1),
    names,
    st.none() | names,
    st.none() | st.integers(0, 2**62),
    st.just({}),
)


def commit_bytes(version: int, expected: CommitRequest, rng: random.Random) -> bytes:
    topics = [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_leader_epoch": epoch,
                    "committed_metadata": text or rng.choice([None, ""]),  # a coordinator treats both the same
                }
                for partition, offset, epoch, text in partitions
            ],
        }
        for topic, partitions in expected.topics
    ]
    message = {
        **{"group_id": expected.group, "member_id": expected.member_id, "topics": topics},
        **dict.fromkeys(("generation_id", "generation_id_or_member_epoch"), expected.generation),
        "retention_time": -1 if expected.retention_ms is None else expected.retention_ms,
        "group_instance_id": expected.instance_id,
    }
    return schema_codec.encode_request(8, version, message)


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
@given(expected=commits, seed=st.integers(0, 1000))
@settings(max_examples=MANY, deadline=None)
def test_commits_are_decoded(version: int, expected: CommitRequest, seed: int) -> None:
    if expected.retention_ms is not None:
        expected = expected._replace(retention_ms=expected.retention_ms % 10**12)
    data = commit_bytes(version, expected, random.Random(seed))

    decoded = commit_codec.decode(version, b"header" + data, 6)

    topics = [
        (topic, [(p, o, e if version >= 6 else -1, m) for p, o, e, m in partitions])
        for topic, partitions in expected.topics
    ]
    assert decoded == expected._replace(
        topics=topics,
        instance_id=expected.instance_id if version >= 7 else None,
        retention_ms=expected.retention_ms if version <= 4 else None,
    )


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
@given(expected=commits, error=codes, errors=st.dictionaries(st.integers(0, 7), codes))
@settings(max_examples=MANY, deadline=None)
def test_commit_responses_are_encoded(version: int, expected: CommitRequest, error: int, errors) -> None:
    every = [(topic, part[0]) for topic, parts in expected.topics for part in parts]
    by_partition = {every[n % len(every)]: code for n, code in errors.items()} if every else {}

    data = commit_codec.encode(version, expected.topics, CommitResponse(error, by_partition))

    answer = schema_codec.decode_response(8, version, data, 0)["topics"]
    found = [(t["name"], p["partition_index"], p["error_code"]) for t in answer for p in t["partitions"]]
    assert found == [(t, p, error or by_partition.get((t, p), 0)) for t, p in every]
    assert [t["name"] for t in answer] == [topic for topic, _ in expected.topics]


@pytest.mark.parametrize("version", [8, 9])
def test_expected_offsets_are_decoded(version: int) -> None:
    expected = CommitRequest("g", [("t", [(0, 11, 3, ""), (1, -1, -1, ""), (2, 13, -1, "m")])])
    plain = commit_bytes(version, expected, random.Random(3))

    def tagged(value: int) -> bytes:
        # The decoder skips the unknown tags before and after it.
        return b"\x03\x05\x01x" + b"\x91\x4e\x08" + struct.pack(">q", value) + b"\xff\x7f\x00"

    first, second = struct.pack(">iqi", 0, 11, 3), struct.pack(">iqi", 1, -1, -1)
    data = bytearray(plain)
    for part, value in ((second, 12), (first, -1)):
        at = data.index(part) + len(part) + 1
        assert data[at] == 0
        data[at : at + 1] = tagged(value)

    decoded = commit_codec.decode(version, bytes(data), 0)

    assert decoded.topics == expected.topics
    assert decoded.expected == {("t", 0): -1, ("t", 1): 12}


fetches = st.builds(FetchRequest, names, st.none() | topics_of(numbers))
members = st.fixed_dictionaries({"member_id": st.none() | names, "member_epoch": st.integers(-1, 2**31 - 1)})
fetched = topics_of(st.tuples(numbers, offsets | st.just(-1), epochs, st.just(""), codes)) | topics_of(
    st.tuples(numbers, offsets, epochs, metadata, codes)
)


def distinct(topics: Any) -> list[tuple[str, list[int]]] | None:
    """Each topic and each partition once, in the order of the request."""
    found: dict[str, dict[int, None]] = {}
    for topic, parts in topics or ():
        found.setdefault(topic, {}).update(dict.fromkeys(parts))
    return None if topics is None else [(topic, list(parts)) for topic, parts in found.items()]


def fetch_bytes(version: int, expected: list[FetchRequest], member: dict[str, Any], stable: bool) -> bytes:
    groups = []
    for one in expected:
        topics = None if one.topics is None else [{"name": name, "partition_indexes": p} for name, p in one.topics]
        groups.append({"group_id": one.group, "topics": topics, **member})
    return schema_codec.encode_request(9, version, {**groups[0], "groups": groups, "require_stable": stable})


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@given(expected=st.lists(fetches, min_size=1, max_size=4), member=members, stable=st.booleans())
@settings(max_examples=MANY, deadline=None)
def test_fetches_are_decoded(version: int, expected: list[FetchRequest], member: dict[str, Any], stable: bool) -> None:
    if version < 8:
        expected = expected[:1]
    if version < 2:
        expected = [request._replace(topics=request.topics or []) for request in expected]
    data = fetch_bytes(version, expected, member, stable)

    found = fetch_codec.decode(version, b"header" + data, 6)

    as_lists = [
        (r.group, None if r.topics is None else [(topic, list(parts)) for topic, parts in r.topics]) for r in found
    ]
    assert as_lists == [(request.group, distinct(request.topics)) for request in expected]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@given(answers=st.lists(st.tuples(names, fetched, st.sampled_from([0, 0, 0, 14, 16])), min_size=1, max_size=3))
@settings(max_examples=MANY, deadline=None)
def test_fetch_responses_are_encoded(version: int, answers: list[Any]) -> None:
    answers = answers if version >= 8 else answers[:1]
    requests = [
        FetchRequest(group, [(t, [p[0] for p in parts]) for t, parts in topics]) for group, topics, _ in answers
    ]
    responses = [FetchResponse(error, () if error else topics) for _, topics, error in answers]

    data = fetch_codec.encode(version, requests, responses)

    answer = schema_codec.decode_response(9, version, data, 0)
    groups = answer["groups"] if version >= 8 else [answer]
    for found, (group, topics, error) in zip(groups, answers, strict=True):
        assert found.get("group_id", group) == group
        assert found.get("error_code", error) == error
        expected = [] if error else topics
        if error and version < 2:  # these versions carry an error only in each partition
            expected = [(t, [(p[0], -1, -1, "", error) for p in parts]) for t, parts in topics]
        names = ("partition_index", "committed_offset", "committed_leader_epoch", "metadata", "error_code")
        parts = [[dict(zip(names, part, strict=True)) for part in parts] for _, parts in expected]
        for part in (part for topic in parts for part in topic if version < 5):
            del part["committed_leader_epoch"]
        wanted = [{"name": topic, "partitions": p} for (topic, _), p in zip(expected, parts, strict=True)]
        assert found["topics"] == wanted


def samples() -> list[tuple[str, Any, int, bytes]]:
    """A valid request of every version, with its decoder."""
    rng = random.Random(7)
    commit = CommitRequest(
        "group", [("topic-a", [(0, 1, 2, ""), (1, 2, 3, "")]), ("topic-b", [(5, 6, 7, "meta")])], 3, "member", "me", 10
    )
    fetch = FetchRequest("group", [("topic", [1, 2, 3])])
    found: list[tuple[str, Any, int, bytes]] = []
    for version in COMMIT_VERSIONS:
        data = commit_bytes(version, commit, rng)
        found.append(("OffsetCommit", commit_codec.decode, version, data))
    for version in FETCH_VERSIONS:
        data = fetch_bytes(version, [fetch, fetch], {"member_id": "member", "member_epoch": 4}, True)
        found.append(("OffsetFetch", fetch_codec.decode, version, data))
    return found


@pytest.mark.parametrize(("name", "decode", "version", "data"), samples())
def test_a_truncated_request_is_invalid_at_any_length(name: str, decode: Any, version: int, data: bytes) -> None:
    decode(version, data, 0)
    for end in range(len(data)):
        with pytest.raises(InvalidRequest):
            decode(version, data[:end], 0)


def test_an_array_of_two_billion_items_is_rejected_before_any_allocation() -> None:
    huge = struct.pack(">h1sih1sqi", 1, b"g", -1, 1, b"m", -1, 2**31 - 1)
    with pytest.raises(InvalidRequest):
        commit_codec.decode(2, huge, 0)
    with pytest.raises(InvalidRequest):
        schema_codec.decode_request(47, 0, b"\0\1g" + struct.pack(">i", 2**31 - 1), 0)


def test_many_tiny_items_are_rejected_because_they_would_become_many_objects() -> None:
    with pytest.raises(InvalidRequest):
        schema_codec.decode_request(42, 1, struct.pack(">i", 300_000) + b"\0\0" * 300_000, 0)


# --- all messages, by kio's schemas ----------------------------------------------------------

SPOKEN = {
    "list_offsets": 2,
    "metadata": 3,
    "offset_commit": 8,
    "offset_fetch": 9,
    "find_coordinator": 10,
    "join_group": 11,
    "heartbeat": 12,
    "leave_group": 13,
    "sync_group": 14,
    "describe_groups": 15,
    "list_groups": 16,
    "sasl_handshake": 17,
    "api_versions": 18,
    "sasl_authenticate": 36,
    "delete_groups": 42,
    "offset_delete": 47,
    "describe_cluster": 60,
    "consumer_group_heartbeat": 68,
    "describe_topic_partitions": 75,
}


def plain(value: Any) -> Any:
    """A kio entity in the form that `schema_codec` returns."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    assert not isinstance(value, datetime)
    return value


@pytest.mark.parametrize("load", [load_request_schema, load_response_schema], ids=["requests", "responses"])
@pytest.mark.parametrize(("name", "version"), [(name, version) for name in SPOKEN for version in schema_name_map[name]])
def test_all_messages_are_decoded_and_encoded_as_by_kio(name: str, version: int, load: Any) -> None:
    kind = load(SPOKEN[name], version)
    request, examples = load is load_request_schema, MANY if SPOKEN[name] in (8, 9) else FEW
    decode = schema_codec.decode_request if request else schema_codec.decode_response
    encode = schema_codec.encode_request if request else schema_codec.encode_response

    @given(entity=st.from_type(kind))
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def same(entity: Any) -> None:
        data = kio_bytes(entity)
        message = decode(SPOKEN[name], version, b"header" + data, 6)
        assert message == plain(entity)
        assert encode(SPOKEN[name], version, message) == data

    same()
