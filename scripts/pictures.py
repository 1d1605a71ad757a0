"""Makes the images of the documentation: drawings, terminal sessions, and the page of an audit.

The terminal sessions are outputs of commands on a page that `follow` runs on real servers. The audit reads a real
broker, after several groups have committed for a while. ``--check`` compares the drawings, which need no server.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from drawings import DRAWINGS
from follow import PROJECT, Shell, Step, install, steps
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from offsetmgr.sandbox import KraftBroker

PICTURES: Final = PROJECT / "docs" / "pictures"
COLUMNS: Final = 104
SESSIONS: Final = {
    "migrate.svg": (
        PROJECT / "docs" / "tutorials" / "leave-zookeeper.md",
        (
            "offsetmgr groups describe",
            "offsetmgr migrate plan",
            "offsetmgr migrate apply",
            "offsetmgr migrate verify",
        ),
    ),
    "rescue.svg": (
        PROJECT / "docs" / "tutorials" / "rescue-a-group.md",
        (
            "offsetmgr offsets diff",
            'offsetmgr offsets import "$BEFORE" --execute',
            "python bill.py",
        ),
    ),
}
"""For each terminal session the page, and the beginnings of the commands to show; each shows its last run."""
HIDDEN: Final = (
    "cluster the same",
    "topics  recreated",
    "logs    checked",
    "expiry  ",
    "not atomic",
    "         1 not atomic",
)
"""Beginnings of lines that a session replaces with ``...``."""
MAX_LINES: Final = 12
"""The most lines of one command's output in a session."""
AUDIT_WIDTH: Final = 1000
GROUPS: Final = {"billing": 0.9, "shipping": 0.75, "search-index": 0.5, "fraud-check": 1.0, "newsletter": 0.1}
"""The groups of the audit, each with the share of new records that it consumes."""
ROUNDS: Final = 40
THEME: Final = TerminalTheme((30, 34, 42), (220, 223, 228), [(92, 99, 112)] * 8, [(152, 195, 121)] * 8)
SVG: Final = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
  line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
<rect width="{width}" height="{height}" rx="8" fill="#1e222a"/>
<g transform="translate({terminal_x}, 26)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def shortened(printed: Sequence[str]) -> list[str]:
    """The lines of an output that a session shows: no long explanations, and not more than `MAX_LINES`."""
    lines: list[str] = []
    for line in printed:
        if not line.startswith(HIDDEN):
            lines.append(line if len(line) <= COLUMNS else line[: COLUMNS - 3] + "...")
        elif lines[-1:] != ["..."]:
            lines.append("...")
    if len(lines) > MAX_LINES:
        first = lines[: MAX_LINES - 4]
        lines = [*first, *([] if first[-1] == "..." else ["..."]), *lines[-3:]]
    return lines


def terminal(title: str, session: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Renders commands and their outputs as an SVG terminal, without fonts or other files from the network."""
    with Path(os.devnull).open("w") as nothing:
        console = Console(record=True, width=COLUMNS, file=nothing, force_terminal=True, legacy_windows=False)
        for command, printed in session:
            console.print(Text(f"$ {command}", style="bold bright_green"), soft_wrap=False)
            for line in shortened(printed):
                console.print(Text(line), soft_wrap=True)
    return console.export_svg(title=title, theme=THEME, code_format=SVG, unique_id=Path(title).stem)


def session(page: Path, shown: Sequence[str], environment: Path) -> list[tuple[str, list[str]]]:
    """Runs all commands of a page, and returns those that are shown, with their outputs."""
    found: dict[str, tuple[str, list[str]]] = {}
    with tempfile.TemporaryDirectory(prefix="offsetmgr-picture-", ignore_cleanup_errors=True) as name:
        shell = Shell(Path(name), environment, 300)
        try:
            for step in steps(page.read_text("utf-8")):
                if not isinstance(step, Step):
                    shell.save(step)
                elif "venv" not in step.command and not step.command.startswith("pip "):
                    printed = [line.replace(f"{name}/home", "~") for line in shell.run(step.command)]
                    print(f"$ {step.command}", *printed, sep="\n", flush=True)
                    for beginning in shown:
                        if step.command.startswith(beginning):
                            found[beginning] = step.command, printed
        finally:
            shell.close()
    return [found[beginning] for beginning in shown]


def commit_for_a_while(bootstrap: str) -> None:
    """Produces records, and commits them for `GROUPS`. One group is reset on the way, so that the page shows it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result()
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(ROUNDS):
        for record in range(300):
            producer.produce("orders", b"order", partition=record % 3)
        producer.flush()
        for group, share in GROUPS.items():
            done = int(100 * (number + 1) * share)
            if group == "search-index" and number == ROUNDS // 2:
                done = 0
            places = [TopicPartition("orders", partition, done) for partition in range(3)]
            request = ConsumerGroupTopicPartitions(group, places)
            admin.alter_consumer_group_offsets([request])[group].result()
        time.sleep(1)


def audit(file: Path) -> None:
    """Takes a screenshot of the page that `offsetmgr spark audit` writes."""
    sys.path.insert(0, str(PROJECT / "tests"))
    os.environ["OFFSETMGR_BROWSER"] = subprocess.run(
        [str(PROJECT / "scripts" / "browser")], check=True, capture_output=True, text=True
    ).stdout.strip()
    from browser import Browser

    with tempfile.TemporaryDirectory(prefix="offsetmgr-picture-", ignore_cleanup_errors=True) as name:
        with KraftBroker(Path(name) / "kafka") as broker:
            commit_for_a_while(broker.bootstrap)
            command = [sys.executable, "-m", "offsetmgr", "spark", "audit", "--bootstrap-server", broker.bootstrap]
            subprocess.run([*command, "-o", f"{name}/audit"], check=True)
        with Browser(Path(name)) as browser:
            browser.open(Path(name) / "audit" / "index.html", width=AUDIT_WIDTH).screenshot(file)


def stale_drawings() -> list[str]:
    """The drawings that differ from what the script draws now."""
    return [
        name
        for name, draw in DRAWINGS.items()
        if not (PICTURES / name).exists() or (PICTURES / name).read_text("utf-8") != draw()
    ]


def make(names: Sequence[str]) -> None:
    PICTURES.mkdir(exist_ok=True)
    for name in names:
        if name in DRAWINGS:
            (PICTURES / name).write_text(DRAWINGS[name](), "utf-8")
        elif name == "audit.png":
            audit(PICTURES / name)
        else:
            page, shown = SESSIONS[name]
            with tempfile.TemporaryDirectory(prefix="offsetmgr-install-") as directory:
                found = session(page, shown, install(Path(directory)))
            (PICTURES / name).write_text(terminal(name, found), "utf-8")
        print(f"wrote {(PICTURES / name).relative_to(PROJECT)}", flush=True)


def main() -> int:
    every = [*DRAWINGS, *SESSIONS, "audit.png"]
    parser = argparse.ArgumentParser(prog="scripts/pictures", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a drawing is stale")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(every))
    options = parser.parse_args()
    if unknown := set(options.names) - set(every):
        parser.error(f"no such image: {', '.join(sorted(unknown))}")
    if options.check:
        stale = stale_drawings()
        for name in stale:
            print(f"error: docs/pictures/{name}: it is stale: run scripts/pictures {name}", file=sys.stderr)
        return 1 if stale else 0
    make(options.names or every)
    return 0


if __name__ == "__main__":
    sys.exit(main())
