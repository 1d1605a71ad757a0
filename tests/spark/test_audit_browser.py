"""The audit page in a headless browser: it makes no requests and fits its window.

`scripts/test --matrix` installs a browser. Screenshots of the pages stay in the tests' directories.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, View

from offsetmgr.spark.audit.page import Comparison, PageData, page

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

WIDTHS = (1200, 400)
NOON = 1_767_268_800_000
LONG = "reconciliation-service.eu-central-1.production." + "x" * 150


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path) as found:
        yield found


def open_at_every_width(browser: Browser, html: Path) -> Iterator[View]:
    """Opens the page at both widths, light and dark, and takes a screenshot of each."""
    for width in WIDTHS:
        for dark in (False, True):
            view = browser.open(html, width=width, dark=dark)
            view.screenshot(html.parent / f"page-{width}{'-dark' if dark else ''}.png")
            yield view


def scroll_width(view: View) -> int:
    needed: int = view.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
    return needed


def overflowing_texts(view: View) -> list[str]:
    """The texts that overflow their elements, and so overlap their neighbours."""
    found: list[str] = view.evaluate(
        """[...document.querySelectorAll('h1,h2,p,dt,dd,td,th,li')]
            .filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"""
    )
    return found


def smallest_text_height(view: View) -> float:
    """The smallest height of a text in a plot, in screen pixels."""
    found: float = view.evaluate(
        "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBBox().height * t.getScreenCTM().d))"
    )
    return found


def test_the_longest_names_and_largest_numbers_fit_any_window(browser: Browser, tmp_path: Path) -> None:
    names = [LONG, "<script>alert(1)</script>", "orders", "a b&c", "ö" * 100, "6"]
    hour = 3_600_000
    curve = [(NOON + n * hour, float(10**11 + n * 10**9)) for n in range(24)]
    html = tmp_path / "index.html"
    data = PageData(
        title=f"offsets-{LONG}",
        source=",".join(f"kafka-{n}.internal.example:9092" for n in range(5)),
        made_at=NOON,
        facts=[("lag", 10**15), ("offsets of unknown lag", None), ("records in the log", 10**12)],
        lag_over_time=dict.fromkeys(names, curve),
        commit_rate={"all groups": curve},
        top=[(name, 10.0**12) for name in names],
        lag=[(name, 10**6, 10**12, 10**6) for name in names],
        unsteady=[(name, 10**9, 10**12, 10**9, 10**13) for name in names],
        silent=[(name, NOON, 10_000.125) for name in names],
        expiring=[(name, 10**6, NOON, "retention-unknown") for name in names],
        comparison=Comparison(
            f"zookeeper://{LONG}/chroot",
            [("offset", 10**9), ("leader-epoch", 3)],
            [(name, 10**6, 10**12, 10**12) for name in names],
        ),
    )
    html.write_text(page(data), encoding="utf-8")

    for view in open_at_every_width(browser, html):
        assert view.requests == [html.as_uri()]
        assert scroll_width(view) <= view.width
        assert overflowing_texts(view) == []
        assert smallest_text_height(view) >= 9
        first_cells = "[...document.querySelectorAll('td:first-child')].map(cell => cell.textContent)"
        assert set(view.evaluate(first_cells)) >= set(names)


def test_the_layout_checks_detect_a_broken_page(browser: Browser, tmp_path: Path) -> None:
    html = tmp_path / "bad.html"
    html.write_text(
        '<!doctype html><p style="width:9px">wide<div style="width:500px">wide</div><img src="http://127.0.0.1:9/x.png">',
        "utf-8",
    )

    view = browser.open(html, width=400)

    assert view.requests == [html.as_uri(), "http://127.0.0.1:9/x.png"]
    assert scroll_width(view) > view.width
    assert overflowing_texts(view) == ["wide"]
