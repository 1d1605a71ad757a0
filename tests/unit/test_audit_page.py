"""The page of an audit as text: everything in one file, names that are no markup, unknown that is not zero."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

from offsetmgr.spark.audit.page import PageData, page
from offsetmgr.spark.audit.plots import bars, lines, moment, short

NOON = 1_767_268_800_000
DATA = PageData(
    title="__consumer_offsets of host:9092",
    made_at=NOON,
    facts=[("groups", 2), ("lag", None), ("records in the log", 1_234_567)],
    lag_over_time={"a": [(NOON, 0.0), (NOON + 60_000, 40.0)], "<b>&": [(NOON, 10.0)]},
    commits_over_time={"all groups": []},
    top=[("a", 40.0), ("<b>&", 10.0)],
    lag=[("a", 3, 40, 0), ("<b>&", 1, None, 1)],
    silent=[("old", NOON, 8.5)],
    expiring=[],
)


def text_of(html: str) -> list[str]:
    return [
        part.strip()
        for part in re.sub(r"<style>.*?</style>|<[^>]*>", "\n", html, flags=re.S).split("\n")
        if part.strip()
    ]


def test_the_page_asks_nobody_for_anything() -> None:
    html = page(DATA)

    assert not re.search(r"https?:|//|@import|url\(|<script|<link(?! rel=\"icon\" href=\"data:,\")", html)


def test_numbers_are_written_out_and_unknown_is_said() -> None:
    shown = text_of(page(DATA))

    assert shown[shown.index("records in the log") + 1] == "1,234,567"
    assert shown[shown.index("lag") + 1] == "unknown"
    at = shown.index(
        "&lt;b&gt;&amp;", shown.index("unknown", shown.index("Lag", shown.index("Groups with the largest lag")))
    )
    assert shown[at : at + 4] == ["&lt;b&gt;&amp;", "1", "unknown", "1"]
    assert shown[shown.index("old") : shown.index("old") + 3] == ["old", "2026-01-01 12:00", "8.5"]
    assert "Commits over time: nothing to show." in shown
    assert "None." in shown


def test_names_are_never_markup() -> None:
    html = page(replace(DATA, title="<script>alert(1)</script>", notes=["<i>"]))

    assert "<script" not in html
    assert "<i>" not in html
    assert html.count("&lt;script&gt;") == 2


def test_without_a_comparison_there_is_no_such_part() -> None:
    assert "Differences" not in page(DATA)
    assert "only-left" in page(replace(DATA, differences=[("only-left", 3.0)]))
    assert "Differences by kind: nothing to show." in page(replace(DATA, differences=[]))


def test_a_line_goes_from_the_first_time_to_the_last_and_from_zero_to_the_highest_value() -> None:
    svg, _, legend = lines({"a": [(0, 0.0), (1_000, 50.0), (2_000, 100.0)]}, "t").partition("</svg>")

    root = ElementTree.fromstring(svg + "</svg>")
    (line,) = [path for path in root if path.get("class") == "line c0"]
    assert line.get("d") == "M64.0 230.0L346.0 121.0L628.0 12.0"
    assert [text.text for text in root if text.tag == "text"] == [
        "0", "25", "50", "75", "100", "1970-01-01 00:00", "1970-01-01 00:00",
    ]  # fmt: skip
    assert legend == '<ul class="legend"><li class="c0">a</li></ul>'


def test_values_that_are_all_zero_and_single_points_are_drawn() -> None:
    assert 'class="line c0" d="M64.0 230.0L628.0 230.0"' in lines({"a": [(0, 0.0), (9, 0.0)]}, "t")
    assert '<circle class="c0" cx="64.0" cy="12.0" r="3"/>' in lines({"a": [(5, 3.0)]}, "t")


def test_bars_are_as_long_as_their_value() -> None:
    html = bars([("a", 4_000.0), ("b", 1_000.0)], "t")

    assert re.findall(r'width="([0-9.]+)"', html) == ["100.00", "25.00"]
    assert text_of(html) == ["a", "4,000", "b", "1,000"]


def test_short_numbers() -> None:
    assert [short(n) for n in (0, 999, 1_000, 1_250_000, 3e9, 2e12)] == ["0", "999", "1k", "1.25M", "3G", "2T"]
    assert moment(NOON) == "2026-01-01 12:00"
    assert moment(10**18) == str(10**18)
