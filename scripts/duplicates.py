"""Finds blocks of at least 12 equal lines that occur twice in the package, the scripts or the tests.

Usage: ``scripts/duplicates.py [PATH...]``; without paths every Python file of the project. The comparison ignores
imports, docstrings, comments, and lines without a letter or digit. `ALLOWED` lists each block that may occur twice,
with its reason; an entry that matches no block is an error. Prints one line for each duplicate, and exits with 1 if
there is any.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
MIN_LINES: Final = 12


class Duplicate(NamedTuple):
    """A block of lines that occurs twice. A file can have several duplicates, which differ in the first line."""

    files: frozenset[str]
    first_line: str


class Place(NamedTuple):
    """A line of code of a file, counted without the ignored lines."""

    file: str
    position: int


ALLOWED: Final[dict[Duplicate, str]] = {}
"""Duplicate -> the reason why both blocks stay."""


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Returns the statements below a node, without the expressions, which are most of a syntax tree."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def code_lines(text: str) -> list[tuple[int, str]]:
    """Returns the number and the text of each line that has code: without imports, docstrings, comments, and lines of
    brackets only."""
    lines = text.splitlines()
    ignored = set[int]()
    for node in statements(ast.parse(text)):
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


def all_duplicates(texts: Mapping[str, str]) -> dict[Duplicate, str]:
    """Returns the duplicates between texts and inside of texts, which are keyed by file, each with a description of the
    two places. A block that is longer than `MIN_LINES` counts once."""
    found: dict[Duplicate, str] = {}
    code = {file: code_lines(text) for file, text in texts.items()}
    first: dict[tuple[str, ...], Place] = {}
    for file, lines in code.items():
        previous: Place | None = None
        for at in range(len(lines) - MIN_LINES + 1):
            block = tuple(line for _, line in lines[at : at + MIN_LINES])
            earlier = first.setdefault(block, Place(file, at))
            overlaps = earlier.file == file and at - earlier.position < MIN_LINES
            continues = previous == Place(earlier.file, earlier.position - 1)
            previous = None if overlaps else earlier
            if not overlaps and not continues:
                number = code[earlier.file][earlier.position][0]
                places = f"{earlier.file}:{number} and {file}:{lines[at][0]}"
                found[Duplicate(frozenset({earlier.file, file}), block[0])] = places
    return found


def main(arguments: list[str]) -> int:
    """Checks the given files, or all. Returns the exit code."""
    command = ["git", "ls-files", "offsetmgr/*.py", "scripts/*.py", "tests/*.py"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    files = arguments or listed
    found = all_duplicates({file: (ROOT / file).read_text(encoding="utf-8") for file in files})
    lines = [f"duplicate: {places}" for duplicate, places in found.items() if duplicate not in ALLOWED]
    if not arguments:
        lines += [f"scripts/duplicates.py: allowed, but not found: {one}" for one in ALLOWED if one not in found]
    print("\n".join(lines) if lines else f"duplicates: {len(files)} files, {len(ALLOWED)} allowed")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
