"""The comparison of a server's clock with this machine's clock."""

import pytest

from offsetmgr.core.clock import ClockDifference, best_difference, duration

DAY_MS = 86_400_000

AHEAD = ClockDifference.measured(5_000, 900, 1_100, "test")
FUTURE = ClockDifference.at_least(10 * DAY_MS, 0, "test")
BEHIND = ClockDifference.measured(0, 10 * DAY_MS, 10 * DAY_MS + 20, "test")


@pytest.mark.parametrize(
    ("found", "agrees", "exceeds", "correction_ms", "text"),
    [
        (AHEAD, True, False, 0, "4.0 s ahead of this machine, +/- 100 ms (test)"),
        (BEHIND, False, True, -10 * DAY_MS - 10, "10 d behind this machine, +/- 10 ms (test)"),
        # An old timestamp proves nothing; one in the future is a lower bound.
        (ClockDifference.at_least(0, 10 * DAY_MS, "test"), False, False, 0, "not measured"),
        (FUTURE, False, True, 10 * DAY_MS, "at least 10 d ahead of this machine (test)"),
    ],
)
def test_a_large_difference_corrects_times(found, agrees: bool, exceeds: bool, correction_ms: int, text: str) -> None:
    assert (found.agrees, found.exceeds(), found.correction_ms) == (agrees, exceeds, correction_ms)
    assert text in str(found)


def test_a_measurement_is_between_the_request_and_the_response() -> None:
    assert (AHEAD.low, AHEAD.high, AHEAD.ahead_ms) == (3_900, 4_100, 4_000)


def test_the_best_difference_is_the_most_precise_measurement() -> None:
    bound = ClockDifference.at_least(90, 100, "bound")
    rough, precise = ClockDifference(0, 100, "rough"), ClockDifference(40, 50, "precise")
    assert best_difference([bound, rough, precise]) is precise
    assert best_difference([ClockDifference(-50, None, ""), bound]) is bound
    assert best_difference([]) is None


def test_durations() -> None:
    texts = {0: "0 ms", 3_250: "3.2 s", 60_000: "1 min", DAY_MS + 7_200_000: "1 d 2 h"}
    assert {milliseconds: duration(milliseconds) for milliseconds in texts} == texts
