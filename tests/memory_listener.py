"""`MemoryListener`: a listener over an in-memory backend, on an event loop in its own thread; and `WireClient`."""

from __future__ import annotations

import asyncio
import functools
import gc
import socket
import ssl
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from backend_listeners import NoTopics, serve_options
from confluent_kafka import KafkaError
from event_loop_thread import EventLoopThread
from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from stopwatch import loop_s

from offsetmgr.kafka.client.backing_cluster import BackingClusterClient
from offsetmgr.kafka.protocol.schema_codec import decode_response, encode_request
from offsetmgr.manager.assignment import NodeAddress
from offsetmgr.manager.results import CommitRequest, CommitResponse, FetchRequest, FetchResponse
from offsetmgr.server.apis.admin_api import admin_api
from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.apis.table import listener_apis
from offsetmgr.server.manager_process import load_authentication, load_authorizer, load_tls
from offsetmgr.server.network.socket_server import SocketServer

T = TypeVar("T")

NODE_ID = 1
COMMIT, FETCH, FIND_COORDINATOR, API_VERSIONS = 8, 9, 10, 18


def _now(value: T) -> asyncio.Future[T]:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


class MemoryBackend:
    """Offsets in a dict.

    ``errors`` is the error code of every response for a group. ``commits_allowed`` delays commits until it is set.
    """

    kept_requests = 100

    def __init__(self) -> None:
        self.offsets: dict[str, dict[str, dict[int, tuple[int, int, str]]]] = {}
        self.errors: dict[str, int] = {}
        self.partition_errors: dict[tuple[str, int], int] = {}
        self.commits_allowed: asyncio.Event | None = None
        self.node: NodeAddress | None = NodeAddress(NODE_ID, "127.0.0.1", 0)
        self.others: list[NodeAddress] = []
        self.commits = 0
        self.requests: list[CommitRequest] = []
        self.full: asyncio.Future[None] | None = None
        self.announced: dict[str, int] = {}

    def nodes(self) -> Sequence[NodeAddress]:
        return sorted([self.node, *self.others] if self.node else self.others)

    def coordinator(self, group: str) -> NodeAddress | None:
        return self.node

    def ownership_error(self, group: str) -> int:
        return self.errors.get(group, 0)

    def ownership_epoch(self, group: str) -> int:
        return 0

    def note(self, request: CommitRequest) -> None:
        self.requests.append(request)
        del self.requests[: -self.kept_requests]

    def commit(self, request: CommitRequest) -> Awaitable[CommitResponse]:
        self.note(request)
        if self.commits_allowed is not None:
            return asyncio.ensure_future(self._commit_when_allowed(request))
        return _now(self._commit(request))

    async def _commit_when_allowed(self, request: CommitRequest) -> CommitResponse:
        assert self.commits_allowed is not None
        await self.commits_allowed.wait()
        return self._commit(request)

    def _commit(self, request: CommitRequest) -> CommitResponse:
        self.commits += 1
        if error := self.errors.get(request.group, 0):
            return CommitResponse(error)
        errors = {}
        for topic, parts in request.topics:
            stored = self.offsets.setdefault(request.group, {}).setdefault(topic, {})
            for partition, offset, epoch, metadata in parts:
                if error := self.partition_errors.get((topic, partition), 0):
                    errors[topic, partition] = error
                else:
                    stored[partition] = (offset, epoch, metadata)
        return CommitResponse(errors=errors)

    def fetch(self, request: FetchRequest) -> Awaitable[FetchResponse]:
        if error := self.errors.get(request.group, 0):
            return _now(FetchResponse(error))
        stored = self.offsets.get(request.group, {})
        requested = request.topics
        if requested is None:
            requested = [(topic, sorted(parts)) for topic, parts in sorted(stored.items()) if parts]
        nothing = (-1, -1, "")
        return _now(
            FetchResponse(
                topics=[(t, [(p, *stored.get(t, {}).get(p, nothing), 0) for p in parts]) for t, parts in requested]
            )
        )

    async def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> CommitResponse:
        stored = self.offsets.get(group)
        if stored is None:
            return CommitResponse(KafkaError.GROUP_ID_NOT_FOUND)
        for topic, parts in topics:
            for partition in parts:
                stored.get(topic, {}).pop(partition, None)
        self.offsets[group] = {topic: parts for topic, parts in stored.items() if parts}
        return CommitResponse()

    async def delete_group(self, group: str) -> int:
        if error := self.errors.get(group, 0):
            return error
        return 0 if self.offsets.pop(group, None) is not None else KafkaError.GROUP_ID_NOT_FOUND

    async def list_groups(self) -> tuple[int, Sequence[str]]:
        return self.errors.get("*", 0), sorted(self.offsets)

    async def wait_for_commits(self, group: str) -> None:
        return None

    def backpressure(self) -> asyncio.Future[None] | None:
        return self.full

    def features(self) -> Mapping[str, int]:
        return self.announced

    def metrics(self) -> Mapping[str, float]:
        return {}


@functools.cache
def default_options() -> Any:
    """The options of ``manager serve`` without any option."""
    return serve_options("nowhere:1")


def limits(**changed: Any) -> Any:
    """The default limits of a listener, except for these."""
    return replace(default_options(), **changed)


class MemoryListener(EventLoopThread):
    """A context manager that serves ``backend`` on a free port. ``files``: the files that ``manager serve`` gets:
    ``credentials``, ``rules``, ``tls_certificate``. Without credentials the rules apply to the user ANONYMOUS.
    ``status``: what ``manager status`` gets."""

    def __init__(
        self,
        backend: MemoryBackend | None = None,
        *,
        cluster: BackingClusterClient | None = None,
        limits: Any = None,
        status: Mapping[str, Any] | None = None,
        manual_clock: bool = False,
        **files: Path,
    ) -> None:
        super().__init__(manual_clock=manual_clock)
        self.backend = backend or MemoryBackend()
        self._upstream = cluster or NoTopics()
        self._limits = limits
        options = replace(default_options(), **{name: str(path) for name, path in files.items()})
        self._authentication = load_authentication(options)
        self.authorizer = load_authorizer(replace(options, credentials="nothing" if options.rules else None))
        self._tls = load_tls(options)
        self._status = status
        self._node_id = NODE_ID if status is None else NODE_ID + 1_000_000_000
        self.service: SocketServer

    async def _start(self) -> None:
        endpoint = ApiContext(self.backend, self._node_id, self._upstream, self.authorizer, self._authentication)
        self.service = SocketServer(
            listener_apis(endpoint),
            settings=self._limits,
            requires_login=self._authentication is not None,
            backpressure=self.backend.backpressure,
        )
        inspected = admin_api(self.status, self.dump, self.authorizer)
        self.service.apis[inspected.key] = inspected
        self.port = await self.service.listen("127.0.0.1", 0, tls=self._tls)
        self.backend.node = NodeAddress(self._node_id, "127.0.0.1", self.port)

    async def _stop(self) -> None:
        await self.service.close()
        await self._upstream.close()

    def status(self) -> Mapping[str, Any]:
        assert self._status is not None
        return self._status

    def dump(self, partition: int, after: Sequence[Any] | None, max_rows: int) -> Sequence[Mapping[str, Any]]:
        return []

    def block_commits(self) -> Callable[[], None]:
        """Blocks commits from now on. Returns a function that releases them."""

        async def make() -> asyncio.Event:
            return asyncio.Event()

        event = self.backend.commits_allowed = self.run(make())

        def release() -> None:
            self.loop.call_soon_threadsafe(event.set)

        return release


BUDGET = 20.0
"""The processor time that one callback of a listener's event loop may take, in units of `loop_s`."""


def longest_callback(work: Callable[[], object], times: int = 3, *, whole_turns: bool = False) -> float:
    """Runs ``work`` several times. Returns the processor time of the longest callback of the event loops of other
    threads, in units of `loop_s`, in the run in which it was shortest. ``whole_turns``: of the longest turn of an event
    loop instead, which runs all callbacks that are due."""
    found, unit_s = [], loop_s()
    timed_class, name = (asyncio.BaseEventLoop, "_run_once") if whole_turns else (asyncio.Handle, "_run")
    run = getattr(timed_class, name)
    for _ in range(times):
        longest = 0.0

        def timed(callback: Any) -> None:
            nonlocal longest
            begun = time.thread_time()
            run(callback)
            if threading.current_thread() is not threading.main_thread():
                longest = max(longest, (time.thread_time() - begun) / unit_s)

        gc.collect()
        gc.disable()
        try:
            with patch.object(timed_class, name, timed):
                work()
        finally:
            gc.enable()
        found.append(longest)
    return min(found)


def wait_until(condition: Callable[[], bool], seconds: float = 90.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


DEFAULT_FIELDS: Mapping[str, Any] = {
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
    "include_authorized_operations": False,
    "include_fenced_brokers": False,
    "timeout": 1000,
}
"""Request fields with their default values. The codec omits fields that a version lacks."""


class ConnectionClosedByBroker(Exception):
    """The listener closed the connection without a response."""


class WireClient:
    """A client that sends exactly the bytes of a test and returns the responses."""

    def __init__(
        self,
        port: int,
        *,
        client_id: str | None = "test",
        tls: ssl.SSLContext | None = None,
        receive_buffer: int | None = None,
        address: str | None = None,
    ) -> None:
        plain = socket.socket()
        if address is not None:
            plain.bind((address, 0))
        plain.settimeout(60)
        if receive_buffer is not None:  # must be set before the connection is made
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.connect(("127.0.0.1", port))
        self.socket = tls.wrap_socket(plain, server_hostname="127.0.0.1") if tls else plain
        self.client_id = client_id
        self._correlation = 0

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.socket.close()

    def frame(self, api_key: int, version: int, body: bytes, correlation: int) -> bytes:
        """A request frame with the header of this version."""
        name = (
            b"\xff\xff" if self.client_id is None else struct.pack(">h", len(self.client_id)) + self.client_id.encode()
        )
        tags = b"\0" if flexible(api_key, version) else b""
        head = struct.pack(">hhi", api_key, version, correlation) + name + tags
        return struct.pack(">i", len(head) + len(body)) + head + body

    def send(self, api_key: int, version: int, message: Mapping[str, Any] | bytes) -> int:
        """Sends a request without waiting for the response. Returns the correlation id."""
        self._correlation += 1
        body = (
            message if isinstance(message, bytes) else encode_request(api_key, version, {**DEFAULT_FIELDS, **message})
        )
        self.socket.sendall(self.frame(api_key, version, body, self._correlation))
        return self._correlation

    def receive(self) -> bytes:
        """The bytes of the next response, which begin with its correlation id. Raises `ConnectionClosedByBroker`."""
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def ask(self, api_key: int, version: int, message: Mapping[str, Any] | bytes) -> dict[str, Any]:
        """Sends a request and returns its response as a dict with kio's field names."""
        sent = self.send(api_key, version, message)
        frame = self.receive()
        assert struct.unpack_from(">i", frame) == (sent,)
        return read_response(api_key, version, frame)

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int], *, version: int = 7) -> dict[str, Any]:
        return self.ask(8, version, commit_message(group, offsets))

    def is_disconnected(self) -> bool:
        """Waits for the next byte. Returns whether the listener closed the connection instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                more = self.socket.recv(size - len(data))
            except ConnectionError:
                more = b""
            if not more:
                raise ConnectionClosedByBroker
            data += more
        return bytes(data)


def commit_message(group: str, offsets: Mapping[tuple[str, int], int]) -> dict[str, Any]:
    """The body of an OffsetCommit without membership, for every version."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), offset in offsets.items():
        part = {"partition_index": partition, "committed_offset": offset, "committed_metadata": None}
        topics.setdefault(topic, []).append(part)
    return {
        "group_id": group,
        "generation_id": -1,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [{"name": topic, "partitions": parts} for topic, parts in topics.items()],
    }


def fetch_message(group: str) -> dict[str, Any]:
    return {"group_id": group, "topics": None}


def commit_errors(answer: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """The error of each partition in an OffsetCommit or OffsetDelete response."""
    return {(t["name"], p["partition_index"]): p["error_code"] for t in answer["topics"] for p in t["partitions"]}


def flexible(api_key: int, version: int) -> bool:
    """Whether the request version has tagged fields, according to kio."""
    try:
        return bool(load_request_schema(api_key, version).__flexible__)
    except (UnknownAPIKey, UnknownEntity):
        return False


def read_response(api_key: int, version: int, frame: bytes) -> dict[str, Any]:
    """Decodes a response that begins with its correlation id."""
    tagged = api_key != 18 and load_response_schema(api_key, version).__flexible__
    return decode_response(api_key, version, frame, 5 if tagged else 4)
