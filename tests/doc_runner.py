"""Runs the blocks of a page in order, in one process: ``doc_runner.py PAGE ADDRESSES [PREPARATIONS]``.

``ADDRESSES`` is a JSON object for `doc_blocks.with_addresses`. ``PREPARATIONS`` is a JSON object of shell commands that
run in front of the first block below a heading. Without it, the shell blocks of `doc_blocks.MATRIX_PAGES` do not run.
Prints only what the Python blocks print. The terminal of shell blocks answers each question with "y".
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from doc_blocks import MATRIX_PAGES, SHELL, blocks, with_addresses

PYTHON = shlex.quote(sys.executable)
PRELUDE = f'set -e; python() {{ {PYTHON} "$@"; }}; offsetmgr() {{ python -m offsetmgr "$@"; }}\n'


def shell(text: str) -> None:
    """Runs a shell block. Its exit code must be 0."""
    answers, terminal = pty.openpty()
    os.write(answers, b"y\n" * 20)
    subprocess.run(["bash", "-c", PRELUDE + text], check=True, stdin=terminal, stdout=sys.stderr)
    os.close(terminal)
    os.close(answers)


def main(page: Path, addresses: dict[str, str], preparations: dict[str, str] | None = None) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    left = dict(preparations or {})
    for block in blocks(page):
        text = with_addresses(block.text, addresses)
        if block.runs and block.language in SHELL:
            if preparations is not None or page not in MATRIX_PAGES:
                shell(left.pop(block.heading, "") + "\n" + text)
        elif block.runs:
            exec(compile("\n" * (block.line - 1) + text, str(page), "exec"), namespace)
    if left:
        raise SystemExit(f"no block runs below {', '.join(left)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(json.loads, sys.argv[2:]))
