"""The drawings of the documentation as SVG: the layers of the packages, and the phases of a migration.

The layers are read from the import contract in pyproject.toml, so that the drawing shows what `lint-imports` checks.
"""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent
PURPOSES: Final = {
    "cli": "the offsetmgr command",
    "sandbox": "real servers for trials",
    "testing": "contract suites, fakes",
    "results": "types of returned values",
    "app": "the use cases",
    "spark": "tables, audits, committer",
    "period": "jobs that share periods",
    "consumer": "consumers in old groups",
    "migration": "plan, apply, verify, finalize, rollback",
    "groups": "edits of groups, undo",
    "translation": "positions of another cluster",
    "server": "listener, relay, security",
    "manager": "the offset manager",
    "stores": "ZooKeeper, Kafka, dual, files",
    "snapshots": "file formats",
    "kafka": "protocol, clients",
    "zookeeper": "znodes, sessions",
    "segments": "Kafka's logs on disk",
    "records": "record formats of offsets topics",
    "config": "settings, contexts, secrets",
    "core": "model, errors, retries, clock",
}
STYLE: Final = """
    text { font-family: Helvetica, Arial, sans-serif; font-size: 14px; fill: #1c2430; text-anchor: middle; }
    .name { font-weight: bold; } .small { font-size: 12px; fill: #4a5568; } .left { text-anchor: start; }
    .mono { font-family: Menlo, Consolas, monospace; font-size: 12px; }
    rect { stroke: #334155; stroke-width: 1.2; }
    .paper { fill: #ffffff; stroke: none; }
    .top { fill: #e8eefb; } .middle { fill: #e6f2ea; } .base { fill: #fdf3e1; } .plain { fill: #f8fafc; }
    path { stroke: #334155; stroke-width: 1.5; fill: none; marker-end: url(#head); }
    .dashed { stroke-dasharray: 5 4; }
"""
HEAD: Final = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 L10 5 L0 10 z" style="fill:#334155;stroke:none;marker-end:none"/></marker></defs>'
)


class Drawing:
    """An SVG image of fixed size, to which shapes are added."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            HEAD,
            f'<rect class="paper" width="{width}" height="{height}"/>',
        ]

    def box(self, x: int, y: int, width: int, height: int, kind: str, *texts: tuple[str, str]) -> None:
        """Draws a box with centred lines of text; each text is its class and its content."""
        self._lines.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        first = y + height // 2 + 5 - 10 * (len(texts) - 1)
        for number, (style, text) in enumerate(texts):
            self.text(x + width // 2, first + 20 * number, text, style)

    def text(self, x: int, y: int, text: str, style: str = "") -> None:
        self._lines.append(f'<text class="{style}" x="{x}" y="{y}">{escape(text)}</text>')

    def arrow(self, path: str, style: str = "") -> None:
        self._lines.append(f'<path class="{style}" d="{path}"/>')

    def svg(self) -> str:
        return "\n".join([*self._lines, "</svg>", ""])


def layers() -> list[list[str]]:
    """The packages of each layer, from the top, as the import contract has them."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    contract = next(one for one in contracts if one["type"] == "layers" and one["containers"] == ["offsetmgr"])
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def architecture() -> str:
    """Draws the layers. Raises `KeyError` for a package without a purpose in `PURPOSES`."""
    found = layers()
    width, height, gap, left = 700, 48, 8, 20
    drawing = Drawing("The layers of offsetmgr", width + left + 130, len(found) * (height + gap) + 40)
    for number, packages in enumerate(found):
        y = 20 + number * (height + gap)
        kind = "top" if number < 4 else "middle" if number < 8 else "base"
        each = (width - gap * (len(packages) - 1)) // len(packages)
        for place, name in enumerate(packages):
            x = left + place * (each + gap)
            drawing.box(x, y, each, height, kind, ("name", name), ("small", PURPOSES[name]))
    bottom = 20 + len(found) * (height + gap) - gap
    x = left + width + 30
    drawing.arrow(f"M{x} 24 V{bottom - 2}")
    for number, line in enumerate(("a layer", "imports", "only layers", "below it")):
        drawing.text(x + 12, bottom // 2 - 20 + 18 * number, line, "small left")
    return drawing.svg()


def phases() -> str:
    """Draws the phases of a migration: the stores to which consumers commit, and the commands that move them."""
    drawing = Drawing("The phases of a migration from ZooKeeper to Kafka, and back", 900, 400)
    columns = (
        (20, "base", "phase zookeeper", "offsets.storage=zookeeper", ""),
        (330, "plain", "phase dual", "offsets.storage=kafka", "dual.commit.enabled=true"),
        (640, "middle", "phase kafka", "offsets.storage=kafka", "dual.commit.enabled=false"),
    )
    for x, kind, name, first, second in columns:
        texts = [("name", name), ("mono", first)] + ([("mono", second)] if second else [])
        drawing.box(x, 90, 240, 84, kind, *texts)
    for x in (260, 570):
        drawing.arrow(f"M{x} 118 H{x + 70}")
        drawing.arrow(f"M{x + 70} 146 H{x}")
    drawing.text(450, 30, "runbook bounce: restarts the consumers one at a time, with a gate after each", "name")
    drawing.text(450, 52, "A gate opens when the commits of the restarted consumer were seen.", "small")
    drawing.text(295, 80, "to Kafka", "small")
    drawing.text(605, 80, "to Kafka", "small")
    drawing.text(295, 192, "and back", "small")
    drawing.text(605, 192, "and back", "small")
    drawing.box(20, 250, 240, 56, "base", ("name", "ZooKeeper"), ("mono", "/consumers/shop/offsets"))
    drawing.box(640, 250, 240, 56, "middle", ("name", "Kafka"), ("mono", "__consumer_offsets"))
    commands = ("mono", "plan, apply, verify,"), ("mono", "finalize, rollback")
    drawing.box(330, 238, 240, 80, "top", ("name", "offsetmgr migrate"), *commands)
    drawing.arrow("M140 174 V250")
    drawing.arrow("M760 174 V250")
    drawing.arrow("M390 174 L262 250")
    drawing.arrow("M510 174 L638 250")
    drawing.text(148, 216, "commits", "small left")
    drawing.text(768, 216, "commits", "small left")
    drawing.text(450, 216, "commits to Kafka, then ZooKeeper", "small")
    drawing.arrow("M260 270 H330", "dashed")
    drawing.arrow("M330 288 H260", "dashed")
    drawing.arrow("M570 270 H640", "dashed")
    drawing.arrow("M640 288 H570", "dashed")
    drawing.box(300, 344, 300, 40, "plain", ("small", "plan (hashed) and journal (synced), on disk"))
    drawing.arrow("M450 318 V344", "dashed")
    return drawing.svg()


DRAWINGS: Final = {"architecture.svg": architecture, "phases.svg": phases}
