"""Readiness, health and log of a manager process during its start, and in front of a dead store."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from async_tests import async_test
from backend_listeners import serve_options
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from memory_listener import API_VERSIONS, WireClient
from runtimes import until

from offsetmgr.core.errors import Unreachable
from offsetmgr.manager.log.topic import UnsuitableTopic, settings_for
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.sandbox.ports import free_port
from offsetmgr.server.manager_process import ManagerProcess

pytestmark = pytest.mark.servers


@asynccontextmanager
async def running(options: Any) -> AsyncIterator[ManagerProcess]:
    process = ManagerProcess(options)
    try:
        await process.start()
        yield process
    finally:
        await process.close()


@pytest.mark.parametrize("which", ["metrics", "relay"])
@async_test
async def test_a_port_in_use_is_reported_before_any_other_work(kafka: KafkaBroker, unique: str, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = int(occupied.getsockname()[1])
        more: dict[str, Any] = {"metrics_listen": ("127.0.0.1", port)}
        if which == "relay":
            more = {"relay": True, "relay_ports": range(port, port + 1)}
        with pytest.raises(Unreachable, match=str(port)):
            async with running(serve_options(kafka.bootstrap, offsets_topic=unique, partitions=8, **more)):
                pass
    assert unique not in AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=60).topics


def http(port: int, request: bytes) -> bytes:
    """Sends a request and returns the response."""
    response = b""
    with socket.create_connection(("127.0.0.1", port), 60) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(request)
        while received := connection.recv(65_536):
            response += received
    return response


RESPONSES = [
    (b"GET /health HTTP/1.1\r\n\r\n", b"200 OK", b"alive\n"),
    (b"GET /health?a=1 HTTP/1.0\r\n\r\n", b"200 OK", b"alive\n"),
    (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found", b"not found; available: /health, /metrics, /ready\n"),
    (b"POST /health HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"only GET\n"),
    (b"\x00\x00\x00\x10junk\n", b"400 Bad Request", b"not an HTTP request\n"),
]


@async_test
async def test_a_listener_for_a_dead_store_starts_but_is_not_ready(kafka: KafkaBroker, caplog, monkeypatch) -> None:
    port = free_port()
    dead = f"zookeeper://127.0.0.1:{free_port()}"
    async with running(
        serve_options(kafka.bootstrap, timeout_ms=5_000, store=dead, metrics_listen=("127.0.0.1", port))
    ) as process:
        await until(lambda: bool(process.status()["alarms"]))
        assert dead in process.status()["alarms"][0]
        with WireClient(process.port) as client:
            await asyncio.to_thread(client.ask, API_VERSIONS, 0, {})
        ready = await asyncio.to_thread(http, port, b"GET /ready HTTP/1.1\r\n\r\n")
        assert ready.startswith(b"HTTP/1.1 503 Unavailable") and dead.encode() in ready
        metrics = (await asyncio.to_thread(http, port, b"GET /metrics HTTP/1.1\r\n\r\n")).decode().splitlines()
        assert {
            "offsetmgr_store_failing 1.0",
            'offsetmgr_request_seconds_count{request="other"} 1.0',
            'offsetmgr_request_seconds_bucket{le="+Inf",request="other"} 1.0',
        } <= set(metrics)
        assert any(line.startswith("# TYPE offsetmgr_") and line.endswith("_total counter") for line in metrics)
        for request, status, body in RESPONSES:
            response = await asyncio.to_thread(http, port, request)
            assert response.startswith(b"HTTP/1.1 " + status)
            assert response.endswith(b"\r\n\r\n" + body)
        assert await asyncio.to_thread(http, port, b"G" * 100_000) == b""
        monkeypatch.setattr("offsetmgr.server.network.http._TIMEOUT_S", 3600)
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        assert b"alive" in await asyncio.to_thread(http, port, b"GET /health HTTP/1.1\r\n\r\n")
        await until(lambda: sum(reader.at_eof() for reader, _ in held) >= 100)
        for _, writer in held:
            writer.close()
    assert "the store fails" in caplog.text


@pytest.mark.parametrize(
    ("settings", "why", "end"),
    [
        ({}, r"partition 3: key b'customer-17'", 1),
        (
            {"transactional.id": "earlier"},
            r"partition 3 has a batch of a transaction at offset 0: an earlier version",
            2,
        ),
    ],
    ids=["foreign", "transactional"],
)
@async_test
async def test_a_topic_with_foreign_records_is_rejected_and_unchanged(kafka, unique, settings, why, end: int) -> None:
    """A transaction also leaves a marker in the log."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    created = admin.create_topics([NewTopic(unique, 8, 1, config=settings_for(1))])
    created[unique].result(90)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, **settings})
    if settings:
        producer.init_transactions(30)
        producer.begin_transaction()
    producer.produce(unique, b"Ada", b"customer-17", 3)
    assert producer.flush(30) == 0
    if settings:
        producer.commit_transaction(30)
    with pytest.raises(UnsuitableTopic, match=why):
        async with running(serve_options(kafka.bootstrap, offsets_topic=unique, partitions=8)):
            pass
    requested = {TopicPartition(unique, number): OffsetSpec.latest() for number in range(8)}
    found = {tp.partition: ends.result(60).offset for tp, ends in admin.list_offsets(requested).items()}
    assert found == {number: end * (number == 3) for number in range(8)}
