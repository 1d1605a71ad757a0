"""Runs the commands of docs/contributing/evidence.md and writes what they print last into the page.

    python scripts/evidence.py WORD...

runs each row whose command contains one of the words, in the order of the page. A row keeps its last result if a
command fails; the exit code is then 1.
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = PROJECT / "docs" / "contributing" / "evidence.md"
BUSY: Final = 1.0
"""A load of the machine, before a run, from which other programs disturb it."""
_ENVIRONMENT: Final = {**os.environ, "PATH": f"{PROJECT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
_RULE: Final = re.compile(r"^=+ | =+$")
_SHOWN: Final = 2


def figures(output: str) -> str:
    """The seed of a run, the last lines of its tests, and otherwise the last two lines."""
    lines = [_RULE.sub("", line.strip()).replace("|", "/") for line in output.splitlines() if line.strip()]
    tests = [line for line in lines if re.search(r"\d+ passed.* in ", line)]
    seeds = [line for line in lines if line.startswith("seed:")]
    return "; ".join([*seeds, *(tests or lines[-_SHOWN:])])


def run(commands: list[str]) -> str | None:
    """The text for the last column of a row; None if one of its commands fails."""
    busy = ", busy" if os.getloadavg()[0] > BUSY else ""
    found = []
    for command in commands:
        print(f"$ {command}", flush=True)
        done = subprocess.run(
            ["bash", "-c", command],
            check=False,
            cwd=PROJECT,
            env=_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(done.stdout, flush=True)
        if done.returncode:
            return None
        found.append(figures(done.stdout))
    return f"{datetime.date.today():%m-%d}{busy}: {'; '.join(found)}"


def main(words: list[str]) -> int:
    """Runs the rows that the words select. Writes the page after each row, so that an interrupted run loses nothing."""
    failed = False
    for row in [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]:
        promise, command, _ = row.strip("| ").split(" | ")
        commands = re.findall(r"`([^`]+)`", command)
        if not any(word in command for word in words) or not commands:
            continue
        result = run(commands)
        failed |= result is None
        if result is not None:
            PAGE.write_text(PAGE.read_text().replace(row, f"| {promise} | {command} | {result} |"))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
