"""Tests import public names and the sandbox, and of the other modules only those that inner_modules.txt lists."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from test_public_api import PACKAGES

PROJECT = Path(__file__).parents[2]
IMPORT = re.compile(r"^ *(?:from (offsetmgr[\w.]*) import (\([^)]*\)|.+)|import (offsetmgr[\w.]*))", re.MULTILINE)


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Each import of offsetmgr, also in a program text: the module, and a name or nothing."""
    for module, names, alone in IMPORT.findall(path.read_text("utf-8")):
        found = re.findall(r"(\w+)(?: as \w+)?\s*(?:,|$)", re.sub(r"#.*|[()]", "", names).strip())
        yield from ((module or alone, name) for name in found or [""])


@cache
def defined(module: str, name: str) -> tuple[str, str]:
    """The module that defines a name, which a package may export."""
    place = PROJECT / module.replace(".", "/")
    if name and (place / f"{name}.py").is_file():
        return f"{module}.{name}", ""
    exported: Iterable[tuple[str, str]] = imports(place / "__init__.py") if name and place.is_dir() else ()
    return next((defined(*one) for one in exported if one[1] == name), (module, name))


def test_tests_import_only_inner_modules_of_the_list() -> None:
    public = {defined(package, name) for package in PACKAGES for name in import_module(package).__all__}
    imported = {defined(*one) for path in (PROJECT / "tests").rglob("*.py") for one in imports(path)}
    modules = {module for module, _ in imported - public if (module, "") not in public}
    inner = {one for one in modules.difference(PACKAGES) if not one.startswith("offsetmgr.sandbox")}
    listed = Path(__file__).with_name("inner_modules.txt").read_text("utf-8").split()
    assert sorted(inner) == listed
    assert len(listed) <= 200
