"""Large requests through the relay are read and written in small steps, or in the codec thread.

No broker runs: `Broker` is a fake.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from memory_listener import DEFAULT_FIELDS, MemoryBackend, MemoryListener, WireClient, read_response

from offsetmgr.kafka.protocol import schema_codec
from offsetmgr.kafka.protocol.codec_thread import LARGE_BYTES
from offsetmgr.kafka.protocol.schema_codec import (
    EncodedItems,
    Message,
    decode_request,
    encode_items,
    encode_request,
    request_is_flexible,
)
from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.network.api import ApiRequest, Frame
from offsetmgr.server.proxy import metadata_rewrite, request_filter
from offsetmgr.server.proxy.forwarder import Forwarder
from offsetmgr.server.proxy.group_lists import GroupLists
from offsetmgr.server.proxy.metadata_rewrite import MetadataRewriter
from offsetmgr.server.proxy.request_filter import RequestFilter, response_frame
from offsetmgr.server.proxy.topic_ids import TopicIds
from offsetmgr.server.security.authorization import AllowAllAuthorizer, AuthorizationRules, ReservedGroups, Rule

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_TOPICS = 0, 1, 3, 10, 15, 16, 20
INVALID_REQUEST, TOPIC_FORBIDDEN, UNKNOWN_ID = 42, 29, 100
TOPIC = "offsets-of-managers"
RESERVED = ReservedGroups(TOPIC, f"{TOPIC}.managers", f"{TOPIC}-partition-")
MANY = 20_000
IDS = [uuid.UUID(int=number + 1) for number in range(MANY)]

FOUND: list[Message] = [
    {"key": f"t{n}", "node_id": 1, "host": "real", "port": 9092, "error_code": 0, "error_message": None}
    for n in range(MANY)
]
ANSWERS: dict[int, Message] = {
    PRODUCE: {"responses": []},
    FETCH: {"error_code": 0, "session_id": 0, "responses": []},
    METADATA: {"brokers": [], "cluster_id": "real", "controller_id": 1, "topics": [], "error_code": 0},
    DELETE_TOPICS: {"responses": []},
    FIND_COORDINATOR: {"coordinators": EncodedItems(MANY, encode_items(FIND_COORDINATOR, 4, "coordinators", FOUND))},
}


class Broker:
    """A fake of `UpstreamRegistry`, `ClientUpstreams`, `UpstreamConnection` and `Brokers`. It answers at once and
    records the requests."""

    address = None
    closed = False

    def __init__(self) -> None:
        self.requests: list[ApiRequest] = []
        self.brokers = self

    def of(self, _connection: Any) -> Broker:
        return self

    def for_port(self) -> Broker:
        return self

    open_separate = for_port

    def close_separate(self, _upstream: Any) -> None:
        pass

    def ask(self, request: ApiRequest) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        future.set_result(self.forward(request))
        return future

    def forward(self, request: ApiRequest) -> Frame:
        self.requests.append(request)
        return response_frame(request, ANSWERS[request.api_key])

    async def record(self, _brokers: Any) -> None:
        pass

    def port(self, node_id: int) -> int:
        return 9200 + node_id

    def message(self, number: int) -> Message:
        """Decodes the recorded request with this index."""
        request = self.requests[number]
        at = request.body(flexible=request_is_flexible(request.api_key, request.version))
        return decode_request(request.api_key, request.version, request.frame, at)


class Coordinators:
    """A fake of the real coordinators. Groups whose names begin with ``m`` have a member."""

    def __init__(self) -> None:
        self.described = 0
        self.real: dict[str, Message] = {}

    async def describe(self, group: str, _operations: bool, _deadline: float) -> Message:
        self.described += 1
        await asyncio.sleep(0)
        member = {
            "member_id": group, "group_instance_id": None, "client_id": "c", "client_host": "h",
            "member_metadata": b"", "member_assignment": b"",
        }  # fmt: skip
        state = "Stable" if group.startswith("m") else "Dead"
        return {
            "error_code": 0, "group_id": group, "group_state": state, "protocol_type": "consumer",
            "protocol_data": "range", "members": [member] if state == "Stable" else [],
            "authorized_operations": -(2**31),
        }  # fmt: skip

    async def groups(self, _deadline: float) -> dict[str, Message]:
        return dict(self.real)


class Turns:
    """Counts the work within one turn of the listener's event loop: the encoded items of arrays, and the calls that a
    test registers with `count`. ``most`` is the largest count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._count = self.most = 0
        run = asyncio.Handle._run

        def counted(handle: asyncio.Handle) -> None:
            if self._on_the_loop():
                self._count = 0
            run(handle)

        monkeypatch.setattr(asyncio.Handle, "_run", counted)
        self.count(schema_codec._Schema, "encode", lambda _, message: sum(map(_length, message.values())))

    def count(self, owner: Any, name: str, amount: Callable[..., int]) -> None:
        """Counts calls of a function, each by an amount that depends on its arguments."""
        function = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._on_the_loop():
                self._count += amount(*args, **kwargs)
                self.most = max(self.most, self._count)
            return function(*args, **kwargs)

        self._patch.setattr(owner, name, counted)

    @staticmethod
    def _on_the_loop() -> bool:
        return threading.current_thread().name == "listening"


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


class Relayed(MemoryListener):
    """A listener with the relay's parts in front of a fake `Broker`."""

    def __init__(self, rules: AuthorizationRules | None = None) -> None:
        self.broker, self.coordinators = Broker(), Coordinators()
        broker: Any = self.broker
        self.ids = TopicIds(broker)
        self.screen = RequestFilter(broker, self.ids, rules or AllowAllAuthorizer(), RESERVED)
        super().__init__(MemoryBackend(), fallback=Forwarder(self.screen))

    async def _start(self) -> None:
        await super()._start()
        fakes: Any = self
        endpoint = ApiContext(self.backend, 1)
        apis = [
            *GroupLists(endpoint, fakes.coordinators).apis(),
            *MetadataRewriter(endpoint, fakes.broker, self.screen, "127.0.0.1").apis(),
        ]
        self.service.apis |= {api.key: api for api in apis}


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    with Relayed() as found:
        yield found


def produced(name: str, records: bytes = b"") -> Message:
    return {"name": name, "partition_data": [{"index": 0, "records": records}]}


def produce_of(topics: list[Message], acks: int = 1) -> Message:
    return {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": topics}


def fetch_of(ids: list[uuid.UUID]) -> Message:
    part = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1,
        "partition_max_bytes": 1,
    }  # fmt: skip
    return {
        "replica_id": -1, "max_wait": 1, "min_bytes": 1, "max_bytes": 1, "isolation_level": 0, "session_id": 0,
        "session_epoch": -1, "forgotten_topics_data": [], "rack_id": "",
        "topics": [{"topic_id": topic_id, "partitions": [part]} for topic_id in ids],
    }  # fmt: skip


# --- groups ---------------------------------------------------------------------------------------


def test_too_many_groups_are_all_rejected_without_a_request_to_the_coordinator(relayed: Relayed) -> None:
    with WireClient(relayed.port) as client:
        answer = client.ask(DESCRIBE_GROUPS, 5, {"groups": [f"g{n}" for n in range(50_001)]})
    assert [group["group_id"] for group in answer["groups"]] == [f"g{n}" for n in range(50_001)]
    assert {group["error_code"] for group in answer["groups"]} == {INVALID_REQUEST}
    assert relayed.coordinators.described == 0


@pytest.mark.parametrize("number", [3_000, MANY])
def test_groups_are_described_a_few_at_a_time(relayed: Relayed, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """With as many groups as the Java tools request, and with the most that do not make the request a large one."""
    names = [f"{'mg'[n % 2]}{n}" for n in range(number)]
    turns = Turns(monkeypatch)
    turns.count(schema_codec._Schema, "encode_items", lambda _schema, _field, items: len(items))
    turns.count(asyncio, "ensure_future", lambda *_: 1)
    turns.count(GroupLists, "_described", lambda *_: 1)
    tasks = []

    def task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        tasks.append(len(asyncio.all_tasks(loop)) if len(tasks) % 50 == 0 else 0)
        return asyncio.Task(work, loop=loop, **options)

    relayed.loop.set_task_factory(task)
    with WireClient(relayed.port) as client:
        answer = client.ask(DESCRIBE_GROUPS, 6, {"groups": names})
    assert [group["group_id"] for group in answer["groups"]] == names
    assert [len(group["members"]) for group in answer["groups"][:4]] == [1, 0, 1, 0]
    assert turns.most <= 100
    assert max(tasks) <= 200


def test_groups_are_listed_a_few_at_a_time(relayed: Relayed, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = [f"o{n:05}" for n in range(MANY)], [f"r{n:05}" for n in range(MANY)]
    relayed.backend.offsets = {group: {} for group in ours}
    relayed.coordinators.real = {
        group: {"group_id": group, "protocol_type": "consumer", "group_state": "Stable"} for group in (ours[0], *theirs)
    }
    relayed.backend.errors[theirs[1]] = 16
    turns = Turns(monkeypatch)
    turns.count(schema_codec._Schema, "encode_items", lambda _schema, _field, items: len(items))
    with WireClient(relayed.port) as client:
        answer = client.ask(LIST_GROUPS, 4, {"states_filter": []})
        stable = client.ask(LIST_GROUPS, 4, {"states_filter": ["stable"]})
    assert [group["group_id"] for group in answer["groups"]] == [*ours, theirs[0], *theirs[2:]]
    assert [group["group_state"] for group in answer["groups"][:2]] == ["Stable", "Empty"]
    assert len(stable["groups"]) == MANY
    assert turns.most <= 1_000


# --- filtered requests ---------------------------------------------------------------------------


def count_filter_work(turns: Turns) -> None:
    """Counts the bytes that are decoded and the items that are checked on the event loop."""
    turns.count(request_filter, "decode_request", lambda _key, _version, frame, _at: len(frame))
    turns.count(request_filter, "fetched_ids", lambda frame, *_: len(frame))
    turns.count(RequestFilter, "_code", lambda *_: 1)


def test_the_ids_of_a_large_fetch_are_read_in_the_codec_thread(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    relayed.ids._names = dict.fromkeys(IDS, "orders")
    turns = Turns(monkeypatch)
    count_filter_work(turns)
    with WireClient(relayed.port) as client:
        client.ask(FETCH, 13, fetch_of(IDS))
    assert len(relayed.broker.message(0)["topics"]) == MANY
    assert turns.most <= LARGE_BYTES


def test_a_large_fetch_of_unknown_ids_is_checked_in_the_codec_thread(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(_ids: Any) -> None:
        relayed.ids._names = {**dict.fromkeys(IDS, "orders"), IDS[1]: TOPIC}
        del relayed.ids._names[IDS[2]]

    monkeypatch.setattr(relayed.ids, "resolve", resolve)
    turns = Turns(monkeypatch)
    count_filter_work(turns)
    with WireClient(relayed.port) as client:
        answer = client.ask(FETCH, 13, fetch_of(IDS))
    codes = {topic["topic_id"]: topic["partitions"][0]["error_code"] for topic in answer["responses"]}
    assert codes == {IDS[1]: TOPIC_FORBIDDEN, IDS[2]: UNKNOWN_ID}
    assert len(relayed.broker.message(0)["topics"]) == MANY - 2
    assert turns.most <= LARGE_BYTES


@pytest.mark.parametrize("where", ["a topic", "a record"])
def test_a_large_produce_is_read_in_the_codec_thread_and_not_overtaken(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Producers' sequence numbers follow the order of their requests."""
    topics = [produced(f"t{n}") for n in range(MANY)]
    topics.append(produced(TOPIC) if where == "a topic" else produced("last", TOPIC.encode()))
    turns = Turns(monkeypatch)
    count_filter_work(turns)
    with WireClient(relayed.port) as client:
        client.send(PRODUCE, 9, produce_of([produced("before")]))
        client.send(PRODUCE, 9, produce_of(topics))
        client.send(PRODUCE, 9, produce_of([produced("behind")]))
        client.receive()
        answer = read_response(PRODUCE, 9, client.receive())
        client.receive()
    expected = [[TOPIC_FORBIDDEN]] if where == "a topic" else []
    assert [[part["error_code"] for part in t["partition_responses"]] for t in answer["responses"]] == expected
    assert [request.correlation for request in relayed.broker.requests] == [1, 2, 3]
    assert len(relayed.broker.message(1)["topic_data"]) == MANY + (where == "a record")
    assert turns.most <= LARGE_BYTES


def test_a_rejected_large_produce_with_acks_0_closes_the_connection(
    relayed: Relayed,
) -> None:
    topics = [produced(f"t{n}") for n in range(MANY)]
    with WireClient(relayed.port) as client:
        client.send(PRODUCE, 9, produce_of([*topics, produced(TOPIC)], acks=0))
        assert client.is_disconnected()
    assert relayed.broker.requests == []


def test_a_malformed_large_request_closes_the_connection(relayed: Relayed) -> None:
    body = encode_request(PRODUCE, 9, produce_of([produced(f"t{n}") for n in range(MANY)]))
    with WireClient(relayed.port) as client, WireClient(relayed.port) as other:
        client.send(PRODUCE, 9, body[:-10] + TOPIC.encode())
        assert client.is_disconnected()
        other.ask(PRODUCE, 9, produce_of([produced("t")]))


def test_a_request_that_is_slow_to_check_goes_to_the_codec_thread(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["t"] * 7_500 + [TOPIC]
    turns = Turns(monkeypatch)
    count_filter_work(turns)
    with WireClient(relayed.port) as client:
        client.send(DELETE_TOPICS, 5, body := encode_request(DELETE_TOPICS, 5, {"topic_names": names, "timeout": 1}))
        client.receive()
    assert len(body) < LARGE_BYTES
    assert turns.most <= 100


@pytest.mark.parametrize("version", [5, 6])
def test_a_large_admin_request_is_checked_and_rejected_in_the_codec_thread(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """The request names many topics, and the rules allow only one of them."""
    allowed = AuthorizationRules([Rule(frozenset({"*"}), (), ("t7",), frozenset(), frozenset({DELETE_TOPICS}))])
    names = [f"t{n}" for n in range(MANY)]
    message = {
        "topics": [{"name": name, "topic_id": None} for name in names], "topic_names": names, "timeout": 1,
    }  # fmt: skip
    with Relayed(allowed) as relayed, WireClient(relayed.port) as client:
        turns = Turns(monkeypatch)
        count_filter_work(turns)
        answer = client.ask(DELETE_TOPICS, version, message)
        assert {topic["name"] for topic in answer["responses"]} == {*names} - {"t7"}
        assert {topic["error_code"] for topic in answer["responses"]} == {TOPIC_FORBIDDEN}
        (kept,) = relayed.broker.message(0)["topics" if version == 6 else "topic_names"]
        assert (kept["name"] if version == 6 else kept) == "t7"
    assert turns.most <= LARGE_BYTES // 10


def test_the_coordinators_of_many_transactions_are_decoded_in_the_codec_thread(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(monkeypatch)
    turns.count(metadata_rewrite, "decode_broker_response", lambda _request, frame: len(frame))
    with WireClient(relayed.port) as client:
        answer = client.ask(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": [f"t{n}" for n in range(MANY)]})
        assert {(found["host"], found["port"]) for found in answer["coordinators"]} == {("127.0.0.1", 9201)}
        assert len(relayed.broker.requests) == 1
        many = {"key_type": 1, "coordinator_keys": [f"t{n}" for n in range(50_001)]}
        codes = {found["error_code"] for found in client.ask(FIND_COORDINATOR, 4, many)["coordinators"]}
    assert codes == {INVALID_REQUEST}
    assert len(relayed.broker.requests) == 1
    assert turns.most <= 100


@pytest.mark.parametrize("version", [1, 8, 12])
def test_metadata_of_many_topics_is_encoded_again_in_the_codec_thread(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    topics = [{"name": name, "topic_id": None} for name in (*(f"t{n}" for n in range(MANY)), TOPIC)]
    turns = Turns(monkeypatch)
    turns.count(metadata_rewrite, "decode_broker_response", lambda _request, frame: len(frame))
    with WireClient(relayed.port) as client:
        answer = client.ask(METADATA, version, {**DEFAULT_FIELDS, "topics": topics, "allow_auto_topic_creation": False})
    assert [(topic["name"], topic["error_code"]) for topic in answer["topics"]] == [(TOPIC, TOPIC_FORBIDDEN)]
    assert len(relayed.broker.message(0)["topics"]) == MANY
    assert turns.most <= 100
