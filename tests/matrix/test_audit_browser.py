"""The audit page in a headless browser: it makes no requests, fits its window, and shows the numbers of `offsets lag`.

`scripts/test --matrix` installs a browser. Screenshots of the pages stay in the tests' directories.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import Browser, View
from confluent_kafka import Producer

from offsetmgr.cli.app import run
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KraftBroker
from offsetmgr.spark.audit.page import SHOWN, Comparison, DifferingRow, PageData, UnsteadyGroup, page
from offsetmgr.stores.kafka import KafkaStore

if TYPE_CHECKING:
    from conftest import MakeTopic

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

WIDTHS = (1200, 400)
NOON = 1_767_268_800_000
LONG = "reconciliation-service.eu-central-1.production." + "x" * 150
GROUPS, PARTITIONS, RECORDS, MOVED = 25, 3, 600, 4


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


def facts(view: View) -> dict[str, str]:
    found: dict[str, str] = view.evaluate(
        "Object.fromEntries([...document.querySelectorAll('dl div')].map(d => [...d.children].map(c => c.textContent)))"
    )
    return found


def rows(view: View, title: str) -> list[list[str]]:
    """The rows of the first table after a heading."""
    found: list[list[str]] = view.evaluate(
        f"""(() => {{
            let at = [...document.querySelectorAll('h2')].find(h => h.textContent === {json.dumps(title)});
            while (at.tagName !== 'TABLE') at = at.nextElementSibling;
            return [...at.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent));
        }})()"""
    )
    return found


def number(text: str) -> int | None:
    return None if text == "unknown" else int(text.replace(",", ""))


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
        unsteady=[UnsteadyGroup(name, 10**9, 10**12, 10**9, 10**13) for name in names],
        silent=[(name, NOON, 10_000.125) for name in names],
        expiring=[(name, 10**6, NOON, "retention-unknown") for name in names],
        comparison=Comparison(
            f"zookeeper://{LONG}/chroot",
            [("offset", 10**9), ("leader-epoch", 3)],
            [DifferingRow(name, 10**6, 10**12, 10**12) for name in names],
        ),
    )
    html.write_text(page(data), encoding="utf-8")

    for view in open_at_every_width(browser, html):
        assert view.requests == [html.as_uri()]
        assert scroll_width(view) <= view.width
        assert overflowing_texts(view) == []
        assert smallest_text_height(view) >= 9
        assert [row[0] for row in rows(view, "Lag")] == names


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


def test_the_audit_page_shows_the_numbers_of_the_commands(
    browser: Browser, make_topic: MakeTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows_of(*command: str) -> list[dict[str, Any]]:
        assert run([*command, "--format", "json"]) in (0, 1)
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    directory, snapshot = tmp_path / "audit", tmp_path / "before.avro"
    with KraftBroker(tmp_path / "kafka") as broker, KafkaStore(broker.bootstrap) as store:
        topic = make_topic("orders", PARTITIONS, bootstrap=broker.bootstrap)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for n in range(RECORDS * PARTITIONS):
            producer.produce(topic, b"x", partition=n % PARTITIONS)
        assert producer.flush(60) == 0
        for n in range(GROUPS):
            at = {TopicPartition(topic, p): OffsetAndMetadata(20 * n + p) for p in range(PARTITIONS)}
            store.commit(f"group-{n:02}", at)
        store.commit("beyond <b>", {TopicPartition(topic, 0): OffsetAndMetadata(RECORDS + 1)})
        connect = ["--bootstrap-server", broker.bootstrap]
        assert run(["offsets", "export", str(snapshot), *connect, "--all-groups"]) == 0
        for n in range(MOVED):
            store.commit(f"group-{n:02}", {TopicPartition(topic, 0): OffsetAndMetadata(20 * n + 5)})

        lags = rows_of("offsets", "lag", *connect, "--all-groups")
        differences = rows_of(
            "offsets", "diff", "--from", f"kafka://{broker.bootstrap}", "--to", f"file:{snapshot}", "--all-groups"
        )
        tables = rows_of("spark", "audit", *connect, "-o", str(directory), "--compare", f"file:{snapshot}")

    by_group: dict[str, list[int | None]] = defaultdict(list)
    for row in lags:
        by_group[row["group"]].append(row["lag"])
    known = {group: [lag for lag in found if lag is not None] for group, found in by_group.items()}
    largest = sorted(by_group, key=lambda group: (-sum(known[group]), group))[:SHOWN]
    assert len(by_group) == GROUPS + 1
    assert len(differences) == MOVED
    assert {row["table"]: row["rows"] for row in tables}["differences"] == MOVED
    for view in open_at_every_width(browser, directory / "index.html"):
        assert view.requests == [(directory / "index.html").as_uri()]
        assert scroll_width(view) <= view.width
        assert overflowing_texts(view) == []
        shown = {name: number(value) for name, value in facts(view).items()}
        assert shown["lag"] == sum(sum(found) for found in known.values())
        assert shown["groups"] == len(by_group)
        assert shown["committed offsets"] == len(lags)
        assert shown["offsets of unknown lag"] == sum(row["lag"] is None for row in lags) == 1
        assert [(group, *map(number, cells)) for group, *cells in rows(view, "Lag")] == [
            (group, PARTITIONS, sum(known[group]), 0) for group in largest
        ]
        assert rows(view, "Groups with the largest lag") == [
            [group, "", f"{sum(known[group]):,}"] for group in largest[:6]
        ]
        assert rows(view, f"Differences from file:{snapshot}") == [["another offset", "", str(MOVED)]]
        assert rows(view, "Groups that differ") == [[f"group-{n:02}", "1", "5", "0"] for n in range(MOVED)]
