"""The responses of the offsets endpoint, through its listener and in every version that it advertises."""

import json
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from backend_listeners import NoTopics
from confluent_kafka import KafkaError
from memory_listener import NODE_ID, MemoryBackend, MemoryListener, WireClient, commit_errors, commit_message

from offsetmgr import OffsetAndMetadata, TopicPartition
from offsetmgr.core.errors import Unreachable
from offsetmgr.kafka.client.backing_cluster import FoundOffset, OffsetQuery, PartitionLayout, TopicLayout
from offsetmgr.kafka.protocol.requests import conditional_commit
from offsetmgr.manager.results import CommitRequest, CommitResponse

LIST_OFFSETS, METADATA, COMMIT, FETCH, FIND_COORDINATOR = 2, 3, 8, 9, 10
DESCRIBE_GROUPS, LIST_GROUPS, API_VERSIONS, DELETE_GROUPS, OFFSET_DELETE, DESCRIBE_CLUSTER = 15, 16, 18, 42, 47, 60
INSPECT = 30_001  # of `manager status` and `manager dump`

ADVERTISED = {
    LIST_OFFSETS: (1, 10),
    METADATA: (0, 13),
    COMMIT: (2, 9),
    FETCH: (1, 9),
    FIND_COORDINATOR: (0, 6),
    DESCRIBE_GROUPS: (0, 6),
    LIST_GROUPS: (0, 5),
    API_VERSIONS: (0, 4),
    DELETE_GROUPS: (0, 2),
    OFFSET_DELETE: (0, 0),
    DESCRIBE_CLUSTER: (0, 2),
    INSPECT: (0, 0),
}

GROUP_FORBIDDEN, TOPIC_FORBIDDEN = KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED
CONDITIONAL = "offsetmgr.conditional"
ORDERS_ID = uuid.UUID(int=7)
LONG = "x" * 250


class FakeCluster(NoTopics):
    """A fake of the real cluster, with one topic whose second partition has no leader."""

    def __init__(self) -> None:
        super().__init__()
        self.reachable = True
        self.queries: list[Mapping[str, Sequence[OffsetQuery]]] = []

    async def cluster_id(self) -> str:
        self._reach()
        return "real-cluster"

    async def topics(self, names: Sequence[str] | None, ids: Sequence[uuid.UUID] = ()) -> Sequence[TopicLayout]:
        self._reach()
        assert LONG not in (names or ()), "the listener itself rejects it"
        leader: Any = ("real-broker", 9092)
        parts = [PartitionLayout(0, 0, 4, leader), PartitionLayout(1, 5, 3, None)]
        orders = TopicLayout("orders", ORDERS_ID, 0, False, parts)
        if names is None:
            return [orders, TopicLayout("secret", uuid.UUID(int=8), 0, True, parts[:1])]
        unknown = await super().topics(names, ids)
        return [orders if one.name == "orders" or one.topic_id == ORDERS_ID else one for one in unknown]

    async def list_offsets(
        self, queries: Mapping[str, Sequence[OffsetQuery]], *, read_committed: bool
    ) -> Mapping[str, Sequence[FoundOffset]]:
        self._reach()
        self.queries.append(queries)
        value = 90 if read_committed else 100
        return {name: [FoundOffset(p, 0, -1, value + p, 4) for p, _ in parts] for name, parts in queries.items()}

    def _reach(self) -> None:
        if not self.reachable:
            raise Unreachable("the cluster", "is away")


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def backend() -> MemoryBackend:
    backend = MemoryBackend()
    backend.offsets = {"g": {"orders": {0: (5, 2, "note"), 1: (6, -1, "")}}, "h": {"bills": {3: (7, -1, "")}}}
    return backend


@pytest.fixture
def listening(backend: MemoryBackend, cluster: FakeCluster) -> Iterator[MemoryListener]:
    with MemoryListener(backend, cluster=cluster) as listening:
        yield listening


@pytest.fixture
def client(listening: MemoryListener) -> Iterator[WireClient]:
    with WireClient(listening.port) as client:
        yield client


def every_version(api_key: int) -> Any:
    low, high = ADVERTISED[api_key]
    return pytest.mark.parametrize("version", range(low, high + 1))


@pytest.mark.parametrize(
    "after", ['["g","t",Infinity]', '["g","t",1e999]', '["g","t",NaN]', '["g",1,2]', '{"a":1}', '"abc"', "[]"]
)
def test_a_dump_after_something_other_than_a_partition_is_rejected(client: WireClient, after: str) -> None:
    client.send(INSPECT, 0, f'{{"what":"dump","partition":0,"after":{after}}}'.encode())
    assert json.loads(client.receive()[4:]) == {"error": "after is [group, topic, partition]"}


# --- versions -----------------------------------------------------------------------------------


@every_version(API_VERSIONS)
def test_api_versions_lists_the_supported_apis_and_no_others(client: WireClient, version: int) -> None:
    answer = client.ask(API_VERSIONS, version, {"client_software_name": "tester", "client_software_version": "1.0-x"})

    assert answer["error_code"] == 0
    assert {k["api_key"]: (k["min_version"], k["max_version"]) for k in answer["api_keys"]} == ADVERTISED


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(client: WireClient) -> None:
    client.send(API_VERSIONS, 77, b"\x00whatever it looks like")
    frame = client.receive()

    error, number = struct.unpack_from(">hi", frame, 4)
    keys = [struct.unpack_from(">hhh", frame, 10 + 6 * n) for n in range(number)]
    assert error == KafkaError.UNSUPPORTED_VERSION
    assert {key: (low, high) for key, low, high in keys} == ADVERTISED
    assert client.ask(API_VERSIONS, 0, {})["error_code"] == 0, "the connection is still open"


def test_features_are_announced_to_a_client_with_a_valid_name(client: WireClient, backend: MemoryBackend) -> None:
    backend.announced = {CONDITIONAL: 1}
    answer = client.ask(API_VERSIONS, 4, {"client_software_name": "a", "client_software_version": "1"})
    assert answer["supported_features"] == [{"name": CONDITIONAL, "min_version": 1, "max_version": 1}]
    answer = client.ask(API_VERSIONS, 3, {"client_software_name": "-- \n", "client_software_version": "1"})
    assert answer["error_code"] == KafkaError.INVALID_REQUEST


@pytest.mark.parametrize(
    ("api_key", "version"), [(11, 5), (1, 4), (999, 0), (-5, 0), (COMMIT, 10), (COMMIT, 1), (FETCH, 0), (FETCH, -1)]
)
def test_an_unsupported_api_closes_the_connection(client: WireClient, api_key: int, version: int) -> None:
    client.send(api_key, version, b"\0" * 20)
    assert client.is_disconnected()


# --- the cluster, as clients see it -----------------------------------------------------------------------


@every_version(METADATA)
def test_metadata_names_managers_as_brokers_and_this_one_as_every_leader(client, listening, version) -> None:
    answer = client.ask(METADATA, version, {"topics": [{"name": "orders", "topic_id": None}]})

    assert [(b["node_id"], b["host"], b["port"]) for b in answer["brokers"]] == [(NODE_ID, "127.0.0.1", listening.port)]
    (topic,) = answer["topics"]
    assert (topic["error_code"], topic["name"]) == (0, "orders")
    assert [(p["partition_index"], p["leader_id"], p["error_code"]) for p in topic["partitions"]] == [
        (0, NODE_ID, 0),
        (1, -1, 5),
    ]
    assert answer.get("controller_id", NODE_ID) == NODE_ID
    assert answer.get("cluster_id", "real-cluster") == "real-cluster"
    assert topic.get("topic_id", ORDERS_ID) == ORDERS_ID


def test_metadata_of_all_topics_of_no_topics_and_of_unknown_topics(client: WireClient) -> None:
    def names(version: int, topics: Any) -> list[tuple[str, int]]:
        answer = client.ask(METADATA, version, {"topics": topics})
        return [(topic["name"], topic["error_code"]) for topic in answer["topics"]]

    assert names(0, []) == [("orders", 0), ("secret", 0)], "in version 0 an empty list selects all topics"
    assert names(9, None) == [("orders", 0), ("secret", 0)]
    assert names(9, []) == []
    assert names(9, [{"name": "nope"}]) == [("nope", KafkaError.UNKNOWN_TOPIC_OR_PART)]
    assert names(12, [{"name": None, "topic_id": ORDERS_ID}, {"name": None, "topic_id": uuid.UUID(int=99)}]) == [
        ("orders", 0),
        (None, 100),
    ]


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_of_a_topic_without_a_name_is_rejected_in_versions_that_cannot_express_it(client, version, caplog):
    client.send(METADATA, version, {"topics": [{"name": None, "topic_id": uuid.UUID(int=7)}]})
    assert client.is_disconnected()
    assert "defect" not in caplog.text


def test_metadata_of_an_unreachable_cluster_is_an_error_and_never_an_empty_list(client, cluster) -> None:
    cluster.reachable = False

    answer = client.ask(METADATA, 9, {"topics": [{"name": "orders"}]})
    assert [(topic["name"], topic["error_code"]) for topic in answer["topics"]] == [("orders", 5)]
    assert len(client.ask(METADATA, 9, {"topics": []})["brokers"]) == 1, "a request for the managers alone is answered"

    client.send(METADATA, 9, {"topics": None})
    assert client.is_disconnected()


@every_version(DESCRIBE_CLUSTER)
def test_describe_cluster(client: WireClient, backend: MemoryBackend, version: int) -> None:
    assert backend.node is not None
    backend.others = [backend.node._replace(node_id=9, host="elsewhere")]
    answer = client.ask(DESCRIBE_CLUSTER, version, {"include_cluster_authorized_operations": False})
    assert (answer["error_code"], answer["cluster_id"], answer["controller_id"]) == (0, "real-cluster", NODE_ID)
    assert [b["broker_id"] for b in answer["brokers"]] == [NODE_ID, 9]


def test_describe_cluster_with_an_unknown_id_or_of_controllers_is_an_error(client, cluster) -> None:
    cluster.reachable = False
    for kind, error in ((1, KafkaError.REQUEST_TIMED_OUT), (2, 115)):
        answer = client.ask(DESCRIBE_CLUSTER, 1, {"endpoint_type": kind})
        assert (answer["error_code"], answer["brokers"]) == (error, [])


@every_version(FIND_COORDINATOR)
def test_find_coordinator(client: WireClient, backend: MemoryBackend, listening: MemoryListener, version: int) -> None:
    def ask(key: str, kind: int = 0) -> dict[str, Any]:
        answer = client.ask(
            FIND_COORDINATOR, version, {"key": key, "coordinator_keys": [key, "other"], "key_type": kind}
        )
        if version < 4:
            return answer
        first, second = answer["coordinators"]
        assert (first["key"], second["key"]) == (key, "other")
        return first

    found = ask("g")
    assert (found["error_code"], found["node_id"], found["port"]) == (0, NODE_ID, listening.port)
    backend.node = None
    found = ask("g")
    assert (found["error_code"], found["node_id"]) == (KafkaError.COORDINATOR_NOT_AVAILABLE, -1)
    if version >= 1:
        assert ask("transaction", 1)["error_code"] == KafkaError.INVALID_REQUEST


# --- offsets ------------------------------------------------------------------------------------------


@every_version(COMMIT)
def test_a_commit_reaches_the_backend_and_its_outcomes_are_returned(client, backend, version) -> None:
    backend.partition_errors = {("orders", 1): KafkaError.OFFSET_METADATA_TOO_LARGE}

    answer = client.commit("new", {("orders", 0): 10, ("orders", 1): 11, ("bills", 0): 12}, version=version)

    assert commit_errors(answer) == {
        ("orders", 0): 0,
        ("orders", 1): KafkaError.OFFSET_METADATA_TOO_LARGE,
        ("bills", 0): 0,
    }
    assert backend.offsets["new"] == {"orders": {0: (10, -1, "")}, "bills": {0: (12, -1, "")}}


def test_a_commit_for_another_coordinator_is_an_error_of_each_partition_and_one_without_offsets_does_nothing(
    client: WireClient, backend: MemoryBackend
) -> None:
    assert client.commit("g", {})["topics"] == []
    message = {**commit_message("g", {}), "topics": [{"name": "t", "partitions": []}]}
    assert client.ask(COMMIT, 7, message)["topics"] == [{"name": "t", "partitions": []}]
    assert backend.commits == 0
    backend.errors["moved"] = KafkaError.NOT_COORDINATOR
    errors = commit_errors(client.commit("moved", {("t", 0): 1, ("t", 1): 2}))
    assert errors == dict.fromkeys([("t", 0), ("t", 1)], KafkaError.NOT_COORDINATOR)


def test_a_defect_of_the_backend_is_an_error_of_the_partitions(client, backend, monkeypatch) -> None:
    async def broken(request: CommitRequest) -> CommitResponse:
        raise RuntimeError("a defect")

    monkeypatch.setattr(backend, "commit", broken)
    assert commit_errors(client.commit("g", {("t", 0): 1})) == {("t", 0): KafkaError.UNKNOWN}

    def broken_at_once(request: CommitRequest) -> CommitResponse:
        raise RuntimeError("a defect")

    monkeypatch.setattr(backend, "commit", broken_at_once)
    client.send(COMMIT, 7, commit_message("g", {("t", 0): 1}))
    assert client.is_disconnected()


def fetch_message(topics_by_group: Mapping[str, Any]) -> dict[str, Any]:
    groups = []
    for group, topics in topics_by_group.items():
        topic_messages = None if topics is None else [{"name": t, "partition_indexes": p} for t, p in topics.items()]
        groups.append({"group_id": group, "topics": topic_messages, "member_id": None, "member_epoch": -1})
    return {**groups[0], "groups": groups, "require_stable": False}


def offsets(answer: Mapping[str, Any]) -> dict[tuple[str, int], tuple[int, str]]:
    return {
        (t["name"], p["partition_index"]): (p["committed_offset"], p["metadata"])
        for t in answer["topics"]
        for p in t["partitions"]
    }


@every_version(FETCH)
def test_a_fetch_returns_the_committed_offsets(client: WireClient, backend: MemoryBackend, version: int) -> None:
    def ask(group: str, topics: Any) -> dict[str, Any]:
        answer = client.ask(FETCH, version, fetch_message({group: topics}))
        return answer["groups"][0] if version >= 8 else answer

    assert offsets(ask("g", {"orders": [0, 7], "none": [1]})) == {
        ("orders", 0): (5, "note"),
        ("orders", 7): (-1, ""),
        ("none", 1): (-1, ""),
    }
    if version >= 2:
        assert offsets(ask("g", None)) == {("orders", 0): (5, "note"), ("orders", 1): (6, "")}
        assert ask("unknown", None)["topics"] == []
    backend.errors["g"] = KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    loading = ask("g", {"orders": [0]})
    if version >= 2:
        assert (loading["error_code"], loading["topics"]) == (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, [])
    else:
        assert loading["topics"][0]["partitions"][0]["error_code"] == KafkaError.COORDINATOR_LOAD_IN_PROGRESS


def test_offsets_of_partitions_are_deleted(client: WireClient, backend: MemoryBackend) -> None:
    message = {"group_id": "g", "topics": [{"name": "orders", "partitions": [{"partition_index": 0}]}]}
    answer = client.ask(OFFSET_DELETE, 0, message)
    assert (answer["error_code"], commit_errors(answer)) == (0, {("orders", 0): 0})
    assert backend.offsets["g"] == {"orders": {1: (6, -1, "")}}
    assert (
        client.ask(OFFSET_DELETE, 0, {**message, "group_id": "unknown"})["error_code"] == KafkaError.GROUP_ID_NOT_FOUND
    )


# --- groups -------------------------------------------------------------------------------------------


@every_version(LIST_GROUPS)
def test_groups_are_listed_as_simple_ones(client: WireClient, backend: MemoryBackend, version: int) -> None:
    def listed(**filters: Any) -> list[str]:
        answer = client.ask(LIST_GROUPS, version, {"states_filter": [], "types_filter": [], **filters})
        assert answer["error_code"] == 0
        for group in answer["groups"]:
            assert group["protocol_type"] == ""
            assert group.get("group_state", "Empty") == "Empty"
            assert group.get("group_type", "classic") == "classic"
        return [group["group_id"] for group in answer["groups"]]

    assert listed() == ["g", "h"]
    if version >= 4:
        assert listed(states_filter=["Stable", "EMPTY"]) == ["g", "h"]
        assert listed(states_filter=["Stable"]) == []
    if version >= 5:
        assert listed(types_filter=["Classic"]) == ["g", "h"]
        assert listed(types_filter=["consumer"]) == []
    backend.errors["*"] = KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    answer = client.ask(LIST_GROUPS, version, {"states_filter": [], "types_filter": []})
    assert (answer["error_code"], answer["groups"]) == (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, [])


@every_version(DESCRIBE_GROUPS)
def test_groups_are_described_as_kafka_describes_simple_ones(client, backend, version) -> None:
    backend.errors["moved"] = KafkaError.NOT_COORDINATOR
    answer = client.ask(
        DESCRIBE_GROUPS, version, {"groups": ["g", "unknown", "moved"], "include_authorized_operations": True}
    )
    found, unknown, moved = answer["groups"]
    assert (found["error_code"], found["group_state"], found["protocol_type"], found["members"]) == (0, "Empty", "", [])
    assert (unknown["error_code"], unknown["group_state"]) == (
        (KafkaError.GROUP_ID_NOT_FOUND if version >= 6 else 0),
        "Dead",
    )
    assert moved["error_code"] == KafkaError.NOT_COORDINATOR
    if version >= 3:
        assert found["authorized_operations"] == 1 << 8 | 1 << 3 | 1 << 6


@every_version(DELETE_GROUPS)
def test_groups_are_deleted(client: WireClient, backend: MemoryBackend, version: int) -> None:
    answer = client.ask(DELETE_GROUPS, version, {"groups_names": ["g", "unknown", "g"]})
    assert [(r["group_id"], r["error_code"]) for r in answer["results"]] == [
        ("g", 0),
        ("unknown", KafkaError.GROUP_ID_NOT_FOUND),
    ]
    assert list(backend.offsets) == ["h"]


@every_version(LIST_OFFSETS)
def test_log_offsets_come_from_the_real_cluster(client: WireClient, cluster: FakeCluster, version: int) -> None:
    part = {"partition_index": 2, "current_leader_epoch": 1, "timestamp": -2}
    message = {"replica_id": -1, "isolation_level": 1, "topics": [{"name": "orders", "partitions": [part]}]}
    answer = client.ask(LIST_OFFSETS, version, message)

    assert answer["topics"][0]["partitions"][0]["offset"] == (92 if version >= 2 else 102)
    assert cluster.queries == [{"orders": [OffsetQuery(2, -2)]}]
    cluster.reachable = False
    answer = client.ask(LIST_OFFSETS, version, message)
    assert answer["topics"][0]["partitions"][0]["error_code"] == KafkaError.LEADER_NOT_AVAILABLE


def test_the_cluster_gets_no_request_for_a_topic_with_too_long_a_name(client: WireClient, cluster: FakeCluster) -> None:
    expected = {"orders": 0, LONG: KafkaError.TOPIC_EXCEPTION}
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": topic, "partitions": [part]} for topic in expected]
    ends = client.ask(LIST_OFFSETS, 6, {"replica_id": -1, "isolation_level": 0, "topics": topics})
    assert commit_errors(ends) == {(topic, 0): error for topic, error in expected.items()}
    assert [query.keys() for query in cluster.queries] == [{"orders"}]
    for version in (0, 9, 12):
        answer = client.ask(METADATA, version, {"topics": [{"name": topic, "topic_id": None} for topic in expected]})
        assert {topic["name"]: topic["error_code"] for topic in answer["topics"]} == expected


# --- authorization ------------------------------------------------------------------------------------------


RULES = """
[[rule]]
principals = ["ANONYMOUS"]
groups = ["mine-*", "shared"]
topics = ["orders"]
operations = {operations}

[[rule]]
principals = ["*"]
groups = ["open*"]
operations = ["describe"]

[[rule]]
principals = ["another user"]
groups = ["*"]
topics = ["*"]
operations = ["all"]

[[rule]]
principals = ["ANONYMOUS"]
apis = ["*"]
"""


@pytest.fixture
def restricted(backend: MemoryBackend, cluster: FakeCluster, tmp_path: Path, request) -> Iterator[WireClient]:
    backend.offsets["mine-1"] = {"orders": {0: (1, -1, "")}, "bills": {0: (2, -1, "")}}
    file = tmp_path / "rules.toml"
    file.write_text(RULES.format(operations=getattr(request, "param", ["all"])))
    with (
        MemoryListener(backend, cluster=cluster, rules=file) as listening,
        WireClient(listening.port) as client,
    ):
        yield client


def test_commits_to_others_groups_and_topics_are_rejected(restricted: WireClient, backend: MemoryBackend) -> None:
    before = dict(backend.offsets["g"])
    for group in ("g", "shared2", "open"):
        assert commit_errors(restricted.commit(group, {("orders", 0): 99})) == {("orders", 0): GROUP_FORBIDDEN}
    assert commit_errors(restricted.commit("mine-2", {("orders", 0): 9, ("bills", 0): 9, ("bills", 1): 9})) == {
        ("orders", 0): 0,
        ("bills", 0): TOPIC_FORBIDDEN,
        ("bills", 1): TOPIC_FORBIDDEN,
    }
    assert commit_errors(restricted.commit("mine-3", {("bills", 0): 9})) == {("bills", 0): TOPIC_FORBIDDEN}
    assert (backend.offsets["g"], backend.offsets["mine-2"]) == (before, {"orders": {0: (9, -1, "")}})
    assert "mine-3" not in backend.offsets


def test_fetches_and_lists_show_only_what_is_allowed(restricted: WireClient) -> None:
    answer = restricted.ask(
        FETCH, 8, fetch_message({"g": None, "mine-1": None, "shared": {"orders": [0], "bills": [0]}})
    )
    foreign, mine, shared = answer["groups"]
    assert (foreign["error_code"], foreign["topics"]) == (GROUP_FORBIDDEN, [])
    assert offsets(mine) == {("orders", 0): (1, "")}, (
        "a fetch of all topics leaves out topics that the user may not describe"
    )
    errors = {t["name"]: t["partitions"][0]["error_code"] for t in shared["topics"]}
    assert errors == {"orders": 0, "bills": TOPIC_FORBIDDEN}
    listed = restricted.ask(LIST_GROUPS, 4, {"states_filter": []})
    assert [group["group_id"] for group in listed["groups"]] == ["mine-1"]
    topics = restricted.ask(METADATA, 9, {"topics": None})["topics"]
    assert [topic["name"] for topic in topics] == ["orders"]


def test_other_requests_for_foreign_groups_are_rejected(restricted: WireClient, backend: MemoryBackend) -> None:
    described = restricted.ask(DESCRIBE_GROUPS, 5, {"groups": ["g", "mine-1", "open-1"]})
    states = [(g["error_code"], g["group_state"]) for g in described["groups"]]
    assert states == [(GROUP_FORBIDDEN, ""), (0, "Empty"), (0, "Dead")]
    found = restricted.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g", "mine-1"]})
    assert [c["error_code"] for c in found["coordinators"]] == [0, 0], "only the later commit is rejected"
    message = {"topics": [{"name": n, "partitions": [{"partition_index": 0}]} for n in ("orders", "bills")]}
    assert restricted.ask(OFFSET_DELETE, 0, {**message, "group_id": "g"})["error_code"] == GROUP_FORBIDDEN
    answer = restricted.ask(OFFSET_DELETE, 0, {**message, "group_id": "mine-1"})
    assert commit_errors(answer) == {("orders", 0): 0, ("bills", 0): TOPIC_FORBIDDEN}
    assert backend.offsets["mine-1"] == {"bills": {0: (2, -1, "")}}
    deleted = restricted.ask(DELETE_GROUPS, 2, {"groups_names": ["g", "mine-1"]})
    assert [r["error_code"] for r in deleted["results"]] == [GROUP_FORBIDDEN, 0]
    assert "g" in backend.offsets
    topics = restricted.ask(METADATA, 9, {"topics": [{"name": "bills"}, {"name": "orders"}]})["topics"]
    assert {topic["name"]: topic["error_code"] for topic in topics} == {"bills": TOPIC_FORBIDDEN, "orders": 0}
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    queries = [{"name": name, "partitions": [part]} for name in ("bills", "orders")]
    answer = restricted.ask(LIST_OFFSETS, 5, {"replica_id": -1, "isolation_level": 0, "topics": queries})
    assert {t["name"]: t["partitions"][0]["error_code"] for t in answer["topics"]} == {
        "bills": TOPIC_FORBIDDEN,
        "orders": 0,
    }


@pytest.mark.parametrize("restricted", [["write"], ["delete"]], indirect=True)
def test_a_conditional_commit_that_deletes_needs_the_right_to_delete(restricted: WireClient, request) -> None:
    may_delete = "delete" in request.node.callspec.params["restricted"]
    offsets = {TopicPartition("orders", 0): None, TopicPartition("orders", 1): OffsetAndMetadata(9)}
    asked = conditional_commit("mine-1", offsets, dict.fromkeys(offsets, 1))
    forbidden = {("orders", 0): 0, ("orders", 1): GROUP_FORBIDDEN}
    if not may_delete:
        forbidden = {("orders", 0): GROUP_FORBIDDEN, ("orders", 1): 0}
    assert commit_errors(restricted.ask(COMMIT, 8, asked.body[1:])) == forbidden  # without the header


@pytest.mark.parametrize("restricted", [["read"], ["describe"]], indirect=True)
def test_a_user_with_read_may_only_fetch_and_one_with_describe_not_even_that(restricted: WireClient, request) -> None:
    assert commit_errors(restricted.commit("mine-1", {("orders", 0): 9})) == {("orders", 0): GROUP_FORBIDDEN}
    deleted = restricted.ask(DELETE_GROUPS, 2, {"groups_names": ["mine-1"]})
    assert deleted["results"][0]["error_code"] == GROUP_FORBIDDEN
    assert restricted.ask(DESCRIBE_GROUPS, 5, {"groups": ["mine-1"]})["groups"][0]["group_state"] == "Empty"
    fetched = restricted.ask(FETCH, 5, fetch_message({"mine-1": {"orders": [0]}}))
    if "read" in request.node.callspec.params["restricted"]:
        assert offsets(fetched) == {("orders", 0): (1, "")}
    else:
        assert restricted.ask(FETCH, 5, fetch_message({"mine-1": None}))["error_code"] == GROUP_FORBIDDEN
