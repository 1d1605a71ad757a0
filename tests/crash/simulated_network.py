"""The connections of a simulated manager to the brokers of `simulated_cluster`, with the faults of a network.

A manager uses the real `Client` and `LeaderConnections`. Only the connection is simulated.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from simulated_cluster import Cluster, Time
from simulated_loop import SimulatedLoop

from offsetmgr.core.errors import ErrorCode, OffsetMgrError, TimedOut, Unreachable
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.client.fetch import ProduceResult
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.kafka.protocol.frames import Address, EncodedRequest, Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import Message

T = TypeVar("T")

TOPIC: Final = "offsets"
_PORT: Final = 9092
_PRODUCE_RESULT: Final = struct.Struct(">ihqqq")


class Fate(NamedTuple):
    """The way of one request."""

    latency_s: float
    """The time that the request takes, and the response, too."""
    arrives: bool = True
    breaks_after_s: float | None = None
    """The time after which the connection breaks, without a response; None if it does not break."""


@dataclass
class Network:
    """The probabilities of the faults of one request. The rest of the requests is answered within milliseconds."""

    lost: float = 0.0
    """The connection breaks before the request arrives."""
    unanswered: float = 0.0
    """The connection breaks after the request has arrived, without a response."""
    late: float = 0.0
    """The connection breaks, and the request arrives seconds later, possibly after newer requests."""
    slow: float = 0.0
    """The request and the response take up to seconds."""
    longest_delay_s: float = 15.0
    """The longest delay of a late request. It is below `Settings.max_idle_s`, after which a broker would have closed
    the connection."""

    def fate(self, time: Time) -> Fate:
        """Returns the way of the next request."""
        draw, uniform = time.random.random(), time.random.uniform
        quick, breaks = uniform(0.0005, 0.005), uniform(0.005, 0.5)
        if (draw := draw - self.lost) < 0:
            return Fate(quick, arrives=False, breaks_after_s=breaks)
        if (draw := draw - self.unanswered) < 0:
            return Fate(quick, breaks_after_s=breaks)
        if (draw := draw - self.late) < 0:
            return Fate(uniform(0, self.longest_delay_s), breaks_after_s=breaks)
        return Fate(uniform(0, 2)) if draw < self.slow else Fate(quick)


class Host(Protocol):
    """The simulated process that owns the connections."""

    loop: SimulatedLoop
    alive: bool


@dataclass(eq=False)
class SimulatedConnection:
    """The connection of a process to one broker. Requests on their way arrive even if the process closes the
    connection. A killed broker receives none of them."""

    client: SimulatedClient
    broker: int

    def __post_init__(self) -> None:
        self.address = _address(self.broker)
        self.versions: dict[int, tuple[int, int]] = {}
        self.closed = self.login_unproven = False
        self._closed_by_broker = False
        self._incarnation = self.client.simulated.brokers[self.broker].incarnation
        self._calls: dict[asyncio.Future[Any], None] = {}  # a set has no fixed order
        self._requests = 0
        self._watch_idleness()

    def abort_if_abandoned(self) -> None: ...

    async def call(self, request: Request, timeout_s: float, **_: object) -> Message:
        handlers: dict[int, Callable[[Mapping[str, Any]], Message]] = {
            ApiKey.METADATA: self._metadata,
            ApiKey.FIND_COORDINATOR: self._find_coordinator,
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.DESCRIBE_PRODUCERS: self._describe_producers,
            ApiKey.FETCH: self._fetch,
        }
        handle = handlers[request.api_key]
        self.client.requests[request.api_key] += 1
        return await self._send(lambda reply: reply(handle(request.message)), timeout_s)

    async def exchange(self, request: EncodedRequest, timeout_s: float) -> bytes:
        assert request.api_key == ApiKey.PRODUCE
        batches, broker_timeout_s = _decode_produce(request.body)

        def handle(reply: Callable[[bytes], None]) -> None:
            self.client.simulated.produce(
                self.broker, batches, broker_timeout_s, lambda results: reply(_encode_results(results))
            )

        return await self._send(handle, timeout_s)

    def abort(self) -> None:
        self._fail(Unreachable(str(self.address), "the connection was closed"))

    async def close(self) -> None:
        self.abort()

    # --- the way of a request -------------------------------------------------------------------------

    async def _send(self, handle: Callable[[Callable[[T], None]], None], timeout_s: float) -> T:
        if self.closed:
            raise Unreachable(str(self.address), "the connection broke")
        time, host, fate = self.client.time, self.client.host, self.client.network.fate(self.client.time)
        answer: asyncio.Future[T] = host.loop.create_future()
        self._calls[answer] = None

        def reply(value: T) -> None:
            def deliver() -> None:
                if not answer.done():
                    answer.set_result(value)

            if fate.breaks_after_s is None:
                time.after(fate.latency_s, lambda: self._call_host(deliver))

        if fate.breaks_after_s is not None:
            time.after(fate.breaks_after_s, self._break)
        if fate.arrives:
            time.after(fate.latency_s, lambda: self._arrive(handle, reply))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            error = TimedOut(str(self.address), "no answer")
            self._fail(error)
            raise error from None
        finally:
            self._calls.pop(answer, None)

    def _call_host(self, action: Callable[[], None]) -> None:
        """Calls a function in the process, as soon as the process runs."""
        if self.client.host.alive:
            self.client.host.loop.call_soon(action)

    def _arrive(self, handle: Callable[[Callable[[T], None]], None], reply: Callable[[T], None]) -> None:
        broker = self.client.simulated.brokers[self.broker]
        if not broker.up or broker.incarnation != self._incarnation or self._closed_by_broker:
            self._break()
            return
        self._requests += 1
        self._watch_idleness()
        handle(reply)

    def _watch_idleness(self) -> None:
        seen = self._requests
        max_idle_s = self.client.simulated.settings.max_idle_s

        def close_if_idle() -> None:
            if self._requests == seen and not self._closed_by_broker:
                self._closed_by_broker = True
                self._break()

        self.client.time.after(max_idle_s, close_if_idle)

    def _break(self) -> None:
        """Makes the process learn that the connection broke."""
        self._call_host(lambda: self._fail(Unreachable(str(self.address), "the connection broke")))

    def _fail(self, error: OffsetMgrError) -> None:
        if self.closed:
            return
        self.closed = True
        for answer in self._calls:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()

    # --- requests -------------------------------------------------------------------------------------

    def _metadata(self, message: Mapping[str, Any]) -> Message:
        cluster = self.client.simulated
        partitions = [
            {
                "error_code": ErrorCode.NONE if p.announced_leader is not None else ErrorCode.LEADER_NOT_AVAILABLE,
                "partition_index": p.number,
                "leader_id": -1 if p.announced_leader is None else p.announced_leader,
            }
            for p in cluster.partitions.values()
        ]
        brokers = [{"node_id": b.number, "host": f"b{b.number}", "port": _PORT} for b in cluster.brokers]
        return {"brokers": brokers, "topics": [{"name": TOPIC, "error_code": 0, "partitions": partitions}]}

    def _find_coordinator(self, message: Mapping[str, Any]) -> Message:
        where = _address(self.client.simulated.coordinator)
        return {
            "coordinators": [
                {"key": name, "error_code": 0, "host": where.host, "port": where.port}
                for name in message["coordinator_keys"]
            ]
        }

    def _init_producer_id(self, message: Mapping[str, Any]) -> Message:
        cluster = self.client.simulated
        code = cluster.coordinator_error(self.broker)
        if code:
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        presented = ProducerEpoch(message["producer_id"], message["producer_epoch"])
        answer = cluster.transactions.init_producer_id(
            message["transactional_id"], presented if presented.id >= 0 else None, self.client.time.now
        )
        return {"error_code": answer.code, "producer_id": answer.id, "producer_epoch": answer.epoch}

    def _describe_producers(self, message: Mapping[str, Any]) -> Message:
        found = []
        for number in message["topics"][0]["partition_indexes"]:
            epochs = self.client.simulated.describe_producers(self.broker, number)
            producers = [{"producer_id": one, "producer_epoch": epoch} for one, epoch in (epochs or {}).items()]
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if epochs is None else ErrorCode.NONE
            found.append(
                {"partition_index": number, "error_code": code, "error_message": None, "active_producers": producers}
            )
        return {"topics": [{"name": TOPIC, "partitions": found}]}

    def _fetch(self, message: Mapping[str, Any]) -> Message:
        found = []
        for part in message["topics"][0]["partitions"]:
            code, data = self.client.simulated.fetch(self.broker, part["partition"], part["fetch_offset"])
            found.append(
                {
                    "partition_index": part["partition"],
                    "error_code": code,
                    "high_watermark": -1,
                    "log_start_offset": 0,
                    "records": data,
                }
            )
        return {"error_code": 0, "responses": [{"topic": TOPIC, "partitions": found}]}


class SimulatedClient(Client):
    """A `Client` whose connections are simulated."""

    def __init__(self, host: Host, time: Time, cluster: Cluster, network: Network) -> None:
        super().__init__(",".join(str(_address(broker.number)) for broker in cluster.brokers), Security())
        self.host = host
        self.time = time
        self.simulated = cluster
        self.network = network
        self.requests: Counter[int] = Counter()
        """The number of requests of each API, without Produce."""

    def node(self, address: Address) -> Any:
        known = address in self._nodes
        node: Any = super().node(address)
        if not known:
            node.open = partial(self._open, address)
        return node

    async def _open(self, address: Address, deadline: float, client_id: str = "") -> BrokerConnection:
        broker, draw = int(address.host[1:]), self.time.random
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise TimedOut(str(address), "the timeout has expired")
        slow = draw.random() < self.network.slow
        latency = draw.uniform(0, 2) if slow else draw.uniform(0.0005, 0.003)
        await asyncio.sleep(min(latency, left))
        if latency >= left:
            raise TimedOut(str(address), "no connection")
        if not self.simulated.brokers[broker].up or draw.random() < self.network.lost:
            raise Unreachable(str(address), "the connection was refused")
        return cast(BrokerConnection, SimulatedConnection(self, broker))


def _address(broker: int) -> Address:
    return Address(f"b{broker}", _PORT)


def _decode_produce(body: bytes) -> tuple[dict[int, bytes], float]:
    """Returns the batches and the timeout in seconds of a Produce request, version 7, for one topic."""
    no_transaction, _acks, timeout_ms, topics, size = struct.unpack_from(">hhiih", body)
    at = 14 + size
    assert (no_transaction, topics, body[14:at]) == (-1, 1, TOPIC.encode())
    (count,) = struct.unpack_from(">i", body, at)
    at += 4
    batches = {}
    for _ in range(count):
        partition, size = struct.unpack_from(">ii", body, at)
        batches[partition] = body[at + 8 : at + 8 + size]
        at += 8 + size
    return batches, timeout_ms / 1000


def _encode_results(results: Mapping[int, ProduceResult]) -> bytes:
    """Returns a response to Produce, version 7, after a correlation id."""
    head = struct.pack(">iih", 0, 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">i", len(results))
    parts = [_PRODUCE_RESULT.pack(number, one.error_code, one.first_offset, -1, 0) for number, one in results.items()]
    return b"".join([head, *parts, bytes(4)])
