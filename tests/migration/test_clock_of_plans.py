"""The expiry date in a plan follows the clock of the brokers, even if the clock of this machine is wrong by days."""

import itertools
import json
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Position
from repeated import repeated

from offsetmgr.cli.app import run
from offsetmgr.core.clock import SystemClock

pytestmark = pytest.mark.servers

DAY_MS = 86_400_000
RETENTION_MS = 7 * DAY_MS
WRONG_BY_MS = 10 * DAY_MS
TOLERANCE_MS = 120_000


@pytest.fixture
def wrong_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this machine is ten days ahead."""
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: time.time_ns() // 1_000_000 + WRONG_BY_MS)


@pytest.fixture
def planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str, str], tuple[int, str]]:
    """Plans a copy from a CSV file to a Kafka store. Returns the expiry in the plan, and the messages."""

    def plan(bootstrap: str, topic: str) -> tuple[int, str]:
        source, path = tmp_path / "saved.csv", tmp_path / "plan.json"
        source.write_text(f"group,topic,partition,offset\nshop,{topic},0,0\n")
        line = ["migrate", "plan", "--from", f"file:{source}", "--to", f"kafka://{bootstrap}"]
        assert run([*line, "--all-groups", "-o", str(path)]) == 0
        return json.loads(path.read_text())["header"]["expires_at"], capsys.readouterr().err

    return plan


def expected_ms() -> int:
    return time.time_ns() // 1_000_000 + RETENTION_MS


@pytest.mark.usefixtures("wrong_clock")
def test_a_plan_for_kraft_asks_the_controller(kraft, make_topic, unique, planned):
    topic = make_topic(unique, bootstrap=kraft.bootstrap)
    expires, messages = planned(kraft.bootstrap, topic)
    assert abs(expires - expected_ms()) < TOLERANCE_MS
    assert f"expire about {datetime.fromtimestamp(expires / 1000, tz=UTC):%Y-%m-%d}" in messages
    assert "by the brokers' clock" in messages
    assert "warning the brokers' clock is 10 d behind this machine, +/- " in messages


@pytest.mark.usefixtures("wrong_clock")
def test_a_plan_for_brokers_with_zookeeper_watches_the_commits(kafka, make_topic, unique, planned):
    topic = make_topic(unique)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": unique})
    begun, numbers = threading.Event(), itertools.count()

    def commit() -> None:
        consumer.commit(offsets=[Position(topic, 0, next(numbers))], asynchronous=False)
        begun.set()
        time.sleep(0.02)

    with closing(consumer), repeated(commit):
        assert begun.wait(60)
        expires, messages = planned(kafka.bootstrap, topic)
    assert abs(expires - expected_ms()) < TOLERANCE_MS
    assert "by the brokers' clock" in messages


@pytest.mark.usefixtures("wrong_clock")
def test_a_plan_names_the_clock_if_no_broker_reports_its_own(kafka, make_topic, unique, planned):
    expires, messages = planned(kafka.bootstrap, make_topic(unique))
    assert abs(expires - WRONG_BY_MS - expected_ms()) < TOLERANCE_MS
    assert "by this machine's clock" in messages


def test_a_plan_names_no_clock_if_the_clocks_agree(kraft, make_topic, unique, planned):
    topic = make_topic(unique, bootstrap=kraft.bootstrap)
    expires, messages = planned(kraft.bootstrap, topic)
    assert abs(expires - expected_ms()) < TOLERANCE_MS
    assert "expire about" in messages
    assert "'s clock" not in messages
