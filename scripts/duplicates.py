"""Finds blocks of at least 12 lines of code that occur twice in the package, the scripts or the tests.

lizard compares tokens, and treats names and constants as equal, so a renamed copy is a duplicate, too. Docstrings,
comments and imports do not count. A block that may occur twice is listed in `ALLOWED` with its reason; an entry that
matches no block is an error. Prints one line for each duplicate; exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lizard
from lizard_ext.lizardduplicate import LizardExtension

ROOT: Final = Path(__file__).resolve().parent.parent
MIN_LINES: Final = 12
ALLOWED: Final[dict[frozenset[str], str]] = {}
"""The files of a duplicate -> the reason why both blocks stay."""


def code_lines(source: str) -> set[int]:
    """The numbers of the lines with code: not blank, not a comment, not a part of an import or of a docstring."""
    lines = {
        number
        for number, line in enumerate(source.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    for node in ast.walk(ast.parse(source)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if text or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def duplicates(files: list[str]) -> Iterator[list[tuple[str, int, int]]]:
    """Yields each duplicate as the file, the first line and the last line of its places."""
    extensions = lizard.get_extensions(["duplicate"])
    for _ in lizard.analyze_files(files, exts=extensions):
        pass
    (finder,) = (one for one in extensions if isinstance(one, LizardExtension))
    code = {name: code_lines(Path(name).read_text("utf-8")) for name in files}
    for places in finder.get_duplicates():
        if all(len(code[one.file_name] & set(range(one.start_line, one.end_line + 1))) >= MIN_LINES for one in places):
            yield [(one.file_name, one.start_line, one.end_line) for one in places]


def main() -> int:
    """Checks all Python files of the project. Returns the exit code."""
    command: list[Any] = ["git", "ls-files", "offsetmgr/*.py", "scripts/*.py", "tests/*.py"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    files = [str(ROOT / name) for name in listed]
    unused = dict(ALLOWED)
    lines = []
    for places in duplicates(files):
        shown = [(Path(name).relative_to(ROOT).as_posix(), first, last) for name, first, last in places]
        key = frozenset(name for name, *_ in shown)
        if key in ALLOWED:
            unused.pop(key, None)
        else:
            lines.append("duplicate: " + ", ".join(f"{name}:{first}-{last}" for name, first, last in shown))
    lines += [f"scripts/duplicates.py: an allowed duplicate that does not exist: {sorted(key)}" for key in unused]
    print("\n".join(lines) if lines else f"duplicates: {len(files)} files, {len(ALLOWED)} allowed")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
