"""Scenarios of resets: the offset that each gives for a partition, compared with the rules of Kafka's tool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import ABSENT, Committed, LogRange, Offset
from offsetmgr.groups.reset import (
    ResolvedOffset,
    Scenario,
    ShiftBy,
    ToCurrent,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToOffsets,
    ToTime,
    resolve,
)


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
def test_a_reset_gives_the_offset_that_kafkas_tool_would_give(
    start: int, length: int, current: int | None, number: int, for_time: int | None, kind: str
) -> None:
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
