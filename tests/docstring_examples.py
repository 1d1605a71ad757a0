"""The examples in the docstrings of the public API: blocks after ``Example::``, and doctests."""

from __future__ import annotations

import doctest
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any

PACKAGES = ("offsetmgr", *(f"offsetmgr.{name}" for name in ("spark", "period", "consumer", "segments", "testing")))
"""The packages with public names, except `offsetmgr.results`, which has only types."""

_BLOCK = re.compile(r"^Example[^\n]*::\n((?:\n|[ \t]+[^\n]*\n?)+)", re.MULTILINE)


def public_objects(package: str) -> dict[str, Any]:
    """The public classes and functions of a package."""
    module = import_module(package)
    found = {name: getattr(module, name) for name in module.__all__}
    return {name: one for name, one in found.items() if inspect.isclass(one) or inspect.isroutine(one)}


def docstrings(found: Any) -> Iterator[str]:
    """The docstring of a function, or of a class and its public methods."""
    yield inspect.getdoc(found) or ""
    if inspect.isclass(found):
        for name, one in vars(found).items():
            if name == "__init__" or not name.startswith("_"):
                yield inspect.getdoc(one) or ""


def blocks(found: Any) -> list[str]:
    """The blocks after ``Example::`` in the docstrings of a class or function."""
    return [
        textwrap.dedent(match[1]).strip() + "\n" for text in docstrings(found) for match in _BLOCK.finditer(text + "\n")
    ]


def doctests(found: Any) -> list[doctest.Example]:
    """The doctests in the docstrings of a class or function."""
    parser = doctest.DocTestParser()
    return [example for text in docstrings(found) for example in parser.get_examples(text)]


def example_blocks(package: str) -> list[tuple[str, str]]:
    """Each block of a package as a program, with a name for it. Doctests are programs, too."""
    programs = []
    for name, found in public_objects(package).items():
        programs += [(f"{name}_{at}", source) for at, source in enumerate(blocks(found))]
        if examples := doctests(found):
            source = "".join(example.source for example in examples)
            programs.append((f"{name}_doctest", f"from {package} import *\n{source}"))
    return programs
