"""Checks the sizes of modules and functions in offsetmgr: prints one line per excess, and exits with 1 if there is any.

ruff counts neither the lines of a function nor those of a module, and its PLR0913 cannot exempt Typer commands.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "offsetmgr"

MAX_MODULE_LINES = 1_000
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8

Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_command(function: Function) -> bool:
    """Whether a function is a Typer command, whose parameters are command-line options."""
    return any(isinstance(one, ast.Call) and "command" in ast.unparse(one.func) for one in function.decorator_list)


def body_lines(function: Function) -> int:
    """The lines of a function; of a command, those after its signature."""
    first = function.body[0].lineno if is_command(function) else function.lineno
    return (function.end_lineno or first) - first + 1


def parameters(function: Function) -> int:
    """The number of parameters without ``self`` and ``cls``."""
    named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([one for one in named if one.arg not in ("self", "cls")])


def excesses(path: Path, name: str) -> Iterator[str]:
    """Yields one line for each exceeded limit of a module."""
    source = path.read_text(encoding="utf-8")
    lines = source.count("\n")
    if lines > MAX_MODULE_LINES:
        yield f"{name}: {lines} lines (at most {MAX_MODULE_LINES})"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            if (length := body_lines(node)) > MAX_FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines (at most {MAX_FUNCTION_LINES})"
            if not is_command(node) and (count := parameters(node)) > MAX_PARAMETERS:
                yield f"{name}:{node.lineno}: {node.name} has {count} parameters (at most {MAX_PARAMETERS})"


def main() -> int:
    """Checks all modules. Returns the exit code."""
    modules = sorted(PACKAGE.rglob("*.py"))
    found = [line for path in modules for line in excesses(path, path.relative_to(PACKAGE).as_posix())]
    print("\n".join(found) if found else f"sizes: {len(modules)} modules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
