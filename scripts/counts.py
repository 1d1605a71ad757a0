"""Prints how large the project is: python scripts/counts.py [COMMIT], by default the tracked files of the working tree.

Lines of code are those of the package without imports, docstrings, comments and blank lines; lines of tests are all
lines. The inner modules are those that tests import (tests/project/inner_modules.txt; older commits have no such list).
Words of docs are those written by hand: reference/cli.md is generated, as is the site.
"""

import ast
import io
import subprocess
import sys
import tarfile
import tokenize

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


commit = " ".join(sys.argv[1:]) or subprocess.check_output(["git", "stash", "create"], text=True).strip() or "HEAD"
with tarfile.open(fileobj=io.BytesIO(subprocess.check_output(["git", "archive", commit]))) as tar:
    files = {one.name: file.read().decode("utf-8", "replace") for one in tar if (file := tar.extractfile(one))}
python = {name: text for name, text in files.items() if name.endswith(".py")}
pages = [name for name in files if name in ROOT_PAGES or (name.startswith("docs/") and name.endswith(".md"))]
print("lines of code:", sum(lines_of_code(text) for name, text in python.items() if name.startswith("offsetmgr/")))
print("lines of tests:", sum(text.count("\n") for name, text in python.items() if name.startswith("tests/")))
print("inner modules:", len(files.get("tests/project/inner_modules.txt", "").split()) or "no list")
print("words of docs:", sum(len(files[name].split()) for name in pages if name != "docs/reference/cli.md"))
