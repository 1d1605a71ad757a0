"""The pages about the structure name only modules and definitions that exist."""

import ast
import re
from collections import defaultdict
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


def sections(page: Path) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


LAYOUT = sections(PROJECT / "docs/reference/layout.md")


@pytest.mark.parametrize("package", [title for title in LAYOUT if (PACKAGE / title).is_dir()])
def test_the_layout_page_names_existing_definitions(package: str) -> None:
    known = names_in(PACKAGE / package)
    everywhere = names_in(PACKAGE)
    packages = {path.name for path in PACKAGE.iterdir()}
    mentioned = re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)*)`", LAYOUT[package])
    unknown = [
        name
        for name in mentioned
        if name not in known | packages and not ("." in name and name.split(".")[-1] in everywhere)
    ]
    assert unknown == []


def test_every_package_has_a_section() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= set(LAYOUT)


def test_the_walkthroughs_name_existing_modules() -> None:
    text = (PROJECT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    walked = {PACKAGE / name.replace(".", "/") for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", text)}
    assert walked
    assert {path for path in walked if not path.with_suffix(".py").is_file() and not path.is_dir()} == set()


@pytest.mark.parametrize(
    "page", sorted((PROJECT / "docs" / "contributing").glob("**/*.md")), ids=lambda page: page.stem
)
def test_pages_for_contributors_name_existing_files(page: Path) -> None:
    """Names in capitals, such as ``NAME.py``, are placeholders, and ``*`` matches any text. Renames and decisions have
    old names."""
    if page.stem == "renames" or page.parent.name == "adr":
        return
    paths = re.findall(r"(?<![\w/.-])((?:offsetmgr|tests|scripts|docs|schemas)/[\w/.*-]*\w)", page.read_text("utf-8"))
    assert [path for path in paths if not re.search(r"[A-Z]{4}", path) and not any(PROJECT.glob(path))] == []


RENAMES = sections(PROJECT / "docs/contributing/renames.md")


def renames(section: str) -> list[tuple[list[str], list[str]]]:
    """The new names and the places in each row of a section."""
    rows = [line.split(" | ") for line in RENAMES[section].splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", row[1]), re.findall(r"`([^`]+)`", row[-1])) for row in rows]


def source_of(place: str) -> str:
    """The text of a package, a module, or the module that contains a definition."""
    path = PACKAGE / place.replace(".", "/")
    while not (path.is_dir() or path.with_suffix(".py").is_file()):
        path = path.parent
    return "".join(
        one.read_text("utf-8") for one in (path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")])
    )


def has_name(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name.partition('(')[0].rpartition('.')[2])}\b", text) is not None


def test_the_new_modules_of_the_renames_exist() -> None:
    paths = {PACKAGE / name.replace(".", "/") for names, _ in renames("Packages and modules") for name in names}
    assert {path for path in paths if not path.is_dir() and not path.with_suffix(".py").is_file()} == set()


@pytest.mark.parametrize("section", ["Classes", "Functions and constants"])
def test_the_new_names_of_the_renames_exist(section: str) -> None:
    texts = {place: source_of(place) for _, places in renames(section) for place in places}
    wrong = [
        name
        for names, places in renames(section)
        for name in names
        if not has_name("".join(map(texts.__getitem__, places)), name)
    ]
    assert wrong == []


def test_the_new_members_of_the_renames_exist() -> None:
    classes = defaultdict[str, str](str)
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text("utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
                classes[node.name] += "\n".join(lines)
    wrong = [
        f"{place}.{name}"
        for names, places in renames("Methods and attributes")
        for place in places
        for name in names
        if not has_name(classes[place], name)
    ]
    assert wrong == []
