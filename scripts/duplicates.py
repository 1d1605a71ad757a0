"""Finds blocks of at least 12 equal lines that occur twice in the package, the scripts or the tests.

Usage: ``scripts/duplicates.py [PATH...]``; without paths every Python file of the project. pylint's symilar compares
the lines of each pair of files, and this script compares the lines of each file with each other. Both ignore imports,
docstrings, comments and blank lines. `ALLOWED` lists each block that may occur twice, with its reason; an entry that
matches no block is an error. Prints one line for each duplicate; exits with 1 if there is any.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
MIN_LINES: Final = 12


class Duplicate(NamedTuple):
    """A block of lines that occurs twice. A file can have several duplicates, which differ in the first line."""

    files: frozenset[str]
    first_line: str


ALLOWED: Final[dict[Duplicate, str]] = {}
"""Duplicate -> the reason why both blocks stay."""


def duplicates(files: list[str]) -> list[list[str]]:
    """Returns the places of each duplicate, each as ``FILE:[FIRST:LAST]``, where symilar counts lines from 0."""
    # symilar reports blocks that are longer than the number of lines that it is given.
    options = ["--ignore-imports", "--ignore-docstrings", "--ignore-comments", f"--duplicates={MIN_LINES - 1}"]
    symilar = [sys.executable, "-c", "from pylint import run_symilar; run_symilar()", *options, *files]
    printed = subprocess.run(symilar, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    blocks = re.split(r"^\d+ similar lines in \d+ files$", printed, flags=re.MULTILINE)[1:]
    return [re.findall(r"^==(\S+:\[\d+:\d+\])$", block, re.MULTILINE) for block in blocks]


def code_lines(text: str) -> list[tuple[int, str]]:
    """Returns the number and the text of each line that has code: without imports, docstrings, comments, and lines of
    brackets only."""
    lines = text.splitlines()
    ignored = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            ignored.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    numbered = ((number, line.strip()) for number, line in enumerate(lines, 1) if number not in ignored)
    return [(number, line) for number, line in numbered if re.search(r"\w", line)]


def repeated_blocks(text: str) -> Iterator[tuple[int, int, str]]:
    """The first lines of each two equal blocks of one file, and the text of the first line. Longer blocks count
    once."""
    lines = code_lines(text)
    seen: dict[tuple[str, ...], int] = {}
    covered = 0
    for at in range(len(lines) - MIN_LINES + 1):
        block = tuple(line for _, line in lines[at : at + MIN_LINES])
        earlier = seen.setdefault(block, at)
        if at - earlier >= MIN_LINES and at >= covered:
            yield lines[earlier][0], lines[at][0], block[0]
            covered = at + MIN_LINES


def all_duplicates(files: list[str]) -> dict[Duplicate, str]:
    """Returns the duplicates between files and inside of files, each with a text that names the places."""
    found: dict[Duplicate, str] = {}
    for places in duplicates(files):
        name, _, lines = places[0].partition(":")
        first = int(re.findall(r"\d+", lines)[0])
        text = next(line for number, line in code_lines((ROOT / name).read_text(encoding="utf-8")) if number > first)
        found[Duplicate(frozenset(place.partition(":")[0] for place in places), text)] = ", ".join(places)
    for name in files:
        for earlier, later, text in repeated_blocks((ROOT / name).read_text(encoding="utf-8")):
            found[Duplicate(frozenset({name}), text)] = f"{name}: {earlier} and {later}"
    return found


def main(arguments: list[str]) -> int:
    """Checks the given files, or all. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", metavar="PATH", nargs="*", help="files to check (default: all)")
    arguments = parser.parse_args(arguments).paths
    command = ["git", "ls-files", "offsetmgr/*.py", "scripts/*.py", "tests/*.py"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    found = all_duplicates(arguments or listed)
    lines = [f"duplicate: {places}" for duplicate, places in found.items() if duplicate not in ALLOWED]
    if not arguments:
        lines += [f"scripts/duplicates.py: allowed, but not found: {one}" for one in ALLOWED if one not in found]
    print("\n".join(lines) if lines else f"duplicates: {len(arguments or listed)} files, {len(ALLOWED)} allowed")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
