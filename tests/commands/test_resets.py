"""Resets: the offset that each scenario gives, and durations and times on the command line."""

import time
from collections.abc import Callable, Iterable
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import command
from memory_stores import LOGS, OneLog, in_memory, logs_in_memory

from offsetmgr import ShiftBy, ToCurrent, ToEarliest, ToLatest, ToOffset, ToOffsets, ToTime
from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import ABSENT, Committed, LogRange, Offset, TopicPartition
from offsetmgr.groups.reset import ResolvedOffset, resolve
from offsetmgr.results import Scenario
from offsetmgr.testing.memory import MemoryStore


def slow_oracle(scenario: Scenario, given: int | None, current: int | None, log: LogRange, for_time: int | None) -> int:
    """The rules of Kafka's tool, applied by a search over all offsets."""
    allowed = list(range(log.start, log.end + 1))
    if isinstance(scenario, ToEarliest):
        return allowed[0]
    if isinstance(scenario, ToLatest):
        return allowed[-1]
    if isinstance(scenario, ToCurrent):
        return allowed[-1] if current is None else current
    if isinstance(scenario, ToTime):
        return allowed[-1] if for_time is None else for_time
    if isinstance(scenario, ShiftBy):
        assert current is not None
        requested = current + scenario.by
    else:
        requested = scenario.offset if isinstance(scenario, ToOffset) else given or 0
    return min(allowed, key=lambda offset: abs(offset - requested))


@given(
    start=st.integers(0, 50),
    length=st.integers(0, 50),
    current=st.none() | st.integers(0, 150),
    number=st.integers(-150, 150),
    for_time=st.none() | st.integers(0, 100),
    kind=st.sampled_from(["earliest", "latest", "current", "offset", "shift", "time", "given"]),
)
def test_a_reset_gives_the_offset_that_kafkas_tool_would_give(start, length, current, number, for_time, kind) -> None:
    log = LogRange(start, start + length)
    scenarios: dict[str, Scenario] = {
        "earliest": ToEarliest(),
        "latest": ToLatest(),
        "current": ToCurrent(),
        "offset": ToOffset(abs(number)),
        "shift": ShiftBy(number),
        "time": ToTime(0),
        "given": ToOffsets({}),
    }
    scenario = scenarios[kind]
    committed: Offset = ABSENT if current is None else Committed(current)
    if kind == "shift" and current is None:
        with pytest.raises(UsageError, match="nothing is committed that could be shifted"):
            resolve(scenario, None, committed, log, None)
        return
    found = resolve(scenario, abs(number), committed, log, for_time)
    assert found.offset == slow_oracle(scenario, abs(number), current, log, for_time)


def test_clamping_and_falling_back_are_reported() -> None:
    log = LogRange(5, 9)
    assert resolve(ToOffset(99), None, ABSENT, log, None) == ResolvedOffset(9, "clamped from 99 to the log's end")
    assert resolve(ShiftBy(-9), None, Committed(8), log, None) == ResolvedOffset(
        5, "clamped from -1 to the log's start"
    )
    assert resolve(ToTime(1), None, ABSENT, log, None) == ResolvedOffset(
        9, "no record at or after that time: the log's end"
    )
    assert resolve(ToCurrent(), None, ABSENT, log, None) == ResolvedOffset(9, "nothing committed: the log's end")
    assert resolve(ToOffset(7), None, ABSENT, log, None) == ResolvedOffset(7)
    with pytest.raises(UsageError, match="gives no offset"):
        resolve(ToOffsets({}), None, ABSENT, log, None)


T0 = TopicPartition("t", 0)
NOW = "2026-11-21T00:30:00Z"


def milliseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


class Timed(OneLog):
    """A log that is asked for the offset of a time."""

    def offsets_for_time(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        self.asked = timestamp_ms
        return dict.fromkeys(partitions, 5)


Reset = Callable[..., tuple[int, str]]


@pytest.fixture
def reset(monkeypatch: pytest.MonkeyPatch) -> Reset:
    """Plans a reset to a time, and returns the time that the log was asked for, and the messages. The present time is
    `NOW`."""
    in_memory(store=MemoryStore("store", data={"g": {T0: Committed(1)}}))
    monkeypatch.setattr(time, "time_ns", lambda: milliseconds(NOW) * 1_000_000)

    def run(option: str, text: str, code: int = 0) -> tuple[int, str]:
        cluster = Timed(LogRange(0, 9))
        cluster.asked = -1
        arguments = ("offsets", "reset", "-g", "g", "--topic", "t:0", f"{option}={text}", "--store", "memory:store")
        with logs_in_memory(cluster):
            said = command(*arguments, "--bootstrap-server", LOGS, code=code).stderr
        return cluster.asked, said

    return run


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P1D", 86_400_000),
        ("PT2H30M", 9_000_000),
        ("P1DT1S", 86_401_000),
        ("pt0.5s", 500),
        ("PT-1.5S", -1500),
        ("-PT1M", -60_000),
        ("PT1.2345S", 1234),
        ("1h30m", 5_400_000),
        ("1d", 86_400_000),
        ("90s", 90_000),
        ("2d3h4m5.5s", 183_845_500),
        ("0s", 0),
    ],
)
def test_durations_are_read_as_java_reads_them_or_in_a_short_form(text: str, expected: int, reset: Reset) -> None:
    assert reset("--by-duration", text)[0] == milliseconds(NOW) - expected


@pytest.mark.parametrize(
    ("option", "text", "why"),
    [
        *(
            ("--by-duration", text, "PnDTnHnMnS")
            for text in ("", "P", "PT", "1D", "P1DT", "P1H", "P1Y", "PT1", "P1D T1H", "1m1h", "1 h", "m")
        ),
        ("--by-duration", "P99999999999D", "P99999999999D ago is before 1970"),
        ("--by-duration", "-P99999999999999D", "-P99999999999999D ago is beyond all times"),
        ("--by-duration", "P9999999999999999999D", "is not of the form PnDTnHnMnS"),
        ("--to-datetime", "1969-12-31T23:59:59", "is before 1970"),
        *(
            ("--to-datetime", text, "YYYY-MM-DD")
            for text in ("2026-11-21", "2026-11-21 25:00", "yesterday 24:00", "tomorrow", "yesterday14:00")
        ),
        ("--to-datetime", "yesterday 14:00+25:00", "YYYY-MM-DD"),
    ],
)
def test_other_durations_and_times_are_bad_usage(option: str, text: str, why: str, reset: Reset) -> None:
    asked, said = reset(option, text, code=2)
    assert (asked, why in said) == (-1, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-02T00:00:00.001", "1970-01-02T00:00:00.001Z"),
        ("1970-01-01T01:00:00+01:00", "1970-01-01T00:00:00Z"),
        ("2026-11-20T09:51:35Z", "2026-11-20T09:51:35Z"),
        ("2026-11-20 9:51:35", "2026-11-20T09:51:35Z"),
        ("yesterday 14:00", "2026-11-20T14:00Z"),
        ("Yesterday  9:05:01", "2026-11-20T09:05:01Z"),
        ("today", "2026-11-21T00:00Z"),
        ("yesterday 14:00Z", "2026-11-20T14:00Z"),
        ("today 10:00 +02:00", "2026-11-21T08:00Z"),
        ("today 18:00-0800", "2026-11-21T02:00Z"),  # in this zone the day is still 2026-11-20
        ("2999-01-01 00:00", "2999-01-01T00:00Z"),
    ],
)
def test_times_are_utc_unless_they_name_a_zone_and_a_time_in_the_future_gets_a_warning(text, expected, reset) -> None:
    asked, said = reset("--to-datetime", text)
    assert asked == milliseconds(expected)
    ahead = milliseconds(expected) > milliseconds(NOW)
    assert ("in the future: no record has this time" in said) == ahead
    assert ("is 2999-01-01 00:00:00 UTC" in said) == text.startswith("2999")
    assert ("hint: a time without a zone is in UTC" in said) == ahead
