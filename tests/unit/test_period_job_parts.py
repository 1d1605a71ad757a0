"""Parts of period jobs that need no server: invalid rules, and the partitions that each task scans."""

from __future__ import annotations

from typing import Any

import pytest

from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.schedule import PeriodSchedule
from offsetmgr.spark.period_ranges import Bounds
from offsetmgr.spark.period_work import PeriodRules
from offsetmgr.spark.periods import Coordination, JobSettings, run_periods
from offsetmgr.spark.range_scan import _shares


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("grace_ms", -1, 0),
        ("lateness_ms", -1, 0),
        ("future_ms", -1, 0),
        ("wait_s", -0.5, 0),
        ("min_later_records", 0, 1),
        ("history_kept", 0, 1),
    ],
)
def test_an_invalid_rule_is_rejected_by_name(name: str, value: float, least: int) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=rf"PeriodRules\({name}={value}\): is below {least}"):
        PeriodRules(**changed)
    changed[name] = least
    assert getattr(PeriodRules(**changed), name) == least


def test_a_job_without_a_topic_is_rejected() -> None:
    nothing: Any = None
    with pytest.raises(UsageError, match="topics is empty"):
        run_periods(
            nothing,
            [],
            PeriodSchedule(0, 1),
            nothing,
            nothing,
            None,
            Coordination("h:1", "/r", "m"),
            JobSettings(
                bootstrap="",
                output="",
            ),
        )


def test_partitions_are_spread_over_tasks_of_one_topic_each() -> None:
    bounds = {TopicPartition("a", n): Bounds(0, n + 1, None) for n in range(5)}
    bounds[TopicPartition("b", 7)] = Bounds(3, 9, 4)
    shares = [(share.topic, sorted(share.bounds)) for share in _shares(bounds, 2)]
    assert shares == [("a", [0, 2, 4]), ("a", [1, 3]), ("b", [7])]
    assert _shares(bounds, 2)[2].bounds[7] == Bounds(3, 9, 4)
    assert _shares({}, 2) == []
