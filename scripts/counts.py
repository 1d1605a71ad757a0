"""Prints how large the project is: python scripts/counts.py [COMMIT], by default the tracked files of the working tree.

Lines of code are those of the package without imports, docstrings, comments and blank lines; lines of tests are all
lines. Words of docs are those written by hand: reference/cli.md is generated, as is the site.
"""

import ast
import io
import re
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache

PUBLIC = ("", ".consumer", ".period", ".results", ".segments", ".spark", ".testing")
"""The packages and modules with public names."""
IMPORT = re.compile(r"^ *(?:from (offsetmgr[\w.]*) import (\([^)]*\)|.+)|import (offsetmgr[\w.]*))", re.MULTILINE)
SANDBOX = "offsetmgr.sandbox"
PATCHED = re.compile(r"""(?:setattr|patch)\(\s*["'](offsetmgr[\w.]*)\.(\w+)""")
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LAYOUT = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}


def lines_of_code(source: str) -> int:
    """The number of lines of a module that have code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant(str())):
                lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def imports(text: str) -> Iterator[tuple[str, str]]:
    """Each import of offsetmgr, also in the text of a program: the module, and a name or nothing."""
    for module, names, alone in IMPORT.findall(text):
        found = re.findall(r"(\w+)(?: as \w+)?\s*(?:,|$)", re.sub(r"#.*|[()]", "", names).strip())
        yield from ((module or alone, name) for name in found or [""])


def inner_modules(files: Mapping[str, str]) -> list[str]:
    """The modules whose objects tests import or patch. Public names and the sandbox do not count."""

    def text_of(module: str) -> str | None:
        place = module.replace(".", "/")
        return files.get(f"{place}.py", files.get(f"{place}/__init__.py"))

    @cache
    def defined(module: str, name: str) -> tuple[str, str]:
        """The module that defines a name, which another module or package may import."""
        while name and text_of(module) is None:  # a patched class in a module
            module, _, name = module.rpartition(".")
        if not name or text_of(f"{module}.{name}") is not None:
            return f"{module}.{name}".rstrip("."), ""
        text = text_of(module) or ""
        if re.search(rf"^(?:(?:async )?def |class |){name}\b *[:=(\[]", text, re.MULTILINE):
            return module, name
        return next((defined(*one) for one in imports(text) if one[1] == name), (module, name))

    packages = [f"offsetmgr{one}" for one in PUBLIC]
    exported = {package: text_of(package) or "" for package in packages}
    public = {
        defined(package, name)
        for package, text in exported.items()
        for _, name in imports(text)
        if f'"{name}"' in text or f"import {name} as {name}" in text
    }
    tests = [text for path, text in files.items() if path.startswith("tests/") and path.endswith(".py")]
    used = {defined(*one) for text in tests for one in (*imports(text), *PATCHED.findall(text))} - public
    modules = {module for module, _ in used if (module, "") not in public and not module.startswith(SANDBOX)}
    return sorted(modules.difference(packages))


def main() -> None:
    commit = " ".join(sys.argv[1:]) or subprocess.check_output(["git", "stash", "create"], text=True).strip() or "HEAD"
    with tarfile.open(fileobj=io.BytesIO(subprocess.check_output(["git", "archive", commit]))) as tar:
        files = {one.name: file.read().decode("utf-8", "replace") for one in tar if (file := tar.extractfile(one))}
    python = {name: text for name, text in files.items() if name.endswith(".py")}
    pages = [name for name in files if name in ROOT_PAGES or (name.startswith("docs/") and name.endswith(".md"))]
    print("lines of code:", sum(lines_of_code(text) for name, text in python.items() if name.startswith("offsetmgr/")))
    print("lines of tests:", sum(text.count("\n") for name, text in python.items() if name.startswith("tests/")))
    print("inner modules:", len(inner_modules(files)))
    print("words of docs:", sum(len(files[name].split()) for name in pages if name != "docs/reference/cli.md"))


if __name__ == "__main__":
    main()
