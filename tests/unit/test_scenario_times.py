"""Durations and times on the command line."""

from __future__ import annotations

import pytest

from offsetmgr.cli.scenario import ScenarioOptions, parse_datetime, scenario_of
from offsetmgr.core.durations import parse_duration
from offsetmgr.core.errors import UsageError
from offsetmgr.groups.export import SnapshotFile
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck


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
    ],
)
def test_durations_are_read_as_java_reads_them(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "1D", "P1DT", "P1H", "P1Y", "PT1", "P1D T1H", "1m1h", "1 h", "m"])
def test_other_durations_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="PnDTnHnMnS"):
        parse_duration(text)


def no_file(snapshot: SnapshotFile) -> CrossClusterCheck:
    raise AssertionError(f"no file is given, and {snapshot} is compared")


@pytest.mark.parametrize(
    ("duration", "time", "why"),
    [
        ("P99999999999D", None, "P99999999999D ago is before 1970"),
        ("-P99999999999999D", None, "-P99999999999999D ago is beyond all times"),
        ("P9999999999999999999D", None, "is not of the form PnDTnHnMnS"),
        (None, "1969-12-31T23:59:59", "is before 1970"),
    ],
)
def test_a_time_that_no_record_can_have_is_bad_usage(duration: str | None, time: str | None, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        scenario_of(ScenarioOptions(by_duration=duration, to_datetime=time), ["g"], no_file)


def test_times_are_utc_unless_they_name_a_zone() -> None:
    assert parse_datetime("1970-01-02T00:00:00.001") == 86_400_001
    assert parse_datetime("1970-01-01T01:00:00+01:00") == 0
    assert parse_datetime("2026-11-21T09:51:35Z") == 1_795_254_695_000
    assert parse_datetime("2026-11-21 9:51:35") == parse_datetime("2026-11-21T09:51:35")
    for text in (
        "2026-11-21",
        "2026-11-21 25:00",
        "yesterday 24:00",
        "tomorrow",
        "yesterday14:00",
        "yesterday 14:00+25:00",
    ):
        with pytest.raises(UsageError, match="YYYY-MM-DD"):
            parse_datetime(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yesterday 14:00", "2026-11-20T14:00"),
        ("Yesterday  9:05:01", "2026-11-20T09:05:01"),
        ("today", "2026-11-21T00:00"),
        ("yesterday 14:00Z", "2026-11-20T14:00"),
        ("today 10:00 +02:00", "2026-11-21T08:00"),
        ("today 18:00-0800", "2026-11-21T02:00"),  # in this zone the day is still 2026-11-20
    ],
)
def test_times_of_today_and_yesterday_are_in_utc_or_in_their_zone(text: str, expected: str) -> None:
    now_ms = parse_datetime("2026-11-21T00:30:00+00:00")
    assert parse_datetime(text, now_ms=now_ms) == parse_datetime(expected)


@pytest.mark.parametrize(("text", "warned"), [("2999-01-01 00:00", True), ("yesterday", False)])
def test_a_time_in_the_future_gets_a_warning(text: str, warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    scenario_of(ScenarioOptions(to_datetime=text), ["g"], no_file)
    shown = capsys.readouterr().err
    assert ("is 2999-01-01 00:00:00 UTC" in shown) == warned
    assert ("hint: a time without a zone is in UTC" in shown) == warned


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1h30m", 5_400_000), ("1d", 86_400_000), ("90s", 90_000), ("2d3h4m5.5s", 183_845_500), ("0s", 0)],
)
def test_short_durations(text: str, expected: int) -> None:
    assert parse_duration(text) == expected
