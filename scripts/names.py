"""Checks the names in offsetmgr: prints one line for each finding, and exits with 1 if there is any.

- A public name of a class or type alias stands for one concept: no two modules define it.
- No class and no module is named by a participle or a gerund. Exceptions (such as `RewindRefused`) and the result
  types and packages in the table below are exempt.
- A constant, a parameter or a field that holds a duration ends in its unit.
"""

from __future__ import annotations

import ast
import builtins
import functools
import gc
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parent.parent / "offsetmgr"

VERB_FORM: Final = re.compile(r"(?:ing|ed)$")
EXEMPT: Final = frozenset({"testing", "Committed", "Finding"})
"""The package of test tools; the result type of a fetch; a noun."""

DURATION: Final = re.compile(
    r"^(?!.*_PER_)(?:.*_)?"
    r"(?:TIMEOUT|INTERVAL|PAUSE|WAIT|DELAY|BACKOFF|DEBOUNCE|RETENTION|LINGER|DEADLINE|DURATION|LEASE|PATIENCE|HOUR|DAY|WEEK)$"
)
"""The last word of a name that is a duration without its unit."""

DURATION_VALUE: Final = re.compile(
    r"^(?:.*_)?(?:timeout|interval|pause|wait|delay|backoff|retention|linger|duration|lease|window|settle|grace|poll|wait_empty)$"
)
"""The last word of a parameter or a field that is a duration without its unit."""

THIRD_PARTY_PARAMETERS: Final = {("create_connection", "timeout"), ("select", "timeout")}
"""The parameters of methods that override those of kazoo."""

ALIAS: Final = re.compile(r"_*[A-Z][a-zA-Z0-9]*$")
"""A name in the form of a class name, such as that of a type alias."""


@functools.cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a module's tree. Several checks read them, and `ast.walk` takes most of their time."""
    return tuple(ast.walk(tree))


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """The classes of a module."""
    yield from (node for node in nodes(tree) if isinstance(node, ast.ClassDef))


def exception_names(trees: Mapping[str, ast.Module]) -> set[str]:
    """The names of all classes that derive from an exception, directly or through other classes of the package."""
    bases = {node.name: [ast.unparse(base) for base in node.bases] for tree in trees.values() for node in classes(tree)}
    known = {
        name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
    }
    while found := {name for name, of in bases.items() if name not in known and known.intersection(of)}:
        known |= found
    return known


def aliases(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and name of each type that a module assigns to a name; no type variables, whose scope is a signature."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith("TypeVar"):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (one.id for one in targets if isinstance(one, ast.Name))
            yield from ((node.lineno, name) for name in names if ALIAS.match(name) and not name.isupper())


def constants(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and name of each number that a module or class assigns to a name in capitals; no members of enums."""
    members = {
        id(member) for node in classes(tree) if "Enum" in " ".join(map(ast.unparse, node.bases)) for member in node.body
    }
    for node in nodes(tree):
        if id(node) in members:
            continue
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant | ast.BinOp):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((node.lineno, one.id) for one in targets if isinstance(one, ast.Name) and one.id.isupper())


def is_number(annotation: ast.expr | None) -> bool:
    """Whether an annotation is that of a number, or of a Typer option whose value is a number."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        annotation = annotation.slice.elts[0]
    return annotation is not None and ast.unparse(annotation) in ("int", "float", "int | None", "float | None")


def numbers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and name of each parameter and each field of a class that holds a number."""
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                if is_number(one.annotation) and (node.name, one.arg) not in THIRD_PARTY_PARAMETERS:
                    yield one.lineno, one.arg
        elif isinstance(node, ast.ClassDef):
            for field in node.body:
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and is_number(field.annotation)
                ):
                    yield field.lineno, field.target.id


def durations(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and name of each duration whose name has no unit (``_S`` or ``_MS``)."""
    yield from ((line, name) for line, name in constants(tree) if DURATION.search(name))
    yield from ((line, name) for line, name in numbers(tree) if DURATION_VALUE.search(name))


def findings(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """One line for each finding in these modules, which are keyed by path."""
    exceptions = exception_names(trees)
    defined: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        stem = Path(path).stem
        if VERB_FORM.search(stem) and stem not in EXEMPT:
            yield f"{path}: a participle or gerund as the name of a module"
        for node in classes(tree):
            if not node.name.startswith("_"):
                defined[node.name].append(path)
            if VERB_FORM.search(node.name) and node.name not in EXEMPT | exceptions:
                yield f"{path}:{node.lineno}: {node.name}: a participle or gerund as the name of a class"
        for line, name in aliases(tree):
            if not name.startswith("_"):
                defined[name].append(path)
            if VERB_FORM.search(name) and name not in EXEMPT:
                yield f"{path}:{line}: {name}: a participle or gerund as the name of a type"
        yield from (f"{path}:{line}: {name}: a duration without its unit" for line, name in durations(tree))
    for name, paths in sorted(defined.items()):
        if len(paths) > 1:
            yield f"{name}: one name of a class or type in {len(paths)} modules: {', '.join(paths)}"


def main() -> int:
    """Checks all modules. Returns the exit code."""
    gc.disable()  # it would scan millions of nodes again and again, and finds nothing to free
    modules = sorted(PACKAGE.rglob("*.py"))
    trees = {path.relative_to(PACKAGE.parent).as_posix(): ast.parse(path.read_bytes()) for path in modules}
    found = list(findings(trees))
    print("\n".join(found) if found else f"names: {len(trees)} modules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
