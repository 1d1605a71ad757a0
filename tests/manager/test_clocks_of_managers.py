"""Managers whose clocks differ from the brokers' clocks: the times of commits, and the expiration of offsets."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from processes import Commands, wait_for
from set_clock import SetClock

from offsetmgr import OffsetAndMetadata, OffsetManager, TopicPartition
from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import BrokersClock, boottime
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.managers import Managers
from offsetmgr.sandbox import KafkaBroker, ports
from offsetmgr.stores.uri import open_store

DAY_S = 86_400
ORDERS = TopicPartition("orders", 0)
PROGRAM = (sys.executable, str(Path(__file__).with_name("wrong_clock.py")))


class WrongManager:
    """A `manager serve` process whose clock is wrong."""

    def __init__(self, address: str, log: Path) -> None:
        self.address = address
        self.log = log

    @property
    def alarms(self) -> list[str]:
        return [alarm for status in self._statuses for alarm in status["alarms"]]

    @property
    def states(self) -> list[str]:
        with suppress(OffsetMgrError):
            return [shard["state"] for status in self._statuses for shard in status["shards"]]
        return []

    @property
    def _statuses(self) -> list[Mapping[str, Any]]:
        with Managers(self.address, ConnectionConfig(timeout_ms=2_000)) as managers:
            return [report.status for report in managers.reports() if report.status]

    @property
    def entries(self) -> list[Mapping[str, Any]]:
        with Managers(self.address) as managers:
            return [entry for partition in range(8) for entry in managers.dump(partition)]


@contextmanager
def wrong_manager(
    kafka: KafkaBroker, topic: str, directory: Path, ahead_s: int, *options: str
) -> Iterator[WrongManager]:
    manager = WrongManager(f"127.0.0.1:{ports.free_port()}", directory / "log")
    where = ["--bootstrap-server", kafka.bootstrap, "--listen", manager.address, "--offsets-topic", topic]
    arguments = [str(ahead_s), "manager", "serve", *where, "--partitions", "8"]
    with manager.log.open("wb") as log:
        process = Commands(directory).start(*arguments, program=PROGRAM, stdout=log, stderr=log)
    try:
        wait_for(lambda: manager.states == ["ACTIVE"] * 8, "the manager serves")
        yield manager
    finally:
        process.terminate()
        process.wait(90)


@pytest.mark.servers
def test_a_manager_whose_clock_is_8_days_ahead_expires_nothing_and_raises_an_alarm(kafka, unique, tmp_path) -> None:
    with OffsetManager(kafka.bootstrap, topic=unique, partitions=8) as manager:
        for number in range(40):
            manager.commit(f"group-{number}", {ORDERS: OffsetAndMetadata(number)})
    with wrong_manager(kafka, unique, tmp_path, 8 * DAY_S) as wrong:
        passes = [f"no offset expires: a clock is wrong, or unknown shard={shard}" for shard in range(8)]
        wait_for(lambda: all(one in wrong.log.read_text() for one in passes), "the manager looks for expired offsets")
        assert len(wrong.entries) == 40
        assert [
            alarm
            for alarm in wrong.alarms
            if f"this manager's clock is 8 d ahead of the clock of broker {kafka.bootstrap}" in alarm
        ]

        before = time.time_ns() // 1_000_000
        with open_store(f"manager://{wrong.address}") as store:
            store.commit("new", {ORDERS: OffsetAndMetadata(5)})
        (new,) = (entry for entry in wrong.entries if entry["group"] == "new")
        assert abs(new["commit_timestamp"] - before) < 600_000


def brokers_clock(*ahead_s: int) -> BrokersClock:
    """A clock that has measured leaders that are ahead of this machine's clock by these numbers of seconds."""
    clock = BrokersClock(SetClock(1_000_000.0))
    for leader, seconds in enumerate(ahead_s):
        clock.measure(leader, (1_000_000 + seconds) * 1000, boottime())
    return clock


@pytest.mark.parametrize(
    ("ahead_s", "now_s", "expiry_s", "fault"),
    [
        ((5, -5), 5, -5, ""),
        ((-1_800, -1_800), -1_800, -1_800, ""),
        ((3_000, -3_000), 3_000, -3_000, ""),
        # Above an hour nothing expires, also if only one broker differs. It is unknown which clock is right.
        ((-8 * DAY_S, 0), 0, None, "ahead of the clock of broker 0"),
        ((0, 8 * DAY_S), 8 * DAY_S, None, "behind the clock of broker 1"),
    ],
)
def test_the_clock_with_which_an_offset_lives_longer_counts(
    ahead_s, now_s: int, expiry_s: int | None, fault: str
) -> None:
    clock = brokers_clock(*ahead_s)
    assert clock.now_ms() / 1000 - 1_000_000 == pytest.approx(now_s, abs=2)
    expiry_ms = clock.expiry_ms()
    assert (expiry_ms is None) == (expiry_s is None)
    if expiry_ms is not None and expiry_s is not None:
        assert expiry_ms / 1000 - 1_000_000 == pytest.approx(expiry_s, abs=2)
    assert clock.fault() == (fault and f"this manager's clock is 8 d {fault}")


def test_nothing_expires_by_an_unknown_time() -> None:
    clock = BrokersClock(SetClock(1_000_000.0))
    clock.measure(0, -1, boottime())  # the topic has no LogAppendTime
    clock.measure(1, 1_000_000_000, boottime() - 3_600)  # the process was frozen
    assert (clock.expiry_ms(), clock.now_ms()) == (None, 1_000_000_000)


def test_an_old_measurement_counts_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = brokers_clock(8 * DAY_S, 0)
    later = boottime() + 3 * 3_600
    monkeypatch.setattr("offsetmgr.core.clock.boottime", lambda: later)
    assert (clock.expiry_ms(), clock.fault()) == (None, "")
    clock.measure(1, 1_000_000_000, later)  # broker 0 leads no partition of this manager any more
    assert (clock.now_ms(), clock.expiry_ms(), clock.fault()) == (1_000_000_000, 1_000_000_000, "")


def test_a_step_of_the_clock_back_does_not_shorten_the_life_of_commits() -> None:
    machine = SetClock(1_000_000.0)
    clock = BrokersClock(machine)
    clock.measure(0, 1_000_000_000, boottime())
    machine.now -= 8 * DAY_S
    assert clock.now_ms() == pytest.approx(1_000_000_000, abs=5_000)
    assert clock.expiry_ms() is None
