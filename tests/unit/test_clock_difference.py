"""The comparison of a server's clock with this machine's clock."""

from __future__ import annotations

import pytest

from offsetmgr.core.clock_difference import ClockDifference, best_difference, duration

DAY_MS = 86_400_000


def test_a_measurement_is_between_the_request_and_the_response() -> None:
    one = ClockDifference.measured(5_000, 900, 1_100, "test")
    assert (one.low, one.high, one.ahead_ms) == (3_900, 4_100, 4_000)
    assert str(one) == "4.0 s ahead of this machine, +/- 100 ms (test)"
    assert one.agrees
    assert not one.exceeds()
    assert one.correction_ms == 0


def test_a_large_difference_corrects_times() -> None:
    behind = ClockDifference.measured(0, 10 * DAY_MS, 10 * DAY_MS + 20, "test")
    assert behind.exceeds()
    assert not behind.agrees
    assert behind.correction_ms == -10 * DAY_MS - 10
    assert str(behind) == "10 d behind this machine, +/- 10 ms (test)"


def test_an_old_timestamp_proves_nothing() -> None:
    old = ClockDifference.at_least(0, 10 * DAY_MS, "test")
    assert not old.exceeds()
    assert not old.agrees
    assert old.ahead_ms is None
    assert "not measured" in str(old)


def test_a_timestamp_in_the_future_is_a_lower_bound() -> None:
    ahead = ClockDifference.at_least(10 * DAY_MS, 0, "test")
    assert ahead.exceeds()
    assert ahead.correction_ms == 10 * DAY_MS
    assert str(ahead) == "at least 10 d ahead of this machine (test)"


def test_the_best_difference_is_the_most_precise_measurement() -> None:
    bound = ClockDifference.at_least(90, 100, "bound")
    rough, precise = ClockDifference(0, 100, "rough"), ClockDifference(40, 50, "precise")
    assert best_difference([bound, rough, precise]) is precise
    assert best_difference([ClockDifference(-50, None, ""), bound]) is bound
    assert best_difference([]) is None


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0, "0 ms"), (3_250, "3.2 s"), (60_000, "1 min"), (DAY_MS + 7_200_000, "1 d 2 h")]
)
def test_durations(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text
