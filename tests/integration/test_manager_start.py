"""Readiness, health and log of a manager process during its start, and in front of a dead store."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from processes import Commands

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import Unreachable
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.manager.log.topic import UnsuitableTopic, settings_for
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.sandbox.ports import free_port
from offsetmgr.server.process.config import ServeOptions
from offsetmgr.server.process.manager_process import ManagerProcess

pytestmark = pytest.mark.servers


def options(kafka: KafkaBroker, timeout_ms: int = 60_000, **more: Any) -> ServeOptions:
    return ServeOptions(kafka.bootstrap, ConnectionConfig(timeout_ms=timeout_ms), ("127.0.0.1", 0), **more)


@asynccontextmanager
async def running(options: ServeOptions) -> AsyncIterator[ManagerProcess]:
    process = ManagerProcess(options)
    try:
        await process.start()
        yield process
    finally:
        await process.close()


def page(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("which", ["metrics", "relay"])
def test_a_port_in_use_is_reported_before_any_other_work(kafka: KafkaBroker, unique: str, which: str) -> None:
    async def scenario(port: int) -> None:
        more: dict[str, Any] = {"metrics_listen": ("127.0.0.1", port)}
        if which == "relay":
            more = {"relay": True, "relay_ports": range(port, port + 1)}
        with pytest.raises(Unreachable, match=str(port)):
            async with running(options(kafka, topic=unique, partitions=8, **more)):
                pass

    with socket.create_server(("127.0.0.1", 0)) as occupied:
        asyncio.run(scenario(int(occupied.getsockname()[1])))
    assert unique not in AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=60).topics


def test_a_listener_for_a_dead_store_starts_but_is_not_ready(
    kafka: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()

    async def scenario() -> None:
        dead = f"zookeeper://127.0.0.1:{free_port()}"
        async with running(options(kafka, 5_000, store=dead, metrics_listen=("127.0.0.1", port))) as process:
            await until(lambda: bool(process.status()["alarms"]))
            assert dead in process.status()["alarms"][0]
            code, text = await asyncio.to_thread(page, port, "/ready")
            assert (code, dead in text) == (503, True)
            assert "offsetmgr_store_failing 1.0" in (await asyncio.to_thread(page, port, "/metrics"))[1]
            assert (await asyncio.to_thread(page, port, "/health"))[0] == 200

    asyncio.run(scenario())
    assert "the store fails" in caplog.text


def test_a_listener_for_a_store_logs_nothing_about_shards_when_it_stops(kafka: KafkaBroker, tmp_path: Path) -> None:
    manager = Commands(tmp_path).start(
        "manager", "serve", "--bootstrap-server", kafka.bootstrap, "--listen", "127.0.0.1:0",
        "--store", f"kafka://{kafka.bootstrap}",
    )  # fmt: skip
    assert manager.stderr is not None
    with manager:
        log = ""
        while " serving" not in log:
            line = manager.stderr.readline()
            assert line, log
            log += line
        manager.terminate()
        assert manager.wait(90) == 0
        log += manager.stderr.read()
    assert "stopping: finishing requests in flight" in log
    assert "shards" not in log


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
def test_a_topic_with_foreign_records_is_rejected_and_unchanged(
    kafka: KafkaBroker, unique: str, settings: dict[str, str], why: str, end: int
) -> None:
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

    async def scenario() -> None:
        with pytest.raises(UnsuitableTopic, match=why):
            async with running(options(kafka, topic=unique, partitions=8)):
                pass

    asyncio.run(scenario())
    partitions = [TopicPartition(unique, number) for number in range(8)]
    with KafkaCluster(kafka.bootstrap) as cluster:
        found = cluster.log_ranges(partitions)
    assert [found[tp] for tp in partitions] == [LogRange(0, end * (tp.partition == 3)) for tp in partitions]
