"""The pages about the structure name only modules and definitions that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "offsetmgr"


@cache
def defined_names(path: Path) -> frozenset[str]:
    """Classes, functions and assigned names."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return frozenset(found)


@cache
def names_in(package: Path) -> set[str]:
    """The modules, packages and definitions below a directory."""
    paths = list(package.rglob("*.py"))
    return {name for path in paths for name in (path.stem, path.parent.name, *defined_names(path))}


ARCHITECTURE = (PROJECT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", ARCHITECTURE, re.MULTILINE))
"""The packages in the page's table, each with the rest of its row."""


@pytest.mark.parametrize("package", ROWS)
def test_the_row_of_a_package_names_existing_modules_and_definitions(package: str) -> None:
    known = names_in(PACKAGE / package) | {path.stem for path in PACKAGE.iterdir()}
    mentioned = re.findall(r"`([A-Za-z_]+)`", ROWS[package])
    assert mentioned
    assert [name for name in mentioned if name not in known] == []


def test_every_package_has_a_row() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(ROWS)


def test_the_walkthroughs_name_existing_modules() -> None:
    dotted = re.findall(r"`(?!pyproject)([a-z_]+(?:\.[a-z_]+)+)`", ARCHITECTURE)
    walked = {PACKAGE / name.replace(".", "/") for name in dotted}
    assert walked
    assert {path for path in walked if not path.with_suffix(".py").is_file() and not path.is_dir()} == set()


@pytest.mark.parametrize(
    "page", sorted((PROJECT / "docs" / "contributing").glob("**/*.md")), ids=lambda page: page.stem
)
def test_pages_for_contributors_name_existing_files(page: Path) -> None:
    """Names in capitals, such as ``NAME.py``, are placeholders, and ``*`` matches any text. Decisions have
    old names."""
    if page.parent.name == "adr":
        return
    paths = re.findall(r"(?<![\w/.-])((?:offsetmgr|tests|scripts|docs|schemas)/[\w/.*-]*\w)", page.read_text("utf-8"))
    assert [path for path in paths if not re.search(r"[A-Z]{4}", path) and not any(PROJECT.glob(path))] == []
