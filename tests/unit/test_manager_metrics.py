"""The metrics, health endpoints and logs of the manager."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from functools import partial

import pytest

from offsetmgr.cli.manager_output import SHARDS, alarms, shard_rows
from offsetmgr.core.errors import NotAuthorized, NotCoordinator, Unreachable, UsageError
from offsetmgr.kafka.client.managers import ManagerReport, Managers
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.server.logs import start_logging
from offsetmgr.server.metrics import Metrics
from offsetmgr.server.network.http import HttpEndpoint, Page, text


def test_metrics_have_the_prometheus_text_format() -> None:
    metrics = Metrics(lambda: {"commits_total": 3, 'shards{state="ACTIVE"}': 2, 'shards{state="LOADING"}': 1})
    metrics.observe("commit", 0.004)
    lines = metrics.text().decode().splitlines()
    assert "offsetmgr_commits_total 3.0" in lines
    assert 'offsetmgr_shards{state="ACTIVE"} 2.0' in lines
    assert 'offsetmgr_shards{state="LOADING"} 1.0' in lines
    assert "# TYPE offsetmgr_commits_total counter" in lines
    assert 'offsetmgr_request_seconds_bucket{le="0.005",request="commit"} 1.0' in lines
    assert 'offsetmgr_request_seconds_bucket{le="0.0025",request="commit"} 0.0' in lines


def test_a_metric_with_an_invalid_name_is_a_defect() -> None:
    metrics = Metrics(lambda: {"no name": 1})
    with pytest.raises(ValueError, match="no name"):
        metrics.text()


async def _response_to(request: bytes, pages: dict[str, Page]) -> bytes:
    endpoint = HttpEndpoint("127.0.0.1", 0, {path: partial(pages.__getitem__, path) for path in pages})
    port = await endpoint.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 90)
    writer.close()
    await endpoint.close()
    return answer


PAGES = {"/health": text(200, "alive"), "/ready": text(503, "3 of 50 shards are loading")}


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", b"200 OK", b"alive\n"),
        (b"GET /health?a=1 HTTP/1.0\r\n\r\n", b"200 OK", b"alive\n"),
        (b"GET /ready HTTP/1.1\r\n\r\n", b"503 Unavailable", b"3 of 50 shards are loading\n"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found", b"not found; available: /health, /ready\n"),
        (b"POST /health HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"only GET\n"),
        (b"\x00\x00\x00\x10junk\n", b"400 Bad Request", b"not an HTTP request\n"),
    ],
)
def test_http_responses(request_line: bytes, status: bytes, body: bytes) -> None:
    answer = asyncio.run(_response_to(request_line, PAGES))
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.endswith(b"\r\n\r\n" + body)


def test_a_line_without_end_is_cut_off() -> None:
    assert asyncio.run(_response_to(b"G" * 100_000, PAGES)) == b""


def test_a_taken_port_is_one_clear_error() -> None:
    async def twice() -> None:
        first = HttpEndpoint("127.0.0.1", 0, {})
        port = await first.start()
        try:
            with pytest.raises(Unreachable, match=f":{port}: Address already in use$"):
                await HttpEndpoint("127.0.0.1", port, {}).start()
        finally:
            await first.close()

    asyncio.run(twice())


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_event_is_one_line_with_its_fields(form: str) -> None:
    stream = io.StringIO()
    logger = logging.getLogger("offsetmgr")
    before = (logger.handlers[:], logger.level, logger.propagate)
    try:
        start_logging(stream, form)
        logging.getLogger("offsetmgr.manager").warning("shard group lost", extra={"shard_group": 3, "why": "fenced"})
    finally:
        logger.handlers[:], logger.level, logger.propagate = before
    (line,) = stream.getvalue().splitlines()
    if form == "json":
        found = json.loads(line)
        assert (found["event"], found["shard_group"], found["why"], found["level"]) == (
            "shard group lost",
            3,
            "fenced",
            "warning",
        )
        assert found["time"].endswith("Z")
    else:
        assert line.endswith("WARNING shard group lost shard_group=3 why=fenced")


STATUS = {"lease": True, "shards": [], "alarms": [], "started": 0}


@pytest.mark.parametrize(
    ("store", "expected"), [("topic t", ["no manager has any shard"]), ("zookeeper://h:1", [])], ids=["topic", "store"]
)
def test_managers_without_shards_are_an_alarm_unless_a_store_is_behind_them(store: str, expected: list[str]) -> None:
    report = ManagerReport(1, Address("h", 1), {**STATUS, "store": store})
    assert list(alarms([report])) == expected


def test_a_manager_without_a_lease_is_an_alarm_though_its_shards_say_active() -> None:
    shard = {"partition": 0, "shard_group": 0, "role": "owner", "state": "ACTIVE", "since": 0, "position": 1}
    counters = {"offsets": 1, "groups": 1, "lag": 0, "last_error": "", "load_read": 1, "load_total": 1, "unreadable": 0}
    status = {**STATUS, "store": "topic t", "shards": [shard | counters]}
    assert not list(alarms([ManagerReport(1, Address("h", 1), status)]))
    assert "cannot reach" in " ".join(alarms([ManagerReport(1, Address("h", 1), {**status, "lease": False})]))


def test_records_that_an_owner_cannot_read_are_an_alarm_and_a_column() -> None:
    shard = {"partition": 2, "shard_group": 2, "role": "owner", "state": "ACTIVE", "since": 0, "position": 9}
    counters = {"offsets": 2, "groups": 1, "lag": 0, "last_error": "", "load_read": 9, "load_total": 9}
    unread = {"unreadable": 1, "unknown_keys": 3}
    report = ManagerReport(1, Address("h", 1), {**STATUS, "store": "topic t", "shards": [shard | counters | unread]})
    assert list(alarms([report])) == [
        "shard 2: its owner cannot read 4 records, so groups may look as if they had committed nothing;"
        " its log names them"
    ]
    [row] = shard_rows([report])
    assert dict(zip([column.name for column in SHARDS], row, strict=True))["unreadable"] == 4


def test_an_alarm_names_the_manager_once() -> None:
    refused = NotAuthorized("manager h:1", "this principal may not look at the manager")
    found = list(alarms([ManagerReport(1, Address("h", 1), None, refused)]))
    assert found == ["manager h:1: this principal may not look at the manager"]


def test_a_shard_that_does_not_exist_is_reported_with_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [{"partition": number, "role": "standby"} for number in range(50)]
    report = ManagerReport(1, Address("h", 1), {**STATUS, "store": "topic t", "shards": shards})
    with Managers("h:1") as running:
        monkeypatch.setattr(running, "reports", lambda: [report])
        with pytest.raises(UsageError) as caught:
            next(running.dump(99))
        assert caught.value.hint == "shards are 0 to 49"
        with pytest.raises(NotCoordinator, match="at this moment"):
            next(running.dump(49))
