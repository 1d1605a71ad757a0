"""The HTML page of an audit: one self-contained file, escaped names, and unknown values that are not zero."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from offsetmgr.core.document import moment
from offsetmgr.spark.audit.page import SHOWN, Comparison, DifferingRow, PageData, UnsteadyGroup, duration, page
from offsetmgr.spark.audit.plots import bars, lines, short, tick_size

NOON = 1_767_268_800_000
DATA = PageData(
    title="__consumer_offsets",
    source="host:9092,other:9092",
    made_at=NOON,
    facts=[("groups", 2), ("lag", None), ("records in the log", 1_234_567)],
    lag_over_time={"a": [(NOON, 0.0), (NOON + 60_000, 40.0)], "<b>&": [(NOON, 10.0)]},
    commit_rate={},
    top=[("a", 40.0), ("<b>&", 10.0)],
    lag=[("a", 3, 40, 0), ("<b>&", 1, None, 1)],
    unsteady=[UnsteadyGroup("a", 2, 30, 1, 3_720_000)],
    silent=[("old", NOON, 8.5)],
    expiring=[],
)


def text_of(html: str) -> list[str]:
    return [
        part.strip()
        for part in re.sub(r"<style>.*?</style>|<[^>]*>", "\n", html, flags=re.S).split("\n")
        if part.strip()
    ]


def rows(html: str, title: str) -> list[tuple[str, ...]]:
    """Returns the rows of the table under a heading, without the column titles."""
    part = html.partition(f"<h2>{title}</h2>")[2].partition("<h2>")[0]
    body = part.partition("<tbody>")[2].partition("</tbody>")[0]
    return [tuple(text_of(row)) for row in body.split("</tr>")[:-1]]


def test_the_page_needs_no_network() -> None:
    html = page(DATA)

    assert not re.search(r"https?:|//|@import|url\(|<script|<link(?! rel=\"icon\" href=\"data:,\")", html)


def test_numbers_are_written_out_and_unknown_is_reported() -> None:
    shown = text_of(page(DATA))

    assert shown[shown.index("records in the log") + 1] == "1,234,567"
    assert shown[shown.index("lag") + 1] == "unknown"
    assert rows(page(DATA), "Lag") == [("a", "3", "40", "0"), ("&lt;b&gt;&amp;", "1", "unknown", "1")]
    assert rows(page(DATA), "Rewinds and gaps") == [("a", "2", "30", "1", "1 h 2 min")]
    assert shown[shown.index("old") : shown.index("old") + 3] == ["old", "2026-01-01 12:00", "8.5"]
    assert "Commit rate: nothing to show." in shown
    assert "Read 2026-01-01 12:00 from host:9092, other:9092. All times are UTC." in shown
    assert "None." in shown


def test_names_are_never_markup() -> None:
    html = page(replace(DATA, title="<script>alert(1)</script>", source="<i>"))

    assert "<script" not in html
    assert "<i>" not in html
    assert html.count("&lt;script&gt;") == 2


def test_a_page_without_a_comparison_has_no_section_for_it() -> None:
    assert "Differences" not in page(DATA)


def test_a_comparison_is_reported_in_words_by_kind_and_by_group() -> None:
    groups = [DifferingRow("a", 3, 40, 0), DifferingRow("b", 1, 0, 7)]
    html = page(replace(DATA, comparison=Comparison("zookeeper:zk", [("offset", 1_002), ("only-left", 3)], groups)))

    shown = text_of(html)
    at = shown.index("Differences from zookeeper:zk")
    assert shown[at + 2 : at + 6] == ["another offset", "1,002", "only in the log", "3"]
    assert rows(html, "Groups that differ") == [("a", "3", "40", "0"), ("b", "1", "0", "7")]


def test_equal_stores_are_reported() -> None:
    html = page(replace(DATA, comparison=Comparison("zookeeper:zk", [], [])))

    shown = text_of(html)
    assert shown[shown.index("Differences from zookeeper:zk") + 1 :] == ["None."]


@pytest.mark.parametrize(("count", "reported"), [(SHOWN - 1, False), (SHOWN, True)])
def test_a_table_that_may_be_truncated_names_the_complete_table(count: int, reported: bool) -> None:
    html = page(replace(DATA, silent=[(f"g{n}", NOON, 9.0) for n in range(count)]))

    assert ("The first 20; the table silent has more." in text_of(html)) is reported


def test_durations_have_two_units() -> None:
    assert [duration(ms) for ms in (999, 59_999, 60_000, 3_600_000, 7_260_000, 90_000_000)] == [
        "0 s", "59 s", "1 min 0 s", "1 h 0 min", "2 h 1 min", "1 d 1 h",
    ]  # fmt: skip


def test_a_line_goes_from_the_first_time_to_the_last_and_from_zero_to_the_highest_value() -> None:
    svg, _, legend = lines({"a": [(0, 0.0), (1_000, 50.0), (2_000, 100.0)]}, "t").partition("</svg>")

    root = ElementTree.fromstring(svg + "</svg>")
    (line,) = [path for path in root if path.get("class") == "line c0"]
    assert line.get("d") == "M64.0 230.0L346.0 121.0L628.0 12.0"
    assert [text.text for text in root if text.tag == "text"] == [
        "0", "25", "50", "75", "100", "1970-01-01 00:00:00", "1970-01-01 00:00:02",
    ]  # fmt: skip
    assert legend == '<ul class="legend"><li class="c0">a</li></ul>'


def test_values_that_are_all_zero_and_single_points_are_drawn() -> None:
    assert 'class="line c0" d="M64.0 230.0L628.0 230.0"' in lines({"a": [(0, 0.0), (9, 0.0)]}, "t")
    assert '<circle class="c0" cx="64.0" cy="12.0" r="3"/>' in lines({"a": [(5, 4.0)]}, "t")


def test_axes_have_round_numbers() -> None:
    assert [tick_size(minimum) for minimum in (0.0, 0.3, 1.0, 1.1, 2.2, 3.0, 7.0, 367_000.0)] == [
        1.0, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 500_000.0,
    ]  # fmt: skip
    assert [text for text in text_of(lines({"a": [(0, 7.0)]}, "t")) if text[0].isdigit()][:5] == [
        "0", "2", "4", "6", "8",
    ]  # fmt: skip


def test_bars_are_as_long_as_their_value() -> None:
    html = bars([("a", 4_000.0), ("b", 1_000.0)], "t")

    assert re.findall(r'width="([0-9.]+)"', html) == ["100.00", "25.00"]
    assert text_of(html) == ["a", "4,000", "b", "1,000"]


def test_short_numbers() -> None:
    assert [short(n) for n in (0, 999, 1_000, 1_250_000, 3e9, 2e12)] == ["0", "999", "1k", "1.25M", "3G", "2T"]
    assert moment(NOON) == "2026-01-01 12:00"
    assert moment(10**18) == str(10**18)
