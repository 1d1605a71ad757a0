"""Requests that are small to send and costly to read: refused before they are read, and other clients are served."""

from __future__ import annotations

import asyncio
import gc
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from listening import Listening, MemoryBackend, WireClient

from offsetmgr.errors import InvalidRequest
from offsetmgr.server.limits import Limits
from offsetmgr.wire.primitives import Cursor, varint
from offsetmgr.wire.serverside import decode_request, encode_request

FIND_COORDINATOR, DESCRIBE_GROUPS, API_VERSIONS, DELETE_GROUPS = 10, 15, 18, 42
CPU_MS = 20.0


@pytest.fixture
def listening() -> Iterator[Listening]:
    with Listening(MemoryBackend()) as listening:
        yield listening


def frame(api_key: int, version: int, body: bytes, *, flexible: bool = True) -> bytes:
    head = struct.pack(">hhih", api_key, version, 7, -1) + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


class Probe:
    """Measures the longest callback of the listener's event loop, in milliseconds of its thread's CPU time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longest = 0.0
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            begun = time.thread_time()
            run(handle)
            if threading.current_thread() is not threading.main_thread():
                self.longest = max(self.longest, (time.thread_time() - begun) * 1000)

        monkeypatch.setattr(asyncio.Handle, "_run", timed)


def test_eight_megabytes_of_empty_tagged_fields_are_refused_at_once(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = 2_000_000
    body = varint(1) + varint(fields) + b"".join(b"\x01\x00" for _ in range(fields))
    gc.collect()
    gc.disable()
    try:
        probe = Probe(monkeypatch)
        with WireClient(listening.port) as client, WireClient(listening.port) as other:
            client.socket.sendall(frame(DELETE_GROUPS, 2, body))
            assert client.hung_up()
            other.ask(API_VERSIONS, 0, {})
        assert probe.longest <= CPU_MS
    finally:
        gc.enable()


def test_a_large_api_versions_request_is_refused_before_it_is_read(listening: Listening) -> None:
    with WireClient(listening.port) as client, WireClient(listening.port) as other:
        client.socket.sendall(frame(API_VERSIONS, 3, b"x" * 9000))
        assert client.hung_up()
        other.ask(API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"})


@pytest.mark.parametrize(
    ("api_key", "version", "field"),
    [(FIND_COORDINATOR, 4, "coordinator_keys"), (DESCRIBE_GROUPS, 5, "groups"), (DELETE_GROUPS, 2, "groups_names")],
)
def test_too_many_names_are_refused_and_as_many_as_the_java_tools_send_are_not(
    listening: Listening, api_key: int, version: int, field: str
) -> None:
    others: dict[str, Any] = {"key_type": 0, "include_authorized_operations": False}
    for number, served in ((20_000, True), (50_001, False), (199_000, False)):
        message = {field: [f"g{n}" for n in range(number)], **others}
        with WireClient(listening.port) as client, WireClient(listening.port) as other:
            client.socket.sendall(frame(api_key, version, encode_request(api_key, version, message)))
            if served:
                assert len(client.receive()) > number
            else:
                assert client.hung_up()
            other.ask(API_VERSIONS, 0, {})


def test_many_keys_of_a_search_for_coordinators_leave_other_clients_their_turn(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
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
    assert min(longest) <= CPU_MS


@pytest.mark.parametrize("length", [32_768, 8_000_000])
def test_a_name_longer_than_any_group_is_refused(listening: Listening, length: int) -> None:
    message = {"key_type": 0, "coordinator_keys": ["x" * length]}
    with WireClient(listening.port) as client, WireClient(listening.port) as other:
        client.socket.sendall(frame(FIND_COORDINATOR, 4, encode_request(FIND_COORDINATOR, 4, message)))
        assert client.hung_up()
        other.ask(API_VERSIONS, 0, {})


def test_sixty_four_tagged_fields_are_read_and_one_more_is_not() -> None:
    for number, read in ((64, True), (65, False)):
        cursor = Cursor(varint(number) + b"\x01\x00" * number, 0, flexible=True)
        if read:
            cursor.tags()
        else:
            with pytest.raises(InvalidRequest, match="65 tagged fields in a structure, allowed are 64"):
                cursor.tags()


def test_a_group_name_of_the_longest_length_is_read() -> None:
    body = encode_request(DELETE_GROUPS, 2, {"groups_names": ["x" * 32_767]})
    assert decode_request(DELETE_GROUPS, 2, body, 0) == {"groups_names": ["x" * 32_767]}


def test_the_limits_have_the_documented_defaults() -> None:
    found = Limits()
    assert (found.unauthenticated_bytes, found.api_versions_bytes, found.names) == (65_536, 8_192, 50_000)
    assert (found.tags, found.name_bytes) == (64, 32_767)
