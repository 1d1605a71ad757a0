"""Runs the blocks of a page in order, in one process: ``doc_runner.py PAGE ADDRESSES [PREPARATIONS]``.

``ADDRESSES`` is a JSON object for `doc_blocks.with_addresses`. ``PREPARATIONS`` is a JSON object of shell commands that
run in front of the first block below a heading. Without it, the shell blocks of `doc_blocks.MATRIX_PAGES` do not run.
If ``ADDRESSES`` is empty, only the Python blocks run. Prints only what the Python blocks print. The terminal of shell
blocks answers each question with "y".
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

from doc_blocks import MATRIX_PAGES, SHELL, Block, blocks, with_addresses
from documented_commands import TOOLS, stop_all

PYTHON = shlex.quote(sys.executable)
HELPER = f"{PYTHON} {shlex.quote(str(Path(__file__).with_name('documented_commands.py')))}"
PRELUDE = "\n".join(
    [
        "set -e",
        f'python() {{ {PYTHON} "$@"; }}',
        f'offsetmgr() {{ if [[ "$1 $2" == "manager serve" ]]; then {HELPER} serve "$@"; '
        'else python -m offsetmgr "$@"; fi; }',
        *(f'{tool}() {{ {HELPER} {tool} "$@"; }}' for tool in TOOLS),
        "",
    ]
)


def run_shell(block: Block, text: str) -> None:
    """Runs a shell block. Its terminal answers each question with "y"."""
    answers, terminal = pty.openpty()
    os.write(answers, b"y\n" * 20)
    done = subprocess.run(
        ["bash", "-c", PRELUDE + text], check=False, stdin=terminal, stdout=sys.stderr, stderr=sys.stderr
    )
    os.close(terminal)
    os.close(answers)
    if done.returncode != block.exit_code:
        raise SystemExit(f"{block.place}: exit code {done.returncode}, not {block.exit_code}")


def main(page: Path, addresses: dict[str, str], preparations: dict[str, str] | None = None) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    left = dict(preparations or {})
    try:
        for block in blocks(page):
            text = with_addresses(block.text, addresses)
            if block.runs and block.language in SHELL:
                if preparations is not None or (addresses and page not in MATRIX_PAGES):
                    run_shell(block, left.pop(block.heading, "") + "\n" + text)
            elif block.runs:
                exec(compile("\n" * (block.line - 1) + text, str(page), "exec"), namespace)
    finally:
        stop_all()
    if left:
        raise SystemExit(f"no block runs below {', '.join(left)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(json.loads, sys.argv[2:]))
