"""Finds blocks of at least 12 equal lines that occur twice in the package, the scripts or the tests.

Usage: ``scripts/duplicates.py [PATH...]``; without paths every Python file of the project. pylint's symilar compares
the lines; it ignores imports, docstrings, comments and blank lines. A block that may occur twice is listed in `ALLOWED`
with its reason; an entry that matches no block is an error. Prints one line for each duplicate; exits with 1 if there
is any.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MIN_LINES: Final = 12
ALLOWED: Final[dict[frozenset[str], str]] = {}
"""The files of a duplicate -> the reason why both blocks stay."""


def duplicates(files: list[str]) -> list[list[str]]:
    """Returns the places of each duplicate, each as ``FILE:[FIRST:LAST]``, where symilar counts lines from 0."""
    # symilar reports blocks that are longer than the number of lines that it is given.
    options = ["--ignore-imports", "--ignore-docstrings", "--ignore-comments", f"--duplicates={MIN_LINES - 1}"]
    symilar = [sys.executable, "-c", "from pylint import run_symilar; run_symilar()", *options, *files]
    printed = subprocess.run(symilar, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    blocks = re.split(r"^\d+ similar lines in \d+ files$", printed, flags=re.MULTILINE)[1:]
    return [re.findall(r"^==(\S+:\[\d+:\d+\])$", block, re.MULTILINE) for block in blocks]


def main(arguments: list[str]) -> int:
    """Checks the given files, or all. Returns the exit code."""
    command = ["git", "ls-files", "offsetmgr/*.py", "scripts/*.py", "tests/*.py"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    found = {
        frozenset(place.partition(":")[0] for place in places): places for places in duplicates(arguments or listed)
    }
    lines = [f"duplicate: {', '.join(places)}" for files, places in found.items() if files not in ALLOWED]
    if not arguments:
        lines += [
            f"scripts/duplicates.py: allowed, but not found: {sorted(key)}" for key in ALLOWED if key not in found
        ]
    print("\n".join(lines) if lines else f"duplicates: {len(arguments or listed)} files, {len(ALLOWED)} allowed")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
