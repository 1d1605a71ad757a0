"""The HTML page of an audit: one self-contained file, escaped names, and unknown values that are not zero."""

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from offsetmgr.spark.audit.page import Comparison, PageData, page

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
    unsteady=[("a", 2, 30, 1, 3_720_000)],
    silent=[("old", NOON, 8.5), ("in the far future", 10**18, 9.0)],
    expiring=[],
)


def text_of(html: str) -> list[str]:
    texts = re.sub(r"<style>.*?</style>|<[^>]*>", "\n", html, flags=re.S).split("\n")
    return [part.strip() for part in texts if part.strip()]


def section(html: str, title: str) -> str:
    return html.partition(f"<h2>{title}</h2>")[2].partition("<h2>")[0]


def rows(html: str, title: str) -> list[tuple[str, ...]]:
    """Returns the rows of the table under a heading, without the column titles."""
    body = section(html, title).partition("<tbody>")[2].partition("</tbody>")[0]
    return [tuple(text_of(row)) for row in body.split("</tr>")[:-1]]


def plot(lines: dict[str, list[tuple[int, float]]]) -> tuple[ElementTree.Element, list[str], str]:
    """The elements of a plot, its texts, and the legend."""
    shown = section(page(replace(DATA, lag_over_time=lines)), "Lag over time")
    svg, end, legend = shown.partition("</svg>")
    root = ElementTree.fromstring(svg + end)
    return root, [str(text.text) for text in root if text.tag == "text"], legend.partition("<p>")[0]


def test_numbers_are_written_out_and_unknown_is_reported() -> None:
    shown = text_of(page(DATA))

    assert shown[shown.index("records in the log") + 1] == "1,234,567"
    assert shown[shown.index("lag") + 1] == "unknown"
    assert rows(page(DATA), "Lag") == [("a", "3", "40", "0"), ("&lt;b&gt;&amp;", "1", "unknown", "1")]
    assert rows(page(DATA), "Rewinds and gaps") == [("a", "2", "30", "1", "1 h 2 min")]
    assert rows(page(DATA), "Silent groups") == [
        ("old", "2026-01-01 12:00", "8.5"),
        ("in the far future", str(10**18), "9.0"),
    ]
    assert "Commit rate: nothing to show." in shown
    assert "Read 2026-01-01 12:00 from host:9092, other:9092. All times are UTC." in shown
    assert "None." in shown


def test_the_page_needs_no_network_and_names_are_never_markup() -> None:
    assert not re.search(r"https?:|//|@import|url\(|<script|<link(?! rel=\"icon\" href=\"data:,\")", page(DATA))
    html = page(replace(DATA, title="<script>alert(1)</script>", source="<i>"))

    assert "<script" not in html
    assert "<i>" not in html
    assert html.count("&lt;script&gt;") == 2


def test_a_comparison_is_reported_in_words_by_kind_and_by_group() -> None:
    groups = [("a", 3, 40, 0), ("b", 1, 0, 7)]
    found = Comparison("zookeeper:zk", [("offset", 1_002), ("only-left", 3)], groups)
    html = page(replace(DATA, comparison=found))

    shown = text_of(section(html, "Differences from zookeeper:zk"))
    assert shown[1:5] == ["another offset", "1,002", "only in the log", "3"]
    assert rows(html, "Groups that differ") == [("a", "3", "40", "0"), ("b", "1", "0", "7")]
    equal = page(replace(DATA, comparison=Comparison("zookeeper:zk", [], [])))
    assert text_of(section(equal, "Differences from zookeeper:zk")) == ["None."]
    assert "Differences" not in page(DATA)


@pytest.mark.parametrize(("count", "reported"), [(19, False), (20, True)])
def test_a_table_that_may_be_truncated_names_the_complete_table(count: int, reported: bool) -> None:
    html = page(replace(DATA, silent=[(f"g{n}", NOON, 9.0) for n in range(count)]))

    assert ("The first 20; the table silent has more." in text_of(html)) is reported


def test_durations_have_two_units() -> None:
    silences: dict[Any, str] = {999: "0 s", 59_999: "59 s", 60_000: "1 min 0 s", 3_600_000: "1 h 0 min"}
    silences |= {7_260_000: "2 h 1 min", 90_000_000: "1 d 1 h", None: "unknown"}
    unsteady = [("a", 0, None, 1, silence) for silence in silences]

    shown = rows(page(replace(DATA, unsteady=unsteady)), "Rewinds and gaps")
    assert shown == [("a", "0", "0", "1", silence) for silence in silences.values()]


def test_lines_go_from_the_first_time_to_the_last_and_zeros_and_single_points_are_drawn() -> None:
    root, texts, legend = plot({"a": [(0, 0.0), (1_000, 50.0), (2_000, 100.0)]})

    (line,) = [path for path in root if path.get("class") == "line c0"]
    assert line.get("d") == "M64.0 230.0L346.0 121.0L628.0 12.0"
    assert texts == ["0", "25", "50", "75", "100", "1970-01-01 00:00:00", "1970-01-01 00:00:02"]
    assert legend == '<ul class="legend"><li class="c0">a</li></ul>'

    root, _, _ = plot({"a": [(0, 0.0), (9, 0.0)]})
    assert [path.get("d") for path in root if path.get("class") == "line c0"] == ["M64.0 230.0L628.0 230.0"]
    root, _, _ = plot({"a": [(5, 4.0)]})
    (circle,) = [dict(one.attrib) for one in root if one.tag == "circle"]
    assert circle == {"class": "c0", "cx": "64.0", "cy": "12.0", "r": "3"}


@pytest.mark.parametrize(
    ("highest", "numbers"),
    [
        (0.0, "0 1 2 3 4"),
        (1.2, "0 0.5 1 1.5 2"),
        (4.0, "0 1 2 3 4"),
        (4.4, "0 2 4 6 8"),
        (8.8, "0 2.5 5 7.5 10"),
        (12.0, "0 5 10 15 20"),
        (28.0, "0 10 20 30 40"),
        (1_000.0, "0 250 500 750 1k"),
        (1_468_000.0, "0 500k 1M 1.5M 2M"),
        (10e9, "0 2.5G 5G 7.5G 10G"),
        (8e12, "0 2T 4T 6T 8T"),
    ],
)
def test_axes_have_round_and_short_numbers(highest: float, numbers: str) -> None:
    assert plot({"a": [(0, highest)]})[1][:5] == numbers.split()


def test_bars_are_as_long_as_their_value() -> None:
    html = section(page(replace(DATA, top=[("a", 4_000.0), ("b", 1_000.0)])), "Groups with the largest lag")

    assert re.findall(r'width="([0-9.]+)"', html) == ["100.00", "25.00"]
    assert text_of(html) == ["a", "4,000", "b", "1,000"]
