"""Messages through the relay in every version: which the relay forwards, which it changes, and how it handles large
ones. A fake broker stands behind the relay."""

import contextlib
import itertools
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fake_broker import FakeBroker
from memory_listener import (
    BUDGET,
    COMMIT,
    FETCH,
    FIND_COORDINATOR,
    MemoryListener,
    WireClient,
    commit_errors,
    commit_message,
    fetch_message,
    longest_callback,
    read_response,
    wait_until,
)
from running_relay import FORWARDED, NODE_ID, RunningRelay

from offsetmgr.kafka.protocol.schema_codec import EncodedItems, Message, encode_items, encode_request
from offsetmgr.server.proxy.brokers import ProxyPorts

PRODUCE, FETCH_RECORDS, METADATA, JOIN, HEARTBEAT, LEAVE, SYNC = 0, 1, 3, 11, 12, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS, API_VERSIONS, DELETE_TOPICS, TOPIC_PARTITIONS = 15, 16, 18, 20, 75
REBALANCING, ILLEGAL_GENERATION, TOPIC_FORBIDDEN, INVALID_REQUEST, UNKNOWN_ID = 27, 22, 29, 42, 100
TRANSACTION_FORBIDDEN, SESSION_UNKNOWN = 53, 70
RESERVED = "offsets-of-managers"
MANY = 20_000
IDS = [uuid.UUID(int=number + 1) for number in range(MANY)]
NAMES = [f"t{number}" for number in range(MANY)]

T = TypeVar("T")
REWRITTEN = {METADATA: 13, JOIN: 9, HEARTBEAT: 4, LEAVE: 5, SYNC: 5, 60: 2}
OWN = {8: (2, 9), 9: (1, 9), 10: (0, 6), 15: (0, 6), 16: (0, 5), 18: (0, 4), 42: (0, 2), 47: (0, 0)}


class Cluster(FakeBroker):
    """A cluster of a broker that responds and one that does not. ``described`` lists all topics."""

    def __init__(self, versions: Mapping[int, tuple[int, int]]) -> None:
        super().__init__(versions=versions)
        self.brokers = 2
        self.reset()
        self.described: list[Message] = []
        self.names = dict(zip(IDS, NAMES, strict=True))
        """The names of topics by their ids."""

    def reset(self) -> None:
        self.sent.clear()
        self.handlers = {
            METADATA: self.metadata, FIND_COORDINATOR: self.coordinators, DESCRIBE_GROUPS: self.without_members,
        }  # fmt: skip

    def metadata(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        ids = [topic.get("topic_id") for topic in message["topics"] or ()]
        found = [
            {"error_code": 0, "name": self.names.get(one), "topic_id": one, "partitions": []} for one in ids if one
        ]
        return {
            "brokers": [
                {"node_id": 1, "host": "127.0.0.1", "port": self.port, "rack": "r1"},
                {"node_id": 2, "host": "127.0.0.1", "port": 1, "rack": RESERVED},
            ][: self.brokers],
            "cluster_id": RESERVED,
            "controller_id": 2,
            "error_code": 0,
            "topics": [*self.described, *(topic for topic in found if topic["name"])],
        }

    def without_members(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        empty = {"error_code": 0, "group_state": "Empty", "protocol_type": "", "protocol_data": "", "members": []}
        return {"groups": [{**empty, "group_id": group} for group in message["groups"]]}

    def coordinators(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        here = {"node_id": 1, "host": "127.0.0.1", "port": self.port, "error_code": 0, "error_message": None}
        return {**here, "coordinators": [{**here, "key": key} for key in message.get("coordinator_keys", ())]}


@contextlib.contextmanager
def relay_before(
    versions: Mapping[int, tuple[int, int]] | None = None, **options: Any
) -> Iterator[tuple[Cluster, RunningRelay]]:
    supported = dict.fromkeys([*FORWARDED, *REWRITTEN, *OWN], (0, 99)) if versions is None else versions
    with Cluster(supported) as cluster, RunningRelay(cluster.bootstrap, **options) as relay:
        yield cluster, relay


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Cluster, RunningRelay]]:
    with relay_before() as found:
        yield found


@pytest.fixture
def cluster(shared: tuple[Cluster, RunningRelay]) -> Cluster:
    shared[0].reset()
    shared[0].described.clear()
    return shared[0]


@pytest.fixture
def relay(shared: tuple[Cluster, RunningRelay]) -> RunningRelay:
    shared[1].kept.code = 0
    shared[1].kept.offsets.clear()
    return shared[1]


@pytest.fixture
def client(relay: RunningRelay) -> Iterator[WireClient]:
    with WireClient(relay.port) as client:
        yield client


# --- which messages pass ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broker", "offered"),
    [
        (None, {key: (0, high) for key, high in (FORWARDED | REWRITTEN).items()}),
        ({0: (3, 13), 1: (4, 18), 2: (1, 3), 68: (0, 1), 25: (0, 4), 22: (7, 9)}, {0: (3, 9), 1: (4, 15), 2: (1, 3)}),
    ],
    ids=["all versions", "some versions"],
)
def test_only_versions_that_the_relay_and_the_broker_support_are_offered(
    broker: Mapping[int, tuple[int, int]] | None, offered: Mapping[int, tuple[int, int]]
) -> None:
    versions = None if broker is None else {**broker, METADATA: (1, 9), FIND_COORDINATOR: (0, 4)}
    with relay_before(versions) as (_, relay), WireClient(relay.port) as client:
        answer = client.ask(API_VERSIONS, 0, {})
    found = {one["api_key"]: (one["min_version"], one["max_version"]) for one in answer["api_keys"]}
    assert found == {**offered, **({} if broker is None else {METADATA: (1, 9)}), **OWN}


def test_every_other_request_closes_the_connection(cluster: Cluster, relay: RunningRelay) -> None:
    """Such as APIs between brokers and controllers, offsets in transactions, other clients' transactions, features, and
    later versions, whose responses name brokers."""
    others = [(key, 0) for key in range(100) if key not in FORWARDED | REWRITTEN | OWN]
    for key, version in others + [(key, high + 1) for key, high in FORWARDED.items()]:
        with WireClient(relay.port) as client:
            client.send(key, version, bytes(20))
            assert client.is_disconnected(), (key, version)
    assert [key for key, *_ in cluster.sent if key != METADATA] == []


# --- brokers, topics and groups ------------------------------------------------------------------------


def test_a_broker_has_the_same_port_after_a_restart() -> None:
    ports = ProxyPorts(9200, 10)
    assert [next(iter(ports.candidates(node))) for node in (0, 3, 1001)] == [9200, 9203, 9201]
    assert sorted(ports.candidates(7)) == list(range(9200, 9210))


PARTITION = {
    "error_code": 0, "partition_index": 0, "leader_id": 1, "leader_epoch": 3, "replica_nodes": [1, 2],
    "isr_nodes": [1], "offline_replicas": [2],
}  # fmt: skip


def topic(name: str, partitions: int = 1) -> Message:
    parts = [{**PARTITION, "partition_index": number} for number in range(partitions)]
    return {"error_code": 0, "name": name, "topic_id": uuid.UUID(int=partitions), "partitions": parts}


@pytest.mark.parametrize("version", range(14))
def test_only_the_brokers_of_a_metadata_response_change(cluster, relay, client, version: int) -> None:
    cluster.described.append(topic("orders"))
    answer = client.ask(METADATA, version, {"topics": [{"name": "orders", "topic_id": None}]})
    ports = relay.relay.brokers.ports()
    assert [(b["node_id"], b["host"], b["port"]) for b in answer["brokers"]] == [
        (1, "127.0.0.1", ports[1]), (2, "127.0.0.1", ports[2]), (NODE_ID, "127.0.0.1", relay.port),
    ]  # fmt: skip
    assert cluster.port not in ports.values()
    if version >= 1:
        assert [b["rack"] for b in answer["brokers"]] == ["r1", RESERVED, None]
        assert answer["controller_id"] == 2
    (found,) = answer["topics"]
    assert found["name"] == "orders"
    assert {**PARTITION, **found["partitions"][0]} == PARTITION


@pytest.mark.parametrize("hidden", [RESERVED, "t", "long-" * 20])
@pytest.mark.parametrize("present", [True, False])
def test_the_managers_topic_is_removed_from_metadata_in_every_version(hidden: str, present: bool) -> None:
    names = [f"x{hidden}", f"{hidden}x", f"before-{hidden}", *[hidden] * present, "orders", f"behind-{hidden}"]
    with relay_before(topic=hidden) as (cluster, relay), WireClient(relay.port) as client:
        cluster.described += [topic(name, number) for number, name in enumerate(names, 1)]
        for version in range(14):
            answer = client.ask(METADATA, version, {"topics": None if version else []})
            found = [(one["name"], len(one["partitions"])) for one in answer["topics"]]
            assert found == [(name, number) for number, name in enumerate(names, 1) if name != hidden], version


def test_the_managers_own_names_are_rejected(relay: RunningRelay, client: WireClient) -> None:
    assert commit_errors(client.commit("g", {(RESERVED, 0): 1, ("orders", 0): 1})) == {
        (RESERVED, 0): TOPIC_FORBIDDEN, ("orders", 0): 0,
    }  # fmt: skip
    assert set(commit_errors(client.commit(f"{RESERVED}.managers", {("orders", 0): 1})).values()) == {30}
    assert client.ask(FETCH, 5, fetch_message(f"{RESERVED}.managers"))["error_code"] == 30
    assert set(commit_errors(client.commit(RESERVED, {("orders", 0): 1})).values()) == {0}


MEMBER = {"group_id": "g", "generation_id": 8, "member_id": "m" * 200, "group_instance_id": "i"}
REQUESTS: Mapping[int, Message] = {
    JOIN: {"session_timeout": 45_000, "rebalance_timeout": 1, "protocol_type": "consumer", "protocols": [],
           "reason": None},
    SYNC: {"assignments": [], "protocol_type": None, "protocol_name": None},
    HEARTBEAT: {},
    LEAVE: {"members": []},
}  # fmt: skip
RESPONSE = {
    "error_code": REBALANCING, "generation_id": 31, "protocol_name": "range", "protocol_type": "consumer",
    "leader": "l", "member_id": "m", "members": [], "assignment": b"",
}  # fmt: skip
GROUP_VERSIONS = [(key, version) for key in REQUESTS for version in range(REWRITTEN[key] + 1)]


@pytest.mark.parametrize(("key", "version"), GROUP_VERSIONS)
def test_requests_of_members_reach_the_coordinator_and_its_responses_the_member(
    cluster: Cluster, client: WireClient, key: int, version: int
) -> None:
    cluster.handlers[key] = lambda _: RESPONSE
    request = MEMBER | REQUESTS[key]
    answer = client.ask(key, version, request)
    (sent,) = cluster.requests(key)
    assert {**request, **sent} == request | {field: sent[field] for field in sent.keys() - request.keys()}
    assert sent["group_id"] == "g"
    assert {**RESPONSE, **answer} == RESPONSE | {field: answer[field] for field in answer.keys() - RESPONSE.keys()}
    assert answer["error_code"] == REBALANCING


@pytest.mark.parametrize(("key", "version"), GROUP_VERSIONS)
def test_a_manager_without_the_group_answers_members_with_an_error(
    cluster: Cluster, relay: RunningRelay, client: WireClient, key: int, version: int
) -> None:
    relay.kept.code = 16
    answer = client.ask(key, version, MEMBER | REQUESTS[key])
    assert answer["error_code"] == 16
    if key == JOIN:
        assert (answer["member_id"], answer["generation_id"], answer["members"]) == ("m" * 200, -1, [])
    assert cluster.requests(key) == []


@pytest.mark.parametrize(("join", "sync"), [(join, min(join, 5)) for join in range(10)])
def test_joins_and_syncs_decide_which_members_may_commit(cluster, client, join: int, sync: int) -> None:
    group = f"g{join}"
    cluster.handlers |= {
        JOIN: lambda _: RESPONSE | {"error_code": 0},
        SYNC: lambda _: RESPONSE | {"error_code": 0},
        HEARTBEAT: lambda _: {"error_code": 0},
    }

    def commit(generation: int) -> int:
        member = {"generation_id": generation, "generation_id_or_member_epoch": generation, "member_id": "m"}
        (code,) = commit_errors(client.ask(COMMIT, 7, commit_message(group, {("t", 0): 1}) | member)).values()
        return code

    member = {"group_id": group, "generation_id": 31, "member_id": "m", "group_instance_id": "i"}
    joining = member | REQUESTS[JOIN]
    client.ask(JOIN, join, joining)
    assert commit(30) == ILLEGAL_GENERATION
    client.ask(SYNC, sync, member | REQUESTS[SYNC])
    assert (commit(31), cluster.requests(HEARTBEAT)) == (0, [])
    client.ask(JOIN, join, joining)  # in the same generation: another process may have the identity of a static member
    assert (commit(31), len(cluster.requests(HEARTBEAT))) == (0, 1 if join >= 5 else 0)
    client.ask(JOIN, join, {**joining, "session_timeout": 200, "group_instance_id": None})
    client.ask(SYNC, sync, member | REQUESTS[SYNC])
    time.sleep(0.12)  # more than half of the session
    cluster.sent.clear()
    assert commit(31) == 0
    assert cluster.requests(HEARTBEAT)


# --- topic ids -------------------------------------------------------------------------------------------

FETCHED = {
    "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1,
    "partition_max_bytes": 1,
}  # fmt: skip


def fetch_of(ids: list[uuid.UUID], partitions: int = 1) -> Message:
    return {
        "replica_id": -1, "max_wait": 1, "min_bytes": 1, "max_bytes": 1, "isolation_level": 0, "session_id": 0,
        "session_epoch": -1, "forgotten_topics_data": [], "rack_id": "",
        "topics": [{"topic_id": one, "partitions": [FETCHED] * partitions} for one in ids],
    }  # fmt: skip


def answered(answer: Message) -> dict[uuid.UUID, int]:
    return {one["topic_id"]: one["partitions"][0]["error_code"] for one in answer["responses"]}


@pytest.mark.parametrize("version", [13, 14, 15])
@pytest.mark.parametrize("tagged", [False, True])
def test_a_fetch_by_id_is_forwarded_without_the_managers_topic(cluster, client, version: int, tagged: bool) -> None:
    cluster.handlers[FETCH_RECORDS] = lambda _: {"error_code": 0, "session_id": 0, "responses": []}
    allowed, hidden, unknown = (uuid.UUID(int=number) for number in (5, 2**98, 2**100))
    cluster.names[hidden] = RESERVED
    body = bytearray(encode_request(1, version, fetch_of([allowed, hidden, unknown], 2)))
    if tagged:
        at = body.index(allowed.bytes) + 16 + 1 + 32
        body[at : at + 1] = b"\x01\x05\x00"  # one tagged field of the partition, number 5, empty
    for _ in range(2):  # the second time, the relay knows the names
        client.send(FETCH_RECORDS, version, bytes(body))
        answer = read_response(FETCH_RECORDS, version, client.receive())
        assert answered(answer) == {hidden: TOPIC_FORBIDDEN, unknown: UNKNOWN_ID}
    assert [[one["topic_id"] for one in sent["topics"]] for sent in cluster.requests(FETCH_RECORDS)] == [[allowed]] * 2


RULE = '[[rule]]\nprincipals = ["*"]\ngroups = ["*"]\ntopics = ["t7"]\ntransactional_ids = ["x*"]\n'


@contextlib.contextmanager
def ruled(file: Path, text: str) -> Iterator[tuple[Cluster, WireClient]]:
    file.write_text(text)
    rules = MemoryListener(rules=file).authorizer
    with relay_before(authorizer=rules) as (cluster, relay), WireClient(relay.port) as client:
        cluster.handlers[PRODUCE] = lambda _: {"responses": []}
        cluster.handlers[FETCH_RECORDS] = lambda _: {"error_code": 0, "session_id": 0, "responses": []}
        cluster.described += [topic(name) for name in ("t3", "t7", "t9")]
        yield cluster, client


def lookups(cluster: Cluster) -> list[Any]:
    return [one["topics"] for one in cluster.requests(METADATA) if one["topics"]]


def test_a_client_without_rights_makes_the_relay_look_up_nothing(tmp_path: Path) -> None:
    with ruled(tmp_path / "rules.toml", f'{RULE}operations = ["describe"]') as (cluster, client):
        ids = [uuid.uuid4() for _ in range(1_500)]
        assert set(answered(client.ask(FETCH_RECORDS, 13, fetch_of(ids))).values()) == {TOPIC_FORBIDDEN}
        message = {"topics": [{"name": None, "topic_id": one} for one in ids], "timeout": 1}
        codes = {one["error_code"] for one in client.ask(DELETE_TOPICS, 6, message)["responses"]}
        assert (codes, lookups(cluster)) == ({TOPIC_FORBIDDEN}, [])
    with ruled(tmp_path / "rules.toml", '[[rule]]\nprincipals = ["*"]\ngroups = ["*"]\noperations = ["all"]') as found:
        cluster, client = found
        cluster.sent.clear()
        assert client.ask(TOPIC_PARTITIONS, 0, {"topics": [], "response_partition_limit": 9})["topics"] == []
        assert [one for one in cluster.requests(METADATA) if one["topics"] is None] == []


def test_commits_do_not_wait_for_lookups_of_topics_of_which_one_runs_at_a_time(tmp_path: Path) -> None:
    go_on = threading.Event()
    with ruled(tmp_path / "rules.toml", f'{RULE}operations = ["all"]') as (cluster, client):

        def metadata(message: Mapping[str, Any]) -> Mapping[str, Any]:
            assert not any(one.get("topic_id") for one in message["topics"] or ()) or go_on.wait(60)
            return cluster.metadata(message)

        cluster.handlers[METADATA] = metadata
        unknown = fetch_of([uuid.uuid4()])
        with WireClient(client.socket.getpeername()[1]) as second, WireClient(second.socket.getpeername()[1]) as other:
            for one in (client, second):
                one.send(FETCH_RECORDS, 13, unknown)
            assert wait_until(lambda: bool(lookups(cluster)))
            assert set(commit_errors(other.commit("g", {("t7", 0): 1})).values()) == {0}
            go_on.set()
            for one in (client, second):
                answer = read_response(FETCH_RECORDS, 13, one.receive())
                assert set(answered(answer).values()) == {UNKNOWN_ID}
        assert len(lookups(cluster)) == 1  # the relay remembers unknown ids


def test_fetches_with_unknown_ids_use_the_clients_connection_in_order(tmp_path: Path) -> None:
    with ruled(tmp_path / "rules.toml", f'{RULE}operations = ["all"]') as (cluster, client):
        before = len(cluster._connections)
        known = fetch_of([IDS[7]])
        for message in [fetch_of([IDS[7], uuid.uuid4()]) for _ in range(20)]:
            for one in (message, known):
                client.send(FETCH_RECORDS, 13, one)
        counts = [len(read_response(FETCH_RECORDS, 13, client.receive())["responses"]) for _ in range(40)]
        assert counts == [1, 0] * 20
        assert len(cluster._connections) <= before + 2  # the client's, and the one of lookups


def test_the_first_fetch_of_a_session_is_streamed(cluster: Cluster, relay: RunningRelay) -> None:
    part = {
        "partition_index": 0, "error_code": 0, "high_watermark": 1, "last_stable_offset": 1, "log_start_offset": 0,
        "aborted_transactions": None, "preferred_read_replica": -1, "records": bytes(64 << 20),
    }  # fmt: skip
    found = {"error_code": 0, "session_id": 5, "responses": [{"topic": "t", "topic_id": IDS[0], "partitions": [part]}]}
    cluster.handlers[FETCH_RECORDS] = lambda _: found
    with WireClient(relay.port, receive_buffer=64 * 1024) as client:
        for version in (7, 12, 13):
            client.send(FETCH_RECORDS, version, {**fetch_of(IDS[:1]), "topics": [], "session_epoch": 0})
            assert wait_until(lambda: any(one.stalled_since for one in relay.service.connections))
            assert max(one.unread_bytes for one in relay.service.connections) < 8 << 20
            assert len(client.receive()) > 64 << 20
        found["responses"] = []
        for session, code in ((5, 0), (6, SESSION_UNKNOWN)):
            answer = client.ask(FETCH_RECORDS, 13, {**fetch_of([]), "session_id": session, "session_epoch": 1})
            assert answer["error_code"] == code


# --- large messages -----------------------------------------------------------------------------------------


def produced(name: str, records: bytes = b"") -> Message:
    return {"name": name, "partition_data": [{"index": 0, "records": records}]}


def produce_of(topics: list[Message], acks: int = 1) -> Message:
    return {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": topics}


def quick(ask: Callable[[], T]) -> T:
    """The response to a request that must not block the event loop."""
    answers: list[T] = []
    assert longest_callback(lambda: answers.append(ask()), 1) <= BUDGET
    return answers[0]


@pytest.fixture
def produces(cluster: Cluster) -> None:
    cluster.handlers[PRODUCE] = lambda _: {"responses": []}


@pytest.mark.slow
def test_too_many_names_are_all_rejected_without_a_request_to_the_broker(cluster: Cluster, client: WireClient) -> None:
    names = [f"g{number}" for number in range(50_001)]
    described = client.ask(DESCRIBE_GROUPS, 5, {"groups": names})["groups"]
    assert [group["group_id"] for group in described] == names
    assert {group["error_code"] for group in described} == {INVALID_REQUEST}
    found = client.ask(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": names})["coordinators"]
    assert {one["error_code"] for one in found} == {INVALID_REQUEST}
    assert not cluster.requests(DESCRIBE_GROUPS) and not cluster.requests(FIND_COORDINATOR)


@pytest.mark.slow
def test_groups_are_described_a_few_at_a_time(cluster: Cluster, client: WireClient) -> None:
    """The real coordinator gets a request for each hundred groups, and a name twice counts once."""
    names = [f"{'mg'[number % 2]}{number}" for number in range(MANY)]
    member = {
        "member_id": "m", "group_instance_id": None, "client_id": "c", "client_host": "h", "member_metadata": b"",
        "member_assignment": b"",
    }  # fmt: skip

    def described(message: Mapping[str, Any]) -> Mapping[str, Any]:
        found = {"error_code": 0, "protocol_type": "consumer", "protocol_data": "range"}
        states: dict[str, Message] = {"m": {"group_state": "Stable", "members": [member]}}
        states["g"] = {"group_state": "Dead", "members": []}
        return {"groups": [{**found, "group_id": group, **states[group[0]]} for group in message["groups"]]}

    cluster.handlers[DESCRIBE_GROUPS] = described
    groups = quick(lambda: client.ask(DESCRIBE_GROUPS, 6, {"groups": names + names}))["groups"]
    assert len(cluster.requests(DESCRIBE_GROUPS)) == len(cluster.requests(FIND_COORDINATOR)) == MANY / 100
    assert [group["group_id"] for group in groups] == names
    assert [len(group["members"]) for group in groups[:4]] == [1, 0, 1, 0]


def test_groups_are_listed_a_few_at_a_time(cluster: Cluster, relay: RunningRelay, client: WireClient) -> None:
    ours, theirs = [f"o{number:05}" for number in range(MANY)], [f"r{number:05}" for number in range(MANY)]
    stable = {"protocol_type": "consumer", "group_state": "Stable"}
    encoded = encode_items(LIST_GROUPS, 4, "groups", [stable | {"group_id": group} for group in (ours[0], *theirs)])
    cluster.brokers = 1  # no groups are listed while a broker does not respond
    cluster.handlers[LIST_GROUPS] = lambda _: {"error_code": 0, "groups": EncodedItems(MANY + 1, encoded)}
    relay.kept.offsets = {group: {} for group in ours}
    filters = [{"states_filter": states} for states in ([], ["stable"])]
    answers = [quick(partial(client.ask, LIST_GROUPS, 4, states)) for states in filters]
    assert [group["group_id"] for group in answers[0]["groups"]] == [*ours, *theirs]
    assert [group["group_state"] for group in answers[0]["groups"][:2]] == ["Stable", "Empty"]
    assert len(answers[1]["groups"]) == MANY + 1
    cluster.brokers = 2


@pytest.mark.slow
def test_a_large_fetch_by_id_does_not_block_the_event_loop(cluster: Cluster, client: WireClient) -> None:
    cluster.handlers[FETCH_RECORDS] = lambda _: {"error_code": 0, "session_id": 0, "responses": []}
    hidden, unknown = uuid.UUID(int=2**99), uuid.UUID(int=2**100)
    cluster.names[hidden] = RESERVED
    requests = [fetch_of(ids) for ids in (IDS, [*IDS, hidden, unknown])]
    answers = [quick(partial(client.ask, FETCH_RECORDS, 13, request)) for request in requests]
    assert list(map(answered, answers)) == [{}, {hidden: TOPIC_FORBIDDEN, unknown: UNKNOWN_ID}]
    assert [len(sent["topics"]) for sent in cluster.requests(FETCH_RECORDS)] == [MANY, MANY]


@pytest.mark.parametrize("where", ["a topic", "a record"])
@pytest.mark.usefixtures("produces")
def test_a_large_produce_does_not_block_the_event_loop_and_is_not_overtaken(cluster, client, where: str) -> None:
    """Producers' sequence numbers follow the order of their requests."""
    topics = [produced(name) for name in NAMES]
    topics.append(produced(RESERVED) if where == "a topic" else produced("last", RESERVED.encode()))

    def send() -> list[Message]:
        for sent in ([produced("before")], topics, [produced("behind")]):
            client.send(PRODUCE, 9, produce_of(sent))
        return [read_response(PRODUCE, 9, client.receive()) for _ in range(3)]

    answers = quick(send)
    expected = [[TOPIC_FORBIDDEN]] if where == "a topic" else []
    assert [[part["error_code"] for part in one["partition_responses"]] for one in answers[1]["responses"]] == expected
    sent = [message["topic_data"] for message in cluster.requests(PRODUCE)]
    assert [(len(one), one[0]["name"]) for one in sent] == [
        (1, "before"), (MANY + (where == "a record"), "t0"), (1, "behind"),
    ]  # fmt: skip


@pytest.mark.usefixtures("produces")
def test_a_large_produce_that_is_malformed_or_rejected_without_a_response_closes_the_connection(cluster, relay) -> None:
    topics = [produced(name) for name in NAMES]
    malformed = encode_request(PRODUCE, 9, produce_of(topics))[:-10] + RESERVED.encode()
    rejected = encode_request(PRODUCE, 9, produce_of([*topics, produced(RESERVED)], acks=0))
    with WireClient(relay.port) as other:
        for body in (malformed, rejected):
            with WireClient(relay.port) as client:
                client.send(PRODUCE, 9, body)
                assert client.is_disconnected()
        assert cluster.requests(PRODUCE) == []
        other.ask(PRODUCE, 9, produce_of([produced("t")]))


def test_a_request_that_is_slow_to_check_does_not_block_the_event_loop(cluster: Cluster, client: WireClient) -> None:
    cluster.handlers[DELETE_TOPICS] = lambda _: {"responses": []}
    message = {"topic_names": ["t"] * 7_500 + [RESERVED], "timeout": 1}
    assert longest_callback(lambda: client.ask(DELETE_TOPICS, 5, message)) <= BUDGET / 4


@pytest.mark.parametrize("version", [5, 6])
def test_a_large_admin_request_is_rejected_in_part_by_the_rules(tmp_path: Path, version: int) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[[rule]]\nprincipals = ["*"]\napis = ["DeleteTopics"]\ntopics = ["t7"]\n')
    rules = MemoryListener(rules=file).authorizer
    topics = [{"name": name, "topic_id": None} for name in NAMES]
    message = {"topics": topics, "topic_names": NAMES, "timeout": 1}
    with relay_before(authorizer=rules) as (cluster, relay), WireClient(relay.port) as client:
        cluster.handlers[DELETE_TOPICS] = lambda _: {"responses": []}
        answer = quick(lambda: client.ask(DELETE_TOPICS, version, message))
        assert {one["name"]: one["error_code"] for one in answer["responses"]} == dict.fromkeys(
            {*NAMES} - {"t7"}, TOPIC_FORBIDDEN
        )
        (kept,) = cluster.requests(DELETE_TOPICS)[0]["topics" if version == 6 else "topic_names"]
        assert (kept["name"] if version == 6 else kept) == "t7"


def codes_of(answer: Message, partitions: str) -> dict[Any, set[int]]:
    return {
        one.get("name") or one.get("topic") or one["topic_id"]: {part["error_code"] for part in one[partitions]}
        for one in answer["responses"]
    }


def test_a_record_is_produced_and_fetched_only_by_a_rule_in_every_version(tmp_path: Path) -> None:
    with ruled(tmp_path / "rules.toml", f'{RULE}operations = ["produce", "consume"]') as (cluster, client):
        for version in range(3, 10):
            for number in (1, 2_000):
                topics = [{**produced(name, b"r"), "partition_data": produced(name, b"r")["partition_data"] * number}
                          for name in ("t7", "t8")]  # fmt: skip
                answer = client.ask(PRODUCE, version, produce_of(topics))
                assert codes_of(answer, "partition_responses") == {"t8": {TOPIC_FORBIDDEN}}
                assert client.ask(PRODUCE, version, produce_of(topics[:1]))["responses"] == []
            for tid, code in (("x1", None), ("y1", TRANSACTION_FORBIDDEN)):
                answer = client.ask(PRODUCE, version, {**produce_of(topics[:1]), "transactional_id": tid})
                assert codes_of(answer, "partition_responses") == ({} if code is None else {"t7": {code}})
        assert {one["name"] for sent in cluster.requests(PRODUCE) for one in sent["topic_data"]} == {"t7"}
        assert {sent.get("transactional_id") for sent in cluster.requests(PRODUCE)} == {None, "x1"}
        for version in range(4, 16):
            message = fetch_of([IDS[7], IDS[8]])
            for one, name in zip(message["topics"], ("t7", "t8"), strict=True):
                one["topic"] = name
            denied = IDS[8] if version >= 13 else "t8"
            for _ in range(2):  # the second time, the relay knows the names
                assert codes_of(client.ask(FETCH_RECORDS, version, message), "partitions") == {
                    denied: {TOPIC_FORBIDDEN}
                }
            assert client.ask(FETCH_RECORDS, version, {**message, "topics": message["topics"][:1]})["responses"] == []
        sent = [one for found in cluster.requests(FETCH_RECORDS) for one in found["topics"]]
        assert {one.get("topic") or one["topic_id"] for one in sent} == {"t7", IDS[7]}


@pytest.mark.parametrize(("rule", "created"), [("", False), ('apis = ["CreateTopics"]\n', True)])
def test_a_request_that_names_a_topic_creates_it_only_by_a_rule(tmp_path: Path, rule: str, created: bool) -> None:
    """Before Metadata 4, a request cannot ask for no creation, so the relay forwards it as version 4."""
    with ruled(tmp_path / "rules.toml", f'{RULE}{rule}operations = ["describe"]') as (cluster, client):
        cluster.described[:] = [topic("t7")]
        for version in (0, 1, 3, 4, 12):
            cluster.sent.clear()
            topics = [{"name": name, "topic_id": None} for name in ("t7", "t8")]
            answer = client.ask(METADATA, version, {"topics": topics, "allow_auto_topic_creation": True})
            assert [one["name"] for one in answer["topics"] if one["error_code"] == TOPIC_FORBIDDEN] == ["t8"]
            ((_, forwarded, message),) = [one for one in cluster.sent if one[0] == METADATA and one[2]["topics"]]
            assert ([one["name"] for one in message["topics"]], forwarded) == (["t7"], max(version, 4))
            assert message["allow_auto_topic_creation"] == created


def test_versions_that_the_relay_cannot_check_are_not_offered_and_a_cut_is_logged(tmp_path: Path, caplog) -> None:
    with ruled(tmp_path / "rules.toml", f'{RULE}operations = ["all"]') as (_, client):
        found = {one["api_key"]: one["min_version"] for one in client.ask(API_VERSIONS, 0, {})["api_keys"]}
        assert {key: low for key, low in found.items() if low and key in FORWARDED} == {
            19: 2,
            20: 1,
            32: 1,
            34: 1,
            35: 1,
        }
        body = struct.pack(">iiii", -1, 1, 1, 1) + b"\0\2t8" + struct.pack(">iiqi", 1, 0, 0, 1)
        client.send(FETCH_RECORDS, 2, body)
        assert client.is_disconnected()
    (why,) = [vars(one)["why"] for one in caplog.records if one.message == "connections closed"]
    assert why == "invalid request: API 1 version 2: the relay cannot reject a part of a request this old"


def test_a_list_of_topic_partitions_names_no_topic_without_a_rule(tmp_path: Path) -> None:
    """The start of the next part of the list names none either."""
    with ruled(tmp_path / "rules.toml", f'{RULE}operations = ["describe"]') as (cluster, client):
        cluster.handlers[TOPIC_PARTITIONS] = lambda _: {"topics": []}
        for start, expected in ((None, None), ("t3", ("t7", 0)), ("t7", ("t7", 5)), ("t8", None)):
            cursor = None if start is None else {"topic_name": start, "partition_index": 5}
            cluster.sent.clear()
            message = {"topics": [], "response_partition_limit": 9, "cursor": cursor}
            assert client.ask(TOPIC_PARTITIONS, 0, message)["topics"] == []
            if start == "t8":
                assert cluster.requests(TOPIC_PARTITIONS) == []
                continue
            (sent,) = cluster.requests(TOPIC_PARTITIONS)
            assert [one["name"] for one in sent["topics"]] == ["t7"]
            assert (sent["cursor"] and tuple(sent["cursor"].values())) == expected


def test_the_coordinators_of_many_transactions_have_the_relays_address(cluster, relay, client) -> None:
    answer = quick(lambda: client.ask(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": NAMES}))
    found = {(one["host"], one["port"]) for one in answer["coordinators"]}
    assert found == {("127.0.0.1", relay.relay.brokers.ports()[1])}
    assert len(cluster.requests(FIND_COORDINATOR)) == 1


@pytest.mark.parametrize("version", [2, 8, 12])
def test_metadata_of_many_topics_does_not_block_the_event_loop(cluster, client, version: int) -> None:
    topics = [{"name": name, "topic_id": None} for name in itertools.chain(NAMES, [RESERVED])]
    answer = quick(lambda: client.ask(METADATA, version, {"topics": topics, "allow_auto_topic_creation": False}))
    assert [(one["name"], one["error_code"]) for one in answer["topics"]] == [(RESERVED, TOPIC_FORBIDDEN)]
    assert max(len(sent["topics"] or ()) for sent in cluster.requests(METADATA)) == MANY
